"""Acceptance and lengths now, as the options of a command say them: what holds for each arm."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from breakeven.arm import Arm
from breakeven.errors import InputError

if TYPE_CHECKING:
    from breakeven.profile import Conditions, Profile


def conditions_of(
    profile: Profile,
    steps: tuple[str, ...],
    alpha: float | None,
    per_position: str | None,
    prompt_tokens: float | None,
    output_tokens: float | None,
) -> Callable[[Arm], Conditions]:
    """Turn the acceptance options into what holds for each arm."""
    from breakeven.laws.acceptance import AcceptanceModel, tokens_per_step_iid
    from breakeven.profile import Conditions

    if sum([bool(steps), alpha is not None, per_position is not None]) > 1:
        raise click.UsageError("--tokens-per-step, --alpha and --per-position say the same thing; give one")
    named, common = _named_steps(profile, steps)
    survival = None if per_position is None else _survival(per_position)

    def conditions(arm: Arm) -> Conditions:
        e: float | None = None
        if arm.k and str(arm) in named:
            e = named[str(arm)]
        elif arm.k and common is not None:
            e = min(common, arm.k + 1.0)
        elif arm.k and alpha is not None:
            e = float(tokens_per_step_iid(alpha, arm.k))
        elif arm.k and survival is not None:
            model = AcceptanceModel(
                arm.method, {len(survival): 1.0 + sum(survival)}, {len(survival): survival}
            )
            e = model.at(arm.k).value
        return Conditions(e, prompt_tokens, output_tokens)

    return conditions


def _named_steps(profile: Profile, steps: tuple[str, ...]) -> tuple[dict[str, float], float | None]:
    named: dict[str, float] = {}
    common: float | None = None
    for text in steps:
        name, equals, figure = text.rpartition("=")
        try:
            value = float(figure)
        except ValueError:
            value = 0.0
        if not 1.0 <= value < float("inf"):
            raise click.BadParameter(f"{text!r} is no number of at least 1", param_hint="--tokens-per-step")
        if not equals:
            common = value
            continue
        arm = next((fit.arm for fit in profile.arms if str(fit.arm) == name), None)
        if arm is None or not arm.k:
            known = ", ".join(str(fit.arm) for fit in profile.arms if fit.k) or "none"
            raise InputError("--tokens-per-step", f"arm {name!r}", f"a measured speculative arm ({known})")
        if value > arm.k + 1:
            raise InputError("--tokens-per-step", f"{value:g} for {arm}", f"1 to k + 1 = {arm.k + 1}")
        named[name] = value
    return named, common


def _survival(text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    falling = all(high <= low for low, high in itertools.pairwise(values))
    if not values or not falling or not all(0 <= value <= 1 for value in values):
        raise InputError(
            "--per-position",
            repr(text)[:60],
            "unconditional survival per position: numbers from 1 to 0 that never rise",
        )
    return values
