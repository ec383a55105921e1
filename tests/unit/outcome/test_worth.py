"""Worth of speculation: measured, or not claimed."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from breakeven.estimate import Estimate
from breakeven.serving.counted_window import Load
from breakeven_operator.outcome.worth import (
    gpu_need,
    inflight_time,
    measured_roll,
    request_time,
    time_text,
    worth_of,
)
from breakeven_operator.resources.memorystatus import InflightTime
from breakeven_operator.resources.servicestatus import ArmCapacity, CapacityStatus, ServiceWorkings
from fakes.played_worlds import after_a_measured_roll
from fakes.published_board import CHAT, published_of


@pytest.fixture
def chat():
    return published_of(after_a_measured_roll()).services[CHAT].status


def saved_by(status):
    return request_time(measured_roll(status), status.memory.inflight_time)


def window(inflight=3.0, replicas=2, age_s=0.0):
    return Load(inflight=inflight, replicas=replicas, age_s=age_s)


def after(status, *minutes, figures=None, before=None):
    """The account of requests in flight after windows so many minutes after the roll."""
    for minute in minutes:
        now = status.history[0].time + timedelta(minutes=minute)
        before = inflight_time(status, before, figures or window(), now)
    return before


def with_account(status, account):
    memory = status.memory.replace(inflight_time=account)
    return status.replace(workings=ServiceWorkings(memory=memory, display=status.display))


def with_roll(status, **fields):
    return status.replace(history=(status.history[0].replace(**fields), *status.history[1:]))


def test_saved_time_is_requests_in_flight_times_the_measured_gain(chat):
    roll = chat.history[0]
    saved = saved_by(with_account(chat, after(chat, 0, 10, 20)))
    assert saved.value == pytest.approx(6.0 * 1200 * (roll.measured_speedup - 1))
    assert saved.lower == pytest.approx(6.0 * 1200 * (roll.measured_speedup_lower - 1))
    assert saved.upper == pytest.approx(6.0 * 1200 * (roll.measured_speedup_upper - 1))
    assert saved.lower < saved.value < saved.upper


def test_a_roll_that_made_it_slower_has_lost_time(chat):
    slower = with_roll(chat, measured_speedup=0.9, measured_speedup_lower=0.8, measured_speedup_upper=1.1)
    saved = saved_by(with_account(slower, after(slower, 0, 10)))
    assert saved.value < 0.0 < saved.upper
    assert "waiting" not in worth_of(with_account(slower, after(slower, 0, 10)), None).message, (
        "it may be none"
    )
    slower = with_roll(chat, measured_speedup=0.9, measured_speedup_lower=0.8, measured_speedup_upper=0.95)
    said = worth_of(with_account(slower, after(slower, 0, 10)), None).message
    assert "360 s [180,720] of waiting lost against no speculation" in said


@pytest.mark.parametrize(
    "change",
    [
        lambda chat: with_roll(chat, measured_speedup=None),
        lambda chat: with_roll(chat, to_arm="eagle/7"),
        lambda chat: chat.replace(history=()),
    ],
)
def test_without_a_measured_roll_to_the_running_arm_nothing_is_claimed(chat, change):
    account = after(chat, 0, 10)
    changed = change(chat)
    assert inflight_time(changed, account, window(), chat.history[0].time) is None
    assert saved_by(with_account(changed, account)) is None


def test_a_roll_whose_gain_is_no_number_claims_nothing(chat):
    roll = chat.history[0].model_copy(update={"measured_speedup": math.nan})
    broken = chat.model_copy(update={"history": (roll,)})
    assert inflight_time(broken, None, window(), roll.time) is None


def test_gaps_loads_before_the_roll_and_windows_that_came_before_do_not_count(chat):
    account = after(chat, 0, 10)
    assert after(chat, -10, -5) is None
    # Six hours without figures are no course of a load, and the window after them begins the next one.
    resumed = after(chat, 370, before=account)
    assert resumed.request_seconds == account.request_seconds
    assert after(chat, 380, before=resumed).request_seconds == pytest.approx(2 * account.request_seconds)
    assert after(chat, 5, before=account) == account


@pytest.mark.parametrize("figures", [None, window(inflight=None), window(inflight=math.nan)])
def test_a_window_without_requests_in_flight_leaves_the_account_as_it_was(chat, figures):
    account = after(chat, 0, 10)
    assert inflight_time(chat, account, figures, chat.history[0].time + timedelta(minutes=20)) == account


def test_a_window_is_dated_by_its_newest_sample(chat):
    assert after(chat, 1, figures=window(age_s=60.0)).since == chat.history[0].time


def test_an_account_of_a_roll_before_ends_with_it(chat):
    old = after(chat, 0, 10)
    later = with_roll(chat, time=chat.history[0].time + timedelta(hours=1))
    assert after(later, 0, before=old).request_seconds == 0.0


def test_while_the_target_cannot_be_read_the_account_stays(chat):
    account = after(chat, 0, 10)
    assert inflight_time(chat.replace(current=None), account, None, chat.history[0].time) == account


def arm(name, rps, lower, upper):
    return ArmCapacity(arm=name, capacity_rps=rps, lower_rps=lower, upper_rps=upper)


def needing(chat, *arms, load=100.0, peak=None, gpus=2):
    return chat.replace(
        capacity=CapacityStatus(arms=arms, fleet_load_rps=load),
        decision=chat.decision.replace(expected_peak_rps=peak),
        target=chat.target.replace(gpus_per_pod=gpus, ready_replicas=10),
    )


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
    "status",
    [
        lambda chat: needing(chat, NONE),
        lambda chat: needing(chat, EAGLE),
        lambda chat: needing(chat, NONE, EAGLE, load=None),
        lambda chat: needing(chat, NONE, EAGLE, gpus=0),
        lambda chat: chat.replace(capacity=None),
    ],
)
def test_without_capacities_load_or_gpus_nothing_is_said(chat, status):
    assert gpu_need(status(chat)) is None


def test_the_status_says_gpu_hours_a_day_and_money_if_there_is_a_price(chat):
    status = needing(chat, NONE, EAGLE)
    status = status.replace(calibration=status.calibration.replace(total_gpu_seconds=1800.0))
    worth = worth_of(status, 2.5)
    assert (worth.gpus_arm, worth.gpus_basis, worth.gpus) == ("eagle/3", "Running", Estimate(12.0, 8.0, 16.0))
    assert "288 GPU-hours a day [192,384], 720 [480,960] a day at 2.5 per GPU-hour" in worth.message
    assert "calibrations cost 0.5 GPU-hours (1.25 at 2.5 per GPU-hour)" in worth.message
    assert worth.rolls_seconds == sum(one.seconds for one in status.history)
    assert "per GPU-hour" not in worth_of(status, None).message


def test_short_times_are_said_in_seconds_and_long_ones_in_hours():
    assert time_text(Estimate(-12.0, None, 900.0)) == "-12 s [-,900]"
    assert time_text(Estimate(1800.0, 900.0, 7200.0)) == "0.5 hours [0.25,2]"


def test_an_account_is_read_back_as_it_was_written(chat):
    account = after(chat, 0, 10)
    assert InflightTime.read(account.to_json_object(), "account") == account


def test_a_service_without_anything_to_say_has_no_worth(chat):
    bare = chat.replace(history=(), capacity=None, calibration=None)
    assert worth_of(bare, 2.5) is None
