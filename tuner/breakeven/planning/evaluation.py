"""Every arm at one load: predicted with bounds, compared, and checked against the objectives.

`plan`, `simulate`, `report` and the operator ask this one question, and differ in two things:

- A person sees draft lengths that were not measured as well (`derived`). The operator acts by itself, so that it leaves
  them out.
- A person names an acceptance to predict for, and is refused if the profile cannot be converted to it. A live
  acceptance is a fact: if the profile has no calibrated one, the law stays as it was calibrated.

The best arm is named without a memory, as `plan` does. Without a required gain that is by expected latency: it may be an arm
on an extrapolation, or for a gain that is not significant. `kept` is the arm that needs neither.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError, NotIdentifiedError
from breakeven.estimate import Estimate
from breakeven.laws.arrays import FloatArray, Span
from breakeven.planning.capacity import Capacity, capacity_along
from breakeven.planning.decision_memory import LiveAcceptance
from breakeven.planning.objective import ObjectiveStrain, Slo, objective_strain
from breakeven.planning.observed_load import live_conditions
from breakeven.profile import Bounds, Comparison, Conditions, Curve, LoadPoint, Prediction, Profile
from breakeven.profile.comparisons import compare_curves
from breakeven.profile.operating_conditions import ConditionsOf, as_measured
from breakeven.reasons import Reason
from breakeven.serving.counted_window import Load

TRUSTED_UTILISATION = 0.75
"""Beyond this share of saturation the open-loop form amplifies a 10 % error to 50 %."""


@dataclass(frozen=True, eq=False)
class ArmEvaluation:
    """One arm at the load. Figures are computed when they are first asked for: a decision needs the curve alone.

    Attributes:
        measured: whether it was measured; if not, the law of steps rests on rows of other arms.
        curve: its latency against load, under `conditions`.
        tokens_per_step: E that was asked for, or measured live; None as calibrated.
        calibrated_tokens_per_step: E when the arm was measured; None if it was not.
    """

    arm: Arm
    measured: bool
    curve: Curve
    conditions: Conditions
    tokens_per_step: float | None
    calibrated_tokens_per_step: float | None
    profile: Profile
    question: LoadQuestion
    comparable: frozenset[Arm]

    def at_prompts(self, tokens: float) -> Curve:
        """The same arm with prompts of another mean.

        Raises:
            BreakevenError: its prompts were not measured, or cannot be so.
        """
        return self.profile.curve(self.arm, replace(self.conditions, prompt_tokens=tokens))

    @cached_property
    def prediction(self) -> Prediction:
        """Means at the load."""
        return self._along()

    @cached_property
    def promised(self) -> Prediction:
        """The figures of the objectives: the quantile asked for, or the means."""
        slo = self.question.slo
        if not slo.is_set or slo.quantile is None:
            return self.prediction
        return self._along(slo.quantile)

    @property
    def latency_s(self) -> float:
        """Predicted mean latency (s), infinite where saturated."""
        return math.inf if self.prediction.latency_s is None else self.prediction.latency_s

    @property
    def utilisation(self) -> float:
        """Rate over saturation."""
        return self.prediction.utilisation

    @property
    def saturation_rps(self) -> float:
        """Rate (1/s) beyond which it has no steady state under these conditions."""
        return self.curve.saturation_rps

    @property
    def extrapolated(self) -> bool:
        """Whether the prediction is an extrapolation at the utilisation that is trusted by default."""
        return extrapolated(self.prediction, open_loop=self.question.load.rps is not None)

    @property
    def missed(self) -> tuple[str, ...]:
        """Limits of the SLO that it misses."""
        return self.question.slo.missed(self.promised)

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Limits that are checked against a mean, or not at all, because their figure was not measured."""
        return self.question.slo.unmeasured(self.promised)

    @property
    def meets_slo(self) -> bool | None:
        """Whether the arm carries the load and keeps all limits; None if the figure of a limit was not measured at all."""
        if self.missed:
            return False
        return None if self.question.slo.lacks(self.promised) else not self.promised.saturated

    @cached_property
    def against_none(self) -> Comparison | None:
        """Comparison with no speculation; None for no speculation itself, and if that has no law."""
        return self._compared(NO_SPECULATION)

    @cached_property
    def against_running(self) -> Comparison | None:
        """Comparison with the running arm; None for the running arm itself, and if that has no law."""
        running = self.question.running
        return self.against_none if running == NO_SPECULATION else self._compared(running)

    @cached_property
    def capacity(self) -> Capacity | None:
        """Largest rate that keeps every objective, with bounds; saturation without any, None if not known."""
        question = self.question
        return capacity_along(
            self.profile, self.arm, self.curve, question.slo, confidence=question.confidence
        )

    @property
    def capacity_rps(self) -> float | None:
        """The capacity's estimate (1/s)."""
        return self.capacity.rps if self.capacity is not None else None

    @property
    def capacity_ci_rps(self) -> Bounds | None:
        """The capacity's bounds (1/s); None if both are open."""
        found = self.capacity
        return None if found is None else Estimate(None, found.lower_rps, found.upper_rps).bounds

    @property
    def tokens_per_second(self) -> float | None:
        """Output tokens of the replica (1/s), with answers of the length at which arms are compared; None if not known, or saturated."""
        tokens = self.conditions.output_tokens or self.profile.lengths.output_tokens
        if tokens is None or self.prediction.latency_s is None:
            return None
        load = self.question.load
        return tokens * (load.rps if load.rps is not None else (load.concurrency or 1.0) / self.latency_s)

    @cached_property
    def strain(self) -> ObjectiveStrain | None:
        """Ratio of figures to their limits, over all loads; None without objectives."""
        slo = self.question.slo
        return objective_strain(self.profile, self.arm, self.curve, slo) if slo.is_set else None

    def _along(self, quantile: float | None = None) -> Prediction:
        load, confidence = self.question.load, self.question.confidence
        return self.profile.predict_along(
            self.arm, self.curve, load, quantile=quantile, confidence=confidence
        )

    def _compared(self, other: Arm | None) -> Comparison | None:
        if other is None or self.arm == other or other not in self.comparable:
            return None
        question, curve = self.question, _curve(self.profile, other, self.question)
        confidence = question.confidence or self.profile.confidence
        return compare_curves(self.curve, curve, question.load, confidence, question.rps_range)


@dataclass(frozen=True, slots=True)
class Evaluations:
    """All arms at one load, in the order in which they were named.

    Arms without an answer are `left_out`, each with a sentence why.
    """

    arms: tuple[ArmEvaluation, ...]
    left_out: Mapping[Arm, str]

    def of(self, arm: Arm | None) -> ArmEvaluation | None:
        """An arm's evaluation; None without one."""
        return next((one for one in self.arms if one.arm == arm), None)

    @property
    def none(self) -> ArmEvaluation | None:
        """No speculation; None if it is left out."""
        return self.of(NO_SPECULATION)


@dataclass(frozen=True, slots=True)
class LoadQuestion:
    """A question about arms at one load, of one replica.

    Attributes:
        running: the arm that the others are compared with, beside no speculation.
        derived: whether draft lengths that were not measured are evaluated too.
        rps_range: rates for which verdicts are meant; None takes the measured range.
        confidence: level of the bounds; None takes the level of the profile.
    """

    load: LoadPoint
    conditions: ConditionsOf = as_measured
    slo: Slo = field(default_factory=Slo)
    running: Arm | None = None
    derived: bool = False
    rps_range: Span | None = None
    confidence: float | None = None


def evaluate(profile: Profile, arms: Iterable[Arm], question: LoadQuestion) -> Evaluations:
    """Evaluate arms of a profile at one load; an arm without an answer is named with the reason."""
    named = tuple(dict.fromkeys(arms))
    measured = frozenset(fit.arm for fit in profile.arms if fit.measurements)
    comparable = measured & {NO_SPECULATION, question.running}.intersection(named)
    found: list[ArmEvaluation] = []
    left_out: dict[Arm, str] = {}
    for arm in named:
        try:
            if not question.derived and arm not in measured:
                profile.arm(arm)
            found.append(_evaluated(profile, arm, question, comparable))
        except BreakevenError as problem:
            left_out[arm] = str(problem)
    return Evaluations(tuple(found), left_out)


def evaluate_live(
    profile: Profile,
    load: Load,
    running: Arm,
    candidates: Sequence[Arm],
    live: Sequence[LiveAcceptance],
    slo: Slo,
) -> Evaluations:
    """Evaluate the arms that may run at an observed load, with acceptance measured live where there is any.

    No speculation and the running arm always belong to the candidates; `live` is the newest acceptance per drafter.
    """
    question = LoadQuestion(LoadPoint(rps=load.rps), live_conditions(profile, load, live), slo, running)
    return evaluate(profile, (NO_SPECULATION, running, *candidates), question)


def _evaluated(
    profile: Profile, arm: Arm, question: LoadQuestion, comparable: frozenset[Arm]
) -> ArmEvaluation:
    curve = _curve(profile, arm, question)
    for other in comparable - {arm}:
        # An arm that cannot be compared has no answer.
        _curve(profile, other, question)
    fit = profile.fit_of(arm)
    return ArmEvaluation(
        arm=arm,
        measured=fit is not None,
        curve=curve,
        conditions=_converted(profile, arm, question),
        tokens_per_step=question.conditions(arm).tokens_per_step,
        calibrated_tokens_per_step=fit.tokens_per_step if fit is not None else None,
        profile=profile,
        question=question,
        comparable=comparable,
    )


def _converted(profile: Profile, arm: Arm, question: LoadQuestion) -> Conditions:
    """The conditions as far as a profile can be converted to them."""
    wanted = question.conditions(arm)
    if question.derived or not arm.k or profile.arm(arm).tokens_per_step is not None:
        return wanted
    return replace(wanted, tokens_per_step=None)


def _curve(profile: Profile, arm: Arm, question: LoadQuestion) -> Curve:
    return profile.curve(arm, _converted(profile, arm, question))


def extrapolated(prediction: Prediction, *, open_loop: bool) -> bool:
    """Whether a prediction is an extrapolation, on which no decision may rest.

    A closed loop imposes its number in flight, so nothing amplifies an error of the law there.
    """
    near_saturation = open_loop and prediction.utilisation > TRUSTED_UTILISATION
    return prediction.saturated or prediction.outside_measured or near_saturation


@dataclass(frozen=True, slots=True)
class BestArm:
    """The recommended arm with the word why, and the best arm that needs no extrapolation; None if the chosen one needs none."""

    chosen: ArmEvaluation
    reason: Reason
    kept: Arm | None

    @property
    def arm(self) -> Arm:
        """The chosen arm."""
        return self.chosen.arm


def best_arm(evaluations: Evaluations, slo: Slo, min_gain: float = 0.0) -> BestArm:
    """Choose the arm with the lowest expected latency.

    No speculation has the most measurements, and needs no entering: it is kept on an extrapolation too. With a `min_gain` above
    0, an arm is only chosen if the lower bound of its speedup exceeds 1 + min_gain.

    Raises:
        NotIdentifiedError: no arm has a law, or an objective is about a figure that no arm was measured for.
    """
    arms = evaluations.arms
    if not arms:
        raise NotIdentifiedError(next(iter(evaluations.left_out.values()), "the profile holds no arm"))
    if (slo.tpot_s, slo.ttft_s) != (None, None) and all(one.meets_slo is None for one in arms):
        raise NotIdentifiedError("an objective is about TTFT or TPOT, which was measured for no arm")
    # However few or scattered an arm's points are, a saturated arm is not faster than it.
    steady = [one for one in arms if not one.prediction.saturated]
    if not steady:
        return BestArm(max(arms, key=lambda one: one.saturation_rps), Reason.SATURATED, None)
    best, reason = _best(steady, arms, min_gain)
    if not best.arm.k or not best.extrapolated:
        return BestArm(best, reason, None)
    enterable = [one for one in steady if not one.arm.k or not one.extrapolated]
    kept = _best(enterable, arms, min_gain)[0].arm if enterable else None
    return BestArm(best, Reason.EXTRAPOLATED, kept)


def _best(
    steady: Sequence[ArmEvaluation], arms: Sequence[ArmEvaluation], min_gain: float
) -> tuple[ArmEvaluation, Reason]:
    """Lowest expected latency among arms that carry the load, of those that keep the objectives and gain enough."""
    # In this order: arms whose measured figures keep the objectives; those for which a mean was taken for a quantile;
    # those whose objective cannot be checked; all that carry the load.
    keeping = (
        [one for one in steady if one.meets_slo and not one.unmeasured]
        or [one for one in steady if one.meets_slo]
        or [one for one in steady if one.meets_slo is None]
        or steady
    )
    eligible = [one for one in keeping if one.arm == NO_SPECULATION or _gains(one, min_gain)] or keeping
    best = min(eligible, key=lambda one: one.latency_s)
    return best, _reason(best, arms, keeping, min_gain)


def _gains(one: ArmEvaluation, min_gain: float) -> bool:
    if min_gain <= 0 or one.against_none is None:
        return True
    # The speedup is at most E, whatever a law promises.
    most = one.tokens_per_step or one.calibrated_tokens_per_step or math.inf
    # If only one arm is saturated, the speedup is 0 or infinite, and has no bounds.
    alone = one.against_none.speedup if one.against_none.speedup in (0.0, math.inf) else None
    return min(one.against_none.known.lower or alone or 0.0, most) > 1.0 + min_gain


def _reason(
    best: ArmEvaluation, arms: Sequence[ArmEvaluation], keeping: Sequence[ArmEvaluation], min_gain: float
) -> Reason:
    if best.meets_slo is False:
        return Reason.SLO_VIOLATED
    if best.arm == NO_SPECULATION:
        return _reason_for_none(best, arms, keeping, min_gain)
    known = best.against_none.known if best.against_none is not None else Estimate()
    if known.bounds is not None and not known.above(1.0) and not known.below(1.0):
        return Reason.WIDE_BOUNDS
    if not _gains(best, min_gain):
        return Reason.SLO_VIOLATED  # chosen for an objective that no speculation misses, not for its gain
    return Reason.ALREADY_BEST if best.against_none is None else Reason.GAIN_ABOVE_THRESHOLD


def _reason_for_none(
    none: ArmEvaluation, arms: Sequence[ArmEvaluation], keeping: Sequence[ArmEvaluation], min_gain: float
) -> Reason:
    if len(arms) == 1:
        return Reason.ALREADY_BEST
    if all(one.against_none is not None and one.against_none.verdict == "never" for one in arms[1:]):
        return Reason.NEVER_PAYS
    if min_gain > 0 and any(one.latency_s < none.latency_s for one in keeping):
        return Reason.GAIN_BELOW_THRESHOLD
    bounds = [one.against_none.speedup_ci for one in keeping if one.against_none is not None]
    gains = any(ends is not None and (ends[1] is None or ends[1] > 1.0) for ends in bounds)
    return Reason.WIDE_BOUNDS if gains else Reason.BEYOND_BREAK_EVEN


_GRID = 400


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of rates in which one arm is fastest."""

    from_rps: float
    to_rps: float
    arm: Arm


def envelope(curves: Sequence[tuple[Arm, Curve]], rps_range: tuple[float, float]) -> tuple[Stretch, ...]:
    """The fastest arm over a range of rates, the lower envelope of the curves; crossings are found by bisection.

    The order of the break-evens against no speculation does not give it: with D (1.20 s, 0.070), A (0.78, 0.085) and B
    (0.92, 0.072), A is best below 6.35 requests per second, B up to 12.73, D above; A breaks even with D at 8.86.
    """
    low, high = rps_range
    if not 0 <= low < high:
        raise ValueError(f"load range {low!r} to {high!r} is empty or negative")
    last = int(np.argmax([curve.saturation_rps for _, curve in curves]))

    def fastest(rps: FloatArray) -> NDArray[np.intp]:
        latencies = np.array([curve.latencies_at_rps(rps) for _, curve in curves])
        # If every arm is saturated, the one that saturates last is taken.
        latencies[last] = np.where(np.all(np.isnan(latencies), axis=0), 0.0, latencies[last])
        return np.asarray(np.nanargmin(latencies, axis=0))

    grid = np.linspace(low, high, _GRID)
    leaders = fastest(grid)
    stretches: list[Stretch] = []
    start = low
    for index in range(1, _GRID):
        if leaders[index] == leaders[index - 1]:
            continue
        left, right = float(grid[index - 1]), float(grid[index])
        for _ in range(50):
            middle = 0.5 * (left + right)
            stays = fastest(np.asarray(middle)) == leaders[index - 1]
            left, right = (middle, right) if stays else (left, middle)
        stretches.append(Stretch(start, right, curves[leaders[index - 1]][0]))
        start = right
    return (*stretches, Stretch(start, high, curves[leaders[-1]][0]))
