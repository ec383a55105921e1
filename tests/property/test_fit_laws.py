"""Laws of the fit and of predictions from it, over arms, loads and noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.planning.capacity import capacity_along
from breakeven.planning.objective import Slo
from breakeven.profile import Profile
from draws import draws
from sweeps import closed, poisson

EAGLE = Arm("eagle3", 3)
c1s = st.floats(0.05, 20.0)
ratios = st.floats(0.01, 0.5)
loads = st.lists(st.integers(1, 200), min_size=3, max_size=8, unique=True).filter(
    lambda c: max(c) - min(c) >= 8
)


@given(c1s, ratios, loads)
@draws(25)
def test_rows_on_a_law_give_that_law(c1_s: float, ratio: float, clients: list[int]) -> None:
    (fit,) = fit_points(closed("none", 0, c1_s, ratio * c1_s, clients=clients)).arms
    # A step with a batch of its own is no line; at the loads that were measured the law comes near enough to one.
    assert fit.max_relative_error < 0.1


@given(c1s, ratios, st.integers(0, 10**6), st.floats(0.001, 1000.0))
@draws(20)
def test_another_unit_of_time_scales_the_law_and_nothing_else(
    c1_s: float, ratio: float, seed: int, unit: float
) -> None:
    assume(1e-3 < c1_s * unit < 1e3)
    one = fit_points(closed("none", 0, c1_s, ratio * c1_s, noise=0.03, seed=seed)).arms[0]
    other = fit_points(closed("none", 0, unit * c1_s, unit * ratio * c1_s, noise=0.03, seed=seed)).arms[0]
    assert other.c1_s == pytest.approx(unit * one.c1_s, rel=1e-6)


@given(st.randoms(use_true_random=False), st.integers(0, 10**6))
@draws(20)
def test_the_order_of_rows_does_not_matter(random, seed: int) -> None:
    rows = closed("none", 0, 1.2, 0.07, noise=0.05, seed=seed)
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert fit_points(shuffled).arms[0].c1_s == pytest.approx(fit_points(rows).arms[0].c1_s, rel=1e-9)


@given(ratios, st.floats(0.05, 0.9))
@draws(25)
def test_open_and_closed_rows_of_one_engine_agree(ratio: float, utilisation: float) -> None:
    rps = utilisation / ratio
    both = closed("none", 0, 1.0, ratio, clients=[1, 8, 32]) + poisson(
        "none", 0, 1.0, ratio, [rps], first_row=20
    )
    assert fit_points(both).arms[0].max_relative_error < 0.03


@given(st.integers(0, 10**6), st.floats(0.5, 8.0))
@draws(25)
def test_bounds_enclose_their_figure_and_speedups_are_ratios_of_latencies(seed: int, rps: float) -> None:
    rows = closed("none", 0, 1.2, 0.07, noise=0.02, seed=seed) + closed(
        "eagle3", 3, 0.8, 0.085, noise=0.02, seed=seed
    )
    profile = fit_points(rows)
    none, eagle = profile.predict(NO_SPECULATION, rps=rps), profile.predict(EAGLE, rps=rps)
    found = profile.compare(EAGLE, rps=rps)
    assert found.speedup == pytest.approx(none.latency_s / eagle.latency_s)
    for value, bounds in ((none.latency_s, none.latency_ci_s), (found.speedup, found.speedup_ci)):
        low, high = bounds
        assert (low or 0) <= value <= (float("inf") if high is None else high)


@given(st.integers(0, 10**6))
@draws(10)
def test_latency_rises_with_load_and_json_changes_nothing(seed: int) -> None:
    profile = fit_points(closed("none", 0, 1.2, 0.07, noise=0.03, seed=seed))
    curve = profile.curve(NO_SPECULATION)
    rates = np.linspace(0, 0.95 * curve.saturation_rps, 12)
    latencies = [curve.at_rps(float(rps)) for rps in rates]
    assert all(np.diff(latencies) > 0)
    assert Profile.from_json(profile.to_json()).document() == profile.document()


@given(st.integers(0, 10**6), st.floats(0.4, 5.0))
@draws(15)
def test_capacity_is_the_inverse_of_latency(seed: int, share: float) -> None:
    profile = fit_points(closed("none", 0, 1.2, 0.07, noise=0.02, seed=seed))
    curve, limit_s = profile.curve(NO_SPECULATION), share * 1.2
    found = capacity_along(profile, NO_SPECULATION, profile.curve(NO_SPECULATION), Slo(e2e_s=limit_s))
    assert found is not None
    if found.rps > 0:
        assert curve.at_rps(found.rps) == pytest.approx(limit_s, rel=1e-6)
    else:
        assert limit_s <= curve.line.c1_s * (1 + 1e-9)
