"""The best arm of a profile at one load: what `breakeven plan` prints and `Profile.plan` returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.phrases import figure, fixed, ratio_text, spoken
from breakeven.planning.evaluation import (
    ArmEvaluation,
    BestArm,
    Evaluations,
    LoadQuestion,
    Stretch,
    best_arm,
    envelope,
    evaluate,
)
from breakeven.planning.prompt_lengths import PartSpeedup, PromptPart, by_prompt
from breakeven.planning.wording import unmeasured_texts
from breakeven.profile import Profile


@dataclass(frozen=True)
class Plan:
    """Every arm at one load, and the best of them.

    Attributes:
        stretches: each with its fastest arm, if a range of rates was given; else None.
        warnings: limits of the figures, a sentence each.
        drafting: the speculative arm in question, the best one or else the fastest.
        by_prompt: speedups of that arm at the lengths of prompts that were given.
    """

    arms: Sequence[ArmEvaluation]
    best: BestArm
    stretches: tuple[Stretch, ...] | None
    warnings: tuple[str, ...]
    drafting: Arm = NO_SPECULATION
    by_prompt: Sequence[PartSpeedup] = ()

    def __str__(self) -> str:
        return self.sentence

    @property
    def sentence(self) -> str:
        """The best arm with its gain, its bounds and the load until which it pays."""
        best, chosen = self.best.arm, self.best.chosen
        if chosen.prediction.saturated:
            return f"every arm is saturated; {spoken(best)} has the highest saturation, {figure(chosen.saturation_rps)} rps: add replicas"
        gain = chosen.against_none
        if gain is None:
            others = [one for one in self.arms if one.arm != best]
            if best == NO_SPECULATION:
                return "no speculation is best" if others else "only no speculation was measured"
            return f"{best} is best" if others else f"{best} is the only arm"
        words = f"{best} is best, {ratio_text(gain.known)} {gain.how_known}"
        if gain.speedup == float("inf"):
            words = f"{best} is best: without speculation the replica is saturated"
        words += f"; {gain.pays}"
        if gain.pays_rps:
            return words
        if gain.verdict.value == ("below" if gain.c2_ratio < 1 else "above"):
            return words  # decided by points that bend, for which the ratio of the laws is wrong
        trend = "shrinks" if gain.c2_ratio > 1 else "grows"
        return f"{words}; C2,R {fixed(gain.c2_ratio, 2)}: the gain {trend} with load"


def plan_of(
    profile: Profile,
    question: LoadQuestion,
    draft_lengths: Sequence[int] = (),
    min_gain: float = 0.0,
    prompts: Sequence[PromptPart] = (),
) -> Plan:
    """Compare every measured arm at one load and name the best.

    Args:
        profile: the measured arms.
        question: the load, objectives, and a range of rates to divide among the arms.
        draft_lengths: of every measured method; lengths that were not measured are derived.
        min_gain: share that the lower bound of a gain has to exceed; 0 goes by the expected latency.
        prompts: shares of the requests by the lengths of their prompts.

    Raises:
        NotIdentifiedError: no arm has a law, or an objective is about a figure that no arm was measured for.
    """
    evaluations = evaluate(profile, _arms(profile, draft_lengths), question)
    best = best_arm(evaluations, question.slo, min_gain)
    stretches = None
    if question.rps_range is not None:
        stretches = envelope([(one.arm, one.curve) for one in evaluations.arms], question.rps_range)
    warnings = (
        *evaluations.left_out.values(),
        *_lacks(profile, draft_lengths),
        *_doubts(evaluations, best),
        *unmeasured_texts({one.arm: one.unmeasured for one in evaluations.arms}),
    )
    fastest = min(
        (one for one in evaluations.arms if one.arm.k), key=lambda one: one.latency_s, default=best.chosen
    )
    asked = best.chosen if best.arm.k else fastest
    parts = by_prompt(asked, evaluations.none, prompts)
    if prompts and not parts:
        warnings = (
            *warnings,
            f"{asked.arm} by prompt: saturated at this load, or nothing to compare it with",
        )
    return Plan(evaluations.arms, best, stretches, warnings, asked.arm, parts)


def _arms(profile: Profile, lengths: Sequence[int]) -> list[Arm]:
    """The measured arms, then an arm for each of these draft lengths that was not measured."""
    arms = [fit.arm for fit in profile.arms]
    for drafter in profile.drafters:
        member = next(fit.arm for fit in profile.arms if fit.k and fit.arm.family == drafter.method)
        derived = (Arm(member.method, k, member.candidate) for k in lengths)
        arms += [arm for arm in derived if not profile.measured(arm)]
    return arms


def _lacks(profile: Profile, lengths: Sequence[int]) -> list[str]:
    known = {one.method for one in profile.drafters}
    families = {fit.arm.family for fit in profile.arms if fit.k} if lengths else set()
    return [
        f"{family}: other draft lengths cannot be derived; its points need output_tokens, and tokens_per_step or accept_1..k"
        for family in sorted(families - known)
    ]


def _doubts(evaluations: Evaluations, best: BestArm) -> list[str]:
    # A speedup also depends on the measurement without speculation.
    doubted = [
        one.arm
        for one in evaluations.arms
        if one.arm in {best.arm, NO_SPECULATION} and one.extrapolated and not one.prediction.saturated
    ]
    where = "outside what was measured, or above utilisation 0.75"
    doubts = [f"{arm}: this load is extrapolated ({where})" for arm in doubted]
    if best.kept is not None:
        doubts.append(f"that an arm is faster than {spoken(best.kept)} at this load is an extrapolation")
    return doubts
