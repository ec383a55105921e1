"""Answers in a run: the second start of no speculation judges them as the last trial, answers wait for it with their Jobs, and the profile has the words."""

from __future__ import annotations

import gzip
import json

import pytest

from breakeven.answering.answer import AnswerSet
from breakeven.answering.answer_gate import GateFinding
from breakeven.reasons import Reason
from breakeven_operator import calibration
from breakeven_operator.calibration.answer_secrets import (
    AnswerOwner,
    answers_status,
    kept_answers,
    secret_of,
)
from breakeven_operator.calibration.jobs import TrialPlan
from breakeven_operator.resources.calibrationrun import CalibrationRun
from fakes.calibration_world import World, fitted

ARMS = ["none", "eagle/2", "eagle/7"]
JUDGE = "none/again"


@pytest.fixture
def judged() -> World:
    """A run whose answers are compared, with all measured but the second start of no speculation."""
    world = World()
    assert world.service is not None
    world.service["spec"]["calibration"]["answers"] = {"check": "Warn", "maxSecondsPerArm": 90}
    world.turn()
    world.turn()
    for arm in ARMS:
        world.measure_beside(arm)
    world.measure_beside("eagle/2/again", 2)
    return world


def answered(world: World, **words: str) -> None:
    """The judge's driver writes its findings."""
    world.status["answers"] = [
        answers_status(
            GateFinding(f"eagle/{arm[1:]}", Reason.__members__[word], 47, 37, 9000, widest_gap=17.0)
        ).to_json_object()
        for arm, word in words.items()
    ]


def test_the_judge_is_the_last_trial_and_the_jobs_with_answers_wait_for_it(judged):
    assert [each["arm"] for each in judged.status["armStatuses"]] == [*ARMS, "eagle/2/again", JUDGE]
    assert judged.arm_status(JUDGE)["phase"] == "Starting"
    assert sorted(judged.jobs) == [
        f"chat-7f3c2-{arm}" for arm in ("eagle-2", "eagle-7", "none", "none-again")
    ]
    assert not judged.fits, "the fit waits for the word"
    judged.measure_beside(JUDGE, points=0)
    assert not judged.jobs, "with the Jobs the answers go"
    assert len(judged.fits) == 1


def test_the_judge_runs_no_speculation_and_mounts_answers_that_no_engine_sees(judged):
    job = judged.jobs["chat-7f3c2-none-again"]
    spec = job["spec"]["template"]["spec"]
    (driver,), engine = spec["containers"], spec["initContainers"][-1]
    (volume,) = [one for one in spec["volumes"] if one["name"] == "breakeven-answers"]
    names = [source["secret"]["name"] for source in volume["projected"]["sources"]]
    assert names == ["chat-7f3c2-none", "chat-7f3c2-eagle-2", "chat-7f3c2-eagle-7"]
    assert all(source["secret"]["optional"] for source in volume["projected"]["sources"])
    assert "breakeven-answers" in [mount["name"] for mount in driver["volumeMounts"]]
    assert "breakeven-answers" not in [mount["name"] for mount in engine["volumeMounts"]]
    assert not any("eagle3" in str(word) for word in engine.get("args", []))
    document = json.loads(
        next(entry["value"] for entry in driver["env"] if entry["name"] == "BREAKEVEN_TRIAL")
    )
    trial = TrialPlan.read(document, "trial")
    assert (trial.judged, trial.service) == (tuple(names), "chat")
    assert "BREAKEVEN_JOB_UID" not in [entry["name"] for entry in driver["env"]]


def test_an_arm_keeps_its_answers_as_long_as_its_job_is_there(judged):
    job = judged.jobs["chat-7f3c2-eagle-2"]
    (driver,) = job["spec"]["template"]["spec"]["containers"]
    (entry,) = [entry for entry in driver["env"] if entry["name"] == "BREAKEVEN_JOB_UID"]
    assert "controller-uid" in entry["valueFrom"]["fieldRef"]["fieldPath"]
    assert job["spec"]["ttlSecondsAfterFinished"] >= 7200, "the run may take as long as its budget"
    secret = secret_of(
        AnswerSet("eagle/2"), AnswerOwner("llm", "chat", "chat-7f3c2", "chat-7f3c2-eagle-2", "uid-1")
    )
    (owner,) = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Job", "chat-7f3c2-eagle-2", "uid-1")
    assert secret["type"] == "breakeven.dev/answers"


def test_the_words_go_into_the_profile_and_bad_ones_into_events(judged):
    answered(judged, e2="ANSWERS_AGREE", e7="ANSWERS_BROKEN")
    judged.measure_beside(JUDGE)
    judge = judged.arm_status(JUDGE)
    assert (judge["phase"], judge["reason"]) == ("Done", "ArmMeasured")
    assert judge["message"] == "eagle/2: AnswersAgree, eagle/7: AnswersBroken"
    outcome = fitted(judged.fits[-1].points_csv)
    judged.do(calibration.conclude(judged.view(), outcome, judged.now))
    assert judged.status["phase"] == "Succeeded"
    (profile,) = judged.profiles
    arms = {arm["arm"]: arm for arm in profile["spec"]["arms"]}
    assert list(arms) == ARMS, "a second start is no arm"
    assert "answers" not in arms["none"]
    assert arms["eagle/7"]["answers"] == "AnswersBroken"
    fits = {fit["k"]: fit for fit in json.loads(profile["spec"]["profile"])["arms"]}
    assert (fits[2]["answers"], fits[7]["answers"]) == ("AnswersAgree", "AnswersBroken")
    assert "answers" not in fits[0]
    said = [(event.reason, event.warning) for event in judged.said if event.reason.startswith("AnswersB")]
    assert said == [("AnswersBroken", True)]


def test_a_judge_that_fails_takes_no_measurement_away(judged):
    judged.measure_beside(JUDGE)
    judge = judged.arm_status(JUDGE)
    assert (judge["phase"], judge["reason"]) == ("Failed", "AnswersNotJudged")
    assert judged.status["phase"] == "Fitting"
    assert "without none/again (AnswersNotJudged)" in judged.status["message"]
    assert JUDGE in judged.fits[-1].points_csv, "its points stand"


def test_findings_are_the_drivers_and_stay_when_the_operator_writes(judged):
    answered(judged, e2="ANSWERS_AGREE")
    before = judged.status["answers"]
    assert CalibrationRun.read(judged.run, "run").status.answers[0].word == "AnswersAgree"
    (write, *_) = calibration.advance(judged.view(), judged.now)
    assert "answers" not in write.status
    assert before


def test_nothing_is_compared_if_the_service_says_so():
    world = World()
    world.turn()
    world.turn()
    assert "answersSeconds" not in world.trial["plan"]
    assert "BREAKEVEN_JOB_UID" not in json.dumps(world.job)


def test_kept_answers_are_read_from_the_mounted_file(tmp_path):
    given = AnswerSet("eagle/2", refused=3)
    (tmp_path / "job-1").write_bytes(given.packed())
    assert gzip.decompress(given.packed())
    assert kept_answers("job-1", tmp_path) == given
    assert kept_answers("job-2", tmp_path) is None
