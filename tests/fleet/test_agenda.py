"""Which services a cycle decides about: what changed and what is under way at once, the others now and then."""

from __future__ import annotations

import copy
from collections import Counter
from datetime import datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven_operator.kinds import DEPLOYMENTS, NODES, PROFILES, RUNS, SERVICES
from breakeven_operator.loop.agenda import Grounds
from breakeven_operator.ports import ClusterError
from breakeven_operator.reconcile import reconcile
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.updatepolicy import Timing
from breakeven_operator.serve.telemetry import CycleStage
from fakes.fleet_world import SERVICE, VALUE, FleetWorld
from fakes.notes import memory_of, notes_of

WINDOW_S = 60.0
DECIDING_S = 0.2


class Decisions:
    """Counts decisions by service; each takes `DECIDING_S` by the world's clock where that is asked for."""

    def __init__(self, monkeypatch, world, took_s=0.0):
        self.made: Counter[str] = Counter()
        self.order: list[str] = []
        # The starts of decisions: their services, and when each was made.
        self.memories: list[MemoryStatus | None] = []
        self.times: list[datetime] = []

        def counted(service, observation, now):
            self.made[service.metadata.name] += 1
            self.order.append(service.metadata.name)
            self.memories.append(service.status.memory)
            self.times.append(now)
            world.clock.advance(took_s)
            return reconcile(service, observation, now)

        monkeypatch.setattr("breakeven_operator.loop.service_decisions.reconcile", counted)

    def take(self):
        """Those since the last time."""
        made, self.made = self.made, Counter()
        return made


RESTING: dict[int, FleetWorld] = {}


async def at_rest(monkeypatch, *, pods_per_query=500):
    """A world whose service runs the arm that pays, and of which nothing has moved for long; without gauges."""
    if pods_per_query not in RESTING:
        RESTING[pods_per_query], _ = await come_to_rest(monkeypatch, pods_per_query)
    world = RESTING[pods_per_query].copied()
    return world, Decisions(monkeypatch, world)


async def come_to_rest(monkeypatch, pods_per_query=500):
    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0), pods_per_query=pods_per_query
    )
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.value == VALUE)
    world.load(3.0)
    await world.until(lambda: world.phase is None)
    return await rested(monkeypatch, world)


async def rested(monkeypatch, world):
    """After many cycles, the last of which decided; where nothing moves the next decision is five minutes away."""
    for _ in range(80):
        await world.cycle()
    decisions = Decisions(monkeypatch, world)
    stood = 0
    while stood < 19:
        await world.until(lambda: decisions.take()["chat"] == 1, cycles=30)
        stood = 0
        while not decisions.take()["chat"]:
            await world.cycle()
            stood += 1
    return world, decisions


async def test_a_service_of_which_nothing_moves_is_decided_about_every_few_minutes(monkeypatch):
    world, decisions = await at_rest(monkeypatch)
    for _ in range(120):
        await world.cycle()
    # One in each five minutes, and one for the account's window of this half hour.
    assert decisions.take()["chat"] == 7


async def test_services_decided_about_at_once_are_so_again_at_moments_of_their_own(monkeypatch):
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Disabled"))
    world.add_services(20, mode="Disabled")
    world.load(3.0)
    for _ in range(60):
        await world.cycle()
    decisions = Decisions(monkeypatch, world)
    in_cycles = []
    for _ in range(20):
        await world.cycle()
        in_cycles.append(sum(decisions.take().values()))
    assert sum(in_cycles) == 21
    assert max(in_cycles) <= 5


def edited(resource, name, edit):
    return lambda world: world.cluster.change(resource, "llm", name, edit)


def annotated(key):
    def edit(body):
        body["metadata"].setdefault("annotations", {})[key] = "1"

    return edit


def a_run(world):
    body = {
        "metadata": {"name": "by-hand", "namespace": "llm"},
        "spec": {"serviceRef": {"name": "chat"}, "arms": []},
    }
    world.cluster.put(RUNS, body)


def a_profile_again(world):
    other = copy.deepcopy(world.cluster.of(PROFILES)[0])
    other["metadata"] = {"name": "chat-p2", "namespace": "llm"}
    world.cluster.put(PROFILES, other)


def a_pod_less(world):
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", lambda body: body["spec"].update(replicas=1))


def a_rival(world):
    rival = copy.deepcopy(SERVICE)
    rival["metadata"]["name"] = "rival"
    rival["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    world.cluster.put(SERVICES, rival)


def another_gpu(world):
    (node,) = world.cluster.of(NODES)
    node["metadata"]["labels"]["nvidia.com/gpu.product"] = "NVIDIA-H100-80GB-HBM3"


def damaged_profile(world):
    (profile,) = world.cluster.of(PROFILES)
    profile["spec"]["profile"] = "{"


def set_on(name, value):
    return lambda world: setattr(world.prometheus, name, value)


MOVES = {
    "the load doubles": lambda world: world.load(6.0),
    "slower by a half": lambda world: setattr(world.prometheus.traffic, "latency_s", world.loaded_s * 1.5),
    "half the acceptance": lambda world: setattr(world.prometheus.traffic, "tokens_per_step", 1.2),
    "long prompts": lambda world: setattr(world.prometheus.traffic, "prompt_tokens", 700.0),
    "two thirds are answered": lambda world: setattr(world.prometheus.traffic, "answered_share", 0.66),
}

CHANGES = {
    "the target is annotated": edited(DEPLOYMENTS, "chat-vllm", annotated("example.com/x")),
    "the service is annotated": edited(SERVICES, "chat", annotated("breakeven.dev/resume")),
    "a run by hand": a_run,
    "another profile": a_profile_again,
    "a replica less": a_pod_less,
    "an older service on the target": a_rival,
    "another GPU in the node": another_gpu,
    "a damaged profile": damaged_profile,
    "the load stops": lambda world: world.load(0.0),
    "no answer": set_on("down", value=True),
    "an answer without series": set_on("empty", value=True),
    "not a number": set_on("nan", value=True),
    "old samples": lambda world: setattr(world.prometheus.traffic, "age_s", 500.0),
    "another model": lambda world: setattr(world.prometheus.traffic, "model_name", "other"),
    "a pod without series": lambda world: world.prometheus.by_pod.update(
        {world.target.serving[0].name: None}
    ),
    "a queue": lambda world: setattr(world.prometheus.traffic, "waiting", 5.0),
}


# The world's fleet has two pods: read pod by pod, and as one that is too large for that.
@pytest.mark.parametrize("pods_per_query", [500, 1])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_a_change_is_decided_about_in_the_next_cycle(change, pods_per_query, monkeypatch):
    world, decisions = await at_rest(monkeypatch, pods_per_query=pods_per_query)
    change(world)
    await world.cycle()
    assert decisions.take()["chat"] == 1


@pytest.mark.parametrize("pods_per_query", [500, 1])
@pytest.mark.parametrize(
    # Where acceptance has moved, the next cycle goes on to follow it.
    ("move", "decided"),
    [(move, 2 if name == "half the acceptance" else 1) for name, move in MOVES.items()],
    ids=MOVES.keys(),
)
async def test_a_figure_that_moves_far_is_decided_about_within_half_a_minute(
    move, decided, pods_per_query, monkeypatch
):
    world, decisions = await at_rest(monkeypatch, pods_per_query=pods_per_query)
    move(world)
    for _ in range(2):
        await world.cycle()
    assert decisions.take()["chat"] == decided


async def test_a_figure_that_moves_little_waits(monkeypatch):
    world, decisions = await at_rest(monkeypatch)
    world.prometheus.traffic.prompt_tokens *= 1.04
    for _ in range(9):
        await world.cycle()
    assert decisions.take()["chat"] == 0
    for _ in range(2):
        await world.cycle()
    assert decisions.take()["chat"] == 1


async def test_while_an_arm_is_rolled_every_cycle_decides(monkeypatch):
    world, decisions = await at_rest(monkeypatch)
    world.load(15.0)
    await world.until(lambda: world.phase is not None)
    decisions.take()
    cycles = 0
    while world.phase is not None and cycles < 200:
        await world.cycle()
        cycles += 1
    assert cycles > 3
    assert decisions.take()["chat"] == cycles


async def every_cycle_decides(world, decisions, cycles=6):
    decisions.take()
    for _ in range(cycles):
        await world.cycle()
    return decisions.take()["chat"] == cycles


async def test_while_it_is_calibrated_every_cycle_decides(monkeypatch):
    world, decisions = await at_rest(monkeypatch)
    a_run(world)
    await world.cycle()
    assert await every_cycle_decides(world, decisions)


async def test_while_an_arm_waits_for_its_dwell_every_cycle_decides(monkeypatch):
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=3600))
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.reason == "Dwelling")
    assert await every_cycle_decides(world, Decisions(monkeypatch, world), 60)


async def test_while_a_change_is_held_back_every_cycle_decides_but_not_for_a_person_s_pause(monkeypatch):
    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0),
        target=lambda target: target["spec"].update(paused=True),
    )
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.reason == "TargetPaused")
    decisions = Decisions(monkeypatch, world)
    assert await every_cycle_decides(world, decisions, 60)
    world.cluster.change(SERVICES, "llm", "chat", lambda body: body["spec"].update(paused=True))
    await world.until(lambda: world.reason == "Paused")
    assert not await every_cycle_decides(world, decisions, 60)


async def test_windows_of_the_account_of_a_service_at_rest_are_as_many_as_there_may_be():
    def edit(spec):
        spec["updatePolicy"].update(stabilizationWindowSeconds=0)
        spec["metricsSource"] = {"windowSeconds": 60}

    world = FleetWorld(edit, timing=Timing(disagreement_seconds=800))
    world.prometheus.traffic.window_s = 60.0
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.value == VALUE)
    world.load(3.0)
    for _ in range(160):
        await world.cycle()
    ends = [datetime.fromisoformat(one["time"]) for one in world.memory["account"]["windows"]]
    assert len(ends) > 6
    # An eighth of 800 s, and what is left of a cycle.
    assert {(later - one).total_seconds() for one, later in pairwise(ends)} == {105.0}


async def test_a_service_that_nobody_uses_any_more_is_decided_about_as_seldom(monkeypatch):
    world, decisions = await at_rest(monkeypatch)
    world.prometheus.traffic.rps = 0.0
    # Until the next window of the account is overdue, and cannot be had without requests.
    for _ in range(140):
        await world.cycle()
    assert world.memory["account"]["windows"]
    decisions.take()
    for _ in range(60):
        await world.cycle()
    assert decisions.take()["chat"] <= 4


async def test_a_recommendation_that_nobody_follows_is_not_made_anew_in_every_cycle(monkeypatch):
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Recommend"))
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.decision.get("action") == "Recommend")
    decisions = Decisions(monkeypatch, world)
    for _ in range(120):
        await world.cycle()
    assert decisions.take()["chat"] <= 12


async def test_while_a_decision_follows_the_acceptance_every_cycle_decides(monkeypatch):
    """The figures stand still, and what is believed of them moves on."""
    world, decisions = await at_rest(monkeypatch)
    world.prometheus.traffic.tokens_per_step = 1.2
    await world.cycle()
    assert await every_cycle_decides(world, decisions, 12)
    for _ in range(480):
        await world.cycle()
    assert world.value == VALUE
    decisions.take()
    assert not await every_cycle_decides(world, decisions), "two hours later it believes them"


async def test_a_decision_begins_with_what_the_last_one_learned_whether_or_not_it_was_written(monkeypatch):
    world, decisions = await at_rest(monkeypatch)
    world.cluster.writes.clear()
    for _ in range(480):
        await world.cycle()
    begun = [memory.decided_time for memory in decisions.memories]
    assert len(begun) > 20
    assert begun[1:] == decisions.times[:-1]
    # Two hours of windows, each taught once, and a few writes of what a person may look at.
    assert [write[1] for write in world.cluster.writes].count("speculativeservices") <= 4


async def test_what_was_learned_is_written_for_an_operator_that_starts_anew(monkeypatch):
    world, decisions = await at_rest(monkeypatch)
    for _ in range(400):
        await world.cycle(120.0)
    since_s = (world.clock.now() - datetime.fromisoformat(world.memory["decidedTime"])).total_seconds()
    assert since_s < 13 * 3600
    learned = decisions.memories[-1].saved_request_seconds
    assert float(world.memory["savedRequestSeconds"]) == pytest.approx(learned, rel=0.25)


async def test_a_memory_that_somebody_else_wrote_counts(monkeypatch):
    world, decisions = await at_rest(monkeypatch)

    def edit(body):
        learned = memory_of(body["status"]) | {"savedRequestSeconds": "7"}
        body["status"]["workings"]["notes"] = notes_of(learned)

    world.cluster.change(SERVICES, "llm", "chat", edit)
    decisions.memories.clear()
    await world.until(lambda: bool(decisions.memories))
    assert decisions.memories[0].saved_request_seconds == 7.0


async def test_after_another_replica_led_its_memory_counts(monkeypatch):
    world, decisions = await come_to_rest(monkeypatch)
    written = world.memory["decidedTime"]
    assert decisions.times[-1] != datetime.fromisoformat(written)
    await world.fleet.rest()
    await world.cycle()
    assert decisions.memories[-1].decided_time == datetime.fromisoformat(written)


async def test_while_a_pod_is_young_every_cycle_decides(monkeypatch):
    world, decisions = await at_rest(monkeypatch)
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", lambda body: body["spec"].update(replicas=3))
    await world.cycle()
    # Two windows and what Prometheus needs to find it.
    assert await every_cycle_decides(world, decisions, 40)
    assert not await every_cycle_decides(world, decisions, 40)


def with_an_objective(ttft_s):
    def edit(spec):
        spec["slo"] = {"ttftP95Milliseconds": 500}
        spec["updatePolicy"]["mode"] = "Recommend"

    world = FleetWorld(edit)
    world.calibrate()
    world.load(3.0)
    world.prometheus.traffic.latencies = {"ttft": ttft_s, "e2e": [1.0] * 100}
    return world


async def test_objectives_that_cannot_be_measured_any_more_are_a_change(monkeypatch):
    world, decisions = await rested(monkeypatch, with_an_objective([0.2] * 100))
    world.prometheus.latencies_down = True
    await world.cycle()
    assert decisions.take()["chat"] == 1


async def test_while_figures_cannot_be_every_cycle_decides(monkeypatch):
    world, decisions = await at_rest(monkeypatch)
    world.prometheus.wrong = {"steps": 1e13}
    await world.until(lambda: world.reason == "MetricsImpossible")
    assert await every_cycle_decides(world, decisions)


async def test_a_tail_that_grows_behind_the_same_mean_is_a_change(monkeypatch):
    world, decisions = await rested(monkeypatch, with_an_objective([0.2] * 100))
    world.prometheus.traffic.latencies = {"ttft": [0.2] * 99 + [0.9], "e2e": [1.0] * 100}
    await world.cycle()
    assert decisions.take()["chat"] == 1


async def test_while_an_objective_is_missed_every_cycle_decides(monkeypatch):
    world = with_an_objective([0.2] * 80 + [3.0] * 20)
    await world.until(lambda: world.whole.get("objectives"))
    assert await every_cycle_decides(world, Decisions(monkeypatch, world), 60)


async def test_what_could_not_be_written_is_decided_anew(monkeypatch):
    world, decisions = await at_rest(monkeypatch)

    def refuse(verb, resource, _name):
        if (verb, resource) == ("replace", SERVICES) or (verb == "apply" and resource == SERVICES):
            raise ClusterError("no", 500)

    world.cluster.fail = refuse
    world.load(6.0)
    await world.until(lambda: decisions.take()["chat"] == 1, cycles=3)
    for _ in range(4):
        await world.cycle()
        assert decisions.take()["chat"] == 1
    begun = {memory.decided_time for memory in decisions.memories[-4:]}
    assert len(begun) == 1, "what should have been written and was not does not count"
    world.cluster.fail = lambda *_: None
    await world.cycle()
    assert float(world.decision["loadRps"]) > 4


async def test_after_a_defect_the_grounds_of_the_last_decision_are_none(monkeypatch):
    world, decisions = await at_rest(monkeypatch)
    with monkeypatch.context() as broken:
        broken.setattr("breakeven_operator.loop.service_decisions.reconcile", lambda *_: 1 / 0)
        world.prometheus.down = True
        await world.cycle()
        assert world.condition("Ready")["reason"] == "InternalError"
        world.prometheus.down = False
    await world.cycle()
    assert decisions.take()["chat"] == 1
    assert world.condition("Ready")["status"] == "True"


async def test_a_decision_that_stands_is_shown_and_counted(monkeypatch):
    world, decisions = await come_to_rest(monkeypatch)
    chat = {"specsvc_namespace": "llm", "specsvc": "chat"}
    reason = {"action": world.decision["action"], "reason": world.reason}

    def counted():
        return world.registry.get_sample_value("breakeven_decisions_total", chat | reason)

    before = counted()
    for _ in range(3):
        await world.cycle()
    assert decisions.take()["chat"] == 0
    assert counted() == before + 3
    assert world.registry.get_sample_value("breakeven_load_requests_per_second", chat) is not None
    assert world.registry.get_sample_value("breakeven_services") == 1


async def test_after_another_replica_led_everything_is_decided_anew(monkeypatch):
    world, decisions = await at_rest(monkeypatch)
    await world.cycle()
    assert decisions.take()["chat"] == 0
    await world.fleet.rest()
    await world.cycle()
    assert decisions.take()["chat"] == 1


async def test_where_the_comparison_has_a_defect_everything_is_decided_about_and_it_is_told(
    monkeypatch, caplog
):
    world, decisions = await at_rest(monkeypatch)

    def defective(*_):
        raise KeyError("surprise")

    monkeypatch.setattr("breakeven_operator.loop.cycle.survey", defective)
    for _ in range(3):
        await world.cycle()
        assert decisions.take()["chat"] == 1
    assert world.registry.get_sample_value("breakeven_errors_total", {"reason": "InternalError"}) == 3
    assert "surprise" in caplog.text


async def test_a_cycle_decides_for_a_second_and_those_first_that_have_waited_longest(monkeypatch):
    # A calibration of each is under way, so that all of them are due in every cycle.
    world = FleetWorld()
    world.add_services(19)
    decisions = Decisions(monkeypatch, world, DECIDING_S)
    lefts = [await world.fleet.cycle() for _ in range(10)]
    # After the sixth decision 1.2 s have passed.
    assert lefts == [14] * 10
    assert len(set(decisions.order[:20])) == 20, "nobody comes twice before everybody came once"
    assert {2, 3, 4} >= set(Counter(decisions.order).values()), "60 decisions about 20 services"
    assert world.registry.get_sample_value("breakeven_services_left") == 14
    # The tenth began after 10.8 s: in between the cycles went on at once, and did not ask Prometheus again.
    assert len(world.prometheus.queries) == 2
    world.add_services(20)
    await world.fleet.cycle()
    assert len(world.prometheus.queries) == 3


async def test_each_stage_of_a_cycle_is_timed(monkeypatch):
    world = FleetWorld()
    world.add_services(2)
    Decisions(monkeypatch, world, DECIDING_S)
    await world.fleet.cycle()

    def of_stage(what, stage):
        return world.registry.get_sample_value(f"breakeven_cycle_stage_seconds_{what}", {"stage": stage})

    assert {stage: of_stage("count", stage) for stage in CycleStage} == dict.fromkeys(CycleStage, 1.0)
    took_s = {stage: of_stage("sum", stage) for stage in CycleStage}
    assert took_s == dict.fromkeys(CycleStage, 0.0) | {CycleStage.DECIDING: pytest.approx(3 * DECIDING_S)}


async def test_a_prometheus_that_did_not_answer_is_asked_again_by_the_cycle_that_follows_at_once(monkeypatch):
    world = FleetWorld()
    world.add_services(19)
    decisions = Decisions(monkeypatch, world, DECIDING_S)
    world.prometheus.down = True
    await world.fleet.cycle()
    world.prometheus.down = False
    await world.fleet.cycle()
    reasons = {
        name: next(
            one["reason"]
            for one in world.cluster.objects["speculativeservices", "llm", name]["status"]["conditions"]
            if one["type"] == "MetricsAvailable"
        )
        for name in decisions.order
    }
    assert {reasons[name] for name in decisions.order[:6]} == {"MetricsMissing"}
    assert "MetricsMissing" not in {reasons[name] for name in decisions.order[6:]}


figures = st.lists(st.floats(0.0, 1e6), min_size=4, max_size=4).map(tuple)


@given(figures, figures, st.floats(1.0, 600.0))
def test_the_further_figures_move_the_sooner(before, now, window_s):
    one, other = Grounds("same", before, window_s), Grounds("same", now, window_s)
    assert one.rest_s(one) == 300.0
    assert 0.0 < one.rest_s(other) <= 300.0
    half = tuple((a + b) / 2 for a, b in zip(before, now, strict=True))
    assert one.rest_s(Grounds("same", half, window_s)) >= one.rest_s(other) * (1 - 1e-9)
    assert one.rest_s(Grounds("other", before, window_s)) == 0.0


def test_a_figure_that_moved_by_a_fiftieth_counts_after_a_window():
    one = Grounds("same", (100.0, 1.0), WINDOW_S)
    assert one.rest_s(Grounds("same", (98.0, 1.0), WINDOW_S)) == pytest.approx(WINDOW_S)
    assert one.rest_s(Grounds("same", (100.0, 2.0), WINDOW_S)) == pytest.approx(WINDOW_S / 25)
