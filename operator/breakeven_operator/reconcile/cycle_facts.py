"""Everything that a cycle found out about one service: the input of its status, events and log line."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from breakeven_operator.reconcile.calibration_state import Calibrated
from breakeven_operator.reconcile.case import Case
from breakeven_operator.reconcile.live_metrics import Live
from breakeven_operator.reconcile.objectives import Objectives
from breakeven_operator.reconcile.steps import RolloutStep
from breakeven_operator.reconcile.target import Refusal
from breakeven_operator.reconcile.verdict import Verdict
from breakeven_operator.refused_writes import RefusedWrite
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.updatepolicy import Timing
from breakeven_operator.workloads.running_arm import RunningArm
from breakeven_operator.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class CycleFacts:
    """Everything a cycle found out about one service.

    Attributes:
        service: with the schedules that were measured for it.
        workload: the target; None if it is not there.
        calibrated: the profile in force.
        step: state of a change of arm after this cycle.
        verdict: of this cycle.
        cannot_roll: why the target is not rolled, at any time; None: it may be.
        now: time of the observation.
        timing: times of the installation.
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

    @property
    def running(self) -> RunningArm | None:
        """The arm that the target's template asks for."""
        return self.case.running if self.case is not None else None

    @property
    def live(self) -> Live | None:
        """Present figures, or why there are none."""
        return self.case.live if self.case is not None else None

    @property
    def objectives(self) -> Objectives | None:
        """Latencies that users see against the service's objectives; None without objectives."""
        return self.case.objectives if self.case is not None else None

    @property
    def refused(self) -> RefusedWrite | None:
        """The write that the API server refuses and that keeps the operator from its work; the oldest of several."""
        return min((one for one in self.failures if one.refused), key=lambda one: one.since, default=None)
