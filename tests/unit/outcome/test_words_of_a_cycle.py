"""The words of one whole cycle about an arm in place, in the status and in events."""

from __future__ import annotations

import json

import pytest

from breakeven_operator.kinds import EVENTS
from fakes.fleet_world import VALUE, FleetWorld, profile_json


def world_of(value):
    """A target that runs what the annotation says, and a profile whose drafter was calibrated on made-up text."""

    def pinned(spec):
        spec["updatePolicy"]["pinnedArm"] = "none" if value is None else "eagle/3"

    def runs(target):
        if value is not None:
            target["spec"]["template"]["metadata"]["annotations"]["breakeven.dev/speculative-config"] = value

    document = json.loads(profile_json())
    next(arm for arm in document["arms"] if arm["k"])["acceptance"]["text"] = "synthetic text"
    world = FleetWorld(pinned, runs)
    world.calibrate(profile=json.dumps(document))
    return world


async def test_when_an_arm_ceases_to_pay_an_event_says_so_and_the_status_says_why():
    world = world_of(VALUE)
    world.load(3.0)
    await world.cycle(120.0)
    assert world.status["workings"]["display"]["pays"] == "Yes"
    assert "cause" not in world.whole["model"]
    world.load(10.2)
    await world.cycle(120.0)
    assert world.status["workings"]["display"]["pays"] == "No"
    assert world.whole["model"]["cause"] == "BeyondBreakEven"
    (note,) = [event["note"] for event in world.cluster.of(EVENTS) if event["reason"] == "PaysChanged"]
    assert note.startswith("PAYS was Yes and is No: eagle/3 is 0.")


@pytest.mark.parametrize(("value", "guessed"), [(None, True), (VALUE, False)])
async def test_acceptance_of_made_up_text_is_a_guess_until_live_traffic_was_seen_on_its_drafter(
    value, guessed
):
    world = world_of(value)
    world.load(3.0)
    await world.cycle(120.0)
    said = "acceptance of eagle was measured on synthetic text: a guess until live traffic has been seen"
    assert (said in world.condition("Calibrated")["message"]) is guessed
