"""When a prediction of a fitted profile is an extrapolation."""

import pytest

from breakeven.arm import Arm
from breakeven.fitting import fit_points
from breakeven.planning.evaluation import extrapolated
from sweeps import CLIENTS, closed

EAGLE = Arm("eagle3", 3)


@pytest.fixture(scope="module")
def profile():
    """No speculation saturates at 14.3 rps, EAGLE at 12.5; both were measured up to 98 % of that."""
    return fit_points(
        closed("none", 0, 1.2, 0.07, clients=[*CLIENTS, 768], noise=0.002)
        + closed("eagle3", 3, 0.6, 0.08, clients=[*CLIENTS, 768], noise=0.002, tokens_per_step=2.5)
    )


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ({"rps": 0.0}, False),
        ({"rps": 9.0}, False),
        ({"rps": 9.5}, True),
        ({"concurrency": 768}, False),
        ({"concurrency": 780}, True),
        ({"concurrency": 1}, False),
    ],
)
def test_extrapolation_is_beyond_the_points_and_above_three_quarters_of_an_open_loop(profile, load, expected):
    assert extrapolated(profile.predict(EAGLE, **load), open_loop="rps" in load) is expected


def test_the_profile_says_what_was_measured_and_the_limit_of_utilisation_is_the_askers(profile):
    found = profile.predict(EAGLE, rps=10.5)
    assert found.utilisation == pytest.approx(0.85, abs=0.02)
    assert not found.outside_measured
    assert extrapolated(found, open_loop=True)
    assert profile.predict(EAGLE, rps=12.45).outside_measured
