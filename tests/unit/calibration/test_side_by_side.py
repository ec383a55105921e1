"""Arms side by side: their Jobs are made together twice, each arm goes its own way, and what finds no place waits for its turn."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from breakeven.load_driver.course import Sweep
from breakeven.profile import Profile
from breakeven_operator import calibration
from breakeven_operator.actions import Create, Delete
from breakeven_operator.calibration.jobs import job_name
from breakeven_operator.driver import PointStore, TrialEnvironment, sweep_of_start
from breakeven_operator.kinds import ARM_LABEL
from breakeven_operator.refused_writes import RefusedWrite
from breakeven_operator.resources.calibrationrun import CalibrationRun
from fakes.calibration_world import World, fitted, timestamp
from fakes.trial_run import StoredRun

LAWS = {"none": (1.2, 0.060), "eagle/2": (0.9, 0.055), "eagle/7": (0.5, 0.045)}
SECOND = [f"{arm}/again" for arm in reversed(LAWS)]


def started(places: int = 3, turns: int = 2, **changes: Any) -> World:
    """A run that has its plan, and after two turns its first Jobs; `changes` are fields of the service's calibration."""
    world = World(places=places)
    assert world.service is not None
    world.service["spec"]["calibration"] |= changes
    for _ in range(turns):
        world.turn()
    return world


def job_of(world: World, arm: str) -> dict[str, Any]:
    return world.jobs[job_name("chat-7f3c2", arm)]


def running(world: World) -> list[str]:
    """The arms that have a Job whose pod has not ended."""
    ended = {
        name.rpartition("-")[0] for name, pod in world.pods.items() if pod["status"]["phase"] == "Succeeded"
    }
    jobs = {job["metadata"]["name"] for job in world.jobs.values()} - ended
    return [one["arm"] for one in world.status["armStatuses"] if job_name("chat-7f3c2", one["arm"]) in jobs]


def placed(world: World, *arms: str, node: str = "") -> dict[str, dict[str, Any]]:
    """Pods of these arms on nodes of their own, or all on one."""
    pods = {}
    for place, arm in enumerate(arms):
        pods[arm] = world.place_pod(job=job_of(world, arm))
        pods[arm]["spec"] = {"nodeName": node or f"n{place}"}
    world.turn(60)
    for pod in pods.values():
        world.start_driver(pod)
    world.turn()
    return pods


def measured(world: World, pods: dict[str, dict[str, Any]], points: int = 5) -> None:
    """The drivers of these arms store their points and end."""
    for arm, pod in pods.items():
        world.store(arm, points, *LAWS[arm.removesuffix("/again")])
        world.finish_job(pod, job_of(world, arm))
    world.turn(100)


def test_the_jobs_of_all_arms_are_made_together_twice_and_the_run_says_so():
    world = started(turns=1)
    assert world.status["message"].startswith(
        "arms no speculation, eagle/2, eagle/7 side by side, each in two starts; 5 loads each;"
    )
    assert world.status["plan"]["podsAtOnce"] == 3
    world.turn()
    assert running(world) == list(LAWS)
    trials = {}
    for job in world.jobs.values():
        (driver,) = job["spec"]["template"]["spec"]["containers"]
        env = {one["name"]: one for one in driver["env"]}
        assert env["BREAKEVEN_NODE"]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
        trial = json.loads(env["BREAKEVEN_TRIAL"]["value"])
        trials[trial["arm"]["arm"]] = (trial["halved"], trial["maxSeconds"])
    assert [halved for halved, _ in trials.values()] == [True] * 3
    assert len({seconds for _, seconds in trials.values()}) == 1, "each has its share of the budget"
    pods = placed(world, *LAWS)
    assert world.status["message"] == "none: 0 of 5 points; eagle/2: 0 of 5 points; eagle/7: 0 of 5 points"
    assert world.status["display"]["arm"] == "none +2"
    measured(world, pods)
    assert running(world) == sorted(SECOND, key=[*LAWS, *SECOND].index)
    measured(world, placed(world, *SECOND), 2)
    assert not world.jobs
    assert [one["phase"] for one in world.status["armStatuses"]] == ["Done"] * 6
    said = [event.message for event in world.said if event.reason == "ArmMeasured"]
    assert sorted(one.split(":")[0] for one in said) == sorted([*LAWS, *SECOND]), "each is told once"
    # Six pods held two GPUs for 75 seconds each.
    assert float(world.status["gpuSecondsUsed"]) == 6 * 2 * 75
    outcome = fitted(world.fits[-1].points_csv)
    assert len(Profile.from_json(outcome.profile_json or "").arms) == 3
    world.do(calibration.conclude(world.view(), outcome, world.now))
    assert world.status["phase"] == "Succeeded"


def test_pods_come_to_one_machine_and_second_starts_to_another_one_than_the_first_if_there_were_several():
    def preferred(world: World, arm: str, kind: str) -> Any:
        affinity = job_of(world, arm)["spec"]["template"]["spec"]["affinity"]
        return affinity.get(kind, {}).get("preferredDuringSchedulingIgnoredDuringExecution")

    for node, other in (
        ("", [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]),
        ("n0", None),
    ):
        world = started()
        assert preferred(world, "eagle/2", "nodeAffinity") is None
        (beside,) = preferred(world, "eagle/2", "podAffinity")
        labels = beside["podAffinityTerm"]["labelSelector"]["matchLabels"]
        assert labels.items() <= job_of(world, "none")["spec"]["template"]["metadata"]["labels"].items()
        measured(world, placed(world, *LAWS, node=node))
        found = preferred(world, "eagle/2/again", "nodeAffinity")
        assert (found and found[-1]["preference"]["matchFields"]) == other
        affinity = job_of(world, "none/again")["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        assert "requiredDuringSchedulingIgnoredDuringExecution" in affinity, "the target's own stays"


@pytest.mark.parametrize(
    ("places", "changes"),
    [(2, {}), (3, {"loads": 3}), (3, {"budget": {"maxGpuSeconds": 800, "maxDurationSeconds": 7200}})],
    ids=["places", "loads", "GPU seconds"],
)
def test_without_places_loads_or_budget_arms_come_in_turns_or_one_after_the_other(places, changes):
    world = started(places, **changes)
    assert "podsAtOnce" not in world.status["plan"]
    assert len(world.jobs) == 1


def test_an_arm_without_a_place_waits_for_the_others_which_go_on():
    world = started()
    pods = placed(world, "none", "eagle/2")
    assert len(world.jobs) == 3
    world.store("none", 2)
    world.turn(60)
    # Its pod is still there; from here on it is not.
    assert running(world) == ["none", "eagle/2"]
    waits = world.arm_status("eagle/7")
    assert (waits["phase"], waits["reason"]) == ("Waiting", "Unschedulable")
    assert waits["message"] == "no place beside the others: it waits for them"
    assert any("eagle/7: no place beside the others" in event.message for event in world.said)
    world.turn()
    assert running(world) == ["none", "eagle/2"], "not again at once"
    world.status["points"] = []
    measured(world, {"none": pods["none"]})
    assert running(world) == ["eagle/2"]
    measured(world, {"eagle/2": pods["eagle/2"]})
    assert running(world) == ["eagle/7"]
    measured(world, placed(world, "eagle/7"))
    assert running(world) == sorted(SECOND, key=[*LAWS, *SECOND].index)


def test_without_any_place_one_pod_alone_waits_for_its_deadline():
    world = started()
    world.turn(130)
    assert running(world) == ["none"]
    world.turn(100)
    assert running(world) == ["none"]
    world.turn(100)
    assert (world.status["phase"], world.status["reason"]) == ("Failed", "Unschedulable")
    assert not world.jobs


def test_an_engine_that_fails_takes_its_own_arm_alone():
    world = started()
    pods = placed(world, "none", "eagle/2")
    broken = world.place_pod(job=job_of(world, "eagle/7"))
    died = {"exitCode": 1, "finishedAt": timestamp(world.now), "message": "ValueError: no such drafter"}
    broken["status"]["initContainerStatuses"][0]["state"] = {"terminated": died}
    world.turn()
    assert world.arm_status("eagle/7")["phase"] == "Failed"
    assert running(world) == ["none", "eagle/2"], "its GPU is free at once"
    measured(world, pods)
    assert running(world) == ["eagle/2/again", "none/again"]
    assert world.arm_status("eagle/7/again")["phase"] == "Skipped"
    measured(world, placed(world, "eagle/2/again", "none/again"), 2)
    assert world.status["message"].startswith("fitting no speculation, eagle/2; without eagle/7")


def test_no_speculation_that_fails_without_a_point_ends_the_run():
    world = started()
    placed(world, "eagle/2", "eagle/7")
    broken = world.place_pod(job=job_of(world, "none"))
    died = {"exitCode": 1, "finishedAt": timestamp(world.now), "message": "ValueError: no"}
    broken["status"]["initContainerStatuses"][0]["state"] = {"terminated": died}
    world.turn()
    assert world.status["phase"] == "Failed"
    assert not world.jobs


def test_an_operator_that_is_killed_before_it_makes_the_jobs_makes_the_missing_ones():
    world = started(turns=1)
    actions = calibration.advance(world.view(), world.now)
    creates = [one for one in actions if isinstance(one, Create)]
    assert len(creates) == 3
    world.do(one for one in actions if one not in creates[1:])
    assert [one["phase"] for one in world.status["armStatuses"][:3]] == ["Starting"] * 3
    assert running(world) == ["none"]
    world.turn()
    assert running(world) == list(LAWS)
    assert [one["attempts"] for one in world.status["armStatuses"][:3]] == [1, 2, 2]
    measured(world, placed(world, *LAWS))
    assert len(running(world)) == 3


def refuse(world: World, arm: str) -> None:
    """One cycle in which the API server takes no Job of an arm, so nothing that stands behind it either."""
    world.now += timedelta(seconds=15)
    before, view = world.status, world.view()
    actions = calibration.advance(view, world.now)
    for done, action in enumerate(actions):
        if isinstance(action, Create) and action.body["metadata"]["name"] == job_name("chat-7f3c2", arm):
            world.do(actions[:done])
            world.run["status"] = before
            write = RefusedWrite(
                "run-uid",
                action,
                True,
                "exceeded quota: jobs",
                1,
                world.now,
                world.now + timedelta(seconds=15),
            )
            world.do(calibration.refused(view, write, world.now))
            return
    raise AssertionError(actions)


def test_a_quota_of_jobs_lets_the_arms_that_have_theirs_go_on_and_the_others_come_later():
    world = started(turns=1)
    refuse(world, "eagle/2")
    assert running(world) == ["none"]
    first = job_of(world, "none")["metadata"]["uid"]
    for arm in ("eagle/2", "eagle/7"):
        refuse(world, arm)
    for _ in range(3):
        world.turn()
    assert running(world) == ["none"]
    assert job_of(world, "none")["metadata"]["uid"] == first, "never made again"
    assert world.arm_status("eagle/7")["message"] == "no place beside the others: it waits for them"
    for arm in LAWS:
        measured(world, placed(world, arm))
    assert [one["phase"] for one in world.status["armStatuses"][:3]] == ["Done"] * 3


def test_a_job_that_no_arm_beside_it_has_either_ends_the_run_at_its_deadline():
    world = started(turns=1)
    refuse(world, "none")
    assert not world.jobs
    assert world.status["reason"] == "WriteRefused"


def test_an_operator_that_is_killed_before_it_takes_a_job_back_does_not_make_it_again_at_once():
    world = started()
    placed(world, "none", "eagle/2")
    world.now += timedelta(seconds=60)
    world.do(one for one in calibration.advance(world.view(), world.now) if not isinstance(one, Delete))
    assert running(world) == list(LAWS)
    for _ in range(2):
        world.turn()
    assert running(world) == ["none", "eagle/2"]


def test_a_crashed_engine_is_started_once_more_beside_the_others():
    world = started()
    pods = placed(world, *LAWS)
    world.store("eagle/2", 1)
    died = {"exitCode": 139, "finishedAt": timestamp(world.now), "message": "Segmentation fault"}
    pods["eagle/2"]["status"]["initContainerStatuses"][0]["state"] = {"terminated": died}
    world.turn()
    assert running(world) == ["none", "eagle/7"]
    world.turn()
    assert running(world) == list(LAWS)
    assert world.arm_status("eagle/2")["attempts"] == 2


def test_at_the_end_of_the_budget_all_pods_go_and_points_are_fitted():
    world = started(budget={"maxGpuSeconds": 3000, "maxDurationSeconds": 7200})
    placed(world, *LAWS)
    for arm, law in LAWS.items():
        world.store(arm, 4, *law)
    world.turn(600)
    assert not world.jobs
    assert [one["reason"] for one in world.status["armStatuses"][:3]] == ["BudgetExhausted"] * 3
    assert [one["phase"] for one in world.status["armStatuses"]] == ["Done"] * 3 + ["Skipped"] * 3
    assert len(world.fits) == 1


def test_a_schedule_is_measured_alone_between_the_two_starts():
    world = World(places=3)
    assert world.service is not None
    world.service["spec"]["candidates"]["methods"][0]["schedule"] = "Auto"
    world.service["spec"]["calibration"]["budget"] = {"maxGpuSeconds": 20000, "maxDurationSeconds": 20000}
    world.turn()
    world.turn()
    names = [one["arm"] for one in world.status["armStatuses"]]
    assert names == [*LAWS, "eagle/schedule", *SECOND]
    # A speculative arm whose steps grow dear with their drafts: a schedule is worth having.
    pods = placed(world, *LAWS)
    for arm, law in {"none": (1.2, 0.04), "eagle/2": (0.8, 0.05), "eagle/7": (0.5, 0.09)}.items():
        world.store(arm, 5, *law)
        world.finish_job(pods[arm], job_of(world, arm))
    world.turn(100)
    assert not running(world)
    world.answer_fit()
    world.turn()
    assert running(world) == ["eagle/schedule"]
    (job,) = [job for job in world.jobs.values() if job["metadata"]["labels"][ARM_LABEL] == "eagle-schedule"]
    (driver,) = job["spec"]["template"]["spec"]["containers"]
    trial = next(json.loads(one["value"]) for one in driver["env"] if one["name"] == "BREAKEVEN_TRIAL")
    assert "halved" not in trial


def test_answers_wait_with_their_jobs_for_the_second_start_of_no_speculation():
    world = started(answers={"check": "Warn", "maxSecondsPerArm": 60})
    measured(world, placed(world, *LAWS))
    pods = placed(world, *SECOND)
    measured(world, {arm: pods[arm] for arm in SECOND[:2]}, 2)
    assert {job["metadata"]["labels"][ARM_LABEL] for job in world.jobs.values()} == {
        "none", "eagle-2", "eagle-7", "none-again",
    }  # fmt: skip
    measured(world, {"none/again": pods["none/again"]}, 2)
    assert not world.jobs


@pytest.mark.parametrize("last", ["eagle/7", "eagle/adaptive"])
def test_an_arm_that_comes_after_those_beside_it_chooses_its_loads_by_their_points(last):
    world = World(places=3)
    assert world.service is not None
    if last == "eagle/adaptive":
        (method,) = world.service["spec"]["candidates"]["methods"]
        method |= {"draftLengths": [2], "adaptiveVerification": "Auto"}
    world.turn()
    world.turn()
    assert world.status["plan"]["podsAtOnce"] == 3
    for arm in ("none", "eagle/2"):
        world.store(arm, 3, *LAWS[arm])
    (driver,) = job_of(world, last)["spec"]["template"]["spec"]["containers"]
    text = next(one["value"] for one in driver["env"] if one["name"] == "BREAKEVEN_TRIAL")
    env = {"TRIAL": text, "NAMESPACE": "llm", "URL": "http://x", "NODE": "n0", "JOB_UID": "u"}
    trial = TrialEnvironment.read({f"BREAKEVEN_{name}": value for name, value in env.items()})
    own = trial.sweep.arms[0]

    def sweep_now() -> Sweep:
        run = CalibrationRun.read(world.run, "run")
        return sweep_of_start(trial, run, PointStore(trial, StoredRun(world.run)))[0]

    beside = sweep_now()
    assert len(beside.arms) == 3
    assert own in beside.arms
    assert not beside.others
    for arm in ("none", "eagle/2"):
        world.arm_status(arm)["phase"] = "Done"
    late = sweep_now()
    assert late.arms == (own,)
    assert len(late.others) == 6
