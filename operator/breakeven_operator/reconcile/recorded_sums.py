"""Sums over siblings that recording rules have made already: the rule, the question for its series, and which of them count.

A rule is `sums_query` about all namespaces, word for word. A digest of that text stands on every recorded series, so series of
another version's rule, or of another window, are no answer. The sums only show which services have moved: decisions rest
on the pods' own series.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from breakeven.serving.engine_series import POD, PREFIX, EngineSeries
from breakeven.serving.promql import Matcher, any_of, selector
from breakeven_operator.ports import InstantSample
from breakeven_operator.reconcile.fleet_query import EVALUATED, SIBLINGS, STAT, sums_query

RECORD = "siblings:breakeven_vllm:sums"
"""Name of the recorded series."""
_QUESTION = "question"
# Prometheus puts these labels on every scraped series, and no rule of ours does: a page cannot pass its figures off as recorded.
_OF_SCRAPES = ("job", "instance")
_KEY = ("namespace", SIBLINGS, POD[-1], STAT)


class RecordingRule(NamedTuple):
    """A rule as a file of Prometheus has it."""

    record: str
    expr: str
    labels: dict[str, str]


class RecordedSums(NamedTuple):
    """An answer about recorded series.

    Attributes:
        samples: those that count, as `sums_query` would have them.
        namespaces: of these.
        twice: namespaces of which two recorders say something: neither of them counts.
        evaluated_s: Unix time at which the rule was evaluated last, by the server's clock; None: no rule was.
    """

    samples: tuple[InstantSample, ...]
    namespaces: frozenset[str]
    twice: frozenset[str]
    evaluated_s: float | None


def recording_rule(window_s: int, staleness_s: int, *, prefix: str = PREFIX) -> RecordingRule:
    """The rule by which a server records the sums over siblings of all namespaces.

    Args: see sums_query.
    """
    expr = sums_query(None, EngineSeries(prefix=prefix), window_s, staleness_s)
    return RecordingRule(RECORD, expr, {_QUESTION: hashlib.sha256(expr.encode()).hexdigest()[:12]})


def recorded_query(
    namespaces: Sequence[str], window_s: int, staleness_s: int, *, prefix: str = PREFIX
) -> str:
    """A question for what the rule has recorded of some namespaces, and when it was evaluated.

    Args: see sums_query.

    Returns:
        An instant query for `read_recorded`.
    """
    labels = recording_rule(window_s, staleness_s, prefix=prefix).labels
    own = [Matcher(name, "=", value) for name, value in labels.items()]
    own += [Matcher(name, "=", "") for name in _OF_SCRAPES]
    within = selector([*own, Matcher("namespace", "=~", any_of(namespaces))])
    evaluated = selector([*own, Matcher(STAT, "=", EVALUATED)])
    return f"{RECORD}{within}\nor {RECORD}{evaluated}"


def read_recorded(samples: Iterable[InstantSample]) -> RecordedSums:
    """Sort out the answer to `recorded_query`.

    Replicas without deduplication, shards of which each records a part, and tenants whose rules speak of somebody else's
    namespace: their series differ in labels that no rule of ours sets. Two series of one figure are worse than none.
    """
    found = list(samples)
    times = [one.value for one in found if one.labels.get(STAT) == EVALUATED]
    sums = [one for one in found if one.labels.get(STAT) != EVALUATED]
    counts = Counter(tuple(one.labels.get(name, "") for name in _KEY) for one in sums)
    twice = frozenset(key[0] for key, count in counts.items() if count > 1)
    kept = tuple(one for one in sums if one.labels.get("namespace", "") not in twice)
    namespaces = frozenset(one.labels.get("namespace", "") for one in kept)
    return RecordedSums(kept, namespaces, twice, min(times, default=None))
