"""An overload that is over: the service decides as one that never had it."""

from __future__ import annotations

import asyncio
import functools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from breakeven_operator.resources.updatepolicy import Timing
from draws import draws
from fakes.fleet_world import EAGLE, LAWS, FleetWorld
from fakes.load_course import CoursePart

WINDOW_S = 60.0
FEW = 5.0
"""Requests in flight that are no queue."""


@functools.cache
def recommended() -> FleetWorld:
    """A service that runs an arm which pays, and whose rolls are somebody else's."""

    async def made() -> FleetWorld:
        world = FleetWorld(timing=Timing(disagreement_seconds=120))
        await world.speculate()
        spec = world.service["spec"]
        spec["updatePolicy"]["mode"] = "Recommend"
        spec.setdefault("metricsSource", {})["windowSeconds"] = int(WINDOW_S)
        world.prometheus.traffic.window_s = WINDOW_S
        return world

    return asyncio.run(made())


def said(world: FleetWorld) -> dict[str, object]:
    """The decision, whether it pays, and the conditions that alerts fire for."""
    named = ("ModelAgrees", "MetricsAvailable")
    return {
        "action": world.decision["action"],
        "arm": world.decision["arm"],
        "pays": world.memory["pays"],
        # The bounds of one window may hold both answers.
        "loses": world.condition("Profitable")["status"] == "False",
        **{name: world.condition(name)["reason"] for name in named},
    }


async def after(world: FleetWorld, stretches: list[CoursePart], usual_rps: float, seed: int) -> None:
    """Once the queue has been gone for a window, every cycle says what it would say without any of it."""
    before = [CoursePart(usual_rps, WINDOW_S), *stretches]
    world.play(*before, CoursePart(usual_rps, 40 * WINDOW_S), seed=seed)
    over_s = world.clock.now().timestamp() + sum(one.lasts_s for one in before)
    gone_s = None
    while gone_s is None or world.clock.now().timestamp() < gone_s + 3 * WINDOW_S:
        await world.cycle()
        now_s = world.clock.now().timestamp()
        if gone_s is None and now_s > over_s and world.prometheus.course.running(now_s) < 2 * FEW:
            gone_s = now_s
        if gone_s is not None and now_s > gone_s + WINDOW_S:
            found = said(world)
            assert found == USUAL, found
    assert "ClientsGiveUp" not in world.events


async def cycles(world: FleetWorld, count: int) -> None:
    for _ in range(count):
        await world.cycle()


USUAL = {
    "action": "Stay",
    "arm": "eagle/3",
    "pays": True,
    "loses": False,
    "ModelAgrees": "ModelAgrees",
    "MetricsAvailable": "MetricsAvailable",
}
OVERLOADS = st.lists(
    st.builds(CoursePart, st.floats(13.5, 18.0), st.floats(20.0, 90.0)), min_size=1, max_size=2
)


@draws(4)
@given(OVERLOADS, st.floats(2.0, 5.0), st.integers(0, 1000))
@example([], 4.0, 0)
@example([CoursePart(16.0, 45.0)], 4.0, 1)  # shorter than the window
@example([CoursePart(40.0, 5.0)], 4.0, 100)  # and than a look of the operator's
@example([CoursePart(40.0, 5.0), CoursePart(4.0, 120.0), CoursePart(40.0, 5.0)], 4.0, 6)
def test_once_the_queue_is_gone_for_a_window_a_service_decides_as_if_it_never_was(stretches, usual_rps, seed):
    asyncio.run(after(recommended().copied(), stretches, usual_rps, seed))


@pytest.mark.parametrize("slower", [1.8, 2.5])
def test_an_arm_that_is_slower_than_its_law_is_left_though_it_is_never_without_a_queue(slower):
    """In flight beyond the law for good is the arm, and no queue that goes."""
    world = recommended().copied()
    world.laws = {**LAWS, EAGLE: (LAWS[EAGLE][0] * slower, LAWS[EAGLE][1] * slower)}
    # Beyond what it carries, and a half of what its law says.
    world.play(CoursePart(6.5, 2 * WINDOW_S), CoursePart(1.05 / world.laws[EAGLE][1], 60 * WINDOW_S), seed=1)
    asyncio.run(cycles(world, 60))
    assert world.decision["arm"] == "none"
    assert world.decision["action"] == "Recommend"


def test_clients_that_leave_an_overload_are_said():
    world = recommended().copied()
    world.play(CoursePart(4.0, WINDOW_S), CoursePart(25.0, 6 * WINDOW_S), seed=1, patience_s=10.0)
    asyncio.run(cycles(world, 24))
    assert "ClientsGiveUp" in world.events
    assert float(world.decision["givenUpPercent"]) > 20.0
