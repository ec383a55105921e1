"""Acceptance, load and lengths at which speculation would pay for a service that it slows, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from breakeven.errors import BreakevenError
from breakeven.phrases import figure
from breakeven_operator.plugin.service_view import ServiceView, number_of

if TYPE_CHECKING:
    from breakeven.planning.what_it_takes import Turn
    from breakeven.profile import Profile


def loses(service: ServiceView) -> bool:
    """Whether the arm in question is slower than no speculation at the present load."""
    speedup = number_of(service.decision, "speedup")
    return bool(service.decision.get("comparedArm")) and speedup is not None and speedup < 1.0


def needed(service: ServiceView, profile: Profile) -> Iterator[str]:
    """Figures at which the arm in question would be as fast as no speculation, each alone."""
    from breakeven.planning.what_it_takes import what_it_takes
    from breakeven.profile import Conditions

    name, rps = service.decision.get("comparedArm"), number_of(service.decision, "loadRps")
    arm = next((fit.arm for fit in profile.arms if fit.arm.name == name), None)
    if not loses(service) or arm is None or rps is None:
        return
    try:
        found = what_it_takes(profile, arm, rps, Conditions(tokens_per_step=_seen(service, arm.name)))
    except BreakevenError:
        # A law that does not know these figures says nothing of others.
        return
    if found is None:
        return
    if found.tokens_per_step is not None:
        yield _of_acceptance(arm.name, found.tokens_per_step, found.most_tokens_per_step)
    if number_of(service.decision, "breakEvenRps") is None and found.rps.wanted is not None:
        yield f"The load: {arm.name} would pay at {figure(found.rps.wanted)} rps per replica; it is {figure(rps)} rps now."
    lengths = (("answers", found.output_tokens), ("prompts", found.prompt_tokens))
    turns = [(word, turn) for word, turn in lengths if turn is not None]
    for word, turn in turns:
        if turn.wanted is not None:
            yield (
                f"Lengths: {arm.name} would pay with {word} of {turn.wanted:.0f} tokens at this load; {turn.now:.0f} were calibrated."
            )
    if turns and all(turn.wanted is None for _, turn in turns):
        words = " nor ".join(word for word, _ in turns)
        yield f"Not lengths: neither {words} from a quarter to four times as long would make {arm.name} pay at this load."


def _seen(service: ServiceView, arm: str) -> float | None:
    """Tokens per step of an arm as last seen live; None: it never ran since its calibration."""
    seen = service.memory.get("seen") or ()
    return next((number_of(one, "tokensPerStep") for one in seen if one.get("arm") == arm), None)


def _of_acceptance(arm: str, turn: Turn, most: float) -> str:
    if turn.wanted is None:
        return (
            f"Not acceptance: at this load {arm} would not pay even at {figure(most)} tokens per step, the most that its draft "
            f"length allows; it is {figure(turn.now)} now."
        )
    return (
        f"Acceptance: {arm} would pay from {figure(turn.wanted)} tokens per step on at this load; it is {figure(turn.now)} now, and "
        f"{figure(most)} at most."
    )
