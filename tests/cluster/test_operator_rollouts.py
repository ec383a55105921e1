"""Argo Rollouts as targets on their real controller: measured, rolled by their own steps there and back, and aborted.

The controller is an optional program. Where it is missing, these tests are skipped; BREAKEVEN_CONTROLLERS=build builds it.
"""

import json

import pytest

from operatorcluster import manifests
from operatorcluster.optional import needs_controller
from operatorcluster.stage import OPERATOR, condition, decision
from operatorcluster.there_and_back import put_on_troubled, start_troubled, there_and_back, undone
from operatorcluster.waiting import until

# Product files whose change runs these tests at the next landing.
COVERS = ("operator/breakeven_operator/workloads/",)

CONTROLLER = "rollouts-controller"
PODS = 2
HALF: manifests.Manifest = {"setWeight": 50}
PAUSE: manifests.Manifest = {"pause": {}}
pytestmark = needs_controller(CONTROLLER, "six minutes")


@pytest.fixture(scope="module")
def controller(stage):
    stage.cluster.start_controller(CONTROLLER)


@pytest.fixture
def stepwise(place, controller):
    return place


def managed(place, target, **changes):
    place.apply(manifests.profile(place.stage.fingerprint), target, manifests.stepwise_service(**changes))


def set_status(place, change):
    """Write as kubectl's plugin does at `promote` and `abort`."""
    place.kubectl(
        "patch", "rollout", manifests.TARGET, "--subresource=status", "--type=merge", f"--patch={json.dumps({'status': change})}",
    )  # fmt: skip


def until_held(place, since=""):
    """The roll, once its pause holds it; with a time, once its deadline has moved beyond that."""
    found = place.until_service(
        "its pause holds it",
        lambda status: (
            "its pause holds it" in decision(status).get("message", "")
            and (status.get("rollout") or {}).get("deadlineTime", "") > since
        ),
    )
    return found["status"]["rollout"]


@pytest.mark.claim(
    "README.md",
    "Deployments, StatefulSets, LeaderWorkerSets, Argo Rollouts and KServe's LLMInferenceServices and InferenceServices are rolled.",
)
def test_it_is_measured_and_rolled_by_its_own_steps_there_and_back_and_no_request_is_lost(stepwise, shows):
    stepwise.apply(
        manifests.stepwise_target(1),
        manifests.stepwise_service(updatePolicy={"pinnedArm": "none"}),
    )
    stepwise.until_calibrated()
    stepwise.until_runs("none", 1)
    seen = there_and_back(stepwise, 1)
    assert seen.lost == []
    assert len(stepwise.writes("rollouts")) == 2
    status = stepwise.get("rollout", manifests.TARGET)["status"]
    assert status["phase"] == "Healthy"
    assert status["stableRS"] == status["currentPodHash"]
    shows("Rollout", CONTROLLER, "looked at", "calibrated", "rolled", "operator killed", users=seen)


def test_an_arm_that_does_not_start_is_undone(stepwise, shows):
    start_troubled(stepwise.stage, "stepwise")
    target = manifests.stepwise_target(PODS)
    put_on_troubled(target["spec"]["template"]["spec"], "stepwise")
    managed(stepwise, target, updatePolicy={"pinnedArm": "none"})
    stepwise.until_runs("none", PODS)
    assert undone(stepwise, PODS).lost == []
    shows("Rollout", CONTROLLER, "undone")


def test_a_pause_moves_the_deadline_along_until_its_user_goes_on(stepwise):
    managed(
        stepwise,
        manifests.stepwise_target(PODS, HALF, PAUSE),
        updatePolicy={"pinnedArm": "none", "rollDeadlineSeconds": 60},
    )
    stepwise.until_runs("none", PODS)
    stepwise.pin("eagle/3")
    first = until_held(stepwise)
    later = until_held(stepwise, first["deadlineTime"])
    assert later["id"] == first["id"]
    assert stepwise.get("specsvc", "chat")["status"]["current"]["podsByArm"] != [
        {"arm": "eagle/3", "pods": PODS}
    ]
    set_status(stepwise, {"pauseConditions": None})
    stepwise.until_runs("eagle/3", PODS)
    assert len(stepwise.writes("rollouts")) == 1


def test_an_aborted_update_is_neither_undone_nor_tried_again(stepwise):
    managed(stepwise, manifests.stepwise_target(PODS, HALF, PAUSE), updatePolicy={"pinnedArm": "none"})
    stepwise.until_runs("none", PODS)
    stepwise.pin("eagle/3")
    until_held(stepwise)
    set_status(stepwise, {"abort": True})
    assert "nothing is undone or tried again" in stepwise.until_event("RollAborted")
    found = stepwise.until_service(
        "it is not ready",
        lambda status: condition({"status": status}, "Ready").get("reason") == "TargetPaused",
    )
    assert "retry or undo it first" in condition(found, "Ready")["message"]
    until(
        "its controller went back",
        lambda: stepwise.get("rollout", manifests.TARGET)["status"].get("availableReplicas") == PODS,
    )
    assert len(stepwise.writes("rollouts")) == 1
    assert stepwise.get("specsvc", "chat")["status"]["history"][0]["result"] == "Superseded"
    # Its user undoes it: the operator keeps out until the service is handed back.
    undone = {"spec": {"template": {"metadata": {"annotations": {manifests.ANNOTATION: "null"}}}}}
    stepwise.kubectl("patch", "rollout", manifests.TARGET, "--type=merge", f"--patch={json.dumps(undone)}")
    stepwise.until_decided("TakenOver")
    assert len(stepwise.writes("rollouts")) == 1


def test_one_whose_template_stands_in_a_deployment_is_looked_at_and_not_rolled(stepwise):
    deployment = manifests.target()
    deployment["spec"]["replicas"] = 0
    target = manifests.stepwise_target(1)
    del target["spec"]["template"], target["spec"]["selector"]
    target["spec"]["workloadRef"] = {"apiVersion": "apps/v1", "kind": "Deployment", "name": manifests.TARGET}
    managed(stepwise, target, updatePolicy={"pinnedArm": "eagle/3"})
    stepwise.apply(deployment)
    said = stepwise.until_decided("TargetOwned")["message"]
    assert f"takes its pod template from Deployment {manifests.TARGET}" in said
    found = stepwise.get("specsvc", "chat")["status"]
    assert found["target"]["fingerprint"] == stepwise.stage.fingerprint
    assert stepwise.writes("rollouts") == stepwise.writes() == []


def test_the_operator_may_write_its_annotation_and_change_nothing_else(stepwise):
    stepwise.apply(manifests.stepwise_target(1))

    def refused(patch):
        done = stepwise.stage.cluster.kubectl(
            "patch", "rollout", manifests.TARGET, f"--namespace={stepwise.name}", f"--as={OPERATOR}", "--type=merge",
            f"--patch={json.dumps(patch)}", "--dry-run=server", check=False,
        )  # fmt: skip
        return done.stderr if done.returncode else ""

    assert (
        refused({"spec": {"template": {"metadata": {"annotations": {manifests.ANNOTATION: "null"}}}}}) == ""
    )
    for patch, said in (
        ({"spec": {"replicas": 3}}, "nothing of a workload but"),
        ({"spec": {"paused": True}}, "nothing of a workload but"),
        ({"spec": {"strategy": {"canary": {"maxSurge": 2}}}}, "nothing of a workload but"),
        ({"spec": {"template": {"metadata": {"labels": {"x": "y"}}}}}, "nothing of the pods"),
        ({"spec": {"template": {"spec": {"nodeSelector": None}}}}, "nothing of the pods"),
    ):
        assert f"Breakeven may change {said}" in refused(patch), patch
    abort = {"status": {"abort": True}}
    done = stepwise.stage.cluster.kubectl(
        "patch", "rollout", manifests.TARGET, f"--namespace={stepwise.name}", f"--as={OPERATOR}", "--type=merge",
        "--subresource=status", f"--patch={json.dumps(abort)}", check=False,
    )  # fmt: skip
    assert done.returncode != 0
