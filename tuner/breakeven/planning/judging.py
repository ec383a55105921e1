"""What the figures want, time left aside: another arm, or none and why.

Entering needs the lower bound of the gain, leaving needs the upper one: between them nothing happens. All the
expected loads, not the present one alone, decide which of several arms is entered and whether it is worth a roll.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.laws.latency import longest_by_chance
from breakeven.planning.evaluation import ArmEvaluation, Evaluations, bounds_of, speedup_bounds
from breakeven.planning.observed_load import LiveAcceptance, Load
from breakeven.planning.policy import Policy
from breakeven.planning.rolling import Roll
from breakeven.planning.trust import extrapolated
from breakeven.profile import Comparison, Profile
from breakeven.reasons import Reason

EXTRAPOLATION_ERROR = 0.5
"""Relative error of the law in rates above utilisation 0.85: 10 % below it became 49 % on published sweeps."""


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch that the figures want.

    Attributes:
        target: the arm to run.
        reason: why.
        dwell_s: how long it must have been wished for (s); `None`: the policy's dwell time, which is also the most.
    """

    target: ArmEvaluation
    reason: Reason
    dwell_s: float | None = None


@dataclass(frozen=True, slots=True)
class NoSwitch:
    """No switch.

    Attributes:
        reason: why not.
        other: the arm that was considered, if any.
        uncertain: the figures do not allow a decision; otherwise they say that the running arm is right.
    """

    reason: Reason
    other: ArmEvaluation | None
    uncertain: bool = False


# Live acceptance on chat scatters by 5 to 11 % between samples of thousands of drafts; less is no collapse.
_FALLEN = 0.85


def judge(
    profile: Profile,
    field: Evaluations,
    load: Load,
    policy: Policy,
    *,
    seen: Sequence[LiveAcceptance],
    candidate: Arm | None,
) -> Switch | NoSwitch:
    """Say which arm the figures want.

    Args:
        profile: the fitted model.
        field: every arm's figures at this load.
        load: what was observed.
        policy: how sure one must be.
        seen: live acceptance, to look at the expected peak with.
        candidate: the arm that was wished for last time; kept among equals.
    """
    running, none = field.running, field.none
    if running is None or none is None:
        return NoSwitch(Reason.NO_BELIEVABLE_FIT, None, uncertain=True)
    worthwhile = [c for c in field.others if _beats_none(c, policy)]
    lost = _lost_at_any_load(running, policy)
    roll = Roll(profile, load, policy, tuple(seen))
    slow = _surely_slow(running, none, roll)
    if lost is not None or slow or _loses_by_law(running, none, load, policy):
        # Whoever leaves may go to another speculative arm that is sure to gain. It need not be surely better than the
        # one that is left: that one is known to be worse than no speculation.
        target = _best_ahead([none, *(c for c in worthwhile if not c.missed or none.missed)])
        reason = lost or Reason.BEYOND_BREAK_EVEN
        if load.saturated:
            return Switch(target, reason, dwell_s=0.0)
        # A second window of other requests must say so too: what holds longer than that is no burst.
        return Switch(target, reason, dwell_s=load.window_s if slow else None)
    if load.saturated:
        return _leave_saturated(field, running, policy)
    keeping = [
        c
        for c in (none, *worthwhile)
        if c.arm != running.arm and not c.missed and trusted(c, policy) and _checked_alike(c, running)
    ]
    if running.missed and keeping:
        return Switch(_best_ahead(keeping), Reason.SLO_VIOLATED, dwell_s=0.0)
    return _at_leisure(field, _Pair(running, none), worthwhile, roll, candidate)


@dataclass(frozen=True, slots=True)
class _Pair:
    """The running arm and no speculation, both with a believable fit."""

    running: ArmEvaluation
    none: ArmEvaluation


def _at_leisure(
    field: Evaluations, now: _Pair, worthwhile: Sequence[ArmEvaluation], roll: Roll, candidate: Arm | None
) -> Switch | NoSwitch:
    """What to do where nothing presses: enter an arm, leave one in time, or stay and say why."""
    running, policy = now.running, roll.policy
    if _works_off_a_queue(running, roll.load, policy):
        other = fastest(field.others) if field.others else None
        return NoSwitch(Reason.NOT_STEADY, other, uncertain=True)
    entries = [
        c
        for c in worthwhile
        if _beats_running(c, running, roll.load, policy) and (not c.missed or running.missed)
    ]
    entering = _enter(_steady_choice(entries, candidate, policy), now, roll) if entries else None
    if isinstance(entering, Switch):
        return entering
    leaving = _leave_before_peak(running, [c for c in (now.none, *worthwhile) if not c.missed], roll)
    staying = _stay_speculating if running.arm.k else _stay_without
    return leaving or entering or staying(field, now, policy)


def _checked_alike(c: ArmEvaluation, running: ArmEvaluation) -> bool:
    """Whether an arm's objectives are held against the same figures: its mean keeps what a p95 misses on any arm."""
    return set(c.unmeasured) <= set(running.unmeasured)


def trusted(standing: ArmEvaluation, policy: Policy) -> bool:
    """Whether the load lies where the arm's law may be believed."""
    return not extrapolated(standing.prediction, policy.max_utilisation)


def fastest(standings: Sequence[ArmEvaluation]) -> ArmEvaluation:
    """Return the arm with the lowest predicted latency; of equals the first."""
    return min(standings, key=lambda c: c.latency_s)


def _lost_at_any_load(running: ArmEvaluation, policy: Policy) -> Reason | None:
    """Why the running arm cannot gain at any load, if it cannot; no extrapolation is involved."""
    comparison, e = running.against_none, running.tokens_per_step
    if comparison is None:
        return None
    # The speedup is at most E: each step of speculation costs at least a plain one.
    if e is not None and e < 1.0 + policy.min_gain:
        return Reason.ACCEPTANCE_COLLAPSED
    if not _worse_in_both(running):
        return None
    calibrated = running.calibrated_tokens_per_step
    fell = e is not None and calibrated is not None and e < _FALLEN * calibrated
    return Reason.ACCEPTANCE_COLLAPSED if fell else Reason.NEVER_PAYS


def _worse_in_both(standing: ArmEvaluation) -> bool:
    """Whether an arm is surely slower than no speculation alone and in company."""
    comparison = standing.against_none
    return (
        comparison is not None
        and min(bounds_of(comparison.c1_ratio_ci)[0], bounds_of(comparison.c2_ratio_ci)[0]) > 1.0
    )


def _loses_by_law(running: ArmEvaluation, none: ArmEvaluation, load: Load, policy: Policy) -> bool:
    """Whether the running arm is surely slower than no speculation by the laws, borne out where one is extrapolation."""
    if speedup_bounds(running.against_none)[1] >= 1.0 + policy.exit_margin:
        return False
    if trusted(running, policy) and trusted(none, policy):
        return True
    # What requests really take must say the same, by more than the law of no speculation may be wrong.
    doubt = 0.0 if trusted(none, policy) else EXTRAPOLATION_ERROR
    return load.latency_s is not None and load.latency_s > _slowest_s(none) * (1.0 + doubt)


def _surely_slow(running: ArmEvaluation, none: ArmEvaluation, roll: Roll) -> bool:
    """Whether requests really take longer than no speculation surely would, where its law alone may be believed.

    Between the trusted utilisation and saturation the running arm's law is extrapolation; what its requests take is not.
    Only while a queue is worked off, at a load at which that law sees a gain, do they say nothing of this load.
    """
    load, policy = roll.load, roll.policy
    if load.latency_s is None or running.against_none is None:
        return False
    if trusted(running, policy) or not trusted(none, policy):
        return False
    least = 1.0 + policy.exit_margin
    if (running.against_none.speedup or 0.0) >= least and _queues(running, load):
        return False
    slowest_s = _slowest_s(none)
    # Asked is whether a running arm that needs just as long could show this mean by chance.
    alone_s = running.curve.at_rps(0.0).latency_s
    return bool(
        alone_s
        and longest_by_chance(alone_s, slowest_s, load.requests, roll.profile.confidence)
        < least * load.latency_s
    )


def _slowest_s(standing: ArmEvaluation) -> float:
    """Upper bound of an arm's latency (s), infinite where it is open."""
    return bounds_of(standing.prediction.latency_ci_s)[1]


def _leave_saturated(field: Evaluations, running: ArmEvaluation, policy: Policy) -> Switch | NoSwitch:
    """Measured saturation: laws are silent here, what counts is which arm carries more."""
    carrying = [
        c
        for c in field.others
        if c.saturation_rps > running.saturation_rps * (1.0 + policy.min_gain)
        and (c.arm == NO_SPECULATION or trusted(c, policy))
    ]
    if not carrying:
        return NoSwitch(Reason.SATURATED, fastest(field.others) if field.others else None, uncertain=True)
    steady = [c for c in carrying if trusted(c, policy)]
    target = fastest(steady) if steady else max(carrying, key=lambda c: c.saturation_rps)
    return Switch(target, Reason.ENTERED_SATURATION, dwell_s=0.0)


def _beats_none(c: ArmEvaluation, policy: Policy) -> bool:
    """Whether a speculative arm is surely better than no speculation, where its law may be believed."""
    if c.against_none is None or not trusted(c, policy):
        return False
    e = c.tokens_per_step if c.tokens_per_step is not None else c.calibrated_tokens_per_step
    # The same bound by which an arm is left: a law that promises more than E would bring it back for ever.
    sure = min(speedup_bounds(c.against_none)[0], math.inf if e is None else e)
    return sure > 1.0 + policy.min_gain


def _beats_running(c: ArmEvaluation, running: ArmEvaluation, load: Load, policy: Policy) -> bool:
    """Whether an arm is surely better than the running one."""
    if c.against_running is None:
        return False
    sure = speedup_bounds(c.against_running)[0]
    if not trusted(running, policy):
        # The running arm's law is extrapolation here: what its requests really take must show the gain as well.
        if load.latency_s is None:
            return False
        sure = min(sure, load.latency_s / bounds_of(c.prediction.latency_ci_s)[1])
    return sure > 1.0 + policy.min_gain


def _works_off_a_queue(running: ArmEvaluation, load: Load, policy: Policy) -> bool:
    """Whether no figure of a law says what another arm would do, because a queue is being worked off."""
    return trusted(running, policy) and _queues(running, load)


def _queues(running: ArmEvaluation, load: Load) -> bool:
    """Whether requests take far longer than the running arm needs at rest."""
    return load.latency_s is not None and load.latency_s > _slowest_s(running) * (1.0 + EXTRAPOLATION_ERROR)


def _best_ahead(standings: Sequence[ArmEvaluation]) -> ArmEvaluation:
    """Return the arm with the lowest latency over the loads that are expected; of equals the faster one now."""
    return min(standings, key=lambda c: (c.ahead_s, c.latency_s))


def _steady_choice(entries: Sequence[ArmEvaluation], candidate: Arm | None, policy: Policy) -> ArmEvaluation:
    """Choose the best one ahead; two arms that take turns by a hair would never dwell long enough."""
    best = _best_ahead(entries)
    for c in entries:
        if c.arm == candidate and c.ahead_s <= best.ahead_s * (1.0 + policy.min_gain):
            return c
    return best


def _enter(c: ArmEvaluation, now: _Pair, roll: Roll) -> Switch | NoSwitch:
    """Switch to an arm that surely gains at the present load, if it gains over the expected loads and repays the roll."""
    comparisons = [comparison for comparison in (c.against_none, c.against_running) if comparison is not None]
    gain = min(speedup_bounds(comparison)[0] for comparison in comparisons)
    if roll.load.expected:
        # The lower bound lies below the estimate by the same factor as at the present load.
        doubt = min(_doubt(comparison) for comparison in comparisons)
        gain = doubt * min(now.running.ahead_s, now.none.ahead_s) / c.ahead_s
        if gain <= 1.0 + roll.policy.exit_margin:
            return NoSwitch(Reason.PEAK_AHEAD, c)
    if not roll.paid_by(gain, now.running, c):
        return NoSwitch(Reason.ROLL_NOT_WORTH_IT, c)
    return Switch(c, Reason.GAIN_ABOVE_THRESHOLD)


def _doubt(comparison: Comparison) -> float:
    """Lower bound of a speedup over its estimate."""
    estimate = comparison.speedup
    return 1.0 if not estimate or math.isinf(estimate) else min(speedup_bounds(comparison)[0] / estimate, 1.0)


def _leave_before_peak(running: ArmEvaluation, keeping: Sequence[ArmEvaluation], roll: Roll) -> Switch | None:
    """Wish to leave a speculative arm while there is room to roll, where a peak is ahead at which it surely loses.

    At the peak itself a roll takes capacity that is not there.
    """
    policy = roll.policy
    options = [c for c in keeping if c.arm != running.arm and trusted(c, policy)]
    if not running.arm.k or not roll.load.expected or not options:
        return None
    best = _best_ahead(options)
    gain = running.ahead_s / best.ahead_s
    if gain <= 1.0 + policy.min_gain or not roll.paid_by(gain, running, best):
        return None
    there = roll.at_peak(running.arm, best.arm)
    return Switch(best, Reason.PEAK_AHEAD) if _loses_there(there, best.arm, policy) else None


def _loses_there(there: Evaluations, other: Arm, policy: Policy) -> bool:
    """Whether the running arm is surely worse than another one at a load, or saturates first."""
    running, rival = there.running, next((c for c in there.others if c.arm == other), None)
    if running is None or rival is None:
        return False
    if running.prediction.saturated and rival.prediction.saturated:
        return rival.saturation_rps > running.saturation_rps * (1.0 + policy.min_gain)
    return speedup_bounds(rival.against_running)[0] > 1.0 + policy.exit_margin


def _stay_speculating(field: Evaluations, now: _Pair, policy: Policy) -> NoSwitch:
    """Name the reason for which a running speculative arm stays."""
    running, rival = now.running, fastest(field.others)
    lower, upper = speedup_bounds(running.against_none)
    if not trusted(running, policy):
        return NoSwitch(Reason.EXTRAPOLATED, rival, uncertain=True)
    if lower <= 1.0 <= upper:
        return NoSwitch(Reason.WIDE_BOUNDS, rival, uncertain=True)
    if rival.arm.k and rival.latency_s < running.latency_s:
        return NoSwitch(Reason.GAIN_BELOW_THRESHOLD, rival)
    return NoSwitch(Reason.BELOW_BREAK_EVEN, rival)


def _stay_without(field: Evaluations, _: _Pair, policy: Policy) -> NoSwitch:
    """Name the reason for which no speculation stays."""
    if not field.others:
        return NoSwitch(Reason.ALREADY_BEST, None)
    rival = fastest(field.others)
    lower, upper = speedup_bounds(rival.against_none)
    if all(map(_worse_in_both, field.others)):
        return NoSwitch(Reason.NEVER_PAYS, rival)
    if upper < 1.0:
        return NoSwitch(Reason.BEYOND_BREAK_EVEN, rival)
    if not trusted(rival, policy):
        return NoSwitch(Reason.EXTRAPOLATED, rival, uncertain=True)
    gains = rival.against_none is not None and (rival.against_none.speedup or 0.0) > 1.0 + policy.min_gain
    if gains and lower <= 1.0:
        return NoSwitch(Reason.WIDE_BOUNDS, rival, uncertain=True)
    return NoSwitch(Reason.GAIN_BELOW_THRESHOLD, rival)
