"""SIGKILL at the worst moments: everything needed to go on stands in the cluster, and nothing is done twice."""

import os
import signal

from operatorcluster import manifests
from operatorcluster.waiting import until


def kill_operator(stage):
    """Ends its process and returns when another one is Ready."""
    pid = stage.operator_pid()
    os.kill(pid, signal.SIGKILL)

    def another():
        try:
            return stage.operator_pid() != pid
        except ValueError:
            return False

    until("another process of the operator runs", another)


def test_killed_during_a_calibration_it_goes_on_with_the_points_it_has(place, stage):
    place.apply(manifests.target(), manifests.service(updatePolicy={"mode": "Recommend"}))

    def points():
        runs = place.all("calrun")
        return (runs[0].get("status") or {}).get("points") or [] if runs else []

    def some():
        found = points()
        return found if len(found) >= 2 else None

    before = until("two points are measured", some, seen=lambda: place.told("chat"))
    kill_operator(stage)
    place.until_calibrated()
    (run,) = place.all("calrun")
    assert run["status"]["phase"] == "Succeeded"
    assert [point for point in run["status"]["points"] if point in before] == before
    assert len(place.all("specprof")) == 1
    created = [event for event in place.writes("jobs") if event.verb == "create"]
    assert len(created) == 2, [event.name for event in created]


def test_killed_during_a_roll_it_finishes_it_without_a_second_one(place, stage):
    place.managed(updatePolicy={"pinnedArm": "eagle/3"})
    place.until_service("a roll is under way", lambda status: (status.get("rollout") or {}).get("phase"))
    kill_operator(stage)
    place.until_settled("eagle/3")
    assert len(place.writes()) == 1
    sets = place.all("replicaset")
    assert len(sets) == 2, [item["metadata"]["name"] for item in sets]
