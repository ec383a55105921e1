"""Before the first calibration the past speaks: shown and marked, never acted upon, and gone with the first profile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakeven.profile import Profile
from breakeven_operator.case import FirstAnswer
from breakeven_operator.kinds import RUNS, SERVICES
from breakeven_operator.observing.past_metrics import AWAITED, no_answer
from fakes.fleet_world import FleetWorld, profile_json

SENTENCE = "its last 14 days (30 queries, 271 samples) hold 120 h of no speculation, 30 h of eagle3/3"


def told(world: FleetWorld, answer: FirstAnswer | None) -> FleetWorld:
    """The world in which every service's past says this."""
    observe = world.observer.observe

    async def with_answer(*, soon: bool = False):
        seen = await observe(soon=soon)
        firsts = {} if answer is None else {one.metadata.uid: answer for one in seen.services}
        return replace(seen, firsts=firsts)

    world.observer.observe = with_answer
    return world


@pytest.fixture
def past():
    return FirstAnswer(Profile.from_json(profile_json()), SENTENCE)


async def looked_at(answer, rps=3.0):
    world = told(FleetWorld(), answer)
    world.load(rps)
    await world.cycle()
    await world.cycle(60.0)
    return world


@pytest.mark.claim("README.md", "the first row of a new service says `Yes (past)` within a minute")
async def test_the_first_row_says_what_the_past_says_and_that_it_is_the_past(past):
    world = await looked_at(past)
    decision, display = world.decision, world.service["status"]["workings"]["display"]
    assert display["pays"] == "Yes (past)"
    assert display["recommended"] == "-"
    assert (decision["basis"], decision["action"]) == ("Past", "Hold")
    assert float(decision["speedup"]) > 1.0
    assert "profile" not in decision
    assert SENTENCE in decision["message"]
    assert world.condition("Profitable")["reason"] == "NoProfile"
    assert world.condition("Profitable")["status"] == "True"
    assert "nothing is measured yet" in world.condition("Profitable")["message"]
    assert world.condition("Calibrated")["status"] == "False"


@pytest.mark.claim("README.md", "and nothing is rolled for it")
async def test_no_roll_no_memory_and_no_gauge_of_a_comparison_rest_on_it(past):
    world = await looked_at(past)
    for _ in range(40):
        await world.cycle(60.0)
    assert world.value in {None, "null"}
    assert "rollout" not in world.service["status"]
    memory = world.memory
    assert "evidence" not in memory
    assert "pays" not in memory
    shown = {one.name for one in world.registry.collect() if one.samples}
    assert "breakeven_load_requests_per_second" in shown
    assert not shown & {"breakeven_speedup_ratio", "breakeven_break_even_requests_per_second"}


async def test_a_profile_takes_its_place(past):
    world = await looked_at(past)
    world.calibrate()
    await world.until(lambda: world.decision.get("basis") == "Measured")
    assert world.service["status"]["workings"]["display"]["pays"] in {"Yes", "?"}
    assert SENTENCE not in world.decision["message"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (AWAITED, "its past is being read"),
        (no_answer("no series in the whole span"), "no series in the whole"),
    ],
)
async def test_a_past_that_is_awaited_or_says_nothing_is_said_and_changes_nothing(answer, said):
    world = await looked_at(answer)
    assert said in world.decision["message"]
    assert "basis" not in world.decision
    assert world.service["status"]["workings"]["display"]["pays"] == "?"


async def test_no_run_starts_before_the_past_is_read_and_one_does_after_it(past):
    world = told(FleetWorld(), AWAITED)
    world.load(3.0)
    for _ in range(5):
        await world.cycle()
    assert world.condition("Calibrated")["reason"] == "CalibrationRunning"
    assert "no run starts before its past is read" in world.condition("Calibrated")["message"]
    assert not world.cluster.of(RUNS)
    told(world, past)
    await world.until(lambda: bool(world.cluster.of(RUNS)))


async def test_a_service_that_nothing_would_help_is_told_so_and_spends_no_gpu_unless_somebody_asks(past):
    world = await looked_at(replace(past, pays_nothing=True))
    for _ in range(5):
        await world.cycle(600.0)
    assert world.condition("Calibrated")["reason"] == "CalibrationPaysNothing"
    assert world.decision["reason"] == "CalibrationPaysNothing"
    assert not world.cluster.of(RUNS)
    asked = {"breakeven.dev/recalibrate": "now"}
    world.cluster.change(SERVICES, "llm", "chat", lambda one: one["metadata"].update(annotations=asked))
    await world.until(lambda: bool(world.cluster.of(RUNS)))


async def test_without_live_figures_the_past_makes_none():
    world = told(FleetWorld(), FirstAnswer(Profile.from_json(profile_json()), SENTENCE))
    world.prometheus.down = True
    await world.cycle()
    assert "basis" not in world.decision
