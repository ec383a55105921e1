"""A schedule as an arm of a run: made from the arms before it, written down, measured, and ended with a word where it cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.points.point import LoadMode, Point
from breakeven.profile import Profile
from breakeven.tiers import Schedule
from breakeven_operator import calibration
from breakeven_operator.actions import Create, Fit, FitOutcome
from breakeven_operator.calibration.podcopy import ENGINE
from breakeven_operator.calibration.schedule_making import (
    ASSUMED_ZERO_DRAFT_TAX,
    drafted,
    ignored,
    zero_draft_tax,
)
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.workloads.target import Refusal
from fakes import scheduled_points
from fakes.calibration_world import World, fitted, schedule_before_lookup
from fakes.lawful_profile import lawful_profile_json

# C1, C2 (s): the short drafts lose least per request in flight, the long ones win alone; each is best somewhere.
LAWS = {"none": (1.2, 0.060), "eagle/2": (0.9, 0.072), "eagle/7": (0.7, 0.110)}
# The long drafts are best wherever they are measured.
ONE_LENGTH = {"none": (1.2, 0.060), "eagle/2": (0.9, 0.050), "eagle/7": (0.5, 0.020)}
TWO, SEVEN = Arm("eagle3", 2, "eagle"), Arm("eagle3", 7, "eagle")


@pytest.fixture
def scheduled() -> World:
    world = World()
    assert world.service is not None
    del world.service["spec"]["candidates"]["methods"][0]["schedule"]
    world.turn()
    return world


def measure_lengths(world: World, laws: dict[str, tuple[float, float]] | None = None) -> None:
    """Measure the arms of one draft length each, up to the cycle that looks at what comes after them."""
    laws = laws or LAWS
    for name, (c1_s, c2_s) in laws.items():
        world.turn()
        assert world.measure_arm(c1_s=c1_s, c2_s=c2_s) == name
    world.turn()


def arm(world: World, name: str = "eagle/schedule"):
    return world.arm_status(name)


def first_starts(world: World) -> list[str]:
    names = [each["arm"] for each in world.status["armStatuses"]]
    return [name for name in names if not name.endswith("/again")]


def engine_config(world: World):
    """The speculative configuration of the trial pod's engine."""
    engine = next(c for c in world.job["spec"]["template"]["spec"]["initContainers"] if c["name"] == ENGINE)
    return json.loads(engine["args"][-1].partition("=")[2] or engine["args"][-1])


def test_a_schedule_is_made_from_its_method_s_arms_written_down_and_measured_after_them(scheduled):
    assert [each["arm"] for each in scheduled.status["armStatuses"]] == [
        "none",
        "eagle/2",
        "eagle/7",
        "eagle/schedule",
        "eagle/7/again",
        "eagle/2/again",
        "none/again",
    ]
    assert "schedule" not in arm(scheduled)
    measure_lengths(scheduled)
    (fit,) = scheduled.fits
    assert fit.settles == "eagle/schedule"
    assert not scheduled.jobs
    scheduled.answer_fit()
    table = arm(scheduled)["schedule"]
    found = Schedule.parse(table, "status")
    assert len(found.tiers) > 1
    assert found.at(1) > found.at(200)
    assert not scheduled.jobs, "the table is durable before the Job"
    assert (scheduled.said[-1].reason, scheduled.said[-1].warning) == ("CalibrationRunning", False)
    assert scheduled.said[-1].message == f"eagle/schedule: {table}, by the costs of steps"
    scheduled.turn()
    config = engine_config(scheduled)
    assert config["num_speculative_tokens"] == found.num_speculative_tokens
    assert config["num_speculative_tokens_per_batch_size"] == [list(one) for one in found.ranges(1024)]
    assert (config["method"], config["model"]) == ("eagle3", "org/eagle")
    assert scheduled.measured_table() == table
    assert scheduled.trial["arm"]["k"] == found.num_speculative_tokens
    assert "halved" not in scheduled.trial, "it is measured in the middle, in one start"
    assert scheduled.measure_arm(c1_s=0.7, c2_s=0.065) == "eagle/schedule"
    scheduled.turn()
    scheduled.second_starts(laws=LAWS)
    assert scheduled.status["phase"] == "Fitting"
    rows = scheduled.fits[-1].points_csv.splitlines()
    assert scheduled.fits[-1].settles == ""
    assert sum(f'"{table}"' in row for row in rows) == 5
    assert arm(scheduled)["phase"] == "Done"


def test_an_operator_that_dies_before_the_job_goes_on_with_the_table_that_is_written(scheduled):
    measure_lengths(scheduled)
    scheduled.answer_fit()
    table = arm(scheduled)["schedule"]
    fits = len(scheduled.fits)
    actions = calibration.advance(scheduled.view(), scheduled.now)
    assert not any(isinstance(action, Fit) for action in actions)
    scheduled.do(actions)
    scheduled.jobs.clear()  # it died before the Job was made, or somebody took the Job away
    scheduled.turn()
    assert scheduled.measured_table() == table == arm(scheduled)["schedule"]
    assert len(scheduled.fits) == fits


def test_an_operator_that_dies_before_the_table_is_written_makes_it_once_more(scheduled):
    measure_lengths(scheduled)
    scheduled.turn()
    assert [fit.settles for fit in scheduled.fits] == ["eagle/schedule"] * 2
    assert scheduled.fits[0].points_csv == scheduled.fits[1].points_csv


def test_one_draft_length_that_is_best_everywhere_is_no_arm_of_its_own(scheduled):
    measure_lengths(scheduled, ONE_LENGTH)
    scheduled.answer_fit()
    status = arm(scheduled)
    assert (status["phase"], status["reason"]) == ("Skipped", "ArmSkipped")
    assert status["message"].startswith("draft length ")
    scheduled.second_starts(laws=ONE_LENGTH)
    assert scheduled.status["phase"] == "Fitting"
    assert "without eagle/schedule (ArmSkipped)" in scheduled.status["message"]
    actions = calibration.conclude(scheduled.view(), fitted(scheduled.fits[-1].points_csv), scheduled.now)
    (made,) = [action for action in actions if isinstance(action, Create)]
    shown = next(each for each in made.body["spec"]["arms"] if each["arm"] == "eagle/schedule")
    assert (shown["points"], shown["reason"]) == (0, "ArmSkipped")


@pytest.mark.parametrize("arguments", [["--data-parallel-size=2"], ["-dp", "2"]])
def test_an_engine_that_would_not_follow_a_schedule_is_not_started_with_one(scheduled, arguments):
    world = World()
    assert world.service is not None
    assert world.target is not None
    del world.service["spec"]["candidates"]["methods"][0]["schedule"]
    world.target["spec"]["template"]["spec"]["containers"][0]["args"] += arguments
    world.turn()
    measure_lengths(world)
    assert (arm(world)["phase"], arm(world)["reason"]) == ("Skipped", "ScheduleIgnored")
    world.second_starts(laws=LAWS)
    assert world.status["phase"] == "Fitting"
    assert [fit.settles for fit in world.fits] == [""]


def test_an_engine_whose_drafts_show_that_it_does_not_follow_the_table_ends_that_arm_alone(scheduled):
    measure_lengths(scheduled)
    scheduled.answer_fit()
    table = Schedule.parse(arm(scheduled)["schedule"], "status")
    longest = table.num_speculative_tokens
    scheduled.turn()
    scheduled.measure_arm(c1_s=0.7, c2_s=0.2, drafted_per_step=float(longest))
    # Enough in flight that a fixed draft length shows.
    for point in scheduled.status["points"]:
        if point["arm"] == "eagle/schedule":
            point["meanInflight"] = "300"
    scheduled.turn()
    scheduled.second_starts(laws=LAWS)
    status = arm(scheduled)
    assert (status["phase"], status["reason"]) == ("Failed", "ScheduleIgnored")
    assert (
        f"{longest} tokens drafted per step at 300 requests in flight, where the schedule allows {table.at(300)}"
        in status["message"]
    )
    assert scheduled.status["phase"] == "Fitting"
    assert status["schedule"] not in scheduled.fits[-1].points_csv, "its points are those of another arm"


def test_an_engine_that_refuses_the_table_ends_that_arm_alone(scheduled):
    measure_lengths(scheduled)
    scheduled.answer_fit()
    scheduled.turn()
    pod = scheduled.place_pod()
    pod["status"]["initContainerStatuses"][0] |= {
        "restartCount": 1,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {
            "terminated": {
                "exitCode": 1,
                "reason": "Error",
                "message": "pydantic: 1 validation error for SpeculativeConfig num_speculative_tokens_per_batch_size",
            }
        },
    }
    scheduled.turn()
    scheduled.turn()
    scheduled.second_starts(laws=LAWS)
    assert (arm(scheduled)["phase"], arm(scheduled)["reason"]) == ("Failed", "EngineConfigRefused")
    assert scheduled.status["phase"] == "Fitting"
    assert (
        "fitting no speculation, eagle/2, eagle/7; without eagle/schedule (EngineConfigRefused)"
        in scheduled.status["message"]
    )


def test_without_a_draft_length_of_its_method_no_schedule_is_made(scheduled):
    scheduled.turn()
    scheduled.measure_arm()
    for _ in range(2):
        scheduled.turn()
        scheduled.measure_arm(points=0)
    scheduled.turn()
    assert (arm(scheduled)["phase"], arm(scheduled)["reason"]) == ("Skipped", "FitRejected")
    assert not scheduled.fits


def test_a_fit_without_an_answer_makes_no_schedule_and_the_others_stand(scheduled):
    measure_lengths(scheduled)
    scheduled.answer_fit(FitOutcome(None, "the fit did not end within 120 s"))
    assert (arm(scheduled)["phase"], arm(scheduled)["reason"]) == ("Skipped", "FitRejected")
    assert arm(scheduled)["message"] == "the fit did not end within 120 s"
    scheduled.second_starts(laws=LAWS)
    assert scheduled.status["phase"] == "Fitting"


def test_the_budget_counts_the_schedule_and_ends_before_it(scheduled):
    scheduled.turn()
    # A quarter of 6000 GPU-seconds on two GPUs each.
    assert scheduled.trial["maxSeconds"] <= 750
    scheduled.measure_arm()
    for law in ((0.9, 0.072), (0.7, 0.110)):
        scheduled.turn()
        scheduled.measure_arm(c1_s=law[0], c2_s=law[1])
    scheduled.turn(7000)
    assert (arm(scheduled)["phase"], arm(scheduled)["reason"]) == ("Failed", "BudgetExhausted")
    assert arm(scheduled, "eagle/7")["phase"] == "Done"
    assert [fit.settles for fit in scheduled.fits] == [""]


def test_skipping_a_schedule_is_said_beside_the_arm_before_it():
    world = schedule_before_lookup()
    world.turn()
    measure_lengths(world, ONE_LENGTH)
    world.answer_fit()
    world.turn()
    said = [(event.reason, event.message.partition(":")[0], event.warning) for event in world.said]
    assert ("ArmMeasured", "eagle/7", False) in said
    assert ("ArmSkipped", "eagle/schedule", False) in said


def test_a_run_by_hand_of_a_schedule_alone_measures_what_it_is_made_from():
    world = World()
    assert world.service is not None
    del world.service["spec"]["candidates"]["methods"][0]["schedule"]
    world.run["spec"]["arms"] = ["eagle/schedule"]
    world.turn()
    assert first_starts(world) == ["none", "eagle/2", "eagle/7", "eagle/schedule"]
    world = World()
    assert world.service is not None
    del world.service["spec"]["candidates"]["methods"][0]["schedule"]
    world.run["spec"]["arms"] = ["eagle/schedule", "eagle/7"]
    world.turn()
    assert first_starts(world) == ["none", "eagle/7", "eagle/schedule"]


@pytest.mark.parametrize("method", ["suffix", "custom_class"])
def test_a_method_that_vllm_does_not_schedule_has_no_such_arm(method):
    world = World()
    assert world.service is not None
    world.service["spec"]["candidates"]["methods"] = [
        {
            "name": "other",
            "method": method,
            "draftLengths": [4],
            "unknownMethod": "Allow",
            "adaptiveVerification": "Never",
        }
    ]
    world.turn()
    assert first_starts(world) == ["none", "other/4"]


def outcome(laws: dict[Arm, tuple[float, float]]) -> FitOutcome:
    return _outcome(tuple(laws.items()))


@cache
def _outcome(laws: tuple[tuple[Arm, tuple[float, float]], ...]) -> FitOutcome:
    text = lawful_profile_json(
        dict(laws), {arm: 2.0 for arm, _ in laws}, prompt_tokens=64.0, output_tokens=32.0, gpu="A100"
    )
    return FitOutcome(text, None)


def chosen(laws: dict[Arm, tuple[float, float]], tax: float, running: Schedule | None) -> Schedule:
    found = drafted(outcome(laws), "eagle", 256, tax, running)
    assert not isinstance(found, Refusal)
    return found[0]


def test_the_running_table_is_measured_again_unless_another_one_is_clearly_better():
    laws = {NO_SPECULATION: (1.2, 0.060), TWO: (0.9, 0.072), SEVEN: (0.7, 0.110)}
    best = chosen(laws, 0.1, None)
    (_, first), *rest = best.tiers
    near = Schedule(((1, first), *((batch + 1, k) for batch, k in rest)))
    far = Schedule(((1, 0), (2, 7)))
    assert chosen(laws, 0.1, near) == near
    assert chosen(laws, 0.1, far) == best


def fit_of(laws: dict[Arm, tuple[float, float]]) -> FitOutcome:
    """Of points that have time per token and acceptance, so that the costs of steps are known."""
    points = [point for arm in laws for point in scheduled_points.points(laws, arm)]
    return FitOutcome(fit_points(points).to_json(), None)


def test_a_schedule_drafts_less_among_more_requests():
    """Three drafts are best alone and none among many; the law of steps puts shorter ones between."""
    steep = drafted(fit_of(dict(scheduled_points.STEEP)), "eagle3", 256, 0.0, None)
    assert not isinstance(steep, Refusal)
    assert steep[1].endswith("by the costs of steps")
    lengths = [k for _, k in steep[0].tiers]
    assert lengths == sorted(lengths, reverse=True)
    assert (lengths[0], lengths[-1]) == (3, 0)


def test_without_a_law_of_its_method_no_schedule_is_made_and_that_is_said():
    made = drafted(outcome({NO_SPECULATION: (1.2, 0.060)}), "eagle", 256, 0.1, None)
    assert made == Refusal(ClusterReason.FIT_REJECTED, "eagle: no law of it, or none without speculation")


def test_a_dearer_tier_without_drafts_begins_later():
    laws = {NO_SPECULATION: (1.2, 0.060), TWO: (0.9, 0.072)}
    cheap, dear = (chosen(laws, tax, None) for tax in (0.0, 0.15))
    assert cheap.tiers[-1][1] == dear.tiers[-1][1] == 0
    assert cheap.tiers[-1][0] < dear.tiers[-1][0]


def with_schedule(tax: float, inflight: float) -> Profile:
    """A profile that measured a schedule whose tier without drafts begins at 9 requests and costs that much more."""
    laws = {NO_SPECULATION: (1.2, 0.060), TWO: (0.9, 0.072)}
    profile = Profile.from_json(outcome(laws).profile_json or "")
    two = profile.arm(TWO)
    others = inflight - 1.0
    point = replace(
        two.measurements[0],
        others=others,
        inflight=inflight,
        latency_s=(1.0 + tax) * (1.2 + 0.060 * others),
    )
    fit = replace(two, schedule="1-8:2,9-:0", measurements=(point, point))
    return replace(profile, arms=(*profile.arms, fit))


def test_the_tax_of_drafting_nothing_is_the_measured_one_where_a_schedule_showed_it():
    assert zero_draft_tax(with_schedule(0.2, 40.0), "eagle") == pytest.approx(0.2, abs=0.01)
    assert zero_draft_tax(with_schedule(0.2, 4.0), "eagle") == ASSUMED_ZERO_DRAFT_TAX, (
        "no point lies in that tier"
    )
    assert zero_draft_tax(with_schedule(0.2, 40.0), "lookup") == ASSUMED_ZERO_DRAFT_TAX
    adaptive = with_schedule(0.2, 40.0)
    own = tuple(replace(fit, schedule="adaptive") if fit.schedule else fit for fit in adaptive.arms)
    assert zero_draft_tax(replace(adaptive, arms=own), "eagle") == ASSUMED_ZERO_DRAFT_TAX
    assert zero_draft_tax(None, "eagle") == ASSUMED_ZERO_DRAFT_TAX


@pytest.mark.parametrize(
    ("inflight", "drafted_per_step", "follows"),
    [
        (4.0, 7.0, True),  # every batch lies where the long drafts are allowed
        (30.0, 6.9, True),  # some of them do
        (60.0, 1.9, True),
        (60.0, 6.9, False),
        (60.0, None, True),  # nothing was counted: nothing speaks against the engine
    ],
)
def test_drafts_tell_an_engine_that_does_not_follow_only_where_no_batch_allows_them(
    inflight, drafted_per_step, follows
):
    point = Point(
        method="eagle3",
        k=7,
        schedule="1-20:7,21-:2",
        load_mode=LoadMode.POISSON,
        request_rate_rps=1.0,
        mean_latency_s=1.0,
        mean_inflight=inflight,
        drafted_per_step=drafted_per_step,
    )
    assert (ignored([point], Schedule(((1, 7), (21, 2)))) is None) == follows
    assert ignored([replace(point, flag="NotSteady")], Schedule(((1, 7), (21, 2)))) is None
