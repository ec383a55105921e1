"""KServe's services as targets: measured, rolled there and back by their parent, undone, and never written past it.

The controller of LLMInferenceServices is the real one, an optional program beside that of LeaderWorkerSets, of which services with
workers are made. Where one is missing, these tests are skipped; BREAKEVEN_CONTROLLERS=build builds it. The controller of
InferenceServices is played.
"""

import json

import pytest

import kind_facts
from operatorcluster import manifests
from operatorcluster.followed_predictors import played_predictors
from operatorcluster.optional import needs_controller
from operatorcluster.there_and_back import put_on_troubled, start_troubled, there_and_back, undone
from operatorcluster.waiting import until

# Product files whose change runs these tests at the next landing.
COVERS = ("operator/breakeven_operator/workloads/",)

CONTROLLER = "llmisvc-controller"
CHILD = f"{manifests.TARGET}-kserve"
GROUPS = 2
pytestmark = needs_controller(CONTROLLER, "six minutes")


@pytest.fixture(scope="module")
def controller(stage):
    stage.cluster.start_controller("lws-controller")
    stage.cluster.start_controller(CONTROLLER)


@pytest.fixture
def served(place, controller):
    return place


def apply(place, *documents):
    """Server-side apply: a client-side one would own the annotation's map."""
    place.apply(*documents, options=("--server-side",))


def asked(place):
    """The arm that the parent asks for."""
    found = place.get("llminferenceservice", manifests.TARGET)["spec"]["annotations"]
    return found.get(manifests.ANNOTATION)


@pytest.mark.claim(
    "README.md",
    "Deployments, StatefulSets, LeaderWorkerSets, Argo Rollouts and KServe's LLMInferenceServices and InferenceServices are rolled.",
)
def test_a_preset_is_measured_and_rolled_there_and_back_by_its_parent_and_no_request_is_lost(served, shows):
    apply(served, manifests.preset_target(1), manifests.preset_service(updatePolicy={"pinnedArm": "none"}))
    served.until_calibrated()
    served.until_runs("none", 1)
    given = []
    seen = there_and_back(served, 1, lambda: given.append((asked(served), served.annotation(CHILD))))
    ((parent, child),) = given
    assert parent == child
    assert "eagle" in child
    assert seen.lost == []
    assert len(served.writes("llminferenceservices")) == 2
    assert served.writes("deployments") == []
    shows(
        "LLMInferenceService", CONTROLLER, "looked at", "calibrated", "rolled", "operator killed", users=seen
    )


def test_the_first_arm_is_undone_by_a_value_because_the_controller_keeps_a_key_that_is_gone(served, shows):
    start_troubled(served.stage, "preset")
    target = manifests.preset_target(1)
    put_on_troubled(target["spec"]["template"], "preset")
    apply(served, target, manifests.preset_service(updatePolicy={"mode": "Disabled"}))
    found = served.until_service(
        "it serves", lambda status: status.get("target", {}).get("readyReplicas") == 1
    )
    apply(served, manifests.profile(found["status"]["target"]["fingerprint"]))
    assert asked(served) is None
    served.patch("specsvc", "chat", {"spec": {"updatePolicy": {"mode": "RollingUpdate"}}})
    assert undone(served, 1).lost == []
    assert asked(served) == "null"
    assert served.annotation(CHILD) == "null"
    shows("LLMInferenceService", CONTROLLER, "undone")


def test_with_workers_it_is_rolled_by_groups(served, shows):
    """The preset of data parallelism asks for capabilities that the node agent refuses: a namespace's own one takes its place."""
    apply(
        served,
        manifests.preset_of_groups(),
        manifests.preset_target_of_groups(GROUPS, 2),
        manifests.preset_service(updatePolicy={"mode": "Recommend"}),
    )
    found = served.until_service(
        "its groups serve", lambda status: status.get("target", {}).get("readyReplicas") == GROUPS
    )
    apply(served, manifests.profile(found["status"]["target"]["fingerprint"]))
    served.patch(
        "specsvc", "chat", {"spec": {"updatePolicy": {"mode": "RollingUpdate", "pinnedArm": "none"}}}
    )
    served.until_runs("none", GROUPS)
    seen = there_and_back(served, GROUPS)
    assert seen.lost == []
    groups = served.get("leaderworkerset", f"{CHILD}-mn")["spec"]["leaderWorkerTemplate"]
    values = {
        groups[part]["metadata"]["annotations"][manifests.ANNOTATION]
        for part in ("leaderTemplate", "workerTemplate")
    }
    assert values == {asked(served)}
    assert len(served.writes("llminferenceservices")) == 2
    assert served.writes("leaderworkersets") == []
    shows(
        "LLMInferenceService with workers", CONTROLLER, "looked at", "rolled", "operator killed", users=seen
    )


def test_a_service_on_the_child_is_led_to_the_parent(served):
    apply(
        served,
        manifests.preset_target(1),
        manifests.service(target_name=CHILD, updatePolicy={"pinnedArm": "none"}),
    )
    said = served.until_service(
        "the parent is named",
        lambda status: (
            "kind: LLMInferenceService, name: chat-vllm" in json.dumps(status.get("conditions") or [])
        ),
    )
    assert "TargetOwned" in json.dumps(said["status"]["conditions"])
    assert served.writes() == []


def test_an_inference_service_is_rolled_by_its_parent_on_a_played_controller(served, shows):
    with played_predictors(served):
        apply(
            served,
            manifests.predictor_target(1),
            manifests.predictor_service(updatePolicy={"pinnedArm": "none"}),
        )
        served.until_calibrated()
        served.until_runs("none", 1)
        seen = there_and_back(served, 1)
    assert seen.lost == []
    assert len(served.writes("inferenceservices")) == 2
    assert served.writes("deployments") == []
    shows(
        "InferenceService",
        kind_facts.PLAYED,
        "looked at",
        "calibrated",
        "rolled",
        "operator killed",
        users=seen,
    )


def test_an_inference_services_arm_that_does_not_start_is_undone(served, shows):
    start_troubled(served.stage, "predictor")
    target = manifests.predictor_target(1)
    put_on_troubled(target["spec"]["predictor"], "predictor")
    with played_predictors(served):
        apply(
            served,
            manifests.profile(served.stage.fingerprint),
            target,
            manifests.predictor_service(updatePolicy={"pinnedArm": "none"}),
        )
        served.until_runs("none", 1)
        assert undone(served, 1).lost == []
    shows("InferenceService", kind_facts.PLAYED, "undone")


OURS = {"annotations": {manifests.ANNOTATION: "null"}}


@pytest.mark.parametrize(
    ("kind", "target", "inside"),
    [
        ("llminferenceservice", manifests.preset_target(1), lambda part: {"spec": part}),
        ("inferenceservice", manifests.predictor_target(1), lambda part: {"spec": {"predictor": part}}),
    ],
)
def test_the_operator_may_write_its_annotation_and_change_nothing_else(served, kind, target, inside):
    apply(served, target)
    until("it is there", lambda: served.get(kind, manifests.TARGET))
    assert served.refused(kind, inside(OURS)) == ""
    for change, said in (
        (inside({"annotations": {"x": "y"}}), "no pod-template annotation but"),
        (inside({"annotations": None}), "no pod-template annotation but"),
        (inside({"labels": {"x": "y"}}), "nothing of a workload but"),
        (inside({"replicas" if kind.startswith("llm") else "minReplicas": 3}), "nothing of a workload but"),
        ({"metadata": {"labels": {"x": "y"}}}, "no metadata of a workload"),
    ):
        assert f"Breakeven may change {said}" in served.refused(kind, change), change
