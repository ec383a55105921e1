"""The trial driver against a live engine: points stored one by one, stopped, gone on with."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from breakeven.load_driver.client import EngineError
from breakeven_operator.calibration.transition import points_csv, sweep_of
from breakeven_operator.driver import OutOfTimeError, PromptsError, run_trial
from breakeven_operator.resources.calibrationrun import CalibrationPlan, CalibrationRun
from fakes.calibration_world import World
from fakes.lawful_engine import LawfulEngine, serving
from fakes.trial_run import TRIAL, StoredRun, trial_environment
from fakes.virtual_time import in_virtual_time

MARKER = "xyzzy-not-for-logs"
LINES = "\n".join(json.dumps({"prompt": f"{MARKER} {n}", "output_tokens": 8 + n % 5}) for n in range(20))
FROM_CONFIG_MAP = {"configMap": {"name": "prompts", "key": "support.jsonl"}}


@pytest.fixture
def world() -> World:
    world = World()
    world.turn()
    return world


@pytest.fixture
def stored(world):
    return StoredRun(world.run)


@in_virtual_time
async def test_every_point_is_stored_before_the_next_and_a_second_start_repeats_none(stored):
    async with serving(LawfulEngine(speculative_tokens=2)) as engine:
        trial = trial_environment(engine.url)
        finished = await run_trial(trial, stored)
        assert finished.complete
        assert stored.applied == [("breakeven-trial-eagle-2", count) for count in (1, 2, 3, 4, 5, 6)]
        requests = len(engine.bodies)
        again = await run_trial(trial, stored)
        assert again.complete
        assert len(stored.applied) == 6
        assert len(engine.bodies) == requests
    points = CalibrationRun.read(stored.run, "run").status.points_of("eagle/2")
    assert [point.index for point in points] == [0, 1, 2, 3, 4, 5]
    assert points[4].load_mode == "poisson"
    # The first load once more at the end: a machine that drifts shows there.
    assert points[0].concurrency == points[5].concurrency == 1
    assert points[0].candidate == "eagle"
    assert points[0].time is not None


@in_virtual_time
async def test_stopping_keeps_what_is_measured_and_going_on_measures_the_rest(stored):
    async with serving(LawfulEngine(speculative_tokens=2)) as engine:
        trial = trial_environment(engine.url)
        task = asyncio.create_task(run_trial(trial, stored))
        await stored.first_write.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.05)
        assert engine.open == 0
        await run_trial(trial, stored)
    assert [count for _, count in stored.applied] == [1, 2, 3, 4, 5, 6]


@in_virtual_time
async def test_the_second_start_of_no_speculation_judges_and_measures_what_the_first_left(stored):
    async with serving(LawfulEngine()) as engine:
        await run_trial(trial_environment(engine.url, "none", loads=5, trial_halved=True), stored)
    async with serving(LawfulEngine()) as engine:
        judging = trial_environment(
            engine.url,
            "none/again",
            loads=5,
            answersSeconds=5,
            trial_service="chat",
            trial_judged=["none", "eagle-2"],
        )
        assert (await run_trial(judging, stored)).complete
        requests = len(engine.bodies)
        assert (await run_trial(judging, stored)).complete
        assert len(engine.bodies) == requests
    status = CalibrationRun.read(stored.run, "run").status
    first, again = status.points_of("none"), status.points_of("none/again")
    assert {point.start for point in first} == {None}
    assert {point.start for point in again} == {"none/again"}
    # Three loads and two points at other lengths, then the other two loads and one of the three.
    assert (len(first), len(sweep_of(first)), len(again)) == (5, 3, 3)
    before = {(one.concurrency, one.request_rate_rps) for one in first}
    assert [(one.concurrency, one.request_rate_rps) in before for one in again] == [False, False, True]
    plan = CalibrationPlan.model_validate(
        {
            **TRIAL["plan"],
            "arms": [
                {"arm": arm, "method": "none", "k": 0, "speculativeConfig": "null"}
                for arm in ("none", "none/again")
            ],
        }
    )
    rows = points_csv(status, plan).splitlines()
    assert sum("none/again" in row for row in rows) == 3
    assert len(rows) == 1 + len(first) + 3


@in_virtual_time
async def test_drivers_side_by_side_meet_at_each_load_through_the_run_and_name_their_machines():
    world = World(places=3)
    world.turn()
    stored, status = StoredRun(world.run), world.status
    both = {"none": None, "eagle/2": 2}

    def phases(again: str, phase: str) -> None:
        # The third arm has found no place.
        for one in status["armStatuses"]:
            one["phase"] = phase if one["arm"] in {f"{arm}{again}" for arm in both} else "Waiting"

    async def measured(again: str, **given: Any) -> list[tuple[str, float, float]]:
        async with contextlib.AsyncExitStack() as stack:
            engines = [
                await stack.enter_async_context(serving(LawfulEngine(speculative_tokens=k)))
                for k in both.values()
            ]
            trials = [
                trial_environment(engine.url, f"{arm}{again}", loads=5, podsAtOnce=3, node="gpu-7", **given)
                for engine, arm in zip(engines, both, strict=True)
            ]
            phases(again, "Starting")
            drivers = [asyncio.create_task(run_trial(trial, stored)) for trial in trials]
            await asyncio.sleep(20.0)
            assert not stored.applied or again, "nobody begins alone"
            phases(again, "Measuring")
            await asyncio.gather(*drivers)
        points = CalibrationRun.read(stored.run, "run").status.points
        return [
            (p.arm, p.concurrency, p.request_rate_rps)
            for p in points
            if p.arm.endswith("again") == bool(again)
        ]

    first = await measured("", trial_halved=True)
    second = await measured("/again")
    loads = {arm: [load for name, *load in first if name == arm] for arm in both}
    assert len(loads["none"]) == len(loads["eagle/2"]) == 5
    again = {arm: [load for name, *load in second if name == f"{arm}/again"] for arm in both}
    assert again["none"] == again["eagle/2"]
    assert [load in loads["none"] for load in again["none"]] == [False, False, True]
    names = {point.start for point in CalibrationRun.read(stored.run, "run").status.points}
    assert len({name.partition(" on ")[2] for name in names}) == 1
    assert {name.partition(" on ")[0] for name in names} == {*both, *(f"{arm}/again" for arm in both)}


@in_virtual_time
async def test_a_second_start_of_a_whole_sweep_measures_one_load_again_and_asks_for_no_answers(stored):
    async with serving(LawfulEngine()) as engine:
        await run_trial(trial_environment(engine.url, "none"), stored)
    async with serving(LawfulEngine(speculative_tokens=2)) as engine:
        await run_trial(trial_environment(engine.url), stored)
    given = {"answersSeconds": 5, "trial_service": "chat", "job_uid": "uid"}
    async with serving(LawfulEngine()) as engine:
        with pytest.raises(EngineError, match="does not speculate"):
            await run_trial(trial_environment(engine.url, "eagle/2/again", **given), stored)
    # The second start is slower by a tenth.
    async with serving(LawfulEngine(token_s=1.1 * LawfulEngine().token_s, speculative_tokens=2)) as engine:
        assert (await run_trial(trial_environment(engine.url, "eagle/2/again", **given), stored)).complete
    status = CalibrationRun.read(stored.run, "run").status
    first, (again,) = status.points_of("eagle/2"), status.points_of("eagle/2/again")
    assert (again.start, again.candidate, again.k) == ("eagle/2/again", "eagle", 2)
    before = {(one.concurrency, one.request_rate_rps): one.mean_latency_s for one in first}
    assert again.mean_latency_s > 1.02 * before[again.concurrency, again.request_rate_rps]


@in_virtual_time
async def test_rates_of_the_arms_before_are_taken_over(stored, world):
    world.store("none", 1)
    # Near what this engine would plan by itself: utilisation 0.15 of 1 / (30 * 0.2 ms) = 167 rps.
    world.status["points"][0] |= {"requestRateRps": "27.5", "meanLatencyS": "0.07", "meanInflight": "1.9"}
    async with serving(LawfulEngine(speculative_tokens=2)) as engine:
        await run_trial(trial_environment(engine.url), stored)
    last = CalibrationRun.read(stored.run, "run").status.points_of("eagle/2")[-2]
    assert last.request_rate_rps == 27.5


@in_virtual_time
async def test_the_wrong_engine_is_named(stored):
    async with serving(LawfulEngine()) as engine:
        with pytest.raises(EngineError, match="does not speculate"):
            await run_trial(trial_environment(engine.url), stored)


@in_virtual_time
async def test_nothing_of_a_prompt_reaches_the_run_or_the_log(stored, tmp_path, caplog):
    file = tmp_path / "support.jsonl"
    file.write_text(LINES)
    with caplog.at_level(logging.DEBUG):
        async with serving(LawfulEngine(speculative_tokens=2)) as engine:
            trial = trial_environment(
                engine.url,
                workload=json.dumps({"prompts": FROM_CONFIG_MAP}),
                trial_prompts=str(file),
            )
            await run_trial(trial, stored)
            assert any(MARKER in body["prompt"] for body in engine.bodies), "the prompts were sent"
    points = stored.run["status"]["points"]
    assert [point["textSource"] for point in points] == ["support", *["synthetic text"] * 2, *["support"] * 3]
    assert MARKER not in json.dumps(stored.run) + caplog.text


@in_virtual_time
async def test_a_file_that_changes_between_two_arms_ends_the_trial(stored, tmp_path):
    file = tmp_path / "support.jsonl"
    file.write_text(LINES)
    given = {"workload": json.dumps({"prompts": FROM_CONFIG_MAP}), "trial_prompts": str(file)}
    async with serving(LawfulEngine()) as engine:
        await run_trial(trial_environment(engine.url, "none", **given), stored)
    file.write_text(LINES + '\n{"prompt": "one more"}')
    async with serving(LawfulEngine(speculative_tokens=2)) as engine:
        with pytest.raises(PromptsError, match="the file changed since the arm before it"):
            await run_trial(trial_environment(engine.url, "eagle/2", **given), stored)


@in_virtual_time
async def test_loads_that_are_bought_stop_early_for_an_arm_that_surely_loses(stored):
    given = {"loads": 8, "loadChoice": "Auto", "expectedRps": ["20", "60"]}
    async with serving(LawfulEngine()) as engine:
        await run_trial(trial_environment(engine.url, "none", **given), stored)
    async with serving(LawfulEngine(token_s=0.006, speculative_tokens=2)) as engine:
        finished = await run_trial(trial_environment(engine.url, **given), stored)
    run = CalibrationRun.read(stored.run, "run")
    loads = {arm: len(sweep_of(run.status.points_of(arm))) for arm in ("none", "eagle/2")}
    assert loads["none"] < 8
    # An arm three times as slow is not worth more than a first look.
    assert loads["eagle/2"] <= 3, finished.reason
    assert finished.complete


@in_virtual_time
async def test_a_sweep_whose_time_is_up_before_it_has_a_point_says_the_budget(stored):
    async with serving(LawfulEngine(speculative_tokens=2)) as engine:
        trial = trial_environment(engine.url)
        settings = replace(trial.sweep.settings, max_seconds=0.1 * trial.sweep.settings.point_seconds)
        hurried = replace(trial, sweep=replace(trial.sweep, settings=settings))
        with pytest.raises(OutOfTimeError, match="time is up"):
            await run_trial(hurried, stored)
