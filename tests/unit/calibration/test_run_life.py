"""A CalibrationRun from its creation to its end, cycle by cycle, in a small world."""

from __future__ import annotations

import csv
import io
from datetime import timedelta

import pytest

from breakeven_operator import calibration
from breakeven_operator.actions import Create, Delete, FitOutcome, WriteStatus
from breakeven_operator.calibration.run_plan import trial_limits
from breakeven_operator.calibration.transition import seconds_left
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources.calibrationrun import CalibrationRun
from fakes.calibration_world import START, timestamp

DONE = {"Succeeded", "Failed", "Superseded"}


def arm(status, name):
    return next(each for each in status["armStatuses"] if each["arm"] == name)


def condition(status, kind):
    return next(each["status"] for each in status["conditions"] if each["type"] == kind)


def fail(world, message: str, exit_code: int = 1, reason: str = "Error") -> None:
    """The engine dies while loading; Kubernetes waits before it starts it again."""
    pod = world.place_pod()
    pod["status"]["initContainerStatuses"][0] |= {
        "restartCount": 1,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {
            "terminated": {
                "exitCode": exit_code,
                "reason": reason,
                "message": message,
                "startedAt": timestamp(world.now),
                "finishedAt": timestamp(world.now),
            }
        },
    }


def test_arms_are_measured_in_turns_and_fitted(world):
    status = world.turn()
    assert status["phase"] == "Starting"
    turns = ["none", "eagle/2", "eagle/7", "eagle/2/again", "none/again"]
    assert [each["arm"] for each in status["armStatuses"]] == turns
    assert not world.jobs, "the plan is durable before the first Job"
    world.turn()
    measured = []
    for _ in turns:
        assert len(world.jobs) == 1
        measured.append(world.measure_arm())
        world.turn()
    assert measured == turns
    assert world.most_jobs == 1, "one trial at a time"
    assert world.status["phase"] == "Fitting"
    assert not world.jobs
    (fit,) = world.fits
    rows = list(csv.DictReader(io.StringIO(fit.points_csv)))
    assert len(rows) == 25
    assert {row["gpu"] for row in rows} == {"NVIDIA-A100-SXM4-80GB"}
    assert rows[14]["accept_2"] == "0.5"
    assert fit.arguments == ("--confidence", "0.9")


def test_an_arm_that_somebody_takes_out_is_measured_no_further(world):
    world.turn()
    world.turn()
    assert world.measure_arm() == "none"
    world.turn()
    assert len(world.jobs) == 1
    world.service["spec"]["candidates"]["methods"][0]["draftLengths"] = [7]
    status = world.turn()
    assert (arm(status, "eagle/2")["phase"], arm(status, "eagle/2")["reason"]) == (
        "Skipped",
        "CandidatesChanged",
    )
    world.turn()
    assert world.measure_arm() == "eagle/7"
    world.turn()
    assert world.measure_arm() == "none/again"
    status = world.turn()
    assert arm(status, "eagle/2/again")["reason"] == "CandidatesChanged"
    assert status["phase"] == "Fitting"
    (fit,) = world.fits
    assert {(row["method"], row["k"]) for row in csv.DictReader(io.StringIO(fit.points_csv))} == {
        ("none", "0"),
        ("eagle3", "7"),
    }


def test_the_next_engine_waits_until_the_last_one_has_left_its_gpus(world):
    world.turn()
    world.turn()
    pod = world.place_pod()
    world.pods.clear()
    world.measure_arm()
    world.turn(1)
    lingering = {**pod, "metadata": {**pod["metadata"], "name": "lingering"}}
    world.jobs.clear()
    world.pods = {"lingering": lingering}
    world.status["armStatuses"][1]["phase"] = "Waiting"
    status = world.turn()
    assert not world.jobs
    assert "waits for the arm before it to stop" in status["message"]
    world.pods.clear()
    world.turn()
    assert len(world.jobs) == 1


def test_progress_is_what_kubectl_prints(world):
    world.turn()
    world.turn()
    display = world.status["display"]
    assert display["arm"] == "none"
    # Three arms with five loads, one of them once more, and two points at other lengths each.
    assert display["points"] == "0/24"
    assert display["gpuSeconds"] == "0/6000"
    pod = world.place_pod()
    world.turn(60)
    world.start_driver(pod)
    world.turn(30)
    world.store("none", 2)
    status = world.turn(30)
    assert status["phase"] == "Measuring"
    assert status["message"] == "none: 2 of 5 points"
    assert status["display"]["points"] == "2/24"
    # Two GPUs held for 120 s.
    assert status["display"]["gpuSeconds"] == "240/6000"
    left = status["display"]["left"]
    assert left.endswith(("m", "s"))
    assert condition(status, "Complete") == "False"
    assert condition(status, "Succeeded") == "Unknown"


def test_points_measured_never_exceed_points_planned(world):
    world.turn()
    world.turn()
    pod = world.place_pod()
    world.start_driver(pod)
    world.turn()
    world.store("none", 9)  # two were no good and were measured again
    assert world.turn()["display"]["points"] == "9/28"
    world.finish_job(pod)
    assert world.turn()["display"]["points"] == "9/28"


def test_the_time_left_counts_the_short_points_at_other_lengths_as_what_they_are(world):
    """Two points of five seconds are no reason to expect that loads of a minute take twenty seconds."""
    world.turn()
    world.turn()
    pod = world.place_pod()
    world.start_driver(pod)
    world.turn()
    world.turn(60)
    world.store("none", 1)
    (own,) = world.status["points"]
    for index in (1, 2):
        world.turn(5)
        short = {"index": index, "time": timestamp(world.now), "promptTokens": "256"}
        world.status["points"].append({**own, **short})
    run = CalibrationRun.read(world.run, "run")
    (ready,) = [each.ready_time for each in run.status.arm_statuses if each.ready_time]
    load_s = (world.now - ready).total_seconds()
    assert 70 <= load_s <= 90
    # Two loads of this start, three, five and twice three of the others; their start takes no time here.
    start_s = next(
        (a.ready_time - a.started_time).total_seconds() for a in run.status.arm_statuses if a.ready_time
    )
    assert seconds_left(run.status, run.status.plan, world.now) == pytest.approx(16 * load_s + 4 * start_s)


def test_an_arm_has_the_time_that_its_points_at_other_lengths_take(world):
    world.budget(maxGpuSeconds=100_000, maxDurationSeconds=100_000)
    world.turn()
    plan = CalibrationRun.read(world.run, "run").status.plan
    point_s = plan.point_seconds + plan.warmup_seconds + 60
    limits = trial_limits(plan, (), 0, 0.0, 0.0)
    # Three of five loads, two at other lengths, and three to measure again.
    assert (limits.sweep_s, limits.halved) == ((3 + 2 + 3) * point_s, True)
    # The last arm has one start: five loads, and the first once more.
    limits = trial_limits(plan, (), 2, 0.0, 0.0)
    assert (limits.sweep_s, limits.halved) == ((5 + 1 + 2 + 3) * point_s, False)
    # A second start: the other two, and one once more.
    limits = trial_limits(plan, (), 3, 0.0, 0.0)
    assert (limits.sweep_s, limits.halved) == ((2 + 1 + 3) * point_s, False)


def test_points_are_never_written_by_the_operator(world):
    world.turn()
    world.turn()
    world.measure_arm()  # World.do asserts it on every write
    world.turn()
    assert len(world.status["points"]) == 5


def test_a_cycle_without_news_writes_nothing(world):
    for _ in range(3):
        world.turn()
    assert calibration.advance(world.view(), world.now) == ()


def test_waiting_for_another_run_is_said(world):
    world.may_start = False
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Pending", "CalibrationDeferred")
    assert "plan" not in status
    world.may_start = True
    assert world.turn()["phase"] == "Starting"


def test_a_paused_service_starts_no_run(world):
    world.service["spec"]["paused"] = True
    status = world.turn()
    assert status["phase"] == "Pending"
    assert "paused" in status["message"]


def test_a_job_that_vanished_is_made_again_and_not_for_ever(world):
    world.turn()
    for _ in range(3):
        world.turn()
        assert world.jobs
        world.jobs.clear()
    status = world.turn()
    assert status["phase"] == "Failed"
    assert "disappeared" in status["message"]


def test_the_same_job_is_followed_after_the_operator_was_away(world):
    world.turn()
    world.turn()
    before = dict(world.jobs)
    pod = world.place_pod()
    world.start_driver(pod)
    world.turn(1500)
    assert world.jobs == before


LAST_WORDS = {
    "EngineOutOfMemory": [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "ValueError: No available memory for the cache blocks.",
    ],
    "EngineConfigRefused": [
        "pydantic: 1 validation error for SpeculativeConfig\n  num_speculative_tokens",
        "ValueError: Qwen3-Omni DSpark requires num_speculative_tokens to match the trained block_size (7); got 3.",
        "AssertionError: Custom logits processors are not supported when speculation is on",
        "NotImplementedError: eagle3 with pipeline parallel size 2",
        "ValueError: Model architectures ['Eagle3XForCausalLM'] failed to be inspected",
        "OSError: org/eagle is not a local folder and is not a valid model identifier listed on the hub",
        "TypeError: Worker.__init__() got an unexpected keyword argument 'draft'",
        "ImportError: Arctic Inference is required for suffix decoding",
        "(EngineCore pid=9) RuntimeError: LoRA does not support adaptive verification",
        "pydantic_core.ValidationError: 1 validation error for VllmConfig\n  Value error, max_num_scheduled_tokens is set to -1792",
    ],
    "EngineCrashed": [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "ValueError: bad rank\ntorch.distributed.DistBackendError: NCCL error: unhandled system error",
        "OSError: Connection error, and we cannot find the requested files; Connection refused",
        "WARNING 11-21 13:42 FlashInfer is not supported here\nRuntimeError: no words",
        "INFO 11-21 args: {'speculative_config': {}}\nRuntimeError: Engine core initialization failed",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("message", "exit_code", "reason", "word"),
    [
        *((message, 1, "Error", word) for word, messages in LAST_WORDS.items() for message in messages),
        ("", 137, "OOMKilled", "EngineOutOfMemory"),
        ("vllm serve: error: unrecognized arguments: --spec-x", 2, "Error", "EngineConfigRefused"),
        (
            "api_server.py: error: argument --attention-backend: invalid choice: 'X'",
            2,
            "Error",
            "EngineConfigRefused",
        ),
        ("Segmentation fault (core dumped)", 139, "Error", "EngineCrashed"),
        ("ValueError: half a traceback, then a signal", 134, "Error", "EngineCrashed"),
        # A container runtime that cannot start it.
        ("OCI runtime create failed: unsupported device vendor", 128, "StartError", "EngineCrashed"),
    ],
)
def test_an_engine_that_dies_has_its_own_reason_and_last_words(world, message, exit_code, reason, word):
    world.turn()
    world.turn()
    fail(world, message, exit_code, reason)
    status = world.turn()
    assert status["phase"] == "Failed"
    assert status["reason"] == word
    assert arm(status, "none")["reason"] == word
    assert message.split("\n")[-1].strip() in status["message"]
    assert not world.jobs
    assert world.said[-1].warning
    assert condition(status, "Succeeded") == "False"


def test_a_refusal_is_shown_although_other_processes_went_on_for_pages(world):
    world.turn()
    world.turn()
    words = "(Worker_TP0 pid=9) ERROR 11-21 [multiproc_executor.py:597] ValueError: a drafter of 8 heads; expected 16"
    pages = [
        f'(APIServer pid=1)   File "/vllm/entrypoints/cli/main.py", line {at}, in main' for at in range(20)
    ]
    fail(
        world,
        "\n".join([words, *pages, "RuntimeError: Engine core initialization failed. See root cause above."]),
    )
    status = world.turn()
    assert status["reason"] == "EngineConfigRefused"
    assert "a drafter of 8 heads; expected 16" in status["message"]


def end_driver(world, pod, exit_code=0, message=""):
    """The driver's container ends; the others of its pod are as they were."""
    state = pod["status"]["containerStatuses"][0]["state"]["running"]
    end = {**state, "exitCode": exit_code, "finishedAt": timestamp(world.now), "message": message}
    pod["status"]["containerStatuses"][0]["state"] = {"terminated": end}


@pytest.mark.parametrize("name", ["istio-proxy", "vault-agent", "otc-container", "daprd", "envoy-sidecar"])
def test_a_driver_that_has_ended_measures_no_more_whatever_goes_on_beside_it(world, name):
    world.turn()
    world.turn()
    pod = world.place_pod()
    world.start_driver(pod)
    beside = {"name": name, "state": {"running": {"startedAt": timestamp(world.now)}}}
    pod["status"]["containerStatuses"].append(beside)
    world.store("none", 5)
    world.turn(100)
    end_driver(world, pod)
    assert arm(world.turn(100), "none")["phase"] == "Measuring", "a pod needs a while to end"
    status = world.turn(60)
    assert arm(status, "none")["phase"] == "Done"
    assert f"{name} went on after the driver had ended" in arm(status, "none")["message"]
    assert all("none" not in job for job in world.jobs), "its engine is stopped"


def test_a_pod_whose_driver_has_ended_well_is_measured_however_its_other_containers_end(world):
    world.turn()
    world.turn()
    pod = world.place_pod()
    world.start_driver(pod)
    world.store("none", 5)
    world.turn(100)
    end_driver(world, pod)
    pod["status"] |= {"phase": "Failed", "message": "istio-proxy ended with 1"}
    world.fail_job()
    assert arm(world.turn(1), "none")["phase"] == "Done"


@pytest.mark.parametrize(
    ("exit_code", "said", "job", "word"),
    [
        (143, "stopped by SIGTERM; points measured so far are stored", "DeadlineExceeded", "BudgetExhausted"),
        (137, "", "DeadlineExceeded", "BudgetExhausted"),
        (1, "the engine answers no request", "DeadlineExceeded", "BudgetExhausted"),
        (6, "time is up: 300 of 300 s used", "BackoffLimitExceeded", "BudgetExhausted"),
        (1, "the engine answers no request", "BackoffLimitExceeded", "DriverFailed"),
        (143, "stopped by SIGTERM", "BackoffLimitExceeded", "DriverFailed"),
        (5, "prompts.jsonl is not there", "DeadlineExceeded", "InputRefused"),
    ],
)
def test_a_driver_that_its_time_has_stopped_names_the_budget(world, exit_code, said, job, word):
    world.turn()
    world.turn()
    pod = world.place_pod()
    world.start_driver(pod)
    world.store("none", 1)
    world.turn(100)
    end_driver(world, pod, exit_code, said)
    pod["status"]["phase"] = "Failed"
    world.fail_job(job)
    status = world.turn(1)
    assert arm(status, "none")["reason"] == word
    if exit_code == 6:
        assert arm(status, "none")["message"] == f"1 usable point; {said}"


def test_without_an_arm_the_others_are_still_measured(world):
    world.turn()
    world.turn()
    world.measure_arm()
    world.turn()
    fail(world, "ValueError: speculative model not found")
    status = world.turn()
    assert arm(status, "eagle/2")["phase"] == "Failed"
    assert status["phase"] == "Measuring"
    world.turn()
    world.measure_arm()
    status = world.turn()
    assert arm(status, "eagle/2/again")["message"] == "its first start was not measured"
    world.second_starts()
    status = world.status
    assert status["phase"] == "Fitting"
    assert "without eagle/2 (EngineConfigRefused), eagle/2/again (ArmSkipped)" in status["message"]
    assert len(list(csv.DictReader(io.StringIO(world.fits[-1].points_csv)))) == 12


def test_all_speculative_arms_failing_fails_the_run_with_their_reason(world):
    world.turn()
    world.turn()
    world.measure_arm()
    for _ in range(2):
        world.turn()
        fail(world, "CUDA out of memory")
        world.turn()
    assert world.status["phase"] == "Failed"
    assert world.status["reason"] == "EngineOutOfMemory"
    assert not world.fits


def test_a_pod_without_a_gpu_waits_and_then_gives_up(world):
    world.turn()
    world.turn()
    pod = world.place_pod()
    pod["status"] = {
        "phase": "Pending",
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/3 nodes: Insufficient nvidia.com/gpu",
            }
        ],
    }
    status = world.turn(100)
    assert status["phase"] == "Starting"
    assert status["reason"] == "Unschedulable"
    assert "Insufficient nvidia.com/gpu" in status["message"]
    assert status["gpuSecondsUsed"] == "0", "a pod without a node holds no GPU"
    status = world.turn(250)
    assert (status["phase"], status["reason"]) == ("Failed", "Unschedulable")


def refusal(world, note: str) -> None:
    world.cluster_events.append(
        {
            "reason": "FailedCreate",
            "note": note,
            "regarding": {"kind": "Job", "uid": world.job["metadata"]["uid"]},
        }
    )


def test_a_quota_is_waited_for_and_named(world):
    world.turn()
    world.turn()
    refusal(world, 'pods "x" is forbidden: exceeded quota: gpus, requested: 2, used: 8, limited: 8')
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Starting", "QuotaExceeded")
    assert "exceeded quota: gpus" in status["message"]
    status = world.turn(400)
    assert (status["phase"], status["reason"]) == ("Failed", "QuotaExceeded")


def test_an_admission_policy_is_not_waited_for(world):
    world.turn()
    world.turn()
    refusal(world, 'admission webhook "policy.example" denied the request: no team label')
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Failed", "AdmissionDenied")


def test_events_of_other_jobs_are_not_ours(world):
    world.turn()
    world.turn()
    refusal(world, "exceeded quota")
    world.cluster_events[0]["regarding"]["uid"] = "another"
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Starting", "CalibrationRunning")


def test_an_image_that_cannot_be_pulled_is_given_time_and_then_named(world):
    world.turn()
    world.turn()
    pod = world.place_pod()
    pod["status"]["initContainerStatuses"][0]["state"] = {
        "waiting": {"reason": "ImagePullBackOff", "message": "manifest unknown"}
    }
    status = world.turn(30)
    assert (status["phase"], status["reason"]) == ("Starting", "ImagePullFailed")
    assert "image vllm of pod" in status["message"]
    (said,) = [event for event in world.said if event.reason == "ImagePullFailed"]
    assert said.warning
    world.turn(15)
    assert [event.reason for event in world.said].count("ImagePullFailed") == 1
    status = world.turn(200)
    assert (status["phase"], status["reason"]) == ("Failed", "ImagePullFailed")
    assert "manifest unknown" in status["message"]


def test_a_volume_that_does_not_come_is_said_at_once_and_given_up_in_time(world):
    world.turn()
    world.turn()
    pod = world.place_pod()
    pod["status"]["initContainerStatuses"][0] |= {
        "imageID": "",
        "state": {"waiting": {"reason": "PodInitializing"}},
    }
    world.warnings = {pod["metadata"]["uid"]: 'FailedMount: configmap "texts" not found'}
    status = world.turn(30)
    assert (status["phase"], status["reason"]) == ("Starting", "EngineNotStarting")
    assert 'FailedMount: configmap "texts" not found' in status["message"]
    assert "EngineNotStarting" in [event.reason for event in world.said]
    status = world.turn(world.status["plan"]["pendingDeadlineSeconds"])
    assert (status["phase"], status["reason"]) == ("Failed", "EngineNotStarting")


def test_an_engine_that_never_answers_is_given_up(world):
    world.turn()
    world.turn()
    world.place_pod()
    assert world.turn(500)["phase"] == "Starting"
    status = world.turn(200)
    assert (status["phase"], status["reason"]) == ("Failed", "StartupDeadlineExceeded")


def test_an_engine_killed_for_not_answering_did_not_crash(world):
    world.turn()
    world.turn()
    begun = world.now
    pod = world.place_pod()
    world.turn(600)
    pod["status"]["initContainerStatuses"][0] |= {
        "state": {"running": {"startedAt": timestamp(world.now)}},
        "lastState": {
            "terminated": {"exitCode": 137, "startedAt": timestamp(begun), "finishedAt": timestamp(world.now)}
        },
    }
    assert world.turn(5)["reason"] == "StartupDeadlineExceeded"


def die_while_measured(world, points: int) -> None:
    """The engine answers, some points are stored, and then it dies; its last words are about its configuration."""
    pod = world.place_pod()
    world.turn(60)
    world.start_driver(pod)
    world.turn(10)
    world.store("none", points)
    world.turn(100)
    pod["status"]["initContainerStatuses"][0] |= {
        "state": {"running": {"startedAt": timestamp(world.now)}},
        "lastState": {
            "terminated": {
                "exitCode": 137,
                "message": "INFO speculative_config=None",
                "finishedAt": timestamp(world.now),
            }
        },
    }
    world.now += timedelta(seconds=4)
    pod["status"]["containerStatuses"][0]["state"] = {
        "terminated": {"exitCode": 1, "startedAt": timestamp(world.now), "finishedAt": timestamp(world.now)}
    }
    pod["status"]["phase"] = "Failed"
    world.fail_job()


def test_an_engine_that_dies_while_it_is_measured_is_started_once_more(world):
    world.turn()
    world.turn()
    first = world.job["metadata"]["uid"]
    die_while_measured(world, 2)
    status = world.turn()
    assert status["phase"] == "Measuring"
    assert status["reason"] == "EngineCrashed"
    assert "exit code 137" in status["message"]
    assert not world.jobs
    used = float(status["gpuSecondsUsed"])
    world.turn()
    assert world.job["metadata"]["uid"] != first
    assert len(world.status["points"]) == 2
    pod = world.place_pod("bbbbb")
    world.turn(50)
    assert float(world.status["gpuSecondsUsed"]) == used + 2 * 50, "what the dead pod used stays used"
    world.start_driver(pod)
    world.status["points"].clear()
    world.store("none", 5)
    world.turn(100)
    world.finish_job(pod)
    assert world.turn()["phase"] == "Measuring"
    assert arm(world.status, "none")["phase"] == "Done"


def test_an_engine_that_dies_twice_while_it_is_measured_has_crashed(world):
    world.turn()
    world.turn()
    die_while_measured(world, 1)
    world.turn()
    world.turn()
    world.status["points"].clear()
    die_while_measured(world, 2)
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Failed", "EngineCrashed")


def test_a_driver_that_fails_says_why(world):
    world.turn()
    world.turn()
    pod = world.place_pod()
    world.start_driver(pod)
    world.turn()
    pod["status"]["containerStatuses"][0]["state"] = {
        "terminated": {
            "exitCode": 1,
            "message": "2026-11-21 13:42:12,701 the engine does not speculate; expected eagle/2",
            "finishedAt": timestamp(world.now),
        }
    }
    # Kubernetes ends the engine once the driver has ended; within the same second, by its clock.
    pod["status"]["initContainerStatuses"][0]["state"] = {
        "terminated": {"exitCode": 137, "finishedAt": timestamp(world.now), "message": "speculative_config"}
    }
    world.fail_job()
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Failed", "DriverFailed")
    assert status["message"] == "none: the engine does not speculate; expected eagle/2"


def test_an_evicted_pod_is_replaced_by_the_job_and_nothing_is_broken(world):
    world.turn()
    world.turn()
    pod = world.place_pod()
    pod["status"]["conditions"].append({"type": "DisruptionTarget", "status": "True"})
    pod["status"]["phase"] = "Failed"
    status = world.turn()
    assert status["phase"] == "Starting"
    assert status["reason"] == "PodDisrupted"
    replacement = world.place_pod("bbbbb")
    world.start_driver(replacement)
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Measuring", "CalibrationRunning")


def test_a_pod_that_is_lost_with_its_node_is_not_waited_for_and_holds_no_gpu(world):
    """Its Job would wait for ever: with a policy for failures it makes no other pod before that one has ended."""
    world.turn()
    world.turn()
    pod = world.place_pod()
    pod["spec"] = {"nodeName": "a100-1"}
    pod["metadata"]["ownerReferences"] = [{"controller": True, "uid": world.job["metadata"]["uid"]}]
    world.start_driver(pod)
    world.store("none", 3)
    world.turn(60)
    pod["metadata"]["deletionTimestamp"] = timestamp(world.now + timedelta(seconds=30))
    status = world.turn(30)
    assert (status["phase"], status["reason"]) == ("Measuring", "CalibrationRunning"), "it may still end"
    lost = dict(world.pods)
    status = world.turn(100)
    assert (status["reason"], world.jobs) == ("PodDisrupted", {})
    assert "is lost with a100-1" in status["message"]
    world.pods = lost
    assert world.turn()["armStatuses"][0]["attempts"] == 2
    assert len(world.jobs) == 1, "the arm is measured on; the pod that does not go holds no place"
    used = float(world.turn(1000)["gpuSecondsUsed"])
    assert used <= 2 * 150, "two GPUs until the end of its grace period"


def test_the_engine_being_stopped_after_the_driver_is_no_crash(world):
    world.turn()
    world.turn()
    pod = world.place_pod()
    world.start_driver(pod)
    world.store("none", 5)
    world.turn()
    pod["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 0}}
    pod["status"]["initContainerStatuses"][0]["state"] = {"terminated": {"exitCode": 137}}
    assert world.turn()["phase"] == "Measuring"


def test_the_budget_ends_measuring_and_keeps_what_there_is(world):
    world.budget(maxGpuSeconds=1000, maxDurationSeconds=7200)
    world.turn()
    world.turn()
    world.measure_arm()
    world.turn()
    pod = world.place_pod()
    world.start_driver(pod)
    world.store("eagle/2", 3)
    world.turn(30)
    status = world.turn(400)
    assert arm(status, "eagle/2")["reason"] == "BudgetExhausted"
    assert arm(status, "eagle/2")["phase"] == "Done"
    assert arm(status, "eagle/7")["phase"] == "Failed"
    assert status["phase"] == "Fitting"
    assert not world.jobs


def test_a_budget_too_small_for_two_arms_fails_and_says_so(world):
    world.budget(maxGpuSeconds=60, maxDurationSeconds=7200)
    world.turn()
    world.turn()
    world.place_pod()
    status = world.turn(100)
    assert (status["phase"], status["reason"]) == ("Failed", "BudgetExhausted")
    assert "GPU-seconds" in status["message"]
    assert not world.jobs


def test_duration_is_a_budget_too(world):
    world.budget(maxGpuSeconds=100000, maxDurationSeconds=120)
    world.turn()
    world.turn()
    assert world.turn(200)["reason"] == "BudgetExhausted"


def test_each_arm_gets_its_share_of_the_budget(world):
    # The points alone would need (3 + 2 + 3) * (20 + 5 + 60) s = 680 s.
    world.budget(maxGpuSeconds=1200, maxDurationSeconds=7200)
    world.turn()
    world.turn()
    # Two GPUs; points of five starts, with three that may be measured again in each.
    assert world.trial["maxSeconds"] == round(1200 / 2 * 8 / (8 + 8 + 11 + 6 + 6))
    assert world.job["spec"]["activeDeadlineSeconds"] <= 300 + 600 + 60


def test_a_changed_target_supersedes_the_run(world):
    world.turn()
    world.turn()
    world.image_digest = "sha256:bb"
    assert world.turn()["phase"] == "Starting", "another node resolves the same version to another digest"
    world.target["spec"]["template"]["spec"]["containers"][0]["image"] = "vllm/vllm-openai:v0.32.1"
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Superseded", "FingerprintChanged")
    assert not world.jobs


def test_a_run_whose_target_is_gone_ends_whatever_it_is_at(world):
    """Nobody waits for the figures, and the GPU is free for others: before its first Job, while measuring, between arms."""
    world.turn()
    world.turn()
    world.place_pod()
    assert world.jobs
    world.target = None
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Superseded", "TargetNotFound")
    assert not world.jobs
    assert condition(status, "Complete") == "True"
    assert world.turn() == status, "nothing more happens to it"


def test_a_run_waits_for_a_target_that_does_not_exist(world):
    target, world.target = world.target, None
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Pending", "CalibrationDeferred")
    assert "there is no Deployment chat-vllm" in status["message"]
    world.target = target
    assert world.turn()["phase"] == "Starting"


def engine_of(world):
    return world.target["spec"]["template"]["spec"]["containers"][0]


def test_a_target_whose_pods_are_replaced_alike_is_not_a_changed_one(world):
    """The operator's own roll, a restart and other probes make new pods, and the copy is the same."""
    world.turn()
    world.turn()
    world.identifiable = False
    template = world.target["spec"]["template"]
    template["metadata"]["annotations"] |= {
        "breakeven.dev/speculative-config": "null",
        "kubectl.kubernetes.io/restartedAt": "2026-11-21T00:00:00Z",
    }
    template["spec"]["containers"][1]["image"] = "proxy:2"
    engine_of(world)["readinessProbe"]["periodSeconds"] = 1
    engine_of(world)["args"][-3] = "--spec-method=suffix"
    world.target["spec"]["replicas"] = 5
    assert world.turn()["phase"] == "Starting"
    assert world.jobs


@pytest.mark.parametrize(
    "edit",
    [
        lambda engine: engine.update(image="vllm/vllm-openai:v0.33.0"),
        lambda engine: engine["args"].append("--max-num-seqs=8"),
        lambda engine: engine["env"].append({"name": "VLLM_ATTENTION_BACKEND", "value": "FLASHINFER"}),
        lambda engine: engine["resources"]["limits"].update({"nvidia.com/gpu": 4}),
        lambda engine: engine.update(command=["bash", "-c", "vllm serve"]),
    ],
    ids=["image", "argument", "environment", "gpus", "shell"],
)
def test_no_arm_is_measured_on_a_template_that_is_not_the_plan_s(world, edit):
    """While the target is rolled its fingerprint is unknown, and the next Job would copy the new template."""
    world.turn()
    world.turn()
    world.measure_arm()
    world.identifiable = False
    edit(engine_of(world))
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Superseded", "FingerprintChanged")
    assert not world.jobs, "no Job was built from the new template"
    assert world.said[-1].reason == "FingerprintChanged"
    assert not world.fits


@pytest.mark.parametrize(
    ("image_id", "phase"),
    [
        ("docker.io/vllm/vllm-openai@sha256:aa", "Starting"),
        ("docker.io/vllm/vllm-openai@sha256:bb", "Failed"),
        # An image that was loaded by hand has a name of the node's own, which says nothing about another node's.
        ("sha256:cc", "Starting"),
        ("", "Starting"),
    ],
)
@pytest.mark.parametrize("tag", ["latest", "v0.32.0"])
def test_a_tag_that_was_moved_ends_the_run_and_a_version_does_not_move(world, tag, image_id, phase):
    world.target["spec"]["template"]["spec"]["containers"][0]["image"] = f"vllm/vllm-openai:{tag}"
    phase = phase if tag == "latest" else "Starting"
    world.turn()
    world.turn()
    pod = world.place_pod()
    pod["status"]["initContainerStatuses"][0]["imageID"] = image_id
    status = world.turn()
    assert status["phase"] == phase
    if phase == "Failed":
        assert status["reason"] == "ImageChanged"
        assert "sha256:bb" in status["message"]
        assert "kubectl rollout restart" in status["message"]
        assert not world.jobs


def test_a_run_waits_for_a_target_that_serves(world):
    world.identifiable = False
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Pending", "CalibrationDeferred")
    assert "no pod serves" in status["message"]
    world.identifiable = True
    assert world.turn()["phase"] == "Starting"


def test_paused_the_present_arm_ends_and_the_next_one_waits(world):
    world.turn()
    world.turn()
    world.may_start = False
    world.measure_arm()
    status = world.turn()
    assert arm(status, "none")["phase"] == "Done"
    assert not world.jobs
    assert "paused" in status["message"]
    world.may_start = True
    world.turn()
    assert world.job["metadata"]["labels"]["breakeven.dev/arm"] == "eagle-2"


def test_a_duplicate_ends_at_once(world):
    world.duplicate_of = "chat-older"
    status = world.turn()
    assert status["phase"] == "Superseded"
    assert "chat-older" in status["message"]
    assert not world.jobs


def test_a_deleted_service_frees_the_gpus_at_once(world):
    world.turn()
    world.turn()
    world.service = None
    actions = calibration.advance(world.view(), world.now)
    assert [type(action) for action in actions] == [WriteStatus, Delete]


def test_a_run_of_a_service_that_does_not_exist_says_so_at_once_and_ends_in_minutes(world):
    world.service = None
    world.run["metadata"]["creationTimestamp"] = timestamp(world.now)
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Pending", "CalibrationDeferred")
    assert "there is no SpeculativeService chat in this namespace" in status["message"]
    status = world.turn(301)
    assert (status["phase"], status["reason"]) == ("Superseded", "Superseded")
    assert "there is no SpeculativeService chat in this namespace" in status["message"]


def test_a_target_that_cannot_be_copied_fails_with_the_reason(world):
    world.target["spec"]["template"]["spec"]["containers"][0]["command"] = ["bash", "-c", "/start.sh"]
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Failed", "EngineUnclear")


def test_an_unknown_arm_is_refused_by_name(world):
    world.run["spec"]["arms"] = ["eagle/5"]
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Failed", "InvalidSpec")
    assert "eagle/5" in status["message"]


def test_a_run_by_hand_measures_its_arms_and_always_none(world):
    world.run["spec"]["arms"] = ["eagle/7"]
    world.turn()
    plan = CalibrationRun.read(world.run, "run").status.plan
    assert [each.arm for each in plan.arms] == ["none", "eagle/7", "none/again"]


def test_loads_to_buy_are_those_that_the_service_decides_for(world):
    world.service["spec"].setdefault("calibration", {})["loadChoice"] = "Auto"
    world.service.setdefault("status", {})["decision"] = {"loadRps": "2.5", "expectedPeakRps": "7"}
    status = world.turn()
    assert status["plan"]["expectedRps"] == ["2.5", "7"]
    assert "at most 5 loads each" in status["message"]
    world.turn()
    assert world.trial["plan"]["loadChoice"] == "Auto"
    assert world.trial["plan"]["expectedRps"] == ["2.5", "7"]


def test_points_against_which_something_speaks_do_not_make_an_arm(world):
    world.turn()
    world.turn()
    pod = world.place_pod()
    world.start_driver(pod)
    world.turn()
    world.store("none", 5, flag="DriverLagging")
    world.turn()
    world.finish_job(pod)
    status = world.turn()
    assert status["phase"] == "Failed"
    assert "no usable point" in status["message"]


def test_a_final_run_only_loses_what_is_left_of_it(world):
    world.turn()
    world.turn()
    world.run["status"]["phase"] = "Failed"
    actions = calibration.advance(world.view(), world.now)
    assert [type(action) for action in actions] == [Delete]


def test_nothing_is_created_twice_by_a_repeated_cycle(world):
    world.turn()
    first = calibration.advance(world.view(), world.now)
    second = calibration.advance(world.view(), world.now)
    assert first == second
    names = [action.body["metadata"]["name"] for action in first if isinstance(action, Create)]
    assert names == ["chat-7f3c2-none"]


def test_every_word_of_a_run_is_documented(world):
    world.turn()
    world.turn()
    assert world.status["reason"] in {reason.value for reason in ClusterReason}
    assert world.now > START


def test_a_fit_without_an_answer_fails_with_its_words(world):
    world.turn()
    world.turn()
    for _ in range(3):
        world.measure_arm()
        world.turn()
    world.do(calibration.conclude(world.view(), FitOutcome(None, "points.csv: row 3: nonsense"), world.now))
    assert (world.status["phase"], world.status["reason"]) == ("Failed", "FitRejected")
    assert "row 3: nonsense" in world.status["message"]
