"""Arms that do not come up, and clusters that do not let them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from fakes.notes import memory_of
from faults.client import Ledger, streaming
from faults.conftest import RPS, repeats
from faults.test_operator_process import kill
from localcluster import GpuNode
from operatorcluster import manifests
from operatorcluster.stage import decision
from operatorcluster.target_engine import A100, COSTS
from operatorcluster.waiting import until

CRASHING, HANGING, LOSSY, UNDOING = (
    GpuNode(f"a100-{word}", A100, 4) for word in ("crashing", "hanging", "lossy", "undoing")
)
TAINT = "breakeven.dev/troubled"
FEW = 5


def troubled(stage, node, costs):
    """A node whose engines have other costs, and where nobody else's pods go."""
    stage.cluster.start_nodes([node], agent=node.name, environment={"BREAKEVEN_SIM_COSTS": json.dumps(costs)})
    stage.cluster.kubectl("taint", "node", node.name, f"{TAINT}={node.name}:NoSchedule")


def tolerated(node):
    """The taint of one troubled node: those of other rows stay, and would end engines that are put there."""
    return {"key": TAINT, "operator": "Equal", "value": node.name, "effect": "NoSchedule"}


def target_on(node):
    manifest = manifests.target()
    spec = manifest["spec"]["template"]["spec"]
    spec["nodeSelector"]["kubernetes.io/hostname"] = node.name
    spec["tolerations"] = [tolerated(node)]
    return manifest


def managed_on(place, node, **policy):
    place.apply(
        manifests.profile(place.stage.fingerprint),
        target_on(node),
        manifests.service(updatePolicy={"pinnedArm": "none", **policy}),
    )
    place.until_settled("none")


def until_undone(place):
    """The last roll, once it has been undone and the old arm runs alone."""
    place.until_service(
        "the roll is undone", lambda status: (status.get("history") or [{}])[0].get("result") == "Undone"
    )
    place.until_settled("none")
    return place.get("specsvc", "chat")["status"]["history"][0]


@pytest.mark.always
@pytest.mark.parametrize(
    ("node", "costs", "fault", "promised"),
    [
        # An engine that has no costs for a method ends as vLLM does on a configuration that it cannot serve.
        (
            CRASHING,
            {**COSTS, "methods": {}},
            "arm crashes at its start",
            "undone with its word; the old pod serves on",
        ),
        pytest.param(
            HANGING,
            {**COSTS, "startup": {**COSTS["startup"], "drafter_s": 3600.0}},
            "arm hangs before Ready",
            "undone at the deadline; the old pod serves on",
            marks=pytest.mark.table,
        ),
    ],
    ids=["crashes", "hangs"],
)
def test_an_arm_that_does_not_come_up(stage, place, facing, node, costs, fault, promised):
    troubled(stage, node, costs)
    managed_on(place, node, rollDeadlineSeconds=60)
    with facing(place, fault, promised) as row:
        place.pin("eagle/3")
        # There and back.
        row.writes = 2
        row.over()
        last = until_undone(place)
        row.recovered()
        row.seen = f"undone: {last['reason']}"


@pytest.mark.table
def test_a_quota_that_leaves_no_room(place, facing):
    place.managed(updatePolicy={"pinnedArm": "none"})
    place.until_settled("none")
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "tight"},
        "spec": {"hard": {"pods": "1"}},
    }
    place.apply(quota)
    until(
        "the quota counts",
        lambda: "1" in place.kubectl("get", "resourcequota/tight", "--output=jsonpath={.status.used.pods}"),
    )
    with facing(
        place, "ResourceQuota leaves no room for the new pod", "the quota's own words; no pod is lost"
    ) as row:
        place.pin("eagle/3")
        row.writes = 1
        place.until_service("the quota is named", lambda status: "quota" in json.dumps(status).lower())
        quota["spec"]["hard"]["pods"] = "4"
        place.apply(quota)
        row.over()
        place.until_settled("eagle/3")
        row.recovered()
        row.seen = "named, and rolled once there was room"


@pytest.mark.table
def test_a_policy_that_denies_the_write(place, facing):
    place.managed(updatePolicy={"pinnedArm": "none"})
    place.until_settled("none")
    with facing(
        place, "admission policy denies the write", "WriteRefused with its sentence; rolled once allowed"
    ) as row:
        with place.frozen("frozen until Monday"):
            place.pin("eagle/3")
            found = place.until_service(
                "it is refused", lambda status: decision(status).get("reason") == "WriteRefused"
            )
            assert "frozen until Monday" in json.dumps(found["status"])
        # A change of the spec tries at once; the back-off would take longer.
        place.patch("specsvc", "chat", {"spec": {"updatePolicy": {"cooldownSeconds": 1}}})
        row.writes = 1
        row.over()
        place.until_settled("eagle/3")
        row.recovered()
        row.seen = decision(found["status"])["reason"]


@pytest.mark.table
def test_a_node_that_is_lost(stage, place, facing):
    """Requests on a node that loses its power are lost: the row says how many, and promises only the roll."""
    troubled(stage, LOSSY, COSTS)
    manifest = manifests.target()
    spec = manifest["spec"]["template"]["spec"]
    spec["tolerations"] = [
        tolerated(LOSSY),
        *(
            {
                "key": f"node.kubernetes.io/{word}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 5,
            }
            for word in ("unreachable", "not-ready")
        ),
    ]
    manifest["spec"]["replicas"] = 2
    stage.cluster.kubectl("cordon", "a100-0")
    place.apply(
        manifests.profile(stage.fingerprint),
        manifest,
        # A node is called lost after 50 s; a deadline before that would be kept by the old pods.
        manifests.service(updatePolicy={"pinnedArm": "none", "rollDeadlineSeconds": 300}),
    )
    until(
        "both pods serve on the node",
        lambda: (place.get("deployment", manifests.TARGET).get("status") or {}).get("readyReplicas") == 2,
    )
    stage.cluster.kubectl("uncordon", "a100-0")
    with facing(
        place, "node lost in a roll", "the roll ends; pods of the lost node neither undo it nor hold it up"
    ) as row:
        row.excused = True
        place.pin("eagle/3")
        row.writes = 1
        place.until_service("a roll is under way", lambda status: (status.get("rollout") or {}).get("phase"))
        stage.cluster.stop_process(LOSSY.name)
        row.over()
        place.until_service(
            "two pods run it and no roll is under way",
            lambda status: (
                (status.get("current") or {}).get("podsByArm") == [{"arm": "eagle/3", "pods": 2}]
                and (status.get("rollout") or {}).get("phase", "Confirming") == "Confirming"
            ),
            timeout_s=400.0,
        )
        row.recovered()
        row.seen = "2 pods run eagle/3"
    stage.cluster.kubectl("delete", "node", LOSSY.name)


@pytest.mark.table
def test_killed_at_random_moments_of_undoings(stage, place, facing):
    """The word that lets the arm be tried again begins the next roll; its engines end at their start."""
    times = repeats(2)
    troubled(stage, UNDOING, {**COSTS, "methods": {}})
    managed_on(place, UNDOING, rollDeadlineSeconds=60)
    draw = random.Random(28)
    with facing(
        place, "operator SIGKILLed in an undoing", "the old arm runs again, with one write back", times=times
    ) as row:
        place.pin("eagle/3")
        for index in range(times):
            row.writes += 2
            place.patch(
                "specsvc", "chat", {"metadata": {"annotations": {"breakeven.dev/resume": f"{index}"}}}
            )
            # Or it is over already: its second write stays.
            place.until_service(
                "it is undone",
                lambda status: (
                    (status.get("rollout") or {}).get("phase") == "Undoing"
                    or len(place.writes()) == row.writes
                ),
            )
            time.sleep(draw.uniform(0.0, 3.0))
            pid = stage.running_operator()
            kill(stage)
            row.over()
            stage.running_operator(other_than=pid)
            # The history holds ten entries, however many undoings there were.
            place.until_service("the undoing has ended", lambda status: not status.get("rollout"))
            place.until_settled("none")
            row.recovered()
        row.seen = f"{times} undoings ended, with {row.writes} writes"


def chosen_by_figures(place):
    """An arm that pays, was entered and has its last word, beside enough requests from before it."""
    users = Ledger()
    with streaming(place, RPS, manifests.TARGET, users):
        place.managed(updatePolicy={"pinnedArm": "none"})
        until("a few windows are full", lambda: users.answered > 100)
        place.pin(None)
        place.until_settled("eagle/3")
        place.until_service("the roll has its last word", lambda status: not status.get("rollout"))


def engines(place):
    """Processes of the target's engines, by the addresses of their pods."""
    addresses = [pod["status"]["podIP"].encode() for pod in place.all("pod") if "podIP" in pod["status"]]
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes().split(b"\0")
            if b"engine-sim" in command and any(address in command for address in addresses):
                yield int(process.name)


def crashes(place):
    statuses = [one for pod in place.all("pod") for one in pod["status"].get("containerStatuses") or []]
    return sum(one["restartCount"] for one in statuses)


@pytest.mark.table
def test_an_arm_that_crashes_long_after_its_last_word(place, facing):
    """The engine is killed as the kernel kills one; requests in it are lost whatever the operator does."""
    chosen_by_figures(place)
    with facing(
        place, "arm crashes after its last word, three times", "ArmCrashes: left for none, and barred"
    ) as row:
        row.excused = True
        until("users are answered", lambda: row.users.answered > 5)
        for count in range(3):
            until("an engine runs", lambda: list(engines(place)), seen=lambda: place.told("chat"))
            for pid in engines(place):
                os.kill(pid, signal.SIGKILL)
            until(
                "it was started again",
                lambda count=count: crashes(place) > count or place.annotation() == "null",
            )
        row.over()
        row.writes = 1
        place.until_settled("none")
        row.recovered()
        status = place.get("specsvc", "chat")["status"]
        assert memory_of(status)["barred"][0]["reason"] == "ArmCrashes"
        row.seen = "left for none, barred"


@pytest.mark.table
def test_requests_that_fail_long_after_the_last_word(place, stage, facing):
    """A client that sends what a speculating engine refuses; others are answered throughout."""
    refused = Ledger()
    chosen_by_figures(place)
    with facing(
        place,
        "requests with min_p begin after the last word",
        "RollFailsRequests: left for none, barred, alert; the others lose nothing",
    ) as row:
        with streaming(place, RPS, manifests.TARGET, refused, min_p=0.1):
            row.writes = 1
            row.over()
            place.until_settled("none")
            row.recovered()
            answered = refused.answered
            until("they are answered without speculation", lambda: refused.answered > answered + FEW)
        barred = memory_of(place.get("specsvc", "chat")["status"])["barred"][0]
        assert barred["reason"] == "RollFailsRequests"
        series = f'breakeven_barred_arm_info{{specsvc_namespace="{place.name}",reason="RollFailsRequests"}}'
        until("the alert's series is there", lambda: stage.query(series))
        row.seen = (
            f"left for none, barred; {sum(refused.lost.values())} requests with min_p were refused before"
        )


@contextlib.contextmanager
def pod_security(place):
    """The standard `restricted` is enforced, which the target does not meet."""
    label, kubectl = "pod-security.kubernetes.io/enforce", place.stage.cluster.kubectl
    kubectl("label", "namespace", place.name, f"{label}=restricted")
    yield
    kubectl("label", "namespace", place.name, f"{label}-")


@contextlib.contextmanager
def dead_webhook(place):
    """A webhook for pods that nobody answers, and that must be asked."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    webhook = {
        "name": "pods.example.com",
        "clientConfig": {"url": "https://127.0.0.1:9/"},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place.name}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
    }
    place.stage.api.create(path, {"metadata": {"name": place.name}, "webhooks": [webhook]})
    yield
    place.stage.api.delete(f"{path}/{place.name}")


@pytest.mark.table
@pytest.mark.parametrize(
    ("refusing", "fault", "words"),
    [
        (pod_security, "PodSecurity admission refuses the new pod", "violates PodSecurity"),
        (dead_webhook, "webhook for pods is away", "failed calling webhook"),
    ],
    ids=["PodSecurity", "webhook"],
)
def test_admission_that_refuses_the_new_pod(place, facing, refusing, fault, words):
    place.managed(updatePolicy={"pinnedArm": "none", "rollDeadlineSeconds": 300})
    place.until_settled("none")
    with facing(place, fault, "AdmissionDenied with its words; no pod is lost; rolled once allowed") as row:
        with refusing(place):
            place.pin("eagle/3")
            row.writes = 1
            said = place.until_decided("AdmissionDenied", said=words)
        row.over()
        place.until_settled("eagle/3")
        row.recovered()
        row.seen = f"{said['reason']}: {words}"


def test_a_volume_that_the_new_pod_cannot_mount(place, facing):
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "template"}, "data": {"a": "b"}}
    target = manifests.target()
    spec = target["spec"]["template"]["spec"]
    spec["volumes"] = [{"name": "template", "configMap": {"name": "template"}}]
    place.apply(files, manifests.profile(place.stage.fingerprint), target)
    place.apply(manifests.service(updatePolicy={"pinnedArm": "none"}))
    place.until_settled("none")
    with facing(
        place, "volume of the new pod cannot be mounted", "the event's words; the old pod serves; then rolled"
    ) as row:
        place.kubectl("delete", "configmap", "template")
        place.pin("eagle/3")
        row.writes = 1
        said = place.until_decided("EngineNotStarting", said="FailedMount")
        place.apply(files)
        row.over()
        place.until_settled("eagle/3")
        row.recovered()
        row.seen = f"{said['reason']}, FailedMount"
