"""Worth of speculation: measured, or not claimed."""

from __future__ import annotations

import math

import pytest

from breakeven.estimate import Estimate
from breakeven_operator.board.load_trail import LoadSample
from breakeven_operator.board.worth import gpu_need, request_time, sum_of, worth_of
from breakeven_operator.resources.capacitystatus import ArmCapacity, CapacityStatus
from fakes.published_board import CHAT


def after_roll(service, minutes=(0, 10, 20), inflight=6.0):
    begin_s = service.status.history[0].time.timestamp()
    return [LoadSample(begin_s + 60 * minute, 3.0, inflight) for minute in minutes]


def with_parts(service, **parts):
    return service.with_status(service.status.model_copy(update=parts))


def with_roll(service, **fields):
    roll = service.status.history[0].model_copy(update=fields)
    return with_parts(service, history=(roll, *service.status.history[1:]))


@pytest.fixture
def chat(settled):
    return settled.services[CHAT]


def test_saved_time_is_requests_in_flight_times_the_measured_gain(chat):
    roll = chat.status.history[0]
    saved = request_time(chat, after_roll(chat))
    assert saved.against == "none"
    assert saved.seconds.value == pytest.approx(6.0 * 1200 * (roll.measured_speedup - 1))
    assert saved.seconds.lower == pytest.approx(6.0 * 1200 * (roll.measured_speedup_lower - 1))
    assert saved.seconds.upper == pytest.approx(6.0 * 1200 * (roll.measured_speedup_upper - 1))
    assert saved.seconds.lower < saved.seconds.value < saved.seconds.upper


def test_a_roll_that_made_it_slower_has_lost_time(chat):
    slower = with_roll(chat, measured_speedup=0.9, measured_speedup_lower=0.8, measured_speedup_upper=1.1)
    saved = request_time(slower, after_roll(chat)).seconds
    assert saved.value < 0.0 < saved.upper


@pytest.mark.parametrize(
    "change",
    [
        lambda chat: with_roll(chat, measured_speedup=None),
        lambda chat: with_roll(chat, measured_speedup=math.nan),
        lambda chat: with_roll(chat, to_arm="eagle/7"),
        lambda chat: with_parts(chat, history=()),
        lambda chat: with_parts(chat, current=None),
    ],
)
def test_without_a_measured_roll_to_the_running_arm_nothing_is_claimed(chat, change):
    assert request_time(change(chat), after_roll(chat)) is None


def test_loads_before_the_roll_and_gaps_do_not_count(chat):
    begin_s = chat.status.history[0].time.timestamp()
    early = [LoadSample(begin_s - 600, 3.0, 1e6), LoadSample(begin_s - 300, 3.0, 1e6)]
    gap = [LoadSample(begin_s + 6 * 3600, 3.0, 6.0)]
    saved = request_time(chat, [*early, *after_roll(chat), *gap])
    assert saved.seconds.value == pytest.approx(request_time(chat, after_roll(chat)).seconds.value)
    assert request_time(chat, early) is None
    assert request_time(chat, after_roll(chat, inflight=math.nan)) is None


def arm(name, rps, lower, upper):
    return ArmCapacity(arm=name, capacity_rps=rps, lower_rps=lower, upper_rps=upper)


def needing(chat, *arms, load=100.0, peak=None, gpus=2):
    capacity = CapacityStatus(arms=arms, fleet_load_rps=load)
    decision = chat.status.decision.model_copy(update={"expected_peak_rps": peak})
    target = chat.status.target.model_copy(update={"gpus_per_pod": gpus, "ready_replicas": 10})
    return with_parts(chat, capacity=capacity, decision=decision, target=target)


NONE, EAGLE = arm("none", 10.0, 9.0, 11.0), arm("eagle/3", 20.0, 18.0, 22.0)


def test_gpus_are_replicas_of_both_arms_by_their_capacities(chat):
    need = gpu_need(needing(chat, NONE, EAGLE))
    # 120 rps with headroom: 12 replicas without, 6 with; 11 against 7 at worst, 14 against 6 at best; two GPUs each.
    assert need.gpus == Estimate(12.0, 8.0, 16.0)
    assert (need.arm, need.runs, need.expected) == ("eagle/3", True, False)


def test_the_expected_peak_outranks_the_present_load(chat):
    need = gpu_need(needing(chat, NONE, EAGLE, peak=20.0))
    assert (need.fleet_rps, need.expected) == (200.0, True)


def test_an_arm_that_carries_less_needs_more(chat):
    assert gpu_need(needing(chat, NONE, arm("eagle/3", 5.0, 4.5, 5.5))).gpus.upper < 0


def test_open_bounds_stay_open(chat):
    need = gpu_need(needing(chat, NONE, arm("eagle/3", 20.0, None, None)))
    assert (need.gpus.lower, need.gpus.upper) == (None, None)


@pytest.mark.parametrize(
    "service",
    [
        lambda chat: needing(chat, NONE),
        lambda chat: needing(chat, EAGLE),
        lambda chat: needing(chat, NONE, EAGLE, load=None),
        lambda chat: needing(chat, NONE, EAGLE, gpus=0),
        lambda chat: with_parts(chat, capacity=None),
    ],
)
def test_without_capacities_load_or_gpus_nothing_is_said(chat, service):
    assert gpu_need(service(chat)) is None


def test_sums_add_all_at_their_worst_and_all_at_their_best(chat):
    one = worth_of(needing(chat, NONE, EAGLE), after_roll(chat))
    both = sum_of([one, one, worth_of(with_parts(chat, history=(), capacity=None), ())])
    assert (both.measured, both.counted) == (2, 2)
    assert both.gpus == Estimate(24.0, 16.0, 32.0)
    assert both.request_seconds.lower == pytest.approx(2 * one.request_time.seconds.lower)
    # A cost that is not known is not 0.
    assert (both.calibration_gpu_hours, both.calibrated) == (None, 0)
    state = chat.status.calibration.model_copy(update={"gpu_seconds_used": 1800.0})
    costly = worth_of(with_parts(chat, calibration=state), ())
    assert (sum_of([costly, one]).calibration_gpu_hours, sum_of([costly, one]).calibrated) == (0.5, 1)
    nothing = sum_of([])
    assert nothing.request_seconds == Estimate(0.0, 0.0, 0.0)
