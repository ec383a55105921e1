"""Requests that calibrations send and import, around the fleet: words on the service, nothing of a prompt anywhere."""

from __future__ import annotations

import asyncio
import json

import pytest

from breakeven_operator import calibration
from breakeven_operator.actions import FitOutcome
from breakeven_operator.kinds import CONFIG_MAPS, EVENTS, JOBS, PROFILES, RUNS
from breakeven_operator.ports import ClusterError
from fakes.fleet_world import VALUE, FleetWorld, profile_json

MARKER = "xyzzy-not-for-logs"
PROMPTS = {"prompts": {"configMap": {"name": "prompts", "key": "a.jsonl"}}}


def sends(workload):
    def edit(spec):
        spec["calibration"] = {"workload": workload}

    return edit


def put_config_map(world, name, data):
    world.cluster.put(CONFIG_MAPS, {"metadata": {"namespace": "llm", "name": name}, "data": data})


def import_run(world, name="by-hand"):
    sources = [
        {"arm": arm, "configMap": {"name": "sweeps", "keys": [key]}}
        for arm, key in (("none", "none.csv"), ("eagle/3", "eagle.csv"))
    ]
    body = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "CalibrationRun",
        "metadata": {"namespace": "llm", "name": name},
        "spec": {"serviceRef": {"name": "chat"}, "importFrom": sources},
    }
    world.cluster.put(RUNS, body, manager="person")
    rows = "\n".join(f"{{arm}},{rps},{1 / (1 - rps * 0.05):.4f},{MARKER}" for rps in (1, 4, 8, 12))
    header = "method,k,request_rate_rps,mean_latency_s,prompt\n"
    data = {
        "none.csv": header + rows.replace("{arm}", "none,0"),
        "eagle.csv": header + rows.replace("{arm}", "eagle3,3"),
    }
    put_config_map(world, "sweeps", data)


def phase(world, name):
    run = next(run for run in world.cluster.of(RUNS) if run["metadata"]["name"] == name)
    return (run.get("status") or {}).get("phase")


def shown(world):
    """Everything in the cluster but the ConfigMaps."""
    return json.dumps([str(each) for key, each in world.cluster.objects.items() if key[0] != "configmaps"])


async def test_an_import_becomes_the_profile_in_force_without_a_job():
    world = FleetWorld()
    world.load(3.0)
    world.fits.outcome = FitOutcome(profile_json(), None)
    import_run(world)
    for _ in range(6):
        await world.cycle()
    assert phase(world, "by-hand") == "Succeeded"
    assert world.cluster.of(JOBS) == []
    (profile,) = world.cluster.of(PROFILES)
    assert profile["metadata"]["name"] == "by-hand"
    assert world.condition("Calibrated")["status"] == "True"
    (run,) = world.cluster.of(RUNS)
    assert len(run["status"]["points"]) == 8
    assert MARKER not in shown(world)


async def test_an_import_waits_for_the_calibration_before_it_and_is_not_superseded():
    world = FleetWorld()
    world.load(3.0)
    for _ in range(3):
        await world.cycle()
    (begun,) = world.cluster.of(RUNS)
    import_run(world)
    await world.cycle()
    await world.cycle()
    assert phase(world, "by-hand") == "Pending"
    world.fits.outcome = FitOutcome(profile_json(), None)
    world.cluster.remove(RUNS, "llm", begun["metadata"]["name"])
    for _ in range(4):
        await world.cycle()
    assert phase(world, "by-hand") == "Succeeded"


async def test_one_run_reads_large_files_in_a_cycle_and_the_others_follow():
    world = FleetWorld(max_parallel_calibrations=10)
    world.add_services(3)
    put_config_map(world, "large", {"k": "x" * (5 << 20)})
    for number in range(3):
        sources = [{"arm": "none", "configMap": {"name": "large", "keys": ["k"]}}]
        body = {
            "apiVersion": "breakeven.dev/v1alpha1",
            "kind": "CalibrationRun",
            "metadata": {"namespace": "llm", "name": f"large-{number}"},
            "spec": {"serviceRef": {"name": f"service-{number:02}"}, "importFrom": sources},
        }
        world.cluster.put(RUNS, body, manager="person")
    for ended in (1, 2, 3):
        await world.cycle()
        assert [phase(world, f"large-{number}") for number in range(3)].count("Failed") == ended


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "ConfigMap prompts is not in this namespace"),
        ({"b.jsonl": "{}"}, "ConfigMap prompts has no key a.jsonl (1 others)"),
        ({"a.jsonl": f'{{"text": "{MARKER}"}}'}, "ConfigMap prompts, key a.jsonl"),
    ],
)
async def test_prompts_that_are_not_there_or_are_none_are_a_word_and_nothing_else_changes(data, said):
    world = FleetWorld(sends(PROMPTS))
    world.load(3.0)
    if data is not None:
        put_config_map(world, "prompts", data)
    for _ in range(5):
        await world.cycle()
    assert f"InputRefused: workload.prompts: {said}" in world.condition("Calibrated")["message"]
    assert world.cluster.of(JOBS) == []
    assert world.rolls == []
    assert any(said in event["note"] for event in world.cluster.of(EVENTS))
    assert MARKER not in shown(world)


async def test_a_config_map_that_the_operator_may_not_read_is_left_to_the_pod(monkeypatch):
    world = FleetWorld(sends(PROMPTS))
    world.load(3.0)
    real = world.cluster.get

    async def get(resource, namespace, name):
        if resource == CONFIG_MAPS:
            raise ClusterError("forbidden", 403)
        return await real(resource, namespace, name)

    monkeypatch.setattr(world.cluster, "get", get)
    for _ in range(4):
        await world.cycle()
    (job,) = world.cluster.of(JOBS)
    assert "breakeven-prompts" in json.dumps(job["spec"]["template"]["spec"]["volumes"])


async def test_acceptance_on_made_up_text_is_called_a_guess_until_live_traffic_has_been_seen():
    world = FleetWorld()
    document = json.loads(profile_json())
    eagle = next(arm for arm in document["arms"] if arm["k"])
    eagle["acceptance"]["text"] = "synthetic text"
    world.calibrate(profile=json.dumps(document))
    world.load(3.0)
    await world.cycle()
    guess = (
        "; acceptance of eagle was measured on synthetic text: a guess until live traffic has been seen on it"
    )
    assert world.condition("Calibrated")["message"].endswith(guess)
    await world.until(lambda: bool(world.memory.get("seen")))
    await world.cycle()
    assert "guess" not in world.condition("Calibrated")["message"]


async def test_acceptance_on_the_users_own_text_is_no_guess():
    world = FleetWorld()
    document = json.loads(profile_json())
    next(arm for arm in document["arms"] if arm["k"])["acceptance"]["text"] = "support"
    world.calibrate(profile=json.dumps(document))
    world.load(3.0)
    await world.cycle()
    assert "guess" not in world.condition("Calibrated")["message"]


class EndlessFits:
    """The `Fitter` port: no fit ends while the test runs."""

    def __init__(self):
        self.begun = 0

    async def fit(self, points_csv, arguments):
        self.begun += 1
        await asyncio.Event().wait()


def import_for(world, number):
    """An import of the service of this number; its namespace is the one that all services of these tests share."""
    sources = [
        {"arm": arm, "configMap": {"name": "sweeps", "keys": [key]}}
        for arm, key in (("none", "none.csv"), ("eagle/3", "eagle.csv"))
    ]
    body = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "CalibrationRun",
        "metadata": {"namespace": "llm", "name": f"by-hand-{number}"},
        "spec": {"serviceRef": {"name": f"service-{number:02}"}, "importFrom": sources},
    }
    world.cluster.put(RUNS, body, manager="person")


async def test_fits_that_do_not_end_hold_up_no_decision_and_no_other_calibration():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0))
    world.calibrate()
    world.add_services(4, mode="Disabled")
    fits = EndlessFits()
    world.fits = fits  # type: ignore[assignment] # as a test's own port
    world.restart()
    import_run(world)
    world.cluster.remove(RUNS, "llm", "by-hand")
    for number in range(4):
        import_for(world, number)
    for _ in range(10):
        await world.cycle()
    phases = [phase(world, f"by-hand-{number}") for number in range(4)]
    assert phases == ["Fitting"] * 4, "a run that waits for its fit holds the only place"
    assert fits.begun == 1, "one at a time"
    world.load(3.0)
    await world.until(lambda: world.value == VALUE, cycles=4)


async def test_a_profile_that_no_object_holds_fails_its_run_once():
    world = FleetWorld()
    world.load(3.0)
    large = json.loads(profile_json())
    large["warnings"] = ["x" * (2 << 20)]
    world.fits.outcome = FitOutcome(json.dumps(large), None)
    import_run(world)
    for _ in range(6):
        await world.cycle()
    run = next(run for run in world.cluster.of(RUNS) if run["metadata"]["name"] == "by-hand")
    assert (run["status"]["phase"], run["status"]["reason"]) == ("Failed", "CalibrationFailed")
    assert "cannot be stored" in run["status"]["message"]


async def test_a_defect_behind_a_fit_fails_its_run_and_is_counted(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(calibration, "conclude", broken)
    world = FleetWorld()
    world.load(3.0)
    world.fits.outcome = FitOutcome(profile_json(), None)
    import_run(world)
    for _ in range(6):
        await world.cycle()
    run = next(run for run in world.cluster.of(RUNS) if run["metadata"]["name"] == "by-hand")
    assert (run["status"]["phase"], run["status"]["reason"]) == ("Failed", "CalibrationFailed")
