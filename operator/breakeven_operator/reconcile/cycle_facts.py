"""Everything that a cycle found out about one service: the input of its status, events and log line."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from breakeven_operator.reconcile.active_profile import Calibrated
from breakeven_operator.reconcile.decide import Choice
from breakeven_operator.reconcile.gpu_classes import GpuClass
from breakeven_operator.reconcile.live_metrics import Live
from breakeven_operator.reconcile.objectives import Objectives
from breakeven_operator.reconcile.scaling import FleetNeed
from breakeven_operator.reconcile.steps import RolloutStep
from breakeven_operator.reconcile.target import Refusal
from breakeven_operator.reconcile.verdict import Verdict
from breakeven_operator.refused_writes import RefusedWrite
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.workloads.running_arm import RunningArm
from breakeven_operator.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class CycleFacts:
    """Everything a cycle found out about one service.

    Attributes:
        failures: writes for it that failed, and have not succeeded since.
        classes: GPU classes of the target's pods, if there are several.
        first_token_s: of a pair with figures: measured time (s) to the first token.
    """

    service: SpeculativeService
    workload: Workload | None
    running: RunningArm | None
    calibrated: Calibrated
    live: Live | None
    step: RolloutStep
    choice: Choice
    verdict: Verdict
    cannot_roll: Refusal | None
    now: datetime
    need: FleetNeed | None = None
    objectives: Objectives | None = None
    failures: tuple[RefusedWrite, ...] = ()
    classes: tuple[GpuClass, ...] = ()
    first_token_s: float | None = None

    @property
    def refused(self) -> RefusedWrite | None:
        """The write that the API server refuses and that keeps the operator from its work; the oldest of several."""
        return min((one for one in self.failures if one.refused), key=lambda one: one.since, default=None)
