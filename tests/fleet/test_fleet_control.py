"""A standing control in a simulated fleet: which arm it keeps, what it measures, and when it ends."""

from __future__ import annotations

import asyncio
import copy
import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from prometheus_client import generate_latest

from breakeven.arm import NO_SPECULATION
from breakeven_operator.kinds import DEPLOYMENTS, PODS, RUNS, SERVICES, STATEFULSETS
from breakeven_operator.packed import joined
from fakes.fleet_world import EAGLE, SERVICE, TARGET, VALUE, CycleReport, FleetWorld, as_stateful_set

HOUR_S = 3600


class ControlWorld(FleetWorld):
    """A target of four pods or more, and a control of one pod beside it."""

    def __init__(self, replicas: int = 4, *, stateful: bool = False) -> None:
        super().__init__(target=lambda one: one["spec"].update(replicas=replicas), stateful=stateful)
        target, service = copy.deepcopy(TARGET), copy.deepcopy(SERVICE)
        target = as_stateful_set(target) if stateful else target
        target["metadata"]["name"] = "chat-control"
        target["spec"]["replicas"] = 1
        service["metadata"]["name"] = "chat-control"
        service["spec"]["controlOf"] = "chat"
        service["spec"]["targetRef"] |= {"kind": target["kind"], "name": "chat-control"}
        self.cluster.put(self.kind, target, manager="helm")
        self.cluster.put(SERVICES, service)
        self.kubelet.settle()
        self.clock.advance(1000.0)

    @property
    def control_value(self):
        template = self.cluster.objects[self.kind.plural, "llm", "chat-control"]["spec"]["template"]
        return template["metadata"].get("annotations", {}).get("breakeven.dev/speculative-config")

    @property
    def control(self):
        """The status of the control's own service, whole."""
        return joined(self.cluster.objects["speculativeservices", "llm", "chat-control"].get("status") or {})

    @property
    def measured(self):
        return self.whole.get("control") or {}

    @property
    def speedup(self):
        found = self.measured.get("speedup")
        return float(found) if found is not None else None

    async def cycle(self, seconds: float = 15.0) -> CycleReport:
        """Each pod of the control shows the latency and the tokens of its own arm in the figures of now, too."""
        traffic = self.prometheus.traffic
        for pod in self.cluster.of(PODS):
            if pod["metadata"]["name"].startswith("chat-control"):
                value = pod["metadata"].get("annotations", {}).get("breakeven.dev/speculative-config")
                arm = NO_SPECULATION if value in {None, "null"} else EAGLE
                self.prometheus.by_pod[pod["metadata"]["name"]] = replace(
                    traffic,
                    latency_s=self.lawful_s(arm, traffic.rps),
                    tokens_per_step=2.5 if arm == EAGLE else 1.0,
                )
        return await super().cycle(seconds)

    async def hours(self, hours: float, cycle_s: float = 60.0) -> None:
        for _ in range(round(hours * HOUR_S / cycle_s)):
            await self.cycle(cycle_s)


@functools.cache
def played(*, stateful: bool) -> ControlWorld:
    async def made() -> ControlWorld:
        world = ControlWorld(stateful=stateful)
        await world.speculate()
        await world.hours(1.2)
        return world

    # A loop of its own, because a test's loop runs.
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(lambda: asyncio.run(made())).result()


async def speculating(*, stateful: bool = False) -> ControlWorld:
    """The service speculates, and its control has seen it for an hour."""
    world = played(stateful=stateful).copied()
    assert isinstance(world, ControlWorld)
    return world


@pytest.mark.parametrize("stateful", [False, True])
async def test_no_speculation_stays_beside_an_arm_and_the_speedup_of_now_is_measured(stateful):
    world = await speculating(stateful=stateful)
    await world.cycle(60.0)
    assert (world.value, world.control_value) == (VALUE, None), "no speculation ran already"
    true = world.lawful_s(next(iter(world.laws)), 3.0) / world.lawful_s(EAGLE, 3.0)
    assert world.speedup == pytest.approx(true, rel=0.02)
    found = world.measured
    assert (found["arm"], found["against"], found["service"]) == ("eagle/3", "none", "chat-control")
    assert float(found["speedupLower"]) < true < float(found["speedupUpper"])
    assert "measured side by side at 3 rps per replica in the last 12 windows" in found["message"]
    assert found["message"].endswith("control chat-control: 1 of 5 pods runs the other arm")
    shown = {
        sample.labels["bound"]: sample.value
        for family in world.registry.collect()
        for sample in family.samples
        if sample.name == "breakeven_control_speedup_ratio" and "chat" in sample.labels.values()
    }
    assert shown["estimate"] == pytest.approx(world.speedup, rel=1e-4)
    assert shown["lower"] < shown["estimate"] < shown["upper"]
    assert world.control["decision"]["reason"] == "Control"
    assert "by measured latency" not in world.decision["message"], (
        "what the control's latency says is as predicted"
    )
    assert {one["arm"] for one in world.memory["evidence"]} == {"eagle/3", "none"}


async def test_few_blocks_are_no_measure_of_what_comes_later():
    """Their bounds are so wide that a fall by a third lies inside them."""
    world = ControlWorld()
    await world.speculate()
    await world.until(lambda: world.speedup is not None, cycles=240)
    assert "firstLower" not in world.measured
    await world.hours(1.2)
    assert float(world.measured["firstLower"]) < world.speedup < float(world.measured["firstUpper"])


async def test_a_prometheus_that_is_younger_than_the_pods_has_few_blocks_too():
    world = ControlWorld()
    await world.speculate()
    for _ in range(80):
        await world.cycle(60.0)
        young_s = world.clock.now().timestamp() - 900.0
        for seen in world.prometheus.counted.values():
            seen[:] = [one for one in seen if one.time_s > young_s] or seen[-1:]
    assert world.speedup is not None
    assert "firstLower" not in world.measured
    await world.hours(1.2)
    assert "firstLower" in world.measured


async def test_it_keeps_its_arm_through_a_roll_and_takes_the_other_one_after_it():
    """Beside no speculation the best arm is kept, and an operator that is killed meanwhile goes on."""
    world = ControlWorld()
    await world.speculate()
    world.load(9.3)
    await world.until(lambda: world.value == "null")
    while world.phase is not None:
        assert world.control_value is None, "not while its service is rolled or measured"
        await world.cycle(60.0)
        world.restart()
    # Slower than the profile promises: any other roll to it would be undone.
    world.laws[EAGLE] = (1.5, 0.08)
    world.load(9.3)
    await world.until(lambda: world.control_value == VALUE)
    world.restart()
    await world.until(lambda: not world.control.get("rollout"), cycles=400)
    assert (world.value, world.control_value) == ("null", VALUE)
    (entry,) = world.control["history"]
    assert entry["toArm"] == "eagle/3"
    assert entry["result"] == "Disproved"
    assert "it stays, as a control" in entry["message"]
    assert "ProfileSuspect" not in world.events


async def test_a_speedup_that_halves_with_an_upgrade_is_noticed_within_two_hours():
    world = await speculating()
    before = world.speedup

    def upgrade(one):
        one["spec"]["template"]["spec"]["containers"][0]["image"] = "vllm/vllm-openai:v0.33.0"

    for name in ("chat-vllm", "chat-control"):
        world.cluster.change(DEPLOYMENTS, "llm", name, upgrade, manager="helm")
    world.laws[EAGLE] = (0.75, 0.08)
    world.load(3.0)
    began = world.clock.now()
    await world.until(lambda: "ControlMoved" in world.events, cycles=480)
    assert (world.clock.now() - began).total_seconds() < 2 * HOUR_S
    assert world.value == VALUE
    assert world.speedup < 1.0 + 0.7 * (before - 1.0)
    assert "; before it was 1." in world.measured["message"]
    assert world.decision["basis"] == "Former", "there is no profile of the new image"


async def test_pods_of_another_image_are_not_compared():
    world = await speculating()

    def upgrade(one):
        one["spec"]["template"]["spec"]["containers"][0]["image"] = "vllm/vllm-openai:v0.33.0"

    world.cluster.change(DEPLOYMENTS, "llm", "chat-control", upgrade, manager="helm")
    await world.hours(1.2)
    assert world.speedup is None
    assert "differ in image, model, arguments or GPU class" in world.measured["message"]
    assert not world.cluster.of(RUNS), "a control is not calibrated"
    assert "breakeven_control_speedup_ratio{" not in generate_latest(world.registry).decode()


async def test_below_four_pods_the_control_runs_the_same_arm():
    world = await speculating()

    def three(one):
        one["spec"]["replicas"] = 3

    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", three, manager="hpa")
    await world.until(lambda: world.control_value == VALUE)
    await world.hours(1.0)
    assert world.speedup is None
    assert "both run eagle/3" in world.measured["message"]
    assert "fewer than 4" in world.control["decision"]["message"]


async def test_pods_that_are_evicted_leave_the_measurement_and_their_successors_join_it():
    world = await speculating()
    for name in ("chat-control", "chat-vllm"):
        pod = next(
            one["metadata"]["name"]
            for one in world.cluster.of(PODS)
            if one["metadata"]["name"].startswith(name)
        )
        world.kubelet.end(pod)
    await world.hours(1.2)
    assert world.speedup == pytest.approx(1.786, rel=0.02)
    assert "ControlMoved" not in world.events


async def test_a_partition_that_a_person_sets_is_his():
    world = ControlWorld(6, stateful=True)
    world.service["spec"]["updatePolicy"]["maxUtilizationPercent"] = 95

    def set_partition(one):
        one["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = 1

    world.cluster.change(STATEFULSETS, "llm", "chat-control", set_partition, manager="kubectl-patch")
    await world.speculate()
    world.load(9.3)
    await world.until(lambda: world.value == "null")
    await world.until(lambda: world.phase is None, cycles=240)
    await world.hours(0.2)
    assert world.control_value is None
    assert world.control["decision"]["reason"] == "TargetPaused"


async def test_a_control_whose_pod_does_not_start_is_undone():
    world = ControlWorld()
    await world.speculate()
    world.kubelet.crash = {VALUE}
    world.load(9.3)
    await world.until(lambda: world.value == "null")
    await world.until(lambda: world.control_value == VALUE, cycles=300)
    await world.until(lambda: world.control_value != VALUE, cycles=300)
    await world.until(lambda: "history" in world.control)
    assert [one["result"] for one in world.control["history"]] == ["Undone"]
    assert world.value == "null"


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ("nobody", "there is no SpeculativeService nobody"),
        ("chat-control", "chat-control is a control itself"),
    ],
)
async def test_a_control_of_nobody_keeps_its_arm_and_says_so(of, said):
    world = ControlWorld()
    world.cluster.objects["speculativeservices", "llm", "chat-control"]["spec"]["controlOf"] = of
    world.calibrate()
    world.load(3.0)
    await world.hours(0.1)
    assert world.control_value is None
    assert world.control["decision"]["reason"] == "Control"
    assert said in world.control["decision"]["message"]
    assert "control" not in world.whole
