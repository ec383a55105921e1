"""The word about an arm's answers: in status and metrics, and with Require the arm is not entered."""

from __future__ import annotations

import json

import pytest

from breakeven_operator.kinds import PODS
from fakes.fleet_world import FleetWorld, profile_json

QUICK = {"stabilizationWindowSeconds": 0, "cooldownSeconds": 0}


def with_word(word: str | None) -> str:
    """A profile whose speculative arm answers so."""
    document = json.loads(profile_json())
    for fit in document["arms"]:
        if fit["k"] and word is not None:
            fit["answers"] = word
    return json.dumps(document)


def world_of(check: str, word: str | None) -> FleetWorld:
    def change(spec: dict) -> None:
        spec["updatePolicy"].update(QUICK)
        spec.setdefault("calibration", {})["answers"] = {"check": check}

    world = FleetWorld(change)
    world.calibrate(profile=with_word(word))
    world.load(3.0)
    return world


@pytest.mark.parametrize("word", ["AnswersDiffer", "AnswersBroken", "AnswersUndecided", None])
async def test_require_keeps_an_arm_from_being_entered_unless_it_agrees(word):
    world = world_of("Require", word)
    for _ in range(5):
        await world.cycle()
    assert world.value is None
    assert world.status["decision"]["action"] == "Hold"
    assert world.status["decision"]["reason"] == (word or "AnswersUndecided")
    assert "calibration.answers.check is Require" in world.status["decision"]["message"]
    unsaid = "the profile in force says nothing about the answers of this arm"
    assert (unsaid in world.status["decision"]["message"]) is (word is None)
    assert len(world.cluster.of(PODS)) == 2


@pytest.mark.parametrize(
    ("check", "word"), [("Require", "AnswersAgree"), ("Warn", "AnswersBroken"), ("Disabled", None)]
)
async def test_an_arm_is_entered_if_it_agrees_or_nothing_is_required(check, word):
    world = world_of(check, word)
    await world.until(lambda: world.value is not None)


async def test_the_word_stands_in_status_and_metrics():
    world = world_of("Warn", "AnswersBroken")
    await world.cycle()
    assert world.status["calibration"]["answers"] == [{"arm": "eagle/3", "word": "AnswersBroken"}]
    labels = {"specsvc_namespace": "llm", "specsvc": "chat", "arm": "eagle/3", "word": "AnswersBroken"}
    assert world.registry.get_sample_value("breakeven_arm_answers", labels) == 1.0
