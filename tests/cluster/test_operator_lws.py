"""LeaderWorkerSets as targets on their real controller: found when the kind comes, measured, rolled there and back, undone.

The controller is an optional program. Where it is missing, these tests are skipped; BREAKEVEN_CONTROLLERS=build builds it.
"""

import pytest

from operatorcluster import manifests
from operatorcluster.optional import needs_controller
from operatorcluster.stage import condition
from operatorcluster.there_and_back import put_on_troubled, start_troubled, there_and_back, undone
from operatorcluster.users import users
from operatorcluster.waiting import until

# Product files whose change runs these tests at the next landing.
COVERS = ("operator/breakeven_operator/workloads/",)

CONTROLLER = "lws-controller"
GROUPS = 2
SURGE = {"rollingUpdateConfiguration": {"maxUnavailable": 0, "maxSurge": 1}}
pytestmark = needs_controller(CONTROLLER, "two minutes")


@pytest.fixture(scope="module")
def controller(stage):
    stage.cluster.start_controller(CONTROLLER)


@pytest.fixture
def grouped(place, controller):
    return place


def pods(place):
    """Uids by name."""
    return {
        pod["metadata"]["name"]: pod["metadata"]["uid"]
        for pod in place.all("pod")
        if pod["metadata"]["name"].startswith(f"{manifests.TARGET}-")
        and "deletionTimestamp" not in pod["metadata"]
    }


def annotations(place):
    """The arm in each template."""
    templates = place.get("leaderworkerset", manifests.TARGET)["spec"]["leaderWorkerTemplate"]
    return {
        name: (part["metadata"].get("annotations") or {}).get(manifests.ANNOTATION)
        for name, part in templates.items()
        if name.endswith("Template")
    }


def test_a_cluster_without_the_kind_holds_up_nobody_and_the_target_is_found_when_it_comes(place, request):
    place.apply(
        manifests.target("other"),
        manifests.service("other", "other", updatePolicy={"mode": "Disabled"}),
        manifests.grouped_service(updatePolicy={"mode": "Recommend"}),
    )
    said = place.until_decided("TargetUnreadable")["message"]
    assert "LeaderWorkerSet chat-vllm cannot be read: the API server gives no LeaderWorkerSets" in said
    place.until_service(
        "the other's target serves",
        lambda status: status.get("target", {}).get("readyReplicas") == 1,
        "other",
    )
    request.getfixturevalue("controller")
    place.apply(manifests.grouped_target(1))
    place.until_service("its group serves", lambda status: status.get("target", {}).get("readyReplicas") == 1)


@pytest.mark.claim(
    "README.md",
    "Deployments, StatefulSets, LeaderWorkerSets, Argo Rollouts and KServe's LLMInferenceServices and InferenceServices are rolled.",
)
def test_a_group_of_one_is_measured_and_rolled_there_and_back_and_no_request_is_lost(grouped, shows):
    target = manifests.grouped_target(1)
    target["spec"]["rolloutStrategy"] = SURGE
    grouped.apply(target, manifests.grouped_service(updatePolicy={"pinnedArm": "none"}))
    grouped.until_calibrated()
    grouped.until_runs("none", 1)
    first = pods(grouped)
    assert set(first) == {f"{manifests.TARGET}-0"}
    there = {}
    seen = there_and_back(grouped, 1, lambda: there.update(pods(grouped)))
    assert set(pods(grouped)) == set(there) == set(first)
    assert len({*first.values(), *there.values(), *pods(grouped).values()}) == 3
    assert seen.lost == []
    assert len(grouped.writes("leaderworkersets")) == 2
    assert grouped.writes("statefulsets") == []
    shows("LeaderWorkerSet", CONTROLLER, "looked at", "calibrated", "rolled", "operator killed", users=seen)


def test_a_group_of_two_is_not_copied_and_is_rolled_as_one_by_what_somebody_else_measured(grouped):
    grouped.apply(
        manifests.grouped_target(GROUPS, 2, leaders_apart=True),
        manifests.grouped_service(updatePolicy={"mode": "Recommend"}),
    )
    found = grouped.until_service(
        "no calibration copies a group",
        lambda status: condition({"status": status}, "Calibrated").get("reason") == "PodNotCopied",
    )
    assert "a group of 2 pods" in condition(found, "Calibrated")["message"]
    assert all(pod["metadata"]["name"] in pods(grouped) for pod in grouped.all("pod"))
    grouped.apply(manifests.profile(found["status"]["target"]["fingerprint"]))
    grouped.patch(
        "specsvc", "chat", {"spec": {"updatePolicy": {"mode": "RollingUpdate", "pinnedArm": "none"}}}
    )
    grouped.until_runs("none", GROUPS)
    before = pods(grouped)
    assert len(before) == 2 * GROUPS
    with users(grouped, 2.0) as outcomes:
        until("users are served", lambda: len(outcomes) > 5)
        grouped.pin("eagle/3")
        grouped.until_runs("eagle/3", GROUPS)
        values = annotations(grouped)
        assert set(values) == {"leaderTemplate", "workerTemplate"}
        assert len(set(values.values())) == 1
        assert "eagle" in values["workerTemplate"]
        until("every group has both of its pods again", lambda: pods(grouped).keys() == before.keys())
        assert not set(before.values()) & set(pods(grouped).values())
        grouped.pin("none")
        grouped.until_runs("none", GROUPS)
    assert [outcome for outcome in outcomes if outcome.error is not None] == []
    assert len(grouped.writes("leaderworkersets")) == 2


@pytest.fixture(scope="module")
def troubled(stage):
    return start_troubled(stage, "grouped")


def test_a_group_that_does_not_come_is_undone(grouped, troubled, shows):
    target = manifests.grouped_target(GROUPS)
    put_on_troubled(target["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"], "grouped")
    grouped.apply(
        manifests.profile(grouped.stage.fingerprint),
        target,
        # A group is made again when a pod of it exits, and counts no restart: only the deadline ends its roll.
        manifests.grouped_service(updatePolicy={"pinnedArm": "none", "rollDeadlineSeconds": 60}),
    )
    grouped.until_runs("none", GROUPS)
    untouched = pods(grouped)[f"{manifests.TARGET}-0"]
    assert undone(grouped, GROUPS).lost == []
    assert pods(grouped)[f"{manifests.TARGET}-0"] == untouched
    assert grouped.writes("pods") == []
    shows("LeaderWorkerSet", CONTROLLER, "undone")


def test_a_partition_that_leaves_groups_on_the_old_template_is_refused_with_the_way_out(grouped):
    target = manifests.grouped_target(1)
    target["spec"]["rolloutStrategy"] = {"rollingUpdateConfiguration": {"partition": 1}}
    grouped.apply(
        manifests.profile(grouped.stage.fingerprint),
        target,
        manifests.grouped_service(updatePolicy={"pinnedArm": "eagle/3"}),
    )
    said = grouped.until_decided("TargetPaused")["message"]
    assert "set spec.rolloutStrategy.rollingUpdateConfiguration.partition to 0" in said
    assert grouped.writes("leaderworkersets") == []


def patched(place, patch):
    """The API server's words to the operator's account; empty where it may do that."""
    return place.refused("leaderworkerset", patch)


def in_template(name, part):
    return {"spec": {"leaderWorkerTemplate": {name: part}}}


OURS = {"metadata": {"annotations": {manifests.ANNOTATION: "null"}}}


def test_the_operator_may_write_its_annotation_into_both_templates_and_change_nothing_else(grouped):
    grouped.apply(manifests.grouped_target(1, 2, leaders_apart=True))
    assert patched(grouped, in_template("leaderTemplate", OURS)) == ""
    assert patched(grouped, in_template("workerTemplate", OURS)) == ""
    for change, said in (
        (
            in_template("workerTemplate", {"metadata": {"annotations": {"x": "y"}}}),
            "no pod-template annotation but",
        ),
        (in_template("leaderTemplate", {"metadata": {"labels": {"x": "y"}}}), "nothing of the pods"),
        (in_template("workerTemplate", {"spec": {"nodeSelector": None}}), "nothing of the pods"),
        (in_template("leaderTemplate", None), "nothing of a workload but"),
        (in_template("size", 3), "nothing of a workload but"),
        ({"spec": {"replicas": 3}}, "nothing of a workload but"),
        ({"spec": {"rolloutStrategy": SURGE}}, "nothing of a workload but"),
        ({"metadata": {"finalizers": ["x.io/y"]}}, "no metadata of a workload"),
    ):
        assert f"Breakeven may change {said}" in patched(grouped, change), change


def test_no_template_may_be_added(grouped):
    grouped.apply(manifests.grouped_target(1))
    template = manifests.grouped_target(1)["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    assert "nothing of a workload but" in patched(grouped, in_template("leaderTemplate", template))
