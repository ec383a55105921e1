"""Decisions about one service after the other, each from what the last one has learned.

All that is remembered between cycles is a cache, but for what windows have taught since the status was written: whatever else a
decision needs stands in the cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from breakeven.errors import InputError
from breakeven_operator.actions import WriteAnnotation, WriteStatus
from breakeven_operator.case import FleetReading, ServiceObservation, StandingControl
from breakeven_operator.cluster.prometheus_questions import (
    ARRIVALS,
    CONTROLS,
    FLEET,
    GUARDS,
    LATENCIES,
    LATER,
    PASTS,
    PROMPTS,
    ROLLS,
    ServiceQueries,
)
from breakeven_operator.cluster.snapshot import Snapshot
from breakeven_operator.kinds import CLAIMS, RESUME_ANNOTATION, NamespacedName, service_of
from breakeven_operator.outcome.action_plan import ServiceOutcome
from breakeven_operator.reconcile import reconcile
from breakeven_operator.refused_writes import RefusedWrite, RefusedWrites
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.base import Model
from breakeven_operator.resources.calibrationrun import read_run
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.settings import Settings
from breakeven_operator.workloads.known import kind_of, target_of
from breakeven_operator.workloads.target import claim_of, older_claim
from breakeven_operator.workloads.workload import NearbyObjects, Workload, observe

M = TypeVar("M", bound=Model)
# Times in a status have milliseconds.
_ROUNDED = timedelta(seconds=1)


class ServiceDecisions:
    """Decides about a service that is due, and again if the API server refuses what was decided.

    `warn` is given the uid of an object that cannot be read, or is another operator's too, and a sentence.
    """

    def __init__(
        self,
        queries: ServiceQueries,
        failures: RefusedWrites,
        settings: Settings,
        warn: Callable[[str, str], None],
    ) -> None:
        self._queries = queries
        self._failures = failures
        self._warn = warn
        self._settings = settings
        # By uid of the service: the memory that the API server held at a decision whose status was not worth a write, and the
        # memory after it. An operator that starts again need not know every window. A decision needs all: with an older
        # memory it would take its present window for all the time since.
        self._unwritten: dict[str, tuple[MemoryStatus | None, MemoryStatus | None]] = {}
        # By uid: when this process last decided.
        self._decided: dict[str, datetime] = {}
        # By namespace and name: every service, and its control.
        self._services: dict[tuple[str, str], SpeculativeService] = {}
        self._controls: dict[tuple[str, str], SpeculativeService] = {}
        # Generation and resume token: if a person changes them, refused writes are tried again at once.
        self._asked: dict[str, tuple[int, str]] = {}

    def rest(self) -> None:
        """Forget what was learned; another replica may decide meanwhile."""
        self._unwritten, self._decided = {}, {}

    def keep(self, world: Snapshot) -> None:
        """Forget services that are gone, and what was learned about those that are not valid any more."""
        valid, present = {service.metadata.uid for service in world.services}, world.manifests
        self._unwritten = {uid: last for uid, last in self._unwritten.items() if uid in valid}
        self._decided = {uid: at for uid, at in self._decided.items() if uid in valid}
        self._asked = {uid: asked for uid, asked in self._asked.items() if uid in present}
        named = {(one.metadata.namespace, one.metadata.name): one for one in world.services}
        controls = ((place, one) for place, one in named.items() if one.spec.control_of is not None)
        self._services = named
        # Of several the first by name.
        self._controls = {
            (namespace, str(one.spec.control_of)): one
            for (namespace, _), one in sorted(controls, key=lambda item: item[0], reverse=True)
        }

    def remembered(self, stored: SpeculativeService) -> SpeculativeService:
        """A service as the API server holds it, with what was learned since its status was written."""
        return with_unwritten(stored, self._unwritten.get(stored.metadata.uid))

    def decide(
        self, world: Snapshot, stored: SpeculativeService, now: datetime, *, may_roll: bool
    ) -> ServiceOutcome:
        """Decide about a service as the API server holds it; `may_roll`: the fleet has a place for a roll."""
        uid, service = stored.metadata.uid, self.remembered(stored)
        self._hurry(service, now)
        self._look_for_others(stored, now)
        observation = self._observed(world, service, now, may_roll=may_roll)
        outcome = reconcile(service, observation, now)
        outcome = replace(outcome, service=service, status=sharing(stored.status, outcome.status))
        if not any(isinstance(action, WriteStatus) for action in outcome.plan.actions):
            self._unwritten[uid] = stored.status.memory, outcome.status.memory
        return outcome

    def without(self, item: ServiceOutcome, refused: RefusedWrite, now: datetime) -> ServiceOutcome:
        """Decide again without a write that the API server refuses: what was announced is taken back, and the word is said.

        The status that announced it was written just now, so the second one is not bound to the version that was read.
        """
        service, observation = item.service, item.observation
        if isinstance(refused.action, WriteAnnotation) and item.otherwise is not None:
            service = service.with_status(item.otherwise)
            observation = replace(observation, written=item.status.to_json_object())
        failures = self._failures.about(service.metadata.uid, now)
        observation = replace(observation, failures=failures, may_roll=True)
        self._decided[service.metadata.uid] = now
        outcome = reconcile(service, observation, now)
        actions = tuple(
            replace(action, resource_version=None) if isinstance(action, WriteStatus) else action
            for action in outcome.plan.actions
        )
        plan = replace(outcome.plan, actions=actions)
        return replace(outcome, service=service, observation=item.observation, plan=plan)

    def _observed(
        self, world: Snapshot, service: SpeculativeService, now: datetime, *, may_roll: bool
    ) -> ServiceObservation:
        """The surroundings of a valid service: its target and pods, profiles and runs, and Prometheus' answers."""
        namespace, name = service.metadata.namespace, service.metadata.name
        runs = []
        for manifest in world.runs:
            if manifest["metadata"]["namespace"] == namespace and service_of(manifest) == name:
                try:
                    runs.append(read_run(manifest))
                except InputError as error:
                    self._warn(manifest["metadata"]["uid"], str(error))
        watch, control = self._queries.watch_of(service), self._controls.get((namespace, name))
        return ServiceObservation(
            workload=self._workload(world, service, now),
            managed_by=older_claim(world.claims.get(target_of(service), ()), claim_of(service)),
            fleet=world.answer(FLEET, watch) or FleetReading({}, frozenset(), "not asked"),
            roll=world.answer(ROLLS, watch),
            later=world.answer(LATER, watch),
            arrivals=world.answer(ARRIVALS, watch),
            guards=world.answer(GUARDS, self._queries.guards_of(service)) or {},
            first=world.firsts.get(service.metadata.uid),
            past=world.answer(PASTS, self._queries.past_of(service)),
            latencies=world.answer(LATENCIES, watch),
            prompts=world.answer(PROMPTS, watch),
            known_pods=world.pod_names.get(namespace, frozenset()),
            profiles=tuple(
                world.profiles.get(NamespacedName(namespace, service.spec.control_of or name), ())
            ),
            runs=tuple(
                sorted(runs, key=lambda run: (str(run.metadata.creation_timestamp or ""), run.metadata.name))
            ),
            claims=tuple(world.of(CLAIMS, namespace)),
            written=world.manifests[service.metadata.uid].get("status") or {},
            failures=self._failures.about(service.metadata.uid, now),
            target_problem=world.unreadable_targets.get(target_of(service)),
            timing=self._settings.timing,
            status_refresh_s=self._settings.status_refresh_s,
            may_roll=may_roll,
            gpu_price_per_hour=self._settings.gpu_price_per_hour,
            takes_proposals=self._settings.next_rollout == "true",
            controlled=self._services.get((namespace, service.spec.control_of or "")),
            control=self._control(world, service, control, now) if control is not None else None,
        )

    def _control(
        self, world: Snapshot, service: SpeculativeService, found: SpeculativeService, now: datetime
    ) -> StandingControl:
        reading = world.answer(CONTROLS, self._queries.watch_of(service))
        return StandingControl(self.remembered(found), self._workload(world, found, now), reading)

    def _workload(self, world: Snapshot, service: SpeculativeService, now: datetime) -> Workload | None:
        manifest = world.target_of(service)
        if manifest is None:
            return None
        return observe(
            kind_of(service.spec.target_ref),
            manifest,
            NearbyObjects(
                world.makers_of(service),
                world.target_pods(service),
                world.node_labels,
                world.lost_nodes,
                world.warnings,
            ),
            container_name=service.spec.target_ref.container_name,
            gpu_label=self._settings.gpu_label,
            now=now,
        )

    def _look_for_others(self, stored: SpeculativeService, now: datetime) -> None:
        """Warn if another operator decides about a service: its status says of a decision that this process did not make.

        Another installation has a Lease of its own, which may not be read from here.
        """
        meta, decision = stored.metadata, stored.status.decision
        last, self._decided[meta.uid] = self._decided.get(meta.uid), now
        if last is None or decision is None or decision.time is None or decision.time - last < _ROUNDED:
            return
        self._warn(
            meta.uid,
            f"SpeculativeService {meta.namespace}/{meta.name}: another operator decides about it, too: two installations of the "
            "chart watch this namespace; give each watchNamespaces of its own, or uninstall one",
        )

    def _hurry(self, service: SpeculativeService, now: datetime) -> None:
        """A changed spec or a new value of the resume annotation: what was refused is tried at once."""
        meta = service.metadata
        asked = (meta.generation or 0, meta.annotations.get(RESUME_ANNOTATION, ""))
        if self._asked.setdefault(meta.uid, asked) != asked:
            self._asked[meta.uid] = asked
            self._failures.hurry(meta.uid, now)


def with_unwritten(
    service: SpeculativeService, last: tuple[MemoryStatus | None, MemoryStatus | None] | None
) -> SpeculativeService:
    """The service with the memory of its last unwritten decision (second), if the first one is still what the API server holds."""
    status = service.status
    if last is None or status.workings is None or status.memory != last[0]:
        return service
    workings = status.workings.replace(memory=last[1])
    return service.with_status(status.replace(workings=workings))


def sharing(old: M, new: M) -> M:
    """`new`, made of the parts of `old` that are in it: two statuses that differ in a few figures take little more memory than one."""
    kept: M = _shared(old, new)
    return kept


def _shared(old: Any, new: Any) -> Any:
    if old is new or type(old) is not type(new):
        return new
    if hasattr(new, "model_fields_set"):
        # A model; most of its fields are empty in both.
        before, now = old.__dict__, new.__dict__
        parts = {
            name: part if before[name] is part else _shared(before[name], part) for name, part in now.items()
        }
        if all(part is before[name] for name, part in parts.items()):
            return old
        return new.model_copy(update={name: part for name, part in parts.items() if part is not now[name]})
    if old == new:
        return old
    if isinstance(new, tuple):
        # A list that moved on by one holds the same entries in other places, mostly the very objects.
        kept = {id(one) for one in old}
        return tuple(
            item if id(item) in kept else next((one for one in old if one == item), item) for item in new
        )
    return new
