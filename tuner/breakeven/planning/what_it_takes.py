"""Change of acceptance, load or length that would make an arm pay which does not: each alone, all else as it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.phrases import figure
from breakeven.profile import Conditions, LoadPoint, Profile

# Beyond a factor of 4.5 lengths are extrapolated.
_LENGTHS = (2.0, 4.0)
_LOADS_BELOW = (0.75, 0.5, 0.25, 0.0)
_LOADS_ABOVE = (1.25, 1.5, 2.0)
_HALVINGS = 6


@dataclass(frozen=True, slots=True)
class Turn:
    """A figure of now, and the nearest one at which the arm would pay; None without one within what is believed."""

    now: float
    wanted: float | None


@dataclass(frozen=True, slots=True)
class WhatItTakes:
    """Figures at which an arm would pay, each alone; lengths are means, None if not measured, and the rate is per replica.

    Tokens per step are None if its acceptance was not measured, or was measured with a schedule. The draft length allows the most.
    """

    most_tokens_per_step: float
    tokens_per_step: Turn | None
    rps: Turn
    prompt_tokens: Turn | None
    output_tokens: Turn | None


def what_it_takes(profile: Profile, arm: Arm, rps: float, conditions: Conditions) -> WhatItTakes | None:
    """Figures at which an arm would be as fast as no speculation; None if it is already, or is not known.

    Raises:
        BreakevenError: the profile does not know this arm or no speculation, or the conditions cannot be.
    """
    fit, _ = profile.arm(arm), profile.arm(NO_SPECULATION)

    def pays(changed: Conditions, at_rps: float = rps) -> bool:
        plain = replace(changed, tokens_per_step=None)
        try:
            with_it_s, _ = LoadPoint(at_rps).on(profile.curve(arm, changed))
            without_s, _ = LoadPoint(at_rps).on(profile.curve(NO_SPECULATION, plain))
        except BreakevenError:
            return False
        # NaN: saturated.
        return not math.isnan(with_it_s) and not with_it_s > without_s

    profile.curve(arm, conditions)
    if pays(conditions):
        return None
    e = conditions.tokens_per_step or fit.tokens_per_step
    prompt, output = (
        conditions.prompt_tokens or profile.lengths.prompt_tokens,
        conditions.output_tokens or profile.lengths.output_tokens,
    )
    return WhatItTakes(
        most_tokens_per_step=arm.k + 1.0,
        tokens_per_step=Turn(
            e,
            _nearest(
                lambda one: pays(replace(conditions, tokens_per_step=one)),
                e,
                [[e + (arm.k + 1.0 - e) * share for share in (0.25, 0.5, 0.75, 1.0)]],
            ),
        )
        if e is not None and not arm.scheduled and math.isfinite(e)
        else None,
        rps=Turn(
            rps,
            _nearest(
                lambda one: pays(conditions, one),
                rps,
                [[rps * share for share in _LOADS_BELOW], [rps * share for share in _LOADS_ABOVE]],
            ),
        ),
        prompt_tokens=_of_length(lambda one: pays(replace(conditions, prompt_tokens=one)), prompt, 1.0),
        output_tokens=_of_length(lambda one: pays(replace(conditions, output_tokens=one)), output, 2.0),
    )


def would_pay(profile: Profile, arm: Arm, rps: float, conditions: Conditions) -> dict[str, str]:
    """`what_it_takes` in sentences by the name of the figure; empty if the arm pays already.

    Raises:
        BreakevenError: as `what_it_takes`.
    """
    found = what_it_takes(profile, arm, rps, conditions)
    if found is None:
        return {}
    texts = {}
    if (turn := found.tokens_per_step) is not None:
        most = figure(found.most_tokens_per_step)
        texts["tokens_per_step"] = (
            f"Not acceptance: at this load {arm.name} would not pay even at {most} tokens per step, the most that its draft "
            f"length allows; it is {figure(turn.now)} now."
            if turn.wanted is None
            else f"Acceptance: {arm.name} would pay from {figure(turn.wanted)} tokens per step on at this load; it is "
            f"{figure(turn.now)} now, and {most} at most."
        )
    if found.rps.wanted is not None:
        texts["rps"] = (
            f"The load: {arm.name} would pay at {figure(found.rps.wanted)} rps per replica; it is {figure(rps)} rps now."
        )
    lengths = {"answers": found.output_tokens, "prompts": found.prompt_tokens}
    turns = {word: turn for word, turn in lengths.items() if turn is not None}
    for word, turn in turns.items():
        if turn.wanted is not None:
            texts[word] = (
                f"Lengths: {arm.name} would pay with {word} of {turn.wanted:.0f} tokens at this load; {turn.now:.0f} were calibrated."
            )
    if turns and all(turn.wanted is None for turn in turns.values()):
        texts["lengths"] = (
            f"Not lengths: neither {' nor '.join(turns)} from a quarter to four times as long would make {arm.name} pay at this load."
        )
    return texts


def _of_length(pays: Callable[[float], bool], now: float | None, least: float) -> Turn | None:
    if not now:
        return None
    shorter = [now / factor for factor in _LENGTHS if now / factor >= least]
    return Turn(now, _nearest(pays, now, [shorter, [now * factor for factor in _LENGTHS]]))


def _nearest(
    pays: Callable[[float], bool], now: float, directions: Sequence[Sequence[float]]
) -> float | None:
    """The figure nearest to `now` at which it pays, looked for along each direction; None if it pays at none of them."""
    for figures in directions:
        without = now
        for one in figures:
            if pays(one):
                return _between(pays, without, one)
            without = one
    return None


def _between(pays: Callable[[float], bool], without: float, paying: float) -> float:
    """The edge between a figure at which it does not pay and one at which it does; it pays at the answer."""
    for _ in range(_HALVINGS):
        middle = (without + paying) / 2.0
        without, paying = (without, middle) if pays(middle) else (middle, paying)
    return paying
