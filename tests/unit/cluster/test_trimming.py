"""A trimmed pod leads to the same decision as the whole pod, and is small."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from breakeven.serving.opt_in import ANNOTATION
from breakeven_operator.cluster.api_json import trimmed
from breakeven_operator.kinds import DEPLOYMENTS, PODS, RUN_LABEL
from breakeven_operator.workloads.known import DEPLOYMENT as KIND
from breakeven_operator.workloads.workload import NearbyObjects, observe

NOW = datetime(2026, 11, 20, 10, 5, tzinfo=UTC)
TIMES = st.sampled_from(["2026-11-20T10:00:00Z", "2026-11-20T10:03:00Z"])
DEPLOYMENT = {
    "metadata": {"namespace": "llm", "name": "chat-vllm", "uid": "d1"},
    "spec": {
        "replicas": 1,
        "template": {"spec": {"containers": [{"name": "vllm", "image": "vllm/vllm-openai:v0.32.0"}]}},
    },
}
REPLICA_SET = {
    "metadata": {"name": "chat-vllm-7d9f", "uid": "r1", "ownerReferences": [{"kind": "Deployment", "name": "chat-vllm", "uid": "d1", "controller": True}]}
}  # fmt: skip


def conditions(kind):
    return st.fixed_dictionaries(
        {"type": st.just(kind), "status": st.sampled_from(["True", "False"]), "lastTransitionTime": TIMES, "lastProbeTime": st.none()},
        optional={"reason": st.sampled_from(["Unschedulable", "ContainersNotReady"]), "message": st.text(max_size=40)},
    )  # fmt: skip


states: st.SearchStrategy = st.one_of(
    st.just({"running": {"startedAt": "2026-11-20T10:00:00Z"}}),
    st.just({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}),
    st.just({"terminated": {"reason": "OOMKilled", "exitCode": 137}}),
    st.just({}),
)
containers = st.fixed_dictionaries(
    {"name": st.sampled_from(["vllm", "proxy"]), "imageID": st.sampled_from(["", "docker.io/vllm@sha256:ab"]), "state": states, "ready": st.booleans()},
    optional={"restartCount": st.integers(0, 3), "lastState": states},
)  # fmt: skip


@st.composite
def pods(draw):
    meta = {
        "namespace": "llm",
        "name": "chat-vllm-7d9f-b2c4d",
        "uid": "p1",
        "resourceVersion": "7",
        "labels": {"app": "chat-vllm"},
        "annotations": draw(
            st.dictionaries(st.sampled_from(["breakeven.dev/speculative-config", "example.com/a"]), st.text(max_size=9))
        ),
        "managedFields": [{"manager": "kubelet"}],
        "ownerReferences": [
            {"kind": "Other", "name": "x", "uid": "x1"},
            {"kind": "ReplicaSet", "name": "chat-vllm-7d9f", "uid": draw(st.sampled_from(["r1", "r2"])), "controller": True},
        ],
    }  # fmt: skip
    if draw(st.booleans()):
        meta["deletionTimestamp"] = draw(st.sampled_from(["2026-11-20T10:05:00Z", "2026-11-20T10:00:00Z"]))
    status = {
        "phase": draw(st.sampled_from(["Running", "Failed", "Succeeded", "Unknown"])),
        **draw(st.sampled_from([{}, {"reason": "NodeLost"}])),
        "conditions": [draw(conditions(kind)) for kind in ("PodScheduled", "Initialized", "Ready")],
        "containerStatuses": draw(st.lists(containers, max_size=2)),
        "hostIP": "10.0.0.1",
    }
    spec = draw(st.sampled_from([{}, {"nodeName": "a100-0", "containers": [{"name": "vllm"}]}]))
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def observed(pod):
    nodes = {"a100-0": {"gpu": "A100"}}
    return observe(
        KIND,
        DEPLOYMENT,
        NearbyObjects([REPLICA_SET], [pod], nodes),
        container_name=None,
        gpu_label="gpu",
        now=NOW,
    )


@given(pods())
def test_a_target_is_observed_alike_by_what_is_kept_of_its_pods(pod):
    kept = trimmed(PODS, pod)
    assert observed(kept) == observed(pod)
    assert kept["metadata"]["resourceVersion"] == "7"
    assert len(json.dumps(kept)) < len(json.dumps(pod))


def test_what_many_pods_say_alike_is_kept_once():
    def pod():
        # Parsed apart, as two lines of a watch are.
        return json.loads(
            '{"metadata": {"namespace": "llm", "name": "a", "uid": "u"}, "spec": {"nodeName": "a100-0"},'
            ' "status": {"containerStatuses": [{"name": "vllm", "imageID": "docker.io/vllm@sha256:ab"}]}}'
        )

    one, other = trimmed(PODS, pod()), trimmed(PODS, pod())
    assert one["spec"]["nodeName"] is other["spec"]["nodeName"]
    assert one["metadata"]["namespace"] is other["metadata"]["namespace"]
    (first,), (second,) = (kept["status"]["containerStatuses"] for kept in (one, other))
    assert first["imageID"] is second["imageID"]


OWNED = st.sampled_from(
    [
        {"f:spec": {"f:template": {"f:metadata": {"f:annotations": {f"f:{ANNOTATION}": {}, "f:a": {}}}}}},
        {"f:spec": {"f:replicas": {}, "f:strategy": {"f:type": {}}}},
        {"f:spec": {"f:template": {"f:metadata": {"f:annotations": {}}}}, "f:metadata": {"f:labels": {}}},
        {},
    ]
)
writers = st.fixed_dictionaries(
    {
        "manager": st.sampled_from(["breakeven", "kubectl", "kube-controller-manager", "keda-operator"]),
        "operation": st.just("Update"),
        "time": TIMES,
        "fieldsV1": OWNED,
    },
    optional={"subresource": st.sampled_from(["scale", "status"])},
)


@given(st.lists(writers, max_size=4), st.booleans())
def test_a_target_is_observed_alike_by_what_is_kept_of_its_writers(entries, listed):
    meta = {**DEPLOYMENT["metadata"], **({"managedFields": entries} if listed else {})}
    whole = {**DEPLOYMENT, "metadata": meta}

    def seen(target):
        found = observe(
            KIND, target, NearbyObjects([REPLICA_SET]), container_name=None, gpu_label="gpu", now=NOW
        )
        return replace(found, manifest={})

    kept = trimmed(DEPLOYMENTS, whole)
    assert seen(kept) == seen(whole)
    assert kept["spec"] is whole["spec"]
    assert "f:strategy" not in json.dumps(kept)
    assert "f:labels" not in json.dumps(kept)


def test_a_calibrations_pod_is_kept_whole():
    pod = {
        "metadata": {"namespace": "llm", "name": "a", "labels": {RUN_LABEL: "run"}},
        "status": {"phase": "Pending"},
    }
    assert trimmed(PODS, pod) is pod
