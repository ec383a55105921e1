"""Bursts in the operator's decisions: measured at the pods that count, shown with the figures that hold for them."""

from __future__ import annotations

import pytest

from fakes.arrivals import gamma_arrivals
from fakes.fleet_world import FleetWorld

RPS = 3.0


def at_bursts(cv: float | None) -> FleetWorld:
    """A calibrated service whose requests come with such gaps; None: evenly."""
    world = FleetWorld()
    world.calibrate()
    world.load(RPS)
    if cv is not None:
        began_s = world.prometheus.clock.now().timestamp() - 3600.0
        world.prometheus.traffic.came_at_s = began_s + gamma_arrivals(cv, RPS, 7200.0, 5)
    return world


def speedup(world: FleetWorld) -> float:
    return float(world.decision["speedup"])


async def test_bursts_are_in_the_decision_and_said_beside_it():
    plain, bursty = at_bursts(None), at_bursts(4.0)
    await plain.cycle()
    await bursty.cycle()
    assert float(plain.decision["arrivalDispersion"]) == pytest.approx(0.0, abs=0.01)
    # Two pods, 120 spans each: a standard error of a tenth.
    assert float(bursty.decision["arrivalDispersion"]) == pytest.approx(16.0, rel=0.3)
    assert speedup(bursty) < 0.8 * speedup(plain)
    shown = f"{float(bursty.decision['arrivalDispersion']):.3g}"
    assert f"(arrivals of dispersion {shown})" in bursty.decision["message"]
    assert "predictions hold for arrivals of dispersion" in bursty.condition("MetricsAvailable")["message"]
    assert "dispersion" not in plain.decision["message"]
    labels = {"specsvc_namespace": "llm", "specsvc": "chat"}
    gauge = bursty.registry.get_sample_value("breakeven_arrival_dispersion_ratio", labels)
    assert gauge == pytest.approx(float(bursty.decision["arrivalDispersion"]), rel=0.01)


async def test_a_dispersion_that_is_unknown_is_poissons_and_said_to_be():
    world, plain = at_bursts(4.0), at_bursts(None)
    world.prometheus.arrivals_down = True
    await world.cycle()
    await plain.cycle()
    assert "arrivalDispersion" not in world.decision
    assert speedup(world) == speedup(plain)
    said = world.condition("MetricsAvailable")["message"]
    assert (
        "arrivals are taken for Poisson's, because their dispersion is unknown: no counts (Prometheus at"
        in said
    )


async def test_arrivals_are_asked_about_once_per_window():
    world = at_bursts(1.0)
    for _ in range(5):
        await world.cycle()
    asked = len(world.prometheus.arrival_queries)
    world.clock.advance(301.0)
    await world.cycle()
    assert (asked, len(world.prometheus.arrival_queries)) == (1, 2)
