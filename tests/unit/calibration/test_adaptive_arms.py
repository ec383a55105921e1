"""Adaptive verification as an arm of a run, and arms that the target's engine would refuse."""

from __future__ import annotations

import json

import pytest

from breakeven.arm import Arm
from breakeven_operator.calibration.podcopy import ENGINE
from breakeven_operator.resources.candidates import Candidates
from breakeven_operator.workloads.running_arm import arm_of_value
from fakes.calibration_world import World

ADAPTIVE = Arm("eagle3", 7, "eagle", scheduled=True, adaptive=True)


def world_with(**changes: object) -> World:
    world = World()
    assert world.service is not None
    world.service["spec"]["candidates"]["methods"][0] |= changes
    return world


def engine_of(world: World):
    assert world.target is not None
    return world.target["spec"]["template"]["spec"]["containers"][0]


def arm(world: World, name: str):
    return world.arm_status(name)


def config_of_the_pod(world: World):
    engine = next(c for c in world.job["spec"]["template"]["spec"]["initContainers"] if c["name"] == ENGINE)
    return json.loads(engine["args"][-1].partition("=")[2] or engine["args"][-1])


def test_it_is_measured_after_the_draft_lengths_with_the_longest_of_them():
    world = world_with(adaptiveVerification="Auto")
    world.turn()
    for name in ("none", "eagle/2", "eagle/7"):
        world.turn()
        assert world.measure_arm() == name
    world.turn()
    config = config_of_the_pod(world)
    assert config["enable_adaptive_verification"] is True
    assert config["num_speculative_tokens"] == 7
    assert world.measured_table() == "adaptive"
    assert world.measure_arm() == "eagle/adaptive"
    world.turn()
    assert arm(world, "eagle/adaptive")["phase"] == "Done"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda engine: engine["args"].append("--enable-lora"), "--enable-lora: vLLM does not start with it"),
        (
            lambda engine: engine["args"].append('--compilation-config={"cudagraph_mode": "PIECEWISE"}'),
            "which needs full CUDA graphs",
        ),
        (lambda engine: engine["args"].append("-O0"), "-O0: vLLM does not start with it"),
        (lambda engine: engine.update(image="vllm/vllm-openai:v0.27.1"), "vLLM 0.27 does not know it"),
        (
            lambda engine: engine["env"].append({"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}),
            "needs model runner V2; remove the variable",
        ),
    ],
)
def test_an_engine_that_would_refuse_it_is_not_started_with_it(edit, words):
    world = world_with(adaptiveVerification="Auto")
    edit(engine_of(world))
    world.turn()
    for _ in range(3):
        world.turn()
        world.measure_arm()
    world.turn()
    found = arm(world, "eagle/adaptive")
    assert (found["phase"], found["reason"]) == ("Skipped", "EngineConfigRefused")
    assert words in found["message"]
    assert "startedTime" not in found


@pytest.mark.parametrize(
    ("image", "phase"),
    [
        ("vllm/vllm-openai:v0.33.0", "Skipped"),
        ("vllm/vllm-openai:v0.34.0", "Done"),
        ("registry.example.com/own:latest", "Done"),
    ],
)
def test_suffixes_are_verified_adaptively_where_the_version_looks_them_up_on_the_gpu(image, phase):
    world = world_with(method="suffix", adaptiveVerification="Auto", schedule="Never")
    assert world.service is not None
    del world.service["spec"]["candidates"]["methods"][0]["model"]
    engine_of(world).update(image=image)
    world.turn()
    for _ in range(4):
        if arm(world, "eagle/adaptive")["phase"] in {"Done", "Skipped"}:
            break
        world.turn()
        if world.jobs:
            world.measure_arm()
            world.turn()
    found = arm(world, "eagle/adaptive")
    assert found["phase"] == phase
    if phase == "Skipped":
        assert "vLLM up to 0.33 looks suffixes up on the CPU" in found["message"]


@pytest.mark.parametrize(
    ("image", "allowed", "phase"),
    [
        ("vllm/vllm-openai:v0.19.0", "Refuse", "Skipped"),
        ("vllm/vllm-openai:v0.19.0", "Allow", "Done"),
        ("vllm/vllm-openai:v0.20.0", "Refuse", "Done"),
        ("registry.example.com/own:latest", "Refuse", "Done"),
    ],
)
def test_a_method_that_the_image_s_version_does_not_have_costs_no_start(image, allowed, phase):
    world = world_with(method="dflash", model="org/heads", unknownMethod=allowed)
    engine_of(world).update(image=image)
    world.turn()
    for _ in range(3):
        if arm(world, "eagle/7")["phase"] in {"Done", "Skipped"}:
            break
        world.turn()
        if world.jobs:
            world.measure_arm()
            world.turn()
    found = arm(world, "eagle/2")
    assert found["phase"] == phase
    if phase == "Skipped":
        assert found["message"].startswith("method dflash: vLLM 0.19 does not know it (0.20 and newer does)")


def candidates(**more: object) -> Candidates:
    one = {"name": "eagle", "method": "eagle3", "model": "org/head", "draftLengths": [2, 7], **more}
    return Candidates.model_validate({"methods": [one]})


def test_it_is_an_arm_by_default_of_every_method_that_a_model_drafts_and_of_no_other():
    known = Candidates.model_validate(
        {
            "methods": [
                {"name": "eagle", "method": "eagle3", "model": "org/head", "draftLengths": [2, 7]},
                {"name": "own", "method": "deepseek_mtp", "draftLengths": [1]},
                {"name": "copy", "method": "ngram", "draftLengths": [4]},
                {"name": "fixed", "method": "mtp", "draftLengths": [3], "adaptiveVerification": "Never"},
            ]
        }
    )
    found = [arm for arm in known.measurable_arms() if arm.adaptive]
    assert [(arm.name, arm.k) for arm in found] == [("eagle/adaptive", 7), ("own/adaptive", 1)]


def test_graphs_that_are_full_are_no_reason_against_it():
    world = world_with(adaptiveVerification="Auto")
    engine_of(world)["args"].append('--compilation-config={"cudagraph_mode": "FULL_AND_PIECEWISE"}')
    world.turn()
    for _ in range(3):
        world.turn()
        world.measure_arm()
    world.turn()
    assert world.measure_arm() == "eagle/adaptive"


def test_what_runs_is_recognised_by_how_its_drafts_are_verified():
    known = candidates(adaptiveVerification="Auto")
    adaptive, static = (known.speculative_config(one) for one in (ADAPTIVE, Arm("eagle3", 7, "eagle")))
    assert arm_of_value(adaptive, known).arm == ADAPTIVE
    assert arm_of_value(static, known).arm == Arm("eagle3", 7, "eagle")


def test_adaptive_verification_that_is_no_candidate_is_a_foreign_arm():
    value = candidates(adaptiveVerification="Auto").speculative_config(ADAPTIVE)
    found = arm_of_value(value, candidates(adaptiveVerification="Never")).arm
    assert found == Arm("eagle3", 7, scheduled=True, adaptive=True)
