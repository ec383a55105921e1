"""Every arm at one load: predicted with bounds, compared, and checked against the objectives.

`plan`, `simulate`, `report` and the operator ask this one question, and differ in two things:

- A person sees draft lengths that were not measured as well (`derived`). The operator acts by itself, so that it leaves
  them out.
- A person names an acceptance to predict for, and is refused if the profile cannot be converted to it. A live
  acceptance is a fact: if the profile has no calibrated one, the law stays as it was calibrated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.laws.arrays import Span
from breakeven.planning.capacity import Capacity, capacity_along
from breakeven.planning.decision_memory import LiveAcceptance
from breakeven.planning.objective import ObjectiveStrain, Slo, objective_strain
from breakeven.planning.observed_load import Load, live_conditions
from breakeven.profile import Bounds, Comparison, Conditions, Curve, LoadPoint, Prediction, Profile
from breakeven.profile.comparisons import JudgedCurve, compare_curves
from breakeven.profile.operating_conditions import ConditionsOf, as_measured

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
    answers: _Answers

    @cached_property
    def prediction(self) -> Prediction:
        """Means at the load."""
        return self.answers.along(self.arm, self.curve)

    @cached_property
    def promised(self) -> Prediction:
        """The figures of the objectives: the quantile asked for, or the means."""
        slo = self.answers.question.slo
        if not slo.is_set or slo.quantile is None:
            return self.prediction
        return self.answers.along(self.arm, self.curve, slo.quantile)

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
        return extrapolated(self.prediction, open_loop=self.answers.question.load.rps is not None)

    @property
    def missed(self) -> tuple[str, ...]:
        """Limits of the SLO that it misses."""
        return self.answers.question.slo.missed(self.promised)

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Limits that are checked against a mean, or not at all, because their figure was not measured."""
        return self.answers.question.slo.unmeasured(self.promised)

    @property
    def meets_slo(self) -> bool | None:
        """Whether the arm carries the load and keeps all limits; None if the figure of a limit was not measured at all."""
        if self.missed:
            return False
        return None if self.answers.question.slo.lacks(self.promised) else not self.promised.saturated

    @cached_property
    def against_none(self) -> Comparison | None:
        """Comparison with no speculation; None for no speculation itself, and if that has no law."""
        return self.answers.compared(self, NO_SPECULATION)

    @cached_property
    def against_running(self) -> Comparison | None:
        """Comparison with the running arm; None for the running arm itself, and if that has no law."""
        running = self.answers.question.running
        return self.against_none if running == NO_SPECULATION else self.answers.compared(self, running)

    @cached_property
    def capacity(self) -> Capacity | None:
        """Largest rate that keeps every objective, with bounds; saturation without any, None if not known."""
        asked = self.answers
        return capacity_along(
            asked.profile, self.arm, self.curve, asked.question.slo, confidence=asked.confidence
        )

    @property
    def capacity_rps(self) -> float | None:
        """The capacity's estimate (1/s)."""
        return self.capacity.rps if self.capacity is not None else None

    @property
    def capacity_ci_rps(self) -> Bounds | None:
        """The capacity's bounds (1/s); None if both are open."""
        ends = (
            (self.capacity.lower_rps, self.capacity.upper_rps) if self.capacity is not None else (None, None)
        )
        return None if ends == (None, None) else ends

    @property
    def tokens_per_second(self) -> float | None:
        """Output tokens of the replica (1/s), with answers of the length at which arms are compared; None if not known, or saturated."""
        tokens = self.conditions.output_tokens or self.answers.profile.lengths.output_tokens
        if tokens is None or self.prediction.latency_s is None:
            return None
        load = self.answers.question.load
        return tokens * (load.rps if load.rps is not None else (load.concurrency or 1.0) / self.latency_s)

    @cached_property
    def strain(self) -> ObjectiveStrain | None:
        """Ratio of figures to their limits, over all loads; None without objectives."""
        asked, slo = self.answers, self.answers.question.slo
        return objective_strain(asked.profile, self.arm, self.curve, slo) if slo.is_set else None


@dataclass(frozen=True, slots=True)
class Evaluations:
    """All arms at one load, in the order in which they were named.

    Arms without an answer are `left_out`, each with a sentence why. A question may have no running arm.
    """

    arms: tuple[ArmEvaluation, ...]
    left_out: Mapping[Arm, str]
    running_arm: Arm | None = None

    def of(self, arm: Arm | None) -> ArmEvaluation | None:
        """An arm's evaluation; None without one."""
        return next((one for one in self.arms if one.arm == arm), None)

    @property
    def running(self) -> ArmEvaluation | None:
        """The running arm; None if it is left out."""
        return self.of(self.running_arm)

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
    answers = _Answers(profile, question, measured.intersection(named))
    found: list[ArmEvaluation] = []
    left_out: dict[Arm, str] = {}
    for arm in named:
        try:
            if not question.derived and arm not in measured:
                profile.arm(arm)
            found.append(answers.evaluated(arm))
        except BreakevenError as problem:
            left_out[arm] = str(problem)
    return Evaluations(tuple(found), left_out, question.running)


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


@dataclass(frozen=True, slots=True)
class _Answers:
    profile: Profile
    question: LoadQuestion
    comparable: frozenset[Arm]
    curves: dict[Arm, Curve] = field(default_factory=dict)

    @property
    def confidence(self) -> float:
        return self.question.confidence or self.profile.confidence

    def evaluated(self, arm: Arm) -> ArmEvaluation:
        """Evaluate one arm."""
        curve, converted = self.curve(arm), self.converted(arm)
        for other in self.comparable & {NO_SPECULATION, self.question.running}:
            self.curve(other)
        fit = self.profile.arm(arm) if self.profile.measured(arm) else None
        return ArmEvaluation(
            arm=arm,
            measured=fit is not None,
            curve=curve,
            conditions=converted,
            tokens_per_step=self.question.conditions(arm).tokens_per_step,
            calibrated_tokens_per_step=fit.tokens_per_step if fit is not None else None,
            answers=self,
        )

    def converted(self, arm: Arm) -> Conditions:
        """The conditions as far as a profile can be converted to them."""
        wanted = self.question.conditions(arm)
        if self.question.derived or not arm.k or self.profile.arm(arm).tokens_per_step is not None:
            return wanted
        return replace(wanted, tokens_per_step=None)

    def curve(self, arm: Arm) -> Curve:
        """Latency of an arm against load, made once."""
        if arm not in self.curves:
            self.curves[arm] = self.profile.curve(arm, self.converted(arm))
        return self.curves[arm]

    def along(self, arm: Arm, curve: Curve, quantile: float | None = None) -> Prediction:
        load = self.question.load
        return self.profile.predict_along(arm, curve, load, quantile=quantile, confidence=self.confidence)

    def compared(self, one: ArmEvaluation, other: Arm | None) -> Comparison | None:
        if other is None or one.arm == other or other not in self.comparable:
            return None
        pair = JudgedCurve(one.arm, one.curve), JudgedCurve(other, self.curve(other))
        return compare_curves(*pair, self.question.load, self.confidence, self.question.rps_range)


def extrapolated(prediction: Prediction, *, open_loop: bool) -> bool:
    """Whether a prediction is an extrapolation, on which no decision may rest.

    A closed loop imposes its number in flight, so nothing amplifies an error of the law there.
    """
    near_saturation = open_loop and prediction.utilisation > TRUSTED_UTILISATION
    return prediction.saturated or prediction.outside_measured or near_saturation
