"""The arm that would win starts once more: which one that is, when none does, and what its second start is worth."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.load_driver.design import LOADS_AGAIN
from breakeven.load_driver.question import EXPECTED_SHARES
from breakeven.profile import Comparison, Profile
from breakeven.reasons import Reason
from breakeven_operator import calibration
from breakeven_operator.actions import Create, Fit, FitOutcome
from breakeven_operator.calibration.run_plan import trial_limits
from breakeven_operator.calibration.transition import seconds_left
from breakeven_operator.resources.calibrationrun import CalibrationRun
from fakes.calibration_world import World, fitted

# C1, C2 (s): the long drafts win at every load.
LAWS = {"none": (1.2, 0.060), "eagle/2": (0.9, 0.055), "eagle/7": (0.5, 0.045)}
SLOWER = {"none": (0.9, 0.050), "eagle/2": (1.2, 0.070), "eagle/7": (1.6, 0.090)}
AGAIN, SEVEN = "winner/again", Arm("eagle3", 7, "eagle")


def first_starts(laws: Mapping[str, tuple[float, float]], check: str = "Warn") -> World:
    """A run whose arms are measured, and whose judge starts."""
    world = World()
    assert world.service is not None
    world.service["spec"]["calibration"]["answers"] = {"check": check, "maxSecondsPerArm": 90}
    world.turn()
    world.turn()
    for name, (c1_s, c2_s) in laws.items():
        world.measure_beside(name, 5, c1_s=c1_s, c2_s=c2_s)
    return world


def measured(laws: Mapping[str, tuple[float, float]] = LAWS, check: str = "Warn") -> World:
    """A run whose arms and whose judge are measured."""
    world = first_starts(laws, check)
    world.measure_beside("none/judge", 2, c1_s=laws["none"][0], c2_s=laws["none"][1])
    return world


def latency_s(law: tuple[float, float], rps: float) -> float:
    """Mean latency (s) by the law that the fake measures."""
    return law[0] / (1 - rps * law[1])


def gain_of(profile: Profile, rps: float) -> Comparison:
    return profile.compare(SEVEN, NO_SPECULATION, rps=rps)


def status_of(world: World, arm: str = AGAIN) -> dict:
    return world.arm_status(arm)


def test_the_arm_that_would_win_starts_again_after_the_judge_and_its_points_are_of_the_same_arm():
    world = measured()
    (fit,) = world.fits
    assert fit.settles == AGAIN
    assert not world.jobs
    world.answer_fit()
    chosen = status_of(world)
    assert chosen["repeats"] == "eagle/7"
    won, loads = chosen["message"].split(": ")
    assert won == "eagle/7 would win at 5 of 5"
    saturation_rps = 1 / LAWS["none"][1]
    shown = [float(load) for load in loads.removesuffix(" requests/s per replica").split(", ")]
    assert shown == pytest.approx([share * saturation_rps for share in EXPECTED_SHARES], rel=0.1)
    assert not world.jobs, "the choice is durable before the Job"
    assert [(event.reason, event.message) for event in world.said][-1] == (
        "CalibrationRunning",
        chosen["message"],
    )
    world.turn()
    trial = world.trial["arm"]
    assert (trial["arm"], trial["k"], trial["candidate"]) == (AGAIN, 7, "eagle")
    assert json.loads(trial["speculativeConfig"])["num_speculative_tokens"] == 7
    assert world.status["display"]["arm"] == "eagle/7 again"
    world.measure_beside(AGAIN, 2, c1_s=0.575, c2_s=0.05175)
    assert (status_of(world)["phase"], status_of(world)["reason"]) == ("Done", "ArmMeasured")
    assert world.status["phase"] == "Fitting"
    assert world.fits[-1].settles == ""
    outcome = fitted(world.fits[-1].points_csv)
    profile = Profile.from_json(outcome.profile_json or "")
    assert profile.arm(SEVEN).points == 7
    assert profile.starts is not None
    assert profile.starts.differences == 2
    none, _, seven = profile.starts.arms
    assert (none.number, none.apart) == (2, pytest.approx(0.0, abs=0.005))
    assert (seven.number, seven.apart) == (2, pytest.approx(math.log(1.15), rel=0.1))
    world.do(calibration.conclude(world.view(), outcome, world.now))
    (made,) = world.profiles
    assert [one["arm"] for one in made["spec"]["arms"]] == list(LAWS), "the second start is no arm"


def test_an_operator_that_dies_goes_on_with_the_arm_that_is_written():
    world = measured()
    world.turn()
    assert [fit.settles for fit in world.fits] == [AGAIN] * 2, "it died before the choice was written"
    world.answer_fit()
    actions = calibration.advance(world.view(), world.now)
    assert not any(isinstance(action, Fit) for action in actions)
    world.do(actions)
    world.jobs.clear()  # it died before the Job was made, or somebody took the Job away
    # By other points another arm would win now.
    for point in world.status["points"]:
        if point["arm"] == "eagle/2":
            point["meanLatencyS"] = "0.1"
    world.turn()
    assert world.trial["arm"]["k"] == 7
    assert len(world.fits) == 2


def test_without_an_arm_that_would_win_nothing_starts_and_the_word_says_so():
    world = measured(SLOWER)
    world.answer_fit()
    skipped = status_of(world)
    assert (skipped["phase"], skipped["reason"]) == ("Skipped", "ArmSkipped")
    assert skipped["message"].startswith("no arm would win over no speculation at ")
    assert not world.jobs
    assert world.status["phase"] == "Fitting"
    assert "winner/again (ArmSkipped)" in world.status["message"]
    said = [event for event in world.said if event.reason == "ArmSkipped"]
    assert [(event.message, event.warning) for event in said] == [(f"{AGAIN}: {skipped['message']}", False)]
    world.do(calibration.advance(world.view(), world.now))
    assert len([event for event in world.said if event.reason == "ArmSkipped"]) == 1
    actions = calibration.conclude(world.view(), fitted(world.fits[-1].points_csv), world.now)
    (made,) = [action for action in actions if isinstance(action, Create)]
    assert [one["arm"] for one in made.body["spec"]["arms"]] == list(LAWS)


def test_a_budget_without_room_for_a_start_and_its_loads_skips_it():
    world = measured()
    used = float(world.status["gpuSecondsUsed"])
    # Two GPUs; an engine start of a minute and two points of 85 s.
    plan = world.status["plan"]
    world.status["plan"] = plan | {"budget": {"maxGpuSeconds": int(used) + 440, "maxDurationSeconds": 7200}}
    world.turn()
    skipped = status_of(world)
    assert (skipped["phase"], skipped["reason"]) == ("Skipped", "ArmSkipped")
    assert skipped["message"] == "it takes 4m, and the budget has 4m left"
    assert world.status["phase"] == "Fitting"
    assert not world.jobs
    world = measured()
    plan = world.status["plan"]
    world.status["plan"] = plan | {"budget": {"maxGpuSeconds": int(used) + 480, "maxDurationSeconds": 7200}}
    world.answer_fit()
    assert status_of(world)["repeats"] == "eagle/7"


def test_a_budget_that_ends_before_its_turn_skips_it_and_has_not_failed_it():
    world = first_starts(LAWS)
    used = float(world.status["gpuSecondsUsed"])
    world.status["plan"] |= {"budget": {"maxGpuSeconds": int(used) - 1, "maxDurationSeconds": 7200}}
    world.turn()
    assert status_of(world, "none/judge")["reason"] == "BudgetExhausted"
    assert (status_of(world)["phase"], status_of(world)["reason"]) == ("Skipped", "ArmSkipped")
    assert "GPU-seconds" in status_of(world)["message"]
    assert world.status["phase"] == "Fitting"


def test_second_starts_have_the_time_of_a_few_loads_and_count_so_in_the_time_left():
    world = measured()
    status = CalibrationRun.read(world.run, "run").status
    assert status.plan is not None
    point_s = status.plan.point_seconds + status.plan.warmup_seconds + 60
    last = len(status.plan.arms) - 1
    limits = trial_limits(status.plan, status.arm_statuses, last, 0.0, 0.0)
    # Two loads, and three to measure again; no answers are asked for.
    assert limits.sweep_s == (LOADS_AGAIN + 3) * point_s
    assert limits.active_s == 300 + 600 + limits.sweep_s + 60
    waits = status.replace(phase=None, gpu_seconds_used=0.0)
    more = status.plan.replace(loads=2 * status.plan.loads)
    left_s = seconds_left(waits, status.plan, world.now)
    assert 0 < left_s == seconds_left(waits, more, world.now), "loads of the arms are measured"
    assert status.planned_points == 5 * 3 + 2 + LOADS_AGAIN


def test_an_arm_that_may_not_be_entered_for_its_answers_is_not_started_again():
    world = measured(check="Require")
    world.status["answers"] = [
        {"arm": "eagle/2", "word": str(Reason.ANSWERS_AGREE)},
        {"arm": "eagle/7", "word": str(Reason.ANSWERS_BROKEN)},
    ]
    world.answer_fit()
    assert status_of(world)["repeats"] == "eagle/2"


def test_the_expected_loads_of_the_service_choose():
    crossing = {"none": (1.2, 0.040), "eagle/2": (1.0, 0.044), "eagle/7": (0.7, 0.100)}
    chosen = {}
    for loads in ("1", "9"):
        world = measured(crossing)
        world.status["plan"]["expectedRps"] = [loads]
        world.answer_fit()
        chosen[loads] = status_of(world).get("repeats")
    assert chosen["1"] == "eagle/7"
    assert chosen["9"] != "eagle/7"


def test_an_arm_taken_out_after_it_was_chosen_is_not_started_again():
    world = measured()
    world.answer_fit()
    assert world.service is not None
    world.service["spec"]["candidates"]["methods"][0]["draftLengths"] = [2]
    world.turn()
    assert (status_of(world)["phase"], status_of(world)["reason"]) == ("Skipped", "CandidatesChanged")
    assert not world.jobs


def test_a_schedule_that_wins_is_started_again_with_its_table():
    world = measured()
    run = CalibrationRun.read(world.run, "run").status
    assert run.plan is not None
    table = "1-8:7,9-:2"
    winner = next(arm for arm in run.plan.arms if arm.arm == "eagle/7").replace(arm="eagle/schedule")
    plan = run.plan.replace(arms=(*run.plan.arms[:-1], winner, run.plan.arms[-1]))
    world.status["plan"] = plan.to_json_object()
    done = {"arm": "eagle/schedule", "phase": "Done", "schedule": table}
    again = {"arm": AGAIN, "phase": "Waiting", "repeats": "eagle/schedule"}
    world.status["armStatuses"] = [*world.status["armStatuses"][:-1], done, again]
    world.turn()
    assert world.measured_table() == table
    assert world.trial["arm"]["arm"] == AGAIN


def test_a_second_start_that_fails_takes_no_measurement_away():
    world = measured()
    world.answer_fit()
    world.turn()
    world.fail_job(message="the node is gone")
    world.turn()
    assert status_of(world)["phase"] == "Failed"
    assert world.status["phase"] == "Fitting"
    assert len(world.fits) == 2


def test_a_fit_that_fails_chooses_none_with_its_words():
    world = measured()
    world.answer_fit(FitOutcome(None, "no row is usable"))
    assert (status_of(world)["reason"], status_of(world)["message"]) == (
        "ArmSkipped",
        "no row is usable",
    )


def test_without_a_law_of_no_speculation_nothing_is_started_again():
    world = measured()
    rows = world.fits[-1].points_csv.splitlines()
    world.answer_fit(fitted("\n".join(row for row in rows if "none" not in row)))
    assert status_of(world)["message"] == "no speculation has no law to compare with"


def test_the_luck_for_which_an_arm_was_chosen_is_halved_by_its_second_start_and_in_the_bounds():
    """Two arms are equally fast; starts scatter by 5 %, and one arm was lucky with its first."""
    true, rps, scatter = (0.9, 0.050), 6.0, 0.05
    lucky = measured({"none": LAWS["none"], "eagle/2": true, "eagle/7": (true[0] * 0.95, true[1] * 0.95)})
    chosen_on = gain_of(Profile.from_json(fitted(lucky.fits[-1].points_csv).profile_json or ""), rps)
    lucky.answer_fit()
    assert status_of(lucky)["repeats"] == "eagle/7", "chosen for its luck"
    speedup = latency_s(LAWS["none"], rps) / latency_s(true, rps)
    estimates = []
    for luck in (-scatter, 0.0, scatter):
        world = copy.deepcopy(lucky)
        world.turn()
        world.measure_beside(AGAIN, 2, c1_s=true[0] * (1 + luck), c2_s=true[1] * (1 + luck))
        found = gain_of(Profile.from_json(fitted(world.fits[-1].points_csv).profile_json or ""), rps)
        estimates.append(found)
    too_much = math.log(chosen_on.speedup / speedup)
    assert too_much > scatter
    kept = sum(math.log(one.speedup / speedup) for one in estimates) / len(estimates)
    assert kept == pytest.approx(too_much / 2, rel=0.35)
    for one in estimates[1:]:
        lower, upper = one.speedup_ci
        assert lower < speedup < upper
