"""Output of `kubectl get` and `kubectl describe`: whole sentences with the figures, their bounds, and what comes next."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.estimate import Estimate
from breakeven_operator.kinds import DEPLOYMENTS, EVENTS, RUNS, SERVICES
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.targetstatus import Rollout
from breakeven_operator.resources.updatepolicy import PRODUCTION
from breakeven_operator.rolls.rollout import begin
from breakeven_operator.step import RolloutContext
from fakes.cases import CHAT
from fakes.fleet_world import BREAK_EVEN_RPS, EAGLE, VALUE, FleetWorld

CHANGE = r"no speculation -> eagle/3"
SPEEDUP = r"\d\.\d\dx \(90 %: \d\.\d\d to \d\.\d\d\) at 3 rps per replica"
BREAK_EVEN = r"pays until 9(\.\d+)? rps \([\d.]+ (to [\d.]+|or more)\)"


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text is of this form."""
    return re.fullmatch(pattern, text) is not None


BOUNDED = r"\d\.\d\dx \(\d\.\d\d to \d\.\d\d\)"


async def test_conditions_say_what_decided_and_how_the_last_roll_ended():
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    await world.cycle()
    assert world.condition("Ready")["message"] == "target found, profile chat-p1 in force, metrics fresh"
    assert world.condition("Progressing")["message"] == "no roll so far"
    profitable = world.condition("Profitable")
    assert profitable["status"] == "True"
    assert matches(rf"eagle/3 is {SPEEDUP}, expected; {BREAK_EVEN}", profitable["message"])
    await world.until(lambda: world.phase == "Confirming")
    await world.cycle()
    assert world.condition("Progressing")["reason"] == "RollFinished"
    assert world.condition("Progressing")["message"] == f"{CHANGE}: all pods run it, and it is being measured"
    world.load(3.0)
    await world.until(lambda: world.phase is None)
    last = world.condition("Progressing")["message"]
    assert matches(
        rf"last roll, ended [-\d]+ [:\d]+ UTC: {CHANGE} \(GainAboveThreshold\), "
        rf"confirmed: measured {BOUNDED} against promised {BOUNDED} at 3 rps per replica, from \d+ requests before and after",
        last,
    ), last


async def test_an_idle_service_still_shows_until_which_load_its_arm_pays():
    world = FleetWorld()
    await world.speculate(judged=False)
    world.load(0.0)
    await world.until(lambda: world.reason == "TooFewRequests")
    await world.cycle(120.0)
    shown = world.status["workings"]["display"]
    assert (shown["pays"], shown["speedup"]) == ("?", "-")
    assert matches(r"9(\.\d+)? rps", shown["breakEven"])
    assert world.condition("Ready")["message"].endswith("no usable metrics now (TooFewRequests)")


async def test_a_service_of_which_no_pod_serves_for_a_while_is_not_said_to_be_unmeasured():
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    await world.cycle()
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", lambda one: one["spec"].update(replicas=0))
    await world.until(lambda: world.condition("Calibrated")["status"] == "Unknown")
    assert world.condition("Calibrated")["reason"] == "NoPodServes"
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", lambda one: one["spec"].update(replicas=2))
    await world.until(lambda: world.condition("Calibrated")["status"] == "True")


async def test_the_column_arm_names_no_arm_that_no_pod_runs():
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    world.kubelet.schedulable = False
    await world.until(lambda: world.phase == "Rolling")
    shown = []
    for pods_come in (False, True):
        world.kubelet.schedulable = pods_come
        for _ in range(5):
            await world.cycle(60.0)
            shown.append(world.status["workings"]["display"]["arm"])
    assert list(dict.fromkeys(shown)) == ["none -> eagle/3", "eagle/3"]


async def test_a_run_is_told_that_its_service_does_not_exist_where_there_is_none_at_all():
    world = FleetWorld()
    world.cluster.remove(SERVICES, "llm", "chat")
    body = {
        "metadata": {"name": "by-hand", "namespace": "llm"},
        "spec": {"serviceRef": {"name": "chat"}, "arms": []},
    }
    world.cluster.put(RUNS, body)
    for _ in range(8):
        await world.cycle(60.0)
    (run,) = world.cluster.of(RUNS)
    assert (run["status"]["phase"], run["status"]["reason"]) == ("Superseded", "Superseded")
    assert "there is no SpeculativeService chat" in run["status"]["message"]


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


async def running_eagle(**policy) -> FleetWorld:
    """A service whose pods speculate, whatever the figures say: nothing moves but what is shown."""
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Recommend", **policy))
    world.cluster.change(
        DEPLOYMENTS,
        "llm",
        "chat-vllm",
        lambda target: target["spec"]["template"]["metadata"]["annotations"].update(
            {"breakeven.dev/speculative-config": VALUE}
        ),
    )
    world.kubelet.settle()
    world.clock.advance(1000.0)
    world.calibrate()
    world.load(3.0)
    await world.cycle()
    current = world.whole["current"]
    assert (current["arm"], current["method"], current["draftLength"]) == ("eagle/3", "eagle3", 3)
    return world


async def test_a_saturated_arm_is_named_and_no_speedup_of_zero_is_shown():
    world = await running_eagle()
    assert "saturatedArms" not in world.decision
    world.load(14.75)
    await world.cycle(120.0)
    decision = world.decision
    assert decision["saturatedArms"] == ["eagle/3"]
    assert "speedup" not in decision
    assert world.status["workings"]["display"]["speedup"] == "saturated"
    labels = {"specsvc_namespace": "llm", "specsvc": "chat", "arm": "eagle/3", "bound": "estimate"}
    assert world.registry.get_sample_value("breakeven_speedup_ratio", labels) == 0
    assert float(decision["utilization"]) == pytest.approx(1.18, abs=0.02)
    assert re.search(
        r"; the load is 11\d % of what eagle/3 can carry \(12\.\d rps per replica\): requests queue$",
        decision["message"],
    ), decision["message"]
    world.load(10.0)
    await world.cycle(120.0)
    assert "can carry" not in world.decision["message"]


async def test_memory_and_columns_sort_behind_everything_a_person_reads():
    """`kubectl describe` sorts by name."""
    world = await running_eagle()
    assert max(world.status, key=str.lower) == "workings"
    assert set(world.status["workings"]) == {"notes", "display"}
    assert not {"memory", "notes", "display"} & set(world.status)


async def test_a_flip_of_pays_is_said_once_and_doubt_in_between_says_nothing():
    world = await running_eagle(pinnedArm="eagle/3")

    async def at(rps):
        world.load(rps)
        for _ in range(3):
            await world.cycle(120.0)
        assert world.reason == "Pinned"
        return world.status["workings"]["display"]["pays"]

    def said():
        return [e["note"] for e in world.cluster.of(EVENTS) if e["reason"] == "PaysChanged"]

    assert [await at(rps) for rps in (3.0, 4.0)] == ["Yes", "Yes"]
    assert said() == []
    assert await at(11.0) == "No"
    (note,) = said()
    assert re.fullmatch(
        r"PAYS was Yes and is No: eagle/3 is 0\.\d\dx \(90 %: .*\) at 11 rps per replica, expected; pays .*",
        note,
    )
    world.restart()
    assert [await at(rps) for rps in (11.5, BREAK_EVEN_RPS, 11.0, BREAK_EVEN_RPS, 11.0)] == [
        "No",
        "?",
        "No",
        "?",
        "No",
    ]
    assert len(said()) == 1
    assert await at(3.0) == "Yes"
    assert len(said()) == 2


async def test_a_status_of_another_shape_restarts_no_pod_and_fights_nobody():
    """Fields that this version does not know are ignored; what was written last is unknown then, and nobody's fault."""
    world = FleetWorld()
    await world.speculate()
    rolls = len(world.rolls)
    status = world.service["status"]
    status |= status.pop("workings")
    status["decision"]["speedup"] = "0"
    world.restart()
    for _ in range(20):
        await world.cycle(60.0)
    assert len(world.rolls) == rolls
    assert (world.decision["action"], world.whole["current"]["arm"]) == ("Stay", "eagle/3")
    assert "TakenOver" not in world.events
    assert {"notes", "display"} <= set(world.status["workings"])


@pytest.mark.parametrize(
    ("prediction", "said"),
    [
        (
            {"speedup": Estimate(1.5, 1.4, 1.6), "load_rps": 3.0},
            ": predicted 1.50x (1.40 to 1.60) at 3 rps per replica",
        ),
        (
            {"speedup": Estimate(20.9, 1.5), "load_rps": 16.0},
            ": predicted 1.50x or more at 16 rps per replica",
        ),
        (
            {"speedup": Estimate(math.inf), "load_rps": 18.0},
            ": eagle/3 is saturated by its law at 18 rps per replica",
        ),
        ({"speedup": Estimate(1.5)}, ": predicted 1.50x (without bounds)"),
        ({}, ""),
    ],
)
def test_a_predicted_gain_never_stands_without_its_bounds(prediction, said):
    target = FleetWorld().target
    context = RolloutContext(
        PRODUCTION, target, MemoryStatus(), None, True, None, now=datetime.now(UTC), service=CHAT
    )
    change = Rollout(
        id="",
        from_arm=EAGLE.name,
        to_arm=NO_SPECULATION.name,
        value="null",
        reason="BeyondBreakEven",
        load_rps=prediction.get("load_rps"),
    )
    step = begin(context, change, prediction.get("speedup", Estimate()))
    assert step.message == f"eagle/3 -> no speculation (BeyondBreakEven){said}"
    step.rollout.to_json_object()
