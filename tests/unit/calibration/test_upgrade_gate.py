"""A run that is a gate: both engines at once, each end with its word, and nothing that outlives the run."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from breakeven_operator import calibration
from breakeven_operator.actions import Create
from breakeven_operator.calibration.jobs import DRIVER
from breakeven_operator.calibration.podcopy import ENGINE
from breakeven_operator.kinds import ARM_LABEL
from breakeven_operator.refused_writes import RefusedWrite
from fakes.calibration_world import World, timestamp

BEFORE, AFTER = "vllm/vllm-openai:v0.31.0", "vllm/vllm-openai:v0.32.0"


def gate(images: tuple[str, str] = (BEFORE, AFTER), **spec: Any) -> World:
    world = World()
    world.settings = world.settings.model_copy(update={"foreign_images": "true"})
    world.run["spec"] = {"serviceRef": {"name": "chat"}, "trigger": "Manual", "gate": list(images), **spec}
    return world


def job(world: World, arm: str) -> dict[str, Any] | None:
    return next((one for one in world.jobs.values() if one["metadata"]["labels"][ARM_LABEL] == arm), None)


def image(found: dict[str, Any] | None) -> str:
    assert found is not None
    return next(
        one["image"] for one in found["spec"]["template"]["spec"]["initContainers"] if one["name"] == ENGINE
    )


def placed(world: World, arm: str, ip: str = "10.0.0.1") -> dict[str, Any]:
    pod = world.place_pod(job=job(world, arm))
    pod["status"]["podIP"] = ip
    return pod


def both(world: World) -> tuple[dict[str, Any], dict[str, Any]]:
    """Pods of both engines, whose drivers run."""
    while job(world, "before") is None:
        world.turn()
    before = placed(world, "before")
    world.turn()
    after = placed(world, "after", "10.0.0.2")
    for pod in (before, after):
        world.start_driver(pod)
    world.turn()
    return before, after


def found(world: World, word: str, message: str = "both take 20 ms per token") -> None:
    """The driver writes what it found."""
    world.status["findings"] = [
        {"figure": "upgrade", "word": word, "message": message},
        {"figure": "tpot_s at 8 clients", "word": word, "message": message},
    ]


def died(world: World, pod: dict[str, Any], words: str) -> None:
    """An engine ends by itself."""
    ended = {"exitCode": 1, "reason": "Error", "message": words, "finishedAt": timestamp(world.now)}
    pod["status"]["initContainerStatuses"][0]["state"] = {"terminated": ended}


def test_both_engines_are_copies_of_the_target_s_pod_but_for_the_image():
    world = gate()
    assert world.turn()["phase"] == "Starting"
    assert not world.jobs, "the plan is written first"
    world.turn()
    assert job(world, "after") is None, "its driver is told the other pod's address"
    pod = placed(world, "before")
    world.turn()
    before, after = job(world, "before"), job(world, "after")
    assert (image(before), image(after)) == (BEFORE, AFTER)
    assert before is not None and after is not None  # noqa: PT018
    engines = [
        {**one["spec"]["template"]["spec"]["initContainers"][-1], "image": ""} for one in (before, after)
    ]
    assert engines[0] == engines[1]
    (driver,) = after["spec"]["template"]["spec"]["containers"]
    trial = json.loads(next(one["value"] for one in driver["env"] if one["name"] == "BREAKEVEN_TRIAL"))
    assert (trial["otherAddress"], trial["arm"]["arm"]) == (pod["status"]["podIP"], "after")
    assert trial["arm"]["k"] == 2, "the target runs no arm of the service, so its first one is compared"
    for one in (before, after):
        assert not {"app", "tier"} & one["spec"]["template"]["metadata"]["labels"].keys()


@pytest.mark.parametrize(
    ("word", "phase"),
    [("Same", "Succeeded"), ("Faster", "Succeeded"), ("Slower", "Failed"), ("Undecided", "Failed")],
)
def test_the_run_ends_with_the_word_of_its_findings(word, phase):
    world = gate()
    both(world)
    assert world.status["display"]["arm"] == "eagle3"
    found(world, word)
    status = world.turn()
    assert "arm" not in status["display"]
    assert (status["phase"], status["reason"]) == (phase, word)
    assert "both take 20 ms per token" in status["message"]
    assert {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]} == {
        "Complete": ("True", word),
        "Succeeded": (str(phase == "Succeeded"), word),
    }
    assert (world.said[-1].reason, world.said[-1].warning) == (word, phase == "Failed")
    assert not world.jobs, "nothing outlives the run"
    assert not world.profiles, "a person's gate changes no profile"


def test_a_file_that_cannot_be_read_ends_a_gate_before_any_pod():
    world = gate()
    world.files_problem = "ConfigMaps of chat hold more than 16 MiB"
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Failed", "InputRefused")
    assert world.files_problem in status["message"]
    assert not world.jobs


@pytest.mark.parametrize(
    "words",
    ["ValueError: EAGLE is not supported with this model", "torch.OutOfMemoryError: CUDA out of memory"],
)
def test_an_engine_of_now_that_never_answers_does_not_start(words):
    world = gate()
    world.turn()
    world.turn()
    world.start_driver(placed(world, "before"))
    world.turn()
    died(world, placed(world, "after", "10.0.0.2"), f"INFO: starts\n{words}")
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Failed", "DoesNotStart")
    assert AFTER in status["message"]
    assert words in status["message"]
    assert not world.jobs


def test_an_engine_of_before_that_does_not_start_decides_nothing():
    world = gate()
    world.turn()
    world.turn()
    died(world, placed(world, "before"), "ValueError: no such model")
    status = world.turn()
    assert (status["reason"], status["phase"]) == ("Undecided", "Failed")
    assert "EngineConfigRefused: before" in status["message"]


def unschedulable(world: World, pod: dict[str, Any]) -> None:
    pod["status"] = {
        "phase": "Pending",
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
            }
        ],
    }


def test_with_one_free_gpu_the_second_pod_waits_and_the_run_ends_undecided_with_that_cause():
    world = gate()
    world.turn()
    world.turn()
    world.start_driver(placed(world, "before"))
    world.turn()
    unschedulable(world, placed(world, "after"))
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Measuring", "Unschedulable")
    status = world.turn(301)
    assert (status["phase"], status["reason"]) == ("Failed", "Undecided")
    assert "Unschedulable: after" in status["message"]
    assert "Insufficient nvidia.com/gpu" in status["message"]
    assert not world.jobs


def test_an_image_that_cannot_be_pulled_is_named_in_one_line():
    world = gate((BEFORE, "nobody/has:this"))
    world.turn()
    world.turn()
    world.start_driver(placed(world, "before"))
    world.turn()
    pod = placed(world, "after")
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "nobody/has:this": not found'}
    pod["status"]["initContainerStatuses"][0] |= {"state": {"waiting": waiting}, "restartCount": 0}
    world.turn()
    status = world.turn(400)
    assert (status["phase"], status["reason"]) == ("Failed", "ImagePullFailed")
    assert "nobody/has:this" in status["message"]
    assert "\n" not in status["message"]


def test_images_that_the_target_never_ran_are_refused_where_nobody_checks_who_names_them():
    world = gate()
    world.settings = world.settings.model_copy(update={"foreign_images": "false"})
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Failed", "InvalidSpec")
    assert status["message"].startswith(
        f"spec.gate: {BEFORE} is no image of the target or of its profiles; expected one of {AFTER}"
    )
    assert not world.jobs


def test_the_budget_counts_both_pods_and_ends_the_run_undecided():
    world = gate(budget={"maxGpuSeconds": 2400, "maxDurationSeconds": 7200})
    world.turn()
    world.turn()
    made = job(world, "before")
    assert made is not None
    # Two pods of two GPUs have 600 s; a pod waits for 300 s, and the one of before also for the other one.
    assert made["spec"]["activeDeadlineSeconds"] == 300 + 600 + 600 + 60
    both(world)
    world.turn(300)
    assert world.status["phase"] == "Measuring"
    # Two GPUs in each of two pods.
    status = world.turn(300)
    assert status["reason"] == "Undecided"
    assert "BudgetExhausted" in status["message"]
    assert float(status["gpuSecondsUsed"]) > 2400


def test_a_pod_of_before_that_is_replaced_starts_both_again():
    world = gate()
    before, _ = both(world)
    before["status"]["podIP"] = "10.0.0.9"
    world.turn()
    assert not world.jobs
    world.pods.clear()
    world.turn()
    assert job(world, "before") is not None
    assert next(one for one in world.status["armStatuses"] if one["arm"] == "before")["attempts"] == 2


def test_an_operator_that_is_killed_in_between_goes_on():
    world = gate()
    both(world)
    made = set(world.jobs)
    for _ in range(3):
        world.turn()
    assert set(world.jobs) == made, "what stands in the cluster is all that it knows"
    found(world, "Same")
    assert world.turn()["reason"] == "Same"


def test_another_image_of_the_target_leaves_a_person_s_gate_alone_and_another_flag_ends_it():
    world = gate()
    both(world)
    assert world.target is not None
    container = world.target["spec"]["template"]["spec"]["containers"][0]
    container["image"] = "vllm/vllm-openai:v0.33.0"
    assert world.turn()["phase"] == "Measuring"
    container["args"].append("--max-num-seqs=7")
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Superseded", "Superseded")
    assert not world.jobs


def test_an_engine_that_dies_while_it_is_asked_is_asked_once_more_and_then_does_not_start():
    world = gate()
    for attempt in (1, 2):
        world.turn()
        world.turn()
        before = placed(world, "before")
        world.turn()
        after = placed(world, "after", "10.0.0.2")
        for pod in (before, after):
            world.start_driver(pod)
        world.turn()
        died(world, after, "RuntimeError: CUDA error: illegal memory access")
        status = world.turn()
        assert (status.get("reason") == "DoesNotStart") is (attempt == 2), status
        world.pods.clear()
    assert "ended while it was asked" in status["message"]


def test_nothing_of_a_prompt_stands_in_the_last_words_of_an_engine():
    world = gate()
    assert world.service is not None
    world.service["spec"]["calibration"]["workload"]["prompts"] = {
        "configMap": {"name": "own", "key": "p.jsonl"}
    }
    world.config_maps = {
        "own": {
            "metadata": {"name": "own"},
            "data": {"p.jsonl": '{"prompt": "a secret of ours", "output_tokens": 5}\n'},
        }
    }
    both_pods = both(world)
    died(world, both_pods[1], "KeyError: 'a secret of ours'")
    world.turn()
    assert "a secret of ours" not in json.dumps(world.status)
    assert all("a secret of ours" not in event.message for event in world.said)
    assert DRIVER in json.dumps(world.jobs) or not world.jobs


@pytest.mark.parametrize(
    "spec",
    [
        {"gate": [BEFORE]},
        {"gate": [BEFORE, "no image!"]},
        {"gate": [BEFORE, AFTER], "arms": ["none", "eagle/2"]},
        {"gate": [BEFORE, AFTER], "importFrom": [{"arm": "none", "configMap": {"name": "a", "keys": ["b"]}}]},
    ],
)
def test_a_gate_that_is_none_is_refused_in_one_line_and_holds_no_gpu(spec):
    world = gate()
    world.run["spec"] = {"serviceRef": {"name": "chat"}, **spec}
    status = world.turn()
    assert status["phase"] == "Failed"
    assert "spec" in status["message"]
    assert "expected" in status["message"]
    assert not world.jobs


def test_both_pods_prefer_one_machine_and_count_as_two_of_those_that_are_allowed():
    world = gate()
    both(world)
    assert world.status["plan"]["podsAtOnce"] == 2
    made = job(world, "after")
    assert made is not None
    (beside,) = made["spec"]["template"]["spec"]["affinity"]["podAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert beside["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"


def test_an_engine_that_starts_again_is_not_taken_for_one_that_has_answered():
    world = gate()
    before, _ = both(world)
    assert all(one["readyTime"] for one in world.status["armStatuses"])
    before["status"]["podIP"] = "10.0.0.9"
    world.turn()
    world.pods.clear()
    world.turn()
    placed(world, "before")
    world.turn()
    assert job(world, "after") is not None
    assert not any("readyTime" in one for one in world.status["armStatuses"]), "both load again"


def test_an_engine_of_now_that_the_network_fails_before_its_first_answer_starts_once_more():
    world = gate()
    for attempt in (1, 2):
        world.turn()
        world.turn()
        world.start_driver(placed(world, "before"))
        world.turn()
        died(world, placed(world, "after", "10.0.0.2"), "ConnectionError: Connection refused by the hub")
        status = world.turn()
        assert (status.get("reason") == "DoesNotStart") is (attempt == 2), status
        world.pods.clear()
    assert "does not answer" in status["message"]


@pytest.mark.parametrize("dead", [(0,), (1,), (0, 1)])
def test_an_engine_that_dies_of_a_field_is_left_to_the_driver_which_has_noted_the_rest(dead):
    world = gate()
    pods = both(world)
    world.status["findings"] = [{"figure": "answers", "word": "Same", "message": "all alike"}]
    for one in dead:
        died(world, pods[one], "AssertionError: top_k")
    status = world.turn()
    assert status["phase"] == "Measuring", status
    assert len(world.jobs) == 2
    found(world, "Same")
    assert world.turn()["reason"] == "Same"


def test_an_engine_that_dies_while_no_driver_asks_is_not_waited_for():
    world = gate()
    pods = both(world)
    world.status["findings"] = [{"figure": "answers", "word": "Same", "message": "all alike"}]
    died(world, pods[0], "AssertionError: top_k")
    pods[1]["status"]["containerStatuses"][0]["state"] = {
        "terminated": {"exitCode": 1, "message": "gone", "finishedAt": timestamp(world.now)}
    }
    world.turn()
    assert not world.jobs


def test_a_container_that_was_put_into_a_job_is_not_taken_for_the_driver():
    world = gate()
    both(world)
    made = job(world, "after")
    assert made is not None
    made["spec"]["template"]["spec"]["containers"].append({"name": "scanner", "image": "x"})
    assert world.turn()["phase"] == "Measuring"


def test_a_policy_that_refuses_the_new_image_is_named_and_ends_the_run_at_the_deadline():
    world = gate()
    for _ in range(2):
        world.turn()
    world.start_driver(placed(world, "before"))
    first = world.now
    for wait_s in (15, 400):
        world.now += timedelta(seconds=wait_s)
        before, actions = world.status, calibration.advance(world.view(), world.now)
        done = next(at for at, one in enumerate(actions) if isinstance(one, Create))
        world.do(actions[:done])
        world.run["status"] = before
        said = "images come from registry.example alone"
        write = RefusedWrite("run-uid", actions[done], True, said, 1, first, world.now)
        world.do(calibration.refused(world.view(), write, world.now))
        assert world.status["reason"] == "WriteRefused"
        assert said in world.status["message"]
    assert world.status["phase"] == "Failed"
    assert not world.jobs


@pytest.mark.parametrize(
    "containers",
    [
        [{"name": "x", "image": "x"}],
        [{"name": DRIVER, "image": "x"}],
        *(
            [{"name": DRIVER, "env": [{"name": "BREAKEVEN_TRIAL", "value": text}]}]
            for text in ("no JSON", "[]", "[" * 9000)
        ),
    ],
)
def test_a_job_that_somebody_else_has_put_in_its_place_starts_both_again(containers):
    world = gate()
    both(world)
    made = job(world, "after")
    assert made is not None
    made["spec"]["template"]["spec"]["containers"] = containers
    assert "starting both once more" in world.turn()["message"]
    assert not world.jobs


def test_a_schedule_has_no_table_yet_and_is_refused_in_one_line():
    world = gate(arms=["eagle/schedule"])
    assert world.service is not None
    world.service["spec"]["candidates"]["methods"][0]["schedule"] = "Auto"
    status = world.turn()
    assert (status["phase"], status["reason"]) == ("Failed", "InvalidSpec")
    assert status["message"].startswith(
        "spec.arms: eagle/schedule is no arm of the service that a gate compares"
    )


@pytest.mark.parametrize("comes", [True, False])
def test_findings_that_are_seen_later_than_the_end_of_their_driver_are_waited_for(comes):
    world = gate()
    _, after = both(world)
    world.finish_job(after, job(world, "after"))
    status = world.turn(5)
    assert status["phase"] != "Failed", status
    if comes:
        found(world, "Same")
    status = world.turn(40)
    assert status["reason"] == ("Same" if comes else "Undecided")
    assert comes or "its driver ended without findings" in status["message"]
