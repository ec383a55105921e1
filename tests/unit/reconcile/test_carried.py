"""When live figures say that a rate is carried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakeven_operator.reconcile.carried import carries
from breakeven_operator.reconcile.live_metrics import Figures

# Two replicas, 20 rps and 30 in flight on each, over 12 s.
STEADY = Figures(
    rps=20.0,
    total_rps=40.0,
    requests=480.0,
    window_s=12.0,
    inflight=30.0,
    waiting=0.0,
    latency_s=1.5,
    ttft_s=0.1,
    tpot_s=0.05,
    tokens_per_step=2.9,
    acceptance=(),
    prompt_tokens=64.0,
    output_tokens=16.0,
    saturated=False,
    replicas=2,
    age_s=1.0,
)


@pytest.mark.parametrize(
    ("figures", "carried"),
    [
        (STEADY, True),
        # 22 more in flight on two replicas that hold 60: two standard deviations of two counts.
        (replace(STEADY, requests=459.0), True),
        (replace(STEADY, requests=440.0), False),
        # Old demand is worked off: the rate asked for now is carried all the more.
        (replace(STEADY, requests=520.0), True),
        (replace(STEADY, saturated=True), False),
        (replace(STEADY, latency_s=None), False),
        (replace(STEADY, rps=0.0, total_rps=0.0), False),
    ],
)
def test_a_rate_is_carried_where_what_is_in_flight_does_not_grow(figures, carried):
    assert carries(figures) is carried


def test_hours_of_slight_overload_are_growth():
    assert not carries(replace(STEADY, window_s=300.0, requests=0.98 * 40 * 300))
