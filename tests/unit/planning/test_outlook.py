"""Past rates, condensed."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.planning.forecast import PastRates, expected_loads

RATES = st.lists(st.floats(0.0, 1e4), max_size=400)


@given(RATES)
def test_requests_and_time_are_kept(rates):
    loads = expected_loads(rates)
    assert len(loads) <= 7
    assert math.fsum(share for share, _ in loads) == pytest.approx(1.0 if rates else 0.0)
    mean = math.fsum(rates) / len(rates) if rates else 0.0
    assert math.fsum(share * rps for share, rps in loads) == pytest.approx(mean)
    rising = [rps for _, rps in loads]
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


def test_the_highest_loads_are_told_apart_finest():
    loads = expected_loads(float(i) for i in range(128))
    assert loads[0] == (0.5, 31.5)
    assert loads[-1] == (2 / 128, 126.5)
    assert expected_loads([]) == ()


def test_a_past_load_belongs_to_the_fleet_and_on_no_replicas_it_stays_as_it_was() -> None:
    past = PastRates(0.0, [2.0, 4.0], [1.0, 2.0])
    assert past.on(4.0).rps == [0.5, 2.0]
    assert past.on(0.0) == past
