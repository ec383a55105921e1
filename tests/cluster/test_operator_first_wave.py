"""The first wave of a roll on the real StatefulSet controller: held by a partition, measured, released or undone.

The real Prometheus sees each pod at the latency of the arm that it really runs, as in `test_operator_confirms`.
"""

import pytest

from operatorcluster import manifests
from operatorcluster.posed_pods import PosedPods
from operatorcluster.stage import decision
from operatorcluster.target_engine import EAGLE
from operatorcluster.waiting import until

PODS = 3
LAST = f"{manifests.TARGET}-{PODS - 1}"


@pytest.fixture
def posed(place):
    """Three pods without speculation, of which one comes first. Who made them owns the partition's default."""
    target = manifests.stateful_target(PODS)
    del target["spec"]["template"]["metadata"]["annotations"]
    target["spec"]["podManagementPolicy"] = "Parallel"
    with PosedPods(place) as posed:
        place.apply(
            manifests.profile(place.stage.fingerprint),
            target,
            manifests.stateful_service(
                updatePolicy={"firstWave": {"pods": 1, "deadlineSeconds": 300}, "pinnedArm": "none"}
            ),
        )
        place.until_runs("none", PODS)
        yield posed


def held(place):
    """The service once the wave stands; the pods below the partition run what they ran."""
    before = uids(place)
    place.pin(None)
    found = place.until_service(
        "the first wave is held", lambda status: decision(status).get("reason") == "FirstWaveHeld"
    )
    assert partition(place) == PODS - 1
    assert touched(place, before) == [LAST]
    assert "its first wave (1 of 3 pods) runs it" in place.until_event("FirstWaveHeld")
    return before, found


def uids(place):
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in place.all("pod")}


def touched(place, before):
    return sorted(name for name, uid in uids(place).items() if before.get(name) != uid)


def stateful_set(place):
    return place.get("statefulset", manifests.TARGET)


def partition(place):
    # The API server takes the part away whose only field is given up, and its controller then holds nothing.
    return stateful_set(place)["spec"]["updateStrategy"].get("rollingUpdate", {}).get("partition", 0)


def owners(place):
    """Field managers of the partition."""
    return [
        entry["manager"]
        for entry in stateful_set(place)["metadata"]["managedFields"]
        if "f:partition"
        in entry.get("fieldsV1", {}).get("f:spec", {}).get("f:updateStrategy", {}).get("f:rollingUpdate", {})
    ]


def test_it_is_held_measured_and_released_and_a_killed_operator_goes_on(place, posed, stage):
    before, found = held(place)
    assert owners(place) == ["breakeven"]
    began = found["status"]["rollout"]["waveTime"]
    stage.kill_operator()
    released = place.until_service(
        "the first wave is released", lambda status: "wavePartition" not in (status.get("rollout") or {})
    )
    assert released["status"]["rollout"]["waveTime"] == began
    assert " is released: measured " in place.until_event("FirstWaveReleased")
    place.until_runs("eagle/3", PODS)
    assert touched(place, before) == sorted(before)
    assert (partition(place), owners(place)) == (0, [])
    assert len(place.writes("statefulsets")) == 2
    confirmed = place.until_service("the roll is judged", lambda status: status.get("history"))
    assert confirmed["status"]["history"][0]["result"] == "Confirmed"


def test_one_that_loses_is_undone_with_one_pod_touched(place, posed):
    posed.slow[EAGLE] = 6.0
    before, _found = held(place)
    found = place.until_service("the roll is undone", lambda status: status.get("history"))
    entry = found["status"]["history"][0]
    assert (entry["result"], entry["reason"]) == ("Undone", "RollDisproved")
    assert float(entry["measuredSpeedupUpper"]) < 1.0
    assert touched(place, before) == [LAST]
    assert partition(place) == 0
    status = stateful_set(place)["status"]
    assert status["currentRevision"] == status["updateRevision"]
    assert len(place.writes("statefulsets")) == 2


def test_a_partition_that_a_person_sets_to_0_releases_it_and_is_theirs(place, posed):
    held(place)
    writes = len(place.writes("statefulsets"))
    place.patch(
        "statefulset",
        manifests.TARGET,
        {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}},
    )
    assert "another hand has changed the partition" in place.until_event("FirstWaveReleased")
    place.until_runs("eagle/3", PODS)
    assert len(place.writes("statefulsets")) == writes
    until("nobody else's partition is ours", lambda: "breakeven" not in owners(place))
