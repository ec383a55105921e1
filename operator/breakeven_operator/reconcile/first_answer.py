"""First answer about a service: what its past says before any of its arms was measured, and what others' measurements add. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from breakeven.past.past_reading import KnownPast
from breakeven.phrases import figure
from breakeven.prior.calibration_worth import CalibrationCost, CalibrationWorth, WorthWord
from breakeven.prior.public_table import ServiceFacts
from breakeven.profile import Profile
from breakeven.profile.comparisons import PaysWhere
from breakeven_operator.resources.speculativeservice import SpeculativeServiceSpec
from breakeven_operator.resources.targetstatus import Target

_NAMED_DOUBTS = 4
# Two short points at longer prompts come to the loads of an arm.
_POINTS_OF_LENGTHS = 2


@dataclass(frozen=True, slots=True)
class FirstAnswer:
    """Answer of a service's past. It is shown, and no roll rests on it.

    Attributes:
        profile: laws of the arms that ran; None: the past determines none, or was not read yet.
        sentence: which past that is and what it cannot say, or why there is none.
        pays_nothing: whether no candidate would gain anything, by the past and by measurements of others.
    """

    profile: Profile | None
    sentence: str
    pays_nothing: bool = False


AWAITED = FirstAnswer(None, "its past is being read")


def first_answer(past: KnownPast, worth: CalibrationWorth, queries: int, samples: int) -> FirstAnswer:
    """Answer of a past that was read.

    Args:
        past: the windows that count, and their fit.
        worth: whether a calibration of the candidates is worth it.
        queries: that its Prometheus was asked.
        samples: that these gave.
    """
    days = (past.grid.last_s - past.grid.first_s) / 86_400
    told = f"; {WorthWord.FROM_PRIOR}: {worth.word}: {worth.sentence}" if worth.arms else ""
    return FirstAnswer(
        past.profile,
        f"its last {figure(days)} days ({queries} queries, {samples} samples) hold {past.in_words(_NAMED_DOUBTS)}{told}",
        worth.word is WorthWord.CALIBRATION_PAYS_NOTHING and _loses(past),
    )


def _loses(past: KnownPast) -> bool:
    """Whether every speculative arm that ran pays at no load: one that may pay is worth a measurement, whatever others say."""
    ran = [one.points[0].arm for one in past.arms if one.kind.k and one.points]
    found = (
        past.against_none(arm, past.profile.confidence) if past.profile is not None else None for arm in ran
    )
    return all(one is not None and one.verdict is PaysWhere.NEVER for one in found)


def no_answer(problem: str) -> FirstAnswer:
    """Answer of a past that could not be read, or holds nothing that counts."""
    return FirstAnswer(None, f"its past says nothing: {problem}")


def facts_of(target: Target) -> ServiceFacts:
    """Facts of a target that its model's name and its GPUs say."""
    return ServiceFacts.of_name((target.model or "").rstrip("/").rsplit("/", 1)[-1], target.gpu_product)


def cost_of(spec: SpeculativeServiceSpec, target: Target) -> CalibrationCost:
    """GPU time of one arm's calibration, but for the start of its engine, which is taken to be the usual one."""
    own = spec.calibration
    points_s = (own.loads + _POINTS_OF_LENGTHS) * (own.point_seconds + own.warmup_seconds)
    return CalibrationCost(measuring_s=float(points_s), gpus=max(target.gpus_per_pod or 1, 1))
