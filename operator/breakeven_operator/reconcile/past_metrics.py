"""Request rates per replica over the past of a service, or the one reason why none are known.

A missing past is no reason to hold, as missing present figures are: the present load then counts alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from breakeven.phrases import duration_text
from breakeven.planning.outlook import PastRates
from breakeven.readers.prometheus import Samples
from breakeven.serving.plausibility import MOST_RPS
from breakeven_operator.reconcile.fleet_query import FIGURE, WORKLOAD
from breakeven_operator.resources.updatepolicy import UpdatePolicy


class LoadOwner(NamedTuple):
    """Whose load it is, by the labels of the series; `workload` is a `Workload.title`."""

    namespace: str
    workload: str
    model_name: str


@dataclass(frozen=True, slots=True)
class PastReading:
    """The rates of one query of the past, per replica, by service; or why there are none.

    `awaited` has the namespaces about which the first answer, or its failure, is still to come.
    """

    rates: Mapping[LoadOwner, PastRates] = field(default_factory=dict)
    error: str | None = None
    awaited: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PastLoads:
    """Loads of one service's past.

    Attributes:
        rates: per replica (1/s), in time; empty if only the present load is expected.
        problem: why there are none, as the end of a sentence; empty if there are, or none were asked for.
        awaited: the answer is still to come; a decision without it would rest on the present load alone.
    """

    rates: PastRates = field(default_factory=PastRates)
    problem: str = ""
    awaited: bool = False


def read_past(samples: Iterable[Samples]) -> PastReading:
    """Sort the elements of a past query's result by service; what is no rate is left out."""
    # By time: an answer that tells a time twice would have no distance between its times.
    found: dict[LoadOwner, dict[float, float]] = defaultdict(dict)
    replicas: dict[LoadOwner, dict[float, float]] = defaultdict(dict)
    for element in samples:
        labels = element.labels
        key = LoadOwner(labels.get("namespace", ""), labels.get(WORKLOAD, ""), labels.get("model_name", ""))
        if not key.workload:
            continue
        if labels.get(FIGURE):
            replicas[key] |= {timed.time_s: timed.value for timed in element.values}
            continue
        found[key] |= {timed.time_s: timed.value for timed in element.values if 0 <= timed.value <= MOST_RPS}
    # The steps of one answer are the same for most services.
    times_s: dict[tuple[float, ...], tuple[float, ...]] = {}
    rates = {}
    for key, values in found.items():
        if values:
            end_s, rps = zip(*sorted(values.items()), strict=True)
            there = [replicas[key].get(at_s) for at_s in end_s]
            known = tuple(count for count in there if count)
            rates[key] = PastRates(
                times_s.setdefault(end_s, end_s), rps, known if len(known) == len(end_s) else ()
            )
    return PastReading(rates)


def past_of(reading: PastReading | None, key: LoadOwner, policy: UpdatePolicy) -> PastLoads:
    """Loads of one service's past, from its Prometheus' reading; none if the past was not asked for."""
    lookback_s = policy.lookback_seconds
    if reading is None or lookback_s == 0:
        return PastLoads()
    if key.namespace in reading.awaited:
        said = (
            f"the loads of the past {duration_text(lookback_s)} are not known yet: Prometheus is still asked"
        )
        return PastLoads(problem=said, awaited=True)
    rates = reading.rates.get(key, PastRates())
    if rates.rps:
        return PastLoads(rates)
    if reading.error is not None:
        said = f"the loads of the past {duration_text(lookback_s)} cannot be read ({reading.error})"
    else:
        said = f"no load of the past {duration_text(lookback_s)} is known"
    return PastLoads(problem=f"{said}, so the present one is taken to last")
