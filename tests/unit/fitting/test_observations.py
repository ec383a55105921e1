"""Which load a row stands for, and which rows say nothing about a steady state."""

import pytest

from breakeven.fitting.observations import RAMP_SHARE, ceiling_rps, observe, ramp_share_of
from breakeven.reasons import Reason
from sweeps import closed, poisson


def only(points, share=RAMP_SHARE):
    (observation,), rejected = observe(points, share)
    assert not rejected
    return observation


def test_a_client_never_meets_itself_and_an_arrival_meets_everybody() -> None:
    assert only(closed("none", 0, 1.0, 0.1, clients=[8])).others == 7
    # rate 5 and latency 1/(1 - 0.5) = 2: ten in flight, all of them met.
    assert only(poisson("none", 0, 1.0, 0.1, [5.0])).others == pytest.approx(10.0)


def test_what_requests_of_a_window_met_is_not_corrected_for_even_arrivals() -> None:
    columns = {
        "load_mode": "constant",
        "mean_inflight": 8.9,
        "output_tokens": 64.0,
        "output_tokens_sq": 64.0**2,
    }
    ours = only(poisson("none", 0, 1.0, 0.1, [5.0], **columns, window_s=30.0))
    theirs = only(poisson("none", 0, 1.0, 0.1, [5.0], **{**columns, "mean_inflight": 9.9}))
    assert (ours.others, theirs.others) == (8.9, pytest.approx(8.9))


def test_the_measured_inflight_replaces_the_imposed_concurrency() -> None:
    assert only(closed("none", 0, 1.0, 0.1, clients=[8], mean_inflight=6.5)).others == 5.5


def test_answered_rate_times_latency_is_the_inflight_by_littles_law() -> None:
    # 8 clients, latency 1.7 s; 4 answers a second mean 6.8 in flight: the run ramped and drained.
    assert only(closed("none", 0, 1.0, 0.1, clients=[8], achieved_rps=4.0)).others == pytest.approx(5.8)


def test_a_short_run_is_corrected_and_marked_and_a_long_one_is_not() -> None:
    short = only(closed("none", 0, 1.0, 0.1, clients=[64], requests=256))
    assert short.inflight == pytest.approx(64 / (1 + RAMP_SHARE * 63 / 256))
    assert short.assumed
    long = only(closed("none", 0, 1.0, 0.1, clients=[64], requests=6400))
    assert not long.assumed


def test_rows_with_inflight_teach_the_ramp_of_the_others() -> None:
    rows = closed("none", 0, 1.0, 0.1, clients=[64], requests=256, mean_inflight=64 / (1 + 0.7 * 63 / 256))
    assert ramp_share_of(rows) == pytest.approx(0.7)
    assert ramp_share_of(closed("none", 0, 1.0, 0.1)) == RAMP_SHARE


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (closed("none", 0, 1, 0.1, clients=[8], preemptions=1), Reason.PREEMPTING),
        (closed("none", 0, 1, 0.1, clients=[8], mean_inflight=7.0, achieved_rps=3.0), Reason.NOT_STEADY),
        (closed("none", 0, 1, 0.1, clients=[8], mean_inflight=12.0), Reason.NOT_STEADY),
        (poisson("none", 0, 1, 0.1, [5], mean_inflight=15.0), Reason.NOT_STEADY),
        (poisson("none", 0, 1, 0.1, [5], achieved_rps=3.0), Reason.SATURATED_POINT),
        (poisson("none", 0, 1, 0.1, [5], flag="Saturated"), Reason.SATURATED_POINT),
        (poisson("none", 0, 1, 0.1, [5], flag="DriverLagging NotSteady"), Reason.DRIVER_LAGGING),
        (poisson("none", 0, 1, 0.1, [5], flag="WordOfTomorrow"), Reason.NOT_STEADY),
    ],
)
def test_rows_that_are_not_steady_are_left_out_each_with_its_reason(rows, reason) -> None:
    used, rejected = observe(rows, RAMP_SHARE)
    assert not used
    assert [why for _, why in rejected] == [reason]


def test_a_rate_that_few_requests_leave_uncertain_is_not_called_saturated() -> None:
    used, _ = observe(poisson("none", 0, 1, 0.1, [5], achieved_rps=4.0, requests=40), RAMP_SHARE)
    assert len(used) == 1


def test_more_in_flight_than_clients_by_rounding_is_all_clients() -> None:
    # 8 clients, latency 1.7 s: an answered rate rounded up to 4.8 would mean 8.16 in flight.
    assert only(closed("none", 0, 1.0, 0.1, clients=[8], achieved_rps=4.8)).others == 7


def whole_run(asked_rps, requests, latency_s, lasted_s):
    """A row of a tool that divides all answers by the time until the last one."""
    (row,) = poisson(
        "none", 0, latency_s, 0.0, [asked_rps], requests=requests, achieved_rps=requests / lasted_s
    )
    return row


def queue(asked_rps, carried_rps, requests, first_s):
    """A run beyond saturation: latency grows evenly from the first request's to the last one's."""
    lasted_s = requests / carried_rps
    excess_s = lasted_s - requests / asked_rps
    return whole_run(asked_rps, requests, (first_s + excess_s) / 2, lasted_s)


@pytest.mark.parametrize(
    ("row", "reason", "ceiling"),
    [
        # 200 requests at 12 rps are sent in 16.7 s; the last answers come one latency later, and show nothing.
        (whole_run(12.0, 200.0, 3.9, 21.0), Reason.POINT_TOO_SHORT, None),
        # Lengths that vary: the longest of forty answers takes four mean latencies.
        (whole_run(12.0, 200.0, 3.9, 32.0), Reason.POINT_TOO_SHORT, None),
        # Minutes beyond saturation, three times over it too: nothing shows the ceiling better.
        (queue(12.0, 8.0, 4000.0, 2.0), Reason.SATURATED_POINT, 8.0),
        (queue(24.0, 8.0, 4000.0, 2.0), Reason.SATURATED_POINT, 8.0),
        # The same factor too fast, and over before the engine was full for long.
        (queue(24.0, 8.0, 60.0, 2.0), Reason.POINT_TOO_SHORT, None),
        (queue(24.0, 8.0, 100.0, 2.0), Reason.SATURATED_POINT, None),
        # All clients of the tool are busy: the queue stands in front of them, not in the engine.
        (whole_run(24.0, 4000.0, 2.0, 500.0), Reason.POINT_TOO_SHORT, None),
        (whole_run(12.0, 4.0, 3.9, 4.3), Reason.POINT_TOO_SHORT, None),
    ],
)
def test_a_run_counts_as_saturated_by_its_queue_not_by_its_last_answers(row, reason, ceiling) -> None:
    _, ((point, why),) = observe([row], RAMP_SHARE)
    assert why is reason
    assert (ceiling_rps(point, RAMP_SHARE) if why is Reason.SATURATED_POINT else None) == (
        None if ceiling is None else pytest.approx(ceiling)
    )


def test_all_requests_at_once_show_what_is_carried() -> None:
    # 400 requests, answered at 8 a second: they wait 25 s on average.
    (row,) = closed(
        "none",
        0,
        25.0,
        0.0,
        clients=[200],
        requests=400.0,
        achieved_rps=8.0,
        mean_inflight=200.0,
        flag="SaturatedPoint",
    )
    assert ceiling_rps(row, RAMP_SHARE) == pytest.approx(8.0)
