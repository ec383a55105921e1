"""StatefulSets as targets on the real controllers: measured, rolled there and back, and an undo that a broken pod blocks."""

import re
import shlex

import pytest

from operatorcluster import manifests
from operatorcluster.stage import decision
from operatorcluster.there_and_back import put_on_troubled, start_troubled, there_and_back, undone
from operatorcluster.users import users
from operatorcluster.waiting import until

# Product files whose change runs these tests at the next landing.
COVERS = ("operator/breakeven_operator/workloads/",)

PODS = 2
CONTROLLER = "kube-controller-manager"


def managed(place, target, **changes):
    place.apply(manifests.profile(place.stage.fingerprint), target, manifests.stateful_service(**changes))


def uids(place):
    return {
        pod["metadata"]["name"]: pod["metadata"]["uid"]
        for pod in place.all("pod")
        if pod["metadata"]["name"].startswith(f"{manifests.TARGET}-")
    }


@pytest.mark.always
@pytest.mark.claim(
    "README.md",
    "Deployments, StatefulSets, LeaderWorkerSets, Argo Rollouts and KServe's LLMInferenceServices and InferenceServices are rolled.",
)
def test_it_is_rolled_there_and_back_under_load_and_no_request_is_lost(place, shows):
    managed(place, manifests.stateful_target(PODS), updatePolicy={"pinnedArm": "none"})
    place.until_runs("none", PODS)
    first = uids(place)
    assert set(first) == {f"{manifests.TARGET}-{ordinal}" for ordinal in range(PODS)}
    there = {}
    seen = there_and_back(place, PODS, lambda: there.update(uids(place)))
    assert len({*first.values(), *there.values(), *uids(place).values()}) == 3 * PODS
    assert seen.lost == []
    assert len(place.writes("statefulsets")) == 2
    status = place.get("statefulset", manifests.TARGET)["status"]
    assert status["currentRevision"] == status["updateRevision"]
    shows("StatefulSet", CONTROLLER, "looked at", "rolled", "operator killed", users=seen)


def test_its_pods_are_copied_and_measured(place, shows):
    place.apply(manifests.stateful_target(1), manifests.stateful_service(updatePolicy={"mode": "Recommend"}))
    found = place.until_calibrated()
    assert found["status"]["target"]["readyReplicas"] == 1
    assert place.writes("statefulsets") == []
    shows("StatefulSet", CONTROLLER, "calibrated")


@pytest.fixture(scope="module")
def troubled(stage):
    return start_troubled(stage, "stateful")


def troubled_target(**spec):
    target = manifests.stateful_target(PODS)
    target["spec"] |= spec
    put_on_troubled(target["spec"]["template"]["spec"], "stateful")
    return target


def test_pods_that_are_managed_in_parallel_block_no_undo(place, troubled, shows):
    target = troubled_target(podManagementPolicy="Parallel")
    managed(place, target, updatePolicy={"pinnedArm": "none"})
    place.until_runs("none", PODS)
    assert undone(place, PODS).lost == []
    assert "UndoBlocked" not in place.reasons()
    shows("StatefulSet", CONTROLLER, "undone")


def test_an_undo_says_which_pod_is_deleted_by_hand_and_ends_when_it_is(place, troubled):
    """The controller waits for a pod that never became Ready, although the template asks no more of it."""
    target = troubled_target()
    managed(place, target, updatePolicy={"pinnedArm": "none"})
    place.until_runs("none", PODS)
    before = uids(place)
    with users(place, 2.0) as outcomes:
        until("users are served", lambda: len(outcomes) > 5)
        place.pin("eagle/3")
        found = place.until_service(
            "the undo is blocked", lambda status: decision(status).get("reason") == "UndoBlocked"
        )
        until("an event says it", lambda: "UndoBlocked" in place.reasons())
        said = re.search(
            r"kubectl (delete pod [\w-]+) --namespace ([\w-]+)", decision(found["status"])["message"]
        )
        assert said is not None, decision(found["status"])
        assert said[2] == place.name
        assert place.get("pod", f"{manifests.TARGET}-0")["metadata"]["uid"] == before[f"{manifests.TARGET}-0"]
        # The controller has seen the old template again, and leaves the broken pod.
        seen = place.get("statefulset", manifests.TARGET)
        assert seen["status"]["observedGeneration"] == seen["metadata"]["generation"]
        broken = place.get("pod", f"{manifests.TARGET}-{PODS - 1}")["metadata"]
        assert broken["labels"]["controller-revision-hash"] != seen["status"]["updateRevision"]
        assert "deletionTimestamp" not in broken
        place.kubectl(*shlex.split(said[1]))
        place.until_runs("none", PODS)
        assert place.until_event("RolledBack")
    assert [outcome for outcome in outcomes if outcome.error is not None] == []
    assert place.get("specsvc", "chat")["status"]["history"][0]["result"] == "Undone"
    assert place.writes("pods") == []


def test_a_quota_that_refuses_the_next_pod_is_said_in_its_words(place):
    """A StatefulSet's status does not say so: the API server is asked for the events about it."""
    managed(place, manifests.stateful_target(PODS), updatePolicy={"pinnedArm": "none"})
    place.until_runs("none", PODS)
    place.apply({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}},
    })  # fmt: skip
    used = ("get", "resourcequota", "few", "--output=jsonpath={.status.used.pods}")
    until("the quota counts", lambda: place.kubectl(*used))
    with users(place, 2.0):
        place.pin("eagle/3")
        place.until_decided("QuotaExceeded", said="exceeded quota: few, requested: pods=1")
        place.kubectl("delete", "resourcequota", "few")
        place.until_runs("eagle/3", PODS)
    assert len(place.writes("statefulsets")) == 1


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ({"type": "OnDelete"}, "spec.updateStrategy.type to RollingUpdate"),
        ({"rollingUpdate": {"partition": 1}}, "spec.updateStrategy.rollingUpdate.partition to 0"),
    ],
    ids=["OnDelete", "partition"],
)
def test_one_that_its_controller_would_not_roll_is_refused_with_the_way_out(place, strategy, said):
    target = manifests.stateful_target(1)
    target["spec"]["updateStrategy"] = strategy
    managed(place, target, updatePolicy={"pinnedArm": "eagle/3"})
    assert said in place.until_decided("TargetPaused")["message"]
    assert place.writes("statefulsets") == []
