"""Deployments as targets on the real controllers, in the same course as every other kind: measured, rolled there and back, undone."""

import pytest

from operatorcluster import manifests
from operatorcluster.there_and_back import put_on_troubled, start_troubled, there_and_back, undone

CONTROLLER = "kube-controller-manager"
PODS = 2


@pytest.mark.claim(
    "README.md",
    "Deployments, StatefulSets, LeaderWorkerSets, Argo Rollouts and KServe's LLMInferenceServices and InferenceServices are rolled.",
)
def test_it_is_measured_and_rolled_there_and_back_and_no_request_is_lost(place, shows):
    place.apply(manifests.target(), manifests.service(updatePolicy={"pinnedArm": "none"}))
    place.until_calibrated()
    place.until_runs("none", 1)
    seen = there_and_back(place, 1)
    assert seen.lost == []
    assert len(place.writes()) == 2
    shows("Deployment", CONTROLLER, "looked at", "calibrated", "rolled", "operator killed", users=seen)


def test_an_arm_that_does_not_start_is_undone(place, shows):
    start_troubled(place.stage, "plain")
    target = manifests.target()
    target["spec"]["replicas"] = PODS
    put_on_troubled(target["spec"]["template"]["spec"], "plain")
    place.apply(
        manifests.profile(place.stage.fingerprint),
        target,
        manifests.service(updatePolicy={"pinnedArm": "none"}),
    )
    place.until_runs("none", PODS)
    assert undone(place, PODS).lost == []
    shows("Deployment", CONTROLLER, "undone")
