"""Prefill and decode on different pods: a request's latency is the sum of both halves' parts, and neither is rolled alone."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from typing import Any

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven_operator.kinds import DEPLOYMENTS, PODS, SERVICES
from fakes.fleet_metrics import PodTraffic
from fakes.fleet_world import EAGLE, LAWS, TARGET, FleetWorld, fleet_profile_json
from fakes.played_kserve import as_llm_inference_service

TTFT = (0.2, 0.01)
FLAG = "--kv-transfer-config="
PREFILL = "prefill-vllm"


def transfer(role: str = "kv_both", connector: str = "NixlConnector") -> str:
    return FLAG + json.dumps({"kv_connector": connector, "kv_role": role}, separators=(",", ":"))


def with_words(target: dict[str, Any], *words: str) -> None:
    target["spec"]["template"]["spec"]["containers"][0]["args"] += words


def engine(target: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = target["spec"]["template"]["spec"]["containers"][0]
    return found


@functools.cache
def profile(*, ttft: bool = True) -> str:
    return fleet_profile_json(LAWS, ttft=TTFT if ttft else None)


def pair(
    edit: Callable[[dict[str, Any]], None] = lambda _prefill: None,
    decode: Callable[[dict[str, Any]], None] = lambda target: with_words(target, transfer()),
    *,
    mode: str = "Recommend",
    through: float = 1.0,
    ttft: bool = True,
    form: Callable[[dict[str, Any]], dict[str, Any]] = copy.deepcopy,
    **heard: Any,
) -> FleetWorld:
    """Two decode pods at 3 rps each, and one prefill pod.

    Args:
        edit: of the prefill half's Deployment.
        decode: of the target.
        mode: of the service.
        through: share of the requests that the prefill half gets.
        ttft: whether the profile knows the time to the first token.
        form: what the target is made of the Deployment.
        heard: of the prefill pod's series.
    """

    def spec(one: dict[str, Any]) -> None:
        one["pair"] = {"prefill": {"name": PREFILL}}
        one["updatePolicy"].update(mode=mode, cooldownSeconds=0, stabilizationWindowSeconds=0)

    world = FleetWorld(spec, decode, form=form)
    other = copy.deepcopy(TARGET)
    other["metadata"]["name"] = PREFILL
    other["spec"]["selector"]["matchLabels"] = other["spec"]["template"]["metadata"]["labels"] = {
        "app": PREFILL
    }
    other["spec"]["replicas"] = 1
    with_words(other, transfer())
    edit(other)
    world.cluster.put(DEPLOYMENTS, other, manager="helm")
    world.kubelet.settle()
    world.clock.advance(1000.0)
    traffic = {"rps": 6.0 * through, "latency_s": 0.5, "ttft_s": 0.5, "output_tokens": 1.0, **heard}
    for pod in world.cluster.of(PODS):
        if pod["metadata"]["name"].startswith(PREFILL):
            world.prometheus.by_pod[pod["metadata"]["name"]] = PodTraffic(**traffic)
    world.load(3.0)
    world.calibrate(profile=profile(ttft=ttft))
    return world


def decoding_s(arm: Any, rps: float = 3.0) -> float:
    """Time after the first token, by the law."""
    c1_s, c2_s = LAWS[arm]
    latency_s = c1_s / (1.0 - c2_s * rps)
    return latency_s - TTFT[0] - TTFT[1] * rps * latency_s


@pytest.mark.parametrize(("through", "first_s"), [(1.0, 0.6), (0.5, 0.35)])
async def test_the_speedup_is_that_of_the_whole_request(through, first_s):
    """Half of the requests go past the prefill half: short prompts, which routers send to decode alone."""
    world = pair(through=through)
    await world.until(lambda: "speedup" in world.decision, cycles=4)
    expected = (first_s + decoding_s(NO_SPECULATION)) / (first_s + decoding_s(EAGLE))
    assert float(world.decision["firstTokenSeconds"]) == pytest.approx(first_s, rel=0.01)
    assert float(world.decision["speedup"]) == pytest.approx(expected, rel=0.02)
    assert float(world.decision["speedup"]) < 1.7, "decode alone would gain 1.79"
    decode_s = LAWS[NO_SPECULATION][0] / (1.0 - 3.0 * LAWS[NO_SPECULATION][1])
    whole_s = decode_s + first_s - 0.1
    assert float(world.decision["observedLatencySeconds"]) == pytest.approx(whole_s, rel=0.01)
    assert float(world.decision["inflight"]) == pytest.approx(3.0 * whole_s, rel=0.02)
    assert (world.decision["action"], world.decision["arm"]) == ("Recommend", "eagle/3")


async def test_the_halves_that_kserve_makes_of_one_object_are_a_pair():
    world = pair(
        no_transfer,
        lambda target: target["spec"].update(prefill={"replicas": 1}),
        mode="RollingUpdate",
        form=as_llm_inference_service,
    )
    await world.until(lambda: world.reason == "KvTransferPair", cycles=6)
    assert float(world.decision["firstTokenSeconds"]) == pytest.approx(0.6, rel=0.01)
    assert "has spec.prefill" in world.decision["message"]


async def test_a_pair_of_two_objects_is_not_rolled():
    world = pair(mode="RollingUpdate")
    await world.until(lambda: world.reason == "KvTransferPair", cycles=6)
    assert "the engines at the other end keep connections" in world.decision["message"]
    assert world.decision["arm"] == "eagle/3"
    assert world.rolls == []


async def test_a_prefill_half_that_is_not_there_has_a_word_of_its_own():
    world = pair(lambda one: one["metadata"].update(name="another"))
    await world.until(lambda: world.reason == "PrefillNotFound", cycles=4)
    assert world.decision["action"] == "Hold"
    assert PREFILL in world.decision["message"]


def two_containers(one: dict[str, Any]) -> None:
    containers = one["spec"]["template"]["spec"]["containers"]
    containers.append({**copy.deepcopy(containers[0]), "name": "second"})


def without_model(one: dict[str, Any]) -> None:
    engine(one)["args"] = [word for word in engine(one)["args"] if word.startswith("-")]


@pytest.mark.parametrize("edit", [two_containers, without_model])
async def test_a_prefill_half_that_cannot_be_read_has_a_word_of_its_own(edit):
    world = pair(edit)
    await world.until(lambda: world.reason == "PrefillUnreadable", cycles=4)
    assert world.decision["action"] == "Hold"


def other_model(one: dict[str, Any]) -> None:
    engine(one)["args"][0] = "org/another"


def no_transfer(one: dict[str, Any]) -> None:
    engine(one)["args"] = [word for word in engine(one)["args"] if not word.startswith(FLAG)]


def as_consumer(one: dict[str, Any]) -> None:
    no_transfer(one)
    with_words(one, transfer("kv_consumer"))


def by_another_connector(one: dict[str, Any]) -> None:
    no_transfer(one)
    with_words(one, transfer(connector="P2pNcclConnector"))


def with_a_drafter(one: dict[str, Any]) -> None:
    engine(one)["args"] = [
        word for word in engine(one)["args"] if not word.startswith("--speculative-config")
    ]
    with_words(one, '--speculative-config={"method":"eagle3","model":"org/head","num_speculative_tokens":3}')


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (other_model, "prefill serves org/another and decode org/model"),
        (no_transfer, "the prefill half needs --kv-transfer-config"),
        (as_consumer, "kv_role kv_consumer, which the prefill half cannot have"),
        (by_another_connector, "kv_connector P2pNcclConnector and decode NixlConnector"),
        (with_a_drafter, "prefill runs eagle and decode no drafter"),
    ],
)
async def test_halves_that_cannot_work_together_are_told_what_differs(edit, said):
    world = pair(edit)
    await world.until(lambda: world.reason == "PairMismatched", cycles=4)
    assert world.decision["action"] == "Hold"
    assert said in world.decision["message"]
    assert world.condition("Ready")["reason"] == "PairMismatched"


async def test_halves_that_are_named_the_wrong_way_round_are_told_so():
    world = pair(decode=lambda target: with_words(target, transfer("kv_producer")))
    await world.until(lambda: world.reason == "PairMismatched", cycles=4)
    assert "the wrong way round" in world.decision["message"]


@pytest.mark.parametrize(
    ("heard", "word"),
    [
        ({"model_name": "other"}, "MetricsMislabelled"),
        ({"age_s": 600.0}, "MetricsStale"),
        ({"latency_s": float("nan")}, "MetricsNaN"),
    ],
)
async def test_bad_figures_of_the_prefill_half_hold_by_their_own_word(heard, word):
    world = pair(**heard)
    await world.until(lambda: world.decision.get("reason") == word, cycles=4)
    assert world.decision["action"] == "Hold"
    assert "prefill half: " in world.decision["message"]
    assert world.condition("MetricsAvailable")["reason"] == word


async def test_a_profile_without_times_to_the_first_token_decides_nothing_about_a_pair():
    world = pair(ttft=False)
    await world.until(lambda: world.reason == "NoBelievableFit", cycles=4)
    assert "first token was not measured" in world.decision["message"]


async def test_a_change_of_the_prefill_half_alone_is_decided_about_in_the_next_cycle():
    world = pair()
    for _ in range(8):
        await world.cycle()
    told = world.decision["time"]
    await world.fleet.cycle()
    assert world.decision["time"] == told, "nothing has changed"
    world.cluster.change(DEPLOYMENTS, "llm", PREFILL, other_model)
    # No pod of the new template is there yet.
    await world.fleet.cycle()
    assert world.reason == "PairMismatched"


async def test_the_halves_of_a_large_fleet_are_read_pod_by_pod_together():
    world = pair()
    world.pods_per_query = 2
    world.restart()
    await world.until(lambda: "speedup" in world.decision, cycles=6)
    assert float(world.decision["firstTokenSeconds"]) == pytest.approx(0.6, rel=0.01)


async def test_watches_follow_the_prefill_half_too():
    world = pair()
    world.watched = True
    world.restart()
    await world.until(lambda: "firstTokenSeconds" in world.decision, cycles=6)


async def test_objectives_that_the_decode_half_cannot_see_are_not_measured():
    """Its histograms begin behind the prompt: users wait longer than they say."""
    world = pair()
    world.cluster.change(
        SERVICES,
        "llm",
        "chat",
        lambda one: one["spec"].update(slo={"ttftP95Milliseconds": 900, "tpotP95Milliseconds": 60}),
    )
    for traffic in (world.prometheus.traffic, *world.prometheus.by_pod.values()):
        traffic.latencies = {"ttft": [0.1] * 100, "tpot": [0.01] * 100, "e2e": [1.0] * 100}
    await world.until(lambda: bool(world.status.get("objectives")), cycles=4)
    assert [one["figure"] for one in world.status["objectives"]] == ["tpot"]


async def test_a_removed_pair_is_decided_by_its_decode_half_alone():
    world = pair()
    await world.until(lambda: "firstTokenSeconds" in world.decision, cycles=4)
    world.cluster.change(SERVICES, "llm", "chat", lambda one: one["spec"].pop("pair"))
    await world.cycle()
    assert "firstTokenSeconds" not in world.decision
    assert float(world.decision["speedup"]) > 1.7
