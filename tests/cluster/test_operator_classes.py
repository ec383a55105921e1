"""A Deployment whose pods run on nodes of two GPU classes: it is neither calibrated nor rolled."""

from __future__ import annotations

from operatorcluster import manifests
from operatorcluster.stage import SECLUDED, Place, condition
from operatorcluster.target_engine import A100
from operatorcluster.waiting import until

L40S = SECLUDED.product
LABEL = "nvidia.com/gpu.product"


def on_both_classes() -> manifests.Manifest:
    """Two replicas, one on each class; the scheduler spreads them by the label of the class."""
    target = manifests.target()
    target["spec"]["replicas"] = 2
    spec = target["spec"]["template"]["spec"]
    del spec["nodeSelector"]
    terms = [{"matchExpressions": [{"key": LABEL, "operator": "In", "values": [A100, L40S]}]}]
    spec["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    }
    spec["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": LABEL,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": manifests.TARGET}},
        }
    ]
    return target


def test_a_target_on_two_classes_is_refused_by_name(place: Place) -> None:
    place.apply(manifests.profile(place.stage.fingerprint), on_both_classes())
    # Were the service there first, a target whose pod on the L40S is the first to be placed would be all L40S for a cycle.
    until(
        "a pod runs on each class",
        lambda: place.get("deployment", manifests.TARGET).get("status", {}).get("readyReplicas") == 2,
    )
    place.apply(manifests.service(updatePolicy={"pinnedArm": "eagle/3"}))
    made = place.until_decided("TargetRefused")
    assert made["action"] == "Hold"
    assert f"{A100} and {L40S}" in made["message"]
    ready = condition(place.get("specsvc", "chat"), "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "TargetRefused")
    assert place.all("calrun") == []
    assert place.writes() == []
