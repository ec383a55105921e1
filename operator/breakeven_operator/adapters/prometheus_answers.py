"""The newest answer of every Prometheus to one kind of question. Loads, latencies and rolls are one kind each."""

from __future__ import annotations

import functools
import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from breakeven.serving.engine_series import EngineSeries
from breakeven_operator.adapters.background import Background
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import Clock, Metrics, MetricsError, PrometheusAccess
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.workloads.known import target_name

Subjects = TypeVar("Subjects")
Name = TypeVar("Name", bound=str | tuple[str, ...])
Reading = TypeVar("Reading")
_LOG = logging.getLogger(__name__)
# The first answer is worth a longer wait. Otherwise every restart of the operator reports missing figures for a thousand
# services, and a cycle later that they are back.
_FIRST_WAITS = 4


@dataclass(frozen=True, slots=True)
class Watch:
    """One Prometheus, and the question about the services that share it."""

    source: PrometheusAccess | None
    engines: EngineSeries
    window_s: int
    staleness_s: int


@dataclass(frozen=True, slots=True)
class Answer(Generic[Subjects, Reading]):
    """The newest answer to a Watch: figures or an error, about what was asked then (monotonic, s)."""

    subjects: Subjects
    reading: Reading
    asked_s: float


class Said(NamedTuple, Generic[Reading]):
    """The result of a query, and whether it was empty."""

    reading: Reading
    empty: bool


class PrometheusAnswers(ABC, Generic[Subjects, Reading]):
    """One kind of question, and its newest answers, one per Watch; a failure is an answer too.

    A query that does not end while a cycle waits goes on, and its answer serves a later cycle.

    Args:
        counted: is called with the outcome of every query: ok, empty or error.
        settle_s: longest time a cycle waits; five times as long for the first answer of all.
    """

    def __init__(
        self, metrics: Metrics, clock: Clock, counted: Callable[[str], None], settle_s: float
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._settle_s = settle_s
        self._counted = counted
        self._queries: Background[Watch] = Background(settle_s, first_s=_FIRST_WAITS * settle_s)
        self._answers: dict[Watch, Answer[Subjects, Reading]] = {}

    @abstractmethod
    async def _ask(self, source: PrometheusAccess, watch: Watch, subjects: Subjects) -> Said[Reading]:
        """Put the question to a Prometheus.

        Raises:
            MetricsError, ValueError: there is no usable answer.
        """

    @abstractmethod
    def _without(self, error: str) -> Reading:
        """A reading that holds an error and no figures."""

    async def _about(self, wanted: Mapping[Watch, Subjects]) -> Mapping[Watch, Answer[Subjects, Reading]]:
        """The newest answers, some of them from earlier cycles and about what was wanted then; nothing else is remembered."""
        self._answers = {watch: answer for watch, answer in self._answers.items() if watch in wanted}
        due = {
            watch: functools.partial(self._put, watch.source, watch, subjects)
            for watch, subjects in wanted.items()
            if watch.source is not None and self._is_due(watch, subjects)
        }
        await self._queries.run(wanted, due)
        return dict(self._answers)

    async def _readings(self, wanted: Mapping[Watch, Subjects]) -> dict[Watch, Reading]:
        """The figures of the newest answers, however old they are."""
        return {watch: answer.reading for watch, answer in (await self._about(wanted)).items()}

    def _pause_s(self, watch: Watch) -> float:  # noqa: ARG002 - of the kinds of question that have one
        """How long an answer about the same subjects stands before the question is put again, s."""
        return 0.0

    def _is_due(self, watch: Watch, subjects: Subjects) -> bool:
        known = self._answers.get(watch)
        if known is None or known.subjects != subjects:
            return True
        return self._clock.monotonic() - known.asked_s >= self._pause_s(watch)

    async def close(self) -> None:
        """End the queries that are under way."""
        await self._queries.close()

    async def _put(self, source: PrometheusAccess, watch: Watch, subjects: Subjects) -> None:
        asked_s = self._clock.monotonic()
        try:
            said = await self._ask(source, watch, subjects)
            reading, outcome = said.reading, "empty" if said.empty else "ok"
        except (MetricsError, ValueError) as error:
            reading, outcome = self._without(str(error)), "error"
        except Exception as error:  # noqa: BLE001 - reported in full, and the other sources' services go on
            # One server's surprise must not take the figures of the others away.
            _LOG.exception("reading the answer of %s failed", source.name)
            reading = self._without(f"reading the answer of {source.name} failed ({type(error).__name__})")
            outcome = "error"
        self._counted(outcome)
        self._answers[watch] = Answer(subjects, reading, asked_s)


def targets_of(
    services: Iterable[SpeculativeService], watch_of: Callable[[SpeculativeService], Watch]
) -> dict[Watch, frozenset[NamespacedName]]:
    """The services' targets, by how their services are watched."""
    found: dict[Watch, set[NamespacedName]] = defaultdict(set)
    for service in services:
        found[watch_of(service)].add(target_name(service))
    return {watch: frozenset(targets) for watch, targets in found.items()}


def parted(sizes: Mapping[Name, int], most: int) -> Iterator[list[Name]]:
    """Names in groups that each fit into one answer of Prometheus; at least one group.

    Each name adds its size, and an answer may hold `most`. A name that is too large alone is a group of its own.
    """
    group: list[Name] = []
    size = 0
    for name in sorted(sizes):
        if group and size + sizes[name] > most:
            yield group
            group, size = [], 0
        group.append(name)
        size += sizes[name]
    yield group
