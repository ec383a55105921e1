"""The solver against an independent optimiser, and its noise against what was put in."""

import numpy as np
import pytest
from scipy.optimize import minimize

from breakeven.fitting.solve import solve


def test_it_recovers_exact_data_to_rounding() -> None:
    n = np.array([0.0, 1, 7, 63])
    solution = solve(np.column_stack([np.ones(4), n]), 1.2 + 0.07 * n)
    assert solution.coefficients == pytest.approx([1.2, 0.07], rel=1e-9)
    assert solution.noise() == pytest.approx(0, abs=1e-12)


def test_it_is_a_stationary_point_of_the_gamma_likelihood() -> None:
    """Reweighting by 1/fitted solves sum (y - f)/f^2 * df = 0, the maximum of the gamma likelihood."""
    rng = np.random.default_rng(1)
    n = np.array([0.0, 1, 3, 7, 15, 31, 63])
    y = (1.2 + 0.07 * n) * (1 + 0.05 * rng.standard_normal(n.size))
    ours = solve(np.column_stack([np.ones(n.size), n]), y).coefficients

    def negative_log_likelihood(b: np.ndarray) -> float:
        fitted = b[0] + b[1] * n
        return float(np.sum(np.log(fitted) + y / fitted))

    other = minimize(
        negative_log_likelihood, [1.0, 0.1], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14}
    )
    assert ours == pytest.approx(other.x, rel=1e-4)


def test_relative_residuals_keep_c1_where_absolute_ones_lose_it() -> None:
    rng = np.random.default_rng(2)
    n = np.array([0.0, 1, 3, 7, 15, 31, 63, 127])
    design = np.column_stack([np.ones(n.size), n])
    ours, plain = [], []
    for _ in range(200):
        y = (1.2 + 0.07 * n) * (1 + 0.03 * rng.standard_normal(n.size))
        ours.append(solve(design, y).coefficients[0])
        plain.append(np.linalg.lstsq(design, y, rcond=None)[0][0])
    assert np.mean(ours) == pytest.approx(1.2, rel=0.005)
    assert np.std(plain) > 1.5 * np.std(ours)


def test_a_coefficient_that_wants_to_be_negative_is_zero_and_has_no_variance() -> None:
    n = np.array([0.0, 1, 2, 3])
    solution = solve(np.column_stack([np.ones(4), n]), np.array([2.0, 1.9, 1.7, 1.6]))
    assert solution.coefficients[1] == 0
    assert solution.unscaled_covariance[1].tolist() == [0, 0]
    assert list(solution.free) == [True, False]


def test_the_covariance_is_that_of_repeated_experiments() -> None:
    rng = np.random.default_rng(3)
    n = np.array([0.0, 1, 3, 7, 15, 31, 63])
    design = np.column_stack([np.ones(n.size), n])
    found = np.array(
        [
            solve(design, (1.2 + 0.07 * n) * (1 + 0.02 * rng.standard_normal(n.size))).coefficients
            for _ in range(800)
        ]
    )
    expected = 0.02**2 * solve(design, 1.2 + 0.07 * n).unscaled_covariance
    assert np.cov(found.T) == pytest.approx(expected, rel=0.2)


def test_shapes_and_signs_are_checked() -> None:
    with pytest.raises(ValueError, match="do not belong together"):
        solve(np.ones((3, 2)), np.ones(2))
    with pytest.raises(ValueError, match="not above 0"):
        solve(np.ones((2, 1)), np.array([1.0, 0.0]))
