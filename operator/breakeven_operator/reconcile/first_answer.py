"""First answer about a service: what its past says before any of its arms was measured, and what others' measurements add. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from breakeven.arm import Arm
from breakeven.past.others_measured import OthersMeasured
from breakeven.past.past_reading import KnownPast
from breakeven.phrases import figure
from breakeven.prior.public_table import ServiceFacts
from breakeven.profile import Profile
from breakeven.profile.comparisons import PaysWhere
from breakeven_operator.resources.targetstatus import Target

_NAMED_DOUBTS, _NAMED_OTHERS = 4, 2


@dataclass(frozen=True, slots=True)
class FirstAnswer:
    """Answer of a service's past, or why there is none. It is shown, and no roll rests on it.

    `profile` has the laws of the arms that ran; None if the past determines none, or was not read yet.
    """

    profile: Profile | None
    sentence: str
    pays_nothing: bool = False


AWAITED = FirstAnswer(None, "its past is being read")


def first_answer(
    past: KnownPast, candidates: Sequence[Arm], others: Sequence[OthersMeasured], queries: int, samples: int
) -> FirstAnswer:
    """Answer of a past that was read, with others' measurements of candidates that never ran in it.

    `queries` is how often its Prometheus was asked, and `samples` how many these gave.
    """
    days = (past.grid.last_s - past.grid.first_s) / 86_400
    told = "".join(f"; {one.sentence}" for one in others[:_NAMED_OTHERS])
    return FirstAnswer(
        past.profile,
        f"its last {figure(days)} days ({queries} queries, {samples} samples) hold {past.in_words(_NAMED_DOUBTS)}{told}",
        _lose(past, candidates),
    )


def _lose(past: KnownPast, candidates: Sequence[Arm]) -> bool:
    """Whether every candidate ran and pays at no load; what others measured of one that never ran holds no measurement back."""
    if past.profile is None or not any(arm.k for arm in candidates):
        return False
    ran = {fit.arm for fit in past.profile.arms if fit.measurements}
    found = [
        past.against_none(arm, past.profile.confidence) if arm in ran else None for arm in candidates if arm.k
    ]
    return all(one is not None and one.verdict is PaysWhere.NEVER for one in found)


def no_answer(problem: str) -> FirstAnswer:
    """Answer of a past that could not be read, or holds nothing that counts."""
    return FirstAnswer(None, f"its past says nothing: {problem}")


def facts_of(target: Target) -> ServiceFacts:
    """Facts of a target that its model's name and its GPUs say."""
    return ServiceFacts.of_name((target.model or "").rstrip("/").rsplit("/", 1)[-1], target.gpu_product)
