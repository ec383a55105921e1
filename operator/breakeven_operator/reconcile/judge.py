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
from breakeven_operator.reconcile.decide import choose, forget_candidate, leave_or_keep
from breakeven_operator.reconcile.leaving import why_leave
from breakeven_operator.reconcile.observation import ServiceObservation
from breakeven_operator.reconcile.orders import keeping, ordered
from breakeven_operator.reconcile.steps import RolloutStep
from breakeven_operator.reconcile.verdict import HOLD, STAY, SWITCH, Verdict
from breakeven_operator.resources.decisionstatus import Basis
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.workloads.running_arm import RunningArm


def judge(case: Case, step: RolloutStep, observation: ServiceObservation) -> tuple[Verdict, MemoryStatus]:
    """The verdict before anything that only forbids acting on it, and the memory that it leaves.

    Args:
        case: of the service.
        step: what is under way.
        observation: its profiles of any image and model, and requests on the arm since its roll.
    """
    memory = forget_candidate(case.memory)
    running = case.running
    arm = running.arm
    if arm is None:
        problem = running.problem or "the running arm cannot be told"
        return Verdict(HOLD, None, ClusterReason.ENGINE_CONFIG_REFUSED, problem), memory
    if step.busy and step.reason is not None:
        return Verdict(
            HOLD, case.spec.candidates.named(step.leads_to or "") or arm, step.reason, step.message
        ), memory
    order, leave = (
        ordered(case, arm),
        why_leave(case.context, running, observation.later, observation.profiles),
    )
    if leave is not None and order is None:
        return Verdict(SWITCH, NO_SPECULATION, leave.reason, f"{arm} is left: {leave.message}"), memory
    decision, basis, doubt = None, Basis.MEASURED, None
    if case.live.usable and case.live.figures is not None:
        try:
            if case.profile is not None:
                decision, memory = choose(case, case.profile)
            elif case.calibrated.former is not None:
                (decision, memory), basis = leave_or_keep(case, case.calibrated.former), Basis.FORMER
            elif case.first is not None and case.first.profile is not None:
                # Laws of a past give figures to show. Nothing of them is remembered.
                (decision, _), basis = choose(case, case.first.profile), Basis.PAST
        except BreakevenError as error:
            doubt = str(error)
    said = order if order is not None else _said(case, arm, decision, doubt)
    if order is None and decision is not None and basis is Basis.FORMER:
        said = _by_former(said, decision, arm)
    return replace(said, decision=decision, basis=basis), memory


def _said(case: Case, arm: Arm, decision: Decision | None, doubt: str | None) -> Verdict:
    """The reason why the library was not asked, else its answer."""
    unasked = _unasked(case, arm, doubt)
    if unasked is not None:
        return unasked
    if decision is None:
        return Verdict(HOLD, arm, case.live.reason, f"{case.live.message}; {keeping(arm)}")
    return _answered(decision, case.running)


def _unasked(case: Case, arm: Arm, doubt: str | None) -> Verdict | None:
    """The verdict if there is no law to answer from; None: there is one."""
    state, running = case.calibrated, case.running
    if state.profile is None:
        reason = ClusterReason.PAUSED if case.spec.paused else state.reason
        told = f"; {case.first.sentence}" if case.first is not None else ""
        return Verdict(HOLD, arm, reason, f"{state.message}{told}; {keeping(arm)}")
    if running.foreign_schedule and running.measured_instead is None:
        message = f"the target runs the schedule {running.schedule}, which nobody has measured"
        return Verdict(HOLD, arm, ClusterReason.SCHEDULE_NOT_MEASURED, f"{message}; {keeping(arm)}")
    if doubt is not None:
        return Verdict(HOLD, arm, Reason.NO_BELIEVABLE_FIT, f"{doubt}; {keeping(arm)}")
    return None


def _by_former(said: Verdict, decision: Decision, arm: Arm) -> Verdict:
    """The verdict without a profile in force, unless the former one shows that the arm is to be left: none is entered by it."""
    if decision.action is not Action.SWITCH or arm.k == 0:
        return replace(said, message=f"{said.message}; by the profile of before, {sentence(decision)}")
    why = f"{sentence(decision)}, by the profile of before ({said.reason}): {said.message.removesuffix(f'; {keeping(arm)}')}"
    return Verdict(SWITCH, NO_SPECULATION, decision.reason, f"{arm} is left: {why}")


def _answered(decision: Decision, running: RunningArm) -> Verdict:
    """The library's answer as a verdict."""
    action = {Action.STAY: STAY, Action.SWITCH: SWITCH, Action.HOLD: HOLD}[decision.action]
    verdict = Verdict(action, decision.arm, decision.reason, sentence(decision))
    return _onto_what_was_measured(verdict, running)


def _onto_what_was_measured(verdict: Verdict, running: RunningArm) -> Verdict:
    """A target that would stay on a schedule of its own, or on a drafter that was replaced, is changed to what was measured.

    A calibration makes another schedule than the running one only if it is better by more than noise.
    """
    if running.measured_instead is None or verdict.action != STAY:
        return verdict
    if running.former_drafter:
        message = f"the target runs a drafter that its candidate had before; {verdict.message}"
        return Verdict(SWITCH, NO_SPECULATION, ClusterReason.CANDIDATES_CHANGED, message)
    message = (
        f"the target runs the schedule {running.schedule} and another one was measured; {verdict.message}"
    )
    return Verdict(SWITCH, running.measured_instead, ClusterReason.SCHEDULE_NOT_MEASURED, message)
