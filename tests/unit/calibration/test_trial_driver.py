"""The trial: its environment, where its points go, and how it goes on after an interruption."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from breakeven.arm import Arm
from breakeven.errors import InputError
from breakeven.load_driver.measuring import MeasuredWindow
from breakeven.load_driver.window import Spread, WindowStatistics
from breakeven.points.point import ImposedLoad, LoadMode
from breakeven.points.table import read
from breakeven.serving.counted_window import Load
from breakeven_operator.calibration.transition import measured_of, points_csv
from breakeven_operator.driver import PointStore, RunGoneError, TrialEnvironment
from breakeven_operator.ports import ClusterError
from breakeven_operator.resources.calibrationrun import CalibrationRun, StoredPoint
from fakes.trial_run import StoredRun, trial_environment


def one_point():
    spread = Spread(0.5, 0.5, 0.6, 0.7)
    clients = WindowStatistics(
        20,
        200,
        {},
        10,
        10,
        5,
        4.9,
        spread,
        spread,
        Spread(0.01, 0.01, 0.011, 0.012),
        300,
        64,
        32,
        1024,
        0.000001,
        0.0000123,
        0.01,
    )
    engine = Load(
        tokens_per_step=2.2,
        drafted_per_step=2.0,
        survival=(0.7, 0.5),
        drafts=900,
        preemptions=0.0,
        prefix_hit_ratio=0.0,
    )
    load = ImposedLoad(LoadMode.POISSON, 10.0)
    return MeasuredWindow(Arm("eagle3", 2, "eagle"), load, clients, engine, 0.00001, 0.3).point()


@pytest.fixture
def stored(world):
    world.turn()
    return StoredRun(world.run)


async def test_an_absent_api_server_is_waited_for(stored):
    store = PointStore(trial_environment("http://x"), stored, pause_s=0.001)
    await store.load()
    stored.fail_with = [ClusterError("no answer"), ClusterError("busy", 429), ClusterError("broken", 500)]
    await store.add(one_point())
    assert stored.applied == [("breakeven-trial-eagle-2", 1)]


async def test_what_the_api_server_refuses_for_good_ends_the_trial(stored):
    store = PointStore(trial_environment("http://x"), stored, pause_s=0.001)
    await store.load()
    stored.fail_with = [ClusterError("forbidden", 403)]
    with pytest.raises(ClusterError, match="forbidden"):
        await store.add(one_point())


async def test_a_deleted_run_ends_the_trial(stored):
    store = PointStore(trial_environment("http://x"), stored, pause_s=0.001)
    await store.load()
    stored.fail_with = [ClusterError("not found", 404)]
    with pytest.raises(RunGoneError):
        await store.add(one_point())
    stored.run = None
    with pytest.raises(RunGoneError, match="no CalibrationRun llm/chat-7f3c2"):
        await store.load()


async def test_nobody_waits_for_points_of_a_run_that_has_ended(stored):
    stored.run["status"]["phase"] = "Superseded"
    with pytest.raises(RunGoneError, match="Superseded already"):
        await PointStore(trial_environment("http://x"), stored).load()


async def test_a_point_survives_status_and_file_and_back(stored):
    store = PointStore(trial_environment("http://x"), stored, pause_s=0.001)
    await store.load()
    await store.add(one_point())
    kept = replace(one_point(), sweep=trial_environment("http://x").sweep.workload.identity)
    run = CalibrationRun.read(json.loads(json.dumps(stored.run)), "run")
    (design,) = measured_of(run.status.points)
    assert design == kept
    (fitted,) = read(points_csv(run.status, run.status.plan), "run")
    common = {"gpu": run.status.plan.gpu_product, "model": run.status.plan.model}
    assert fitted == replace(kept, **common, origin=fitted.origin)


def test_a_stored_point_without_a_latency_is_none_that_a_sweep_goes_on_from():
    assert measured_of([StoredPoint(arm="none", index=0, concurrency=1.0)]) == []


def test_points_of_all_arms_share_one_file(world):
    world.turn()
    world.store("eagle/7", 2)
    world.store("none", 1)
    run = CalibrationRun.read(world.run, "run")
    lines = points_csv(run.status, run.status.plan).splitlines()
    header = lines[0].split(",")
    assert {"method", "k", "candidate", "accept_1", "accept_2", "gpu", "model"} <= set(header)
    assert [line.split(",")[header.index("method")] for line in lines[1:]] == ["none", "eagle3", "eagle3"]


def test_the_fit_knows_how_many_requests_the_target_takes_into_a_step(world):
    world.turn()
    world.store("none", 1)
    run = CalibrationRun.read(world.run, "run")
    points = read(points_csv(run.status, run.status.plan, None, 16), "run")
    assert [one.max_num_seqs for one in points] == [16.0]
    assert "max_num_seqs" not in points_csv(run.status, run.status.plan)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"loads": 2}, "loads: 2"),
        ({"arm_k": -1}, "BREAKEVEN_TRIAL: arm.k"),
        ({"arm_k": 0}, "BREAKEVEN_TRIAL.arm"),
        ({"trial_run": 5}, "BREAKEVEN_TRIAL: run"),
        ({"pointSeconds": "soon"}, "BREAKEVEN_TRIAL: plan.pointSeconds"),
        ({"outputTokens": 1}, "output tokens"),
    ],
)
def test_a_wrong_field_of_the_document_is_named(change, said):
    with pytest.raises(InputError, match=re.escape(said)):
        trial_environment("http://x", **change)


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_document_that_is_none_is_refused_in_one_line(text):
    with pytest.raises(InputError, match="BREAKEVEN_TRIAL"):
        TrialEnvironment.read({"BREAKEVEN_TRIAL": text})


def test_nothing_in_the_document_is_expanded(world):
    """Kubernetes takes $(NAME) of a variable's value for another variable, and $$ for one sign."""
    (engine, _) = world.target["spec"]["template"]["spec"]["containers"]
    engine["args"][2] = "--served-model-name=$(POD_IP)$$"
    world.turn()
    world.turn()
    assert "$" not in world.driver_env("BREAKEVEN_TRIAL")
    assert world.trial["plan"]["servedModelName"] == "$(POD_IP)$$"
