"""Arms that do not come up, and clusters that do not let them."""

from __future__ import annotations

import json

import pytest

from localcluster import GpuNode
from operatorcluster import manifests
from operatorcluster.stage import decision
from operatorcluster.target_engine import A100, COSTS
from operatorcluster.waiting import until

CRASHING, HANGING, LOSSY = (GpuNode(f"a100-{word}", A100, 4) for word in ("crashing", "hanging", "lossy"))
TAINT = "breakeven.dev/troubled"


def troubled(stage, node, costs):
    """A node whose engines have other costs, and where nobody else's pods go."""
    stage.cluster.start_nodes([node], agent=node.name, environment={"BREAKEVEN_SIM_COSTS": json.dumps(costs)})
    stage.cluster.kubectl("taint", "node", node.name, f"{TAINT}={node.name}:NoSchedule")


def target_on(node):
    manifest = manifests.target()
    spec = manifest["spec"]["template"]["spec"]
    spec["nodeSelector"]["kubernetes.io/hostname"] = node.name
    spec["tolerations"] = [{"key": TAINT, "operator": "Exists"}]
    return manifest


def managed_on(place, node, **policy):
    place.apply(
        manifests.profile(place.stage.fingerprint),
        target_on(node),
        manifests.service(updatePolicy={"pinnedArm": "none", **policy}),
    )
    place.until_settled("none")


def pin(place, arm):
    place.patch("specsvc", "chat", {"spec": {"updatePolicy": {"pinnedArm": arm}}})


def until_undone(place):
    """The last roll, once it has been undone and the old arm runs alone."""
    place.until_service(
        "the roll is undone", lambda status: (status.get("history") or [{}])[0].get("result") == "Undone"
    )
    place.until_settled("none")
    return place.get("specsvc", "chat")["status"]["history"][0]


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
        pin(place, "eagle/3")
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
        pin(place, "eagle/3")
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
            pin(place, "eagle/3")
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
        {"key": TAINT, "operator": "Exists"},
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
        pin(place, "eagle/3")
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
