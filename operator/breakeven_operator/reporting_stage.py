"""The stage of a cycle about what has no decision: services that failed or are invalid, lone profiles, annotated workloads."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

from breakeven_operator import housekeeping, watching
from breakeven_operator.actions import ActionPlan
from breakeven_operator.adapters.snapshot import Snapshot
from breakeven_operator.cycle_log import CycleLog
from breakeven_operator.cycle_report import CycleReport
from breakeven_operator.invalid_spec import invalid_spec_plan
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.noted_writer import NotedWriter
from breakeven_operator.reconcile.failed import Failed
from breakeven_operator.serve.telemetry import Telemetry

_LOG = logging.getLogger(__name__)


class ReportingStage:
    """Says of services without a decision why there is none, and makes services for annotated workloads.

    Args:
        writer: carries plans out.
        log: is given defects.
        telemetry: counts workloads without room.
        settings: of the services that are made for annotated workloads; None: none are.
    """

    def __init__(
        self,
        writer: NotedWriter,
        log: CycleLog,
        telemetry: Telemetry,
        settings: watching.WatchSettings | None,
    ) -> None:
        self._writer = writer
        self._log = log
        self._telemetry = telemetry
        self._settings = settings
        # Whether annotated workloads found no room in the last cycle.
        self._room_missed = False

    async def say_undecided(
        self, world: Snapshot, failures: Sequence[Failed], now: datetime, report: CycleReport
    ) -> None:
        """Report services without a decision and those that break a rule; tidy up profiles without a service."""
        for failure in failures:
            await self._writer.carry_out(failure.plan, report)
        for manifest, problem in world.invalid:
            try:
                plan = invalid_spec_plan(manifest, problem, now)
                if plan is not None:
                    await self._writer.carry_out(plan, report)
            except Exception:  # noqa: BLE001 - reported in full, and the other services go on
                self._log.defect("saying that %s is invalid failed", NamespacedName.of(manifest))
        names = {NamespacedName.of(manifest) for manifest in world.manifests.values()}
        for action in housekeeping.abandoned(world.profiles, names, now):
            await self._writer.carry_out(ActionPlan(action.ref, (action,)), report)

    async def serve_annotated(self, world: Snapshot, report: CycleReport) -> None:
        """Make services for annotated workloads, and take back those that nobody wants any more."""
        if self._settings is None:
            return
        try:
            asked = watching.watched(world, self._settings)
        except Exception:  # noqa: BLE001 - reported in full, and the services that there are go on
            self._log.defect("deciding about annotated workloads failed")
            return
        for plan in asked.plans:
            await self._writer.carry_out(plan, report)
        self._telemetry.watched_left.set(len(asked.left))
        if asked.left and not self._room_missed:
            _LOG.warning("%s", asked.sentence(self._settings))
        self._room_missed = bool(asked.left)
