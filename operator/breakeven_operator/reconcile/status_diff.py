"""Whether a status is worth a write: state at once, figures and sentences now and then, noise never.

A status that is written every cycle because a load moved from 3.1 to 3.2 would be the operator's largest load on the
API server, and would wake every watcher of it. A sentence is news when its words change; the figures and ages in it
move in every cycle, and stand in fields of their own where they matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any

from breakeven.planning.learned_laws import INDEPENDENT_S

_SMALL = 0.05
# A percentage is a ratio already: a saving's lower bound that goes from 2.8 to 3.1 % has moved by a tenth of itself and says the same.
_SMALL_POINTS = 1.0
_FIGURE = re.compile(r"\d+(?:\.\d+)?")
# Times of the observation itself: they say when, not what.
_STAMPS = frozenset({"decision.time", "decision.evidenceTime"})
# Figures and the texts that carry them.
_FIGURES = (
    "decision.",
    "capacity.",
    "model.",
    "objectives.",
    "workings.display.",
    "calibration.",
    "conditions.message",
    "history.",
    "rollout.unschedulableSinceTime",
)
# What live windows have taught: worth a write of its own once so much time has passed that a new window tells something new.
# Until then the next cycle learns from the status as it was written, and a longer time counts for its window.
_LEARNED = tuple(
    f"workings.memory.{name}" for name in ("evidence", "savedRequestSeconds", "largestRps", "seen")
)
# The first window of an arm teaches as much as the next half hour: it is written at once.
_OF_TIMES = frozenset({"workings.memory.decidedTime", "workings.memory.evidence.time"})
# ... but not these of them.
_STATE = frozenset(
    {
        "decision.action",
        "decision.arm",
        "decision.runningArm",
        "decision.reason",
        "decision.comparedArm",
        "decision.profile",
        "decision.heldUntil",
        "decision.verdict",
        "decision.saturatedArms",
        "workings.display.arm",
        "workings.display.pays",
        "workings.display.recommended",
        "capacity.scaledBy",
        "model.arm",
        "model.profile",
        "capacity.fewestReplicasArm",
        "objectives.finding",
        "objectives.sinceTime",
        "objectives.limitSeconds",
        "calibration.run",
        "calibration.profile",
        "calibration.failures",
        "calibration.lastRunTime",
    }
)


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
    if written is None:
        return Worth.NOW
    before, after = dict(_leaves(old)), dict(_leaves(new))
    renewal = Worth.NOW if now - written >= timedelta(seconds=refresh_s) else Worth.LATER
    found = Worth.NOT
    for path in before.keys() | after.keys():
        if before.get(path) == after.get(path):
            continue
        key = _generic(path)
        if key in _STAMPS:
            continue
        if key in _OF_TIMES:
            if _older(before.get(path), after.get(path)):
                return Worth.NOW
            continue
        if key.startswith(_LEARNED):
            continue
        if key in _STATE or not key.startswith(_FIGURES):
            return Worth.NOW
        small_step = _SMALL_POINTS if key.endswith("Percent") else 0.0
        if found is not renewal and not _close(before.get(path), after.get(path), small_step):
            found = renewal
    return found


def _older(before: str | None, after: str | None) -> bool:
    """Whether what is stored was decided, or taught, so long ago that a window since then is independent of it."""
    if before is None or after is None:
        return True
    passed = datetime.fromisoformat(after) - datetime.fromisoformat(before)
    return passed >= timedelta(seconds=INDEPENDENT_S)


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            # Conditions by type, so that their order does not matter.
            name = str(inner.get("type", index)) if isinstance(inner, Mapping) else str(index)
            yield from _leaves(inner, (*path, f"[{name}]"))
    else:
        yield path, value


def _generic(path: tuple[str, ...]) -> str:
    return ".".join(step for step in path if not step.startswith("["))


def _close(old: Any, new: Any, small_step: float) -> bool:
    try:
        a, b = float(old), float(new)
    except (TypeError, ValueError):
        if isinstance(old, str) and isinstance(new, str):
            return _FIGURE.sub("#", old) == _FIGURE.sub("#", new)
        return False
    return abs(a - b) <= max(small_step, _SMALL * max(abs(a), abs(b)))
