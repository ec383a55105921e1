"""When a point does not say what its row says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.load_driver.measuring import MeasuredWindow
from breakeven.load_driver.window import Spread, WindowStatistics
from breakeven.points.point import ImposedLoad, LoadMode
from breakeven.points.quality import reason_against
from breakeven.points.table import cells, read, written
from breakeven.reasons import Reason
from breakeven.serving.counted_window import Load

SPREAD = Spread(1.0, 0.9, 1.5, 2.0)
STEADY = WindowStatistics(
    seconds=30.0,
    requests=300,
    errors={},
    offered_rps=10.0,
    achieved_rps=10.0,
    mean_inflight=10.0,
    others_met=9.8,
    latency=SPREAD,
    ttft=SPREAD,
    tpot=Spread(0.02, 0.019, 0.03, 0.04),
    tokens_per_second=320.0,
    prompt_tokens=64.0,
    output_tokens=32.0,
    output_tokens_sq=1024.0,
    send_lag_mean_s=0.0003,
    send_lag_p99_s=0.002,
    relative_error=0.01,
)
GOOD = MeasuredWindow(
    NO_SPECULATION,
    ImposedLoad(LoadMode.POISSON, 10.0),
    STEADY,
    Load(preemptions=0.0),
    queued_ratio=0.0,
)
CEILING = replace(GOOD, load=ImposedLoad(LoadMode.CLOSED, 64))


def seen(**changes: float) -> MeasuredWindow:
    return replace(GOOD, clients=replace(STEADY, **changes))


@pytest.mark.parametrize(
    ("point", "flags"),
    [
        (GOOD, ()),
        (seen(send_lag_mean_s=0.03), (Reason.DRIVER_LAGGING,)),
        # Of requests that take a second, a lag of ten milliseconds is one percent.
        (seen(send_lag_mean_s=0.01), ()),
        (seen(send_lag_p99_s=0.3), (Reason.DRIVER_LAGGING,)),
        (seen(send_lag_p99_s=0.2), ()),
        (seen(errors={"HTTP 500": 1}), (Reason.REQUESTS_FAILED,)),
        (seen(achieved_rps=7.0), (Reason.SATURATED_POINT,)),
        (seen(achieved_rps=9.9), ()),
        (seen(mean_inflight=12.0), (Reason.NOT_STEADY,)),
        # The same gap in a window of four latencies can be chance.
        (seen(mean_inflight=12.0, seconds=4.0), ()),
        (seen(requests=4), (Reason.POINT_TOO_SHORT,)),
        (replace(GOOD, overloaded=True), (Reason.SATURATED_POINT,)),
        (replace(GOOD, engine=Load(preemptions=2.0)), (Reason.PREEMPTING,)),
        # A closed loop has no rate of its own that its in-flight could contradict.
        (replace(CEILING, clients=replace(STEADY, mean_inflight=64.0)), ()),
        # Its requests spend a fifth of their latency without a place in the batch: more clients would only wait.
        (replace(CEILING, engine=Load(queue_s=0.2)), (Reason.SATURATED_POINT,)),
        (replace(CEILING, engine=Load(queue_s=0.05)), ()),
    ],
)
def test_each_reason_has_its_word(point, flags):
    assert point.flags == flags


def test_few_requests_at_a_low_rate_are_not_saturation():
    # Three of twelve answers are still due when a short window ends: chance, not a pile.
    point = seen(seconds=12.0, requests=12, offered_rps=1.0, achieved_rps=0.75, mean_inflight=1.0)
    assert Reason.SATURATED_POINT not in point.flags


def test_requests_that_wait_for_the_next_step_are_no_queue():
    # Answers of six steps: one in seven requests waits for a step to end, at any load and in any reading.
    assert replace(GOOD, queued_ratio=0.15, engine=Load(queue_s=0.0)).flags == ()
    assert replace(CEILING, queued_ratio=0.15, engine=Load(queue_s=0.0)).flags == ()


def test_an_open_loop_that_queues_in_bursts_and_is_answered_is_not_saturated():
    assert replace(GOOD, engine=Load(queue_s=0.2)).flags == ()


def test_a_window_that_asks_for_more_than_was_planned_is_not_saturated():
    # 67 requests in place of 60 came, 53 were answered: chance; of 60 planned ones 53 are no sign of anything.
    burst = replace(
        STEADY, seconds=4.0, requests=67, offered_rps=16.75, achieved_rps=13.25, mean_inflight=8.0
    )
    point = replace(GOOD, load=ImposedLoad(LoadMode.POISSON, 15.0), clients=burst)
    assert Reason.SATURATED_POINT not in point.flags


def test_a_window_of_few_generations_says_so_and_is_not_called_saturated():
    wave = replace(STEADY, seconds=4.0, requests=110, mean_inflight=64.0)
    point = replace(CEILING, clients=wave, engine=Load(queue_s=0.5))
    assert point.flags == (Reason.POINT_TOO_SHORT,)
    longer = replace(point, clients=replace(wave, seconds=10.0, requests=260))
    assert longer.flags == (Reason.SATURATED_POINT,)


def test_a_closed_loop_answers_what_is_in_flight_over_the_latency():
    # One wave of 64 answers was counted in 4 s, 70 requests were sent in them.
    wave = replace(STEADY, seconds=4.0, requests=70, achieved_rps=16.0, mean_inflight=64.0)
    point = replace(CEILING, clients=replace(wave, latency=replace(SPREAD, mean_s=2.5)))
    assert point.point().achieved_rps == 25.6
    assert GOOD.point().achieved_rps == 10


def test_the_row_has_the_contracts_columns_and_reads_back():
    arm = Arm("eagle3", 3, "eagle")
    engine = Load(
        tokens_per_step=2.078, drafted_per_step=3.0, survival=(0.57, 0.28, 0.13), drafts=1000, preemptions=0.0
    )
    point = replace(GOOD, arm=arm, engine=engine, overloaded=True)
    row = cells(point.point())
    assert (row["method"], row["k"], row["candidate"], row["load_mode"]) == (
        "eagle3",
        "3",
        "eagle",
        "poisson",
    )
    assert (row["request_rate_rps"], row["concurrency"]) == ("10", "")
    assert (row["accept_1"], row["accept_3"], row["drafts"], row["tokens_per_step"]) == (
        "0.57",
        "0.13",
        "1000",
        "2.078",
    )
    assert row["flag"] == "SaturatedPoint"
    (again,) = read(written([row]), "p.csv")
    assert replace(again, origin=point.point().origin) == point.point()


def test_a_window_without_an_answer_inside_makes_no_row_that_fit_refuses():
    # Every counted request was answered after the window: no rate was measured, which 0 per second would claim.
    slow = replace(STEADY, achieved_rps=0.0, tokens_per_second=0.0)
    row = cells(replace(GOOD, clients=slow, overloaded=True).point())
    assert (row["achieved_rps"], row["tokens_per_second"]) == ("", "")
    (again,) = read(written([row]), "p.csv")
    assert reason_against(again) is Reason.SATURATED_POINT


def test_the_number_in_flight_is_what_requests_met():
    assert GOOD.point().mean_inflight == 9.8
    assert CEILING.point().mean_inflight == 10.8, "in a closed loop the request itself is among them"
    assert seen(others_met=None).point().mean_inflight == 10
    assert (seen(others_met=0.0).point().mean_inflight or 0) > 0
