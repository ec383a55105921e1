"""How pages come into Prometheus must change nothing: copies, native histograms, prefixes; what is dropped is missed."""

from __future__ import annotations

import pytest

from fakes.engine_pages import Scrapes, State, all_in
from fakes.fleet_world import VALUE, FleetWorld

TWICE = ((("job", "podmonitor"),), (("job", "servicemonitor"), ("instance", "10.0.0.7:http")))
HISTOGRAMS = frozenset(
    {"started", "ttft_s", "e2e_s", "e2e_n", "steps", "step_s", "prompt_tokens", "prompt_n", "output_tokens", "output_n"}
)  # fmt: skip


async def speculating(**edit):
    world = FleetWorld(lambda spec: spec.update(edit))
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.phase == "Confirming")
    world.load(3.0)
    await world.until(lambda: world.phase is None)
    assert world.value == VALUE
    return world


def scraped(world, **how):
    world.prometheus.traffic.scrapes = Scrapes(**how)


@pytest.mark.parametrize(
    "how",
    [
        {"copies": TWICE},
        {"histograms": "native"},
        {"histograms": "both"},
        {"histograms": "both", "copies": TWICE},
        {"histograms": "native", "copies": TWICE},
    ],
)
async def test_a_load_is_the_same_however_it_is_scraped_and_stored(how):
    """Five requests a second are below the break-even of 9.1, and twice as many are not."""
    world = await speculating()
    scraped(world, **how)
    world.load(5.0)
    await world.cycle()
    assert world.decision["loadRps"] == "5"
    assert (world.decision["action"], world.condition("MetricsAvailable")["status"]) == ("Stay", "True")
    assert float(world.decision["observedLatencySeconds"]) == pytest.approx(
        world.prometheus.traffic.latency_s, rel=0.01
    )


@pytest.mark.parametrize("histograms", ["classic", "native"])
async def test_an_arm_that_no_longer_guesses_is_left_after_minutes(histograms):
    world = await speculating()
    scraped(world, histograms=histograms)
    traffic = world.prometheus.traffic
    traffic.tokens_per_step, traffic.latency_s, traffic.acceptance = 1.02, 2.4, (0.015, 0.004, 0.001)
    await world.until(lambda: world.value in {None, "null"}, cycles=20)


async def test_without_its_histograms_a_service_holds_and_the_series_are_named():
    world = await speculating()
    scraped(world, states=all_in(State.ABSENT, HISTOGRAMS))
    await world.cycle()
    assert (world.decision["action"], world.reason) == ("Hold", "MetricsPartial")
    assert "vllm:e2e_request_latency_seconds_count" in world.decision["message"]
    assert world.condition("Profitable")["status"] == "Unknown"


async def test_half_of_the_requests_given_up_are_a_load_all_the_same():
    """Eleven requests a second are beyond the break-even, also where half of them are in no series of finished requests."""
    world = await speculating()
    world.prometheus.traffic.given_up = 0.5
    world.load(11.0)
    await world.until(lambda: world.value in {None, "null"}, cycles=20)
    assert float(world.whole["capacity"]["fleetLoadRps"]) == pytest.approx(22.0, rel=0.05)


async def test_engines_that_count_nothing_are_told_from_pods_that_nobody_scrapes():
    world = await speculating()
    scraped(world, silent=True)
    await world.cycle()
    assert (world.decision["action"], world.reason) == ("Hold", "MetricsEmpty")
    assert "--disable-log-stats" in world.decision["message"]


async def test_names_that_begin_otherwise_are_read_where_the_service_says_how():
    world = await speculating(metricsSource={"metricPrefix": "vllm:"})
    scraped(world, prefix="kserve_vllm:")
    await world.cycle()
    assert world.reason == "MetricsEmpty"
    world.service["spec"]["metricsSource"]["metricPrefix"] = "kserve_vllm:"
    await world.cycle()
    assert (world.decision["loadRps"], world.condition("MetricsAvailable")["status"]) == ("3", "True")
