"""People, autoscalers, quotas and nodes act on the target in the middle of a roll."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from operatorcluster import manifests
from operatorcluster.stage import condition, decision
from operatorcluster.waiting import until


def rolling(place, arm="eagle/3"):
    """A pinned target whose roll to another arm has begun."""
    place.patch("specsvc", "chat", {"spec": {"updatePolicy": {"pinnedArm": arm}}})
    place.until_service("a roll is under way", lambda status: (status.get("rollout") or {}).get("phase"))


@pytest.fixture
def pinned(place):
    place.managed(updatePolicy={"pinnedArm": "none"})
    place.until_settled("none")
    return place


def target_spec(place):
    return place.get("deployment", manifests.TARGET)["spec"]


def until_pods(place, arm, pods):
    return place.until_service(
        f"{pods} pods run {arm}",
        lambda status: (
            (status.get("current") or {}).get("podsByArm") == [{"arm": arm, "pods": pods}]
            and (status.get("rollout") or {}).get("phase", "Confirming") == "Confirming"
        ),
    )


@pytest.mark.always
def test_scaled_by_a_real_autoscaler_in_a_roll(pinned, facing):
    with facing(
        pinned,
        "HorizontalPodAutoscaler scales 1 to 3 in a roll",
        "the roll ends with 3 pods; replicas are not ours",
    ) as row:
        rolling(pinned)
        row.writes = 1
        pinned.apply(
            {
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "chat"},
                "spec": {
                    "minReplicas": 3,
                    "maxReplicas": 4,
                    "scaleTargetRef": {
                        "apiVersion": "apps/v1",
                        "kind": "Deployment",
                        "name": manifests.TARGET,
                    },
                },
            }
        )
        row.over()
        until_pods(pinned, "eagle/3", 3)
        row.recovered()
        row.seen = f"{target_spec(pinned)['replicas']} pods run eagle/3"


@pytest.mark.table
def test_paused_in_a_roll(pinned, facing):
    with facing(
        pinned, "kubectl rollout pause in a roll", "a word for it; the roll ends when it is resumed"
    ) as row:
        pinned.patch("specsvc", "chat", {"spec": {"updatePolicy": {"pinnedArm": "eagle/3"}}})
        row.writes = 1
        until("the annotation is written", pinned.writes)
        pinned.kubectl("rollout", "pause", f"deployment/{manifests.TARGET}")
        row.over()
        said = pinned.until_service(
            "the pause has been seen",
            lambda status: "Paused" in str(decision(status)) or "paused" in str(status),
        )
        pinned.kubectl("rollout", "resume", f"deployment/{manifests.TARGET}")
        until_pods(pinned, "eagle/3", 1)
        row.recovered()
        row.seen = decision(said["status"]).get("reason", "")


def test_deleted_and_made_again_in_a_roll(pinned, facing):
    with facing(
        pinned,
        "target deleted and made again in a roll",
        "a new target: nothing is put onto it before it serves",
    ) as row:
        rolling(pinned)
        first = pinned.get("deployment", manifests.TARGET)["metadata"]["uid"]
        pinned.kubectl("delete", f"deployment/{manifests.TARGET}", "--cascade=foreground")
        pinned.apply(manifests.target())
        second = pinned.get("deployment", manifests.TARGET)
        assert second["metadata"]["uid"] != first
        row.over()
        # The old roll, and one of the new target, as the pin asks for it.
        row.writes = 2
        until_pods(pinned, "eagle/3", 1)
        row.recovered()
        last = pinned.writes()[-1]
        ready = next(
            c["lastTransitionTime"]
            for c in pinned.get("deployment", manifests.TARGET)["status"]["conditions"]
            if c["type"] == "Available"
        )
        assert last.at >= dt.datetime.fromisoformat(ready), (last.at, ready)
        assert "Restored" not in pinned.reasons()
        row.seen = "nothing restored; rolled once it served"


@pytest.mark.table
def test_its_namespace_deleted_in_a_roll(stage, place, facing):
    """Another service beside it notices nothing."""
    place.managed(updatePolicy={"pinnedArm": "none"})
    place.until_settled("none")
    with facing(
        place, "another namespace deleted in its roll", "no error; the services beside it go on"
    ) as row:
        with stage.place("doomed") as doomed:
            doomed.managed(updatePolicy={"pinnedArm": "none"})
            doomed.until_settled("none")
            rolling(doomed)
            stage.cluster.kubectl("delete", "namespace", doomed.name, "--wait=false")
            until("it is terminating", lambda: not doomed.get("specsvc", "chat"))
        row.over()
        rolling(place)
        row.writes = 1
        until_pods(place, "eagle/3", 1)
        row.recovered()
        row.seen = "the service beside it rolled"


@pytest.mark.table
def test_a_disruption_budget_that_allows_nothing(pinned, facing):
    with facing(pinned, "PodDisruptionBudget maxUnavailable 0", "a roll by surge goes on") as row:
        pinned.apply(
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": "chat"},
                "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": manifests.TARGET}}},
            }
        )
        rolling(pinned)
        row.writes = 1
        row.over()
        until_pods(pinned, "eagle/3", 1)
        row.recovered()
        row.seen = "rolled"


@pytest.mark.table
def test_a_second_service_on_the_target(pinned, facing):
    with facing(pinned, "two services on one target", "the later one is refused and writes nothing") as row:
        pinned.apply(manifests.service("late", updatePolicy={"pinnedArm": "eagle/3"}))
        found = pinned.until_decided("AlreadyManaged", name="late")
        row.seen = f"{found['action']}, {found['reason']}"


def calibrated_says(status, reason, words):
    told = condition({"status": status}, "Calibrated")
    return told.get("reason") == reason and words in told["message"]


def test_an_image_that_never_comes(pinned, facing):
    with facing(
        pinned,
        "target's new image cannot be pulled",
        "Hold, ImagePullFailed with the image; the old pod serves; no write",
    ) as row:
        broken = manifests.target()
        manifests.engine(broken)["image"] = "registry.example.com/no-such-image:1"
        pinned.apply(broken)
        image, word = manifests.engine(broken)["image"], "ImagePullFailed"
        # First this: a pin that is read before the new template may be rolled.
        pinned.until_service("a condition says it", lambda status: calibrated_says(status, word, image))
        pinned.pin("eagle/3")
        said = pinned.until_decided(word, said=f"image {image} of pod")
        pinned.until_service(
            "the condition still says it", lambda status: calibrated_says(status, word, image)
        )
        until("an event says it", lambda: image in pinned.reasons().get(word, ""))
        assert pinned.annotation() in {None, "null"}
        pinned.apply(manifests.target())
        row.over()
        row.writes = 1
        until_pods(pinned, "eagle/3", 1)
        row.recovered()
        row.seen = f"Hold, {said['reason']}: in decision, condition and event"


@pytest.mark.table
def test_a_pod_that_was_evicted_and_stays_listed(pinned, facing):
    with facing(
        pinned, "evicted pod of the target stays listed", "it counts nowhere: the roll ends, and stays"
    ) as row:
        (serving,) = pinned.all("pod")
        spec = {"schedulerName": "nobody", "containers": [{"name": "vllm", "image": "busybox"}]}
        pinned.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "evicted"}, "spec": spec})
        failed = json.dumps({"status": {"phase": "Failed", "reason": "Evicted"}})
        pinned.kubectl("patch", "pod/evicted", "--subresource=status", "--type=merge", f"--patch={failed}")
        kept = {name: serving["metadata"][name] for name in ("labels", "ownerReferences")}
        pinned.patch("pod", "evicted", {"metadata": kept})
        rolling(pinned)
        row.writes = 1
        row.over()
        until_pods(pinned, "eagle/3", 1)
        row.recovered()
        assert pinned.get("pod", "evicted")
        assert "RollUndone" not in pinned.reasons()
        row.seen = "rolled"


def deep(kind, group, name, spec):
    """An object whose writer says of himself what no schema can forbid, 220 levels deep."""
    fields: dict[str, Any] = {".": {}}
    for _ in range(220):
        fields = {"f:a": fields}
    entry = {
        "manager": "bob",
        "operation": "Update",
        "apiVersion": group,
        "fieldsType": "FieldsV1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsV1": {"f:spec": fields},
    }
    return {
        "apiVersion": group,
        "kind": kind,
        "metadata": {"name": name, "managedFields": [entry]},
        "spec": spec,
    }


@pytest.mark.table
def test_objects_that_cannot_be_read_beside_it(pinned, stage, facing):
    ours, target = "breakeven.dev/v1alpha1", {**manifests.target()["spec"], "replicas": 0}
    service = {
        **manifests.service()["spec"],
        "targetRef": {**manifests.service()["spec"]["targetRef"], "name": "deep"},
    }
    made = (
        ("apps/v1", "deployments", "Deployment", target),
        (ours, "calibrationruns", "CalibrationRun", {"serviceRef": {"name": "nobody"}}),
        (ours, "speculativeservices", "SpeculativeService", service),
    )
    with facing(
        pinned, "objects nested 220 deep beside it", "named and counted; the good service goes on"
    ) as row:
        for group, plural, kind, spec in made:
            path = f"/apis/{group}/namespaces/{pinned.name}/{plural}"
            stage.api.create(path, deep(kind, group, "deep", spec))
        counted = "sum(breakeven_unreadable_objects_total) >= 3"
        until("they are counted", lambda: stage.query(counted))
        rolling(pinned)
        row.writes = 1
        row.over()
        until_pods(pinned, "eagle/3", 1)
        row.recovered()
        row.seen = f"{len(made)} counted; rolled"
