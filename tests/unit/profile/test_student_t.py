"""Student's t without scipy, against scipy."""

import pytest
from scipy.special import stdtrit

from breakeven.profile.student_t import t_quantile, two_sided_probability


@pytest.mark.parametrize("dof", [1, 2, 3, 4, 5, 6, 7, 12, 25, 60, 141])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
def test_quantiles_agree_with_scipy(dof: int, confidence: float) -> None:
    assert t_quantile(confidence, dof) == pytest.approx(stdtrit(dof, 0.5 + confidence / 2), rel=1e-9)


def test_the_quantile_is_the_inverse_of_the_probability() -> None:
    assert two_sided_probability(t_quantile(0.9, 6), 6) == pytest.approx(0.9, abs=1e-12)


def test_without_degrees_of_freedom_bounds_are_open() -> None:
    assert t_quantile(0.9, 0) == float("inf")


def test_a_confidence_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="not between 0 and 1"):
        t_quantile(1.0, 3)
