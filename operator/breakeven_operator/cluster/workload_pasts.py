"""Pasts of services of which nothing is measured: read one at a time, in a thread, and seldom."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from breakeven.arm import Arm
from breakeven.errors import BreakevenError, InputError
from breakeven.past.courses import TimeGrid
from breakeven.past.others_measured import facts_of_past, others_measured
from breakeven.past.past_reading import AskedPast, read_past
from breakeven.points.point import Point
from breakeven.points.table import cells, written
from breakeven.prior.public_table import ServiceFacts
from breakeven.profile import Profile
from breakeven.readers.prometheus import Samples
from breakeven.serving.promql import REPLICA, EngineSeries
from breakeven_operator.case import FirstAnswer
from breakeven_operator.cluster.prometheus_questions import ServiceQueries, StandingQuestion
from breakeven_operator.cluster.snapshot import Snapshot
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import of_workloads, siblings_of, workload_of
from breakeven_operator.observing.past_metrics import AWAITED, facts_of, first_answer, no_answer
from breakeven_operator.ports import Fitter, Metrics, MetricsError, PrometheusAccess
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.workloads.known import kind_at, target_name, target_of

_LOG = logging.getLogger(__name__)
LOOKBACK_S, _WINDOW_S = 14 * 86_400, 600
# A service waits for its calibration for hours, not for weeks. What failed may be mended soon.
AGAIN_S, RETRY_S = 6 * 3600.0, 1800.0
# One service at a time: a server that answers slowly must not keep the others from their answers for long.
_LONGEST_S = 180.0
# A day of 150 pods; a sample takes 100 bytes while its day is read.
MOST_SAMPLES = 600_000

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class WorkloadPast:
    """A question about the past of one service's target.

    Attributes:
        title: kind and name; empty: its pods' names have no grammar, and `siblings` are beginnings that they share.
        method: vLLM's word for drafts of which no series says how they are made; None if it could be several.
    """

    source: PrometheusAccess
    engines: EngineSeries
    namespace: str
    name: str
    title: str
    siblings: frozenset[str]
    arms: tuple[Arm, ...]
    method: str | None
    facts: ServiceFacts

    def owns(self, pod: str) -> bool:
        """Whether a pod of this name belongs, or belonged, to the target."""
        return workload_of(pod) == self.title if self.title else siblings_of(pod) in self.siblings


def asked_pasts(
    world: Snapshot, services: Iterable[SpeculativeService], queries: ServiceQueries
) -> dict[str, WorkloadPast | None]:
    """Questions about the pasts of services of which nothing is measured, by uid; None before the first look at the target."""
    found: dict[str, WorkloadPast | None] = {}
    for service in services:
        watch, name, target = queries.watch_of(service), target_name(service), target_of(service)
        measured = world.profiles.get(NamespacedName(service.metadata.namespace, service.metadata.name))
        pods = [pod["metadata"]["name"] for pod in world.target_pods(service)]
        ignored, seen = service.spec.calibration.past == "Ignore", service.status.target
        if measured or ignored or watch.source is None or not pods:
            continue
        if seen is None or not seen.model:
            found[service.metadata.uid] = None
            continue
        rolled = kind_at(target.resource).rolled
        words = {method.method for method in service.spec.candidates.methods}
        found[service.metadata.uid] = WorkloadPast(
            watch.source,
            watch.engines,
            name.namespace,
            name.name,
            workload_of(pods[0]) if rolled else "",
            frozenset() if rolled else frozenset(map(siblings_of, pods)),
            service.spec.candidates.arms(),
            words.pop() if len(words) == 1 else None,
            facts_of(seen),
        )
    return found


def first_answers(fitter: Fitter) -> StandingQuestion[WorkloadPast, FirstAnswer]:
    """The question about pasts. No cycle waits for a reading; namespaces take turns, so that many services of one keep no other waiting."""

    async def ask(metrics: Metrics, about: WorkloadPast, _: object, now: datetime) -> tuple[FirstAnswer, str]:
        answer = await _answer(AskedServer(metrics, fitter, about), about, now)
        return answer, "error" if answer.profile is None else "ok"

    return StandingQuestion(
        ask,
        no_answer,
        lambda _, __, answer, ___, ____: answer.reading if answer is not None else AWAITED,
        pause_s=lambda _: AGAIN_S,
        retry_s=RETRY_S,
        patience=(0, 0),
        turns=lambda about: about.namespace,
    )


async def _answer(server: AskedServer, about: WorkloadPast, now: datetime) -> FirstAnswer:
    asked = AskedPast(
        (*of_workloads([(about.namespace, about.name)]), *about.engines.matchers),
        about.engines.prefix,
        TimeGrid.of_past(now.timestamp(), LOOKBACK_S, _WINDOW_S),
        about.method,
        single=False,
        arms=about.arms,
    )
    try:
        async with asyncio.timeout(_LONGEST_S):
            return await asyncio.to_thread(_told, server, asked, about)
    except TimeoutError:
        return no_answer(f"{about.source.name} took more than {_LONGEST_S:g} s to tell it")
    except InputError as error:
        # Its place is an option of the command line.
        return no_answer(error.problem)
    except BreakevenError as error:
        return no_answer(str(error))
    except Exception:  # noqa: BLE001 - a stranger's series must not end a cycle
        _LOG.exception("the past of %s/%s could not be read", about.namespace, about.name)
        return no_answer("it could not be read; the operator's log says why")
    finally:
        server.end()


def _told(server: AskedServer, asked: AskedPast, about: WorkloadPast) -> FirstAnswer:
    """Read a past and hold it against the measurements of others; in a thread."""
    past = read_past(server, asked, lambda _share: None, server.fit)
    # A table of draft lengths is not looked up: it is another one for every service.
    asked_of_others = [arm for arm in about.arms if arm.k and (arm.adaptive or not arm.scheduled)]
    others = (
        others_measured(past, asked_of_others, facts_of_past(past, about.facts)) if asked_of_others else ()
    )
    return first_answer(past, about.arms, others, server.queries, server.samples)


class AskedServer:
    """A Prometheus as the library asks it from a thread; every query runs in the operator's loop."""

    def __init__(self, metrics: Metrics, fitter: Fitter, about: WorkloadPast) -> None:
        self._metrics = metrics
        self._fitter = fitter
        self._about = about
        self._loop = asyncio.get_running_loop()
        self._ended = False
        self._pending: concurrent.futures.Future[Any] | None = None
        self._of_day = (-1, 0)
        self.queries = self.samples = 0

    def over(self, promql: str, grid: TimeGrid) -> Iterable[Samples]:
        """See PastServer.over."""
        span_s = (grid.times - 1) * grid.step_s + grid.step_s // 2
        # A subquery's times are multiples of its step, as the grid's are.
        asked = f"({promql})[{span_s}s:{grid.step_s}s] @ {grid.last_s}"
        found = self._ask(self._metrics.query_past(self._about.source, asked))
        self._count(grid, sum(len(one.values) for one in found))
        return tuple(
            one for one in found if REPLICA not in one.labels or self._about.owns(one.labels[REPLICA])
        )

    def at(self, promql: str, time_s: int) -> Iterable[tuple[Mapping[str, str], float]]:
        """See PastServer.at."""
        # The modifier @ takes a subquery, not any expression.
        asked = f"last_over_time(({promql})[1s:1s] @ {time_s})"
        return [(one.labels, one.value) for one in self._ask(self._metrics.query(self._about.source, asked))]

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
        """Let the thread end at its next question; a question under way is given up."""
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
