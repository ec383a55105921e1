"""One arm of a fit as a profile shows it: its law, and how it compares with no speculation. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from breakeven.arm import NO_SPECULATION
from breakeven.errors import BreakevenError
from breakeven.estimate import Estimate
from breakeven.phrases import figure, spoken
from breakeven.profile import ArmFit, Comparison, Profile
from breakeven.reasons import Reason
from breakeven_operator.resources.answerstatus import ArmAnswers
from breakeven_operator.resources.decisionstatus import PaysWhereStatus
from breakeven_operator.resources.figures import bounded
from breakeven_operator.resources.speculationprofile import ProfileArm


@dataclass(frozen=True, slots=True)
class ArmFinding:
    """One arm of the profile and how it compares with no speculation."""

    profile: Profile
    fit: ArmFit
    answers: ArmAnswers | None = None
    drafter: str | None = None

    @property
    def comparison(self) -> Comparison | None:
        """Against no speculation; None for that arm itself, and where either has no law."""
        if self.fit.k == 0 or self.fit.c1_s is None:
            return None
        try:
            return self.profile.compare(self.fit.arm, NO_SPECULATION, rps=0.0)
        except BreakevenError:
            return None

    def break_even(self) -> str | None:
        """`8.7 [8.1,9.4] rps`, or the verdict if there is no such load."""
        comparison = self.comparison
        if comparison is None:
            return None
        if comparison.break_even_rps is None:
            return "beyond measured" if comparison.break_even_beyond_range else str(comparison.verdict)
        ends = comparison.break_even_ci_rps
        bounds = f" [{_end(ends[0])},{_end(ends[1])}]" if ends not in {None, (None, None)} else ""
        return f"{figure(comparison.break_even_rps)}{bounds} rps"

    def readable(self) -> ProfileArm:
        """The arm as the SpeculationProfile shows it."""
        fit, comparison = self.fit, self.comparison
        return ProfileArm(
            arm=fit.arm.name,
            schedule=fit.schedule,
            drafter=self.drafter,
            c1_seconds=fit.c1_s,
            c2_seconds=fit.c2_s,
            saturation_rps=fit.saturation_rps,
            points=fit.points,
            believable=fit.believable,
            reason=fit.reason or None,
            answers=self.answers.word if self.answers is not None else None,
            **(_compared(comparison) if comparison is not None else {}),
        )


def with_words(profile: Profile, answers: Mapping[str, ArmAnswers]) -> Profile:
    """The profile with the word about each arm's answers, which goes where the profile goes."""
    if not answers:
        return profile
    words = {arm: one.word for arm, one in answers.items()}
    return replace(profile, arms=tuple(replace(fit, answers=words.get(fit.arm.name)) for fit in profile.arms))


def best_break_even(findings: Iterable[ArmFinding]) -> str | None:
    """The break-even of the believable speculative arm that pays up to the highest load."""
    candidates = [finding for finding in findings if finding.fit.believable and finding.fit.k > 0]

    def reach(finding: ArmFinding) -> tuple[bool, float]:
        comparison = finding.comparison
        always = comparison is not None and str(comparison.verdict) == "always"
        return always, (comparison.break_even_rps or 0.0) if comparison is not None else -1.0

    return max(candidates, key=reach).break_even() if candidates else None


def complaints(findings: Iterable[ArmFinding]) -> str:
    """Reasons of the arms without a believable law: `no speculation: ResidualTooLarge (worst 14.2 %)`."""
    words = {reason.value: reason.meaning for reason in Reason}
    said = []
    for finding in findings:
        fit = finding.fit
        if fit.believable:
            continue
        worst = (
            "" if fit.max_relative_error is None else f", worst residual {percent(fit.max_relative_error)}"
        )
        said.append(f"{spoken(fit.arm)}: {fit.reason} ({words.get(fit.reason, 'no law').rstrip('.')}{worst})")
    return "; ".join(said) or "no speculative arm was fitted"


def worst_residual(findings: Iterable[ArmFinding]) -> float:
    """Largest relative error of the arms' laws at their points, as a share; 0 without any."""
    return max((finding.fit.max_relative_error or 0.0 for finding in findings), default=0.0)


def percent(share: float) -> str:
    """A share as sentences and columns show it: `14.2%`."""
    return f"{100 * share:.1f}%"


def _end(bound: float | None) -> str:
    return "-" if bound is None else f"{figure(bound)}"


def _compared(comparison: Comparison) -> dict[str, object]:
    return {
        "verdict": PaysWhereStatus(str(comparison.verdict).capitalize()),
        **bounded("break_even_rps", Estimate.of(comparison.break_even_rps, comparison.break_even_ci_rps)),
    }
