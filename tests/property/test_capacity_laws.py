"""Laws of the capacity: an order in the limit, never beyond saturation, bounds that hold estimate and truth."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.planning.capacity import (
    Capacity,
    CapacityLimit,
    capacity_along,
    fewest_replicas,
    replicas_for,
)
from breakeven.planning.objective import Slo
from breakeven.profile import Profile
from draws import draws, seeds_of_law
from sweeps import CLIENTS, closed

EAGLE = Arm("eagle3", 3)
seeds = st.integers(0, 10**6)
limits = st.floats(0.3, 30.0)
quantiles = st.sampled_from([None, 0.5, 0.95, 0.99])
rooms = st.none() | st.integers(1, 300)


def profile_of(seed: int, *, bend: float = 0.0) -> Profile:
    """An arm with noise; `bend` lifts the middle of its points off the law."""
    rng = np.random.default_rng(seed)
    rows = []
    for c in CLIENTS:
        lifted = 1.0 + bend * np.exp(-(((np.log(c) - 2.0) / 0.7) ** 2))
        row = {
            f"p{percent}_latency_s": factor
            * lifted
            * (1.2 + 0.07 * (c - 1))
            * (1 + 0.02 * rng.standard_normal())
            for percent, factor in ((50, 0.9), (95, 1.5), (99, 1.9))
        }
        rows += closed(
            "none", 0, 1.2 * lifted, 0.07 * lifted, clients=[c], noise=0.02, seed=seed + c, first_row=c, **row
        )
    return fit_points(rows)


def of(profile: Profile, limit_s: float, quantile: float | None, room: int | None) -> Capacity:
    found = capacity_along(
        profile,
        NO_SPECULATION,
        profile.curve(NO_SPECULATION),
        Slo(e2e_s=limit_s, quantile=quantile),
        max_num_seqs=room,
    )
    assert found is not None
    return found


@given(seeds, st.sampled_from([0.0, 0.25]), limits, limits, quantiles, rooms)
@draws(25)
def test_a_looser_limit_never_lowers_capacity_or_bounds(seed, bend, one_s, other_s, quantile, room) -> None:
    profile = profile_of(seed, bend=bend)
    tight, loose = (of(profile, limit_s, quantile, room) for limit_s in sorted((one_s, other_s)))
    slack = 1 + 1e-3
    assert tight.rps <= loose.rps * slack
    # Among fewer, the lower bound is asked for at the curve's knots alone.
    assert (tight.lower_rps or 0.0) <= (loose.lower_rps or 0.0) * (1 + 5e-3)
    assert (tight.upper_rps or 0.0) <= (loose.upper_rps or np.inf) * slack


@given(seeds, st.sampled_from([0.0, 0.25]), limits, quantiles, rooms)
@draws(25)
def test_capacity_lies_within_its_bounds_and_never_above_saturation(
    seed, bend, limit_s, quantile, room
) -> None:
    profile = profile_of(seed, bend=bend)
    found = of(profile, limit_s, quantile, room)
    curve = profile.curve(NO_SPECULATION)
    assert 0.0 <= found.rps <= curve.saturation_rps
    assert (found.lower_rps or 0.0) <= found.rps <= (found.upper_rps or np.inf)
    saturation = capacity_along(profile, NO_SPECULATION, profile.curve(NO_SPECULATION), Slo())
    assert saturation is not None
    assert (found.lower_rps or 0.0) <= (saturation.lower_rps or np.inf) * (1 + 1e-9)


@given(seeds, limits, quantiles, st.integers(1, 300), st.integers(1, 300))
@draws(20)
def test_a_larger_batch_never_lowers_capacity(seed, limit_s, quantile, one, other) -> None:
    profile = profile_of(seed)
    small, large = (of(profile, limit_s, quantile, room) for room in sorted((one, other)))
    assert small.rps <= large.rps * (1 + 1e-3)
    assert large.rps <= of(profile, limit_s, quantile, None).rps * (1 + 1e-9)


def test_bounds_of_ninety_percent_hold_the_true_capacity_that_often() -> None:
    """Of means, by Fieller: 90 % of the sweeps, less four standard errors at most; an objective of TPOT has rather wider ones."""
    true_rps = {
        Slo(e2e_s=3.0): (1.0 - 1.2 / 3.0) / 0.07,
        Slo(tpot_s=0.012): (1.3 / 0.06) / (1.2 + 0.07 * 1.3 / 0.06),
    }
    held = dict.fromkeys(true_rps, 0)
    sweeps = seeds_of_law(200)
    for seed in sweeps:
        rng = np.random.default_rng(seed)
        rows = []
        for c in CLIENTS:
            wrong = 1 + 0.02 * rng.standard_normal()
            rows += closed(
                "none", 0, 1.2 * wrong, 0.07 * wrong, clients=[c], first_row=c, output_tokens=201.0,
                tpot_mean_s=(1.1 + 0.06 * (c - 1)) / 200 * wrong,
            )  # fmt: skip
        profile = fit_points(rows)
        for slo, rps in true_rps.items():
            found = capacity_along(profile, NO_SPECULATION, profile.curve(NO_SPECULATION), slo)
            assert found is not None
            held[slo] += (found.lower_rps or 0.0) <= rps <= (found.upper_rps or np.inf)
    fewest = int(0.9 * len(sweeps) - 4 * math.sqrt(0.9 * 0.1 * len(sweeps)))
    assert all(count >= fewest for count in held.values()), (held, fewest)


@given(st.floats(0.0, 1e4), st.floats(0.0, 1e4), st.floats(0.01, 100.0), st.floats(0.01, 100.0))
@draws(100)
def test_more_load_or_less_capacity_never_needs_fewer_replicas(one, other, small, large) -> None:
    (low, high), (weak, strong) = sorted((one, other)), sorted((small, large))
    assert 1 <= replicas_for(low, strong) <= replicas_for(high, strong) <= replicas_for(high, weak)


carried = st.tuples(st.floats(0.1, 50.0), st.floats(0.5, 1.0), st.floats(1.0, 2.0))


@given(st.lists(carried, min_size=1, max_size=5), st.floats(0.0, 500.0), st.integers(0, 4))
@draws(100)
def test_the_arm_of_a_fleet_that_scales_is_changed_only_for_fewer_replicas_at_worst(
    arms, rps, running
) -> None:
    capacities = [
        Capacity(Arm("eagle3", k), rate, down * rate, up * rate, CapacityLimit.OBJECTIVE)
        for k, (rate, down, up) in enumerate(arms, start=1)
    ]
    mine = capacities[running % len(capacities)]
    found = fewest_replicas(capacities, rps, mine.arm)
    assert found is not None
    chosen = next(one for one in capacities if one.arm == found.arm)
    if found.arm != mine.arm:
        assert replicas_for(rps, chosen.lower_rps or 0.0) < replicas_for(rps, mine.upper_rps or np.inf)
    # Once there, the same figures keep it there.
    again = fewest_replicas(capacities, rps, found.arm)
    assert again is not None
    assert again.arm == found.arm
