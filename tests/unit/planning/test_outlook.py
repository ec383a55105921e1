"""What is expected from past rates, and what requests take at loads that do not last."""

import math
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.planning.outlook import (
    ExpectedLoad,
    PastRates,
    bearable_s,
    expected_loads,
    mean_latency_s,
    peak_rps,
)

RATES = st.lists(st.floats(0.0, 1e4), max_size=400)


@dataclass(frozen=True)
class At:
    latency_s: float | None
    utilisation: float
    latency_ci_s: None = None
    ttft_s: None = None
    tpot_s: None = None
    means: tuple[str, ...] = ()
    outside_measured: bool = False

    @property
    def saturated(self) -> bool:
        return self.latency_s is None


def law(rps: float) -> At:
    """C1 = 1 s, C2 = 0.1 s."""
    return At(None if rps >= 10 else 1.0 / (1.0 - 0.1 * rps), rps / 10)


def test_the_highest_loads_are_told_apart_finest():
    loads = expected_loads(float(i) for i in range(128))
    assert [share for share, _ in loads] == [0.5, 0.25, 0.125, 0.0625, 0.03125, 1 / 64, 1 / 64]
    assert [rps for _, rps in loads] == [31.5, 79.5, 103.5, 115.5, 121.5, 124.5, 126.5]
    assert peak_rps(loads) == 126.5


@given(RATES)
def test_requests_and_time_are_kept(rates):
    loads = expected_loads(rates)
    assert len(loads) <= 7
    assert math.fsum(load.share for load in loads) == pytest.approx(1.0 if rates else 0.0)
    mean = math.fsum(rates) / len(rates) if rates else 0.0
    assert math.fsum(share * rps for share, rps in loads) == pytest.approx(mean)
    rising = [load.rps for load in loads]
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(rising))


@given(RATES, st.randoms(use_true_random=False))
def test_the_order_of_the_past_does_not_count(rates, random):
    shuffled = list(rates)
    random.shuffle(shuffled)
    assert expected_loads(shuffled) == expected_loads(rates)


@pytest.mark.parametrize("rates", [[1.0, math.nan], [math.inf, 1.0], [-1.0, 2.0]])
def test_missing_data_is_not_a_load(rates):
    with pytest.raises(ValueError, match="rates_rps"):
        expected_loads(rates)


def test_nothing_is_expected_from_no_past():
    assert expected_loads([]) == ()
    assert peak_rps(()) is None


HOUR = 3600.0


def hourly(days: float) -> PastRates:
    """A rate per hour, equal to the hour's number; the last one ended now, at the end of hour `24 * days`."""
    hours = [float(hour) for hour in range(1, round(24 * days) + 1)]
    return PastRates([HOUR * hour for hour in hours], hours)


def test_the_last_hours_and_what_followed_this_time_of_day_are_expected_again():
    assert hourly(0.25).again(6 * HOUR, 4 * HOUR) == [3, 4, 5, 6]
    assert hourly(3).again(72 * HOUR, 4 * HOUR) == [
        1,
        2,
        3,
        4,
        25,
        26,
        27,
        28,
        49,
        50,
        51,
        52,
        69,
        70,
        71,
        72,
    ]
    # Part of the following hours is known from the day on which the past begins.
    assert hourly(1).again(26 * HOUR, 4 * HOUR)[:4] == [3, 4, 5, 6]
    assert PastRates([HOUR * h for h in (23, 24)], [23.0, 24.0]).again(45 * HOUR, 4 * HOUR) == [23, 24]


@pytest.mark.parametrize("horizon_hours", [24, 30, 100])
def test_a_horizon_of_a_day_or_more_expects_all_that_is_known_once(horizon_hours):
    past = hourly(4)
    known = past.again(96 * HOUR, horizon_hours * HOUR)
    assert known == list(past.rps)


@given(
    st.lists(st.integers(0, 10**6), max_size=50, unique=True), st.integers(1, 300_000), st.integers(0, 10**6)
)
def test_what_is_expected_again_lies_in_the_spans_and_nowhere_else(ends, horizon_s, now_s):
    ends = sorted(end for end in ends if end <= now_s)
    day_s = 86400.0
    expected = [
        end
        for end in ends
        if now_s - end < horizon_s
        or any(0 < end - (now_s - day * day_s) <= horizon_s for day in range(1, 13))
    ]
    assert PastRates(ends, ends).again(now_s, horizon_s) == expected


def test_the_future_is_not_known():
    assert PastRates([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]).again(2.0, 10.0) == [1, 2]
    assert PastRates().again(5.0, 10.0) == []


def test_the_mean_counts_requests_not_hours():
    half_and_half = (ExpectedLoad(0.5, 1.0), ExpectedLoad(0.5, 9.0))
    assert mean_latency_s(half_and_half, law, 1.0) == pytest.approx((1.0 / 0.9 + 9.0 * 10.0) / 10.0)
    assert mean_latency_s((ExpectedLoad(1.0, 0.0),), law, 1.0) == 1.0


def test_a_queue_grows_only_as_long_as_the_load_lasts():
    assert bearable_s(law(5.0), 1.0) == pytest.approx(2.0)
    # A fifth more than the engine can do, for 900 s: requests at the end wait for 180 s.
    assert bearable_s(law(12.0), 1.0, 900.0) == pytest.approx(181.0)
    # The law's 100 s are reached by a rest that takes longer than the load lasts.
    assert bearable_s(law(9.9), 1.0, 60.0) == pytest.approx(20.0)


@given(st.floats(0.0, 30.0), st.floats(0.0, 30.0), st.floats(0.0, 3600.0))
def test_more_load_never_takes_less_time(a, b, lasts_s):
    low, high = sorted((a, b))
    assert bearable_s(law(low), 1.0, lasts_s) <= bearable_s(law(high), 1.0, lasts_s) * (1 + 1e-9)
