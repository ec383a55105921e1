"""Two replicas never both act, and one that lost the Lease stops in the middle of what it does."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry

from breakeven_operator.cluster.lease import Lease, LeaseIdentity
from breakeven_operator.kinds import LEASES, NamespacedName
from breakeven_operator.loop.pace import Loop
from breakeven_operator.ports import ClusterError
from breakeven_operator.serve.health import Health
from breakeven_operator.serve.telemetry import Telemetry
from fakes.api_server import FakeCluster
from fakes.fleet_world import FleetWorld
from fakes.manual_clock import FakeClock
from fakes.virtual_time import in_virtual_time


def replica(cluster, clock, name):
    return Lease(cluster, clock, NamespacedName("breakeven", "breakeven-operator"), name, lease_s=30.0)


async def test_one_holds_and_the_other_waits():
    clock = FakeClock()
    cluster = FakeCluster(clock)
    one, two = replica(cluster, clock, "one"), replica(cluster, clock, "two")
    for _ in range(20):
        assert (await one.step(), await two.step()) == (True, False)
        assert (one.others, two.others) == (False, True)
        clock.advance(6.0)


async def test_a_record_that_claims_years_keeps_the_lease_for_ten_minutes():
    clock = FakeClock()
    cluster = FakeCluster(clock)
    two = replica(cluster, clock, "two")
    spec = {"holderIdentity": "somebody", "leaseDurationSeconds": 99999999, "leaseTransitions": 0}
    cluster.put(LEASES, {"metadata": {"namespace": "breakeven", "name": "breakeven-operator"}, "spec": spec})
    await two.step()
    clock.advance(599.0)
    assert await two.step() is False
    clock.advance(2.0)
    assert await two.step() is True


async def test_a_silent_holder_stops_before_another_begins():
    clock = FakeClock()
    cluster = FakeCluster(clock)
    one, two = replica(cluster, clock, "one"), replica(cluster, clock, "two")
    await one.step()
    overlap, taken_after = False, None
    for second in range(120):
        clock.advance(1.0)
        await two.step()
        overlap |= one.held and two.held
        if two.held and taken_after is None:
            taken_after = second + 1
    assert not overlap
    assert taken_after is not None
    assert 30 < taken_after < 40
    assert await one.step() is False
    lease = await cluster.get(LEASES, "breakeven", "breakeven-operator")
    assert lease["spec"]["holderIdentity"] == "two"
    assert lease["spec"]["leaseTransitions"] == 1


async def test_an_api_server_that_does_not_answer_ends_leadership_in_time():
    clock = FakeClock()
    cluster = FakeCluster(clock)
    lease = replica(cluster, clock, "one")
    await lease.step()

    def silence(*_):
        raise ClusterError("no answer")

    cluster.fail = silence
    for _ in range(24):
        clock.advance(1.0)
        await lease.step()
    assert lease.held
    clock.advance(1.0)
    assert not lease.held


async def test_two_takers_at_once_collide():
    clock = FakeClock()
    cluster = FakeCluster(clock)
    one, two = replica(cluster, clock, "one"), replica(cluster, clock, "two")
    await one.step()
    await one.release()
    between = cluster.fail

    def overtake(verb, _resource, _name):
        if verb == "replace":
            cluster.fail = between
            found = cluster.objects["leases", "breakeven", "breakeven-operator"]
            found["metadata"]["resourceVersion"] = "overtaken"

    cluster.fail = overtake
    assert await two.step() is False


async def test_release_lets_a_successor_start_at_once():
    clock = FakeClock()
    cluster = FakeCluster(clock)
    one, two = replica(cluster, clock, "one"), replica(cluster, clock, "two")
    await one.step()
    await two.step()
    await one.release()
    assert not one.held
    assert await two.step()


LEASE = "breakeven/breakeven-operator"
HOLDING = f"""
import sys, time
from pathlib import Path
from breakeven_operator.cluster.lease import LeaseIdentity
identity = LeaseIdentity("pod", "{LEASE}", Path(sys.argv[1]))
print(identity.text, flush=True)
time.sleep(600)
"""


def process_in(folder) -> tuple[subprocess.Popen[str], str]:
    """Another process of the pod whose emptyDir that is, and the identity it holds."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(folder)], stdout=subprocess.PIPE, text=True
    )
    return process, process.stdout.readline().strip()


def end(process) -> None:
    process.kill()
    process.communicate()


async def test_the_successor_of_a_killed_process_in_its_pod_leads_at_once(tmp_path):
    clock = FakeClock()
    cluster = FakeCluster(clock)
    process, killed = process_in(tmp_path)
    try:
        assert await replica(cluster, clock, killed).step()
    finally:
        end(process)
    successor = LeaseIdentity("pod", LEASE, tmp_path)
    assert await replica(cluster, clock, successor.text).step()


async def test_another_process_of_a_pod_waits_while_the_first_one_lives(tmp_path):
    """`kubectl exec ... breakeven-operator run --once` beside the operator has the same pod name and must not act."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    process, text = process_in(tmp_path)
    try:
        one, two = (replica(cluster, clock, i) for i in (text, LeaseIdentity("pod", LEASE, tmp_path).text))
        for _ in range(20):
            assert (await one.step(), await two.step()) == (True, False)
            clock.advance(6.0)
    finally:
        end(process)


async def test_the_successor_in_another_pod_waits_for_the_lease_to_run_out(tmp_path):
    """Its emptyDir is another one, whatever its name: nothing there proves that the holder is dead."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    for pod in ("first", "second"):
        (tmp_path / pod).mkdir()
    process, killed = process_in(tmp_path / "first")
    end(process)
    assert await replica(cluster, clock, killed).step()
    other = replica(cluster, clock, LeaseIdentity("pod", LEASE, tmp_path / "second").text)
    waited = 0.0
    while not await other.step():
        clock.advance(1.0)
        waited += 1.0
    assert 30 < waited < 40


@pytest.mark.parametrize("content", ["", "0123", "not a token at all", "0123456789abcde\n"])
def test_a_damaged_lock_is_made_anew(tmp_path, content):
    file = tmp_path / "breakeven-breakeven.breakeven-operator.lock"
    file.write_text(content)
    first = LeaseIdentity("pod", LEASE, tmp_path)
    first.release()
    second = LeaseIdentity("pod", LEASE, tmp_path)
    assert first.text == second.text
    assert re.fullmatch(r"pod_[0-9a-f]{16}", first.text)


def test_without_a_place_for_the_lock_every_process_has_an_identity_of_its_own(tmp_path):
    missing = tmp_path / "missing"
    assert LeaseIdentity("pod", LEASE, missing).text != LeaseIdentity("pod", LEASE, missing).text
    (tmp_path / "breakeven-breakeven.breakeven-operator.lock").symlink_to(tmp_path / "elsewhere")
    assert LeaseIdentity("pod", LEASE, tmp_path).text != LeaseIdentity("pod", LEASE, tmp_path).text
    assert not (tmp_path / "elsewhere").exists()


async def test_a_lease_lost_between_two_writes_stops_the_second():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0))
    world.calibrate()
    world.load(3.0)

    def lose(verb, resource, _name):
        # The intent is being written; the next leader will see it.
        if verb == "apply" and resource.plural == "speculativeservices":
            world.leads = False

    world.cluster.fail = lose
    await world.until(lambda: world.phase == "Intended")
    assert world.value is None
    assert world.rolls == []


class Counting:
    """Cycles that record when they ran."""

    def __init__(self, report=None, error=None):
        self.ran = asyncio.Event()
        self.count = 0
        self.error = error

    rests = 0

    async def rest(self):
        self.rests += 1

    def age_s(self):
        return 0.0

    async def cycle(self):
        self.count += 1
        self.ran.set()
        if self.error is not None:
            raise self.error
        return 0


class Held:
    retry_s = 0.01
    others = False

    def __init__(self, held=True):
        self.held = held
        self.released = False
        self.changed = asyncio.Event()

    async def step(self):
        return self.held

    async def release(self):
        self.released = True


def loop_of(fleet, lease, clock, cycle_s=3600.0):
    health = Health(clock, 15.0)
    return Loop(fleet, lease, health, Telemetry(CollectorRegistry()), clock, cycle_s=cycle_s), health


async def test_the_loop_runs_at_once_is_woken_by_events_and_stops_gracefully():
    fleet, lease, clock = Counting(), Held(), FakeClock()
    loop, _ = loop_of(fleet, lease, clock)
    running = asyncio.create_task(loop.run())
    await asyncio.wait_for(fleet.ran.wait(), 60)
    fleet.ran.clear()
    loop.wake()
    await asyncio.wait_for(fleet.ran.wait(), 60)
    loop.stop()
    await asyncio.wait_for(running, 60)
    assert fleet.count == 2
    assert lease.released


@in_virtual_time
async def test_services_that_are_left_over_wait_for_no_timer():
    began_s = asyncio.get_running_loop().time()
    at_s = []

    class Behind(Counting):
        async def cycle(self):
            at_s.append(round(asyncio.get_running_loop().time() - began_s))
            if len(at_s) == 4:
                loop.stop()
            return max(0, 3 - len(at_s))

    loop, _ = loop_of(Behind(), Held(), FakeClock(), cycle_s=15.0)
    await loop.run()
    assert at_s == [0, 0, 0, 15]


@in_virtual_time
@pytest.mark.parametrize(("cycle_s", "repeated_at_s"), [(60.0, [0, 5, 10]), (2.0, [0, 2, 4])])
async def test_a_cycle_that_failed_is_repeated_soon(cycle_s, repeated_at_s):
    began_s = asyncio.get_running_loop().time()
    at_s = []

    class Refused(Counting):
        async def cycle(self):
            at_s.append(round(asyncio.get_running_loop().time() - began_s))
            if len(at_s) == 3:
                loop.stop()
            raise ClusterError("storage is (re)initializing", 429)

    loop, _ = loop_of(Refused(), Held(), FakeClock(), cycle_s=cycle_s)
    await loop.run()
    assert at_s == repeated_at_s


async def test_without_the_lease_nothing_runs():
    fleet, lease, clock = Counting(), Held(held=False), FakeClock()
    loop, health = loop_of(fleet, lease, clock, cycle_s=0.01)
    running = asyncio.create_task(loop.run())
    await asyncio.sleep(0)
    turns = 0
    original = health.loop_turned

    def turned():
        nonlocal turns
        turns += 1
        original()
        if turns == 5:
            loop.stop()

    health.loop_turned = turned
    await asyncio.wait_for(running, 60)
    assert fleet.count == 0
    # It watches nothing either.
    assert fleet.rests >= turns


async def test_a_cycle_that_fails_does_not_end_the_loop_but_is_counted():
    for error, reason in (
        (ClusterError("no answer"), "ApiError"),
        (ClusterError("no", 403), "ApiError"),
        (ValueError("bug"), "InternalError"),
    ):
        fleet, clock = Counting(error=error), FakeClock()
        registry = CollectorRegistry()
        loop = Loop(fleet, Held(), Health(clock, 15.0), Telemetry(registry), clock, cycle_s=15.0)
        assert await loop.once() is None
        assert registry.get_sample_value("breakeven_errors_total", {"reason": reason}) == 1


async def test_a_lease_that_cannot_be_renewed_by_a_bug_ends_the_process():
    class Broken(Held):
        async def step(self):
            raise ValueError("bug")

    fleet, clock = Counting(), FakeClock()
    loop, _ = loop_of(fleet, Broken(), clock, cycle_s=0.01)
    with pytest.raises(ValueError, match="bug"):
        await asyncio.wait_for(loop.run(), 60)


async def test_a_spare_replica_is_ready_once_it_has_seen_the_other_lead():
    lease, clock = Held(held=False), FakeClock()
    loop, health = loop_of(Counting(), lease, clock, cycle_s=0.01)
    stood_by = asyncio.Event()
    original = health.stood_by
    health.stood_by = lambda: (original(), stood_by.set())
    running = asyncio.create_task(loop.run())
    lease.others = True
    await asyncio.wait_for(stood_by.wait(), 60)
    assert health.ready
    loop.stop()
    await running


def test_a_loop_that_does_not_come_round_fails_the_probe():
    clock = FakeClock()
    health = Health(clock, 15.0)
    assert health.problem() is None
    clock.advance(health.late_after_s + 1)
    assert "has not come round" in str(health.problem())
    health.loop_turned()
    assert health.problem() is None


async def test_dry_run_prints_what_it_would_do_and_writes_nothing():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0), dry_run=True)
    world.calibrate()
    world.load(3.0)
    before = len(world.cluster.writes)
    await world.cycle()
    assert len(world.cluster.writes) == before
    printed = "\n".join(world.shown)
    assert 'set breakeven.dev/speculative-config of Deployment/llm/chat-vllm to {"method":"eagle3"' in printed
    assert "write the status of SpeculativeService/llm/chat: Switch eagle/3 GainAboveThreshold" in printed
    assert "say on SpeculativeService/llm/chat: RollStarted" in printed


async def test_readiness_and_metrics_over_http():
    import aiohttp

    from breakeven_operator.serve import health as web

    clock = FakeClock()
    health = Health(clock, 15.0)
    registry = CollectorRegistry()
    Telemetry(registry)
    runner = await web.serve(registry, health, "127.0.0.1", 0)
    try:
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

            async def status(path):
                async with session.get(path) as response:
                    return response.status

            assert await status("/readyz") == 503
            health.cycle_succeeded()
            assert await status("/readyz") == 200
            async with session.get("/metrics") as response:
                assert "breakeven_build_info" in await response.text()
    finally:
        await runner.cleanup()


async def test_watches_that_are_heard_of_no_more_while_the_api_server_answers_fail_the_probe():
    clock = FakeClock()
    health = Health(clock, 15.0)
    clock.advance(200.0)
    health.loop_turned()
    assert health.problem() is None
    for age_s, problem in (
        (100.0, None),
        (299.0, None),
        (301.0, "no watch has been heard of for 301 s"),
        (2.0, None),
    ):
        health.heard(age_s)
        health.loop_turned()
        assert health.problem() == problem
