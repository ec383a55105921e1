"""From figures, profile and policy to the verdict of a cycle; `gates` says what keeps a due change from being made.

Order: what is under way, what a person ordered (Disabled, a pinned arm, paused), whether there is a profile, and only
then the figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.deciding import Action, Decision, DecisionMemory, Decisions, sentence
from breakeven.errors import BreakevenError, NotIdentifiedError
from breakeven.planning.decision_memory import Evidence
from breakeven.profile import Profile
from breakeven.reasons import Reason
from breakeven.serving.vllm_versions import acceptance_differs
from breakeven_operator.case import HOLD, RECOMMEND, STAY, SWITCH, Case, ServiceObservation, Verdict
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.judging.standing_control import other_arm
from breakeven_operator.observing.questions import policy_of, seen_of
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.decisionstatus import Basis
from breakeven_operator.resources.memorystatus import LiveEvidence, MemoryStatus, SeenAcceptance
from breakeven_operator.resources.targetstatus import HistoryResult
from breakeven_operator.resources.updatepolicy import Mode
from breakeven_operator.rolls.barred_arms import why_leave
from breakeven_operator.step import ProfileEntry, RolloutStep
from breakeven_operator.workloads.running_arm import RunningArm


def judge(case: Case, step: RolloutStep, observation: ServiceObservation) -> tuple[Verdict, MemoryStatus]:
    """The verdict before anything that only forbids acting on it, and the memory that it leaves."""
    # A cycle in which the library is not asked ends a dwell.
    memory = case.memory.replace(candidate_arm=None, candidate_since_time=None)
    running, arm = case.running, case.running.arm
    if arm is None:
        problem = running.problem or "the running arm cannot be told"
        return Verdict(HOLD, None, ClusterReason.ENGINE_CONFIG_REFUSED, problem), memory
    if step.busy and step.reason is not None:
        leads_to = case.spec.candidates.named(step.leads_to or "") or arm
        return Verdict(HOLD, leads_to, step.reason, step.message), memory
    order = ordered(case, arm, observation.controlled)
    leave = why_leave(case, observation)
    if leave is not None and (order is None or order.reason is ClusterReason.CONTROL):
        return Verdict(SWITCH, NO_SPECULATION, leave.reason, f"{arm} is left: {leave.message}"), memory
    decision, basis, doubt = None, Basis.MEASURED, None
    if case.live.usable and case.live.figures is not None:
        try:
            if case.profile is not None:
                decision, memory = choose(case, case.profile)
            elif (former := case.calibrated.former) is not None and former.profile is not None:
                # By a profile that is not in force any more the arm in place is left for no speculation, or kept.
                there = replace(case, calibrated=replace(case.calibrated, entry=former))
                _check_acceptance(case, arm, former)
                (decision, memory), basis = choose(there, former.profile, ()), Basis.FORMER
            elif case.first is not None and case.first.profile is not None:
                # Laws of a past give figures to show. Nothing of them is remembered.
                (decision, _), basis = choose(case, case.first.profile), Basis.PAST
        except BreakevenError as error:
            doubt = str(error)
    said = order if order is not None else _said(case, arm, decision, doubt)
    if order is None and decision is not None and basis is Basis.FORMER:
        said = _by_former(said, decision, arm)
    return replace(said, decision=decision, basis=basis), memory


def _check_acceptance(case: Case, arm: Arm, former: ProfileEntry) -> None:
    """Refuse a former profile beside whose acceptance the running arm's live one says nothing."""
    engine = case.workload.engine
    image = str(engine.container.get("image") or "") if engine is not None else None
    if (why := acceptance_differs(arm.method, former.image, image)) is not None:
        raise NotIdentifiedError(why)


def _said(case: Case, arm: Arm, decision: Decision | None, doubt: str | None) -> Verdict:
    """The reason why the library was not asked, else its answer."""
    state, running = case.calibrated, case.running
    if state.profile is None:
        reason = ClusterReason.PAUSED if case.spec.paused else state.reason
        told = "".join(
            f"; {one}" for one in (doubt, case.first.sentence if case.first is not None else None) if one
        )
        return Verdict(HOLD, arm, reason, f"{state.message}{told}; {keeping(arm)}")
    if running.foreign_schedule and running.measured_instead is None:
        message = f"the target runs the schedule {running.schedule}, which nobody has measured"
        return Verdict(HOLD, arm, ClusterReason.ARM_UNMEASURED, f"{message}; {keeping(arm)}")
    if doubt is not None:
        return Verdict(HOLD, arm, Reason.NOT_MEASURED, f"{doubt}; {keeping(arm)}")
    if decision is None:
        return Verdict(HOLD, arm, case.live.reason, f"{case.live.message}; {keeping(arm)}")
    action = {Action.STAY: STAY, Action.SWITCH: SWITCH, Action.HOLD: HOLD}[decision.action]
    return _onto_what_was_measured(
        Verdict(action, decision.arm, decision.reason, sentence(decision)), running
    )


def _by_former(said: Verdict, decision: Decision, arm: Arm) -> Verdict:
    """The verdict without a profile in force, unless the former one shows that the arm is to be left: none is entered by it."""
    if decision.action is not Action.SWITCH or arm.k == 0:
        return replace(said, message=f"{said.message}; by the profile of before, {sentence(decision)}")
    why = f"{sentence(decision)}, by the profile of before ({said.reason}): {said.message.removesuffix(f'; {keeping(arm)}')}"
    return Verdict(SWITCH, NO_SPECULATION, decision.reason, f"{arm} is left: {why}")


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
    return Verdict(SWITCH, running.measured_instead, ClusterReason.ARM_UNMEASURED, message)


def choose(
    case: Case, profile: Profile, candidates: Sequence[Arm] | None = None
) -> tuple[Decision, MemoryStatus]:
    """Ask the library: its answer, which may not be acted upon yet, and the memory that it leaves.

    The case has usable figures and a known arm. `candidates` may be entered beside no speculation; None stands for all of the spec.

    Raises:
        BreakevenError: the profile does not know this load, these lengths or this arm.
    """
    figures, running, advised = case.live.figures, case.measured_arm, _advised(case)
    assert figures is not None and running is not None  # noqa: PT018, S101 - see above
    replicas = max(case.workload.desired, 1)
    strain = case.objectives.strain if case.objectives is not None else None
    load = replace(figures, settled=case.settled, strain=strain)
    arms = case.spec.candidates.arms()
    decision = Decisions(
        profile,
        arms if candidates is None else candidates,
        policy_of(case.spec, case.context.startup_s, case.away_share),
    ).at(
        load,
        _remembered(case, arms, running, advised, replicas),
        case.now.timestamp(),
        case.live.past if case.scaled else case.live.past.on(replicas),
        case.fewest if case.scaled else None,
    )
    return decision, _kept(case, decision.memory, running, advised, replicas)


def _advised(case: Case) -> Arm | None:
    """The arm that the last cycle recommended by figures, and that a person has not entered yet."""
    last = case.service.status.decision
    if case.spec.update_policy.mode is not Mode.RECOMMEND or last is None or last.action != RECOMMEND:
        return None
    return case.spec.candidates.named(last.arm or "") if last.reason != ClusterReason.PINNED else None


def _remembered(
    case: Case, named: Sequence[Arm], running: Arm, advised: Arm | None, replicas: int
) -> DecisionMemory:
    """The library's memory from the status: loads of the fleet come per replica."""
    memory = case.memory
    arms = {arm.name: arm for arm in (*named, running, NO_SPECULATION)}
    candidate = arms.get(memory.candidate_arm or "")
    # Lessons about another profile do not count.
    evidence = memory.evidence if memory.profile == case.calibrated.profile_name else ()
    return DecisionMemory(
        running=running,
        last_switch_s=_epoch(memory.last_switch_time),
        chosen=_chosen(case),
        candidate=candidate,
        candidate_since_s=_epoch(memory.candidate_since_time) if candidate is not None else None,
        advised=advised,
        seen=seen_of(memory, arms),
        saved=memory.saved_request_seconds / replicas,
        evidence={arms[one.arm]: one.evidence for one in evidence if one.arm in arms},
        **_largest(memory, replicas, scaled=case.scaled),
        decided_s=_epoch(memory.decided_time),
        queued=memory.queued_requests / replicas,
        queued_without=memory.queued_without / replicas,
        queued_at_s=_epoch(memory.queued_time),
    )


def _chosen(case: Case) -> bool:
    """Whether a roll was begun since the profile in force was made, and not undone."""
    entry, rolled, history = case.calibrated.entry, case.memory.last_switch_time, case.service.status.history
    undone = bool(history) and history[0].result is HistoryResult.UNDONE
    return entry is not None and rolled is not None and rolled >= entry.created and not undone


def _largest(remembered: MemoryStatus, replicas: int, *, scaled: bool) -> dict[str, float]:
    """The largest load on the replicas that it would come to now."""
    there, time = remembered.largest_replicas, remembered.largest_time
    if time is None or there is None:
        return {}
    rps = remembered.largest_rps / (there if scaled else replicas)
    return {"largest_rps": rps, "largest_at_s": time.timestamp()}


def _kept(
    case: Case, memory: DecisionMemory, running: Arm, advised: Arm | None, replicas: int
) -> MemoryStatus:
    # Loads belong to the fleet: on other replicas tomorrow they are other loads of each.
    # A Switch clears the candidate; whether it is carried out is decided elsewhere, and until it is, the
    # wish stands: time and running arm in the status follow the target, not the wish.
    kept = {}
    if memory.running in {running, NO_SPECULATION}:
        kept = _wish(memory.candidate, memory.candidate_since_s)
    elif memory.running == advised and case.memory.candidate_arm != advised.name:
        kept = _wish(advised, memory.decided_s)
    return case.memory.replace(
        **kept,
        running_arm=running.name,
        profile=case.calibrated.profile_name,
        decided_time=_time(memory.decided_s),
        saved_request_seconds=memory.saved * replicas,
        **_stored_largest(case.memory, memory, replicas),
        queued_requests=memory.queued * replicas,
        queued_without=memory.queued_without * replicas,
        queued_time=_time(memory.queued_at_s),
        seen=tuple(
            SeenAcceptance(
                arm=seen.arm.name,
                tokens_per_step=seen.tokens_per_step,
                relative_scatter=seen.relative_scatter or None,
                accept=seen.survival,
            )
            for seen in memory.seen
        ),
        evidence=tuple(_stored(arm, found) for arm, found in memory.evidence.items()),
    )


def _wish(arm: Arm | None, since_s: float | None) -> dict[str, object]:
    return {
        "candidate_arm": arm.name if arm is not None else None,
        "candidate_since_time": _time(since_s),
    }


def _stored_largest(status: MemoryStatus, memory: DecisionMemory, replicas: int) -> dict[str, object]:
    """The largest load as the status has it; a load that it has already stays as it came."""
    if status.largest_replicas is not None and _epoch(status.largest_time) == memory.largest_at_s:
        return {}
    at_s = memory.largest_at_s if math.isfinite(memory.largest_at_s) else None
    return {
        "largest_rps": memory.largest_rps * replicas,
        "largest_replicas": replicas,
        "largest_time": _time(at_s),
    }


def _stored(arm: Arm, evidence: Evidence) -> LiveEvidence:
    alone, both, company = evidence.precision
    return LiveEvidence(
        arm=arm.name,
        time=datetime.fromtimestamp(evidence.at_s, UTC),
        precision_alone=alone,
        precision_both=both,
        precision_company=company,
        pull_alone=evidence.pull[0],
        pull_company=evidence.pull[1],
        alone_seconds=evidence.level_s[0] if evidence.level_s is not None else None,
        company_seconds=evidence.level_s[1] if evidence.level_s is not None else None,
    )


def _epoch(time: datetime | None) -> float | None:
    return time.timestamp() if time is not None else None


def _time(epoch_s: float | None) -> datetime | None:
    return datetime.fromtimestamp(epoch_s, UTC) if epoch_s is not None else None


def ordered(case: Case, arm: Arm, controlled: SpeculativeService | None) -> Verdict | None:
    """The verdict that a person has ordered, which outranks every figure; None if nobody has."""
    policy = case.spec.update_policy
    if policy.mode is Mode.DISABLED:
        return Verdict(HOLD, arm, ClusterReason.DISABLED, f"mode Disabled decides nothing; {keeping(arm)}")
    if policy.pinned_arm is not None:
        return _asked(case, policy.pinned_arm, f"pinnedArm asks for {policy.pinned_arm}", arm)
    if case.spec.control_of is None:
        return None
    wish = other_arm(case, arm, controlled)
    if isinstance(wish, str):
        return Verdict(HOLD, arm, ClusterReason.CONTROL, f"{wish}; {keeping(arm)}")
    return _asked(case, *wish, arm, ClusterReason.CONTROL)


def _asked(
    case: Case, name: str, asks: str, running: Arm, reason: ClusterReason = ClusterReason.PINNED
) -> Verdict:
    """A pinned arm is a person's choice of *which* arm; that it starts and serves must have been seen all the same."""
    wanted, state = case.spec.candidates.named(name), case.calibrated
    measured = wanted is not None and wanted in case.spec.candidates.arms()
    if measured and wanted == running:
        return Verdict(STAY, wanted, reason, asks)
    if state.profile is None:
        word = ClusterReason.PAUSED if case.spec.paused else state.reason
        message = f"{asks}, which waits for an accepted profile: {state.message}; {keeping(running)}"
        return Verdict(HOLD, wanted, word, message)
    if not measured or wanted not in {fit.arm for fit in state.profile.arms}:
        message = (
            f"{asks}, of which the profile in force has no measurement ({state.message}); {keeping(running)}"
        )
        return Verdict(HOLD, wanted, ClusterReason.ARM_UNMEASURED, message)
    return Verdict(SWITCH, wanted, reason, asks)


def keeping(arm: Arm) -> str:
    """The arm that stays, as the end of a verdict's sentence."""
    return f"keeping {arm if arm.k else 'no speculation'}"
