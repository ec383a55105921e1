"""The only writer: carries out an ActionPlan action by action, or prints it.

Before every single action it asks whether this replica still leads; between a decision and its last write a Lease can
be lost. What failed is left for the next cycle, which sees the world as it then is.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any

from breakeven.printable import printable
from breakeven.serving.opt_in import ANNOTATION
from breakeven_operator.actions import (
    Action,
    ActionPlan,
    Apply,
    Create,
    Delete,
    DoneFit,
    EmitEvent,
    Fit,
    WriteAnnotation,
    WriteProposal,
    WriteStatus,
)
from breakeven_operator.cluster.api_json import problem_of
from breakeven_operator.cluster.cluster_objects import ClusterObjects
from breakeven_operator.cluster.fitter import FitTurns
from breakeven_operator.kinds import EVENTS, NEXT_ANNOTATION, NEXT_MANAGER, PROFILES, Ref
from breakeven_operator.ports import (
    Clock,
    Cluster,
    ClusterError,
    FieldConflictError,
    Manifest,
    StaleObjectError,
    UnkeptError,
)
from breakeven_operator.refused_writes import RefusedWrite, RefusedWrites, named
from breakeven_operator.workloads.known import KINDS

_LOG = logging.getLogger(__name__)
_NOTE_LENGTH = 1024
# The same word about the same object is one Event for so long, and its count is renewed at most so often.
_SERIES = timedelta(minutes=30)
_RENEWAL = timedelta(minutes=5)


@dataclass(slots=True)
class _Told:
    """An Event on record: its name and uid, how often and when it was said last, and when the record was written."""

    name: str
    uid: str
    count: int
    last: datetime
    written: datetime


@dataclass(slots=True)
class WriteResult:
    """Outcome of a plan.

    Attributes:
        done: actions that took effect (in a dry run: none).
        error: why the rest was left; None if all was done.
        conflict: field managers that own what was to be written.
        failed: the write that was tried and failed. waiting: the write that was not tried, because it failed a moment ago.
        unsaid: why Events were not recorded; nothing waits for them.
    """

    plan: ActionPlan
    done: list[Action] = field(default_factory=list)
    error: ClusterError | None = None
    conflict: tuple[str, ...] = ()
    fits: list[DoneFit] = field(default_factory=list)
    failed: RefusedWrite | None = None
    waiting: RefusedWrite | None = None
    unsaid: list[RefusedWrite] = field(default_factory=list)


class DryRun:
    """Shows what plans would do, one line per action, and does nothing."""

    dry = True

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self.failures = RefusedWrites()

    async def carry_out(self, plan: ActionPlan) -> WriteResult:
        """Show what would be done."""
        for action in plan.actions:
            self._show(f"{plan.subject}: {describe(action)}")
        return WriteResult(plan)


class Writer:
    """Carries out plans; `may_act` says before every action whether this replica leads.

    `objects` learn what the API server answers; `reporter` is the name of this replica in Events.
    """

    dry = False

    def __init__(
        self,
        cluster: Cluster,
        fits: FitTurns,
        clock: Clock,
        objects: ClusterObjects,
        *,
        may_act: Callable[[], bool],
        reporter: str,
    ) -> None:
        self._cluster = cluster
        self._fits = fits
        self._clock = clock
        self._objects = objects
        self._may_act = may_act
        self._reporter = reporter
        # Events that count up, by subject, reason and what they are about, and a digit that tells two of one microsecond apart.
        self._told: dict[tuple[str, str, str], _Told] = {}
        self._serial = itertools.count()
        self.failures = RefusedWrites()

    async def carry_out(self, plan: ActionPlan) -> WriteResult:
        """Do what a plan says, in order, until the first failure."""
        result = WriteResult(plan)
        for action in plan.actions:
            if not self._may_act():
                result.error = ClusterError("this replica does not lead any more")
                break
            waiting = self.failures.waiting(action, self._clock.now())
            if waiting is not None and not isinstance(action, EmitEvent):
                result.error, result.waiting = ClusterError(waiting.sentence), waiting
                break
            try:
                await self._do(action, result)
            except FieldConflictError as error:
                result.error, result.conflict = error, error.managers
                break
            except StaleObjectError as error:
                result.error = error
                break
            except ClusterError as error:
                result.error = error
                result.failed = self.failures.failed(plan.subject.uid, action, error, self._clock.now())
                break
            result.done.append(action)
        return result

    async def _do(self, action: Action, result: WriteResult) -> None:
        match action:
            case WriteAnnotation():
                await self._write_annotation(action)
            case WriteProposal():
                await self._propose(action)
            case WriteStatus():
                await self._write_status(action)
            case EmitEvent():
                await self._say(action, result)
                return
            case Create():
                await self._create(action)
            case Apply(resource, body):
                self._objects.adopt(resource, await self._cluster.apply(resource, body, force=True))
            case Delete():
                await self._delete(action)
            case Fit():
                outcome = await self._fits.outcome(action)
                if outcome is not None:
                    result.fits.append(DoneFit(action, outcome))
        self.failures.succeeded(action)

    async def _say(self, action: EmitEvent, result: WriteResult) -> None:
        """Record an Event. One that is refused is lost: nothing waits for it, and a change says itself once more."""
        now = self._clock.now()
        waiting = self.failures.waiting(action, now)
        if waiting is not None and waiting.refused:
            return
        try:
            await self._emit(action)
        except ClusterError as error:
            result.unsaid.append(self.failures.failed(action.ref.uid, action, error, now))
        else:
            self.failures.succeeded(action)

    async def _create(self, action: Create) -> None:
        if action.known_profiles is not None:
            await self._check_profiles(action.body, action.known_profiles)
        try:
            answer = await self._cluster.create(action.resource, action.body)
        except ClusterError as error:
            # Its name follows from its cause, so one that exists is this one.
            if error.status != HTTPStatus.CONFLICT:
                raise
        else:
            self._objects.adopt(action.resource, answer)

    async def _check_profiles(self, run: Manifest, known: frozenset[str]) -> None:
        """Refuse a run if a profile came that the decision did not know: another watch may bring it late, and a run costs GPUs."""
        namespace, name = run["metadata"]["namespace"], run["spec"]["serviceRef"]["name"]
        for profile in await self._cluster.list_all(PROFILES, namespace):
            if problem_of(profile) is not None:
                continue
            self._objects.adopt(PROFILES, profile)
            of = ((profile.get("spec") or {}).get("serviceRef") or {}).get("name")
            if of == name and profile["metadata"]["uid"] not in known:
                raise StaleObjectError(
                    f"SpeculationProfile {namespace}/{profile['metadata']['name']} was not known when "
                    f"{run['metadata']['name']} was decided upon"
                )

    async def _delete(self, action: Delete) -> None:
        ref = action.ref
        left = await self._cluster.delete(ref, action.resource_version)
        if left is None:
            self._objects.forget(ref)
        else:
            self._objects.adopt(ref.resource, left)

    async def _write_annotation(self, action: WriteAnnotation) -> None:
        target, kind = action.target, KINDS[action.target.resource]
        # A watch may lag behind: if the spec has changed since the decision, the next cycle decides again.
        meant = await self._cluster.get(kind.resource, target.namespace, target.name)
        generation = ((meant or {}).get("metadata") or {}).get("generation")
        before = kind.value_of(meant or {})
        if generation != action.generation:
            raise StaleObjectError(
                f"{target}: is of generation {generation}, decided upon {action.generation}"
            )
        body: dict[str, Any] = {
            # With the uid, a workload of the same name that was made meanwhile is not touched, nor one created.
            "metadata": {"namespace": target.namespace, "name": target.name, "uid": target.uid},
            **kind.change(meant or {}, action.value),
        }
        await self._cluster.apply(kind.resource, body, force=action.force)
        # An admission webhook or another writer may have changed it on its way: what stands there is what counts.
        found = await self._cluster.get(kind.resource, target.namespace, target.name)
        value = kind.value_of(found or {})
        if found is not None:
            self._objects.adopt(kind.resource, found)
        if value != action.value:
            said = f"{target}: wrote {action.value!r}, read back {value!r}"
            # A webhook that keeps the old value there has refused. Another writer who put it back has made a generation more.
            now = ((found or {}).get("metadata") or {}).get("generation") or 0
            kept = value == before and now < action.generation + 2
            raise UnkeptError(said) if kept else ClusterError(said)

    async def _propose(self, action: WriteProposal) -> None:
        target, resource = action.target, KINDS[action.target.resource].resource
        meta: dict[str, Any] = {"namespace": target.namespace, "name": target.name, "uid": target.uid}
        if action.text is not None:
            meta["annotations"] = {NEXT_ANNOTATION: action.text}
        found = await self._cluster.apply(resource, {"metadata": meta}, force=True, manager=NEXT_MANAGER)
        self._objects.adopt(resource, found)

    async def _write_status(self, action: WriteStatus) -> None:
        ref = action.ref
        meta: dict[str, Any] = {"namespace": ref.namespace, "name": ref.name}
        if ref.uid:
            meta["uid"] = ref.uid
        if action.resource_version is not None:
            meta["resourceVersion"] = action.resource_version
        body = {"metadata": meta, "status": dict(action.status)}
        answer = await self._cluster.apply(
            ref.resource, body, force=True, subresource="status", manager=action.manager
        )
        self._objects.adopt(ref.resource, answer)

    async def _emit(self, action: EmitEvent) -> None:
        now = self._clock.now()
        self._told = {key: told for key, told in self._told.items() if now - told.last < _SERIES}
        key = (str(action.ref), action.reason, action.about)
        if action.throttled and key in self._told:
            await self._count(action.ref, key, now)
            return
        ref = action.ref
        stamp = _event_time(now)
        name = f"{ref.name[:200]}.{int(now.timestamp() * 1e6):x}{next(self._serial) % 16:x}"
        body = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"namespace": ref.namespace, "name": name},
            "eventTime": stamp,
            "reportingController": "breakeven.dev/operator",
            "reportingInstance": self._reporter[:128],
            "action": action.reason,
            "reason": action.reason,
            "regarding": {
                "apiVersion": ref.resource.api_version,
                "kind": ref.resource.kind,
                "namespace": ref.namespace,
                "name": ref.name,
                "uid": ref.uid,
            },
            "note": printable(action.message)[:_NOTE_LENGTH],
            "type": "Warning" if action.warning else "Normal",
        }
        answer = await self._cluster.create(EVENTS, body)
        uid = str((answer["metadata"] or {}).get("uid", ""))
        self._told[key] = _Told(name, uid, 1, now, now)

    async def _count(self, ref: Ref, key: tuple[str, str, str], now: datetime) -> None:
        """Say it once more by the Event that says it already."""
        told = self._told[key]
        told.count += 1
        told.last = now
        # The second time shows that it is a series.
        if told.count > 2 and now - told.written < _RENEWAL:
            return
        told.written = now
        body = {
            # The uid keeps the apply from making an expired Event again from half of its fields.
            "metadata": {"namespace": ref.namespace, "name": told.name, "uid": told.uid},
            "series": {"count": told.count, "lastObservedTime": _event_time(now)},
        }
        try:
            await self._cluster.apply(EVENTS, body)
        except ClusterError as error:
            # The Event is gone, or patching is not allowed: the next time it is recorded as new.
            self._told.pop(key, None)
            _LOG.info("event %s on %s not counted: %s", key[1], ref, error)


def _event_time(now: datetime) -> str:
    return now.isoformat(timespec="microseconds").replace("+00:00", "Z")


def describe(action: Action) -> str:  # noqa: PLR0911 - one line per kind of action
    """One line that says what an action would do."""
    match action:
        case WriteAnnotation(target, value, force=force):
            return f"set {ANNOTATION} of {target} to {value or 'nothing'}{' by force' if force else ''}"
        case WriteProposal(target, text):
            return f"set {NEXT_ANNOTATION} of {target} to {text or 'nothing'}"
        case WriteStatus(ref, status):
            decision = status.get("decision") or {}
            words = " ".join(str(decision[key]) for key in ("action", "arm", "reason") if key in decision)
            return f"write the status of {ref}{f': {words}' if words else ''}"
        case EmitEvent(ref, reason, message):
            return f"say on {ref}: {reason}: {message}"
        case Create(resource, body):
            return f"create {named(resource, body)}"
        case Apply(resource, body):
            return f"apply {named(resource, body)}"
        case Delete(ref):
            return f"delete {ref}"
        case Fit(run, points):
            return f"fit {len(points.splitlines()) - 1} points of {run}"
