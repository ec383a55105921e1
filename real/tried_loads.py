"""Loads of a run, and the arms that the measured laws ask for there; pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.profile import Conditions, Profile
from demo.traffic import RequestShape
from real.greedy_users import SteadyLoad
from real.served_model import Pace, ServedModel

# Costs of a roll and future loads decide between arms that are as close as this.
_TIE = 0.05
# Of the engine's saturation: where the operator is asked to decide, and where lengths that were not fitted are tried.
_DECISION_LOAD, _LENGTHS_LOAD = 0.30, 0.40
_LEAST_LOAD, _MOST_LOAD = 0.15, 0.60
# A request counts if it was sent after the warm-up and a latency before the end of its block.
_LATENCIES_IN_A_BLOCK = 2.5


class RunError(Exception):
    """Something that must happen did not; the text says what and how long was waited."""


def unfitted(profile: Profile, served: ServedModel) -> list[tuple[str, SteadyLoad]]:
    """Loads between those that were fitted, and lengths that were not; the same for every arm."""
    rates = sorted({row.rps for row in profile.arm(NO_SPECULATION).measurements if row.mode != "closed"})
    least_rps, most_rps = (share * saturation_rps(profile, served) for share in (_LEAST_LOAD, _MOST_LOAD))
    # A block at a lower load has hardly a request that counts; rates of a sweep may lie beyond what the engine takes.
    middles = dict.fromkeys(min((a + b) / 2, most_rps) for a, b in pairwise(rates))
    between = [rps for rps in middles if rps >= least_rps][:2]
    found = [
        (f"between the loads that were fitted, {number}", _load(profile, rps, served.shape, served.pace))
        for number, rps in enumerate(between, start=1)
    ]
    prompt, answer = served.shape.prompt_tokens, served.shape.output_tokens
    for what, shape in (
        ("prompts three times as long", RequestShape(3 * prompt, answer)),
        ("answers twice as long", RequestShape(prompt, 2 * answer)),
    ):
        # The load with as many tokens per second as the intended share of saturation.
        work = (shape.prompt_tokens / 4 + shape.output_tokens) / (prompt / 4 + answer)
        rps = _LENGTHS_LOAD * saturation_rps(profile, served) / work
        found.append((what, _load(profile, rps, shape, served.pace)))
    return found


def saturation_rps(profile: Profile, served: ServedModel) -> float:
    """The load at which no speculation saturates: by its law, or because its engine takes no more requests at a time.

    Raises:
        RunError: no law was found for it.
    """
    found = profile.arm(NO_SPECULATION).saturation_rps
    if not found:
        raise RunError("no speculation: nothing fitted says at which load it saturates")
    full_s = profile.predict(NO_SPECULATION, concurrency=served.max_batch).latency_s
    return min(found, served.max_batch / full_s) if full_s else found


def decision_rps(profile: Profile, served: ServedModel) -> float:
    """The load at which the operator is asked to decide."""
    return _DECISION_LOAD * saturation_rps(profile, served)


def best_at(profile: Profile, arms: Sequence[Arm], rps: float) -> frozenset[str]:
    """Names of the arms that may run at a load by the measured laws.

    The fastest, those within `_TIE` of it, and no speculation if the fastest is not significantly faster.

    Args:
        profile: the measured laws.
        arms: of which one is chosen, no speculation among them.
        rps: a load that some of them can serve.

    Raises:
        RunError: none of them can.
    """
    latencies = {
        arm: latency for arm in arms if (latency := profile.predict(arm, rps=rps).latency_s) is not None
    }
    if not latencies:
        raise RunError(f"{rps:.2f} rps: every arm with a law is saturated")
    fastest = min(latencies, key=latencies.__getitem__)
    best = {arm.name for arm, latency in latencies.items() if latency <= latencies[fastest] * (1 + _TIE)}
    if fastest != NO_SPECULATION:
        low, _ = profile.compare(fastest, NO_SPECULATION, rps=rps).speedup_ci or (None, None)
        if low is None or low <= 1.0:
            best.add(NO_SPECULATION.name)
    return frozenset(best)


def most_promising(profile: Profile, served: ServedModel) -> Arm:
    """The measured arm of one draft length whose law is fastest at the load of the decision.

    Raises:
        RunError: there is none.
    """
    rps = decision_rps(profile, served)
    latencies = {
        fit.arm: latency_s
        for fit in profile.arms
        if fit.points
        and fit.arm != NO_SPECULATION
        and not fit.arm.scheduled
        and (latency_s := profile.predict(fit.arm, rps=rps).latency_s) is not None
    }
    if not latencies:
        raise RunError(f"{rps:.2f} rps: no arm beside none has a law and is not saturated")
    return min(latencies, key=latencies.__getitem__)


def _load(profile: Profile, rps: float, shape: RequestShape, pace: Pace) -> SteadyLoad:
    """A load in blocks that are long enough for the latency that no speculation is predicted to have there."""
    predicted = profile.predict(
        NO_SPECULATION,
        rps=rps,
        conditions=Conditions(prompt_tokens=shape.prompt_tokens, output_tokens=shape.output_tokens),
    )
    least_s = pace.warmup_s + _LATENCIES_IN_A_BLOCK * (predicted.latency_s or 0.0)
    return SteadyLoad(rps, shape, max(pace.block_s, least_s), pace.warmup_s)
