"""One service of a cycle, read and understood: the input of everything that is decided about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from breakeven.arm import Arm
from breakeven.profile import Profile
from breakeven.serving.growths import EngineLimits
from breakeven_operator.ports import Manifest
from breakeven_operator.reconcile.calibration_state import Calibrated, ProfileEntry
from breakeven_operator.reconcile.formatting import Verdict
from breakeven_operator.reconcile.latency_metrics import LatencyReading
from breakeven_operator.reconcile.live_metrics import FleetReading, Live
from breakeven_operator.reconcile.objectives import Objectives
from breakeven_operator.reconcile.past_metrics import FirstAnswer, PastReading
from breakeven_operator.reconcile.roll_failures import LaterReading, RollAnswer
from breakeven_operator.reconcile.roll_metrics import RollReading
from breakeven_operator.reconcile.scaling import FleetNeed
from breakeven_operator.reconcile.steps import RollCost, RolloutContext, RolloutStep, settled
from breakeven_operator.reconcile.target import Refusal
from breakeven_operator.refused_writes import RefusedWrite
from breakeven_operator.resources import CalibrationRun, SpeculativeService, SpeculativeServiceSpec
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.updatepolicy import PRODUCTION, Timing
from breakeven_operator.workloads.running_arm import RunningArm
from breakeven_operator.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class ServiceObservation:
    """One service's surroundings; answers of Prometheus are None if it was not asked.

    Attributes:
        workload: the target; None if there is none.
        managed_by: an older SpeculativeService on the same target.
        known_pods: names of all pods of the namespace.
        runs: CalibrationRuns of this service that are unfinished or not yet accounted for.
        later: requests after the last roll.
        arrivals: when requests came.
        claims: PersistentVolumeClaims of its namespace, if the target mounts any and they may be read.
        written: the service's status as the API server holds it.
        failures: writes for this service that failed, and have not succeeded since.
        target_problem: why the target's object could not be read; None if it could, or there is none.
    """

    workload: Workload | None
    managed_by: str | None
    fleet: FleetReading
    known_pods: frozenset[str]
    profiles: Sequence[ProfileEntry] = ()
    runs: Sequence[CalibrationRun] = ()
    past: PastReading | None = None
    latencies: LatencyReading | None = None
    roll: RollAnswer | None = None
    later: LaterReading | None = None
    arrivals: RollReading | None = None
    first: FirstAnswer | None = None
    claims: Sequence[Manifest] = ()
    written: Mapping[str, Any] = field(default_factory=dict)
    failures: Sequence[RefusedWrite] = ()
    target_problem: str | None = None
    timing: Timing = PRODUCTION


@dataclass(frozen=True, slots=True)
class CycleLimits:
    """The operator's own settings that decisions use: how often figures of a status are renewed, and what a GPU costs.

    `may_roll` is whether the fleet's number of rolls at a time allows another one. Without a price a status says no money.
    """

    status_refresh_s: float = 60.0
    may_roll: bool = True
    gpu_price_per_hour: float | None = None


@dataclass(frozen=True)
class Case:
    """A service whose target can be looked at, with the schedules that were measured for it.

    The target's template asks for the `running` arm. `need` is None before it was worked out, `objectives` if there are none, and
    `first`, the past's answer, if there is a profile.
    """

    service: SpeculativeService
    context: RolloutContext
    calibrated: Calibrated
    running: RunningArm
    live: Live
    engine_limits: EngineLimits
    objectives: Objectives | None = None
    need: FleetNeed | None = None
    first: FirstAnswer | None = None

    @cached_property
    def spec(self) -> SpeculativeServiceSpec:
        """Of the service."""
        return self.service.spec

    @cached_property
    def workload(self) -> Workload:
        """The target."""
        return self.context.workload

    @cached_property
    def memory(self) -> MemoryStatus:
        """The status' memory as this cycle has it by now."""
        return self.context.memory

    @cached_property
    def now(self) -> datetime:
        """Time of the observation."""
        return self.context.now

    @cached_property
    def profile(self) -> Profile | None:
        """The profile in force."""
        return self.calibrated.profile

    @cached_property
    def measured_arm(self) -> Arm | None:
        """The arm by whose measurements the running one is judged; None if the running one is unknown."""
        return self.running.measured_instead or self.running.arm

    @cached_property
    def settled(self) -> bool:
        """Whether the window's mean latency belongs to its load and arm: not while it holds what a roll has left behind."""
        return not self.running.former_drafter and settled(
            self.context, self.spec.metrics_source.window_seconds
        )

    @property
    def scaled(self) -> bool:
        """Whether an autoscaler scales the target."""
        return self.need is not None and self.need.scaled_by is not None

    @property
    def roll_cost(self) -> RollCost:
        """Each replica is away for one start-up, however many batches a roll has: more of them take fewer at a time."""
        target = self.workload
        away = min(target.max_unavailable / target.desired, 1.0) if target.desired else 0.0
        return RollCost(self.context.startup_s, away)

    def after(self, step: RolloutStep) -> Case:
        """The same once a step of the change under way is made."""
        return replace(self, context=replace(self.context, memory=step.memory, rollout=step.rollout))

    def remembering(self, memory: MemoryStatus) -> Case:
        """The same with another memory."""
        return replace(self, context=replace(self.context, memory=memory))


@dataclass(frozen=True)
class CycleFacts:
    """Everything a cycle found out about one service: the input of its status, events and log line.

    Attributes:
        service: with the schedules that were measured for it.
        step: state of a change of arm after this cycle.
        cannot_roll: why the target is not rolled, at any time; None if it may be.
        case: None if the target cannot be looked at.
        failures: writes for it that failed, and have not succeeded since.
    """

    service: SpeculativeService
    workload: Workload | None
    calibrated: Calibrated
    step: RolloutStep
    verdict: Verdict
    cannot_roll: Refusal | None
    now: datetime
    timing: Timing
    case: Case | None = None
    failures: tuple[RefusedWrite, ...] = ()

    @cached_property
    def running(self) -> RunningArm | None:
        """The arm that the target's template asks for."""
        return self.case.running if self.case is not None else None

    @cached_property
    def live(self) -> Live | None:
        """Present figures, or why there are none."""
        return self.case.live if self.case is not None else None

    @cached_property
    def objectives(self) -> Objectives | None:
        """Latencies that users see against the service's objectives; None without objectives."""
        return self.case.objectives if self.case is not None else None

    @cached_property
    def refused(self) -> RefusedWrite | None:
        """The write that the API server refuses and that keeps the operator from its work; the oldest of several."""
        return min((one for one in self.failures if one.refused), key=lambda one: one.since, default=None)
