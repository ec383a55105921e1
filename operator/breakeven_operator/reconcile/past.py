"""What a service has seen: request rates per replica over the past, or the one reason why none are known.

Unlike missing figures of now, a missing past is no reason to hold: the present load counts alone then.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from breakeven.planning.wording import duration_text
from breakeven_operator.ports import Samples
from breakeven_operator.reconcile.promql import WORKLOAD

# Namespace, Deployment, model_name.
LoadKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class PastReading:
    """The answer to one query of the past; or why there is none.

    Attributes:
        rates_rps: per replica (1/s), oldest first.
        error: one line when Prometheus gave no usable answer.
    """

    rates_rps: Mapping[LoadKey, tuple[float, ...]] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """The past of one service.

    Attributes:
        rates_rps: per replica (1/s), oldest first, at equal distances where there were any.
        problem: why there are none, as the end of a sentence; empty when there are, or none were asked for.
    """

    rates_rps: tuple[float, ...] = ()
    problem: str = ""


def read_past(samples: Iterable[Samples]) -> PastReading:
    """Sort the elements of a past query's result by service; what is no rate is left out."""
    found: dict[LoadKey, list[float]] = defaultdict(list)
    for element in samples:
        labels = element.labels
        key = (labels.get("namespace", ""), labels.get(WORKLOAD, ""), labels.get("model_name", ""))
        if not key[1]:
            continue
        found[key] += [rate for rate in element.values if math.isfinite(rate) and rate >= 0]
    return PastReading({key: tuple(rates) for key, rates in found.items() if rates})


def past_of(reading: PastReading | None, key: LoadKey, lookback_s: int) -> Past:
    """One service's part of a reading.

    Args:
        reading: None: the past was not asked for.
        key: of the service.
        lookback_s: how far back the reading goes.
    """
    if reading is None or lookback_s == 0:
        return Past()
    if reading.error is not None:
        said = f"the loads of the past {duration_text(lookback_s)} cannot be read ({reading.error})"
    elif key not in reading.rates_rps:
        said = f"no load of the past {duration_text(lookback_s)} is known"
    else:
        return Past(reading.rates_rps[key])
    return Past(problem=f"{said}, so the present one is taken to last")
