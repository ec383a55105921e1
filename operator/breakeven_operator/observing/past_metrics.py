"""Request rates per replica over the past of a service, or why none are known, and what its past says before any arm was measured.

A missing past is no reason to hold, as missing present figures are: the present load then counts alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from breakeven.arm import Arm
from breakeven.past.others_measured import OthersMeasured
from breakeven.past.past_reading import KnownPast
from breakeven.phrases import duration_text, figure
from breakeven.planning.forecast import PastRates
from breakeven.prior.public_table import ServiceFacts
from breakeven.profile.comparisons import PaysWhere
from breakeven.readers.prometheus import Samples
from breakeven.serving.growths import MOST_RPS
from breakeven_operator.case import FirstAnswer, PastReading, SeriesOwner
from breakeven_operator.observing.fleet_query import FIGURE, WORKLOAD
from breakeven_operator.resources.targetstatus import Target
from breakeven_operator.resources.updatepolicy import UpdatePolicy


def read_past(samples: Iterable[Samples]) -> PastReading:
    """Sort the elements of a past query's result by service; what is no rate is left out."""
    # By time: an answer that tells a time twice would have no distance between its times.
    found: dict[SeriesOwner, dict[float, float]] = defaultdict(dict)
    replicas: dict[SeriesOwner, dict[float, float]] = defaultdict(dict)
    for element in samples:
        labels = element.labels
        key = SeriesOwner.of(labels, WORKLOAD)
        if not key.pod:
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


def past_of(
    reading: PastReading | None, key: SeriesOwner, policy: UpdatePolicy
) -> tuple[PastRates, str, bool]:
    """Loads of one service's past from its Prometheus' reading, why there are none, and whether the answer is still to come.

    None are there if the past was not asked for. A decision before the answer would rest on the present load alone.
    """
    lookback_s = policy.lookback_seconds
    if reading is None or lookback_s == 0:
        return PastRates(), "", False
    rates = reading.rates.get(key, PastRates())
    of_past = f"the past {duration_text(lookback_s)}"
    if key.namespace in reading.awaited:
        return PastRates(), f"the loads of {of_past} are not known yet: Prometheus is still asked", True
    if rates.rps:
        return rates, "", False
    said = f"no load of {of_past} is known"
    if reading.error is not None:
        said = f"the loads of {of_past} cannot be read ({reading.error})"
    return rates, f"{said}, so the present one is taken to last", False


_NAMED_DOUBTS, _NAMED_OTHERS = 4, 2
AWAITED = FirstAnswer(None, "its past is being read")


def first_answer(
    past: KnownPast, candidates: Sequence[Arm], others: Sequence[OthersMeasured], queries: int, samples: int
) -> FirstAnswer:
    """Answer of a past that was read, with others' measurements of candidates that never ran in it.

    `queries` is how often its Prometheus was asked, and `samples` how many these gave.
    """
    days = (past.grid.last_s - past.grid.first_s) / 86_400
    told = "".join(f"; {one.sentence}" for one in others[:_NAMED_OTHERS])
    return FirstAnswer(
        past.profile,
        f"its last {figure(days)} days ({queries} queries, {samples} samples) hold {past.in_words(_NAMED_DOUBTS)}{told}",
        _lose(past, candidates),
    )


def _lose(past: KnownPast, candidates: Sequence[Arm]) -> bool:
    """Whether every candidate ran and pays at no load; what others measured of one that never ran holds no measurement back."""
    if past.profile is None or not any(arm.k for arm in candidates):
        return False
    ran = {fit.arm for fit in past.profile.arms if fit.measurements}
    found = [
        past.against_none(arm, past.profile.confidence) if arm in ran else None for arm in candidates if arm.k
    ]
    return all(one is not None and one.verdict is PaysWhere.NEVER for one in found)


def no_answer(problem: str) -> FirstAnswer:
    """Answer of a past that could not be read, or holds nothing that counts."""
    return FirstAnswer(None, f"its past says nothing: {problem}")


def facts_of(target: Target) -> ServiceFacts:
    """Facts of a target that its model's name and its GPUs say."""
    return ServiceFacts.of_name((target.model or "").rstrip("/").rsplit("/", 1)[-1], target.gpu_product)
