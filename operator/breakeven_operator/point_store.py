"""The points of a trial in its CalibrationRun: each is durable before the next one is measured."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from breakeven.answering.gate import GateFinding
from breakeven.points.point import Point
from breakeven_operator.calibration.answer_secrets import answers_status
from breakeven_operator.calibration.measurements import stored
from breakeven_operator.kinds import RUNS
from breakeven_operator.ports import Cluster, ClusterError, Manifest
from breakeven_operator.resources.answerstatus import ArmAnswers
from breakeven_operator.resources.calibrationrun import CalibrationRun, StoredPoint
from breakeven_operator.trial_environment import TrialEnvironment

T = TypeVar("T")
_LOG = logging.getLogger("trial")
_STORE_ATTEMPTS = 8  # with pauses doubling from 0.5 s: about a minute of an absent API server


class RunGoneError(Exception):
    """The CalibrationRun was deleted or has ended: nobody waits for points any more."""


class PointStore:
    """The arm's points in the CalibrationRun's status; of the judge, its findings about answers."""

    def __init__(self, trial: TrialEnvironment, runs: Cluster, *, pause_s: float = 0.5) -> None:
        self._trial = trial
        self._runs = runs
        self._pause_s = pause_s
        self._points: list[StoredPoint] = []
        self._answers: list[ArmAnswers] = []

    async def load(self) -> CalibrationRun:
        """Read the run and remember this arm's points.

        Raises:
            RunGoneError: there is no such run, or it has ended.
            ClusterError: the API server does not answer.
        """
        found = await self._persistently(self._get)
        if found is None:
            raise RunGoneError(f"there is no CalibrationRun {self._trial.namespace}/{self._trial.run}")
        run = CalibrationRun.read(found, f"CalibrationRun {self._trial.namespace}/{self._trial.run}")
        if run.status.phase is not None and run.status.phase.final:
            raise RunGoneError(f"CalibrationRun {self._trial.run} is {run.status.phase} already")
        self._points = list(run.status.points_of(self._trial.arm_name))
        self._answers = list(run.status.answers)
        return run

    @property
    def points(self) -> tuple[StoredPoint, ...]:
        """This arm's points, stored ones and new ones."""
        return tuple(self._points)

    async def add(self, measured: Point) -> None:
        """Make one more point durable; returns only when the API server has it, and raises as `load` does."""
        identity = self._trial.sweep.workload.identity
        start = self._trial.arm_name if self._trial.second_start else None
        point = replace(measured, sweep=identity, schedule=self._trial.schedule, start=start)
        index = 1 + max((stored_before.index for stored_before in self._points), default=-1)
        self._points.append(stored(self._trial.arm_name, index, point, datetime.now(UTC)))
        await self._persistently(self._apply)

    async def add_answers(self, found: GateFinding) -> None:
        """Make a finding durable, as `add` does, in place of an earlier one about the same arm."""
        self._answers = [*(one for one in self._answers if one.arm != found.arm), answers_status(found)]
        await self._persistently(self._apply)

    async def _get(self) -> Manifest | None:
        return await self._runs.get(RUNS, self._trial.namespace, self._trial.run)

    async def _apply(self) -> Manifest:
        body = {
            "apiVersion": RUNS.api_version,
            "kind": RUNS.kind,
            "metadata": {"name": self._trial.run, "namespace": self._trial.namespace},
            # All of it each time: what a manager leaves out of an apply is taken away.
            "status": {
                name: [one.to_json_object() for one in kept]
                for name, kept in (("points", self._points), ("answers", self._answers))
                if kept
            },
        }
        try:
            return await self._runs.apply(
                RUNS, body, force=True, subresource="status", manager=self._trial.field_manager
            )
        except ClusterError as error:
            if error.status == 404:
                raise RunGoneError(f"CalibrationRun {self._trial.run} was deleted") from error
            raise

    async def _persistently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat what an absent or overloaded API server refused; what it answers for good is not repeated."""
        pause_s = self._pause_s
        for attempt in range(_STORE_ATTEMPTS):
            try:
                return await call()
            except ClusterError as error:
                for_good = error.status in range(400, 500) and error.status not in {408, 409, 429}
                if for_good or attempt == _STORE_ATTEMPTS - 1:
                    raise
                _LOG.warning("the API server: %s; trying again in %.1f s", error, pause_s)
                await asyncio.sleep(pause_s)
                pause_s *= 2
        raise AssertionError("unreachable")
