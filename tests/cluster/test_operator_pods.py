"""A pod that has ended and is still listed, and one that the API server refuses, on the real controllers."""

import json

from operatorcluster import manifests
from operatorcluster.stage import decision
from operatorcluster.waiting import until

ROLLED = {"spec": {"updatePolicy": {"mode": "RollingUpdate", "pinnedArm": "eagle/3"}}}


def serve(place):
    place.managed(updatePolicy={"mode": "Recommend"})
    place.until_service("it serves", lambda status: (status.get("target") or {}).get("readyReplicas"))


def leave(place, name):
    """A pod of the target's ReplicaSet that was evicted, and that nobody has collected."""
    place.apply({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "vllm", "image": "busybox"}]},
    })  # fmt: skip
    failed = json.dumps({"status": {"phase": "Failed", "reason": "Evicted"}})
    place.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", f"--patch={failed}")
    serving = next(
        pod["metadata"] for pod in place.all("pod") if pod["metadata"]["name"].startswith(manifests.TARGET)
    )
    adopted = {"labels": serving["labels"], "ownerReferences": serving["ownerReferences"]}
    place.patch("pod", name, {"metadata": adopted})


def test_a_pod_that_was_evicted_undoes_no_roll(place):
    serve(place)
    leave(place, "left-behind")
    place.patch("specsvc", "chat", ROLLED)
    place.until_settled("eagle/3")
    assert len(place.writes()) == 1
    assert "RollUndone" not in place.reasons()
    assert place.get("pod", "left-behind")


def test_a_volume_that_cannot_be_mounted_is_said_in_an_events_words(place):
    """Neither a condition nor a container says it; the API server selects the pod's events by field."""
    target = manifests.target()
    spec = target["spec"]["template"]["spec"]
    spec["volumes"] = [{"name": "template", "configMap": {"name": "template"}}]
    place.apply(target, manifests.service(updatePolicy={"mode": "Recommend"}))
    made = place.until_decided("EngineNotStarting", said="FailedMount")
    assert "template" in made["message"]
    until("an event says it", lambda: "template" in place.reasons().get("EngineNotStarting", ""))
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "template"}, "data": {"a": "b"}}
    place.apply(files)
    place.until_service(
        "it serves and says so", lambda status: decision(status).get("reason") != "EngineNotStarting"
    )


def test_a_quota_that_refuses_the_new_pod_is_said_in_its_words(place):
    serve(place)
    place.apply({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}},
    })  # fmt: skip
    used = ("get", "resourcequota", "few", "--output=jsonpath={.status.used.pods}")
    until("the quota counts", lambda: place.kubectl(*used))
    place.patch("specsvc", "chat", ROLLED)
    place.until_decided(
        "QuotaExceeded", said="exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1"
    )
    place.kubectl("delete", "resourcequota", "few")
    place.until_settled("eagle/3")
    assert len(place.writes()) == 1
