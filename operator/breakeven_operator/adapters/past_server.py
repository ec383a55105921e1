"""A Prometheus that the library asks about the past of one workload."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from breakeven.errors import BreakevenError
from breakeven.past.courses import TimeGrid
from breakeven.points.point import Point
from breakeven.points.table import cells, written
from breakeven.profile import Profile
from breakeven.readers.prometheus import Samples
from breakeven.serving.engine_series import REPLICA
from breakeven_operator.ports import Fitter, Metrics, MetricsError, PrometheusAccess

# A day of 150 pods; a sample takes 100 bytes while its day is read.
MOST_SAMPLES = 600_000

Result = TypeVar("Result")


class AskedServer:
    """A Prometheus as the library asks it from a thread; every query runs in the operator's loop.

    Args:
        metrics, fitter: ports.
        source: where.
        owns: whether a pod of this name is, or was, the workload's.
        loop: of the operator.
    """

    def __init__(
        self,
        metrics: Metrics,
        fitter: Fitter,
        source: PrometheusAccess,
        owns: Callable[[str], bool],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._metrics = metrics
        self._fitter = fitter
        self._source = source
        self._owns = owns
        self._loop = loop
        self._ended = False
        self._pending: concurrent.futures.Future[Any] | None = None
        self._of_day = (-1, 0)
        self.queries = self.samples = 0

    def over(self, promql: str, grid: TimeGrid) -> Iterable[Samples]:
        """See PastServer.over."""
        span_s = (grid.times - 1) * grid.step_s + grid.step_s // 2
        # A subquery's times are multiples of its step, as the grid's are.
        asked = f"({promql})[{span_s}s:{grid.step_s}s] @ {grid.last_s}"
        found = self._ask(self._metrics.query_past(self._source, asked))
        self._count(grid, sum(len(one.values) for one in found))
        return tuple(one for one in found if REPLICA not in one.labels or self._owns(one.labels[REPLICA]))

    def at(self, promql: str, time_s: int) -> Iterable[tuple[Mapping[str, str], float]]:
        """See PastServer.at."""
        # The modifier @ takes a subquery, not any expression.
        asked = f"last_over_time(({promql})[1s:1s] @ {time_s})"
        return [(one.labels, one.value) for one in self._ask(self._metrics.query(self._source, asked))]

    def fit(self, rows: Sequence[Point]) -> Profile:
        """The fit of a past's rows, by the child process.

        Raises:
            BreakevenError: there is none.
        """
        outcome = self._wait(self._fitter.fit(written([cells(row) for row in rows]), ()))
        if outcome.profile_json is None:
            raise BreakevenError(outcome.error or "the fit gave no profile")
        return Profile.from_json(outcome.profile_json, "fit of the past")

    def end(self) -> None:
        """Let the thread end at its next question; the one that is under way is given up."""
        self._ended = True
        if self._pending is not None:
            self._pending.cancel()

    def _count(self, grid: TimeGrid, samples: int) -> None:
        self.samples += samples
        day, held = self._of_day
        held = samples + (held if day == grid.first_s else 0)
        self._of_day = (grid.first_s, held)
        if held > MOST_SAMPLES:
            raise BreakevenError(
                f"a day of it has more than {MOST_SAMPLES} samples, too many to be read beside a fleet: "
                "breakeven history reads it elsewhere"
            )

    def _ask(self, query: Coroutine[Any, Any, Result]) -> Result:
        self.queries += 1
        try:
            return self._wait(query)
        except MetricsError as error:
            raise BreakevenError(str(error)) from error

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._ended:
            work.close()
            raise BreakevenError("the reading was ended")
        pending = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._pending = pending
        try:
            return pending.result()
        except concurrent.futures.CancelledError as error:
            raise BreakevenError("the reading was ended") from error
