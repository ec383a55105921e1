"""The arm that starts a second time: the one that would win, by the points of all arms before it.

The luck of its first start is part of the gain for which an arm is chosen. The points of a second start were chosen by nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from breakeven.arm import Arm
from breakeven.errors import BreakevenError
from breakeven.load_driver.question import EXPECTED_SHARES
from breakeven.planning.best_arm import best_arm
from breakeven.planning.evaluation import LoadQuestion, evaluate
from breakeven.planning.objective import Slo
from breakeven.profile import LoadPoint, Profile
from breakeven_operator.actions import FitOutcome
from breakeven_operator.calibration.arm_finding import with_words
from breakeven_operator.reconcile.barred_arms import refuse_answers
from breakeven_operator.reconcile.questions import policy_of
from breakeven_operator.reconcile.steps import RollCost
from breakeven_operator.resources.answerstatus import ArmAnswers
from breakeven_operator.resources.calibrationrun import CalibrationPlan
from breakeven_operator.resources.speculativeservice import SpeculativeServiceSpec


class WinnerChoice(NamedTuple):
    """Name of the arm that would win; None if none would. Either way with a sentence."""

    arm: str | None
    message: str


def would_win(
    outcome: FitOutcome, answers: Iterable[ArmAnswers], plan: CalibrationPlan, spec: SpeculativeServiceSpec
) -> WinnerChoice:
    """Choose the speculative arm that wins at most of the expected loads; of equal ones that of the lowest load.

    Args:
        outcome: of the fit of all points so far.
        answers: words about the answers of arms; with Require an arm needs AnswersAgree to be entered.
        plan: of the run, with the expected loads; without any, those that are bought for by default.
        spec: of the service, with its objectives.
    """
    if outcome.profile_json is None:
        return WinnerChoice(None, outcome.error or "the fit gave no reason")
    try:
        profile = with_words(
            Profile.from_json(outcome.profile_json, "fit"), {one.arm: one for one in answers}
        )
        arms = [
            fit.arm
            for fit in profile.arms
            if refuse_answers(spec.calibration.answers.check, profile, fit.arm) is None
        ]
        none = next((fit for fit in profile.arms if not fit.k and fit.believable), None)
        if none is None or none.saturation_rps is None:
            return WinnerChoice(None, "no speculation has no law to compare with")
        loads = plan.expected_rps or tuple(share * none.saturation_rps for share in EXPECTED_SHARES)
        best = [_best(profile, arms, rps, policy_of(spec, RollCost()).slo) for rps in loads]
    except BreakevenError as error:
        return WinnerChoice(None, str(error))
    speculating = Counter(arm.name for arm in best if arm.k)
    shown = ", ".join(f"{rps:.3g}" for rps in loads)
    if not speculating:
        return WinnerChoice(None, f"no arm would win over no speculation at {shown} requests/s per replica")
    ((name, wins),) = speculating.most_common(1)
    return WinnerChoice(name, f"{name} would win at {wins} of {len(best)}: {shown} requests/s per replica")


def _best(profile: Profile, arms: Sequence[Arm], rps: float, slo: Slo) -> Arm:
    """The arm that `plan` would name at a load without an extrapolation.

    Raises:
        NotIdentifiedError: no arm has a law.
    """
    found = best_arm(evaluate(profile, arms, LoadQuestion(LoadPoint(rps=rps), slo=slo)), slo)
    return found.kept or found.arm
