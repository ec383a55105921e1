"""Events are asked for about few pods, by name, after some seconds, and seldom."""

from __future__ import annotations

from typing import Any

import pytest

from breakeven_operator.cluster.observer import PodWarnings
from breakeven_operator.kinds import EVENTS
from breakeven_operator.ports import ClusterError
from fakes.api_server import FakeCluster
from fakes.manual_clock import FakeClock

SCHEDULED = {"type": "PodScheduled", "status": "True"}


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.cluster = FakeCluster(self.clock)
        self.warnings = PodWarnings(self.cluster, self.clock)

    def pod(self, name: str, owner: str = "set-1", **status: Any) -> dict[str, Any]:
        return {
            "metadata": {
                "namespace": "llm",
                "name": name,
                "uid": f"uid-{name}",
                "creationTimestamp": self.clock.now().isoformat(),
                "ownerReferences": [{"kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}],
            },
            "status": {"conditions": [SCHEDULED], **status},
        }

    def say(self, pod: dict[str, Any], reason: str, note: str) -> None:
        about = {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        meta = {"namespace": "llm", "name": f"{pod['metadata']['name']}.{reason}"}
        self.cluster.put(
            EVENTS,
            {
                "metadata": meta,
                "regarding": about,
                "reason": reason,
                "type": "Warning",
                "note": note,
                "deprecatedLastTimestamp": self.clock.now().isoformat(),
            },
        )

    @property
    def asked(self) -> int:
        return self.cluster.requests["list"]


async def test_a_pod_is_asked_about_after_some_seconds_and_seldom():
    world = World()
    pod = world.pod("a")
    world.say(pod, "FailedMount", "no such volume")
    assert await world.warnings.read([pod]) == {}
    world.clock.advance(6.0)
    for _ in range(9):
        assert await world.warnings.read([pod]) == {"uid-a": "FailedMount: no such volume"}
        world.clock.advance(1.0)
    assert world.asked == 1
    world.clock.advance(2.0)
    await world.warnings.read([pod])
    assert world.asked == 2
    assert await world.warnings.read([]) == {}


async def test_pods_that_come_or_say_it_themselves_cost_nothing():
    world = World()
    running = {"name": "vllm", "imageID": "vllm@sha256:1", "state": {"running": {}}}
    refused = {"type": "PodScheduled", "status": "False", "message": "no GPU"}
    pods = [
        world.pod("runs", containerStatuses=[running]),
        world.pod("unplaced", "set-2", conditions=[refused]),
    ]
    world.clock.advance(60.0)
    assert await world.warnings.read(pods) == {}
    assert world.asked == 0


async def test_of_a_hundred_replicas_the_oldest_speaks_and_of_a_hundred_targets_eight_in_a_cycle():
    world = World()
    first = world.pod("a-first")
    world.say(first, "FailedMount", "no such volume")
    world.clock.advance(1.0)
    siblings = [world.pod(f"b-{index}") for index in range(100)]
    world.clock.advance(10.0)
    assert list(await world.warnings.read([*siblings, first])) == ["uid-a-first"]
    assert world.asked == 1
    many = [world.pod(f"c-{index}", f"set-{index}") for index in range(100)]
    world.clock.advance(10.0)
    await world.warnings.read(many)
    assert world.asked == 9


@pytest.mark.parametrize("status", [403, 500, 0])
async def test_an_answer_that_does_not_come_is_none(status: int):
    world = World()
    pod = world.pod("a")
    world.clock.advance(6.0)

    def refuse(verb: str, _resource: Any, _name: str) -> None:
        raise ClusterError("events is forbidden", status)

    world.cluster.fail = refuse
    assert await world.warnings.read([pod]) == {}
