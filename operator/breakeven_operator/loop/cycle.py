"""One cycle of the operator: read the world, decide about the services that ask for it, carry the plans out.

`Reconciler.cycle` is the list of the stages, and the methods below it follow in its order. A cycle that fails is reported, and
the next one begins with a new reading.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from breakeven.errors import InputError
from breakeven_operator import calibration
from breakeven_operator.actions import ActionPlan, EmitEvent, WriteAnnotation, WriteStatus
from breakeven_operator.cluster.api_json import problem_of
from breakeven_operator.cluster.observer import Observer
from breakeven_operator.cluster.snapshot import Snapshot
from breakeven_operator.cluster.writer import DryRun, Writer, WriteResult
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import FINISHED_LABEL, RUNS, SERVICES, NamespacedName, Ref
from breakeven_operator.loop import housekeeping, watching
from breakeven_operator.loop.agenda import Agenda, Grounds, stands_s, survey
from breakeven_operator.loop.cycle_log import CycleLog, NotedWriter
from breakeven_operator.loop.run_turns import RunTurns
from breakeven_operator.loop.service_decisions import ServiceDecisions
from breakeven_operator.outcome.action_plan import Failed, ServiceOutcome, failed
from breakeven_operator.ports import Clock, ClusterError, Manifest
from breakeven_operator.refused_writes import RefusedWrite, RefusedWrites, of_annotation, of_creation
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.meta import READY, Aspect, Condition, merge
from breakeven_operator.resources.servicestatus import ServiceWorkings
from breakeven_operator.resources.targetstatus import RolloutPhase
from breakeven_operator.resources.updatepolicy import PRODUCTION
from breakeven_operator.rolls.annotation_owner import taken_over
from breakeven_operator.serve.telemetry import CycleStage, Telemetry
from breakeven_operator.settings import Settings
from breakeven_operator.step import RolloutContext
from breakeven_operator.workloads.workload import Workload

Show = Callable[[Snapshot, Sequence[SpeculativeService]], None]
"""Is given the world, and the services as a cycle leaves them."""

_LOG = logging.getLogger(__name__)
# Plans of services that are carried out at the same time.
_WRITERS = 8
# A roll that is past its deadline is undone in the next cycle, which sets a new one.
_LATE = timedelta(seconds=60)
_MOVING = frozenset({RolloutPhase.INTENDED, RolloutPhase.ROLLING, RolloutPhase.UNDOING})


def show_nobody(_world: Snapshot, _services: Sequence[SpeculativeService]) -> None:
    """The `Show` of an operator without a board."""


class Reconciler:
    """Runs cycles; `cycle` may be called again after any failure.

    `show` is given the world and the services as each cycle leaves them. Services that are left after `deciding_s` wait for the next
    cycle, which begins at once.
    """

    deciding_s = 1.0

    def __init__(
        self,
        clock: Clock,
        observer: Observer,
        writer: Writer | DryRun,
        telemetry: Telemetry,
        settings: Settings,
        show: Show = show_nobody,
    ) -> None:
        self._clock = clock
        self._observer = observer
        self._telemetry = telemetry
        self._settings = settings
        self._agenda = Agenda()
        self._writer = NotedWriter(writer, self._agenda, clock, telemetry)
        self._log = CycleLog(telemetry, self._agenda, self._writer.errors)
        self._decisions = ServiceDecisions(observer.queries, writer.failures, settings, self._log.warn_once)
        self._turns = RunTurns(observer.cluster, clock, self._writer, self._log, settings)
        self._shown = ShownServices(telemetry, show)
        # Services that the last cycle left to the next one.
        self._left = 0
        # Whether annotated workloads found no room in the last cycle.
        self._room_missed = False

    @property
    def errors(self) -> list[str]:
        """Plans that the last cycle did not carry out to their end."""
        return self._writer.errors

    async def cycle(self) -> int:
        """One pass over all services; how many of them it left for lack of time.

        Raises:
            ClusterError: the world could not be read; nothing was done.
        """
        passed = self._telemetry.stages(self._clock.monotonic)
        world = await self._observer.observe(soon=self._left > 0)
        passed(CycleStage.READING)
        now = self._clock.now()
        self._writer.errors.clear()
        self._left = 0
        due, grounds = self._due(world, now)
        passed(CycleStage.COMPARING)
        world = await self._observer.legible(world, due)
        passed(CycleStage.AWAITING)
        now = self._clock.now()
        outcomes, failures = self._decide(world, grounds, now)
        passed(CycleStage.DECIDING)
        self._left += len(due) - len(world.ready) - len(world.awaited)
        failures += await self._carry_out(world, outcomes, now)
        passed(CycleStage.WRITING)
        await self._say_undecided(world, failures, now)
        await self._serve_annotated(world)
        passed(CycleStage.REPORTING)
        await self._turns.take(world, outcomes, now)
        passed(CycleStage.CALIBRATING)
        self._shown.publish(world, outcomes, failures, now)
        self._telemetry.services.set(len(world.services))
        self._telemetry.services_left.set(self._left + len(world.awaited))
        passed(CycleStage.PUBLISHING)
        return self._left

    def age_s(self) -> float:
        """How old the oldest part of the next observation would be."""
        return self._observer.age_s()

    async def rest(self) -> None:
        """There are no cycles for a while; another replica may decide meanwhile."""
        self._agenda.rest()
        self._decisions.rest()
        self._shown.rest()
        await self._observer.rest()

    # Comparing: which services are due.

    def _due(self, world: Snapshot, now: datetime) -> tuple[list[SpeculativeService], Mapping[str, Grounds]]:
        """The services to decide about, those first that have waited longest, and what decisions would rest on, by uid.

        Nothing is remembered about objects that are gone.
        """
        self._shown.keep(world.services)
        self._decisions.keep(world)
        self._log.keep(world)
        services = {service.metadata.uid: service for service in world.services}
        grounds = self._grounds(world, now)
        due = self._agenda.due(grounds, self._clock.monotonic())
        for uid in grounds.keys() - set(due):
            self._log.stands(services[uid])
        return [services[uid] for uid in due], grounds

    def _grounds(self, world: Snapshot, now: datetime) -> Mapping[str, Grounds]:
        """Grounds of decisions, by uid; if a defect hides them, each service has new grounds and is decided about."""
        try:
            return survey(world, self._observer.queries, self._settings.gpu_label, now)
        except Exception:  # noqa: BLE001 - reported in full, and every service is decided about
            self._log.defect("comparing what decisions rest on failed")
            return {service.metadata.uid: Grounds(object(), (), 0.0) for service in world.services}

    # Deciding, within the fleet's budgets of time and rolls; without I/O.

    def _decide(
        self, world: Snapshot, grounds: Mapping[str, Grounds], now: datetime
    ) -> tuple[list[ServiceOutcome], list[Failed]]:
        """Decisions about the services that are due, in turn, and the services that met a defect.

        One service's surprise must not stop the others, nor hide that service: see `failed`.
        """
        moving = sum(1 for one in world.services if takes_a_place(one, self._writer.failures, now))
        services = {service.metadata.uid: service for service in world.services}
        began_s = self._clock.monotonic()
        decided: list[ServiceOutcome] = []
        undecided: list[Failed] = []
        for place, uid in enumerate(world.ready):
            if self._clock.monotonic() - began_s > self.deciding_s:
                self._left = len(world.ready) - place
                break
            may_roll = moving < self._settings.max_parallel_rolls
            try:
                item = self._decisions.decide(world, services[uid], now, may_roll=may_roll)
            except Exception as error:  # noqa: BLE001 - reported in full, and the other services go on
                mark = partial(self._marked, world, services[uid], error, now)
                undecided += self._log.undecided(services[uid], error, mark)
                continue
            moving += any(isinstance(action, WriteAnnotation) for action in item.plan.actions)
            decided.append(item)
            # On older readings than what made it due: it is due until they are as new.
            lasts_s = 0.0 if uid in world.late else stands_s(item, self._settings.status_refresh_s, now)
            self._agenda.decided(uid, grounds[uid], began_s, lasts_s)
        return decided, undecided

    def _marked(
        self, world: Snapshot, service: SpeculativeService, error: Exception, now: datetime
    ) -> Failed:
        written = world.manifests[service.metadata.uid].get("status") or {}
        remembered, version = self._decisions.remembered(service), service.metadata.resource_version
        return failed(remembered, written, error, now, version)

    # Writing: the plans of all services, a few at a time.

    async def _carry_out(
        self, world: Snapshot, outcomes: list[ServiceOutcome], now: datetime
    ) -> list[Failed]:
        """Carry all plans out; `outcomes` become the last ones, and the services that met a surprise are returned."""
        gate = asyncio.Semaphore(_WRITERS)
        failures: list[Failed] = []

        async def handle(place: int) -> None:
            item = outcomes[place]
            async with gate:
                try:
                    outcomes[place] = await self._handle(world, item)
                except Exception as error:  # noqa: BLE001 - reported in full, and the other services go on
                    # The status of this cycle may be written already: what comes after it starts from it.
                    announced = item.service.with_status(item.status)
                    document = item.status.to_json_object()
                    mark = partial(failed, announced, document, error, now)
                    failures.extend(self._log.undecided(announced, error, mark))

        await asyncio.gather(*map(handle, range(len(outcomes))))
        return failures

    async def _handle(self, world: Snapshot, item: ServiceOutcome) -> ServiceOutcome:
        """Carry out what was decided about a service; the last decision, if a write was refused."""
        service, workload = item.service, item.observation.workload
        uid = service.metadata.uid
        started = self._clock.monotonic()
        self._shown.decided(uid)
        result = await self._writer.carry_out(item.plan)
        self._shown.carried_out(uid, result)
        if result.conflict and workload is not None:
            yielding = conflicted(item, workload, result.conflict, self._clock.now())
            await self._writer.carry_out(yielding)
        if result.failed is not None and result.failed.refused:
            item = await self._go_without(item, result.failed)
        self._log.decided(item, result, self._clock.monotonic() - started)
        await self._schedule(world, service)
        if result.error is None and not self._writer.dry:
            await self._tidy_up(item)
        return item

    async def _go_without(self, item: ServiceOutcome, refused: RefusedWrite) -> ServiceOutcome:
        """The decision that does without a refused write, carried out; one that cannot be written is only said."""
        if isinstance(refused.action, WriteStatus):
            ref = item.service.ref
            said = EmitEvent(ref, str(refused.reason), refused.sentence, warning=True, throttled=True)
            await self._writer.carry_out(ActionPlan(ref, (said,)))
            return item
        item = self._decisions.without(item, refused, self._clock.now())
        result = await self._writer.carry_out(item.plan)
        self._shown.carried_out(item.service.metadata.uid, result)
        return item

    # Upkeep of the operator's own objects around a service.

    async def _schedule(self, world: Snapshot, service: SpeculativeService) -> None:
        """The CronJob of a service; a plan of its own, so that nothing else waits if it is refused."""
        key = NamespacedName(service.metadata.namespace, calibration.made_name(service.metadata.name))
        upkeep = housekeeping.schedule(
            world.manifests[service.metadata.uid], world.cron_jobs.get(key), self._settings
        )
        if upkeep:
            await self._writer.carry_out(ActionPlan(service.ref, upkeep))

    async def _tidy_up(self, item: ServiceOutcome) -> None:
        """Writes that must come after the status: marks on profiles and runs, and the removal of old ones."""
        service, observation, in_force = item.service, item.observation, item.in_force
        namespace = service.metadata.namespace
        # A control uses the profiles of another service.
        own = observation.profiles if service.spec.control_of is None else ()
        for action in housekeeping.mark_in_force(namespace, own, in_force):
            await self._writer.carry_out(ActionPlan(service.ref, (action,)))
        ended = [run for run in observation.runs if run.status.ended]
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
        await self._writer.carry_out(ActionPlan(service.ref, marks))
        try:
            finished = await self._observer.cluster.list_all(RUNS, namespace, FINISHED_LABEL)
        except ClusterError as error:
            self._writer.errors.append(str(error))
            return
        legible = [run for run in finished if problem_of(run) is None]
        old = housekeeping.retire(service, legible, own, in_force)
        await self._writer.carry_out(ActionPlan(service.ref, old))

    # Reporting: services that failed or are invalid, lone profiles, annotated workloads.

    async def _say_undecided(self, world: Snapshot, failures: Sequence[Failed], now: datetime) -> None:
        """Report services without a decision and those that break a rule; tidy up profiles without a service."""
        for failure in failures:
            await self._writer.carry_out(failure.plan)
        for manifest, problem in world.invalid:
            try:
                plan = invalid_spec_plan(manifest, problem, now)
                if plan is not None:
                    await self._writer.carry_out(plan)
            except Exception:  # noqa: BLE001 - reported in full, and the other services go on
                self._log.defect("saying that %s is invalid failed", NamespacedName.of(manifest))
        names = {NamespacedName.of(manifest) for manifest in world.manifests.values()}
        for action in housekeeping.abandoned(world.profiles, names, now):
            await self._writer.carry_out(ActionPlan(action.ref, (action,)))

    async def _serve_annotated(self, world: Snapshot) -> None:
        """Make services for annotated workloads, and take back those that nobody wants any more."""
        if self._settings.watch_annotated == "false":
            return
        try:
            asked = watching.watched(world, self._settings)
        except Exception:  # noqa: BLE001 - reported in full, and the services that there are go on
            self._log.defect("deciding about annotated workloads failed")
            return
        for plan in asked.plans:
            await self._writer.carry_out(plan)
        self._telemetry.watched_left.set(len(asked.left))
        if asked.left and not self._room_missed:
            _LOG.warning("%s", asked.sentence(self._settings))
        self._room_missed = bool(asked.left)


class ShownServices:
    """The services as /metrics and the board show them: each with the status that its last decision led to, written or not."""

    def __init__(self, telemetry: Telemetry, show: Show) -> None:
        self._telemetry = telemetry
        self._show = show
        # By uid; and the uids of services whose shown status the cluster holds too.
        self._shown: dict[str, SpeculativeService] = {}
        self._written: set[str] = set()

    def rest(self) -> None:
        """Forget everything; another replica may decide meanwhile."""
        self._shown, self._written = {}, set()

    def keep(self, services: Sequence[SpeculativeService]) -> None:
        """Forget services that are gone, all but these; those that were written are shown as they were read."""
        valid = {service.metadata.uid for service in services}
        self._shown = {uid: service for uid, service in self._shown.items() if uid in valid}
        # A status of the cluster is in memory already: two of each would be a quarter of this process.
        self._shown |= {one.metadata.uid: one for one in services if one.metadata.uid in self._written}

    def decided(self, uid: str) -> None:
        """A decision was made: the status in the cluster is older than what will be shown."""
        self._written.discard(uid)

    def carried_out(self, uid: str, result: WriteResult) -> None:
        """A plan was carried out, which may have written that status."""
        if any(isinstance(action, WriteStatus) for action in result.done):
            self._written.add(uid)

    def publish(
        self, world: Snapshot, outcomes: Sequence[ServiceOutcome], failures: Sequence[Failed], now: datetime
    ) -> None:
        """Show all services: as they were decided, or marked as failed, in this cycle or an earlier one."""
        self._written -= {failure.service.metadata.uid for failure in failures}
        # A service that was decided and then failed to be written counts as failed.
        self._shown |= {item.service.metadata.uid: item.service.with_status(item.status) for item in outcomes}
        self._shown |= {failure.service.metadata.uid: failure.service for failure in failures}
        for item in outcomes:
            for entry in item.status.history[: item.ended]:
                self._telemetry.fleet.count("breakeven_rollouts", item.service, str(entry.result))
        self._telemetry.fleet.publish(self._shown.values(), now)
        self._show(world, tuple(self._shown.values()))


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


def invalid_spec_plan(manifest: Manifest, problem: str, now: datetime) -> ActionPlan | None:
    """The plan that says in a service's status which rule its spec breaks; None if the status says so already.

    Everything but the condition Ready stays as it is.
    """
    meta = manifest["metadata"]
    ref = Ref(SERVICES, meta["namespace"], meta["name"], meta["uid"])
    status: dict[str, Any] = dict(manifest.get("status") or {})
    try:
        old = tuple(Condition.read(c, "condition") for c in status.get("conditions") or ())
    except InputError:
        old = ()
    said = merge(old, (Aspect(READY, False, str(ClusterReason.INVALID_SPEC), problem),), now)
    conditions = [condition.to_json_object() for condition in said]
    generation = int(meta.get("generation", 0))
    if (status.get("conditions"), status.get("observedGeneration")) == (conditions, generation):
        return None
    said_so = {**status, "observedGeneration": generation, "conditions": conditions}
    return ActionPlan(ref, (WriteStatus(ref, said_so),))


def conflicted(
    item: ServiceOutcome,
    workload: Workload,
    managers: tuple[str, ...],
    now: datetime,
) -> ActionPlan:
    """The API server refused the annotation because others own it: remember it, say it, wait for a person.

    The figures of the decision that asked for it stand, and so do the results of this cycle.
    """
    service, shown, kept = item.service, item.status, item.otherwise
    assert kept is not None  # noqa: S101 - the plan writes an annotation
    context = RolloutContext.of(service.with_status(kept), workload, None, PRODUCTION, now)
    step = taken_over(context, ", ".join(managers), "owns the annotation")
    memory = step.memory.replace(written_value=workload.value)
    changed = shown.replace(
        workings=ServiceWorkings(memory=memory, display=shown.display),
        rollout=None,
        history=step.history(kept.history),
    )
    ref = service.ref
    return ActionPlan(
        subject=ref,
        actions=(
            WriteStatus(ref, changed.to_json_object()),
            *step.events,
        ),
        facts={"reason": str(ClusterReason.TAKEN_OVER), "managers": list(managers)},
    )
