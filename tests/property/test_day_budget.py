"""The bound on a day: an arm that is entered keeps it, by the law stepped through the day."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.planning.decision_memory import DecisionMemory
from breakeven.planning.expected_saving import decide_by_saving
from breakeven.planning.forecast import Forecast
from breakeven.planning.learned_laws import FittedLaw
from breakeven.planning.objective import Policy
from breakeven.planning.surprise import LASTS_S, Day, Outflow, credible_rps
from breakeven.serving.counted_window import Load
from draws import draws
from fakes.straight_curve import Law, straight_curve

EAGLE = Arm("eagle3", 3)
DAY_S = 86400.0
STEP_S = 10.0
MILD, SLOW, BLOCK = (
    ((1.2, 0.07), (0.92, 0.072)),
    ((4.1, 0.24), (2.6, 0.262)),
    ((3.0, 0.1), (1.5, 0.104)),
)
"""No speculation and a drafter that carries 3, 8 and 4 % less and takes 23, 37 and 50 % less time alone."""
BOUND = Policy(roll_seconds=120.0, roll_away_share=0.25, day_risk=0.3)
NOTICED_S = 150.0
SURGING = Policy(roll_seconds=480.0)
"""Pods that take as long as a roll pod by pod, and of which none is away."""


def fitted(arm: Arm, law: tuple[float, float]) -> FittedLaw:
    relative = np.diag([1e-6, 1e-6])
    curve = straight_curve(Law(*law, relative * np.outer(law, law)))
    return FittedLaw.of(arm, curve)


def asked(
    laws: tuple[tuple[float, float], tuple[float, float]],
    usual: float,
    largest: float,
    policy: Policy = BOUND,
    *,
    running: Arm = NO_SPECULATION,
    known_s: float = 5 * DAY_S,
) -> Arm:
    """The arm that is decided for, at shares of what no speculation carries."""
    (c1, c2), other = laws
    rps = usual / c2
    alone, each = other if running == EAGLE else (c1, c2)
    latency_s = alone / (1.0 - rps * each)
    seen = ((1.0, rps),)
    return decide_by_saving(
        [fitted(NO_SPECULATION, (c1, c2)), fitted(EAGLE, other)],
        Load(rps, 150.0, 1000.0, rps * latency_s, latency_s),
        Forecast(seen, seen, largest / c2, known_s),
        DecisionMemory(running),
        policy,
        5 * DAY_S,
    ).arm


def stepped(
    law: tuple[float, float],
    usual_rps: float,
    peak_rps: float,
    lasts_s: float = LASTS_S,
    left_for: tuple[float, float] | None = None,
) -> float:
    """Request-seconds of a day with some time at another rate, by the law in small steps.

    If the arm is left, its roll begins when the rate has been noticed, and new replicas come first. The hours after the last
    change are not stepped through: what is held then stays.
    """
    (c1, c2), to = law, left_for or law
    held, taken = usual_rps * c1 / (1.0 - usual_rps * c2), 0.0
    for step in range(round(DAY_S / STEP_S)):
        rps = peak_rps if step * STEP_S < lasts_s else usual_rps
        rolled = min(max((step * STEP_S - NOTICED_S) / SURGING.roll_s, 0.0), 1.0)
        c1, c2 = (own + rolled * (other - own) for own, other in zip(law, to, strict=True))
        # An implicit step: stable whatever waits.
        come = held + STEP_S * rps
        part = c1 + STEP_S - come * c2
        before, held = held, (-part + math.sqrt(part * part + 4.0 * c2 * come * c1)) / (2.0 * c2)
        taken += held * STEP_S
        if min(step * STEP_S - lasts_s, rolled - 1.0) >= 0.0 and abs(held - before) < 1e-9 * held:
            return taken + held * (DAY_S - (step + 1) * STEP_S)
    return taken


@draws(25)
@given(
    st.floats(0.5, 4.0),
    st.floats(0.05, 0.3),
    st.floats(0.4, 0.9),
    st.floats(0.85, 1.05),
    st.floats(0.15, 0.55),
)
@example(*MILD[0], 0.92 / 1.2, 0.07 / 0.072, 0.3)
@example(*SLOW[0], 2.6 / 4.1, 0.24 / 0.262, 0.3)
@example(*BLOCK[0], 0.5, 0.1 / 0.104, 0.3)
def test_an_arm_that_is_entered_makes_no_day_longer_than_the_bound(c1, c2, gain, carried, usual):
    """Whatever hour a load that moves by half of its mean may bring."""
    none, other = (c1, c2), (gain * c1, c2 / carried)
    largest = 1.5 * usual
    assume(asked((none, other), usual, largest) != NO_SPECULATION)
    for share in np.arange(0.8, min(2.2 * largest, 1.3), 0.1).tolist():
        without = stepped(none, usual / c2, share / c2)
        assert stepped(other, usual / c2, share / c2) <= (1.0 + BOUND.day_risk) * without


def test_the_bound_takes_only_what_a_day_could_not_bear_and_no_arm_of_a_load_that_never_moved():
    """Without a bound all are entered; of a load that moves 4 % less capacity is borne where half of the time is saved."""
    free = replace(BOUND, day_risk=1.0)
    for laws in (MILD, SLOW, BLOCK):
        assert asked(laws, 0.33, 0.52, free) == EAGLE
        assert asked(laws, 0.62, 0.66) == EAGLE
    assert [asked(laws, 0.33, 0.52) for laws in (MILD, SLOW, BLOCK)] == [NO_SPECULATION] * 3
    assert asked(SLOW, 0.2, 0.3) == EAGLE, "all that may come is carried"


@pytest.mark.parametrize("laws", [MILD, SLOW, BLOCK])
@pytest.mark.parametrize("known_s", [3600.0, 5 * DAY_S])
def test_an_arm_that_new_pods_can_leave_is_entered_and_loses_no_day_by_more_than_five_percent(laws, known_s):
    """Most of what an overload costs on such an arm is the replicas that a roll takes away."""
    assert asked(laws, 0.33, 0.52, SURGING, known_s=known_s) == EAGLE
    none, other = laws
    for lasts_s in (LASTS_S, 4.0 * LASTS_S):
        for share in np.arange(0.85, 1.35, 0.05).tolist():
            rates = (0.33 / none[1], share / none[1], lasts_s)
            assert stepped(none, *rates) >= 0.95 * min(stepped(other, *rates, none), stepped(other, *rates))
    away = replace(SURGING, roll_seconds=120.0, roll_away_share=0.25)
    assert asked(laws, 0.33, 0.52, away, known_s=known_s) == NO_SPECULATION


def test_an_arm_that_carries_a_third_less_is_entered_by_no_kind_of_roll():
    assert asked(((2.0, 0.05), (1.1, 0.075)), 0.33, 0.52, SURGING) == NO_SPECULATION


def test_the_first_day_may_bring_anything_and_the_arm_in_place_is_not_left_for_that():
    assert asked(SLOW, 0.2, 0.3, known_s=3600.0) == NO_SPECULATION
    assert asked(SLOW, 0.2, 0.3, known_s=3600.0, running=EAGLE) == EAGLE


def test_an_arm_is_left_when_a_day_has_come_that_the_next_one_could_not_bear():
    assert asked(SLOW, 0.33, 0.36, running=EAGLE) == EAGLE
    assert asked(SLOW, 0.33, 0.52, running=EAGLE) == NO_SPECULATION


@draws(40)
@given(st.floats(0.1, 50.0), st.floats(1.0, 5.0), st.floats(0.0, 0.5), st.floats(1.0, 30.0))
def test_a_load_may_come_further_the_more_it_has_moved(mean_rps, moved, more, known_days):
    largest = mean_rps * moved
    found = credible_rps(largest, mean_rps, known_days)
    assert largest <= found <= 2.2 * largest * (1.0 + 1e-9)
    assert credible_rps(largest + more, mean_rps, known_days) >= found
    assert credible_rps(largest, mean_rps, 0.5) == math.inf


@draws(25)
@given(st.floats(0.3, 5.0), st.floats(0.02, 0.3), st.floats(0.9, 1.3), st.floats(0.0, 0.6))
def test_what_leaves_is_what_the_law_lets_go(c1, c2, share, usual):
    """Steps of five minutes against steps of a second, at loads that a day is reckoned with."""
    rps, held, taken = share / c2, usual / c2 * c1 / (1.0 - usual), 0.0
    arms = Outflow(np.array([[1.0 / c2]]), np.array([[c1 / c2]]))
    found, spent = arms.after(np.array([[held]]), np.array([[rps]]), LASTS_S, 12)
    for _ in range(3600):
        then = held + rps - held / (c1 + c2 * held)
        taken += (held + then) / 2.0
        held = then
    assert found[0, 0] == pytest.approx(held, rel=0.07)
    assert spent[0, 0] == pytest.approx(taken, rel=0.12)


def test_a_day_that_loses_nothing_is_worth_nothing_to_avoid():
    one = np.ones((2, 4))
    day = Day(Outflow(10.0 * one, 5.0 * one), 3.0 * one, 0, 3.0, (1920.0, 0.25, 300.0))
    assert day.worth_avoiding(np.array([50.0, 50.0]), 0.1, np.ones(2)) == pytest.approx([0.0, 0.0])
