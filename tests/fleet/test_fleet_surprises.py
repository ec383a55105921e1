"""A defect that meets one service: the others go on, and the one it met stays visible and says so."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from breakeven_operator.kinds import DEPLOYMENTS, EVENTS, JOBS, SERVICES
from breakeven_operator.loop import cycle, housekeeping, service_decisions
from fakes.fleet_world import SERVICE, TARGET, VALUE, FleetWorld

LABELS = {"specsvc_namespace": "llm", "specsvc": "chat"}


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of services about which deciding raises."""
    names: set[str] = set()
    sound = service_decisions.reconcile  # type: ignore[attr-defined]  # replaced below

    def reconcile(service: Any, *rest: Any) -> Any:
        if service.metadata.name in names:
            raise ZeroDivisionError("float division by zero")
        return sound(service, *rest)

    monkeypatch.setattr(service_decisions, "reconcile", reconcile)
    return names


async def speculating(world: FleetWorld) -> None:
    """Until speculation runs and its roll is confirmed."""
    await world.speculate()


@pytest.mark.parametrize(("rps", "result"), [(13.0, "Confirmed"), (18.0, "Unmeasured")])
async def test_an_arm_that_is_saturated_by_its_law_is_left(rps, result):
    # 12.5 rps saturate eagle/3, 20 no speculation: the speedup of the change is infinite.
    world = FleetWorld()
    await speculating(world)
    world.load(rps)
    await world.until(lambda: world.value == "null")
    rollout = world.status["rollout"]
    assert (rollout["fromArm"], rollout["toArm"]) == ("eagle/3", "none")
    assert "predictedSpeedup" not in rollout, "there is no ratio to a latency that has no end"
    started = [event for event in world.cluster.of(EVENTS) if event["reason"] == "RollStarted"][-1]
    assert "eagle/3 is saturated by its law" in started["note"]
    await world.until(lambda: world.phase == "Confirming")
    world.load(rps)
    await world.until(lambda: world.phase is None, cycles=150)
    entry = world.whole["history"][0]
    assert (entry["fromArm"], entry["result"]) == ("eagle/3", result)
    assert world.registry.get_sample_value("breakeven_errors_total", {"reason": "InternalError"}) is None


async def test_a_surprise_keeps_the_service_on_every_screen(struck, caplog):
    world = FleetWorld()
    await speculating(world)
    speedup = world.registry.get_sample_value(
        "breakeven_speedup_ratio", {**LABELS, "arm": "eagle/3", "bound": "estimate"}
    )
    before = copy.deepcopy(world.status)
    struck.add("chat")
    for _ in range(4):
        report = await world.cycle()
        assert any("InternalError" in line for line in report.errors)
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "InternalError")
    assert "ZeroDivisionError: float division by zero" in ready["message"]
    assert world.events.count("InternalError") == 1
    assert {**world.status, "conditions": []} == {**before, "conditions": []}, "all else stands as it was"
    assert [c["type"] for c in world.status["conditions"]] == [c["type"] for c in before["conditions"]]
    assert speedup is not None
    assert world.registry.get_sample_value(
        "breakeven_speedup_ratio", {**LABELS, "arm": "eagle/3", "bound": "estimate"}
    ) == pytest.approx(speedup, rel=1e-5)
    assert world.registry.get_sample_value("breakeven_stale", LABELS) == 1
    assert "ZeroDivisionError" in caplog.text, "the log has the traceback"
    struck.clear()
    await world.cycle()
    assert world.condition("Ready")["status"] == "True"
    assert world.registry.get_sample_value("breakeven_stale", LABELS) == 0


async def test_one_service_and_its_surprise_do_not_stop_another(struck):
    world = FleetWorld()
    target, service = copy.deepcopy(TARGET), copy.deepcopy(SERVICE)
    target["metadata"]["name"], service["metadata"]["name"] = "other-vllm", "other"
    service["spec"]["targetRef"]["name"] = "other-vllm"
    world.cluster.put(DEPLOYMENTS, target, manager="helm")
    world.cluster.put(SERVICES, service)
    world.calibrate()
    world.load(3.0)
    struck.add("other")
    await world.until(lambda: world.value == VALUE)
    other = world.cluster.objects["speculativeservices", "llm", "other"]["status"]
    assert [c["reason"] for c in other["conditions"]] == ["InternalError"]


async def test_a_service_that_cannot_even_be_marked_does_not_stop_another(struck, monkeypatch, caplog):
    world = FleetWorld()
    world.add_services(1)
    world.calibrate()
    world.load(3.0)
    struck.add("service-00")
    monkeypatch.setattr(cycle, "failed", lambda *_: (_ for _ in ()).throw(OverflowError("date")))
    await world.until(lambda: world.value == VALUE)
    assert "marking SpeculativeService/llm/service-00 failed" in caplog.text


async def test_a_surprise_while_a_plan_is_carried_out_is_told_alike(monkeypatch):
    world = FleetWorld()
    await speculating(world)
    monkeypatch.setattr(housekeeping, "mark_in_force", lambda *_: (_ for _ in ()).throw(KeyError("spec")))
    await world.cycle()
    await world.cycle()
    assert world.condition("Ready")["reason"] == "InternalError"
    assert world.registry.get_sample_value("breakeven_stale", LABELS) == 1


async def test_an_operator_that_starts_anew_still_shows_what_it_cannot_decide(struck):
    world = FleetWorld()
    await speculating(world)
    struck.add("chat")
    await world.cycle()
    world.restart()
    await world.cycle()
    assert world.registry.get_sample_value("breakeven_stale", LABELS) == 1
    assert (
        world.registry.get_sample_value(
            "breakeven_speedup_ratio", {**LABELS, "arm": "eagle/3", "bound": "estimate"}
        )
        is not None
    )
    assert world.events.count("InternalError") == 1


async def test_a_calibration_under_way_keeps_its_job_while_its_service_cannot_be_decided(struck):
    world = FleetWorld()
    world.load(3.0)
    for _ in range(3):
        await world.cycle()
    (job,) = world.cluster.of(JOBS)
    struck.add("chat")
    for _ in range(3):
        await world.cycle()
    assert [kept["metadata"]["uid"] for kept in world.cluster.of(JOBS)] == [job["metadata"]["uid"]]
    struck.clear()
    await world.cycle()
    assert world.reason == "CalibrationRunning"
