"""A roll is judged by requests that fail as well as by latency: whose fault they are, what is said, and that nothing swings."""

from __future__ import annotations

from datetime import timedelta

import pytest

from breakeven_operator.kinds import EVENTS, PODS, PROFILES, SERVICES
from breakeven_operator.rolls.roll_failures import POSTS
from fakes.fleet_world import VALUE, FleetWorld

QUICK = {"stabilizationWindowSeconds": 0, "cooldownSeconds": 0}


def served(**traffic: object) -> FleetWorld:
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(QUICK))
    world.calibrate()
    world.load(5.0)
    for name, value in traffic.items():
        setattr(world.prometheus.traffic, name, value)
    return world


def crash(world: FleetWorld, pods: int, times: int, begin: int = 0, ago_s: float = 0.0) -> None:
    """Engines of the arm's pods die and are started again, as a kubelet reports it."""
    now = (world.clock.now() - timedelta(seconds=ago_s)).isoformat()
    for pod in [pod for pod in world.cluster.of(PODS) if runs(pod)][begin:pods]:
        (status,) = pod["status"]["containerStatuses"]
        status["restartCount"] += times
        status["lastState"] = {"terminated": {"exitCode": 139, "reason": "Error", "finishedAt": now}}


def runs(pod: dict) -> bool:
    return pod["metadata"]["annotations"].get("breakeven.dev/speculative-config") == VALUE


async def until_it_ends(world: FleetWorld, entries: int = 1) -> dict:
    """Cycles until a roll has ended; after each change of arm its users meet the arm's own latency."""
    loaded = world.value
    for _ in range(120):
        await world.cycle()
        history = world.whole.get("history", [])
        if len(history) >= entries:
            return history[0]
        if world.value != loaded:
            loaded = world.value
            world.load(5.0)
    raise AssertionError(f"no roll ended: {world.decision}")


def notes(world: FleetWorld, reason: str) -> list[str]:
    return [event["note"] for event in world.cluster.of(EVENTS) if event["reason"] == reason]


@pytest.mark.parametrize("streamed_share", [0.0, 1.0], ids=["answered with 400", "refused in the stream"])
async def test_requests_that_a_speculating_engine_refuses_undo_the_roll_and_the_arm_is_not_entered_again(
    streamed_share,
):
    world = served(min_p_share=0.4, streamed_share=streamed_share)
    ended = await until_it_ends(world)
    assert (ended["result"], ended["reason"]) == ("Undone", "RollFailsRequests")
    assert world.value is None
    (note,) = notes(world, "RollFailsRequests")
    assert "of its requests are refused or fail that are answered on the other arm" in note
    refused = int(note.split("HTTP 4xx: ")[1].split(" of ")[0])
    assert (refused == 0) is (streamed_share == 1.0)
    rolls = len(world.rolls)
    for _ in range(40):
        await world.cycle()
    assert len(world.rolls) == rolls, "it does not swing"
    assert world.reason == "RollFailsRequests"
    assert "is not entered again until a new profile is in force" in world.decision["message"]
    labels = {"specsvc_namespace": "llm", "specsvc": "chat", "arm": "eagle/3", "reason": "RollFailsRequests"}
    assert world.registry.get_sample_value("breakeven_barred_arm_info", labels) == 1


async def test_the_undo_comes_long_before_the_last_word():
    world = served(min_p_share=0.4)
    await world.until(lambda: world.value == VALUE)
    began = world.clock.now()
    await world.until(lambda: world.value is None)
    assert (world.clock.now() - began).total_seconds() < 300


async def test_requests_that_fail_on_both_arms_are_no_fault_of_the_new_one():
    world = served(invalid_share=0.3)
    ended = await until_it_ends(world)
    assert ended["result"] == "Confirmed"
    assert "failures not measured" not in ended["message"]


async def test_a_handful_of_failures_undoes_nothing():
    world = served(min_p_share=0.003)
    assert (await until_it_ends(world))["result"] == "Confirmed"


@pytest.mark.parametrize("failing", ["page", "query"])
async def test_failures_that_are_not_measured_are_said_and_are_no_zero(failing):
    world = served(min_p_share=0.0)
    world.prometheus.http_pages = failing != "page"
    world.prometheus.failures_down = failing == "query"
    ended = await until_it_ends(world)
    assert ended["result"] == "Confirmed"
    why = "no http_requests_total beside" if failing == "page" else "Prometheus gives no figures of them"
    assert f"failures not measured: {why}" in ended["message"]


async def test_a_pinned_arm_stays_and_is_said_to_fail_requests():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(pinnedArm="eagle/3"))
    world.calibrate()
    world.load(5.0)
    world.prometheus.traffic.min_p_share = 0.4
    ended = await until_it_ends(world)
    assert (world.value, ended["result"]) == (VALUE, "Disproved")
    assert "it stays, for a person pinned it" in notes(world, "RollFailsRequests")[0]


@pytest.mark.parametrize("by", ["resume", "profile"])
async def test_a_person_or_a_new_profile_lets_the_arm_be_tried_again(by):
    world = served(min_p_share=0.4)
    await until_it_ends(world)
    world.prometheus.traffic.min_p_share = 0.0
    world.clock.advance(700.0)
    await world.cycle()
    assert world.value is None
    if by == "resume":
        annotation = {"breakeven.dev/resume": "1"}
        world.cluster.change(
            SERVICES, "llm", "chat", lambda s: s["metadata"].setdefault("annotations", {}).update(annotation)
        )
    else:
        world.calibrate(name="chat-p2")
        assert len(world.cluster.of(PROFILES)) == 2
    await world.until(lambda: world.value == VALUE, cycles=20)
    assert "barred" not in world.memory


async def test_an_operator_that_starts_again_remembers_the_arm():
    world = served(min_p_share=0.4)
    await until_it_ends(world)
    world.restart()
    for _ in range(20):
        await world.cycle()
    assert (world.value, world.reason) == (None, "RollFailsRequests")


async def test_an_arm_whose_engines_crash_after_it_was_confirmed_is_left_and_not_entered_again():
    world = served()
    assert (await until_it_ends(world))["result"] == "Confirmed"
    crash(world, pods=2, times=2)
    await world.until(lambda: world.value == "null", cycles=3)
    world.load(5.0)
    ended = await until_it_ends(world, entries=2)
    assert (ended["reason"], ended["toArm"]) == ("ArmCrashes", "none")
    assert ended["result"] != "Undone", (
        "the arm that crashes is slower by no measure, and is not gone back to"
    )
    assert "engines of 2 of 2 pods crashed 4 times" in notes(world, "ArmCrashes")[0]
    rolls = len(world.rolls)
    for _ in range(30):
        await world.cycle()
    assert len(world.rolls) == rolls
    assert world.reason == "ArmCrashes"


async def test_the_last_crash_of_all_pods_is_the_one_that_must_be_new():
    world = served()
    await until_it_ends(world)
    crash(world, pods=1, times=2, ago_s=7200.0)
    crash(world, pods=2, times=2, begin=1)
    await world.until(lambda: world.value == "null", cycles=5)
    assert "engines of 2 of 2 pods crashed 4 times" in notes(world, "ArmCrashes")[0]


async def test_an_arm_whose_engines_crash_while_it_is_measured_is_undone():
    world = served()
    await world.until(lambda: world.phase == "Confirming")
    crash(world, pods=2, times=2)
    ended = await until_it_ends(world)
    assert (ended["result"], ended["reason"], world.value) == ("Undone", "ArmCrashes", None)
    assert world.memory["barred"][0]["arm"] == "eagle/3"


async def test_one_pod_that_crashes_tells_of_its_node_and_few_crashes_of_nothing():
    world = served()
    await until_it_ends(world)
    crash(world, pods=1, times=5)
    for _ in range(3):
        await world.cycle()
    assert world.value == VALUE
    world = served()
    await until_it_ends(world)
    crash(world, pods=2, times=1)
    for _ in range(3):
        await world.cycle()
    assert world.value == VALUE


async def test_requests_that_fail_after_the_last_word_leave_the_arm_and_bar_it():
    """A client that sends `min_p` from the next day on: the roll was confirmed long ago."""
    world = served()
    assert (await until_it_ends(world))["result"] == "Confirmed"
    before = world.memory["requestsBefore"]
    assert before["arm"] == "eagle/3"
    assert float(before["served"]) == pytest.approx(float(before["posts"]))
    for _ in range(20):
        await world.cycle()
    assert world.value == VALUE
    world.prometheus.traffic.min_p_share = 0.4
    await world.until(lambda: world.value == "null", cycles=200)
    assert (
        "of its requests are refused or fail that are answered on the other arm"
        in (notes(world, "RollFailsRequests")[0])
    )
    ended = await until_it_ends(world, entries=2)
    assert (ended["reason"], ended["toArm"]) == ("RollFailsRequests", "none")
    assert ended["result"] != "Undone"
    rolls = len(world.rolls)
    for _ in range(40):
        await world.cycle()
    assert len(world.rolls) == rolls, "it does not swing"
    labels = {"specsvc_namespace": "llm", "specsvc": "chat", "arm": "eagle/3", "reason": "RollFailsRequests"}
    assert world.registry.get_sample_value("breakeven_barred_arm_info", labels) == 1


async def test_requests_that_fail_without_the_arm_too_acquit_it():
    world = served()
    await until_it_ends(world)
    world.prometheus.traffic.invalid_share = 0.4
    await world.until(lambda: world.value == "null", cycles=200)
    await until_it_ends(world, entries=2)
    await world.until(lambda: "ArmAcquitted" in world.events, cycles=3)
    assert "barred" not in world.memory
    await world.until(lambda: world.value == VALUE, cycles=100)
    await until_it_ends(world, entries=3)
    for _ in range(100):
        await world.cycle()
    assert world.value == VALUE, "what fails on every arm is what later requests are compared with"


async def test_a_pinned_arm_is_not_left_for_requests_that_fail_later():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(pinnedArm="eagle/3"))
    world.calibrate()
    world.load(5.0)
    await until_it_ends(world)
    world.prometheus.traffic.min_p_share = 0.4
    for _ in range(60):
        await world.cycle()
    assert world.value == VALUE


async def test_the_question_about_later_requests_is_put_once_a_window():
    world = served()
    await until_it_ends(world)
    asked = len([text for text in world.prometheus.queries if POSTS in text])
    for _ in range(40):
        await world.cycle()
    later = [text for text in world.prometheus.queries if POSTS in text][asked:]
    assert 1 <= len(later) <= 3, "forty cycles of 15 s, a window of 300 s"


async def after(world: FleetWorld, cycles: int = 130) -> list[str]:
    """Reasons of the events about failing requests after so many more cycles."""
    for _ in range(cycles):
        await world.cycle()
    return [reason for reason in world.events if reason in {"RollFailsRequests", "ArmAcquitted"}]


@pytest.mark.parametrize(
    "traffic",
    [
        {"given_up": 0.15},
        {"given_up": 0.8},
        {"left_waiting": 0.1, "ttft_s": 3.0},
        {"given_up": 0.2, "left_waiting": 0.04, "ttft_s": 1.0},
    ],
    ids=str,
)
async def test_users_who_leave_are_no_failure_of_the_arm(traffic):
    world = served(given_up=0.02)
    assert (await until_it_ends(world))["result"] == "Confirmed"
    for name, value in traffic.items():
        setattr(world.prometheus.traffic, name, value)
    assert await after(world) == []
    assert world.value == VALUE


async def test_demand_that_a_full_queue_turns_away_is_no_failure_of_the_arm():
    world = served()
    assert (await until_it_ends(world))["result"] == "Confirmed"
    world.prometheus.reached_rps = lambda pod: 0.7 * world.prometheus.traffic.rps  # noqa: ARG005
    assert await after(world) == []


@pytest.mark.parametrize("share", [0.02, 0.05])
async def test_a_tenant_whose_every_request_is_refused_since_the_roll_undoes_it(share):
    ended = await until_it_ends(served(min_p_share=share, given_up=0.1))
    assert (ended["result"], ended["reason"]) == ("Undone", "RollFailsRequests")


async def test_a_tenant_of_few_requests_is_said_in_the_history():
    ended = await until_it_ends(served(min_p_share=0.004))
    assert ended["result"] == "Confirmed"
    assert "of its requests are refused or fail that are answered on the other arm" in ended["message"]


@pytest.mark.parametrize("streamed_share", [0.0, 1.0], ids=["500", "an error in the stream"])
async def test_errors_of_the_engine_that_began_with_the_arm_s_roll_undo_it_and_are_its_own_or_acquit_it(
    streamed_share,
):
    world = served(streamed_share=streamed_share)
    await world.until(lambda: world.value == VALUE)
    world.prometheus.traffic.broken_share = 0.05
    ended = await until_it_ends(world)
    assert (ended["result"], ended["reason"]) == ("Undone", "RollFailsRequests")
    # They go on without the arm: the moment was chance.
    await world.until(lambda: "ArmAcquitted" in world.events, cycles=200)
    assert "barred" not in world.memory


async def test_a_client_whose_requests_no_arm_answers_any_more_acquits_an_arm_that_was_undone_for_them():
    world = served()
    await world.until(lambda: world.value == VALUE)
    world.prometheus.traffic.invalid_share = 0.05
    ended = await until_it_ends(world)
    assert (ended["result"], ended["reason"]) == ("Undone", "RollFailsRequests")
    assert world.memory["barred"][0]["arm"] == "eagle/3"
    await world.until(lambda: "ArmAcquitted" in world.events, cycles=200)
    assert "barred" not in world.memory
    await world.until(lambda: world.value == VALUE, cycles=100)
    assert (await until_it_ends(world, entries=2))["result"] == "Confirmed"
