"""Measured request times decide on a real control plane: after a roll, and next to saturation.

The real Prometheus sees every pod of the target as an engine at a load that the test moves. Its latency follows the
law of the arm that the pod really runs.
"""

import json

import pytest

from breakeven.arm import NO_SPECULATION
from fakes.notes import memory_of
from operatorcluster import manifests
from operatorcluster.posed_pods import LOW_RPS, PosedPods
from operatorcluster.waiting import until

# Product files whose change runs these tests at the next landing.
COVERS = ("tuner/breakeven/planning/roll_experiment.py",)

# The break-even lies near 11. Eagle is at 90 % of its saturation here, no speculation at 61 % of its own.
HIGH_RPS = 12.0
# Words of a roll that stays. Which of them one is given depends on how many windows a busy machine lets through.
STAYS = {"Confirmed", "Unproven", "Unmeasured"}
# Beyond eagle's saturation of 13, also if a busy machine counts a seventh less, and 80 % of that without speculation.
SATURATING_RPS = 16.0


@pytest.fixture
def posed(place):
    """A target that has been rolled to speculation at a low load, and that roll judged."""
    place.apply(
        manifests.profile(place.stage.fingerprint), manifests.target(scraped=False), manifests.service()
    )
    with PosedPods(place) as posed:
        place.until_settled("eagle/3")
        found = place.until_service("the first roll is judged", results)
        assert set(results(found["status"])) <= STAYS
        yield posed


def results(status):
    return [entry["result"] for entry in status.get("history") or ()]


def policy(place, **changes):
    place.patch("specsvc", "chat", {"spec": {"updatePolicy": changes}})


def test_an_arm_left_at_a_high_load_is_not_put_back_when_the_load_has_fallen(place, posed):
    """It is as slow as was promised for this load; that the other would be faster by now is no reason to call the roll wrong."""
    posed.rps = HIGH_RPS
    until("the arm is left", lambda: place.annotation() == "null")
    # Only the confirmation may speak.
    policy(place, cooldownSeconds=3600)
    posed.rps = LOW_RPS
    found = place.until_service("that roll is judged", lambda status: len(results(status)) == 2)
    change = found["status"]["history"][0]
    assert (change["fromArm"], change["toArm"], change["reason"]) == ("eagle/3", "none", "BeyondBreakEven")
    # A loss that was promised for this load is no gain, and no disproof.
    assert change["result"] in STAYS, change
    assert float(change["measuredSpeedup"]) < 0.9, change
    place.until_decided("CoolingDown")
    assert place.annotation() == "null"
    assert {"RollUndone", "RolledBack"}.isdisjoint(place.reasons())
    # The ordinary decision brings the other arm back, with no back-off before it.
    policy(place, cooldownSeconds=0)
    place.until_settled("eagle/3")
    assert place.get("specsvc", "chat")["status"]["history"][0]["fromArm"] == "eagle/3"


@pytest.mark.claim("docs/concepts.md", "a roll that significantly loses is undone")
def test_a_roll_that_was_disproved_is_undone_and_said_to_be(place, posed):
    posed.rps = HIGH_RPS
    until("the arm is left", lambda: place.annotation() == "null")
    policy(place, cooldownSeconds=3600)
    posed.rps, posed.slow[NO_SPECULATION] = LOW_RPS, 6.0
    found = place.until_service("that roll is undone", lambda status: len(results(status)) == 2)
    change = found["status"]["history"][0]
    assert (change["result"], change["reason"]) == ("Undone", "RollDisproved")
    assert change["message"].startswith(
        "eagle/3 runs again; eagle/3 -> no speculation was undone (RollDisproved): "
    )
    assert float(change["measuredSpeedupUpper"]) < 1.0
    assert " against promised " in place.until_event("RollUndone")
    assert memory_of(found["status"])["suspicion"]["reason"] == "RollDisproved"


def test_an_arm_that_loses_is_left_for_no_speculation_whatever_the_dwell_and_the_cool_down(place, posed):
    policy(place, stabilizationWindowSeconds=3600, cooldownSeconds=3600)
    posed.rps = HIGH_RPS
    place.until_settled("none")
    assert "no speculation saves " in place.until_event("BeyondBreakEven")
    # Its history stays; `status.rollout` is gone as soon as the roll is judged.
    found = place.until_service("that roll is judged", lambda status: len(results(status)) == 2)
    change = found["status"]["history"][0]
    assert (change["fromArm"], change["toArm"], change["reason"]) == ("eagle/3", "none", "BeyondBreakEven")
    # Back to it only after both.
    posed.rps = LOW_RPS
    place.until_decided("CoolingDown")


def test_an_arm_that_cannot_carry_the_load_is_left_and_nothing_fails_meanwhile(place, posed, stage):
    """Its predicted latency has no end and the ratio to it no figure: the change is written without one."""
    posed.rps = SATURATING_RPS
    place.until_settled("none")
    found = place.until_service("that roll is judged", lambda status: len(results(status)) == 2)
    change = found["status"]["history"][0]
    assert (change["fromArm"], change["toArm"]) == ("eagle/3", "none"), change
    assert change["result"] in STAYS, change
    assert "predictedSpeedup" not in change
    assert "InternalError" not in place.reasons()
    lines = [line for line in stage.log() if place.name in json.dumps(line)]
    assert [line for line in lines if line["level"] == "error"] == []
