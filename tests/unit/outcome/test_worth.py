"""Worth of speculation now: GPUs by capacities, and what measuring cost."""

from __future__ import annotations

import pytest

from breakeven.estimate import Estimate
from breakeven_operator.outcome.worth import gpus_not_needed, worth_of
from breakeven_operator.resources.servicestatus import ArmCapacity, CapacityStatus
from fakes.played_worlds import after_a_measured_roll
from fakes.published_board import CHAT, published_of


@pytest.fixture
def chat():
    return published_of(after_a_measured_roll()).services[CHAT].status


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
    status = needing(chat, NONE, EAGLE)
    # 120 rps with headroom: 12 replicas without, 6 with; 11 against 7 at worst, 14 against 6 at best; two GPUs each.
    assert gpus_not_needed(status) == Estimate(12.0, 8.0, 16.0)
    assert (
        "needed with eagle/3 at the present load (100 rps of all replicas)" in worth_of(status, None).message
    )


def test_the_expected_peak_outranks_the_present_load(chat):
    said = worth_of(needing(chat, NONE, EAGLE, peak=20.0), None).message
    assert "needed with eagle/3 at the highest expected load (200 rps of all replicas)" in said


def test_an_arm_that_carries_less_needs_more(chat):
    assert gpus_not_needed(needing(chat, NONE, arm("eagle/3", 5.0, 4.5, 5.5))).upper < 0


def test_open_bounds_stay_open(chat):
    found = gpus_not_needed(needing(chat, NONE, arm("eagle/3", 20.0, None, None)))
    assert (found.lower, found.upper) == (None, None)


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
    assert gpus_not_needed(status(chat)) is None


def test_the_status_says_gpu_hours_a_day_and_money_if_there_is_a_price(chat):
    status = needing(chat, NONE, EAGLE)
    status = status.replace(calibration=status.calibration.replace(total_gpu_seconds=1800.0))
    worth = worth_of(status, 2.5)
    assert (worth.gpus_arm, worth.gpus_basis, worth.gpus) == ("eagle/3", "Running", Estimate(12.0, 8.0, 16.0))
    assert "288 GPU-hours a day [192,384], 720 [480,960] a day at 2.5 per GPU-hour" in worth.message
    assert "calibrations cost 0.5 GPU-hours (1.25 at 2.5 per GPU-hour)" in worth.message
    assert worth.rolls_seconds == sum(one.seconds for one in status.history)
    assert "per GPU-hour" not in worth_of(status, None).message


def test_a_service_without_anything_to_say_has_no_worth(chat):
    bare = chat.replace(history=(), capacity=None, calibration=None)
    assert worth_of(bare, 2.5) is None
