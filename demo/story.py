"""Script of the demo: loads and expectations, taken from the measured profile and from nothing else.

The cost file of the simulated engine is never read here. Another cost file gives another profile, hence other loads,
other expectations and another story, down to "speculation pays at every load" or "never".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.phrases import spoken
from breakeven.profile import Profile

# Predictions above this utilisation are extrapolation, so no load of the story lies above it (for the arm expected).
HIGHEST_UTILISATION = 0.70


@dataclass(frozen=True, slots=True)
class Phase:
    """One stretch of constant load.

    Attributes:
        name: as printed.
        rps: load per replica.
        best: the arm that the measured laws say is fastest by at least the minimum gain; what should run.
        acceptable: names of the arms on the same side that are slower by less than the operator may see (twice the
            minimum gain): it rightly does not restart pods for that.
        other: the best arm of the other side (no speculation, or the fastest speculative arm).
        best_latency_s, other_latency_s: predicted; None if that arm is saturated at this load.
    """

    name: str
    rps: float
    best: Arm
    acceptable: frozenset[str]
    other: Arm
    best_latency_s: float | None
    other_latency_s: float | None


@dataclass(frozen=True, slots=True)
class Story:
    """Three loads, and one sentence that says what they show.

    Attributes:
        sentence: until which load speculation pays, and which arm should run where.
        phases: low, high and low again.
        switches: whether the arm that should run at high load is another one than at low load.
    """

    sentence: str
    phases: tuple[Phase, Phase, Phase]
    switches: bool


def tell(profile: Profile, min_gain: float) -> Story:
    """Choose the loads that show what this profile says.

    Scans loads up to 70 % of the saturation of the most capable arm. The right arm may change between speculation and
    none. Then "low" lies at two fifths of the lower range, and "high" at three fifths of the upper one. Otherwise one
    side wins throughout, and low and high are a fifth and nine tenths of the whole range.

    The change lies below the break-even, because of the minimum gain. The sentence speaks of the break-even alone, in the
    words and with the figure of status, table and picture.
    """
    arms = [fit.arm for fit in profile.arms if fit.points]
    top_rps = HIGHEST_UTILISATION * max(profile.arm(arm).saturation_rps or 0.0 for arm in arms)
    grid = [top_rps * step / 60 for step in range(3, 61)]
    winners = [_best(profile, arms, rps, min_gain) for rps in grid]
    change = next((i for i, winner in enumerate(winners) if (winner.k > 0) != (winners[0].k > 0)), None)
    if change is None or (winners[0].k > 0) == (winners[-1].k > 0):
        low, high = 0.2 * top_rps, 0.9 * top_rps
    else:
        boundary = (grid[change - 1] + grid[change]) / 2
        low, high = 0.4 * boundary, boundary + 0.6 * (top_rps - boundary)
    phases = tuple(
        _phase(profile, arms, name, rps, min_gain)
        for name, rps in (("low", low), ("high", high), ("low again", low))
    )
    best, later = phases[0].best, phases[1].best
    return Story(
        _sentence(profile, arms, winners, best, later), (phases[0], phases[1], phases[2]), best != later
    )


def _sentence(profile: Profile, arms: Sequence[Arm], winners: Sequence[Arm], low: Arm, high: Arm) -> str:
    """`eagle/3 pays until 11.1 rps (10.6 to 11.7); eagle/3 should run at low load, no speculation at high load`."""
    # Where none wins throughout, the arm to speak of is the one that comes nearest to paying.
    speculative = [arm for arm in (*winners[::-1], low, high) if arm.k] or [_nearest(profile, arms)]
    pays = profile.compare(speculative[0], NO_SPECULATION, rps=0.0).pays
    should = (
        f"{spoken(low)} should run at every load"
        if low == high
        else f"{spoken(low)} should run at low load, {spoken(high)} at high load"
    )
    return f"{speculative[0]} {pays}; {should}"


def _nearest(profile: Profile, arms: Sequence[Arm]) -> Arm:
    """The speculative arm that is the fastest when alone."""
    return min(
        (arm for arm in arms if arm.k),
        key=lambda arm: profile.predict(arm, rps=0.0).latency_s or float("inf"),
    )


def _best(profile: Profile, arms: Sequence[Arm], rps: float, min_gain: float) -> Arm:
    """The fastest arm, where speculation must beat none by the minimum gain."""
    latencies = {arm: profile.predict(arm, rps=rps).latency_s for arm in arms}
    alive = {arm: latency for arm, latency in latencies.items() if latency is not None}
    fastest = min(alive, key=lambda arm: alive[arm])
    plain = alive.get(NO_SPECULATION)
    return NO_SPECULATION if plain is not None and plain < alive[fastest] * (1 + min_gain) else fastest


def fastest_arm(profile: Profile, rps: float, min_gain: float) -> Arm:
    """The arm that should run at a load (per replica) by a profile's laws: speculation must gain a minimum."""
    return _best(profile, [fit.arm for fit in profile.arms if fit.points], rps, min_gain)


def _phase(profile: Profile, arms: Sequence[Arm], name: str, rps: float, min_gain: float) -> Phase:
    best = _best(profile, arms, rps, min_gain)
    other_side = [arm for arm in arms if (arm.k > 0) != (best.k > 0)]
    latencies = {arm: profile.predict(arm, rps=rps).latency_s for arm in arms}
    # With every arm of the other side saturated, name the one that holds out longest.
    other = min(
        other_side or [arm for arm in arms if arm != best] or [best],
        key=lambda arm: (latencies[arm] or float("inf"), -(profile.arm(arm).saturation_rps or 0.0)),
    )
    limit_s = (latencies[best] or 0.0) * (1 + 2 * min_gain)
    acceptable = {
        arm.name
        for arm in arms
        if (arm.k > 0) == (best.k > 0) and (latencies[arm] or float("inf")) <= limit_s
    }
    return Phase(name, rps, best, frozenset(acceptable), other, latencies[best], latencies[other])
