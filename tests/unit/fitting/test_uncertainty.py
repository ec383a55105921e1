"""Bounds of C1 and C2 hold the truth as often as they say, whichever way noise came into an open-loop sweep."""

from __future__ import annotations

import numpy as np
import pytest

from breakeven.fitting.solve import solve
from breakeven.fitting.uncertainty import law_fit, law_fit_of_loads
from breakeven.profile.student_t import t_quantile

C1_S, C2_S = 1.0, 0.05
UTILISATION = np.array([0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])


def sweep(rng, noise, *, of_engine):
    """Latencies at imposed rates, and the design (1, n) that they give."""
    rate, factor = UTILISATION / C2_S, 1.0 + noise * rng.standard_normal(UTILISATION.size)
    latency_s = C1_S * factor / (1 - UTILISATION * factor) if of_engine else C1_S / (1 - UTILISATION) * factor
    return np.column_stack([np.ones_like(rate), rate * latency_s]), latency_s


@pytest.mark.parametrize("of_engine", [True, False])
@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_both_coefficients_are_held(of_engine, noise):
    rng, t, runs = np.random.default_rng(5), t_quantile(0.9, UTILISATION.size - 2), 600
    held = np.zeros(2)
    for _ in range(runs):
        design, latency_s = sweep(rng, noise, of_engine=of_engine)
        fit = law_fit_of_loads(solve(design, latency_s), design, [True] * len(latency_s), 0.0)
        found, errors = np.array([fit.c1_s, fit.c2_s]), np.sqrt(np.diag(fit.covariance))
        held += np.abs(found - (C1_S, C2_S)) <= t * errors
    assert np.all(held / runs > 0.86)
    assert np.all(held / runs < 0.985)


def test_nothing_changes_where_the_number_in_flight_was_imposed():
    design, latency_s = sweep(np.random.default_rng(1), 0.03, of_engine=False)
    solution = solve(design, latency_s)
    closed = law_fit_of_loads(solution, design, [False] * len(latency_s), 0.0)
    assert closed == law_fit(solution)
    opened = law_fit_of_loads(solution, design, [True] * len(latency_s), 0.0)
    assert opened.covariance[0][0] >= closed.covariance[0][0]
    assert opened.covariance[1][1] >= closed.covariance[1][1]


def test_the_covariance_stays_one():
    rng = np.random.default_rng(2)
    for _ in range(50):
        design, latency_s = sweep(rng, 0.05, of_engine=bool(rng.integers(2)))
        imposed = rng.random(len(latency_s)) < 0.5
        fit = law_fit_of_loads(solve(design, latency_s), design, imposed.tolist(), 0.0)
        assert np.all(np.linalg.eigvalsh(np.array(fit.covariance)) >= -1e-15)


def test_exact_data_have_no_bounds_to_widen():
    design, latency_s = sweep(np.random.default_rng(3), 0.0, of_engine=True)
    fit = law_fit_of_loads(solve(design, latency_s), design, [True] * len(latency_s), 0.0)
    assert np.all(np.isfinite(fit.covariance))
    assert np.abs(fit.covariance).max() < 1e-20
