"""Servers whose recording rules have made the sums over ReplicaSets already, and what becomes of those that have not.

A server is asked for recorded series once in ten minutes while it has none. What it recorded counts as long as the rule's last
evaluation is no older than what counts as stale; namespaces of which nothing was recorded are asked about as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from breakeven_operator.adapters.prometheus_answers import Watch
from breakeven_operator.ports import Clock, Metrics, PrometheusAccess
from breakeven_operator.printable import one_line
from breakeven_operator.reconcile.live_metrics import FleetReading, read_fleet
from breakeven_operator.reconcile.recorded_sums import read_recorded, recorded_query

_LOG = logging.getLogger(__name__)
_ASKED_AGAIN_S = 600.0


class RecordedFleet(NamedTuple):
    """Sums that were recorded, one reading per question, and the namespaces that they are of."""

    readings: tuple[FleetReading, ...]
    namespaces: frozenset[str]


class RecordingServers:
    """Remembers of each question which server has no rule for it.

    Args:
        metrics, clock: ports.
    """

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        # Monotonic, s: before that no rule is looked for.
        self._none_until_s: dict[Watch, float] = {}
        self._said: dict[Watch, str] = {}

    def keep(self, wanted: Collection[Watch]) -> None:
        """Forget all other questions."""
        self._none_until_s = {watch: at for watch, at in self._none_until_s.items() if watch in wanted}
        self._said = {watch: word for watch, word in self._said.items() if watch in wanted}

    async def read(
        self, source: PrometheusAccess, watch: Watch, parts: Iterable[Sequence[str]]
    ) -> RecordedFleet | None:
        """Recorded sums; None: there are none that count, so the pods' series have to be summed.

        Args:
            source: of the watch.
            watch: what is asked.
            parts: the namespaces, by question.

        Raises:
            MetricsError: the server gives no answer; it would give none about pods either.
        """
        # A rule knows nothing of a service's own matchers.
        if watch.engines.matchers or self._clock.monotonic() < self._none_until_s.get(watch, 0.0):
            return None
        readings: list[FleetReading] = []
        namespaces: set[str] = set()
        twice: set[str] = set()
        for part in parts:
            promql = recorded_query(part, watch.window_s, watch.staleness_s, prefix=watch.engines.prefix)
            found = read_recorded(await self._metrics.query(source, promql))
            if found.evaluated_s is None:
                self._none_until_s[watch] = self._clock.monotonic() + _ASKED_AGAIN_S
                self._say(source, watch, "none", "it has no recording rule of the sums that are asked for")
                return None
            age_s = self._clock.now().timestamp() - found.evaluated_s
            if abs(age_s) > watch.staleness_s:
                late = f"its recorded sums are {age_s:.0f} s old (limit {watch.staleness_s} s)"
                self._say(source, watch, "late", f"{late}, so they do not count")
                return None
            readings.append(replace(read_fleet(found.samples), evaluated_s=found.evaluated_s))
            namespaces |= found.namespaces
            twice |= found.twice
        if twice:
            shown = f"{len(twice)} namespaces, such as {one_line(min(twice))}"
            self._say(
                source, watch, "twice", f"two rules recorded different sums of {shown}: theirs do not count"
            )
        else:
            self._say(source, watch, "read", "sums are read of its recording rule")
        return RecordedFleet(tuple(readings), frozenset(namespaces))

    def _say(self, source: PrometheusAccess, watch: Watch, word: str, text: str) -> None:
        """Log what is new."""
        if self._said.get(watch) != word:
            self._said[watch] = word
            _LOG.info("%s: %s", source.name, text)
