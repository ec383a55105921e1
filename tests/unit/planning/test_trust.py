"""When a prediction of a fitted profile is an extrapolation, and what the operator's limit of utilisation does to it."""

from dataclasses import replace

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.planning.guard import Action, DecisionMemory, Load, Policy, decide
from breakeven.planning.trust import extrapolated
from breakeven.reasons import Reason
from sweeps import CLIENTS, closed

EAGLE = Arm("eagle3", 3)
AT_ONCE = Policy(dwell_s=0.0, cooldown_s=0.0, roll_seconds=0.0)


@pytest.fixture(scope="module")
def profile():
    """No speculation saturates at 14.3 rps, EAGLE at 12.5; both were measured up to 98 % of that."""
    return fit_points(
        closed("none", 0, 1.2, 0.07, clients=[*CLIENTS, 768], noise=0.002)
        + closed("eagle3", 3, 0.6, 0.08, clients=[*CLIENTS, 768], noise=0.002, tokens_per_step=2.5)
    )


def decided(profile, rps, *, running=NO_SPECULATION, **policy):
    load = Load(rps, 300, 1000)
    return decide(profile, load, DecisionMemory(running), replace(AT_ONCE, **policy), 1e6, [EAGLE])


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ({"rps": 0.0}, False),
        ({"rps": 9.3}, False),
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
    assert found.utilisation == pytest.approx(0.84, abs=0.01)
    assert not found.outside_measured
    assert extrapolated(found)
    assert not extrapolated(found, 0.9)
    assert profile.predict(EAGLE, rps=12.45).outside_measured


def test_a_higher_limit_of_utilisation_lets_a_measured_arm_be_entered(profile):
    held = decided(profile, 9.7)
    assert (held.action, held.reason) == (Action.HOLD, Reason.EXTRAPOLATED)
    entered = decided(profile, 9.7, max_utilisation=0.9)
    assert (entered.action, entered.arm, entered.reason) == (
        Action.SWITCH,
        EAGLE,
        Reason.GAIN_ABOVE_THRESHOLD,
    )


def test_a_higher_limit_of_utilisation_lets_an_arm_be_left_by_its_law(profile):
    held = decided(profile, 11.9, running=EAGLE)
    assert (held.action, held.reason) == (Action.HOLD, Reason.EXTRAPOLATED)
    left = decided(profile, 11.9, running=EAGLE, max_utilisation=0.97)
    assert (left.action, left.arm, left.reason) == (Action.SWITCH, NO_SPECULATION, Reason.BEYOND_BREAK_EVEN)


def test_no_limit_of_utilisation_reaches_beyond_what_was_measured():
    narrow = fit_points(
        closed("none", 0, 1.2, 0.07, clients=[1, 2, 4, 8, 10], noise=0.002)
        + closed("eagle3", 3, 0.6, 0.08, clients=[1, 2, 4, 8, 10], noise=0.002, tokens_per_step=2.5)
    )
    assert narrow.predict(EAGLE, rps=9.7).utilisation < 0.9
    assert decided(narrow, 9.7, max_utilisation=0.95).reason == Reason.EXTRAPOLATED
