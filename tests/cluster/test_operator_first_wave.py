"""The first wave of a roll on the real StatefulSet controller: held by a partition, measured, released or undone.

The real Prometheus sees each pod at the latency of the arm that it really runs, as in `test_operator_confirms`.
`test_operator_lws` has the same of LeaderWorkerSets.
"""

import pytest

from operatorcluster import manifests
from operatorcluster.first_waves import REPLICAS, loses, released, waved


@pytest.fixture
def wave(place):
    target = manifests.stateful_target(REPLICAS)
    del target["spec"]["template"]["metadata"]["annotations"]
    with waved(place, target, manifests.stateful_service) as wave:
        yield wave


def test_it_is_held_measured_and_released_and_a_killed_operator_goes_on(wave):
    released(wave)


def test_one_that_loses_is_undone_with_one_pod_touched(wave):
    loses(wave)
    status = wave.manifest["status"]
    assert status["currentRevision"] == status["updateRevision"]


def test_a_partition_that_a_person_sets_to_0_releases_it_and_is_theirs(wave):
    wave.held()
    writes = wave.writes
    wave.set_partition(0)
    assert "another hand has changed the partition" in wave.place.until_event("FirstWaveReleased")
    wave.place.until_runs("eagle/3", REPLICAS)
    assert (wave.writes, wave.partition, wave.owners) == (writes, 0, ["kubectl-patch"])
