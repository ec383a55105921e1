"""The decision: which arm should run, when it may be changed, and the reason word; pure, with one memory.

The rule is `expected_saving`. Around it are the limits on how often an arm may change, and nothing else. A speculative
arm is entered when that has been worth it for the dwell time and the last switch is older than the cool-down. No
speculation is entered at once. Advice that nobody has followed yet dwells as if it had been. So is an arm that keeps an objective which the running one misses. While requests queue up,
so is an arm that makes up for its roll within an hour. If requests had to wait within the last day, no arm is entered within a
day of a roll: a queue makes one arm after another look better than the one in place, and each roll takes replicas away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.estimate import Estimate
from breakeven.laws.arrays import FloatArray
from breakeven.planning.capacity import FewestReplicas
from breakeven.planning.decision_memory import DecisionMemory, LiveAcceptance, share_of_steps
from breakeven.planning.evaluation import ArmEvaluation, Evaluations
from breakeven.planning.expected_saving import ArmSaving, Savings, decide_by_saving, since_s
from breakeven.planning.forecast import Forecast, PastRates, forecast
from breakeven.planning.learned_laws import FittedLaw, in_flight
from breakeven.planning.objective import Follow, Policy, tail_factor
from breakeven.planning.observed_load import AVERAGED_S, live_conditions
from breakeven.planning.surprise import LASTS_S
from breakeven.profile import Comparison, Profile
from breakeven.reasons import Reason
from breakeven.serving.counted_window import Load

_FALLEN = 0.85
"""Live acceptance on chat scatters by 5 to 11 % between samples of thousands of drafts; less is no collapse."""
_MUCH = 0.05
"""Share of the request time that no speculation saves from which a break-even is passed by much."""
_LONG_S = 3600.0
"""Time for which no speculation must have been the better arm until a break-even is passed for long."""
_HOUR_S = 3600.0
_LEAST_HOURS = 24
"""Hours of a past below which it says nothing about what an arm should follow."""
_GRID = 64


class Action(StrEnum):
    """The action of a decision."""

    STAY = "Stay"
    """The running arm is the right one, by figures."""
    SWITCH = "Switch"
    HOLD = "Hold"
    """Nothing is changed: there is nothing to decide on, or a limit forbids it for some time."""


class FollowedPast(NamedTuple):
    """What a past would have been worth to a policy that follows changes, and at most to a policy that follows the load.

    Attributes:
        arm: the best single arm of all its hours.
        one, each: share of the request time without speculation that this arm, or the best arm of each hour, would have saved.
        changes: how often the best arm of an hour was another one than in the hour before.
    """

    days: float
    arm: Arm
    one: float
    each: float
    changes: int


@dataclass(frozen=True)
class Decision:
    """An action, its reason, and the figures that it rests on.

    Attributes:
        arm: the arm that should run from now on; the running one unless `action` is Switch.
        considered: effect of changing to `arm`, else to the best other one; None if nothing was calculated.
        until_s: end of the cool-down or dwell that holds a switch back.
        memory: for the next decision. After a Switch it holds the new arm; a caller that only recommends keeps
            `running` and `last_switch_s` as they were, and sets `advised`.
        ahead: loads that were expected; None if nothing was calculated.
        pays_until_rps: break-even (1/s per replica) by the laws as live latency has corrected them: below it the speculative
            arm in question holds fewer requests in flight than no speculation; None if there is none.
        fewest: the arm that needs fewest replicas, if they follow the load.
        evaluations: figures of every arm at the load; empty if there were laws alone.
        confidence: of every bound in them, two-sided.
        speedup: of the running arm at the load, by the profile and what live latency has shown; None if it has none.
        followed: the past by what an arm follows; None if less than a day is known.
    """

    action: Action
    arm: Arm
    reason: Reason
    running: Arm
    memory: DecisionMemory
    load: Load
    policy: Policy
    considered: ArmSaving | None = None
    options: tuple[ArmSaving, ...] = ()
    until_s: float | None = None
    ahead: Forecast | None = None
    pays_until_rps: float | None = None
    fewest: FewestReplicas | None = None
    # A question holds a function: no two evaluations are equal.
    evaluations: Evaluations = field(default=Evaluations((), {}), compare=False)
    confidence: float = 0.9
    speedup: Estimate | None = None
    followed: FollowedPast | None = None

    @cached_property
    def alternative(self) -> ArmSaving | None:
        """The best of the arms that were neither chosen nor running; None without any."""
        rest = [one for one in self.options if one.arm != self.arm]
        return max(rest, key=lambda one: one.net, default=None)

    @cached_property
    def subject(self) -> Arm | None:
        """The speculative arm in question: the running one, else the considered one; None without any."""
        if self.running != NO_SPECULATION:
            return self.running
        considered = self.considered.arm if self.considered is not None else NO_SPECULATION
        return considered if considered != NO_SPECULATION else None

    @cached_property
    def protects(self) -> bool:
        """Whether the switch protects users: measurements ask for it, or the break-even is passed by much or for long.

        Such a switch waits for no window and no change of the service.
        """
        if self.action is not Action.SWITCH:
            return False
        if self.reason in {Reason.ENTERED_SATURATION, Reason.SLO_VIOLATED}:
            return True
        since_s, now_s = self.memory.candidate_since_s, self.memory.decided_s
        lasts_s = 0.0 if since_s is None or now_s is None else now_s - since_s
        much = self.considered is not None and self.considered.share >= _MUCH
        return self.arm == NO_SPECULATION and (much or lasts_s >= _LONG_S)

    @cached_property
    def figures(self) -> ArmEvaluation | None:
        """The running arm at the load."""
        return self.of(self.running)

    @cached_property
    def against_none(self) -> Comparison | None:
        """The speculative arm in question against no speculation at the load."""
        one = self.of(self.subject)
        return one.against_none if one is not None else None

    @cached_property
    def against_running(self) -> Comparison | None:
        """The arm that is switched to, else the best other one, against the running one at the load."""
        one = self.of(self.considered.arm) if self.considered is not None else None
        return one.against_running if one is not None else None

    def of(self, arm: Arm | None) -> ArmEvaluation | None:
        """An arm's figures at the load; None if nothing was asked."""
        return None if self.load.idle else self.evaluations.of(arm)


@dataclass(frozen=True, eq=False)
class Situation:
    """The situation that is decided about; all figures in it were observed.

    Attributes:
        laws: of every measured arm that may run, no speculation and the running arm among them.
        load: per replica.
        memory: from the last decision, after `with_acceptance`.
        past: loads before now (1/s per replica), on the clock of `now_s`.
        fewest: the arm that needs fewest replicas, if an autoscaler follows the load. An arm that needs more than the running
            one is not entered then, however fast it is: each replica is always near its capacity.
    """

    laws: Sequence[FittedLaw]
    load: Load
    memory: DecisionMemory
    policy: Policy
    now_s: float
    past: PastRates = field(default_factory=PastRates)
    fewest: FewestReplicas | None = None

    def held(self, reason: Reason, memory: DecisionMemory) -> Decision:
        """A Hold without anything to decide on; the dwell time starts over."""
        kept = replace(memory, candidate=None, candidate_since_s=None)
        running = self.memory.running
        return Decision(Action.HOLD, running, reason, running, kept, self.load, self.policy)

    @cached_property
    def ahead(self) -> Forecast:
        """Loads that are expected."""
        return forecast(self.past, self.now_s, self.load.rps, self.policy.horizon_s)

    @cached_property
    def found(self) -> Savings:
        """The rule's answer, before the limits and the reason word."""
        # Without a lookback the present load is taken to last, and earlier loads do not count.
        known = (
            self.memory
            if self.policy.lookback_s
            else replace(self.memory, largest_rps=0.0, largest_at_s=-math.inf)
        )
        return decide_by_saving(self.laws, self.load, self.ahead, known, self.policy, self.now_s)

    def answer(self, after: DecisionMemory) -> Decision:
        """The decision: the rule's answer within the limits."""
        running, wanted, advised = self.memory.running, self._wanted(), self.memory.advised
        if wanted == running and self.load.idle:
            return self.held(Reason.NO_LOAD, after)
        follows_changes = self.policy.follow is Follow.CHANGES and self.memory.chosen
        if follows_changes and wanted != running:
            return self._exit(wanted, after)
        if wanted in {advised or running, NO_SPECULATION}:
            return self._now(wanted, after)
        return self._entry(wanted, after)

    def _entry(self, wanted: Arm, after: DecisionMemory) -> Decision:
        """The decision about a speculative arm that is worth entering."""
        now_s = self.now_s
        running, advised = self.memory.running, self.memory.advised
        # Of the arm that is advised no time counts for another one.
        awaited = self.memory.candidate not in {advised, NO_SPECULATION}
        since_s = self.memory.candidate_since_s if awaited else None
        # A clock that was set back must not hold for ever.
        since_s = now_s if since_s is None else min(since_s, now_s)
        rested_s = self._rested_s(after)
        cooled_s = max(self._rolled_s + self.policy.cooldown_s, rested_s)
        dwelt_s = since_s + self.policy.dwell_s
        due_s = dwelt_s if wanted == running else max(cooled_s, dwelt_s)
        waiting = replace(after, candidate=wanted, candidate_since_s=since_s)
        if self._presses(wanted, rested=now_s >= rested_s) or now_s >= due_s:
            return self._now(wanted, after)
        if advised not in {None, running}:
            # The arm in place is entered again no sooner than if the advice had been followed.
            return self._said(Action.SWITCH, advised, Reason.DWELLING, waiting, due_s)
        if now_s < cooled_s and any(
            one.arm == NO_SPECULATION and one.surely_net > 0.0 for one in self.found.options
        ):
            return self._now(NO_SPECULATION, waiting)
        reason = Reason.COOLING_DOWN if now_s < cooled_s else Reason.DWELLING
        return self._said(Action.HOLD, wanted, reason, waiting, due_s)

    @property
    def _rolled_s(self) -> float:
        last_s = self.memory.last_switch_s
        return -math.inf if last_s is None else min(last_s, self.now_s)

    def _rested_s(self, after: DecisionMemory) -> float:
        """Time (s) until which no arm is entered, because requests have had to wait within a day of now and of a roll."""
        now_s, day_s, stood_s = self.now_s, self.policy.day_s, after.queued_at_s
        return self._rolled_s + (day_s if stood_s is not None and 0.0 <= now_s - stood_s < day_s else 0.0)

    def _exit(self, wanted: Arm, after: DecisionMemory) -> Decision:
        """The decision about an arm that was chosen for the service as it is: it is left by an exit that protects, or kept."""
        if wanted != NO_SPECULATION and self._presses(wanted, rested=self.now_s >= self._rested_s(after)):
            return self._now(wanted, after)
        none = next((one for one in self.found.options if one.arm == NO_SPECULATION), None)
        candidate, since_s = wanted, self._left_since_s()
        if none is not None and (wanted == NO_SPECULATION or none.surely_net > 0.0):
            left = self._now(NO_SPECULATION, after)
            if left.protects:
                return left
            candidate = NO_SPECULATION
        waiting = replace(after, candidate=candidate, candidate_since_s=since_s)
        return self._said(Action.HOLD, candidate, Reason.FOLLOWS_CHANGES, waiting)

    def _now(self, wanted: Arm, after: DecisionMemory) -> Decision:
        """The decision that nothing holds back."""
        if wanted == self.memory.running:
            kept = replace(after, candidate=None, candidate_since_s=None)
            return self._said(Action.STAY, wanted, self._why_stay(), kept)
        kept = replace(after, running=wanted, last_switch_s=self.now_s, chosen=True)
        if wanted == NO_SPECULATION:
            # A switch that somebody holds back is asked for again, and it counts for how long.
            kept = replace(kept, candidate=wanted, candidate_since_s=self._left_since_s())
        else:
            kept = replace(kept, candidate=None, candidate_since_s=None)
        return self._said(Action.SWITCH, wanted, self._why_switch(wanted), kept)

    def _left_since_s(self) -> float:
        """Time since which no speculation has been wanted (s); a clock that was set back must not hold for ever."""
        known, now_s = self.memory, self.now_s
        if known.candidate != NO_SPECULATION or known.candidate_since_s is None:
            return now_s
        return min(known.candidate_since_s, now_s)

    def _wanted(self) -> Arm:
        """The arm that needs fewest replicas, if they follow the load; else the arm that saves most."""
        running = self.memory.running
        if self.fewest is None:
            return self.found.arm
        known = {law.arm for law in self.laws}
        if self.fewest.arm != running and self.fewest.arm in known:
            return self.fewest.arm
        return self.found.arm if self.found.arm in self.fewest.no_more_than(running) else running

    def _said(
        self, action: Action, about: Arm, reason: Reason, memory: DecisionMemory, until_s: float | None = None
    ) -> Decision:
        running, options = self.memory.running, self.found.options
        considered = next((one for one in options if one.arm == about), None) or self._best_other()
        arm = about if action is Action.SWITCH else running
        decision = Decision(
            action, arm, reason, running, memory, self.load, self.policy, considered, options, until_s, self.ahead,
            fewest=self.fewest,
        )  # fmt: skip
        return replace(decision, pays_until_rps=self._pays_until_rps(decision.subject))

    def _best_other(self) -> ArmSaving | None:
        return max(self.found.options, key=lambda one: one.surely_net, default=None)

    def _presses(self, wanted: Arm, *, rested: bool) -> bool:
        """Whether measurements, not expectations, require this arm at once.

        A roll because of a queue waits until the last roll is a day old: five rolls in 100 minutes of one overload cost
        more than any of the arms would have. In a queue an objective is missed whatever runs.
        """
        missed = self._breached() and self._keeps(wanted) and (rested or not self.found.memory.queued)
        return missed or (rested and self.load.saturated and self._shortens_queue(wanted))

    def _shortens_queue(self, arm: Arm) -> bool:
        """Whether an arm carries so much more than the running one that an hour makes up for the replicas away in a roll."""
        policy = self.policy
        here, there = (
            float(self._law(one).saturations(self._likeliest(one))[0]) for one in (self.memory.running, arm)
        )
        return (there - here) * LASTS_S > here * policy.roll_seconds

    def _likeliest(self, arm: Arm) -> FloatArray:
        """The most likely factors on C1 and C2 of an arm, shape (1, 2)."""
        known = self.found.known
        return np.asarray(np.exp(known.mean).reshape(-1, 2)[[known.arms.index(arm)]])

    def _breached(self) -> bool:
        """Whether an objective is missed: by a measured quantile at the lower end of its bounds, or by a measured mean."""
        slo, load = self.policy.slo, self.load
        if load.strain is not None and load.strain[0] is not None and load.strain[0] > 1.0:
            return True
        pairs = ((load.latency_s, slo.e2e_s), (load.ttft_s, slo.ttft_s), (load.tpot_s, slo.tpot_s))
        return any(value is not None and limit is not None and value > limit for value, limit in pairs)

    def _keeps(self, arm: Arm) -> bool:
        """Whether an arm keeps the objectives at the present load where the running one does not."""
        return self._strain(arm) <= 1.0 < self._strain(self.memory.running)

    def _strain(self, arm: Arm) -> float:
        """Worst ratio of a figure to its limit, by the law as means and quantiles of live requests have corrected it."""
        running = np.array([self._by_means(self.memory.running)])
        return self._by_means(arm) * float(tail_factor(running, self.load.strain)[0])

    def _by_means(self, arm: Arm) -> float:
        """The worst ratio by the law as mean latency alone has corrected it; 0 without objectives."""
        law, factors = self._law(arm), self._likeliest(arm)
        if law.strain is None:
            return 0.0
        held = law.at(np.array([self.load.rps]), factors)
        return float(law.strain.at(held, factors)[0, 0])

    def _law(self, arm: Arm) -> FittedLaw:
        return next(law for law in self.laws if law.arm == arm)

    def _why_switch(self, to: Arm) -> Reason:
        if self.fewest is not None and to == self.fewest.arm:
            return Reason.FEWER_REPLICAS
        if self._keeps(to):
            return Reason.SLO_VIOLATED
        if self.load.saturated:
            return Reason.ENTERED_SATURATION
        return self._why_left() if to == NO_SPECULATION else Reason.GAIN_ABOVE_THRESHOLD

    def _why_left(self) -> Reason:
        running = self.memory.running
        live, calibrated = self._law(running).tokens_per_step, self._law(running).calibrated_tokens_per_step
        if live is not None and calibrated is not None and live < _FALLEN * calibrated:
            return Reason.ACCEPTANCE_COLLAPSED
        if self._never_pays(running):
            return Reason.NEVER_PAYS
        none = next(one for one in self.found.options if one.arm == NO_SPECULATION)
        if none.gross <= 0.0:
            # It saves nothing: what an overload may cost on the arm in place is all that asks for it.
            return Reason.RISK_TOO_HIGH
        return Reason.BEYOND_BREAK_EVEN if none.gross_now > 0.0 else Reason.PEAK_AHEAD

    def _never_pays(self, arm: Arm) -> bool:
        """Whether an arm is slower than no speculation alone and among others, under the present conditions."""
        one, none = self._law(arm), self._law(NO_SPECULATION)
        return one.c1_s > none.c1_s and one.c2_s > none.c2_s

    def _why_stay(self) -> Reason:
        running, best = self.memory.running, self._best_other()
        if best is None:
            return Reason.ALREADY_BEST
        if self.load.saturated:
            return Reason.SATURATED
        if running != NO_SPECULATION:
            none = next(one for one in self.found.options if one.arm == NO_SPECULATION)
            return Reason.BELOW_BREAK_EVEN if none.gross <= 0.0 else Reason.ROLL_NOT_WORTH_IT
        return self._why_without(best)

    def _why_without(self, best: ArmSaving) -> Reason:
        """Reason for which no speculative arm is entered, not even the best one."""
        if best.gross <= 0.0:
            if all(self._never_pays(one.arm) for one in self.found.options):
                return Reason.NEVER_PAYS
            return Reason.PEAK_AHEAD if best.gross_now > 0.0 else Reason.BEYOND_BREAK_EVEN
        if best.gross <= best.least:
            return Reason.GAIN_BELOW_THRESHOLD
        if best.risk > 0.0 and best.surely_net + best.risk > 0.0:
            return Reason.RISK_TOO_HIGH
        return Reason.ROLL_NOT_WORTH_IT if best.net <= 0.0 else Reason.WIDE_BOUNDS

    def _pays_until_rps(self, arm: Arm | None) -> float | None:
        """The break-even (1/s) by the learned laws, if the arm is the better one below it."""
        if arm is None:
            return None
        laws = [self._law(NO_SPECULATION), self._law(arm)]
        # The most likely laws, not the mean of drawn ones: near saturation the mean is far off.
        most = min(law.saturation_rps for law in laws)
        rates = np.linspace(0.0, most, _GRID)[1:]
        none, other = (law.at(rates, self._likeliest(law.arm))[0] for law in laws)
        behind = np.nonzero(other > none)[0]
        if not behind.size or behind[0] == 0 or behind[-1] != _GRID - 2:
            return None
        last = int(behind[0])
        gap = (none - other)[last - 1 : last + 1]
        return float(np.interp(0.0, gap[::-1], rates[last - 1 : last + 1][::-1]))


def decide(now: Situation) -> Decision:
    """Decide which arm should run.

    Pure: equal situations give equal decisions. The caller handles pinning, pausing and missing data.
    """
    arms, running = [law.arm for law in now.laws], now.memory.running
    measured = running in arms and NO_SPECULATION in arms
    if now.load.idle and not (measured and now.past.rps):
        return now.held(Reason.NO_LOAD, now.memory)
    if not measured:
        return now.held(Reason.NOT_MEASURED, now.memory)
    if now.fewest is not None:
        affordable = {running, NO_SPECULATION, *now.fewest.no_more_than(running)}
        now = replace(now, laws=[law for law in now.laws if law.arm in affordable])
    # The rule's own switch is within no limit yet.
    switched_s = now.memory.last_switch_s
    after = replace(now.found.memory, running=running, last_switch_s=switched_s, decided_s=now.now_s)
    return now.answer(after)


def with_acceptance(profile: Profile, memory: DecisionMemory, load: Load, now_s: float) -> DecisionMemory:
    """The memory with the live acceptance of the running arm's drafter moved towards the acceptance of this window.

    One window of unusual text must not end speculation for good, because an arm that was left shows no acceptance any more.
    A schedule's acceptance is a mixture over its draft lengths and is evidence about none of them.
    """
    running = memory.running
    if load.tokens_per_step is None or running == NO_SPECULATION or running.scheduled or load.idle:
        return memory
    weight = -math.expm1(-since_s(memory, load, now_s) / AVERAGED_S)
    known = next((seen for seen in memory.seen if seen.arm == running), None)
    if known is not None:
        moved = known.moved(load.tokens_per_step, load.survival, weight)
    else:
        fit, live = profile.fit_of(running), live_conditions(profile, load, memory.seen)(running)
        before = live.tokens_per_step or (fit and fit.tokens_per_step) or load.tokens_per_step
        # The step from a calibration, or from another draft length, to traffic does not count as scatter of traffic.
        e = before + share_of_steps(weight, load.tokens_per_step, before) * (load.tokens_per_step - before)
        moved = LiveAcceptance(running, e, load.survival)
    others = tuple(seen for seen in memory.seen if seen.arm.family != running.family)
    return replace(memory, seen=(*others, moved))


def followed_past(laws: Sequence[FittedLaw], past: PastRates) -> FollowedPast | None:
    """The past by its hours and the laws, rolls free; None if less than a day is known.

    Hindsight stands in for the decision of each hour, which makes the figure of the load an upper bound.
    """
    hours = np.floor(np.asarray(past.end_s, dtype=float) / _HOUR_S)
    known, places = np.unique(hours, return_inverse=True)
    arms = [law.arm for law in laws]
    if len(known) < _LEAST_HOURS or NO_SPECULATION not in arms:
        return None
    rates = np.bincount(places, weights=past.rps) / np.bincount(places)
    held = in_flight(laws, rates, np.ones((1, len(laws), 2)))[:, 0]
    whole, none = held.sum(axis=1), float(held[arms.index(NO_SPECULATION)].sum())
    if not none > 0.0:
        return None
    best, choices = int(whole.argmin()), held.argmin(axis=0)
    return FollowedPast(
        len(known) / 24.0,
        arms[best],
        1.0 - float(whole[best]) / none,
        1.0 - float(held.min(axis=0).sum()) / none,
        int((choices[1:] != choices[:-1]).sum()),
    )
