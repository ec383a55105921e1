"""Change of acceptance, load or length that would make an arm pay which does not: each alone, all else as it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.phrases import figure
from breakeven.profile import Conditions, LoadPoint, Profile

# Beyond a factor of 4.5 lengths are extrapolated.
_LENGTHS = (2.0, 4.0)
_LOADS_BELOW = (0.75, 0.5, 0.25, 0.0)
_LOADS_ABOVE = (1.25, 1.5, 2.0)
_HALVINGS = 6


class Turn(NamedTuple):
    """A figure of now, and the nearest one at which the arm would pay; None without one within what is believed."""

    now: float
    wanted: float | None


def what_it_takes(profile: Profile, arm: Arm, rps: float, conditions: Conditions) -> dict[str, Turn]:
    """Figures at which an arm would be as fast as no speculation, each alone; empty if it is already.

    By name: `tokens_per_step` if they were measured, and not with a schedule; `rps` per replica; `answers` and `prompts`, mean
    tokens, as far as measured.

    Raises:
        BreakevenError: the profile does not know this arm or no speculation, or the conditions cannot be.
    """
    fit, _ = profile.arm(arm), profile.arm(NO_SPECULATION)

    def pays(at_rps: float = rps, **changed: float) -> bool:
        now, load = replace(conditions, **changed), LoadPoint(at_rps)
        try:
            with_it_s, _ = load.on(profile.curve(arm, now))
            without_s, _ = load.on(profile.curve(NO_SPECULATION, now.of_another_arm()))
        except BreakevenError:
            return False
        # NaN: saturated.
        return not math.isnan(with_it_s) and not with_it_s > without_s

    profile.curve(arm, conditions)
    if pays():
        return {}
    loads = [[rps * share for share in shares] for shares in (_LOADS_BELOW, _LOADS_ABOVE)]
    found = {"rps": Turn(rps, _nearest(pays, rps, loads))}
    e, most = conditions.tokens_per_step or fit.tokens_per_step, arm.k + 1.0
    if e is not None and not arm.scheduled and math.isfinite(e):
        more = [e + (most - e) * share for share in (0.25, 0.5, 0.75, 1.0)]
        found["tokens_per_step"] = Turn(e, _nearest(lambda one: pays(tokens_per_step=one), e, [more]))
    for word, name, least in (("answers", "output_tokens", 2.0), ("prompts", "prompt_tokens", 1.0)):
        if tokens := getattr(conditions, name) or getattr(profile.lengths, name):
            shorter = [tokens / factor for factor in _LENGTHS if tokens / factor >= least]
            longer = [tokens * factor for factor in _LENGTHS]

            def pays_at(one: float, name: str = name) -> bool:
                return pays(**{name: one})

            found[word] = Turn(tokens, _nearest(pays_at, tokens, [shorter, longer]))
    return found


def would_pay(profile: Profile, arm: Arm, rps: float, conditions: Conditions) -> dict[str, str]:
    """`what_it_takes` in sentences by the name of the figure; empty if the arm pays already.

    Raises:
        BreakevenError: as `what_it_takes`.
    """
    found = what_it_takes(profile, arm, rps, conditions)
    texts = {}
    if (turn := found.get("tokens_per_step")) is not None:
        most = figure(arm.k + 1.0)
        texts["tokens_per_step"] = (
            f"Not acceptance: at this load {arm.name} would not pay even at {most} tokens per step, the most that its draft "
            f"length allows; it is {figure(turn.now)} now."
            if turn.wanted is None
            else f"Acceptance: {arm.name} would pay from {figure(turn.wanted)} tokens per step on at this load; it is "
            f"{figure(turn.now)} now, and {most} at most."
        )
    if "rps" in found and (wanted := found["rps"].wanted) is not None:
        texts["rps"] = (
            f"The load: {arm.name} would pay at {figure(wanted)} rps per replica; it is {figure(rps)} rps now."
        )
    turns = {word: found[word] for word in ("answers", "prompts") if word in found}
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


def _nearest(
    pays: Callable[[float], bool], now: float, directions: Sequence[Sequence[float]]
) -> float | None:
    """The figure nearest to `now` at which it pays, looked for along each direction; None if it pays at none of them."""
    for figures in directions:
        without = now
        for one in figures:
            if not pays(one):
                without = one
                continue
            paying = one
            for _ in range(_HALVINGS):
                middle = (without + paying) / 2.0
                without, paying = (without, middle) if pays(middle) else (middle, paying)
            return paying
    return None
