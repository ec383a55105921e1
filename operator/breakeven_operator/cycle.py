"""One cycle of the operator: read the world, decide about the services that ask for it, carry the plans out.

What is remembered between cycles is a cache, but for what windows have taught since the status was written: whatever else a
decision needs stands in the cluster. A cycle that fails is reported and the next one begins with a new reading.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from breakeven.errors import InputError
from breakeven_operator import calibration, housekeeping, watching
from breakeven_operator.actions import ActionPlan, EmitEvent, WriteAnnotation, WriteStatus
from breakeven_operator.adapters.api_json import problem_of
from breakeven_operator.adapters.observer import Observer
from breakeven_operator.adapters.snapshot import Legible, Snapshot
from breakeven_operator.admission import Decided, run_views
from breakeven_operator.agenda import Agenda, Grounds, stands_s, survey
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.cycle_report import CycleReport
from breakeven_operator.kinds import RUNS, SERVICES, NamespacedName, Ref
from breakeven_operator.labels import FINISHED_LABEL, RESUME_ANNOTATION
from breakeven_operator.ports import Clock, ClusterError, Manifest, TrialSettings
from breakeven_operator.reconcile.action_plan import conflicted, reference
from breakeven_operator.reconcile.conditions import READY, Aspect, merge
from breakeven_operator.reconcile.failed import Failed, failed
from breakeven_operator.reconcile.observation import CycleLimits
from breakeven_operator.reconcile.service import reconcile
from breakeven_operator.reconcile.unwritten import UnwrittenMemory, with_unwritten
from breakeven_operator.refused_writes import RefusedWrite, of_annotation, of_creation
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.meta import Condition
from breakeven_operator.resources.rolloutstatus import RolloutPhase
from breakeven_operator.resources.sharing import sharing
from breakeven_operator.run_turns import RunTurns
from breakeven_operator.serve.logs import CYCLE
from breakeven_operator.serve.telemetry import CycleStage, Telemetry
from breakeven_operator.surroundings import ServiceSurroundings
from breakeven_operator.writer import DryRun, Writer, WriteResult

_LOG = logging.getLogger(__name__)
_CYCLE_LOG = logging.getLogger(CYCLE)
_WRITERS = 8
# A roll that is past its deadline is undone in the next cycle, which sets a new one.
_LATE = timedelta(seconds=60)
_MOVING = frozenset({RolloutPhase.INTENDED, RolloutPhase.ROLLING, RolloutPhase.UNDOING})


@dataclass(frozen=True, slots=True)
class CycleSettings:
    """Settings of the operator that the loop needs.

    Attributes:
        deciding_s: longest time of deciding in one cycle; the services left wait for the next cycle, which begins at once.
        watching: settings of the services that are made for annotated workloads; None: none are.
        gpu_price_per_hour: by which statuses say money; None: they say none.
    """

    trial: TrialSettings
    status_refresh_s: float
    max_parallel_rolls: int
    max_parallel_calibrations: int
    deciding_s: float = 1.0
    watching: watching.WatchSettings | None = None
    gpu_price_per_hour: float | None = None

    def limits(self, *, may_roll: bool = True) -> CycleLimits:
        """The settings that decisions use."""
        return CycleLimits(self.status_refresh_s, may_roll, self.gpu_price_per_hour)


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
        writer: Writer | DryRun,
        telemetry: Telemetry,
        settings: CycleSettings,
        show: Callable[[Snapshot, Sequence[SpeculativeService]], None] = lambda _world, _services: None,
    ) -> None:
        self._show = show
        self._clock = clock
        self._observer = observer
        self._writer = writer
        self._telemetry = telemetry
        self._settings = settings
        self._agenda = Agenda()
        self._surroundings = ServiceSurroundings(
            observer, writer.failures, settings.trial.gpu_label, self._warn_once
        )
        # Services that the last cycle left to the next one.
        self._left = 0
        # By uid of the service: the service as /metrics shows it; whether that status was written; lessons of decisions
        # without a write; the verdict that was last logged.
        self._shown: dict[str, SpeculativeService] = {}
        self._written: set[str] = set()
        self._unwritten: dict[str, UnwrittenMemory] = {}
        self._verdicts: dict[str, tuple[str, ...]] = {}
        self._warned: dict[str, str] = {}
        # Whether annotated workloads found no room in the last cycle.
        self._room_missed = False
        # Generation and resume token: if a person changes them, refused writes are tried again at once.
        self._asked: dict[str, tuple[int, str]] = {}

    def age_s(self) -> float:
        """How old the oldest part of the next observation would be."""
        return self._observer.age_s()

    async def rest(self) -> None:
        """There are no cycles for a while; another replica may decide meanwhile."""
        self._agenda, self._shown, self._written, self._unwritten = Agenda(), {}, set(), {}
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
        self._forget(world)
        due, grounds = self._due(world, now)
        passed(CycleStage.COMPARING)
        legible = await self._observer.legible(world, due)
        passed(CycleStage.AWAITING)
        world, now = legible.world, self._clock.now()
        outcomes, failures = self._decide(legible, grounds, now, report)
        passed(CycleStage.DECIDING)
        report.left += len(due) - len(legible.ready) - len(legible.awaited)
        await self._handle_all(world, outcomes, failures, now, report)
        passed(CycleStage.WRITING)
        await self._say_unhandled(world, failures, now, report)
        if self._settings.watching is not None:
            await self._serve_annotated(world, self._settings.watching, report)
        passed(CycleStage.REPORTING)
        turns = RunTurns(
            self._observer.cluster,
            self._clock,
            self._writer,
            self._telemetry,
            self._note,
            self._warn_once,
        )
        for view in run_views(
            world, outcomes, self._settings.max_parallel_calibrations, self._settings.trial, now
        ):
            await turns.turn(view, now, report)
        passed(CycleStage.CALIBRATING)
        self._publish(outcomes, failures, now)
        self._show(world, tuple(self._shown.values()))
        self._telemetry.services.set(len(world.services))
        self._telemetry.services_left.set(report.left + len(legible.awaited))
        self._left = report.left
        passed(CycleStage.PUBLISHING)
        return report

    async def _handle_all(
        self,
        world: Snapshot,
        outcomes: list[Decided],
        failures: list[Failed],
        now: datetime,
        report: CycleReport,
    ) -> None:
        """Carry all plans out, a few at a time; outcomes become the last ones, and surprises are added to the failures."""
        gate = asyncio.Semaphore(_WRITERS)

        async def handle(place: int) -> None:
            item = outcomes[place]
            async with gate:
                try:
                    outcomes[place] = await self._handle(world, item, report)
                except Exception as error:  # noqa: BLE001 - reported in full, and the other services go on
                    # The status of this cycle may be written already: what comes after it starts from it.
                    announced = item.service.with_status(item.outcome.status)
                    self._report_surprise(announced, error, report)
                    failures.append(failed(announced, item.outcome.status.to_json_object(), error, now))

        await asyncio.gather(*map(handle, range(len(outcomes))))

    async def _say_unhandled(
        self, world: Snapshot, failures: Sequence[Failed], now: datetime, report: CycleReport
    ) -> None:
        """Report services without a decision and those that break a rule; tidy up profiles without a service."""
        for failure in failures:
            self._note(await self._writer.carry_out(failure.plan), report)
        for manifest, problem in world.invalid:
            try:
                await self._say_invalid(manifest, problem, now, report)
            except Exception:  # noqa: BLE001 - reported in full, and the other services go on
                _LOG.exception("saying that %s is invalid failed", NamespacedName.of(manifest))
                self._telemetry.errors.labels(str(ClusterReason.INTERNAL_ERROR)).inc()
        names = {NamespacedName.of(manifest) for manifest in world.manifests.values()}
        for action in housekeeping.abandoned(world.profiles, names, now):
            self._note(await self._writer.carry_out(ActionPlan(action.ref, (action,))), report)

    async def _serve_annotated(
        self, world: Snapshot, settings: watching.WatchSettings, report: CycleReport
    ) -> None:
        """Make services for annotated workloads, and take back those that nobody wants any more."""
        try:
            asked = watching.watched(world, settings)
        except Exception:  # noqa: BLE001 - reported in full, and the services that there are go on
            _LOG.exception("deciding about annotated workloads failed")
            self._telemetry.errors.labels(str(ClusterReason.INTERNAL_ERROR)).inc()
            return
        for plan in asked.plans:
            self._note(await self._writer.carry_out(plan), report)
        self._telemetry.watched_left.set(len(asked.left))
        if asked.left and not self._room_missed:
            _LOG.warning("%s", asked.sentence(settings))
        self._room_missed = bool(asked.left)

    def _due(self, world: Snapshot, now: datetime) -> tuple[list[SpeculativeService], Mapping[str, Grounds]]:
        """The services to decide about, those first that have waited longest, and what decisions would rest on, by uid."""
        services = {service.metadata.uid: service for service in world.services}
        grounds = self._grounds(world, now)
        due = self._agenda.due(grounds, self._clock.monotonic())
        for uid in grounds.keys() - set(due):
            # A decision that stands counts as if it were made again.
            action, _, reason = self._verdicts[uid]
            self._telemetry.decided(services[uid], action, reason)
        return [services[uid] for uid in due], grounds

    def _decide(
        self, legible: Legible, grounds: Mapping[str, Grounds], now: datetime, report: CycleReport
    ) -> tuple[list[Decided], list[Failed]]:
        """Pure part of a cycle: the services that are due, in turn, with the fleet's budget of rolls.

        One service's surprise must not stop the others, nor hide that service: see `failed`.
        """
        world = legible.world
        moving = sum(1 for s in world.services if self._moves(s, now))
        services = {service.metadata.uid: service for service in world.services}
        began_s = self._clock.monotonic()
        decided: list[Decided] = []
        failures: list[Failed] = []
        for place, uid in enumerate(legible.ready):
            if self._clock.monotonic() - began_s > self._settings.deciding_s:
                report.left = len(legible.ready) - place
                break
            stored = services[uid]
            service = with_unwritten(stored, self._unwritten.get(uid))
            self._hurry(service, now)
            limits = self._settings.limits(may_roll=moving < self._settings.max_parallel_rolls)
            try:
                observation = self._surroundings.of(world, service, now)
                outcome = reconcile(service, observation, limits, now)
                outcome = replace(outcome, status=sharing(stored.status, outcome.status))
            except Exception as error:  # noqa: BLE001 - reported in full, and the other services go on
                self._report_surprise(service, error, report)
                written = world.manifests[service.metadata.uid].get("status") or {}
                failures.append(failed(service, written, error, now, service.metadata.resource_version))
                continue
            moving += any(isinstance(a, WriteAnnotation) for a in outcome.plan.actions)
            if not any(isinstance(a, WriteStatus) for a in outcome.plan.actions):
                self._unwritten[uid] = UnwrittenMemory(stored.status.memory, outcome.status.memory)
            decided.append(Decided(service, observation, outcome))
            self._written.discard(uid)
            # On older readings than what made it due: it is due until they are as new.
            lasts_s = (
                stands_s(decided[-1], self._settings.status_refresh_s, now)
                if uid not in legible.late
                else 0.0
            )
            self._agenda.decided(uid, grounds[uid], began_s, lasts_s)
        return decided, failures

    def _moves(self, service: SpeculativeService, now: datetime) -> bool:
        """Whether a service's pods are being replaced; not while the API server refuses the write that would do it."""
        if not _is_moving(service, now):
            return False
        return of_annotation(self._writer.failures.about(service.metadata.uid, now), now) is None

    def _hurry(self, service: SpeculativeService, now: datetime) -> None:
        """A changed spec or a new value of the resume annotation: what was refused is tried at once."""
        meta = service.metadata
        asked = (meta.generation or 0, meta.annotations.get(RESUME_ANNOTATION, ""))
        if self._asked.setdefault(meta.uid, asked) != asked:
            self._asked[meta.uid] = asked
            self._writer.failures.hurry(meta.uid, now)

    def _grounds(self, world: Snapshot, now: datetime) -> Mapping[str, Grounds]:
        """Grounds of decisions, by uid; if a defect hides them, each service has new grounds and is decided about."""
        try:
            return survey(world, self._observer, self._settings.trial.gpu_label, now)
        except Exception:  # noqa: BLE001 - reported in full, and every service is decided about
            _LOG.exception("comparing what decisions rest on failed")
            self._telemetry.errors.labels(str(ClusterReason.INTERNAL_ERROR)).inc()
            return {service.metadata.uid: Grounds(object(), (), 0.0) for service in world.services}

    def _report_surprise(self, service: SpeculativeService, error: Exception, report: CycleReport) -> None:
        """A defect of the operator met one service: log it in full and count it."""
        _LOG.error("deciding about %s failed", reference(service), exc_info=error)
        report.errors.append(f"{reference(service)}: {ClusterReason.INTERNAL_ERROR}: {error!r}")
        self._telemetry.errors.labels(str(ClusterReason.INTERNAL_ERROR)).inc()
        self._verdicts.pop(service.metadata.uid, None)
        self._agenda.reopen(service.metadata.uid)

    def _forget(self, world: Snapshot) -> None:
        """Keep nothing about objects that are gone."""
        present = {*world.manifests, *(run["metadata"]["uid"] for run in world.runs)}
        valid = {service.metadata.uid for service in world.services}
        self._shown = {uid: service for uid, service in self._shown.items() if uid in valid}
        # A status of the cluster is in memory already: two of each would be a quarter of this process.
        self._shown |= {s.metadata.uid: s for s in world.services if s.metadata.uid in self._written}
        self._unwritten = {uid: last for uid, last in self._unwritten.items() if uid in valid}
        self._verdicts = {uid: words for uid, words in self._verdicts.items() if uid in present}
        self._warned = {uid: text for uid, text in self._warned.items() if uid in present}
        self._asked = {uid: asked for uid, asked in self._asked.items() if uid in present}

    def _warn_once(self, uid: str, text: str) -> None:
        """A warning about an object that stays as it is would otherwise come with every cycle."""
        if self._warned.get(uid) != text:
            self._warned[uid] = text
            _LOG.warning("%s", text)

    async def _handle(self, world: Snapshot, item: Decided, report: CycleReport) -> Decided:
        """Carry out what was decided about a service; the last decision, if a write was refused."""
        service, observation, outcome = item.service, item.observation, item.outcome
        plan = outcome.plan
        started = self._clock.monotonic()
        result = await self._writer.carry_out(plan)
        if any(isinstance(action, WriteStatus) for action in result.done):
            self._written.add(service.metadata.uid)
        if result.conflict and observation.workload is not None:
            yielded = await self._writer.carry_out(
                conflicted(service, outcome, observation.workload, result.conflict, self._clock.now())
            )
            self._note(yielded, report)
        self._note(result, report)
        if result.failed is not None and result.failed.refused:
            item = await self._go_without(item, result.failed, report)
            outcome = item.outcome
        self._telemetry.decided(service, outcome.verdict.action, outcome.verdict.reason)
        line = {
            "specsvc": f"{service.metadata.namespace}/{service.metadata.name}",
            **outcome.plan.facts,
            "did": [type(action).__name__ for action in result.done],
            **({"error": str(result.error)} if result.error is not None else {}),
            "took_s": round(self._clock.monotonic() - started, 4),
        }
        # A cycle that found everything as it was says nothing new: one line per change or renewed status.
        news = bool(plan.actions) or self._verdicts.get(service.metadata.uid) != outcome.verdict.words
        self._verdicts[service.metadata.uid] = outcome.verdict.words
        _CYCLE_LOG.log(logging.INFO if news else logging.DEBUG, "%(specsvc)s %(action)s %(reason)s", line)
        await self._keep_house(world, service, report)
        if result.error is None and not self._writer.dry:
            await self._afterwards(item, report)
        return item

    async def _go_without(self, item: Decided, refused: RefusedWrite, report: CycleReport) -> Decided:
        """Decide again without a write that the API server refuses: what was announced is taken back, and the word is said.

        The status that announced it was written just now, so the second one is not bound to the version that was read.
        """
        service, ref = item.service, reference(item.service)
        if isinstance(refused.action, WriteStatus):
            said = EmitEvent(ref, str(refused.reason), refused.sentence, warning=True, throttled=True)
            self._note(await self._writer.carry_out(ActionPlan(ref, (said,))), report)
            return item
        now, observation = self._clock.now(), item.observation
        if isinstance(refused.action, WriteAnnotation) and item.outcome.otherwise is not None:
            service = service.with_status(item.outcome.otherwise)
            observation = replace(observation, written=item.outcome.status.to_json_object())
        observation = replace(observation, failures=self._writer.failures.about(service.metadata.uid, now))
        outcome = reconcile(service, observation, self._settings.limits(), now)
        actions = tuple(
            replace(action, resource_version=None) if isinstance(action, WriteStatus) else action
            for action in outcome.plan.actions
        )
        result = await self._writer.carry_out(replace(outcome.plan, actions=actions))
        self._note(result, report)
        if any(isinstance(action, WriteStatus) for action in result.done):
            self._written.add(service.metadata.uid)
        return replace(item, service=service, outcome=outcome)

    async def _keep_house(self, world: Snapshot, service: SpeculativeService, report: CycleReport) -> None:
        """The CronJob of a service; a plan of its own, so that nothing else waits if it is refused."""
        key = NamespacedName(service.metadata.namespace, calibration.cronjob_name(service.metadata.name))
        upkeep = housekeeping.schedule(
            world.manifests[service.metadata.uid],
            world.cron_jobs.get(key),
            self._settings.trial,
        )
        if upkeep:
            self._note(await self._writer.carry_out(ActionPlan(reference(service), upkeep)), report)

    async def _afterwards(self, item: Decided, report: CycleReport) -> None:
        """Writes that must come after the status: marks on profiles and runs, and the removal of old ones."""
        service, observation = item.service, item.observation
        in_force = item.in_force
        namespace = service.metadata.namespace
        for action in housekeeping.mark_in_force(namespace, observation.profiles, in_force):
            self._note(await self._writer.carry_out(ActionPlan(reference(service), (action,))), report)
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
        self._note(await self._writer.carry_out(ActionPlan(reference(service), marks)), report)
        try:
            finished = await self._observer.cluster.list_all(RUNS, namespace, FINISHED_LABEL)
        except ClusterError as error:
            report.errors.append(str(error))
            return
        legible = [run for run in finished if problem_of(run) is None]
        old = housekeeping.retire(service, legible, observation.profiles, in_force)
        self._note(await self._writer.carry_out(ActionPlan(reference(service), old)), report)

    async def _say_invalid(
        self, manifest: Manifest, problem: str, now: datetime, report: CycleReport
    ) -> None:
        """A spec that breaks a rule: its condition Ready says so, everything else in its status stays as it is."""
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
            int(meta.get("generation", 0)),
            now,
        )
        conditions = [condition.to_json_object() for condition in said]
        if status.get("conditions") == conditions:
            return
        changed = {**status, "conditions": conditions}
        self._note(await self._writer.carry_out(ActionPlan(ref, (WriteStatus(ref, changed),))), report)

    def _note(self, result: WriteResult, report: CycleReport) -> None:
        for unsaid in result.unsaid:
            self._telemetry.errors.labels(str(unsaid.reason)).inc()
            _LOG.warning("%s: %s: %s", result.plan.subject, unsaid.reason, unsaid.sentence)
        error, failed = result.error, result.failed
        if error is None:
            return
        uid, late = result.plan.subject.uid, failed or result.waiting
        if late is not None and late.refused:
            in_s = (late.until - self._clock.now()).total_seconds()
            self._agenda.reopen(uid, self._clock.monotonic(), in_s)
        else:
            self._agenda.reopen(uid)
        if failed is not None:
            self._telemetry.errors.labels(str(failed.reason)).inc()
            report.errors.append(f"{result.plan.subject}: {failed.reason}: {error}")
            _LOG.warning("%s: %s: %s", result.plan.subject, failed.reason, error)

    def _publish(self, outcomes: Sequence[Decided], failures: Sequence[Failed], now: datetime) -> None:
        self._written -= {failure.service.metadata.uid for failure in failures}
        # A service that was decided and then failed to be written counts as failed.
        self._shown |= {
            item.service.metadata.uid: item.service.with_status(item.outcome.status) for item in outcomes
        }
        self._shown |= {failure.service.metadata.uid: failure.service for failure in failures}
        for item in outcomes:
            for entry in item.outcome.status.history[: item.ended]:
                self._telemetry.fleet.count("breakeven_rollouts", item.service, str(entry.result))
        self._telemetry.fleet.publish(self._shown.values(), now)


def _is_moving(service: SpeculativeService, now: datetime) -> bool:
    """Whether a change of the service's arm takes one of the fleet's places: no longer than until its deadline.

    A target that is gone, that two GPU classes share or that is paused keeps its phase; the other services must not wait.
    """
    rollout = service.status.rollout
    if rollout is None or rollout.phase not in _MOVING:
        return False
    # Whoever may write a status may write the last date there is, which nothing can be added to.
    return rollout.deadline_time is None or now - _LATE <= rollout.deadline_time
