"""A target on two GPU classes: a profile of each, one decision by the share of the requests, and no roll."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven_operator.kinds import DEPLOYMENTS, JOBS, NODES, PROFILES, RUNS, SERVICES
from fakes.fleet_metrics import PodTraffic
from fakes.fleet_world import EAGLE, GPU, FleetWorld, fleet_profile_json

H100 = "NVIDIA-H100-80GB-HBM3"
# On this class speculation loses at every load: 0.48x at 3 rps.
H100_LAWS = {NO_SPECULATION: (0.2, 0.01), EAGLE: (0.4, 0.02)}


# On this one it gains, 1.18x at 3 rps.
GAINING_LAWS = {NO_SPECULATION: (0.5, 0.025), EAGLE: (0.42, 0.027)}


@functools.cache
def h100_profile(*, gains: bool = False) -> str:
    return fleet_profile_json(GAINING_LAWS if gains else H100_LAWS, H100)


def on_two_classes(a100: int, h100: int, mode: str = "Recommend", **policy: Any) -> FleetWorld:
    """A world with so many serving pods on each class."""
    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(
            {"mode": mode, "cooldownSeconds": 0, "stabilizationWindowSeconds": 0, **policy}
        ),
        lambda target: target["spec"].update(replicas=a100),
    )
    world.cluster.of(NODES)[0]["status"]["allocatable"] = {"nvidia.com/gpu": str(a100)}
    world.add_node("h100-0", product=H100)
    world.laws_on = {H100: H100_LAWS}
    world.cluster.change(
        DEPLOYMENTS, "llm", "chat-vllm", lambda one: one["spec"].update(replicas=a100 + h100)
    )
    world.kubelet.settle()
    world.clock.advance(1000.0)
    world.load(3.0)
    return world


def both_calibrated(world: FleetWorld) -> None:
    world.calibrate(name="chat-a100")
    world.clock.advance(60.0)
    world.calibrate(name="chat-h100", profile=h100_profile(), product=H100)


def asked(world: FleetWorld, name: str, spec: dict[str, Any]) -> None:
    """A run that a person or a CronJob made."""
    body = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "CalibrationRun",
        "metadata": {"namespace": "llm", "name": name},
        "spec": {"serviceRef": {"name": "chat"}, **spec},
    }
    world.cluster.put(RUNS, body, manager="person")


def classes(world: FleetWorld) -> dict[str, dict[str, Any]]:
    return {one["gpu"]: one for one in world.decision["classes"]}


async def test_a_class_without_a_profile_holds_and_is_measured_on_its_own_nodes():
    world = on_two_classes(2, 2)
    world.calibrate(name="chat-a100")
    await world.cycle()
    assert world.decision["action"] == "Hold"
    assert world.condition("Calibrated")["status"] == "False"
    (run,) = world.cluster.of(RUNS)
    assert run["spec"]["gpuProduct"] == H100
    await world.until(lambda: bool(world.cluster.of(JOBS)), cycles=4)
    pod = world.cluster.of(JOBS)[0]["spec"]["template"]["spec"]
    assert pod["nodeSelector"]["nvidia.com/gpu.product"] == H100
    assert world.reason == "CalibrationRunning"
    assert H100 in world.decision["message"]
    assert {name: one.get("profile") for name, one in classes(world).items()} == {
        GPU: "chat-a100",
        H100: None,
    }


async def test_the_second_class_does_not_wait_for_the_pause_after_the_first_ones_run():
    world = on_two_classes(2, 2)
    world.calibrate(name="chat-a100")
    ended = world.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    world.cluster.change(
        SERVICES, "llm", "chat", lambda one: one.update(status={"calibration": {"lastRunTime": ended}})
    )
    await world.cycle()
    (run,) = world.cluster.of(RUNS)
    assert run["spec"]["gpuProduct"] == H100


async def test_after_a_failed_run_the_second_class_waits():
    world = on_two_classes(2, 2)
    world.calibrate(name="chat-a100")
    ended = world.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    state = {"lastRunTime": ended, "failures": 1, "lastRun": "one", "lastReason": "CalibrationFailed"}
    world.cluster.change(SERVICES, "llm", "chat", lambda one: one.update(status={"calibration": state}))
    await world.cycle()
    assert world.cluster.of(RUNS) == []
    assert "the next run starts at" in world.condition("Calibrated")["message"]


async def test_a_class_that_may_not_be_measured_has_a_word_of_its_own():
    world = on_two_classes(2, 2)
    world.service["spec"]["paused"] = True
    world.calibrate(name="chat-a100")
    await world.cycle()
    said = world.condition("Calibrated")
    assert (said["status"], said["reason"]) == ("False", "ClassNotCalibrated")
    assert H100 in said["message"]
    assert world.cluster.of(RUNS) == []


@pytest.mark.parametrize(("a100", "h100", "arm", "speedup"), [(2, 2, "eagle/3", 1.28), (1, 3, "none", 0.93)])
async def test_one_arm_is_chosen_for_the_requests_of_both_classes(a100, h100, arm, speedup):
    world = on_two_classes(a100, h100)
    both_calibrated(world)
    await world.until(lambda: "speedup" in world.decision, cycles=4)
    assert world.decision["arm"] == arm
    assert float(world.decision["speedup"]) == pytest.approx(speedup, rel=0.02)
    assert float(world.decision["speedupLower"]) < speedup < float(world.decision["speedupUpper"])
    found = classes(world)
    assert {name: one["pods"] for name, one in found.items()} == {GPU: a100, H100: h100}
    assert float(found[GPU]["speedup"]) == pytest.approx(1.79, rel=0.02)
    assert float(found[H100]["speedup"]) == pytest.approx(0.484, rel=0.02)
    assert (found[GPU]["verdict"], found[H100]["verdict"]) == ("Below", "Never")
    assert float(found[GPU]["breakEvenRps"]) == pytest.approx(9.1, rel=0.03)
    assert world.status["target"]["gpuProduct"] == f"{GPU}, {H100}"
    marks = {one["metadata"]["name"]: one["status"]["inForce"] for one in world.cluster.of(PROFILES)}
    assert marks == {"chat-a100": True, "chat-h100": True}
    assert world.cluster.of(RUNS) == []


async def test_a_class_that_gets_more_requests_counts_for_more():
    world = on_two_classes(2, 2)
    both_calibrated(world)
    await world.until(lambda: "speedup" in world.decision, cycles=4)
    even = float(world.decision["speedup"])
    world.prometheus.count()
    for pod in world.target.pods:
        fast = pod.gpu_product == H100
        law = H100_LAWS[NO_SPECULATION] if fast else world.laws[NO_SPECULATION]
        rps = 5.5 if fast else 0.5
        world.prometheus.by_pod[pod.name] = PodTraffic(rps=rps, latency_s=law[0] / (1.0 - rps * law[1]))
    await world.cycle(600.0)
    await world.cycle()
    found = classes(world)
    assert float(found[H100]["loadRps"]) == pytest.approx(5.5, rel=0.05)
    assert float(found[GPU]["loadRps"]) == pytest.approx(0.5, rel=0.1)
    # Requests in flight by the laws, at the rates of each class: 0.51 + 1.16 over 0.26 + 2.47.
    assert float(world.decision["speedup"]) == pytest.approx(0.61, rel=0.05)
    assert world.decision["arm"] == "none"
    assert even > 1.2


async def test_a_target_on_two_classes_is_not_rolled_whatever_is_better():
    world = on_two_classes(2, 2, mode="RollingUpdate")
    both_calibrated(world)
    await world.until(lambda: world.reason == "MixedGpuClasses", cycles=6)
    assert world.decision["action"] == "Hold"
    assert world.decision["arm"] == "eagle/3"
    assert world.rolls == []
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "MixedGpuClasses")


async def test_a_roll_that_moves_to_another_class_is_not_taken_for_a_comparison_of_arms():
    """Old pods on one class and new ones on a faster class: a gain of hardware confirms no arm."""
    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(cooldownSeconds=0, stabilizationWindowSeconds=0)
    )
    world.calibrate(name="chat-a100")
    world.laws_on = {H100: GAINING_LAWS}
    world.load(3.0)
    await world.until(lambda: world.phase == "Intended")
    world.cluster.of(NODES)[0]["status"]["allocatable"] = {"nvidia.com/gpu": "0"}
    world.add_node("h100-0", product=H100)
    await world.until(lambda: world.phase == "Confirming")
    assert {pod.gpu_product for pod in world.target.pods} == {H100}
    world.calibrate(name="chat-h100", profile=h100_profile(gains=True), product=H100)
    world.cluster.change(SERVICES, "llm", "chat", lambda one: one["spec"].update(paused=True))
    world.load(3.0)
    await world.until(lambda: world.phase is None, cycles=200)
    entry = world.status["history"][0]
    assert entry["result"] == "Unmeasured"
    assert "classes would be compared" in entry["message"]


async def test_a_schedule_that_one_class_was_measured_with_is_no_candidate_for_both():
    scheduled = Arm("eagle3", 3, "eagle", scheduled=True)
    laws = {NO_SPECULATION: (1.0, 0.05), EAGLE: (0.5, 0.08), scheduled: (0.3, 0.05)}

    def profile(table: str, gpu: str) -> str:
        return fleet_profile_json(laws, gpu, {scheduled: table})

    world = on_two_classes(2, 2)
    world.cluster.change(
        SERVICES, "llm", "chat", lambda one: one["spec"]["candidates"]["methods"][0].update(schedule="Auto")
    )
    world.calibrate(name="chat-a100", profile=profile("1-8:3,9-:0", GPU))
    world.calibrate(name="chat-h100", profile=profile("1-20:3,21-:0", H100), product=H100)
    await world.until(lambda: "speedup" in world.decision, cycles=4)
    assert world.decision["arm"] == "eagle/3"


async def test_a_pod_on_a_node_without_a_class_keeps_everything_as_it_is():
    world = on_two_classes(2, 2)
    both_calibrated(world)
    world.add_node("other-0")
    del world.cluster.of(NODES)[-1]["metadata"]["labels"]
    world.cluster.of(NODES)[-2]["status"]["allocatable"] = {"nvidia.com/gpu": "2"}
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", lambda one: one["spec"].update(replicas=5))
    world.kubelet.settle()
    await world.until(lambda: world.reason == "GpuClassUnknown", cycles=4)
    assert world.decision["action"] == "Hold"
    assert H100 in world.decision["message"]


async def test_a_request_measures_the_class_whose_profile_is_oldest_first():
    world = on_two_classes(2, 2)
    both_calibrated(world)
    await world.until(lambda: "speedup" in world.decision, cycles=4)
    world.cluster.change(
        SERVICES,
        "llm",
        "chat",
        lambda one: one["metadata"].update(annotations={"breakeven.dev/recalibrate": "1"}),
    )
    await world.cycle()
    (run,) = world.cluster.of(RUNS)
    assert run["spec"]["gpuProduct"] == GPU


async def test_a_doubt_of_live_traffic_measures_the_oldest_profile_again():
    """The account is about all requests: which class it is about nobody can tell."""
    world = on_two_classes(2, 2)
    both_calibrated(world)
    await world.until(lambda: "speedup" in world.decision, cycles=4)
    suspicion = {"profile": "chat-h100", "reason": "ModelDisagrees"}
    world.clock.advance(2 * 86400.0)
    world.cluster.change(
        SERVICES, "llm", "chat", lambda one: one["status"]["workings"]["memory"].update(suspicion=suspicion)
    )
    await world.cycle()
    (run,) = world.cluster.of(RUNS)
    assert (run["spec"]["gpuProduct"], run["spec"]["trigger"]) == (GPU, "ModelDisagrees")


async def test_a_run_for_a_class_that_no_pod_runs_on_fails_at_once():
    world = on_two_classes(2, 2)
    both_calibrated(world)
    asked(world, "by-hand", {"gpuProduct": "NVIDIA-L4"})
    await world.until(lambda: bool(world.cluster.of(RUNS)[0].get("status")), cycles=4)
    status = world.cluster.of(RUNS)[0]["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "InvalidSpec")
    assert f"{GPU}, {H100}" in status["message"]
    assert world.cluster.of(JOBS) == []


async def test_a_run_that_its_class_left_is_not_repeated_for_that_class():
    """Ended because the target changed, a run is asked for again; not for nodes that no pod is on any more."""
    world = on_two_classes(2, 2)
    asked(world, "gone", {"gpuProduct": "NVIDIA-L4"})
    ended = {"phase": "Superseded", "reason": "TargetChanged"}
    world.cluster.change(RUNS, "llm", "gone", lambda one: one.update(status=ended))
    await world.cycle()
    made = [run["spec"].get("gpuProduct") for run in world.cluster.of(RUNS)]
    assert sorted(made) == [GPU, "NVIDIA-L4"]


async def test_profiles_of_one_class_do_not_push_those_of_another_out():
    world = on_two_classes(2, 2)
    world.cluster.change(
        SERVICES, "llm", "chat", lambda one: one["spec"].update(calibration={"runHistoryLimit": 1})
    )
    world.calibrate(name="chat-a100")
    for number in range(3):
        world.clock.advance(60.0)
        world.calibrate(name=f"chat-h100-{number}", profile=h100_profile(), product=H100)
    # Nothing is in force while one node has no class.
    world.add_node("other-0")
    del world.cluster.of(NODES)[-1]["metadata"]["labels"]
    world.cluster.of(NODES)[-2]["status"]["allocatable"] = {"nvidia.com/gpu": "2"}
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", lambda one: one["spec"].update(replicas=5))
    world.kubelet.settle()
    asked(world, "ended", {})
    ended = {"phase": "Succeeded", "finishedTime": world.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")}
    world.cluster.change(RUNS, "llm", "ended", lambda one: one.update(status=ended))
    await world.until(lambda: world.reason == "GpuClassUnknown", cycles=4)
    for _ in range(3):
        await world.cycle()
    names = {one["metadata"]["name"] for one in world.cluster.of(PROFILES)}
    assert names == {"chat-a100", "chat-h100-2"}


async def test_a_run_without_a_class_measures_the_one_that_has_no_profile():
    """The CronJob of a service knows no classes."""
    world = on_two_classes(2, 2)
    world.calibrate(name="chat-a100")
    asked(world, "scheduled", {})
    await world.until(lambda: bool(world.cluster.of(JOBS)), cycles=6)
    (job,) = world.cluster.of(JOBS)
    assert job["spec"]["template"]["spec"]["nodeSelector"]["nvidia.com/gpu.product"] == H100


async def test_runs_of_two_classes_go_one_after_the_other():
    world = on_two_classes(2, 2)
    for name, product in (("first", GPU), ("second", H100)):
        asked(world, name, {"gpuProduct": product})
        world.clock.advance(1.0)
    await world.until(lambda: bool(world.cluster.of(JOBS)), cycles=6)
    phases = {one["metadata"]["name"]: one["status"]["phase"] for one in world.cluster.of(RUNS)}
    assert phases["first"] in {"Starting", "Measuring"}
    assert phases["second"] == "Pending", "a run of another class is no duplicate, and waits"
    (job,) = world.cluster.of(JOBS)
    assert job["spec"]["template"]["spec"]["nodeSelector"]["nvidia.com/gpu.product"] == GPU
