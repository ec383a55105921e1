"""The recommended arm as a patch: what it would make the operator read of the target."""

from __future__ import annotations

import pytest
import yaml

from breakeven.errors import InputError
from breakeven_operator.plugin.service_view import ServiceView
from breakeven_operator.plugin.wanted_arm import difference, exported, needs_profile, wanted_arm
from fakes.fleet_world import TARGET, VALUE, as_leader_worker_set

ANNOTATION = "breakeven.dev/speculative-config"


def wanted(world, target=None, profile=None):
    target = target or world.cluster.objects[world.kind.plural, "llm", "chat-vllm"]
    return wanted_arm(ServiceView.of(world.service), target, profile)


def test_the_patch_is_what_the_operator_would_write(recommending, settled):
    text = exported(wanted(recommending))
    assert text.startswith("# Deployment/chat-vllm: eagle/3 is recommended\n")
    patch = yaml.safe_load(text)
    assert patch == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat-vllm", "namespace": "llm"},
        "spec": {"template": {"metadata": {"annotations": {ANNOTATION: settled.value}}}},
    }


def test_the_difference_shows_both_values_until_they_mean_the_same(recommending, settled):
    assert difference(wanted(recommending)).splitlines() == [
        "--- Deployment/chat-vllm runs no speculation",
        "+++ Deployment/chat-vllm should run eagle/3",
        f"+{ANNOTATION}: '{VALUE}'",
    ]
    assert difference(wanted(settled)) == "Deployment/chat-vllm runs what is recommended: eagle/3"
    settled.status["decision"]["arm"] = "none"
    assert difference(wanted(settled)).splitlines()[2:] == [
        f"-{ANNOTATION}: '{VALUE}'",
        f"+{ANNOTATION}: 'null'",
    ]


def test_equal_arms_are_equal_whether_flags_or_the_annotation_ask_for_them(recommending):
    recommending.status["current"]["arm"] = "eagle/3"
    assert difference(wanted(recommending)) == "Deployment/chat-vllm runs what is recommended: eagle/3"


def test_while_nothing_is_recommended_no_patch_is_printed(recommending):
    """The first calibration keeps the arm that runs, which is no recommendation of it."""
    recommending.status["workings"]["display"]["recommended"] = "-"
    recommending.status["decision"]["reason"] = "CalibrationRunning"
    for arm in ("none", "eagle/3", "eagle/schedule"):
        recommending.status["decision"]["arm"] = arm
        assert needs_profile(ServiceView.of(recommending.service)) is None
        with pytest.raises(InputError, match=r"recommends no arm yet \(CalibrationRunning\)"):
            wanted(recommending)


BARE = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "args": ["--model=org/model"]}


@pytest.mark.parametrize("arm", ["none", "eagle/3"])
@pytest.mark.parametrize(
    ("container", "lines"),
    [
        (BARE, ["add under containers[vllm].env:", "add under containers[vllm].args:"]),
        (
            BARE | {"args": [*BARE["args"], "--speculative-config={}"]},
            ["remove under containers[vllm].args:", "add under containers[vllm].env:"],
        ),
        (BARE | {"command": ["vllm", "serve", "org/model"], "args": []}, ["add under containers[vllm].env:"]),
    ],
)
def test_of_a_target_that_has_not_opted_in_the_lines_of_the_opt_in_are_printed_in_place_of_a_patch(
    recommending, arm, container, lines
):
    recommending.status["decision"]["arm"] = arm
    recommending.status["current"]["arm"] = "lookup/2"
    target = {"metadata": {"name": "chat-vllm"}, "spec": {"template": {"spec": {"containers": [container]}}}}
    found = wanted(recommending, target)
    for text in (exported(found), difference(found)):
        assert "no annotation chooses the arm of this target yet" in text
        assert all(line in text for line in [*lines, "- name: BREAKEVEN_SPECULATIVE_CONFIG"])
        assert "--speculative-config=$(BREAKEVEN_SPECULATIVE_CONFIG)" in text
        assert "none" not in text
    assert yaml.safe_load(exported(found)) is None, "kubectl apply has nothing to apply"


def test_without_a_manifest_that_can_be_read_the_operators_own_sentence_is_printed(recommending):
    recommending.status["target"]["optedIn"] = False
    (ready,) = [one for one in recommending.status["conditions"] if one["type"] == "Ready"]
    ready["message"] = "in its manifest, add these lines"
    assert "in its manifest, add these lines" in exported(wanted(recommending, {"metadata": {}, "spec": {}}))


def test_an_arm_of_the_command_line_differs_although_no_annotation_does(recommending):
    """A target that speculates by its own flags has no annotation, as one without speculation has none."""
    recommending.status["decision"]["arm"] = "none"
    recommending.status["current"]["arm"] = "eagle/3"
    assert difference(wanted(recommending)).splitlines()[-1] == f"+{ANNOTATION}: 'null'"


def test_a_schedule_has_the_table_that_was_measured(recommending):
    recommending.service["spec"]["candidates"]["methods"][0]["schedule"] = "Auto"
    recommending.status["decision"]["arm"] = "eagle/schedule"
    assert needs_profile(ServiceView.of(recommending.service)) == "chat-p1"
    arms = [{"arm": "eagle/schedule", "candidate": "eagle", "schedule": "1-8:3,9-:0"}]
    value = wanted(recommending, profile={"spec": {"arms": arms}}).value
    assert '"num_speculative_tokens_per_batch_size":[[1,8,3],[9,' in value
    with pytest.raises(
        InputError, match=r"status.decision.arm: is 'eagle/schedule'; expected one of none, eagle/3"
    ):
        wanted(recommending, profile={"spec": {"arms": []}})


def test_a_drafter_that_was_replaced_since_is_no_recommendation(recommending):
    profile = recommending.cluster.objects["speculationprofiles", "llm", "chat-p1"]
    assert needs_profile(ServiceView.of(recommending.service)) == "chat-p1"
    assert wanted(recommending, profile=profile).arm == "eagle/3"
    recommending.service["spec"]["candidates"]["methods"][0]["model"] = "org/head-v2"
    with pytest.raises(
        InputError, match="eagle/3 with the drafter that it had before; expected a calibration"
    ):
        wanted(recommending, profile=profile)


def test_adaptive_verification_needs_no_table_to_be_wanted(recommending):
    recommending.service["spec"]["candidates"]["methods"][0]["adaptiveVerification"] = "Auto"
    recommending.status["decision"]["arm"] = "eagle/adaptive"
    arms = [{"arm": "eagle/adaptive", "candidate": "eagle", "schedule": "adaptive"}]
    value = wanted(recommending, profile={"spec": {"arms": arms}}).value
    assert '"enable_adaptive_verification":true' in value


def test_both_templates_of_a_leader_worker_set_are_patched(recommending):
    target = as_leader_worker_set(TARGET)
    groups = target["spec"]["leaderWorkerTemplate"]
    groups["leaderTemplate"] = groups["workerTemplate"]
    recommending.service["spec"]["targetRef"] |= {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
    }
    patch = yaml.safe_load(exported(wanted(recommending, target)))["spec"]["leaderWorkerTemplate"]
    assert patch.keys() == {"leaderTemplate", "workerTemplate"}
    assert {part["metadata"]["annotations"][ANNOTATION] for part in patch.values()} == {VALUE}


def test_of_a_kind_that_is_only_looked_at_the_annotation_is_printed_alone(recommending):
    recommending.service["spec"]["targetRef"] |= {"apiVersion": "kubeai.org/v1", "kind": "Model"}
    text = exported(wanted(recommending, {"metadata": {"name": "chat-vllm"}}))
    assert "take annotations from another object: put this one there" in text
    assert yaml.safe_load(text) == {ANNOTATION: VALUE}


def test_the_annotations_of_a_kserve_object_are_patched_themselves(recommending):
    recommending.service["spec"]["targetRef"] |= {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
    }
    target = {"kind": "InferenceService", "metadata": {"name": "chat-vllm"}, "spec": {"predictor": {}}}
    patch = yaml.safe_load(exported(wanted(recommending, target)))
    assert patch["spec"] == {"predictor": {"annotations": {ANNOTATION: VALUE}}}


def test_a_rollout_that_borrows_its_template_is_not_patched_itself(recommending):
    recommending.service["spec"]["targetRef"] |= {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout"}
    rollout = {"spec": {"workloadRef": {"kind": "Deployment", "name": "chat"}}}
    assert yaml.safe_load(exported(wanted(recommending, rollout))) == {ANNOTATION: VALUE}


def test_without_a_recommendation_one_line_says_why(fresh):
    del fresh.status["decision"]["arm"]
    with pytest.raises(InputError, match=r"llm/chat: recommends no arm yet \(CalibrationRunning\)"):
        wanted(fresh)


def test_a_spec_of_a_newer_version_is_refused_with_its_field(recommending):
    recommending.service["spec"]["candidates"]["methods"][0]["tomorrow"] = 1
    with pytest.raises(InputError, match=r"methods.*tomorrow"):
        wanted(recommending)
