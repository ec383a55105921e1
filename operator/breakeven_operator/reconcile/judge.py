"""From figures, profile and policy to the verdict of a cycle; `gates` says what keeps a due change from being made.

Order: what is under way, what a person ordered (Disabled, a pinned arm, paused), whether there is a profile, and only
then the figures.
"""

from __future__ import annotations

from dataclasses import replace

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.deciding import Action, Decision, sentence
from breakeven.errors import BreakevenError
from breakeven.reasons import Reason
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.case import Case
from breakeven_operator.reconcile.decide import choose, forget_candidate
from breakeven_operator.reconcile.leaving import why_leave
from breakeven_operator.reconcile.roll_failures import LaterReading
from breakeven_operator.reconcile.steps import RolloutStep
from breakeven_operator.reconcile.verdict import HOLD, STAY, SWITCH, Verdict
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.decisionstatus import Basis
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.rolloutstatus import RolloutPhase
from breakeven_operator.resources.updatepolicy import Mode
from breakeven_operator.workloads.running_arm import RunningArm


def judge(case: Case, step: RolloutStep, later: LaterReading | None = None) -> tuple[Verdict, MemoryStatus]:
    """The verdict before anything that only forbids acting on it, and the memory that it leaves.

    Args:
        case: of the service.
        step: what is under way.
        later: requests on the arm since its roll; None: Prometheus was not asked.
    """
    memory = forget_candidate(case.memory)
    running, policy = case.running, case.spec.update_policy
    arm = running.arm
    if arm is None:
        problem = running.problem or "the running arm cannot be told"
        return Verdict(HOLD, None, ClusterReason.ENGINE_CONFIG_REFUSED, problem), memory
    if step.busy and step.reason is not None:
        return Verdict(HOLD, _aim(case.service, step) or arm, step.reason, step.message), memory
    leave = why_leave(case.context, running, later)
    if leave is not None and policy.mode is not Mode.DISABLED and policy.pinned_arm is None:
        return Verdict(SWITCH, NO_SPECULATION, leave.reason, f"{arm} is left: {leave.message}"), memory
    decision, basis, doubt = None, Basis.MEASURED, None
    if case.live.usable and case.live.figures is not None:
        try:
            if case.profile is not None:
                decision, memory = choose(case, case.profile)
            elif case.first is not None and case.first.profile is not None:
                # Laws of a past give figures to show. Nothing of them is remembered.
                (decision, _), basis = choose(case, case.first.profile), Basis.PAST
        except BreakevenError as error:
            doubt = str(error)
    return replace(_said(case, arm, decision, doubt), decision=decision, basis=basis), memory


def _said(case: Case, arm: Arm, decision: Decision | None, doubt: str | None) -> Verdict:
    """The order of a person, else the reason why the library was not asked, else its answer."""
    policy = case.spec.update_policy
    if policy.mode is Mode.DISABLED:
        return Verdict(HOLD, arm, ClusterReason.DISABLED, f"mode Disabled decides nothing; {_keeping(arm)}")
    if policy.pinned_arm is not None:
        return _pinned(case, policy.pinned_arm, arm)
    unasked = _unasked(case, arm, doubt)
    if unasked is not None:
        return unasked
    if decision is None:
        return Verdict(HOLD, arm, case.live.reason, f"{case.live.message}; {_keeping(arm)}")
    return _answered(decision, case.running)


def _unasked(case: Case, arm: Arm, doubt: str | None) -> Verdict | None:
    """The verdict if there is no law to answer from; None: there is one."""
    state, running = case.calibrated, case.running
    if state.profile is None:
        reason = ClusterReason.PAUSED if case.spec.paused else state.reason
        told = f"; {case.first.sentence}" if case.first is not None else ""
        return Verdict(HOLD, arm, reason, f"{state.message}{told}; {_keeping(arm)}")
    if running.foreign_schedule and running.measured_instead is None:
        message = f"the target runs the schedule {running.schedule}, which nobody has measured"
        return Verdict(HOLD, arm, ClusterReason.SCHEDULE_NOT_MEASURED, f"{message}; {_keeping(arm)}")
    if doubt is not None:
        return Verdict(HOLD, arm, Reason.NO_BELIEVABLE_FIT, f"{doubt}; {_keeping(arm)}")
    return None


def _answered(decision: Decision, running: RunningArm) -> Verdict:
    """The library's answer as a verdict."""
    action = {Action.STAY: STAY, Action.SWITCH: SWITCH, Action.HOLD: HOLD}[decision.action]
    verdict = Verdict(action, decision.arm, decision.reason, sentence(decision))
    return _onto_what_was_measured(verdict, running)


def _onto_what_was_measured(verdict: Verdict, running: RunningArm) -> Verdict:
    """A target that would stay on a schedule of its own is changed to the schedule that was measured.

    A calibration makes another schedule than the running one only if it is better by more than noise.
    """
    if running.measured_instead is None or verdict.action != STAY:
        return verdict
    message = (
        f"the target runs the schedule {running.schedule} and another one was measured; {verdict.message}"
    )
    return Verdict(SWITCH, running.measured_instead, ClusterReason.SCHEDULE_NOT_MEASURED, message)


def _keeping(arm: Arm) -> str:
    return f"keeping {arm if arm.k else 'no speculation'}"


def _pinned(case: Case, name: str, running: Arm) -> Verdict:
    """A pinned arm is a person's choice of *which* arm; that it starts and serves must have been seen all the same."""
    asks, wanted, state = f"pinnedArm asks for {name}", case.spec.candidates.named(name), case.calibrated
    if wanted is not None and wanted == running:
        return Verdict(STAY, wanted, ClusterReason.PINNED, asks)
    if state.profile is None:
        reason = ClusterReason.PAUSED if case.spec.paused else state.reason
        message = f"{asks}, which waits for an accepted profile: {state.message}; {_keeping(running)}"
        return Verdict(HOLD, wanted, reason, message)
    if wanted is None or wanted not in {fit.arm for fit in state.profile.arms}:
        message = (
            f"{asks}, of which the profile in force has no measurement ({state.message}); {_keeping(running)}"
        )
        return Verdict(HOLD, wanted, ClusterReason.PINNED_UNMEASURED, message)
    return Verdict(SWITCH, wanted, ClusterReason.PINNED, asks)


def _aim(service: SpeculativeService, step: RolloutStep) -> Arm | None:
    """The arm a change under way leads to."""
    if step.rollout is None:
        return None
    undoing = step.rollout.phase is RolloutPhase.UNDOING
    name = step.rollout.from_arm if undoing else step.rollout.to_arm
    return service.spec.candidates.named(name or "")
