"""Every way in which metrics can be absent holds, with its own word, and writes nothing to the target."""

from __future__ import annotations

import pytest

from fakes.fleet_world import VALUE, FleetWorld


def down(world):
    world.prometheus.down = True


def empty(world):
    world.prometheus.empty = True


def nan(world):
    world.prometheus.nan = True


def stale(world):
    world.prometheus.traffic.age_s = 500.0


def other_model(world):
    world.prometheus.traffic.model_name = "another-name"


def no_pod_label(world):
    world.prometheus.relabel = lambda labels: {key: value for key, value in labels.items() if key != "pod"}


def exporters_pod(world):
    world.prometheus.relabel = lambda labels: {**labels, "pod": "exporter-7"}


def partial(world):
    gone = world.target.serving[0].name
    world.prometheus.relabel = lambda labels: {} if labels["pod"] == gone else labels


def impossible(world):
    world.prometheus.wrong = {"steps": 1e13}


def beyond_any_status(world):
    world.prometheus.wrong = dict.fromkeys(("completed", "e2e_n", "output_n", "e2e_s"), 1e25)


def clock_ahead(world):
    world.prometheus.ahead_s = 300.0


def few(world):
    world.prometheus.traffic.rps = 0.01


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (down, "MetricsMissing"),
        (empty, "MetricsEmpty"),
        (nan, "MetricsNaN"),
        (stale, "MetricsStale"),
        (other_model, "MetricsMislabelled"),
        (no_pod_label, "MetricsMislabelled"),
        (exporters_pod, "MetricsMislabelled"),
        (partial, "MetricsPartial"),
        (impossible, "MetricsImpossible"),
        (beyond_any_status, "MetricsImpossible"),
        (clock_ahead, "MetricsStale"),
        (few, "TooFewRequests"),
    ],
)
async def test_a_fault_holds_with_its_word_everywhere(fault, reason, caplog):
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0))
    world.calibrate()
    world.load(3.0)
    fault(world)
    caplog.set_level("INFO", "breakeven_operator.decision")
    for _ in range(8):
        await world.cycle()
    assert (world.decision["action"], world.reason) == ("Hold", reason)
    condition = world.condition("MetricsAvailable")
    assert (condition["status"], condition["reason"]) == ("False", reason)
    assert world.events.count(reason) == 1
    assert caplog.records[-1].args["reason"] == reason
    counted = world.registry.get_sample_value(
        "breakeven_decisions_total",
        {"specsvc_namespace": "llm", "specsvc": "chat", "action": "Hold", "reason": reason},
    )
    assert counted == 8
    assert world.condition("Ready")["status"] == "True", "health of metrics is not readiness"
    assert world.rolls == []


async def test_a_fault_interrupts_the_dwell():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=120))
    world.calibrate()
    world.load(3.0)
    for _ in range(6):
        await world.cycle()
    assert world.reason == "Dwelling"
    world.prometheus.down = True
    await world.cycle()
    assert "candidateArm" not in world.memory
    world.prometheus.down = False
    for _ in range(6):
        await world.cycle()
    assert world.reason == "Dwelling", "the time before the gap does not count"


async def speculating(**policy):
    """A world whose target runs the speculative arm, which has been seen to make 2.5 tokens per step."""
    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0, cooldownSeconds=0, **policy)
    )
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.value == VALUE)
    for _ in range(60):
        world.load(3.0)
        await world.cycle()
    assert (world.reason, world.memory["seen"]) == ("BelowBreakEven", SEEN)
    return world


SEEN = [{"arm": "eagle/3", "tokensPerStep": "2.5"}]


@pytest.mark.parametrize(
    "wrong",
    [
        # The attack that rolled a fleet in one cycle: E of 0.
        {"steps": 1e13},
        {"generated": 1e13, "started": 1e13, "completed": 1e13, "steps": 1e13},
        dict.fromkeys(("completed", "started", "e2e_n", "output_n", "e2e_s", "generated", "steps"), 1e25),
        {"waiting": 1e13, "waiting_min": 1e13},
        {"e2e_s": 1e-6},
        {"prompt_tokens": 1e13},
    ],
    ids=" ".join,
)
async def test_one_impossible_answer_rolls_nothing_and_is_not_remembered(wrong):
    world = await speculating()
    rolls = len(world.rolls)
    world.prometheus.wrong = wrong
    for _ in range(3):
        report = await world.cycle()
        assert report.errors == []
    assert (world.decision["action"], world.reason) == ("Hold", "MetricsImpossible")
    assert "pod chat-vllm-" in world.decision["message"]
    assert "loadRps" not in world.decision
    assert world.memory["seen"] == SEEN
    world.prometheus.wrong = {}
    await world.cycle()
    assert (world.decision["action"], world.reason) == ("Stay", "BelowBreakEven")
    assert world.memory["seen"] == SEEN
    assert len(world.rolls) == rolls


async def test_a_collapse_of_acceptance_is_acted_upon_when_windows_go_on_saying_so():
    world = await speculating()
    # Drafts cost as before and yield nothing.
    world.prometheus.traffic.tokens_per_step = 1.01
    world.prometheus.traffic.latency_s *= 2.5
    first = world.clock.now()
    await world.cycle()
    assert (world.decision["action"], world.reason) == ("Stay", "BelowBreakEven")
    world.restart()
    await world.until(lambda: world.value in {None, "null"})
    assert 60 <= (world.clock.now() - first).total_seconds() < 600
    assert world.whole["rollout"]["reason"] == "AcceptanceCollapsed"
    assert "tokens per step (2.50 when it was calibrated)" in world.decision["message"]


async def test_one_window_of_strange_text_ends_no_speculation():
    world = await speculating()
    world.prometheus.traffic.tokens_per_step = 1.01
    for _ in range(20):
        await world.cycle(15.0)
    assert world.value == VALUE
    world.prometheus.traffic.tokens_per_step = 3.0
    for _ in range(20):
        await world.cycle(60.0)
    assert (world.value, world.reason) == (VALUE, "BelowBreakEven")


async def test_an_answer_that_is_repeated_becomes_stale():
    world = await speculating()
    world.prometheus.frozen = []
    # The query looks for the newest sample every 15 s: it was up to so much older when the answer was made.
    for _ in range(7):
        await world.cycle()
    assert world.reason == "BelowBreakEven", "within the time that a sample may be old"
    for _ in range(3):
        await world.cycle()
    assert (world.decision["action"], world.reason) == ("Hold", "MetricsStale")
    assert "a cache in front of it repeats an old one" in world.decision["message"]
    world.prometheus.frozen = None
    await world.cycle()
    assert world.reason == "BelowBreakEven"


async def test_queries_and_requests_do_not_grow_with_services():
    import copy

    from breakeven_operator.kinds import DEPLOYMENTS, SERVICES
    from fakes.fleet_world import SERVICE, TARGET

    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Disabled"))
    world.load(3.0)
    for _ in range(3):
        await world.cycle()
    world.cluster.requests.clear()
    world.prometheus.queries.clear()
    await world.cycle()
    alone = (dict(world.cluster.requests), len(world.prometheus.queries))
    for number in range(20):
        target, service = copy.deepcopy(TARGET), copy.deepcopy(SERVICE)
        target["metadata"] = {"name": f"vllm-{number}", "namespace": f"team-{number}"}
        service["metadata"] = {"name": "chat", "namespace": f"team-{number}"}
        service["spec"]["targetRef"]["name"] = f"vllm-{number}"
        service["spec"]["updatePolicy"]["mode"] = "Disabled"
        world.cluster.put(DEPLOYMENTS, target, manager="helm")
        world.cluster.put(SERVICES, service)
    world.kubelet.settle()
    world.clock.advance(1000.0)
    for _ in range(3):
        await world.cycle()
    world.cluster.requests.clear()
    world.prometheus.queries.clear()
    await world.cycle()
    assert (dict(world.cluster.requests), len(world.prometheus.queries)) == alone


async def test_a_quiet_service_is_written_once_per_window_of_its_account_and_not_every_cycle():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Recommend"))
    world.calibrate()
    world.load(3.0)
    for _ in range(10):
        await world.cycle()
    before = len(world.cluster.writes)
    for number in range(20):
        world.load(3.0 + 0.05 * (number % 2))
        await world.cycle()
    # Twenty cycles are one window of five minutes.
    assert len(world.cluster.writes) - before <= 1


async def test_metrics_show_what_was_decided_last_whether_or_not_it_was_written():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Recommend"))
    world.calibrate()

    async def shown_rps(rps, cycles):
        """By the metric and by the status, after so many cycles at a load."""
        world.load(rps)
        for _ in range(cycles):
            await world.cycle()
        labels = {"specsvc_namespace": "llm", "specsvc": "chat"}
        shown = world.registry.get_sample_value("breakeven_load_requests_per_second", labels)
        return shown, float(world.decision["loadRps"])

    # Long enough for the account of the profile to ask for no window soon.
    assert await shown_rps(3.0, 160) == pytest.approx((3.0, 3.0), rel=1e-3)
    # Too little for a write of its own, and too much to stand for long.
    shown, written = await shown_rps(3.1, 16)
    assert (shown, written) == (pytest.approx(3.1, rel=1e-3), pytest.approx(3.0, rel=1e-2))
    assert await shown_rps(5.0, 40) == pytest.approx((5.0, 5.0), rel=1e-3)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        # Requests that begin have waited for 2 s, those that finish took 1 s.
        ({"ttft_s": 1800.0}, "Dwelling"),
        ({"started": 0.0, "completed": 0.0, "e2e_n": 0.0, "output_n": 0.0, "running_growth": -6.0}, "TooFewRequests"),
    ],
)  # fmt: skip
async def test_figures_at_the_edge_of_a_load_end_no_decision_in_an_error(wrong, reason):
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    world.prometheus.wrong = wrong
    report = await world.cycle()
    assert report.errors == []
    assert world.reason == reason
