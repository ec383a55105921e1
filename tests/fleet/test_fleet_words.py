"""What `kubectl get` and `kubectl describe` show: whole sentences with the figures, their bounds, and what comes next."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven_operator.reconcile.rollout import Prediction, begin
from breakeven_operator.reconcile.steps import Situation
from breakeven_operator.resources.servicestatus import MemoryStatus
from breakeven_operator.resources.updatepolicy import UpdatePolicy
from fakes.fleet_world import EAGLE, FleetWorld

CHANGE = r"none -> eagle/3"
SPEEDUP = r"\d\.\d\dx \(90 %: \d\.\d\d to \d\.\d\d\) at 3 rps per replica"
BREAK_EVEN = r"pays until 9\.\d+ rps \([\d.]+ to [\d.]+\)"


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text is of this form."""
    return re.fullmatch(pattern, text) is not None


async def test_conditions_say_what_decided_and_how_the_last_roll_ended():
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    await world.cycle()
    assert world.condition("Progressing")["message"] == "no roll so far"
    profitable = world.condition("Profitable")
    assert profitable["status"] == "True"
    assert matches(rf"eagle/3 is {SPEEDUP}; {BREAK_EVEN}", profitable["message"])
    await world.until(lambda: world.phase == "Confirming")
    world.load(3.0)
    await world.until(lambda: world.phase is None)
    last = world.condition("Progressing")["message"]
    assert matches(
        rf"last roll, ended [-\d]+ [:\d]+ UTC: {CHANGE} \(GainAboveThreshold\), "
        r"confirmed: measured \d\.\d\dx against predicted \d\.\d\dx at 3 rps per replica",
        last,
    ), last


async def test_an_idle_service_still_shows_until_which_load_its_arm_pays():
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.phase == "Confirming")
    world.load(0.0)
    await world.until(lambda: world.reason == "TooFewRequests")
    await world.cycle(120.0)
    shown = world.status["display"]
    assert (shown["pays"], shown["speedup"]) == ("?", "-")
    assert matches(r"9\.\d+ rps", shown["breakEven"])
    assert world.condition("Ready")["message"].endswith("no usable metrics now (TooFewRequests)")


async def test_a_recommendation_says_how_to_follow_it():
    world = FleetWorld()
    world.service["spec"]["updatePolicy"]["mode"] = "Recommend"
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.decision.get("action") == "Recommend")
    message = world.condition("Progressing")["message"]
    assert message.startswith(
        "eagle/3 should run (GainAboveThreshold) and mode Recommend changes nothing: set"
    )


@pytest.mark.parametrize(
    ("prediction", "said"),
    [
        (Prediction(1.5, 1.4, 1.6, 3.0), ": predicted 1.50x (1.40 to 1.60) at 3 rps per replica"),
        (Prediction(20.9, 1.5, None, 16.0), ": predicted 1.50x or more at 16 rps per replica"),
        (Prediction(math.inf, None, None, 18.0), ": eagle/3 is saturated by its law at 18 rps per replica"),
        (Prediction(1.5), ": predicted 1.50x (without bounds)"),
        (Prediction(), ""),
    ],
)
def test_a_predicted_gain_never_stands_without_its_bounds(prediction, said):
    target = FleetWorld().target
    situation = Situation(UpdatePolicy(), target, MemoryStatus(), None, True, None, now=datetime.now(UTC))
    step = begin(situation, EAGLE, NO_SPECULATION, "null", "BeyondBreakEven", prediction, "uid")
    assert step.message == f"eagle/3 -> none (BeyondBreakEven){said}"
    step.rollout.to_json_object()
