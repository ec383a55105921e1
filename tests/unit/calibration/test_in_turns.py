"""Arms in turns, A B C, B A: what each start measures, when an arm has no second one, and what second starts are worth."""

from __future__ import annotations

import math
from typing import Any

import pytest

from breakeven.arm import Arm
from breakeven.profile import Profile
from breakeven_operator import calibration
from breakeven_operator.calibration.jobs import job_name
from breakeven_operator.calibration.transition import seconds_left
from breakeven_operator.kinds import ARM_LABEL
from breakeven_operator.resources.calibrationrun import CalibrationRun
from fakes.calibration_world import World, fitted, schedule_before_lookup

LAWS = {"none": (1.2, 0.060), "eagle/2": (0.9, 0.055), "eagle/7": (0.5, 0.045)}
AGAIN, SEVEN = "eagle/2/again", Arm("eagle3", 7, "eagle")
ONE_BY_ONE = "one after the other, because loads or budget have no room for two starts"


def started(answers: bool = False, **changes: Any) -> World:
    """A run that has its plan; `changes` are fields of the service's calibration."""
    world = World()
    assert world.service is not None
    if answers:
        changes |= {"answers": {"check": "Warn", "maxSecondsPerArm": 90}}
    world.service["spec"]["calibration"] |= changes
    world.turn()
    return world


def first_starts(world: World, arms: int = 3) -> World:
    """The first starts of so many arms, up to the start of the trial after them."""
    world.turn()
    for name in list(LAWS)[:arms]:
        assert world.measure_arm(c1_s=LAWS[name][0], c2_s=LAWS[name][1]) == name
        world.turn()
    return world


def names(world: World) -> list[str]:
    return [one["arm"] for one in world.status["armStatuses"]]


def test_each_first_start_but_the_last_leaves_loads_to_the_second_one():
    world = started()
    assert world.status["message"].startswith(
        "arms no speculation, eagle/2, eagle/7 in turns, all but the last in two starts; 5 loads each;"
    )
    world.turn()
    halved = {}
    for name in ("none", "eagle/2", "eagle/7", AGAIN, "none/again"):
        halved[name] = world.trial.get("halved", False)
        assert world.trial["plan"]["loads"] == 5, "the second start goes on with the same loads"
        assert world.trial["arm"]["arm"] == name
        assert world.job["metadata"]["name"] == job_name("chat-7f3c2", name)
        assert world.status["display"]["arm"] == name
        world.measure_arm()
        world.turn()
    assert halved == {"none": True, "eagle/2": True, "eagle/7": False, AGAIN: False, "none/again": False}


def test_a_second_start_runs_its_arm_and_its_points_are_of_the_same_arm():
    world = first_starts(started())
    assert (world.trial["arm"]["arm"], world.trial["arm"]["k"], world.trial["arm"]["candidate"]) == (
        AGAIN,
        2,
        "eagle",
    )
    assert "halved" not in world.trial
    world.second_starts(laws={"none": LAWS["none"], "eagle/2": (0.9 * 1.15, 0.055 * 1.15)})
    assert [world.arm_status(arm)["phase"] for arm in (AGAIN, "none/again")] == ["Done", "Done"]
    assert world.status["phase"] == "Fitting"
    outcome = fitted(world.fits[-1].points_csv)
    profile = Profile.from_json(outcome.profile_json or "")
    assert profile.arm(Arm("eagle3", 2, "eagle")).points == 7
    assert profile.starts is not None
    none, two, seven = profile.starts.arms
    assert (none.number, none.apart) == (2, pytest.approx(0.0, abs=0.005))
    assert (two.number, two.apart) == (2, pytest.approx(math.log(1.15), rel=0.1))
    assert seven.number == 1
    world.do(calibration.conclude(world.view(), outcome, world.now))
    (made,) = world.profiles
    assert [one["arm"] for one in made["spec"]["arms"]] == list(LAWS), "a second start is no arm"


def test_the_name_of_a_second_start_fits_into_a_label_and_a_job():
    world = started()
    assert world.service is not None
    world = World()
    assert world.service is not None
    name = "a" * 24
    world.service["spec"]["candidates"]["methods"][0] |= {"name": name, "draftLengths": [16]}
    world.service["spec"]["candidates"]["methods"][0].pop("schedule")
    world.run["metadata"]["name"] = "r" * 60
    world.turn()
    assert names(world)[-2:] == [f"{name}/16/again", "none/again"]
    world.turn()
    for _ in range(2):
        world.measure_arm(c1_s=1.0)
        world.turn()
    for job in world.jobs.values():
        assert len(job["metadata"]["name"]) <= 57
        assert len(job["metadata"]["labels"][ARM_LABEL]) <= 63


@pytest.mark.parametrize(
    ("changes", "arms"),
    [
        ({"loads": 3}, list(LAWS)),
        ({"budget": {"maxGpuSeconds": 800, "maxDurationSeconds": 7200}}, list(LAWS)),
        ({"budget": {"maxGpuSeconds": 6000, "maxDurationSeconds": 400}}, list(LAWS)),
        ({"loads": 3, "answers": {"check": "Warn"}}, [*LAWS, "none/again"]),
    ],
    ids=["too few loads", "GPU seconds", "time", "answers are judged all the same"],
)
def test_without_room_for_two_starts_the_arms_come_one_after_the_other_and_the_run_says_so(changes, arms):
    world = started(**changes)
    assert names(world) == arms
    assert ONE_BY_ONE in world.status["message"]
    assert any(ONE_BY_ONE in event.message for event in world.said)
    world.turn()
    assert "halved" not in world.trial


def test_starts_that_turn_out_longer_than_the_budget_end_the_turns_before_the_next_arm():
    """No speculation took 900 s to start: two more such starts fit into the budget, four do not."""
    world = started(budget={"maxGpuSeconds": 6000, "maxDurationSeconds": 7200}, startupDeadlineSeconds=1800)
    world.turn()
    pod = world.place_pod()
    world.turn(900)
    world.start_driver(pod)
    world.turn()
    world.store("none", 3)
    world.turn(75)
    world.finish_job(pod)
    world.turn()
    assert world.status["message"].startswith(
        "eagle/2: the engine starts; one after the other from here: arms in turns take "
    )
    assert "halved" not in world.trial
    skipped = world.arm_status(AGAIN)
    assert (skipped["phase"], skipped["reason"]) == ("Skipped", "ArmSkipped")
    assert skipped["message"].endswith(" left")
    said = [event.message for event in world.said if event.message.startswith("one after the other")]
    assert said == [skipped["message"]]
    assert world.arm_status("none/again")["phase"] == "Waiting", "no speculation has its other loads to come"
    world.jobs.clear()  # the operator died, or somebody took the Job away
    world.turn()
    assert "halved" not in world.trial
    assert len([one for one in world.said if one.message == skipped["message"]]) == 1


def test_a_second_start_for_which_the_budget_has_no_room_any_more_is_skipped():
    world = first_starts(started())
    used = float(world.status["gpuSecondsUsed"])
    world.jobs.clear()
    del world.status["armStatuses"][3]["job"]
    # Two GPUs; an engine start of a minute and three points of 3 s.
    for left, phase in ((130, "Skipped"), (145, "Starting")):
        world.status["armStatuses"][3] |= {"phase": "Waiting", "attempts": 0}
        world.status["plan"]["budget"] = {"maxGpuSeconds": int(used) + left, "maxDurationSeconds": 7200}
        world.do(calibration.advance(world.view(), world.now))
        assert world.arm_status(AGAIN)["phase"] == phase, left
        if phase == "Skipped":
            assert world.arm_status(AGAIN)["message"] == "second starts take 69s, and the budget has 65s left"
            world.jobs.clear()


def test_a_budget_that_ends_in_the_second_pass_keeps_what_was_measured():
    world = first_starts(started(answers=False))
    world.place_pod()
    world.turn(4000)
    assert world.arm_status(AGAIN)["phase"] == "Failed"
    last = world.arm_status("none/again")
    assert (last["phase"], last["reason"]) == ("Skipped", "ArmSkipped")
    assert "GPU-seconds" in last["message"]
    assert world.status["phase"] == "Fitting"
    assert "fitting no speculation, eagle/2, eagle/7; without eagle/2/again" in world.status["message"]


def test_a_second_start_that_fails_takes_no_measurement_away():
    world = first_starts(started())
    world.fail_job(message="the node is gone")
    world.turn()
    assert (world.arm_status(AGAIN)["phase"], world.arm_status(AGAIN)["reason"]) == ("Failed", "DriverFailed")
    world.second_starts(laws=LAWS)
    assert world.arm_status("none/again")["phase"] == "Done"
    assert world.status["phase"] == "Fitting"
    outcome = fitted(world.fits[-1].points_csv)
    world.do(calibration.conclude(world.view(), outcome, world.now))
    assert world.status["phase"] == "Succeeded"


def test_nothing_starts_twice_if_there_are_no_two_arms_to_compare():
    world = first_starts(started(answers=True), 1)
    for _ in range(2):
        (name,) = (one["arm"] for one in world.status["armStatuses"] if one["phase"] == "Starting")
        others = {key: world.jobs.pop(key) for key in list(world.jobs) if key != job_name("chat-7f3c2", name)}
        world.fail_job(message="out of memory")
        world.jobs |= others
        world.turn()
    assert world.arm_status("none/again")["reason"] == "AnswersNotJudged"
    assert world.arm_status(AGAIN)["reason"] == "ArmSkipped"
    assert (world.status["phase"], world.jobs) == ("Failed", {})


def test_an_arm_taken_out_between_its_starts_is_not_started_again():
    world = first_starts(started(), 2)
    assert world.service is not None
    world.service["spec"]["candidates"]["methods"][0]["draftLengths"] = [7]
    world.measure_arm(c1_s=0.5, c2_s=0.045)
    world.turn()
    assert (world.arm_status(AGAIN)["phase"], world.arm_status(AGAIN)["reason"]) == (
        "Skipped",
        "CandidatesChanged",
    )
    assert world.trial["arm"]["arm"] == "none/again"


def test_an_operator_that_dies_goes_on_in_any_pass():
    world = started()
    world.turn()
    for name in names(world):
        halved = world.trial.get("halved", False)
        world.jobs.clear()
        world.turn()
        assert (world.trial["arm"]["arm"], world.trial.get("halved", False)) == (name, halved)
        assert world.arm_status(name)["attempts"] == 2
        world.measure_arm()
        world.turn()
    assert world.status["phase"] == "Fitting"


def test_a_crash_in_the_second_pass_is_tried_once_more():
    world = first_starts(started())
    pod = world.place_pod()
    world.turn(60)
    world.start_driver(pod)
    world.turn()
    ended = {"terminated": {"exitCode": 1, "finishedAt": "2026-11-21T03:20:00Z"}}
    pod["status"]["initContainerStatuses"][0]["state"] = ended
    world.turn()
    assert (world.arm_status(AGAIN)["phase"], world.jobs) == ("Starting", {})
    world.turn()
    assert world.trial["arm"]["arm"] == AGAIN


def test_a_target_that_is_deleted_in_the_second_pass_ends_the_run():
    world = first_starts(started())
    world.target = None
    assert world.turn()["reason"] == "TargetNotFound"
    assert not world.jobs


def test_a_schedule_that_is_not_the_last_arm_starts_again_with_its_table():
    world = schedule_before_lookup()
    world.turn()
    for law in ((1.2, 0.060), (0.9, 0.072), (0.7, 0.110)):
        world.turn()
        world.measure_arm(c1_s=law[0], c2_s=law[1])
    world.turn()
    world.answer_fit()
    world.turn()
    table = world.arm_status("eagle/schedule")["schedule"]
    assert world.trial["halved"]
    for name in ("eagle/schedule", "lookup/4"):
        assert world.measure_arm(c1_s=0.7, c2_s=0.065) == name
        world.turn()
    assert world.trial["arm"]["arm"] == "eagle/schedule/again"
    assert world.measured_table() == table


def test_second_starts_count_in_points_and_in_the_time_left():
    world = first_starts(started())
    status = CalibrationRun.read(world.run, "run").status
    assert status.plan is not None
    # Five points of each first start, then twice two loads and one once more.
    assert status.planned_points == 5 * 3 + 2 * 3
    # A start took 60 s, and a load 3.
    assert seconds_left(status, status.plan, world.now) == pytest.approx(2 * 60 + 6 * 3)
