"""A namespace may name so many Prometheus servers; who comes later holds, and says why."""

from __future__ import annotations

from breakeven_operator.cluster.prometheus_questions import SOURCES_PER_NAMESPACE
from fakes.fleet_world import FleetWorld


async def test_the_fifth_server_of_a_namespace_is_not_asked_and_the_others_keep_their_figures():
    world = FleetWorld(lambda spec: spec.update(paused=False))
    world.add_services(SOURCES_PER_NAMESPACE + 1)
    for number in range(SOURCES_PER_NAMESPACE + 1):
        service = world.cluster.objects["speculativeservices", "llm", f"service-{number:02}"]
        service["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{number:02}+00:00"
        service["spec"]["metricsSource"] = {"prometheus": {"address": f"http://prometheus:9090/{number}"}}
    world.calibrate()
    world.load(3.0)
    for _ in range(3):
        await world.cycle()
    said = {
        name: str(world.cluster.objects["speculativeservices", "llm", name]["status"])
        for name in (f"service-{number:02}" for number in range(SOURCES_PER_NAMESPACE + 1))
    }
    problem = "name more than 4 Prometheus servers"
    assert [problem in text for text in said.values()] == [False] * SOURCES_PER_NAMESPACE + [True]
