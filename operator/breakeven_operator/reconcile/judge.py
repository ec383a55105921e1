"""From figures, profile and policy to the verdict of a cycle, and what keeps a due change from being made.

Order: what is under way, what a person ordered (Disabled, a pinned arm, paused), whether there is a profile, and only
then the figures.
"""

from __future__ import annotations

from dataclasses import replace

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.planning.decision import Action
from breakeven.planning.wording import sentence
from breakeven.reasons import Reason
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.active_profile import Calibrated
from breakeven_operator.reconcile.barred_arms import refuse_barred
from breakeven_operator.reconcile.decide import Choice, RollCost, choose, forget_candidate
from breakeven_operator.reconcile.leaving import LEAVING, why_leave
from breakeven_operator.reconcile.live_metrics import Live
from breakeven_operator.reconcile.objectives import Objectives
from breakeven_operator.reconcile.preconditions import (
    refuse_capacity,
    refuse_now,
    refuse_suspect,
    scaled_time,
)
from breakeven_operator.reconcile.roll_failures import LaterReading
from breakeven_operator.reconcile.scaling import FleetNeed
from breakeven_operator.reconcile.steps import RolloutContext, RolloutStep
from breakeven_operator.reconcile.target import Refusal
from breakeven_operator.reconcile.verdict import HOLD, RECOMMEND, STAY, SWITCH, Verdict
from breakeven_operator.reconcile.verification import rolls_stopped, settled
from breakeven_operator.resources import SpeculativeService, SpeculativeServiceSpec
from breakeven_operator.resources.rolloutstatus import RolloutPhase
from breakeven_operator.resources.updatepolicy import Mode
from breakeven_operator.workloads.running_arm import RunningArm

# Measured need, whatever rolls before have brought: requests queue at every pod, or an objective is missed.
_URGENT = frozenset({Reason.ENTERED_SATURATION, Reason.SATURATED, Reason.SLO_VIOLATED})
# A person's choice is no profile's.
_ORDERED = frozenset({ClusterReason.PINNED})


def judge(
    service: SpeculativeService,
    context: RolloutContext,
    state: Calibrated,
    live: Live,
    running: RunningArm,
    step: RolloutStep,
    need: FleetNeed | None = None,
    objectives: Objectives | None = None,
    later: LaterReading | None = None,
) -> tuple[Verdict, Choice]:
    """The verdict before anything that only forbids acting on it, and the figures behind it."""
    idle = Choice(explained=None, memory=forget_candidate(context.memory))
    arm = running.arm
    if arm is None:
        problem = running.problem or "the running arm cannot be told"
        return Verdict(HOLD, None, ClusterReason.ENGINE_CONFIG_REFUSED, problem), idle
    if step.busy and step.reason is not None:
        return Verdict(HOLD, _aim(service, step) or arm, step.reason, step.message), idle
    policy = service.spec.update_policy
    leave = why_leave(context, running, later)
    if leave is not None and policy.mode is not Mode.DISABLED and policy.pinned_arm is None:
        return Verdict(SWITCH, NO_SPECULATION, leave.reason, f"{arm} is left: {leave.message}"), idle
    profile = state.profile
    choice, doubt = idle, None
    if profile is not None and live.usable and live.figures is not None:
        try:
            choice = choose(
                service.spec,
                profile,
                state.profile_name or "",
                live.figures,
                running.measured_instead or arm,
                context.memory,
                roll_cost(context),
                context.now,
                live.past.rates,
                need.fewest if need is not None and need.scaled_by is not None else None,
                replicas=max(context.workload.desired, 1),
                scaled=need is not None and need.scaled_by is not None,
                settled=settled(context, service.spec.metrics_source.window_seconds),
                strain=objectives.strain if objectives is not None else None,
            )
        except BreakevenError as error:
            # What was measured does not tell about this load, these lengths or this arm.
            doubt = str(error)
    if service.spec.update_policy.mode is Mode.DISABLED:
        message = f"mode Disabled decides nothing; {_keeping(arm)}"
        return Verdict(HOLD, arm, ClusterReason.DISABLED, message), choice
    pinned = service.spec.update_policy.pinned_arm
    if pinned is not None:
        return _pinned(
            pinned, service.spec.candidates.named(pinned), arm, state, paused=service.spec.paused
        ), choice
    return _unasked(service, state, running, live, doubt, choice) or _asked(choice, running), choice


def _unasked(
    service: SpeculativeService,
    state: Calibrated,
    running: RunningArm,
    live: Live,
    doubt: str | None,
    choice: Choice,
) -> Verdict | None:
    """The verdict where the library could not be asked, or had no law to answer from; None: it answered."""
    arm = running.arm
    assert arm is not None  # noqa: S101 - without one nothing is decided
    if state.profile is None:
        reason = ClusterReason.PAUSED if service.spec.paused else state.reason
        return Verdict(HOLD, arm, reason, f"{state.message}; {_keeping(arm)}")
    if running.foreign_schedule and running.measured_instead is None:
        message = f"the target runs the schedule {running.schedule}, which nobody has measured"
        return Verdict(HOLD, arm, ClusterReason.SCHEDULE_NOT_MEASURED, f"{message}; {_keeping(arm)}")
    if doubt is not None:
        return Verdict(HOLD, arm, Reason.NO_BELIEVABLE_FIT, f"{doubt}; {_keeping(arm)}")
    if choice.explained is None:
        return Verdict(HOLD, arm, live.reason, f"{live.message}; {_keeping(arm)}")
    return None


def _asked(choice: Choice, running: RunningArm) -> Verdict:
    """The library's answer as a verdict."""
    explained = choice.explained
    assert explained is not None  # noqa: S101 - it answered
    decision = explained.decision
    action = {Action.STAY: STAY, Action.SWITCH: SWITCH, Action.HOLD: HOLD}[decision.action]
    verdict = Verdict(action, decision.arm, decision.reason, sentence(explained))
    return _onto_what_was_measured(verdict, running)


def _onto_what_was_measured(verdict: Verdict, running: RunningArm) -> Verdict:
    """Where another schedule runs than the one that was measured: what would stay is changed for the measured one.

    A calibration makes another schedule than the running one only where it is better by more than noise.
    """
    if running.measured_instead is None or verdict.action != STAY:
        return verdict
    message = (
        f"the target runs the schedule {running.schedule} and another one was measured; {verdict.message}"
    )
    return Verdict(SWITCH, running.measured_instead, ClusterReason.SCHEDULE_NOT_MEASURED, message)


def _keeping(arm: Arm) -> str:
    return f"keeping {arm if arm.k else 'no speculation'}"


def _pinned(name: str, wanted: Arm | None, running: Arm, state: Calibrated, *, paused: bool) -> Verdict:
    """A pinned arm is a person's choice of *which* arm; that it starts and serves must have been seen all the same."""
    asks = f"pinnedArm asks for {name}"
    if wanted is not None and wanted == running:
        return Verdict(STAY, wanted, ClusterReason.PINNED, asks)
    if state.profile is None:
        reason = ClusterReason.PAUSED if paused else state.reason
        message = f"{asks}, which waits for an accepted profile: {state.message}; {_keeping(running)}"
        return Verdict(HOLD, wanted, reason, message)
    if wanted is None or wanted not in {fit.arm for fit in state.profile.arms}:
        message = (
            f"{asks}, of which the profile in force has no measurement ({state.message}); {_keeping(running)}"
        )
        return Verdict(HOLD, wanted, ClusterReason.PINNED_UNMEASURED, message)
    return Verdict(SWITCH, wanted, ClusterReason.PINNED, asks)


def blocked(
    service: SpeculativeService,
    context: RolloutContext,
    state: Calibrated,
    live: Live,
    running: Arm,
    verdict: Verdict,
    cannot_roll: Refusal | None,
    choice: Choice,
) -> Verdict | None:
    """The verdict in place of a change that is due and must not be made; None: make it."""
    spec, workload = service.spec, context.workload
    if verdict.reason in LEAVING:
        return _held_from_leaving(spec, cannot_roll, verdict)
    name, profile = state.profile_name, state.profile
    assert name is not None and profile is not None  # noqa: PT018, S101 - no verdict without one
    suspect = refuse_suspect(
        context.memory,
        name,
        choice.decision if verdict.reason != ClusterReason.PINNED else None,
        verdict.arm or running,
    )
    if suspect is None and verdict.reason not in _ORDERED:
        suspect = refuse_barred(context.memory, verdict.arm or running)
    if spec.update_policy.mode is Mode.RECOMMEND and suspect is None:
        return replace(verdict, action=RECOMMEND)
    urgent = verdict.reason in _URGENT
    refusal = (
        Refusal(ClusterReason.PAUSED, "spec.paused is set")
        if spec.paused
        else suspect
        or cannot_roll
        or (None if urgent or verdict.reason in _ORDERED else rolls_stopped(context.memory, name))
        or refuse_now(
            workload,
            spec.update_policy,
            scaled_time(workload, service.status.target, context.now),
            context.memory,
            context.now,
            urgent=urgent,
        )
        or refuse_capacity(
            spec.update_policy,
            workload,
            profile,
            live.figures,
            (running, verdict.arm or running),
            choice.explained.evaluations if choice.explained is not None else None,
            context.now,
        )
    )
    if refusal is None:
        return None
    message = f"{verdict.arm} should run ({verdict.reason}), but {refusal.message}"
    return Verdict(HOLD, verdict.arm, refusal.reason, message)


def _held_from_leaving(
    spec: SpeculativeServiceSpec, cannot_roll: Refusal | None, verdict: Verdict
) -> Verdict | None:
    """The gates for leaving an arm that crashes or fails requests: a person alone, as for an undoing."""
    if spec.update_policy.mode is Mode.RECOMMEND:
        return replace(verdict, action=RECOMMEND)
    refusal = Refusal(ClusterReason.PAUSED, "spec.paused is set") if spec.paused else cannot_roll
    if refusal is None:
        return None
    message = f"{verdict.arm} should run ({verdict.reason}), but {refusal.message}"
    return Verdict(HOLD, verdict.arm, refusal.reason, message)


def _aim(service: SpeculativeService, step: RolloutStep) -> Arm | None:
    """The arm a change under way leads to."""
    if step.rollout is None:
        return None
    undoing = step.rollout.phase is RolloutPhase.UNDOING
    name = step.rollout.from_arm if undoing else step.rollout.to_arm
    return service.spec.candidates.named(name or "")


def roll_cost(context: RolloutContext) -> RollCost:
    """Each replica is away for one start-up, however many batches a roll has: more of them take fewer at a time."""
    workload = context.workload
    away = min(workload.max_unavailable / workload.desired, 1.0) if workload.desired else 0.0
    return RollCost(context.startup_s, away)
