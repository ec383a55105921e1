"""SIGKILL at the worst moments: everything needed to go on stands in the cluster, and nothing is done twice."""

import pytest

from operatorcluster import manifests
from operatorcluster.stage import HOME
from operatorcluster.waiting import until

pytestmark = pytest.mark.always

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{HOME}/leases/breakeven"


def test_killed_during_a_calibration_it_goes_on_with_the_points_it_has(place, stage):
    place.apply(manifests.target(), manifests.service(updatePolicy={"mode": "Recommend"}))

    def points():
        runs = place.all("calrun")
        return (runs[0].get("status") or {}).get("points") or [] if runs else []

    def some():
        found = points()
        return found if len(found) >= 2 else None

    before = until("two points are measured", some, seen=lambda: place.told("chat"))
    stage.kill_operator()
    place.until_calibrated()
    (run,) = place.all("calrun")
    assert run["status"]["phase"] == "Succeeded"
    assert [point for point in run["status"]["points"] if point in before] == before
    assert len(place.all("specprof")) == 1
    created = [event.name for event in place.writes("jobs") if event.verb == "create"]
    # Each start of the plan once; none is made twice.
    assert len(set(created)) == len(created) == len(run["status"]["plan"]["arms"]), created


@pytest.mark.claim("docs/faults.md", "| operator SIGKILLed in a roll |")
def test_killed_during_a_roll_it_finishes_it_without_a_second_one(place, stage):
    place.managed(updatePolicy={"pinnedArm": "eagle/3"})
    stage.kill_operator(during=place.is_rolling)
    place.until_settled("eagle/3")
    assert len(place.writes()) == 1
    sets = place.all("replicaset")
    assert len(sets) == 2, [item["metadata"]["name"] for item in sets]


def test_killed_its_successor_in_the_same_pod_goes_on_with_its_lease(stage):
    """A lock in the pod's emptyDir proves that the holder is dead; the Lease itself would say so half a minute later.

    A successor that had waited for the Lease to run out would have taken it under a name of its own.
    """
    before = stage.api.json(LEASE)["spec"]
    stage.kill_operator()
    last = stage.api.json(LEASE)["spec"]

    def renewed():
        found = stage.api.json(LEASE)["spec"]
        return found if found["renewTime"] > last["renewTime"] else None

    after = until("the lease is renewed", renewed)
    kept = ("holderIdentity", "acquireTime", "leaseTransitions")
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}
    assert after["holderIdentity"].startswith("breakeven-")
