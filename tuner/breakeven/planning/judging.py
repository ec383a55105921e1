"""What the figures of now want, time left aside: another arm, or none and why.

Entering needs the lower bound of the gain, leaving needs the upper one: between them nothing happens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.planning.latency_model import LatencyModel
from breakeven.planning.policy import Policy
from breakeven.planning.standing import (
    Field,
    Load,
    Seen,
    Standing,
    bounds_of,
    speedup_bounds,
    survey,
)
from breakeven.reasons import Reason

EXTRAPOLATION_ERROR = 0.5
"""Relative error of the law in rates above utilisation 0.85: 10 % below it became 49 % on published sweeps."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A switch that the figures want.

    Attributes:
        target: the arm to run.
        reason: why.
        urgent: requests suffer now; it need not last for the dwell time.
    """

    target: Standing
    reason: Reason
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """No switch.

    Attributes:
        reason: why not.
        other: the arm that was considered, if any.
        uncertain: the figures do not allow a decision; otherwise they say that the running arm is right.
    """

    reason: Reason
    other: Standing | None
    uncertain: bool = False


# Live acceptance on chat scatters by 5 to 11 % between samples of thousands of drafts; less is no collapse.
_FALLEN = 0.85


def judge(
    profile: LatencyModel,
    field: Field,
    load: Load,
    policy: Policy,
    *,
    seen: Sequence[Seen],
    candidate: Arm | None,
) -> Wish | Refusal:
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
        return Refusal(Reason.NO_BELIEVABLE_FIT, None, uncertain=True)
    worthwhile = [c for c in field.candidates if _beats_none(c, policy)]
    lost = _lost_at_any_load(running, policy)
    if lost is not None or _loses_here(running, none, load, policy):
        # Whoever leaves may go to another speculative arm that is sure to gain. It need not be surely better than the
        # one that is left: that one is known to be worse than no speculation.
        target = fastest([none, *(c for c in worthwhile if not c.missed or none.missed)])
        reason = lost or Reason.BEYOND_BREAK_EVEN
        return Wish(target, reason, urgent=lost is Reason.ACCEPTANCE_COLLAPSED or load.saturated)
    if load.saturated:
        return _leave_saturated(field, running, policy)
    keeping = [
        c
        for c in (none, *worthwhile)
        if c.arm != running.arm and not c.missed and trusted(c, policy) and _checked_alike(c, running)
    ]
    if running.missed and keeping:
        return Wish(fastest(keeping), Reason.SLO_VIOLATED, urgent=True)
    entries = [
        c for c in worthwhile if _beats_running(c, running, load, policy) and (not c.missed or running.missed)
    ]
    if entries:
        return _enter(profile, _steady_choice(entries, candidate, policy), running.arm, load, policy, seen)
    return _stay_speculating(field, running, policy) if running.arm.k else _stay_without(field, policy)


def _checked_alike(c: Standing, running: Standing) -> bool:
    """Whether an arm's objectives are held against the same figures: its mean keeps what a p95 misses on any arm."""
    return set(c.unmeasured) <= set(running.unmeasured)


def trusted(standing: Standing, policy: Policy) -> bool:
    """Whether the load lies where the arm's law may be believed."""
    prediction = standing.prediction
    return standing.utilisation <= policy.max_utilisation and not (
        prediction.extrapolated or prediction.saturated
    )


def fastest(standings: Sequence[Standing]) -> Standing:
    """Return the arm with the lowest predicted latency; of equals the first."""
    return min(standings, key=lambda c: c.latency_s)


def _lost_at_any_load(running: Standing, policy: Policy) -> Reason | None:
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


def _worse_in_both(standing: Standing) -> bool:
    """Whether an arm is surely slower than no speculation alone and in company."""
    comparison = standing.against_none
    return (
        comparison is not None
        and min(bounds_of(comparison.c1_ratio_ci)[0], bounds_of(comparison.c2_ratio_ci)[0]) > 1.0
    )


def _loses_here(running: Standing, none: Standing, load: Load, policy: Policy) -> bool:
    """Whether the running arm is surely slower than no speculation at this load."""
    comparison = running.against_none
    if comparison is None:
        return False
    if speedup_bounds(comparison)[1] >= 1.0 + policy.exit_margin:
        # Next to its saturation an arm's bounds open, while its requests already queue: where the law of no
        # speculation may be believed, what requests really take is the better witness.
        estimate = comparison.speedup
        loses = estimate is not None and estimate < 1.0 + policy.exit_margin
        return (
            loses
            and not trusted(running, policy)
            and trusted(none, policy)
            and _slower_live(none, load, doubtful=True)
        )
    if trusted(running, policy) and trusted(none, policy):
        return True
    # A law is extrapolation here: what requests really take must say the same, by more than the law may be wrong.
    return _slower_live(none, load, doubtful=not trusted(none, policy))


def _slower_live(none: Standing, load: Load, *, doubtful: bool) -> bool:
    """Whether requests take longer than no speculation would need, by a wide margin where a law is in doubt."""
    if load.latency_s is None or none.prediction.latency_s is None:
        return False
    slowest = bounds_of(none.prediction.latency_ci_s)[1]
    return load.latency_s > slowest * (1.0 + EXTRAPOLATION_ERROR if doubtful else 1.0)


def _leave_saturated(field: Field, running: Standing, policy: Policy) -> Wish | Refusal:
    """Measured saturation: laws are silent here, what counts is which arm carries more."""
    carrying = [
        c
        for c in field.candidates
        if c.saturation_rps > running.saturation_rps * (1.0 + policy.min_gain)
        and (c.arm == NO_SPECULATION or trusted(c, policy))
    ]
    if not carrying:
        return Refusal(
            Reason.SATURATED, fastest(field.candidates) if field.candidates else None, uncertain=True
        )
    steady = [c for c in carrying if trusted(c, policy)]
    target = fastest(steady) if steady else max(carrying, key=lambda c: c.saturation_rps)
    return Wish(target, Reason.ENTERED_SATURATION, urgent=True)


def _beats_none(c: Standing, policy: Policy) -> bool:
    """Whether a speculative arm is surely better than no speculation, where its law may be believed."""
    if c.against_none is None or not trusted(c, policy):
        return False
    e = c.tokens_per_step if c.tokens_per_step is not None else c.calibrated_tokens_per_step
    # The same bound by which an arm is left: a law that promises more than E would bring it back for ever.
    sure = min(speedup_bounds(c.against_none)[0], math.inf if e is None else e)
    return sure > 1.0 + policy.min_gain


def _beats_running(c: Standing, running: Standing, load: Load, policy: Policy) -> bool:
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


def _steady_choice(entries: Sequence[Standing], candidate: Arm | None, policy: Policy) -> Standing:
    """Choose the fastest; two arms that take turns by a hair would never dwell long enough."""
    best = fastest(entries)
    for c in entries:
        if c.arm == candidate and c.latency_s <= best.latency_s * (1.0 + policy.min_gain):
            return c
    return best


def _enter(
    profile: LatencyModel, c: Standing, running: Arm, load: Load, policy: Policy, seen: Sequence[Seen]
) -> Wish | Refusal:
    """Wish for an arm whose gain is sure, if it is also worth the roll and survives the peak."""
    if not _pays_for_roll(c, policy):
        return Refusal(Reason.ROLL_NOT_WORTH_IT, c)
    if not _survives_peak(profile, c, running, load, policy, seen):
        return Refusal(Reason.PEAK_AHEAD, c)
    return Wish(c, Reason.GAIN_ABOVE_THRESHOLD)


def _pays_for_roll(c: Standing, policy: Policy) -> bool:
    """Whether the time saved over the horizon exceeds the capacity that the roll takes from each replica."""
    comparisons = (c.against_none, c.against_running)
    sure = min(speedup_bounds(comparison)[0] for comparison in comparisons if comparison is not None)
    return (1.0 - 1.0 / sure) * policy.horizon_s > policy.roll_seconds


def _survives_peak(
    profile: LatencyModel, c: Standing, running: Arm, load: Load, policy: Policy, seen: Sequence[Seen]
) -> bool:
    """Whether the arm would still be kept at the highest load that the horizon is expected to bring."""
    if load.peak_rps is None or load.peak_rps <= load.rps:
        return True
    later = replace(load, rps=load.peak_rps, latency_s=None, inflight=None, peak_rps=None)
    field = survey(profile, later, c.arm, (running,), seen, policy.slo)
    if field.running is None or field.running.utilisation >= 1.0:
        # Saturation ahead is worth avoiding only if another arm would carry that load.
        return field.running is not None and all(other.utilisation >= 1.0 for other in field.candidates)
    sure_losses = (speedup_bounds(o.against_running)[0] for o in field.candidates if o.against_running)
    return all(lower <= 1.0 + policy.exit_margin for lower in sure_losses)


def _stay_speculating(field: Field, running: Standing, policy: Policy) -> Refusal:
    """Name the reason for which a running speculative arm stays."""
    rival = fastest(field.candidates)
    lower, upper = speedup_bounds(running.against_none)
    if not trusted(running, policy):
        return Refusal(Reason.EXTRAPOLATED, rival, uncertain=True)
    if lower <= 1.0 <= upper:
        return Refusal(Reason.WIDE_BOUNDS, rival, uncertain=True)
    if rival.arm.k and rival.latency_s < running.latency_s:
        return Refusal(Reason.GAIN_BELOW_THRESHOLD, rival)
    return Refusal(Reason.BELOW_BREAK_EVEN, rival)


def _stay_without(field: Field, policy: Policy) -> Refusal:
    """Name the reason for which no speculation stays."""
    if not field.candidates:
        return Refusal(Reason.ALREADY_BEST, None)
    rival = fastest(field.candidates)
    lower, upper = speedup_bounds(rival.against_none)
    if all(map(_worse_in_both, field.candidates)):
        return Refusal(Reason.NEVER_PAYS, rival)
    if upper < 1.0:
        return Refusal(Reason.BEYOND_BREAK_EVEN, rival)
    if not trusted(rival, policy):
        return Refusal(Reason.EXTRAPOLATED, rival, uncertain=True)
    gains = rival.against_none is not None and (rival.against_none.speedup or 0.0) > 1.0 + policy.min_gain
    if gains and lower <= 1.0:
        return Refusal(Reason.WIDE_BOUNDS, rival, uncertain=True)
    return Refusal(Reason.GAIN_BELOW_THRESHOLD, rival)
