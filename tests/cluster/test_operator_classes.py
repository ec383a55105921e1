"""A Deployment whose pods run on nodes of two GPU classes: each is calibrated on nodes of its own, and nothing is rolled."""

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


def test_each_class_is_measured_on_its_own_nodes_and_one_arm_is_recommended(place: Place) -> None:
    place.apply(manifests.profile(place.stage.fingerprint), on_both_classes())
    # Were the service there first, a target whose pod on the L40S is the first to run would be all L40S for a cycle.
    until(
        "a pod runs on each class",
        lambda: place.get("deployment", manifests.TARGET).get("status", {}).get("readyReplicas") == 2,
    )
    place.apply(manifests.service(updatePolicy={"pinnedArm": "eagle/3"}))
    made = place.until_decided("CalibrationRunning")
    assert L40S in made["message"]
    (run,) = place.all("calrun")
    assert run["spec"]["gpuProduct"] == L40S
    place.until_calibrated()
    made = place.until_decided("MixedGpuClasses")
    assert made["arm"] == "eagle/3"
    found = {one["gpu"]: (one["pods"], one["profile"]) for one in made["classes"]}
    (measured,) = (one for one in place.all("specprof") if one["spec"]["gpuProduct"] == L40S)
    assert found == {A100: (1, "chat-known"), L40S: (1, measured["metadata"]["name"])}
    ready = condition(place.get("specsvc", "chat"), "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "MixedGpuClasses")
    assert place.writes() == []
