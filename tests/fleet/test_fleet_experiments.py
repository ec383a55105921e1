"""Every roll is an experiment: what the pods of both arms show decides whether it stays, and what comes after it."""

from __future__ import annotations

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven_operator.kinds import SERVICES
from breakeven_operator.resources.updatepolicy import Timing
from fakes.fleet_world import EAGLE, LAWS, FleetWorld
from fakes.notes import memory_of, notes_of


async def rolled() -> FleetWorld:
    """Low load, calibrated, rolled to speculation, which is to be measured."""
    world = FleetWorld()
    await world.speculate(judged=False)
    world.load(3.0)
    return world


@pytest.mark.claim("docs/concepts.md", "a roll that significantly loses is undone")
async def test_a_roll_that_the_measurement_disproves_is_undone():
    world = FleetWorld()
    await world.speculate(judged=False)
    world.prometheus.traffic.latency_s = 2.0
    world.prometheus.traffic.tokens_per_step = 2.5
    finished = world.clock.now()
    await world.until(lambda: world.phase == "Undoing")
    # Pods against pods, block by block: no window is waited for.
    assert (world.clock.now() - finished).total_seconds() < 300.0
    assert world.reason == "RollDisproved"
    assert world.memory["failures"] == world.memory["disproved"] == 1
    assert world.memory["suspicion"]["profile"] == "chat-p1"
    await world.until(lambda: world.phase is None)
    told = world.whole["history"][0]["message"]
    assert told.startswith(
        "no speculation runs again; no speculation -> eagle/3 was undone (RollDisproved): measured: requests are significantly slower"
    )
    entry = world.whole["history"][0]
    assert (entry["result"], entry["reason"], entry["witness"]) == ("Undone", "RollDisproved", "BeforeAfter")
    assert float(entry["measuredSpeedupUpper"]) < 1 < float(entry["predictedSpeedupLower"])
    assert entry["measuredRequests"] > 1000


async def test_a_load_that_changes_while_a_roll_is_measured_disproves_nothing():
    """Each arm is moved to one rate by its own law: requests that take longer at a higher load are no slower arm."""
    world = FleetWorld()
    await world.speculate(judged=False)
    world.load(3.0)
    for _ in range(25):
        await world.cycle()
    world.load(7.0)
    assert world.prometheus.traffic.latency_s > 0.95 * LAWS[NO_SPECULATION][0] / (1 - 3.0 * 0.05)
    for _ in range(25):
        await world.cycle()
    await world.until(lambda: world.phase is None)
    entry = world.whole["history"][0]
    assert (entry["result"], entry["witness"]) == ("Confirmed", "BeforeAfter")
    assert 3.0 < float(entry["loadRps"]) < 7.0
    promised = float(entry["predictedSpeedup"])
    assert float(entry["measuredSpeedupLower"]) < promised < float(entry["measuredSpeedupUpper"])


async def test_a_roll_is_disproved_in_its_middle_and_undone():
    """Eight replicas, of which a few run the new arm: side by side with the others they are seen to be slower."""
    world = FleetWorld(target=lambda target: target["spec"].update(replicas=8))
    world.calibrate()
    world.laws[EAGLE] = (1.6, 0.08)
    world.load(3.0)
    world.kubelet.startup_s = 60.0
    await world.until(lambda: world.phase == "Rolling")
    await world.until(lambda: world.phase == "Undoing", cycles=60)
    assert 1 <= len(world.target.serving) < 8
    assert (world.reason, world.value) == ("RollDisproved", None)
    await world.until(lambda: world.phase is None)
    entry = world.whole["history"][0]
    assert (entry["result"], entry["reason"]) == ("Undone", "RollDisproved")
    assert entry["witness"] in {"SideBySide", "Both"}
    assert float(entry["measuredSpeedupUpper"]) < 1
    assert all(pod.value is None for pod in world.target.serving)


async def disproved_thrice() -> FleetWorld:
    """A liar of a profile, and a service that has waited for every back-off."""
    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(cooldownSeconds=0, stabilizationWindowSeconds=0),
        timing=Timing(backoff_seconds=60),
    )
    world.calibrate()
    world.laws[EAGLE] = (2.5, 0.05)
    world.load(3.0)
    for number in (1, 2, 3):
        # Evidence about the arm would keep it from being tried again; this profile forgets.
        world.service["status"] = without_evidence(world.status)
        await world.until(lambda: world.phase == "Rolling")
        await world.until(lambda: world.phase == "Undoing")
        assert world.memory["disproved"] == number
        await world.until(lambda: world.phase is None)
        world.load(3.0)
    return world


def without_evidence(status):
    if not status:
        return status
    workings = status["workings"]
    kept = {name: value for name, value in memory_of(status).items() if name not in {"evidence", "suspicion"}}
    return {**status, "workings": {**workings, "notes": notes_of(kept)}}


async def test_after_three_disproved_rolls_a_service_stops_rolling_and_says_so():
    world = await disproved_thrice()
    world.service["status"] = without_evidence(world.status)
    rolls = len(world.rolls)
    for _ in range(30):
        await world.cycle(60.0)
    assert (world.decision["action"], world.reason) == ("Hold", "RollsStopped")
    assert (
        "the last 3 rolls that profile chat-p1 asked for were measured to lose" in world.decision["message"]
    )
    assert "RollsStopped" in world.events
    assert len(world.rolls) == rolls
    world.restart()
    await world.cycle(60.0)
    assert world.reason == "RollsStopped"


async def test_a_person_or_a_new_profile_lets_rolls_begin_again():
    world = await disproved_thrice()
    world.laws[EAGLE] = LAWS[EAGLE]
    world.cluster.change(
        SERVICES,
        "llm",
        "chat",
        lambda service: (
            service["metadata"].setdefault("annotations", {}).update({"breakeven.dev/resume": "again"})
        ),
    )
    world.service["status"] = without_evidence(world.status)
    await world.until(lambda: world.phase == "Confirming")
    world.load(3.0)
    await world.until(lambda: world.phase is None)
    assert world.whole["history"][0]["result"] == "Confirmed"
    assert world.memory.get("disproved", 0) == 0


async def test_an_urgent_roll_is_held_by_no_disproof():
    """Requests queue at every pod: neither the back-off after disproved rolls nor their number holds the way out."""
    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(cooldownSeconds=0, stabilizationWindowSeconds=0)
    )
    await world.speculate()
    far = "2027-01-01T00:00:00Z"
    world.memory |= {
        "failures": 3,
        "disproved": 3,
        "disprovedProfile": "chat-p1",
        "backoffUntilTime": far,
        "backoffReason": "RollDisproved",
    }
    world.load(13.5)
    world.prometheus.traffic.waiting = 20.0
    await world.until(lambda: world.value == "null", cycles=8)
    assert world.reason == "EnteredSaturation"


async def test_an_operator_that_is_killed_while_it_measures_gives_the_same_answer():
    outcomes = []
    for killed in (False, True):
        world = await rolled()
        for _ in range(30):
            if killed:
                world.restart()
            await world.cycle()
        await world.until(lambda: world.phase is None)  # noqa: B023 - called here only
        outcomes.append(world.whole["history"][0])
    assert outcomes[0] == outcomes[1]


async def test_a_roll_that_prometheus_says_nothing_of_ends_unmeasured_after_six_windows():
    world = await rolled()
    world.prometheus.roll_error = "query timed out"
    finished = world.clock.now()
    await world.until(lambda: world.phase is None, cycles=200)
    assert (world.clock.now() - finished).total_seconds() >= 5.9 * 300.0
    entry = world.whole["history"][0]
    assert entry["result"] == "Unmeasured"
    assert "Prometheus gives no figures of it" in entry["message"]
    assert "query timed out" in entry["message"]
    assert "RollUnproven" in world.events


async def test_nobody_is_asked_about_rolls_while_there_is_none():
    world = FleetWorld()
    world.load(3.0)
    for _ in range(3):
        await world.cycle()
    assert world.prometheus.roll_queries == []
