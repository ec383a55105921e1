"""When to change the arm, and when not: a state machine without clock, network or randomness.

An arm is entered when the LOWER bound of its gain is high enough, against no speculation and against the running arm
(neighbours would flap otherwise), where its prediction may be trusted; a running arm is left when the UPPER bound of
its gain is gone, or when measured saturation says so. Acceptance alone is not the signal (it stayed flat while a gain
went from +23 % to -16 %), with one exception: a step of speculation costs at least a plain step, so the speedup is at
most E, and where hardly any draft is accepted no bounds are needed to know that nothing can be gained.

Nothing is done within the cool-down after a switch. A wish must last for the dwell time, unless what is left is
saturated or misses the SLO. Where a window shows that requests take too long, or that acceptance has collapsed, a second
window, which shares no request with it, is enough. A reading that allows no decision neither confirms a wish nor ends
it. Everything that must survive a restart is in `DecisionMemory`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.planning.evaluation import ArmEvaluation, Evaluations, evaluate_live
from breakeven.planning.judging import NoSwitch, fastest, judge
from breakeven.planning.observed_load import LiveAcceptance, Load
from breakeven.planning.policy import Policy
from breakeven.profile import Comparison, Profile
from breakeven.reasons import Reason

__all__ = ["Action", "Decision", "DecisionMemory", "LiveAcceptance", "Load", "Policy", "decide"]


@dataclass(frozen=True, slots=True)
class DecisionMemory:
    """State of the decision between evaluations; small, and meant to be stored.

    Attributes:
        running: the arm that runs.
        last_switch_s: when it was switched to (s, any clock that `now_s` uses too); `None`: never.
        candidate: the arm that has been wished for since `candidate_since_s`.
        candidate_since_s: when that wish began (s, same clock).
        collapsed_since_s: since when the running arm's acceptance has been collapsed without a pause (s); `None`: it is not.
        seen: newest live acceptance per drafter. Without it an arm that was left because its acceptance fell would be
            entered again on its calibrated one. Drop it when a new profile comes into force.
    """

    running: Arm
    last_switch_s: float | None = None
    candidate: Arm | None = None
    candidate_since_s: float | None = None
    collapsed_since_s: float | None = None
    seen: tuple[LiveAcceptance, ...] = ()


class Action(StrEnum):
    """What to do."""

    STAY = "Stay"
    """The running arm is the right one, by figures."""
    SWITCH = "Switch"
    HOLD = "Hold"
    """Nothing is changed because the figures do not allow a decision, or not yet."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, why, and the figures that decided.

    Attributes:
        action: Stay, Switch or Hold.
        arm: the arm that should run from now on; the running one unless `action` is Switch.
        reason: one word why.
        running: the arm that ran when it was decided.
        subject: the speculative arm that the figures are about: the running one, else the best one; `None` without any.
        against_none: that arm against no speculation at this load.
        against_running: the switched-to (or best other) arm against the running one.
        alternative: the best arm that was not chosen.
        until_s: end of the cool-down or dwell that holds a switch back.
        memory: to be kept for the next evaluation. After a Switch it says that the arm was switched; who only
            recommends keeps `running` and `last_switch_s` as they were.
        load: the load it was decided at.
        policy: the policy it was decided under.
        confidence: of every bound.
        field: every arm's figures.
    """

    action: Action
    arm: Arm
    reason: Reason
    running: Arm
    subject: Arm | None
    against_none: Comparison | None
    against_running: Comparison | None
    alternative: Arm | None
    until_s: float | None
    memory: DecisionMemory
    load: Load
    policy: Policy
    confidence: float
    field: Evaluations | None


def decide(
    profile: Profile,
    load: Load,
    memory: DecisionMemory,
    policy: Policy,
    now_s: float,
    candidates: Sequence[Arm],
) -> Decision:
    """Decide which arm should run.

    Pure: equal arguments give equal decisions. Pinning, pausing and missing data are the caller's; what arrives here
    was observed.

    Args:
        profile: the fitted model of the target's fingerprint.
        load: what was observed, per replica.
        memory: from the last decision.
        policy: how sure one must be.
        now_s: current time (s), on the clock of `memory`.
        candidates: arms that may run; no speculation always may.

    Returns:
        The decision; its `memory` is to be passed to the next call.
    """
    memory = replace(memory, seen=_remember(memory, load))
    if load.idle:
        asked = _Asked(memory.running, load, policy, profile.confidence, None)
        return asked.answer(Action.HOLD, Reason.NO_LOAD, None, _unwish(memory))
    field = evaluate_live(profile, load, memory.running, candidates, memory.seen, policy.slo)
    asked = _Asked(memory.running, load, policy, profile.confidence, field)
    outcome = judge(profile, field, load, policy, seen=memory.seen, candidate=memory.candidate)
    if isinstance(outcome, NoSwitch):
        action = Action.HOLD if outcome.uncertain else Action.STAY
        still = outcome.uncertain and _still_wished(memory, load, policy, now_s)
        kept = replace(memory, collapsed_since_s=None) if still else _unwish(memory)
        return asked.answer(action, outcome.reason, outcome.other, kept)
    # A candidate's time runs on during the cool-down: it has been better all along.
    known = memory.candidate == outcome.target.arm and memory.candidate_since_s is not None
    since_s = memory.candidate_since_s if known and memory.candidate_since_s is not None else now_s
    # A clock that was set back must not hold for ever.
    since_s = min(since_s, now_s)
    kept = replace(memory, candidate=outcome.target.arm, candidate_since_s=since_s, collapsed_since_s=None)
    dwelt_s = since_s + min(math.inf if outcome.dwell_s is None else outcome.dwell_s, policy.dwell_s)
    if outcome.reason is Reason.ACCEPTANCE_COLLAPSED:
        first_s = now_s if memory.collapsed_since_s is None else min(memory.collapsed_since_s, now_s)
        kept = replace(kept, collapsed_since_s=first_s)
        dwelt_s = first_s + load.window_s
    cooled_s = (
        -math.inf if memory.last_switch_s is None else min(memory.last_switch_s, now_s) + policy.cooldown_s
    )
    if now_s < cooled_s:
        return asked.answer(Action.HOLD, Reason.COOLING_DOWN, outcome.target, kept, max(cooled_s, dwelt_s))
    if now_s < dwelt_s:
        return asked.answer(Action.HOLD, Reason.DWELLING, outcome.target, kept, dwelt_s)
    switched = DecisionMemory(running=outcome.target.arm, last_switch_s=now_s, seen=memory.seen)
    return asked.answer(Action.SWITCH, outcome.reason, outcome.target, switched)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The question, to be kept beside its answer."""

    running: Arm
    load: Load
    policy: Policy
    confidence: float
    field: Evaluations | None

    def answer(
        self,
        action: Action,
        reason: Reason,
        other: ArmEvaluation | None,
        memory: DecisionMemory,
        until_s: float | None = None,
    ) -> Decision:
        """Gather the figures: about the running arm if it speculates, else about the arm that was considered."""
        running = self.field.running if self.field is not None else None
        subject = running if running is not None and running.arm != NO_SPECULATION else other
        if subject is not None and subject.arm == NO_SPECULATION:
            subject = None
        arm = other.arm if action is Action.SWITCH and other is not None else self.running
        if other is None or other.arm == arm:
            standings = (running, *self.field.others) if self.field is not None else ()
            rest = [c for c in standings if c is not None and c.arm != arm]
            alternative = fastest(rest) if rest else None
        else:
            alternative = other
        return Decision(
            action=action,
            arm=arm,
            reason=reason,
            running=self.running,
            subject=subject.arm if subject else None,
            against_none=subject.against_none if subject else None,
            against_running=other.against_running if other else None,
            alternative=alternative.arm if alternative else None,
            until_s=until_s,
            memory=memory,
            load=self.load,
            policy=self.policy,
            confidence=self.confidence,
            field=self.field,
        )


def _remember(memory: DecisionMemory, load: Load) -> tuple[LiveAcceptance, ...]:
    """Put the live acceptance of the running arm in the place of what its drafter showed before."""
    if load.tokens_per_step is None or memory.running == NO_SPECULATION or load.idle:
        return memory.seen
    others = tuple(seen for seen in memory.seen if seen.arm.family != memory.running.family)
    return (*others, LiveAcceptance(memory.running, load.tokens_per_step))


def _still_wished(memory: DecisionMemory, load: Load, policy: Policy, now_s: float) -> bool:
    """Whether a wish outlasts a reading that allows no decision: it has a window more than its dwell time to come back."""
    since_s = memory.candidate_since_s
    return since_s is not None and now_s < since_s + policy.dwell_s + load.window_s


def _unwish(memory: DecisionMemory) -> DecisionMemory:
    """Forget the candidate and why: its time starts anew when it is wished for again."""
    return replace(memory, candidate=None, candidate_since_s=None, collapsed_since_s=None)
