"""Upkeep of the operator's own objects around a service, carried out after what was decided about it."""

from __future__ import annotations

from breakeven_operator import calibration, housekeeping
from breakeven_operator.actions import ActionPlan
from breakeven_operator.adapters.api_json import problem_of
from breakeven_operator.adapters.snapshot import Snapshot
from breakeven_operator.admission import Decided
from breakeven_operator.cycle_report import CycleReport
from breakeven_operator.kinds import RUNS, NamespacedName
from breakeven_operator.labels import FINISHED_LABEL
from breakeven_operator.noted_writer import NotedWriter
from breakeven_operator.ports import Clock, ClusterError, ClusterReader, TrialSettings
from breakeven_operator.reconcile.action_plan import reference
from breakeven_operator.refused_writes import of_creation
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.serve.telemetry import Telemetry


class Upkeep:
    """Keeps CronJobs, profiles and runs as `housekeeping` wants them.

    Args:
        cluster, clock: ports.
        writer: carries plans out.
        telemetry: counts calibrations that ended.
        settings: what calibration Jobs have in common.
    """

    def __init__(
        self,
        cluster: ClusterReader,
        clock: Clock,
        writer: NotedWriter,
        telemetry: Telemetry,
        settings: TrialSettings,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._writer = writer
        self._telemetry = telemetry
        self._settings = settings

    async def schedule(self, world: Snapshot, service: SpeculativeService, report: CycleReport) -> None:
        """The CronJob of a service; a plan of its own, so that nothing else waits if it is refused."""
        key = NamespacedName(service.metadata.namespace, calibration.cronjob_name(service.metadata.name))
        upkeep = housekeeping.schedule(
            world.manifests[service.metadata.uid], world.cron_jobs.get(key), self._settings
        )
        if upkeep:
            await self._writer.carry_out(ActionPlan(reference(service), upkeep), report)

    async def afterwards(self, item: Decided, report: CycleReport) -> None:
        """Writes that must come after the status: marks on profiles and runs, and the removal of old ones."""
        service, observation = item.service, item.observation
        in_force = item.in_force
        namespace = service.metadata.namespace
        for action in housekeeping.mark_in_force(namespace, observation.profiles, in_force):
            await self._writer.carry_out(ActionPlan(reference(service), (action,)), report)
        ended = [run for run in observation.runs if run.status.phase is not None and run.status.phase.final]
        failures = self._writer.failures.about(service.metadata.uid, self._clock.now())
        if not ended or of_creation(failures, RUNS, self._clock.now()) is not None:
            # A run that is to follow an ended one is found by it: until the next one is there it is not marked.
            return
        for run in ended:
            self._telemetry.fleet.count(
                "breakeven_calibrations", service, str(run.status.reason or run.status.phase)
            )
            if run.status.gpu_seconds_used:
                self._telemetry.fleet.count(
                    "breakeven_calibration_gpu_seconds", service, by=run.status.gpu_seconds_used
                )
        marks = tuple(housekeeping.mark_finished(run) for run in ended)
        await self._writer.carry_out(ActionPlan(reference(service), marks), report)
        try:
            finished = await self._cluster.list_all(RUNS, namespace, FINISHED_LABEL)
        except ClusterError as error:
            report.errors.append(str(error))
            return
        legible = [run for run in finished if problem_of(run) is None]
        old = housekeeping.retire(service, legible, observation.profiles, in_force)
        await self._writer.carry_out(ActionPlan(reference(service), old), report)
