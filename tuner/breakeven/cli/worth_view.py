"""Answer to whether a calibration is worth it, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from breakeven.cli.output import DEFAULT_CONFIDENCE
from breakeven.cli.tables import bounds, figure, percent, print_table, print_text

if TYPE_CHECKING:
    from breakeven.cli.prior_options import PriorQuestion
    from breakeven.estimate import Estimate
    from breakeven.past.past_reading import KnownPast
    from breakeven.prior.calibration_worth import ArmWorth, CalibrationWorth
    from breakeven.prior.public_table import ServiceFacts

_HEADER = ("arm (FromPrior)", "C1 ratio", "C2 ratio", "pays up to rps", "gain %", "chance", "adds")


class ToldWorth(NamedTuple):
    """The answer about a calibration, and the facts that it rests on."""

    answer: CalibrationWorth
    facts: ServiceFacts

    @classmethod
    def of(cls, past: KnownPast, question: PriorQuestion) -> ToldWorth:
        """Answer a question about a past.

        Raises:
            InputError: see `expected_of_past` and `worth_of_past`.
        """
        from breakeven.past.past_worth import expected_of_past, facts_of_past, worth_of_past

        facts = facts_of_past(past, question.facts)
        answer = worth_of_past(
            past,
            expected_of_past(past, question.asked, facts, question.rows),
            cost=question.cost,
            least_gain=question.least_gain,
            confidence=DEFAULT_CONFIDENCE,
        )
        return cls(answer, facts)


def worth_document(told: ToldWorth) -> dict[str, Any]:
    """The part of `--json`."""
    worth, facts = told
    return {
        "word": str(worth.word),
        "sentence": worth.sentence,
        "gain": worth.gain.value,
        "gain_ci": worth.gain.bounds,
        "saved_hours_per_day": worth.saved_hours.value,
        "saved_hours_ci_per_day": worth.saved_hours.bounds,
        "gpu_seconds_of_an_arm": worth.cost_of_arm.gpu_s,
        "buy": [str(arm) for arm in worth.buy],
        "gpu_seconds": worth.gpu_s,
        "known": known_facts(facts),
        "arms": [_arm_document(one) for one in worth.arms],
    }


def known_facts(facts: ServiceFacts) -> dict[str, float | bool | str | None]:
    """Facts of a service by their option; None: not known."""
    names = ("parameters_b", "experts", "gpu", "quantisation")
    return {name: getattr(facts, name) for name in names}


def _arm_document(one: ArmWorth) -> dict[str, Any]:
    figures = {
        "c1_ratio": one.lone_ratio,
        "c2_ratio": one.slope_ratio,
        "break_even_rps": one.break_even_rps,
        "gain": one.gain,
    }
    values = {name: found.value for name, found in figures.items()}
    ends = {f"{name}_ci".replace("_rps_ci", "_ci_rps"): found.bounds for name, found in figures.items()}
    return {
        "method": one.arm.method,
        "k": one.arm.k,
        "basis": "FromPrior",
        **values,
        **ends,
        "chance": one.chance,
        "adds": one.adds,
    }


def print_worth(told: ToldWorth) -> None:
    """Print the answer, the arms in the order in which to buy them, and what was known of the service."""
    from breakeven.prior.calibration_worth import WORTH_MEANINGS, WorthWord

    worth, facts = told
    print_text(f"Is a calibration worth it? {worth.word}: {worth.sentence}")
    if not worth.arms:
        return
    print_table(_HEADER, [_row(one) for one in worth.arms])
    known = known_facts(facts)
    lacking = [name for name, value in known.items() if value is None]
    said = ", ".join(f"{name} {_shown(value)}" for name, value in known.items() if value is not None)
    print_text(f"{WorthWord.FROM_PRIOR}: {WORTH_MEANINGS[WorthWord.FROM_PRIOR]}", mark="  ")
    print_text(
        f"known of the service: {said or 'nothing'}"
        + (f"; bounds are narrower with {', '.join(lacking)}" if lacking else ""),
        mark="  ",
    )


def _shown(value: float | bool | str | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return figure(value) if isinstance(value, float) else str(value)


def _row(one: ArmWorth) -> tuple[str, ...]:
    return (
        str(one.arm),
        bounds(one.lone_ratio.value, one.lone_ratio.bounds),
        bounds(one.slope_ratio.value, one.slope_ratio.bounds),
        _rate(one.break_even_rps),
        bounds(one.gain.value, one.gain.bounds, 100.0),
        percent(one.chance),
        percent(one.adds),
    )


def _rate(found: Estimate) -> str:
    """A break-even; one that is open is at saturation."""
    if found.value is not None:
        return bounds(found.value, found.bounds)
    return f"all [{figure(found.lower)},...]" if found.lower is not None else "all"
