"""One cycle of the operator: read the world, decide about the services that ask for it, carry the plans out.

The stages are modules of their own, and so is what each remembers between cycles. A cycle that fails is reported and the next
one begins with a new reading.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from breakeven.errors import InputError
from breakeven_operator import housekeeping, watching
from breakeven_operator.actions import ActionPlan, EmitEvent, WriteAnnotation, WriteStatus
from breakeven_operator.adapters.observer import Observer
from breakeven_operator.adapters.service_queries import ServiceQueries
from breakeven_operator.adapters.snapshot import Legible, Snapshot
from breakeven_operator.admission import Decided
from breakeven_operator.agenda import Agenda, Grounds, stands_s
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.cycle_log import CycleLog
from breakeven_operator.cycle_report import CycleReport
from breakeven_operator.cycle_settings import CycleSettings
from breakeven_operator.kinds import SERVICES, NamespacedName, Ref
from breakeven_operator.noted_writer import NotedWriter, PlanWriter
from breakeven_operator.ports import Clock, Manifest
from breakeven_operator.reconcile.action_plan import Failed, ServiceOutcome, failed, reference
from breakeven_operator.reconcile.annotation_owner import taken_over
from breakeven_operator.reconcile.conditions import READY, Aspect, merge
from breakeven_operator.reconcile.steps import RolloutContext
from breakeven_operator.refused_writes import RefusedWrite, RefusedWrites, of_annotation
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.meta import Condition
from breakeven_operator.resources.rolloutstatus import RolloutPhase
from breakeven_operator.resources.servicestatus import ServiceWorkings
from breakeven_operator.resources.updatepolicy import PRODUCTION
from breakeven_operator.run_turns import RunTurns
from breakeven_operator.serve.telemetry import CycleStage, Telemetry
from breakeven_operator.service_decisions import ServiceDecisions
from breakeven_operator.shown_services import Show, ShownServices, show_nobody
from breakeven_operator.survey import survey
from breakeven_operator.upkeep import Upkeep
from breakeven_operator.workloads.workload import Workload


class Reconciler:
    """Runs cycles; `cycle` may be called again after any failure.

    Args:
        clock: port.
        observer: reads. writer: writes.
        telemetry: the operator's metrics.
        settings: see CycleSettings.
        show: is given the world and the services as each cycle leaves them.
    """

    def __init__(
        self,
        clock: Clock,
        observer: Observer,
        writer: PlanWriter,
        telemetry: Telemetry,
        settings: CycleSettings,
        show: Show = show_nobody,
    ) -> None:
        self._clock = clock
        self._observer = observer
        self._telemetry = telemetry
        self._failures = writer.failures
        self._agenda = Agenda()
        self._log = CycleLog(telemetry, self._agenda)
        self._decisions = ServiceDecisions(observer.queries, writer.failures, settings, self._log.warn_once)
        self._deciding = DecidingStage(
            clock, observer.queries, self._agenda, self._decisions, self._log, settings
        )
        noted = NotedWriter(writer, self._agenda, clock, telemetry)
        self._shown = ShownServices(telemetry, show)
        upkeep = Upkeep(observer.cluster, clock, noted, telemetry, settings.trial)
        self._writing = WritingStage(clock, noted, self._decisions, upkeep, self._log, self._shown)
        self._reporting = ReportingStage(noted, self._log, telemetry, settings.watching)
        self._turns = RunTurns(observer.cluster, clock, noted, self._log, settings)
        # Services that the last cycle left to the next one.
        self._left = 0

    def age_s(self) -> float:
        """How old the oldest part of the next observation would be."""
        return self._observer.age_s()

    async def rest(self) -> None:
        """There are no cycles for a while; another replica may decide meanwhile."""
        self._agenda.rest()
        self._decisions.rest()
        self._shown.rest()
        await self._observer.rest()

    async def cycle(self) -> CycleReport:
        """One pass over all services.

        Raises:
            ClusterError: the world could not be read; nothing was done.
        """
        passed = self._telemetry.stages(self._clock.monotonic)
        world = await self._observer.observe(soon=self._left > 0)
        passed(CycleStage.READING)
        now = self._clock.now()
        report = CycleReport(services=len(world.services) + len(world.invalid))
        self._shown.keep(world.services)
        due, grounds = self._deciding.due(world, now)
        passed(CycleStage.COMPARING)
        legible = await self._observer.legible(world, due)
        passed(CycleStage.AWAITING)
        world, now = legible.world, self._clock.now()
        outcomes, failures = self._deciding.decide(legible, grounds, self._failures, now, report)
        passed(CycleStage.DECIDING)
        report.left += len(due) - len(legible.ready) - len(legible.awaited)
        failures += await self._writing.carry_out(world, outcomes, now, report)
        passed(CycleStage.WRITING)
        await self._reporting.say_undecided(world, failures, now, report)
        await self._reporting.serve_annotated(world, report)
        passed(CycleStage.REPORTING)
        await self._turns.take(world, outcomes, now, report)
        passed(CycleStage.CALIBRATING)
        self._shown.publish(world, outcomes, failures, now)
        self._telemetry.services.set(len(world.services))
        self._telemetry.services_left.set(report.left + len(legible.awaited))
        self._left = report.left
        passed(CycleStage.PUBLISHING)
        return report


# The stages of a cycle that decide: which services are due, and what is decided about each within the fleet's limits.


class DecidingStage:
    """Decides about the services that ask for it, within the fleet's budgets of time and rolls.

    Args:
        clock: port.
        queries: by which services are watched.
        agenda: remembers what decisions were made on.
        decisions: about one service each.
        log: is given what stands, and defects.
        settings: see CycleSettings.
    """

    def __init__(
        self,
        clock: Clock,
        queries: ServiceQueries,
        agenda: Agenda,
        decisions: ServiceDecisions,
        log: CycleLog,
        settings: CycleSettings,
    ) -> None:
        self._clock = clock
        self._queries = queries
        self._agenda = agenda
        self._decisions = decisions
        self._log = log
        self._settings = settings

    def due(self, world: Snapshot, now: datetime) -> tuple[list[SpeculativeService], Mapping[str, Grounds]]:
        """The services to decide about, those first that have waited longest, and what decisions would rest on, by uid.

        Nothing is remembered about objects that are gone.
        """
        self._decisions.keep(world)
        self._log.keep(world)
        services = {service.metadata.uid: service for service in world.services}
        grounds = self._grounds(world, now)
        due = self._agenda.due(grounds, self._clock.monotonic())
        for uid in grounds.keys() - set(due):
            self._log.stands(services[uid])
        return [services[uid] for uid in due], grounds

    def decide(
        self,
        legible: Legible,
        grounds: Mapping[str, Grounds],
        failures: RefusedWrites,
        now: datetime,
        report: CycleReport,
    ) -> tuple[list[Decided], list[Failed]]:
        """Pure part of a cycle: the services that are due, in turn, with the fleet's budget of rolls.

        One service's surprise must not stop the others, nor hide that service: see `failed`.

        Args:
            legible: the world, and the services whose readings are there.
            grounds: of each service's decision.
            failures: writes that failed.
            now: time of the observation.
            report: is given the number of services left, and surprises.
        """
        world = legible.world
        moving = sum(1 for one in world.services if takes_a_place(one, failures, now))
        services = {service.metadata.uid: service for service in world.services}
        began_s = self._clock.monotonic()
        decided: list[Decided] = []
        undecided: list[Failed] = []
        for place, uid in enumerate(legible.ready):
            if self._clock.monotonic() - began_s > self._settings.deciding_s:
                report.left = len(legible.ready) - place
                break
            may_roll = moving < self._settings.max_parallel_rolls
            try:
                item = self._decisions.decide(world, services[uid], now, may_roll=may_roll)
            except Exception as error:  # noqa: BLE001 - reported in full, and the other services go on
                mark = partial(self._marked, world, services[uid], error, now)
                undecided += self._log.undecided(services[uid], error, report, mark)
                continue
            moving += any(isinstance(action, WriteAnnotation) for action in item.outcome.plan.actions)
            decided.append(item)
            # On older readings than what made it due: it is due until they are as new.
            lasts_s = 0.0 if uid in legible.late else stands_s(item, self._settings.status_refresh_s, now)
            self._agenda.decided(uid, grounds[uid], began_s, lasts_s)
        return decided, undecided

    def _marked(
        self, world: Snapshot, service: SpeculativeService, error: Exception, now: datetime
    ) -> Failed:
        written = world.manifests[service.metadata.uid].get("status") or {}
        remembered, version = self._decisions.remembered(service), service.metadata.resource_version
        return failed(remembered, written, error, now, version)

    def _grounds(self, world: Snapshot, now: datetime) -> Mapping[str, Grounds]:
        """Grounds of decisions, by uid; if a defect hides them, each service has new grounds and is decided about."""
        try:
            return survey(world, self._queries, self._settings.trial.gpu_label, now)
        except Exception:  # noqa: BLE001 - reported in full, and every service is decided about
            self._log.defect("comparing what decisions rest on failed")
            return {service.metadata.uid: Grounds(object(), (), 0.0) for service in world.services}


# The fleet's places for rolls: whether a service takes one.


# A roll that is past its deadline is undone in the next cycle, which sets a new one.
_LATE = timedelta(seconds=60)
_MOVING = frozenset({RolloutPhase.INTENDED, RolloutPhase.ROLLING, RolloutPhase.UNDOING})


def takes_a_place(service: SpeculativeService, failures: RefusedWrites, now: datetime) -> bool:
    """Whether a service's pods are being replaced; not while the API server refuses the write that would do it.

    A target that is gone or refused, or that is paused, keeps its phase; the other services wait no longer than
    until its deadline.
    """
    rollout = service.status.rollout
    if rollout is None or rollout.phase not in _MOVING:
        return False
    if rollout.deadline_time is not None and now - _LATE > rollout.deadline_time:
        return False
    return of_annotation(failures.about(service.metadata.uid, now), now) is None


# The stage of a cycle that writes: the plans of all services are carried out, a few at a time.


_WRITERS = 8


class WritingStage:
    """Carries out what was decided about services, and decides again where the API server refuses it.

    Args:
        clock: port.
        writer: carries plans out.
        decisions: about one service each.
        upkeep: of objects around a service.
        log: is given every decision and surprise.
        shown: is given what was written.
    """

    def __init__(
        self,
        clock: Clock,
        writer: NotedWriter,
        decisions: ServiceDecisions,
        upkeep: Upkeep,
        log: CycleLog,
        shown: ShownServices,
    ) -> None:
        self._clock = clock
        self._writer = writer
        self._decisions = decisions
        self._upkeep = upkeep
        self._log = log
        self._shown = shown

    async def carry_out(
        self, world: Snapshot, outcomes: list[Decided], now: datetime, report: CycleReport
    ) -> list[Failed]:
        """Carry all plans out; outcomes become the last ones, and the services that met a surprise are returned.

        Args:
            world: as it was observed.
            outcomes: of the deciding stage.
            now: time of the observation.
            report: is given what failed.
        """
        gate = asyncio.Semaphore(_WRITERS)
        failures: list[Failed] = []

        async def handle(place: int) -> None:
            item = outcomes[place]
            async with gate:
                try:
                    outcomes[place] = await self._handle(world, item, report)
                except Exception as error:  # noqa: BLE001 - reported in full, and the other services go on
                    # The status of this cycle may be written already: what comes after it starts from it.
                    announced = item.service.with_status(item.outcome.status)
                    document = item.outcome.status.to_json_object()
                    mark = partial(failed, announced, document, error, now)
                    failures.extend(self._log.undecided(announced, error, report, mark))

        await asyncio.gather(*map(handle, range(len(outcomes))))
        return failures

    async def _handle(self, world: Snapshot, item: Decided, report: CycleReport) -> Decided:
        """Carry out what was decided about a service; the last decision, if a write was refused."""
        service, outcome, workload = item.service, item.outcome, item.observation.workload
        uid = service.metadata.uid
        started = self._clock.monotonic()
        self._shown.decided(uid)
        result = await self._writer.carry_out(outcome.plan, report)
        self._shown.carried_out(uid, result)
        if result.conflict and workload is not None:
            yielding = conflicted(service, outcome, workload, result.conflict, self._clock.now())
            await self._writer.carry_out(yielding, report)
        if result.failed is not None and result.failed.refused:
            item = await self._go_without(item, result.failed, report)
        self._log.decided(item, result, self._clock.monotonic() - started)
        await self._upkeep.schedule(world, service, report)
        if result.error is None and not self._writer.dry:
            await self._upkeep.afterwards(item, report)
        return item

    async def _go_without(self, item: Decided, refused: RefusedWrite, report: CycleReport) -> Decided:
        """The decision that does without a refused write, carried out; one that cannot be written is only said."""
        if isinstance(refused.action, WriteStatus):
            ref = reference(item.service)
            said = EmitEvent(ref, str(refused.reason), refused.sentence, warning=True, throttled=True)
            await self._writer.carry_out(ActionPlan(ref, (said,)), report)
            return item
        item = self._decisions.without(item, refused, self._clock.now())
        result = await self._writer.carry_out(item.outcome.plan, report)
        self._shown.carried_out(item.service.metadata.uid, result)
        return item


# The stage of a cycle about what has no decision: services that failed or are invalid, lone profiles, annotated workloads.


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


# A service whose spec breaks a rule: its condition Ready says so, everything else in its status stays as it is.


def invalid_spec_plan(manifest: Manifest, problem: str, now: datetime) -> ActionPlan | None:
    """The plan that says so in the service's status; None if the status says so already.

    Args:
        manifest: of the SpeculativeService.
        problem: the rule that it breaks, in one line.
        now: time of the observation.
    """
    meta = manifest["metadata"]
    ref = Ref(SERVICES, meta["namespace"], meta["name"], meta["uid"])
    status: dict[str, Any] = dict(manifest.get("status") or {})
    try:
        old = tuple(Condition.read(c, "condition") for c in status.get("conditions") or ())
    except InputError:
        old = ()
    said = merge(
        old,
        (Aspect(READY, False, str(ClusterReason.INVALID_SPEC), problem),),
        now,
    )
    conditions = [condition.to_json_object() for condition in said]
    generation = int(meta.get("generation", 0))
    if (status.get("conditions"), status.get("observedGeneration")) == (conditions, generation):
        return None
    said_so = {**status, "observedGeneration": generation, "conditions": conditions}
    return ActionPlan(ref, (WriteStatus(ref, said_so),))


# An annotation that the API server refuses because somebody else owns it: remembered, said, and left to a person.


def conflicted(
    service: SpeculativeService,
    outcome: ServiceOutcome,
    workload: Workload,
    managers: tuple[str, ...],
    now: datetime,
) -> ActionPlan:
    """The API server refused the annotation because others own it: remember it, say it, wait for a person.

    Args:
        service: as it was read.
        outcome: the decision that asked for the annotation. Its figures stand, and so do the results of this cycle.
        workload: the target.
        managers: who owns the annotation.
        now: time of the observation.
    """
    shown, kept = outcome.status, outcome.otherwise
    assert kept is not None  # noqa: S101 - the plan writes an annotation
    context = RolloutContext.of(service.with_status(kept), workload, None, PRODUCTION, now)
    step = taken_over(context, ", ".join(managers), "owns the annotation")
    memory = step.memory.replace(written_value=workload.value)
    changed = shown.replace(
        workings=ServiceWorkings(memory=memory, display=shown.display),
        rollout=None,
        history=step.history(kept.history),
    )
    ref = reference(service)
    return ActionPlan(
        subject=ref,
        actions=(
            WriteStatus(ref, changed.to_json_object()),
            *(EmitEvent(ref, str(e.reason), e.message, e.warning) for e in step.events),
        ),
        facts={"reason": str(ClusterReason.TAKEN_OVER), "managers": list(managers)},
    )
