"""Whether a calibration is worth it: the answer's word, its gain with bounds, its cost, and what it buys first."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from breakeven.arm import Arm
from breakeven.errors import InputError
from breakeven.prior.calibration_worth import (
    DEFAULT_ARMS,
    WORTH_MEANINGS,
    CalibrationCost,
    SeenLoads,
    WorthWord,
    calibration_worth,
    share_of_saturation,
)
from breakeven.prior.expected_ratios import AskedArm, expected_ratios
from breakeven.prior.public_table import RatioRow, ServiceFacts, public_ratios
from breakeven.profile.fits import ArmFit, LawFit

ROWS = public_ratios()
FACTS = ServiceFacts(8.0, experts=False, gpu="H100", quantisation="bf16")
NONE = ArmFit(
    "none",
    0,
    c1_s=2.0,
    c2_s=0.1,
    believable=True,
    fit=LawFit(2.0, 0.1, ((1e-6, 0.0), (0.0, 1e-10)), 20, 0.01, 0.01),
)
QUIET = SeenLoads((0.5, 1.0), (1.0, 1.0))
EAGLE, LOSER = AskedArm(Arm("eagle3", 3), 2.6), AskedArm(Arm("draft_model", 5), 1.05)


def worth(seen=QUIET, asked=(EAGLE,), none=NONE, rows=ROWS, **given):
    return calibration_worth(none, seen, expected_ratios(FACTS, asked, rows) if asked else None, **given)


def agreeing(lone: float, slope: float, method="eagle3", k=3) -> list[RatioRow]:
    """Forty sources that measured the same, so that the prior is nearly certain."""
    row = RatioRow(FACTS, method, k, lone_ratio=lone, slope_ratio=slope, tokens_per_step=2.6)
    return [replace(row, source=f"{method}{place}") for place in range(40)]


def test_a_drafter_that_nearly_all_sources_gain_with_pays():
    found = worth()
    assert found.word is WorthWord.CALIBRATION_PAYS
    assert found.gain.lower > 0.05
    assert found.buy == (EAGLE.arm,)
    assert "measure eagle3/3: 0.26 GPU-hours" in found.sentence


def test_an_arm_that_loses_at_the_best_end_is_told_so_and_no_gpu_is_spent():
    found = worth(asked=[LOSER], rows=[*agreeing(1.6, 1.5, "draft_model", 5)])
    assert found.word is WorthWord.CALIBRATION_PAYS_NOTHING
    assert (found.buy, found.gpu_s) == ((), 0.0)
    assert "spend no GPU" in found.sentence
    assert found.arms[0].chance < 0.05


def test_bounds_that_hold_a_gain_and_nothing_may_pay():
    found = worth(asked=[AskedArm(Arm("ngram", 3))])
    assert found.word is WorthWord.CALIBRATION_MAY_PAY
    assert found.gain.lower < 0.05 < found.gain.upper


def test_the_best_end_of_the_bounds_decides_whether_gpu_is_spent():
    arm = [AskedArm(Arm("ngram", 3))]
    gain = worth(asked=arm).gain
    at_most = worth(asked=arm, least_gain=0.5 * (gain.value + gain.upper))
    assert (at_most.word, at_most.buy) == (WorthWord.CALIBRATION_MAY_PAY, (arm[0].arm,))
    beyond = worth(asked=arm, least_gain=gain.upper + 0.01)
    assert (beyond.word, beyond.buy) == (WorthWord.CALIBRATION_PAYS_NOTHING, ())


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"none": None}, WorthWord.NO_LAW_OF_NONE),
        ({"none": replace(NONE, c2_s=None)}, WorthWord.NO_LAW_OF_NONE),
        ({"asked": ()}, WorthWord.ALL_ARMS_RAN),
        ({"seen": SeenLoads((), ())}, WorthWord.NO_LOAD_SEEN),
    ],
)
def test_what_cannot_be_said_has_a_word_and_no_figure(given, word):
    found = worth(**given)
    assert (found.word, found.arms, found.buy, found.gpu_s) == (word, (), (), 0.0)
    assert found.gain.value is found.gain.bounds is None
    assert found.sentence == WORTH_MEANINGS[word]


@pytest.mark.parametrize(
    ("seen", "shown"),
    [
        (SeenLoads((1.0,), (1.0, 2.0)), "1 rates and 2 spans"),
        (SeenLoads((0.0,), (1.0,)), "expected rates above 0"),
        (SeenLoads((float("nan"),), (1.0,)), "no number; expected rates above 0"),
        (SeenLoads((1.0,), (float("inf"),)), "spans that are negative"),
        (SeenLoads((1.0, 2.0), (0.0, 0.0)), "all 0"),
    ],
)
def test_a_load_that_is_none_is_refused(seen, shown):
    with pytest.raises(InputError, match=shown):
        worth(seen)


def test_the_gain_is_littles_law_where_the_prior_is_certain():
    rate, lone, slope = 4.0, 0.6, 1.2
    # Requests in flight: rate*L with L = C1/(1 - rate*C2).
    of_none, of_arm = 2.0 / (1 - rate * 0.1), 2.0 * lone / (1 - rate * 0.1 * slope)
    found = worth(SeenLoads((rate,), (1.0,)), rows=agreeing(lone, slope))
    assert found.gain.value == pytest.approx(1 - of_arm / of_none, abs=0.06)
    # Pays up to (1 - .6)/(1.2 - .6) of the saturation of none, 10 rps.
    assert found.arms[0].break_even_rps.value == pytest.approx(6.67, rel=0.15)


def test_hours_are_the_gain_of_the_requests_in_flight():
    found = worth(SeenLoads((4.0,), (1.0,)))
    # 4 rps at 2/(1 - .4) s are 13.3 requests in flight.
    assert found.saved_hours.value == pytest.approx(24 * 40 / 3 * found.gain.value)
    assert found.saved_hours.upper == pytest.approx(24 * 40 / 3 * found.gain.upper)
    assert f" {found.saved_hours.value:.0f} request-hours a day and pod" in found.sentence
    idle = worth(SeenLoads((0.001,), (1.0,)))
    assert f" {idle.saved_hours.value:.2g} request-hours a day and pod" in idle.sentence
    assert worth(none=None).saved_hours.value is None


def test_loads_at_which_the_arm_loses_count_as_no_gain():
    low = worth(SeenLoads((0.5,), (1.0,)), rows=agreeing(0.6, 3.0)).gain.value
    peak = worth(SeenLoads((0.5, 8.0), (1.0, 1.0)), rows=agreeing(0.6, 3.0)).gain
    assert low > 0.3
    assert 0.0 <= peak.lower <= peak.value < 0.1


def test_a_load_counts_by_the_time_that_it_lasted():
    gains = [
        worth(SeenLoads((0.5, 8.0), lasted), rows=agreeing(0.6, 3.0)).gain.value
        for lasted in ((9, 1), (1, 9))
    ]
    assert gains[0] > 3 * gains[1]


def test_thousands_of_windows_answer_like_their_distribution():
    rates = np.random.default_rng(1).gamma(4.0, 1.0, 5000).clip(0.1, 9.0)
    many = worth(SeenLoads(tuple(rates), (1.0,) * 5000))
    few = worth(SeenLoads(tuple(np.quantile(rates, np.arange(0.5, 20) / 20)), (1.0,) * 20))
    assert many.gain.value == pytest.approx(few.gain.value, abs=0.05)
    assert many.gain.upper == pytest.approx(few.gain.upper, abs=0.05)


def test_weeks_of_windows_take_no_memory():
    tracemalloc.start()
    worth(SeenLoads((1.0,) * 20_000, (1.0,) * 20_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6


def test_an_uncertain_law_of_none_widens_the_break_even():
    rough = replace(NONE, fit=replace(NONE.fit, covariance=((1e-6, 0.0), (0.0, 1e-3)), dof=4))
    unknown = replace(NONE, fit=replace(NONE.fit, dof=0))
    refused = replace(NONE, believable=False)

    def width(fit):
        found = worth(none=fit, rows=agreeing(0.6, 1.5)).arms[0].break_even_rps
        return found.upper - found.lower

    assert width(rough) > 1.2 * width(NONE)
    assert width(unknown) > 1.2 * width(NONE)
    assert width(refused) > 1.2 * width(unknown)


def test_a_load_that_none_served_lies_below_its_saturation():
    beyond = worth(SeenLoads((20.0,), (1.0,)))
    assert 0.0 <= beyond.gain.value <= 1.0


def test_the_arm_that_gains_most_is_bought_first_and_what_it_makes_needless_is_not():
    twins = [AskedArm(Arm("ngram", 3), 1.1), AskedArm(Arm("eagle3", 3), 2.6), AskedArm(Arm("eagle3", 4), 2.6)]
    found = worth(asked=twins)
    assert found.arms[0].arm == Arm("eagle3", 3)
    assert [one.adds for one in found.arms] == sorted((one.adds for one in found.arms), reverse=True)
    assert Arm("ngram", 3) not in found.buy
    assert found.arms[0].adds == pytest.approx(found.arms[0].gain.value)
    assert sum(one.adds for one in found.arms) == pytest.approx(found.gain.value)


def test_the_cost_is_gpus_times_start_and_sweep():
    cost = CalibrationCost(startup_s=600.0, measuring_s=300.0, gpus=4)
    found = worth(cost=cost, asked=DEFAULT_ARMS)
    assert found.gpu_s == len(found.buy) * 3600.0
    assert found.cost_of_arm is cost


def test_a_higher_least_gain_and_another_level_are_heard():
    assert worth(least_gain=0.99).word is WorthWord.CALIBRATION_PAYS_NOTHING
    wide, narrow = worth(confidence=0.99).gain, worth(confidence=0.5).gain
    assert wide.lower < narrow.lower < narrow.upper < wide.upper


def test_an_arm_pays_up_to_its_crossing_nowhere_or_everywhere():
    ratios = np.array([[[0.6, 1.2], [0.6, 1.0], [1.0, 0.5], [1.3, 1.4]]])
    assert share_of_saturation(ratios)[0] == pytest.approx([2 / 3, np.inf, 0.0, 0.0])


def test_every_word_has_a_meaning():
    assert set(WORTH_MEANINGS) == set(WorthWord)
