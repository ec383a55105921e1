"""Whether a status is worth a write: state at once, figures and sentences now and then, noise never.

A write in every cycle, because a load moved from 3.1 to 3.2, would be the operator's largest load on the API server, and
would wake every watcher. A sentence is news if its words change; its figures and ages move in every cycle, and those that
matter have fields of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any

from breakeven.planning.learned_laws import INDEPENDENT_S
from breakeven_operator.packed import whole
from breakeven_operator.reconcile.model_account import GAP_S
from breakeven_operator.resources import SpeculativeServiceStatus
from breakeven_operator.resources.figures import Renewal, status_fields
from breakeven_operator.workloads.object_facts import parse_time

_SMALL = 0.05
# A percentage is a ratio already: a saving's lower bound that goes from 2.8 to 3.1 % has moved by a tenth of itself and says the same.
_SMALL_POINTS = 1.0
_FIGURE = re.compile(r"\d+(?:\.\d+)?")
_MISSED = 0.2
# The age of a row says that its operator is gone only if a living one renews each row: 24 writes a day.
_LONGEST_UNWRITTEN = timedelta(hours=1)
_MISSED_S = GAP_S / 2.0
_LEARNED = frozenset({Renewal.LEARNED, Renewal.AMOUNT, Renewal.BEGINNING})
_RENEWALS = {one.json_path: one.renewal for one in status_fields(SpeculativeServiceStatus)}


class Worth(Enum):
    """Whether a status should replace the one that was written; LATER: once that one is old enough."""

    NOT = auto()
    LATER = auto()
    NOW = auto()


def worth_writing(
    old: Mapping[str, Any], new: Mapping[str, Any], written: datetime | None, now: datetime, refresh_s: float
) -> Worth:
    """Whether `new` should replace `old`, which was written at `written`.

    Args:
        old: status as the API server has it, JSON.
        new: status of this cycle, JSON.
        written: None: nothing was ever written.
        now: time of the observation.
        refresh_s: figures that moved by more than 5 % (percentages: by more than a point), and sentences with other words, are written at most this often.
    """
    if written is None or now - written > _LONGEST_UNWRITTEN:
        return Worth.NOW
    old, new = whole(old), whole(new)
    renewal = Worth.NOW if now - written >= timedelta(seconds=refresh_s) else Worth.LATER
    missed_s = _since_s(_decided(old), _decided(new))
    found = Worth.NOT
    for key, before, after in _changes(old, new):
        wanted = _renewal(key)
        if wanted is Renewal.NEVER:
            continue
        if wanted is Renewal.AT_ONCE or (wanted is Renewal.BEGINNING and before is None):
            return Worth.NOW
        if wanted in _LEARNED:
            if _missed(wanted, before, after, missed_s):
                return Worth.NOW
            continue
        small_step = _SMALL_POINTS if key.endswith("Percent") else 0.0
        if found is not renewal and not _close(before, after, _SMALL, small_step):
            found = renewal
    return found


def _renewal(key: str) -> Renewal:
    """The rule of a field; one of another version of the operator has that of the part it is in."""
    while key and key not in _RENEWALS:
        key = key.rpartition(".")[0]
    return _RENEWALS.get(key, Renewal.AT_ONCE)


def _missed(renewal: Renewal, before: object, after: object, since_s: float) -> bool:
    """Whether an operator that starts again would miss what was learned within such a time.

    The one that learned it goes on with it, see `unwritten`. The first window of an arm teaches as much as the next half
    hour, and the first ones of an account begin it. Amounts grow without a bound that is soon reached.
    """
    if since_s >= _MISSED_S:
        return True
    return since_s >= INDEPENDENT_S and renewal is Renewal.AMOUNT and not _close(before, after, _MISSED)


def _decided(status: Mapping[str, Any]) -> object:
    return ((status.get("workings") or {}).get("memory") or {}).get("decidedTime")


def _since_s(before: object, after: object) -> float:
    """Time (s) from one decision to another; 0 if one was never made."""
    began, ended = parse_time(before), parse_time(after)
    return (ended - began).total_seconds() if began is not None and ended is not None else 0.0


def _changes(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Differences, leaf by leaf: the path without places in lists, and both values; None: absent."""
    # Most of a status is as it was, and equal parts need no look at their leaves.
    if old == new:
        return
    before, after = _parts(old), _parts(new)
    if before is None and after is None:
        yield key, old, new
        return
    for part in {**(before or {}), **(after or {})}:
        inner = key if part.startswith("[") else f"{key}.{part}" if key else part
        yield from _changes((before or {}).get(part), (after or {}).get(part), inner)


def _parts(value: Any) -> Mapping[str, Any] | None:
    """The fields of an object, the entries of a list by their place; None: a leaf."""
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, list):
        return None
    # Conditions by type, so that their order does not matter.
    return {
        f"[{inner.get('type', place) if isinstance(inner, Mapping) else place}]": inner
        for place, inner in enumerate(value)
    }


def _close(old: Any, new: Any, share: float, small_step: float = 0.0) -> bool:
    """Whether two figures differ by no more than a share of the larger one or a step, or two sentences by their figures alone."""
    try:
        a, b = float(old), float(new)
    except (TypeError, ValueError):
        if isinstance(old, str) and isinstance(new, str):
            return _FIGURE.sub("#", old) == _FIGURE.sub("#", new)
        return False
    return abs(a - b) <= max(small_step, share * max(abs(a), abs(b)))
