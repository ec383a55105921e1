"""One service of a cycle, read and understood: the input of everything that is decided about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from breakeven.arm import Arm
from breakeven.profile import Profile
from breakeven.serving.plausibility import EngineLimits
from breakeven_operator.reconcile.calibration_state import Calibrated
from breakeven_operator.reconcile.first_answer import FirstAnswer
from breakeven_operator.reconcile.live_metrics import Live
from breakeven_operator.reconcile.objectives import Objectives
from breakeven_operator.reconcile.roll_windows import settled
from breakeven_operator.reconcile.scaling import FleetNeed
from breakeven_operator.reconcile.steps import RollCost, RolloutContext, RolloutStep
from breakeven_operator.resources import SpeculativeService, SpeculativeServiceSpec
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.workloads.running_arm import RunningArm
from breakeven_operator.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class Case:
    """A service whose target can be looked at.

    Attributes:
        service: as the API server holds it, with the schedules that were measured for it.
        context: of a change of arm: target, memory, roll under way, time.
        calibrated: the profile in force.
        running: the arm that the target's template asks for.
        live: present figures, or why there are none.
        engine_limits: what the engine's command line allows.
        objectives: latencies that users see against the service's objectives; None without objectives.
        need: replicas that the load needs; None before it was worked out.
        first: what the past says while there is no profile; None: it is not asked, or there is one.
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

    @property
    def spec(self) -> SpeculativeServiceSpec:
        """Of the service."""
        return self.service.spec

    @property
    def workload(self) -> Workload:
        """The target."""
        return self.context.workload

    @property
    def memory(self) -> MemoryStatus:
        """The status' memory as this cycle has it by now."""
        return self.context.memory

    @property
    def now(self) -> datetime:
        """Time of the observation."""
        return self.context.now

    @property
    def profile(self) -> Profile | None:
        """The profile in force."""
        return self.calibrated.profile

    @property
    def measured_arm(self) -> Arm | None:
        """The arm by whose measurements the running one is judged; None if the running one is unknown."""
        return self.running.measured_instead or self.running.arm

    @property
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
