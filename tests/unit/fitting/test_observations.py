"""Which load a row stands for, and which rows say nothing about a steady state."""

from dataclasses import replace

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
    assert only(closed("none", 0, 1.0, 0.1, clients=[1], mean_inflight=0.97)).others == 0
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


@pytest.mark.parametrize(
    ("row", "assumed"),
    [
        (closed("none", 0, 1.0, 0.1, clients=[64], requests=256, mean_inflight=60.0), False),
        (closed("none", 0, 1.0, 0.1, clients=[64]), False),
        (closed("none", 0, 1.0, 0.1, clients=[1], requests=9), False),
        (closed("none", 0, 1.0, 0.1, clients=[2], requests=19), True),
        (closed("none", 0, 1.0, 0.1, clients=[8], requests=79), True),
        (closed("none", 0, 1.0, 0.1, clients=[8], requests=80), False),
    ],
    ids=["measured", "not counted", "a lone client", "two clients", "short", "long enough"],
)
def test_a_row_is_marked_only_where_a_short_runs_inflight_was_corrected(row, assumed) -> None:
    assert only(row).assumed is assumed


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
        (poisson("none", 0, 1, 0.1, [5], flag="SaturatedPoint"), Reason.SATURATED_POINT),
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


@pytest.mark.parametrize(
    ("clients", "requests", "reason"),
    [
        (8, 8, Reason.POINT_TOO_SHORT),
        (16, 16, Reason.POINT_TOO_SHORT),
        (64, 64, Reason.POINT_TOO_SHORT),
        (64, 128, Reason.POINT_TOO_SHORT),
        (256, 1000, Reason.POINT_TOO_SHORT),
        (10, 39, Reason.POINT_TOO_SHORT),
        (10, 40, None),
        (1, 5, None),
        (64, 640, None),
    ],
)
def test_a_whole_run_whose_clients_hardly_ask_again_is_too_short(clients, requests, reason) -> None:
    rows = closed("none", 0, 1.0, 0.05, clients=[clients], requests=float(requests))
    _, rejected = observe(rows, RAMP_SHARE)
    assert [why for _, why in rejected] == ([] if reason is None else [reason])
    # A window of a running load has no first wave.
    (windowed,) = closed("none", 0, 1.0, 0.05, clients=[clients], requests=float(requests), window_s=60.0)
    assert observe([windowed], RAMP_SHARE)[1] == []


@pytest.mark.parametrize("requests", [10, 20, 39])
def test_an_open_loop_of_fewer_requests_than_a_few_in_flight_is_too_short(requests) -> None:
    # 5 a second, 2 s each: ten in flight.
    short = poisson("none", 0, 1.0, 0.1, [5.0], requests=float(requests))
    assert [why for _, why in observe(short, RAMP_SHARE)[1]] == [Reason.POINT_TOO_SHORT]
    assert observe(poisson("none", 0, 1.0, 0.1, [5.0], requests=41.0), RAMP_SHARE)[1] == []


def of_a_batch(batch, clients, *, first_s=0.1, decode_s=1.0, among_s=0.02, **columns):
    """Rows of a closed loop on an engine that decodes `batch` requests together; the others wait for their first token."""
    rows = []
    for number, count in enumerate(clients):
        served_s = decode_s + among_s * (min(count, batch) - 1)
        latency_s = served_s * max(count / batch, 1.0) + first_s
        rows += closed(
            "none", 0, latency_s, 0.0, clients=[count], ttft_mean_s=latency_s - served_s,
            achieved_rps=count / latency_s, requests=50.0 * count, first_row=2 + number, **columns,
        )  # fmt: skip
    return rows


@pytest.mark.parametrize(
    ("batch", "clients", "left_out"),
    [
        (16, (1, 4, 8, 16, 32, 64), (32, 64)),
        (16, (1, 8, 16, 48, 96), (48, 96)),
        (8, (1, 2, 4, 8, 32, 128), (32, 128)),
        (32, (1, 8, 32, 128), (128,)),
        (64, (1, 16, 64, 256, 512), (256, 512)),
        (64, (1, 4, 16, 64), ()),
        (256, (1, 4, 16, 64), ()),
    ],
)
def test_clients_far_beyond_the_batch_are_saturation(batch, clients, left_out) -> None:
    rows = of_a_batch(batch, clients)
    _, rejected = observe(rows, RAMP_SHARE)
    assert [(point.concurrency, why) for point, why in rejected] == [
        (count, Reason.SATURATED_POINT) for count in left_out
    ]
    assert all(ceiling_rps(point, RAMP_SHARE) == pytest.approx(point.achieved_rps) for point, _ in rejected)
    # Not known without a first token, and measured by the driver in its own windows.
    silent = [replace(row, ttft_mean_s=None) for row in rows]
    assert observe(silent, RAMP_SHARE)[1] == []
    assert observe([replace(row, window_s=30.0) for row in rows], RAMP_SHARE)[1] == []


def test_a_rate_that_stands_still_without_waiting_is_no_saturation() -> None:
    # Verifying drafts becomes dear: more clients get no more answers, and each decodes for longer.
    rows = closed("eagle3", 3, 0.05, 0.1, clients=[1, 2, 4, 8, 16, 32], ttft_mean_s=0.04)
    assert observe(rows, RAMP_SHARE)[1] == []


def test_longer_answers_are_not_fewer_answers() -> None:
    short = of_a_batch(64, (8,), output_tokens=64.0)
    long = of_a_batch(64, (16,), first_s=3.0, decode_s=2.5, output_tokens=640.0)
    assert observe([*short, *long], RAMP_SHARE)[1] == []
