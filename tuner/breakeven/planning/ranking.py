"""Every arm at one load: predicted, compared with no speculation, checked against objectives; and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import NotIdentifiedError
from breakeven.planning.objective import Slo
from breakeven.planning.standing import speedup_bounds
from breakeven.planning.trust import extrapolated
from breakeven.profile import Comparison, Conditions, Curve, LoadPoint, Prediction, Profile
from breakeven.reasons import Reason

_FAR = 1e9
"""More others in flight than any engine holds: a figure that keeps its limit there does not rise with load."""

_EXACT = 1e-9


@dataclass(frozen=True, slots=True)
class Candidate:
    """One arm at the load.

    Attributes:
        arm: the arm.
        measured: whether it was measured, rather than derived from the pooled form.
        believable: whether decisions may rest on it.
        prediction: at the load.
        extrapolated: whether the prediction is an extrapolation, on which no arm is chosen.
        tokens_per_step: E that was assumed; None where none is known.
        comparison: against no speculation; None where that was not measured, and for no speculation itself.
        saturation_rps: rate beyond which it has no steady state.
        promised: what the objectives are about: the quantile asked for, or the means; at the load.
        meets_slo: whether all objectives are kept, by an arm that carries the load at all; None where nothing was
            measured of an objective's figure.
        unmeasured: objectives that are held against a mean, or nothing, because their quantile was not measured.
        capacity_rps: largest rate that keeps the objectives; saturation without any; None where unknown.
        tokens_per_second: output tokens of the replica; None where the output length is unknown.
    """

    arm: Arm
    measured: bool
    believable: bool
    prediction: Prediction
    extrapolated: bool
    tokens_per_step: float | None
    comparison: Comparison | None
    saturation_rps: float
    promised: Prediction
    meets_slo: bool | None
    unmeasured: tuple[str, ...]
    capacity_rps: float | None
    tokens_per_second: float | None


@dataclass(frozen=True, slots=True)
class Ranking:
    """All candidates at one load.

    Attributes:
        best: the recommended arm.
        reason: the word that says why.
        candidates: every arm, no speculation first.
        kept: the arm that the operator would keep, because that the best one is faster is an extrapolation; None where it
            would run the best one.
        skipped: arms left out, with a sentence each.
    """

    best: Arm
    reason: Reason
    candidates: tuple[Candidate, ...]
    kept: Arm | None
    skipped: tuple[str, ...] = field(default=())

    @property
    def chosen(self) -> Candidate:
        """The best arm's entry."""
        return next(one for one in self.candidates if one.arm == self.best)


def rank(
    profile: Profile,
    load: LoadPoint,
    conditions: Callable[[Arm], Conditions],
    slo: Slo,
    *,
    unmeasured: Sequence[Arm] = (),
    min_gain: float = 0.0,
    rps_range: tuple[float, float] | None = None,
    confidence: float | None = None,
) -> Ranking:
    """Predict, compare and choose.

    Args:
        profile: the fit.
        load: rate or concurrency of one replica.
        conditions: acceptance and lengths to predict an arm for.
        slo: what is promised.
        unmeasured: arms to add from the pooled form.
        min_gain: where above 0, an arm is only chosen if the lower bound of its speedup exceeds 1 + min_gain.
        rps_range: rates for which verdicts are meant; None: the measured range.
        confidence: level of the bounds; None: the profile's.

    Raises:
        NotIdentifiedError: no arm has a law, or an objective is about a figure that no arm was measured for.
    """
    candidates, skipped = [], []
    for arm in [*(fit.arm for fit in profile.arms), *unmeasured]:
        try:
            candidates.append(_candidate(profile, arm, load, conditions, slo, rps_range, confidence))
        except NotIdentifiedError as problem:
            skipped.append(str(problem))
    if not candidates:
        raise NotIdentifiedError(skipped[0] if skipped else "the profile holds no arm")
    if _asks_for_more(slo) and all(one.meets_slo is None for one in candidates):
        raise NotIdentifiedError("an objective is about TTFT or TPOT, which was measured for no arm")
    best, reason, kept = _choose(candidates, min_gain)
    return Ranking(best, reason, tuple(candidates), kept, tuple(skipped))


def _asks_for_more(slo: Slo) -> bool:
    return any(limit is not None for limit in (slo.tpot_s, slo.ttft_s))


def _candidate(
    profile: Profile,
    arm: Arm,
    load: LoadPoint,
    conditions: Callable[[Arm], Conditions],
    slo: Slo,
    rps_range: tuple[float, float] | None,
    confidence: float | None,
) -> Candidate:
    wanted = conditions(arm)
    curve = profile.curve(arm, wanted)
    prediction = profile.predict_along(arm, curve, load, wanted, confidence=confidence)
    promised = profile.predict_along(arm, curve, load, wanted, quantile=slo.quantile)
    measured = profile.measured(arm)
    comparison = None
    if arm != NO_SPECULATION and profile.measured(NO_SPECULATION) and profile.arm(NO_SPECULATION).fit:
        comparison = profile.compare(
            arm,
            rps=load.rps,
            concurrency=load.concurrency,
            tokens_per_step=wanted.tokens_per_step,
            prompt_tokens=wanted.prompt_tokens,
            output_tokens=wanted.output_tokens,
            rps_range=rps_range,
            confidence=confidence,
        )
    return Candidate(
        arm,
        measured,
        profile.arm(arm).believable if measured else _between(profile, arm),
        prediction,
        extrapolated(prediction, open_loop=load.rps is not None),
        wanted.tokens_per_step or (profile.arm(arm).tokens_per_step if measured else None),
        comparison,
        curve.saturation_rps,
        promised,
        False if slo.missed(promised) else None if slo.lacks(promised) else not promised.saturated,
        slo.unmeasured(promised),
        _capacity_rps(profile, arm, curve, wanted, slo),
        _tokens_per_second(profile, arm, load, wanted, prediction),
    )


def _between(profile: Profile, arm: Arm) -> bool:
    """Whether an unmeasured draft length lies between measured ones, no speculation included."""
    return any(
        pooled.method == arm.family and arm.k <= max(pooled.draft_lengths) for pooled in profile.pooled
    )


def _capacity_rps(profile: Profile, arm: Arm, curve: Curve, wanted: Conditions, slo: Slo) -> float | None:
    """Largest rate that keeps every objective; each figure rises with load, so its limit is a number in flight."""
    if not slo.is_set:
        return curve.saturation_rps

    def among(others: float) -> Prediction:
        return profile.predict_along(
            arm, curve, LoadPoint(concurrency=others + 1.0), wanted, quantile=slo.quantile
        )

    if slo.lacks(among(0.0)):
        return None
    others = _most_others(lambda others: slo.keeps(among(others)))
    return min(curve.saturation_rps, others / curve.among(others)[0])


def _most_others(kept: Callable[[float], bool]) -> float:
    """Largest number of others in flight at which objectives are kept; 0 where a lone request misses one."""
    low, high = 0.0, 1.0
    while kept(high) and high < _FAR:
        low, high = high, 2.0 * high
    if high >= _FAR or not kept(low):
        return low
    while high - low > _EXACT * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low


def _tokens_per_second(
    profile: Profile, arm: Arm, load: LoadPoint, wanted: Conditions, prediction: Prediction
) -> float | None:
    tokens = wanted.output_tokens
    if tokens is None:
        fits = [fit for fit in profile.arms if fit.arm == arm] or list(profile.arms)
        tokens = fits[0].lengths.output_tokens
    if tokens is None or prediction.latency_s is None:
        return None
    rate = load.rps if load.rps is not None else float(load.concurrency or 1.0) / prediction.latency_s
    return rate * tokens


def _choose(candidates: Sequence[Candidate], min_gain: float) -> tuple[Arm, Reason, Arm | None]:
    """Return the best arm, why, and the arm that the operator would keep where that is another one.

    The best arm has the lowest expected latency. The operator enters no speculative arm on an extrapolation; no
    speculation needs no entering.
    """
    believed = [one for one in candidates if one.believable] or list(candidates)
    steady = [one for one in believed if not one.prediction.saturated]
    if not steady:
        return max(believed, key=lambda one: one.saturation_rps).arm, Reason.SATURATED, None
    best, reason = _best(steady, candidates, min_gain)
    if not best.arm.k or not best.extrapolated or reason == Reason.NO_BELIEVABLE_FIT:
        return best.arm, reason, None
    enterable = [one for one in steady if not one.arm.k or not one.extrapolated]
    kept = _best(enterable, candidates, min_gain)[0].arm if enterable else None
    return best.arm, Reason.EXTRAPOLATED, kept


def _best(
    steady: Sequence[Candidate], candidates: Sequence[Candidate], min_gain: float
) -> tuple[Candidate, Reason]:
    """Lowest expected latency among arms that carry the load, of those that keep the objectives and gain enough."""
    # An objective that cannot be checked is not kept: such an arm is chosen only where no other one is left, and one
    # whose mean was taken for a quantile only where no other one surely keeps it.
    keeping = (
        [one for one in steady if one.meets_slo and not one.unmeasured]
        or [one for one in steady if one.meets_slo]
        or [one for one in steady if one.meets_slo is None]
        or steady
    )
    eligible = [one for one in keeping if one.arm == NO_SPECULATION or _gains(one, min_gain)] or keeping
    best = min(eligible, key=lambda one: one.prediction.latency_s or float("inf"))
    return best, _reason(best, candidates, keeping, min_gain)


def _gains(one: Candidate, min_gain: float) -> bool:
    if min_gain <= 0 or one.comparison is None:
        return True
    # The speedup is at most E, whatever a law promises.
    return min(speedup_bounds(one.comparison)[0], one.tokens_per_step or float("inf")) > 1.0 + min_gain


def _reason(
    best: Candidate, candidates: Sequence[Candidate], keeping: Sequence[Candidate], min_gain: float
) -> Reason:
    if not any(one.believable for one in candidates):
        return Reason.NO_BELIEVABLE_FIT
    if best.meets_slo is False:
        return Reason.SLO_VIOLATED
    if best.arm == NO_SPECULATION:
        return _reason_for_none(best, candidates, keeping, min_gain)
    bounds = best.comparison.speedup_ci if best.comparison is not None else None
    if bounds is not None and (bounds[0] or 0.0) <= 1.0 and (bounds[1] is None or bounds[1] >= 1.0):
        return Reason.WIDE_BOUNDS
    if not _gains(best, min_gain):
        return Reason.SLO_VIOLATED  # chosen for an objective that no speculation misses, not for its gain
    return Reason.ALREADY_BEST if best.comparison is None else Reason.GAIN_ABOVE_THRESHOLD


def _reason_for_none(
    none: Candidate, candidates: Sequence[Candidate], keeping: Sequence[Candidate], min_gain: float
) -> Reason:
    if len(candidates) == 1:
        return Reason.ALREADY_BEST
    if all(one.comparison is not None and one.comparison.verdict == "never" for one in candidates[1:]):
        return Reason.NEVER_PAYS
    limit = none.prediction.latency_s or 0.0
    if min_gain > 0 and any((one.prediction.latency_s or limit) < limit for one in keeping):
        return Reason.GAIN_BELOW_THRESHOLD
    return Reason.WIDE_BOUNDS if any(map(_may_gain, keeping)) else Reason.BEYOND_BREAK_EVEN


def _may_gain(one: Candidate) -> bool:
    """Whether the bounds of an arm's speedup leave room for a gain."""
    if one.comparison is None or one.comparison.speedup_ci is None:
        return False
    upper = one.comparison.speedup_ci[1]
    return upper is None or upper > 1.0
