"""Past loads, asked for seldom: a history of days hardly changes in a cycle, and is expensive to compute."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from breakeven.phrases import duration_text
from breakeven.planning.outlook import PastRates
from breakeven.serving.engine_series import EngineSeries
from breakeven_operator.adapters.background import SETTLE_S, Background
from breakeven_operator.adapters.prometheus_answers import parted
from breakeven_operator.ports import Clock, Metrics, MetricsError, PrometheusAccess
from breakeven_operator.reconcile.fleet_query import past_query
from breakeven_operator.reconcile.past_metrics import LoadOwner, PastReading, read_past

_LOG = logging.getLogger(__name__)
# After a failure the next cycles do not wait again; the query is repeated soon, so that one bad second costs no day.
_RETRY_S = 60.0
# Past days change slowly: an answer of some hours ago still has most of them.
_KEPT_STEPS = 12
# A day of a service in steps of five minutes takes 9 kB, and ten times as much while it is read.
_SERVICES_PER_QUERY = 300


@dataclass(frozen=True, slots=True)
class Lookback:
    """One Prometheus, and the question about the past of the services that share it; rates have the distance `step_s`."""

    source: PrometheusAccess
    engines: EngineSeries
    lookback_s: int
    step_s: int


@dataclass(frozen=True, slots=True)
class _Answer:
    """The newest usable answer to one Lookback, else the error; when it was taken, and when to ask again (monotonic, s)."""

    namespaces: frozenset[str]
    reading: PastReading
    taken_s: float
    due_s: float


class History:
    """Answers from memory for one step.

    A query that does not end while a cycle waits goes on. The answer before it stands meanwhile; if there is none,
    the reading says which namespaces still wait for their first one. `counted` hears ok, empty or error of every query.
    """

    def __init__(
        self,
        metrics: Metrics,
        clock: Clock,
        counted: Callable[[str], None],
        settle_s: float = SETTLE_S,
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._counted = counted
        self._queries: Background[Lookback] = Background(settle_s)
        self._answers: dict[Lookback, _Answer] = {}

    async def read(self, wanted: Mapping[Lookback, Mapping[str, int]]) -> dict[Lookback, PastReading]:
        """The past of these namespaces, which come with their numbers of services; a failure is an answer too.

        Nothing else is remembered.
        """
        self._answers = {lookback: a for lookback, a in self._answers.items() if lookback in wanted}
        due = {
            lookback: functools.partial(self._ask, lookback, namespaces)
            for lookback, namespaces in wanted.items()
            if self._is_due(lookback, namespaces.keys())
        }
        await self._queries.run(wanted, due)
        return {
            lookback: self._newest(lookback, namespaces.keys()) for lookback, namespaces in wanted.items()
        }

    async def close(self) -> None:
        """End the queries that are under way."""
        await self._queries.close()

    def _newest(self, lookback: Lookback, namespaces: AbstractSet[str]) -> PastReading:
        known = self._answers.get(lookback)
        if known is None:
            return PastReading(awaited=frozenset(namespaces))
        return replace(known.reading, awaited=frozenset(namespaces - known.namespaces))

    def _is_due(self, lookback: Lookback, namespaces: AbstractSet[str]) -> bool:
        known = self._answers.get(lookback)
        return known is None or self._clock.monotonic() >= known.due_s or not namespaces <= known.namespaces

    async def _ask(self, lookback: Lookback, services: Mapping[str, int]) -> None:
        namespaces = frozenset(services)
        try:
            rates: dict[LoadOwner, PastRates] = {}
            for part in parted(services, _SERVICES_PER_QUERY):
                promql = past_query(part, lookback.engines, lookback.lookback_s, lookback.step_s)
                rates |= read_past(await self._metrics.query_past(lookback.source, promql)).rates
            reading = PastReading(rates)
        except (MetricsError, ValueError) as error:
            self._answers[lookback] = self._failed(lookback, namespaces, str(error))
        except Exception as error:  # noqa: BLE001 - reported in full, and the other sources' services go on
            _LOG.exception("reading the answer of %s failed", lookback.source.name)
            said = f"reading the answer of {lookback.source.name} failed ({type(error).__name__})"
            self._answers[lookback] = self._failed(lookback, namespaces, said)
        else:
            self._counted("ok" if reading.rates else "empty")
            now_s = self._clock.monotonic()
            self._answers[lookback] = _Answer(namespaces, reading, now_s, now_s + lookback.step_s)

    def _failed(self, lookback: Lookback, namespaces: frozenset[str], error: str) -> _Answer:
        self._counted("error")
        known = self._answers.get(lookback)
        now_s = self._clock.monotonic()
        due_s = now_s + min(_RETRY_S, lookback.step_s)
        fresh = known is not None and now_s - known.taken_s < _KEPT_STEPS * lookback.step_s
        if known is not None and known.reading.error is None and fresh:
            return _Answer(namespaces, known.reading, known.taken_s, due_s)
        if known is None or known.reading.error != error:
            _LOG.warning(
                "loads of the past %s cannot be read, so present loads are taken to last: %s",
                duration_text(lookback.lookback_s),
                error,
            )
        return _Answer(namespaces, PastReading(error=error), now_s, due_s)
