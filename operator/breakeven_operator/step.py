"""What one cycle does about a service: its change of arm, what that is judged by and its state afterwards, and its profile.

A change leaves events and lines of the history; a profile that is wanted leaves a run to create.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from breakeven.profile import Profile
from breakeven.reasons import Reason
from breakeven_operator.actions import Create, EmitEvent, WriteAnnotation
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import NamespacedName, Ref
from breakeven_operator.refused_writes import RefusedWrite
from breakeven_operator.resources import CalibrationRun, SpeculativeService
from breakeven_operator.resources.calibrationrun import Trigger
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.servicestatus import (
    CalibrationStatus,
)
from breakeven_operator.resources.targetstatus import (
    MOST_HISTORY,
    HistoryEntry,
    HistoryResult,
    PromiseAndMeasurement,
    Rollout,
    RolloutPhase,
)
from breakeven_operator.resources.updatepolicy import Mode, Timing
from breakeven_operator.workloads.workload import Workload

NO_FAILURES: dict[str, object] = {
    "failures": 0,
    "disproved": 0,
    "disproved_profile": None,
    "backoff_until_time": None,
    "backoff_reason": None,
}
"""Fields of the memory about failed rolls, after a roll was confirmed or a person ended the back-off."""


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """State of a change of arm after this cycle, and what is to be written and said.

    Attributes:
        rollout: for the status; None if none is under way.
        ended: changes that ended in this cycle, for the history.
        write: the annotation to write after the status.
        otherwise: the step to go on from if the API server refuses it; None for this one, whose write stays due.
        reason, message: what is going on; None if nothing is.
        busy: no new change may begin.
    """

    rollout: Rollout | None
    memory: MemoryStatus
    ended: tuple[HistoryEntry, ...] = ()
    write: WriteAnnotation | None = None
    events: tuple[EmitEvent, ...] = ()
    reason: ClusterReason | None = None
    message: str = ""
    busy: bool = False
    otherwise: RolloutStep | None = None

    @property
    def leads_to(self) -> str | None:
        """Name of the arm that a change under way leads to; None if none is under way, or it names none."""
        if self.rollout is None:
            return None
        return self.rollout.from_arm if self.rollout.phase is RolloutPhase.UNDOING else self.rollout.to_arm

    def history(self, earlier: tuple[HistoryEntry, ...]) -> tuple[HistoryEntry, ...]:
        """Changes that have ended, this cycle's and earlier ones, as the status keeps them: the newest one first."""
        return (*reversed(self.ended), *earlier)[:MOST_HISTORY]

    def then(self, later: RolloutStep) -> RolloutStep:
        """Two steps of one cycle as one: the later one decides; ended changes and events of both are kept."""
        return replace(
            later,
            ended=(*self.ended, *later.ended),
            events=(*self.events, *later.events),
            write=later.write or self.write,
        )

    def held(self, refusal: RefusedWrite) -> RolloutStep:
        """This step while its write waits, because the API server has refused it: nothing of it is done or announced."""
        return replace(
            self.otherwise or self,
            write=None,
            otherwise=None,
            events=(),
            reason=refusal.reason,
            message=refusal.sentence,
            busy=True,
        )


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """Facts by which a change of arm is judged.

    Attributes:
        service: the service, about which events are recorded.
        may_write: mode RollingUpdate and not paused: without it a change is watched and nothing is written.
        startup_s: longest known start of this engine, s; None if never seen.
        place_s: how long a new pod may wait for room, s.
        deadline_s: how long a roll may take by the service's spec, s; None if it does not say.
        outlived: why the value of an undo belongs to another template; None if it belongs to this one.
    """

    timing: Timing
    workload: Workload
    memory: MemoryStatus
    rollout: Rollout | None
    may_write: bool
    startup_s: float | None
    place_s: float = 900.0
    deadline_s: float | None = None
    outlived: str | None = None
    now: datetime = field(kw_only=True)
    service: Ref = field(kw_only=True)

    def event(self, reason: Reason | ClusterReason, message: str, *, warning: bool = False) -> EmitEvent:
        """An event of the service that is to be recorded."""
        return EmitEvent(self.service, str(reason), message, warning)

    def step(
        self, reason: ClusterReason, message: str, *, warning: bool = False, busy: bool = True, **parts: Any
    ) -> RolloutStep:
        """A step that says what goes on, in an event too; without other parts no change is under way after it."""
        event = self.event(reason, message, warning=warning)
        known = {"rollout": None, "memory": self.memory, **parts}
        return RolloutStep(**known, events=(event,), reason=reason, message=message, busy=busy)

    @classmethod
    def of(
        cls,
        service: SpeculativeService,
        workload: Workload,
        startup_s: float | None,
        timing: Timing,
        now: datetime,
    ) -> RolloutContext:
        """The context of a service's change of arm before anything of this cycle has happened."""
        policy = service.spec.update_policy
        return cls(
            timing=timing,
            workload=workload,
            memory=service.status.memory or MemoryStatus(),
            rollout=service.status.rollout,
            may_write=policy.mode is Mode.ROLLING_UPDATE and not service.spec.paused,
            startup_s=startup_s,
            deadline_s=policy.roll_deadline_seconds,
            place_s=service.spec.calibration.pending_deadline_seconds,
            now=now,
            service=service.ref,
        )


def ended(context: RolloutContext, result: HistoryResult, message: str) -> tuple[HistoryEntry, ...]:
    """The change that is under way, or its measurement, as a line of the history; nothing without one."""
    rollout = context.rollout
    return () if rollout is None else (ended_roll(rollout, result, message, context.now),)


def ended_roll(rollout: Rollout, result: HistoryResult, message: str, now: datetime) -> HistoryEntry:
    """A change as a line of the history, with what was measured of it so far."""
    started, finished = rollout.started_time, rollout.finished_time or now
    return HistoryEntry(
        **{name: getattr(rollout, name) for name in PromiseAndMeasurement.model_fields},
        time=now,
        from_arm=rollout.from_arm,
        to_arm=rollout.to_arm,
        reason=rollout.reason,
        result=result,
        seconds=(finished - started).total_seconds() if started else None,
        message=message[:1024],
    )


# Requests that waited through the roll are worked off in so many windows.
_SETTLED_WINDOWS = 2


def windows_since(context: RolloutContext, rollout: Rollout, window_s: float) -> float:
    """Windows since all pods ran the new arm; below 0 before."""
    if rollout.finished_time is None:
        return -1.0
    return (context.now - rollout.finished_time).total_seconds() / window_s


def settled(context: RolloutContext, window_s: float) -> bool:
    """Whether a window's mean latency belongs to its load: not while it holds what a roll has left behind."""
    rollout = context.rollout
    return rollout is None or windows_since(context, rollout, window_s) > _SETTLED_WINDOWS


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """A SpeculationProfile, parsed once; `profile` is None if it cannot be read, and `problem` says why.

    Attributes:
        arms: names of the arms that were measured, or tried in vain.
        model, image: of the template that was measured, as its manifest names them; None if the profile does not say.
        failed: arms that could not be measured, each with the word why.
        drafters: mark of each arm's drafter; none for a profile that names arms alone.
    """

    name: str
    uid: str
    service: NamespacedName
    fingerprint: str
    gpu_product: str
    created: datetime
    arms: frozenset[str]
    profile: Profile | None
    problem: str | None = None
    in_force: bool | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    image: str | None = None
    drafters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Calibrated:
    """Where a service stands with its profile.

    Attributes:
        entry: the profile in force; None without one that may be used.
        reason, message: of the condition Calibrated.
        run: the unfinished run, None if none is.
        ended: runs that ended since the last cycle and are accounted for in `status`.
        former: the newest profile of the same model and GPU class, if none is in force: an arm is left on its word, and no arm
            entered.
    """

    entry: ProfileEntry | None
    reason: ClusterReason
    message: str
    run: CalibrationRun | None
    create: Create | None
    trigger: Trigger | None
    status: CalibrationStatus
    recalibrate: str | None
    ended: tuple[CalibrationRun, ...] = ()
    former: ProfileEntry | None = None

    @cached_property
    def profile(self) -> Profile | None:
        """The profile in force, as it was read."""
        return self.entry.profile if self.entry is not None else None

    @cached_property
    def profile_name(self) -> str | None:
        """Name of the profile in force."""
        return self.entry.name if self.entry is not None else None
