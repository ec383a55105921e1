"""The answers of every Prometheus in one cycle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from breakeven_operator.adapters.past_loads import Lookback
from breakeven_operator.adapters.prometheus_answers import Watch
from breakeven_operator.reconcile.latency_metrics import LatencyReading
from breakeven_operator.reconcile.live_metrics import FleetReading
from breakeven_operator.reconcile.past_metrics import PastReading
from breakeven_operator.reconcile.roll_failures import LaterReading, RollAnswer
from breakeven_operator.reconcile.roll_metrics import RollReading


class RoundOfAnswers(NamedTuple):
    """The answers of every Prometheus in one cycle: their subject, and when they were asked for (monotonic, s)."""

    about: frozenset[tuple[Watch, Lookback | None, str]]
    asked_s: float
    readings: Mapping[Watch, FleetReading]
    pasts: Mapping[Lookback, PastReading]
    latencies: Mapping[Watch, LatencyReading]
    rolls: Mapping[Watch, RollAnswer]
    later: Mapping[Watch, LaterReading]
    sums: Mapping[Watch, FleetReading]
    arrivals: Mapping[Watch, RollReading]

    @property
    def whole(self) -> bool:
        """Whether every Prometheus has answered; one that has not is asked again, however soon."""
        late = any(past.awaited for past in self.pasts.values())
        return not late and all(
            reading.error is None for reading in (*self.readings.values(), *self.sums.values())
        )
