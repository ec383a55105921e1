"""Installations that share services by labels: none decides about what another decides about."""

from __future__ import annotations

import logging

import pytest

from breakeven_operator.adapters.lease import Lease
from breakeven_operator.adapters.service_reader import Scope, ServiceReader
from breakeven_operator.adapters.shards import Shards
from breakeven_operator.kinds import LEASES, NamespacedName
from breakeven_operator.labels import SELECTOR_ANNOTATION
from breakeven_operator.ports import ClusterError
from breakeven_operator.resources.labelselector import LabelSelector
from fakes.api_server import FakeCluster
from fakes.manual_clock import FakeClock

SETTLE_S = 30.0
LABELS: tuple[dict[str, str], ...] = ({"shard": "a"}, {"shard": "b"}, {"shard": "a", "team": "x"}, {})
SERVICES = [
    {"metadata": {"namespace": "llm", "name": f"chat-{place}", "uid": str(place), "labels": labels}}
    for place, labels in enumerate(LABELS)
]


class Installation:
    """A Lease and the services that its holder decides about."""

    def __init__(self, cluster, clock, name, **selector):
        chosen = LabelSelector.read(selector, "selector")
        self.shards = Shards(cluster, clock, NamespacedName("breakeven", name), chosen, SETTLE_S)
        self.lease = Lease(
            cluster,
            clock,
            NamespacedName("breakeven", name),
            f"{name}-pod",
            annotations=self.shards.annotations,
        )

    async def own(self):
        return [one["metadata"]["name"] for one in await self.shards.own(SERVICES)]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def cluster(clock):
    return FakeCluster(clock)


async def begun(clock, *installations):
    """They hold their Leases, made one after another, and have looked for a while."""
    for one in installations:
        clock.advance(2.0)
        await one.lease.step()
    for one in installations:
        await one.own()
    clock.advance(SETTLE_S)
    for one in installations:
        await one.lease.step()


async def test_disjoint_selectors_share_the_services_and_say_nothing(cluster, clock, caplog):
    a = Installation(cluster, clock, "a", matchLabels={"shard": "a"})
    b = Installation(
        cluster, clock, "b", matchExpressions=[{"key": "shard", "operator": "NotIn", "values": ["a"]}]
    )
    await begun(clock, a, b)
    assert await a.own() == ["chat-0", "chat-2"]
    assert await b.own() == ["chat-1", "chat-3"]
    assert caplog.records == []


async def test_what_two_select_is_the_older_one_s_and_both_say_so_in_one_line(cluster, clock, caplog):
    older = Installation(cluster, clock, "z", matchLabels={"team": "x"})
    younger = Installation(cluster, clock, "a", matchLabels={"shard": "a"})
    await begun(clock, older, younger)
    for _ in range(2):
        assert await older.own() == ["chat-2"]
        assert await younger.own() == ["chat-0"]
    (line, other) = [record.getMessage() for record in caplog.records]
    assert line == other.replace("Leases a and z", "Leases z and a")
    assert (
        "Leases z and a overlap (services: 1, the first is llm/chat-2): the holder of z, which is older"
        in line
    )


async def test_one_that_has_just_begun_gives_way_to_every_other(cluster, clock):
    """The other one looks once per cycle."""
    older, younger = Installation(cluster, clock, "z"), Installation(cluster, clock, "a")
    await begun(clock, older, younger)
    assert await older.own() == [one["metadata"]["name"] for one in SERVICES]
    older.shards.rest()
    assert await older.own() == []
    clock.advance(SETTLE_S)
    assert len(await older.own()) == len(SERVICES)


async def test_a_lease_that_was_given_up_selects_nothing(cluster, clock):
    older, younger = Installation(cluster, clock, "z"), Installation(cluster, clock, "a")
    await begun(clock, older, younger)
    assert await younger.own() == []
    await older.lease.release()
    assert len(await younger.own()) == len(SERVICES)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"matchLabels": 3}', '{"matchExpressions": [{"key": "a"}]}']
)
async def test_a_selector_that_cannot_be_read_stops_nobody(text, cluster, clock):
    older, younger = Installation(cluster, clock, "z"), Installation(cluster, clock, "a")
    await begun(clock, older, younger)
    cluster.objects["leases", "breakeven", "z"]["metadata"]["annotations"] = {SELECTOR_ANNOTATION: text}
    assert len(await younger.own()) == len(SERVICES)


@pytest.mark.parametrize("status", [403, 500])
async def test_without_the_right_to_list_leases_it_goes_on_and_says_so(status, cluster, clock, caplog):
    one = Installation(cluster, clock, "a", matchLabels={"shard": "a"})

    def refuse(verb, resource, _name):
        if (verb, resource) == ("list", LEASES):
            raise ClusterError("no", status)

    cluster.fail = refuse
    caplog.set_level(logging.WARNING)
    if status == 500:
        with pytest.raises(ClusterError):
            await one.own()
        return
    assert await one.own() == await one.own() == ["chat-0", "chat-2"]
    assert [record.getMessage() for record in caplog.records] == [
        "Leases of breakeven may not be listed, so services of two installations are not found"
    ]


async def test_a_service_of_another_installation_is_read_and_not_decided_about(cluster, clock):
    """A target that it names first is its own."""
    a = Installation(cluster, clock, "a", matchLabels={"shard": "a"})
    spec = {"targetRef": {"name": "chat"}, "candidates": {"methods": [{"name": "n", "method": "ngram"}]}}
    base = {"apiVersion": "breakeven.dev/v1alpha1", "kind": "SpeculativeService", "spec": spec}
    manifests = [
        {
            **base,
            "metadata": {
                **one["metadata"],
                "resourceVersion": "1",
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
        }
        for one in SERVICES
    ]
    manifests[1]["spec"] = manifests[2]["spec"] = {}
    found = await ServiceReader(Scope(shards=a.shards)).read(manifests)
    assert [one.metadata.name for one in found.services] == ["chat-0"]
    assert [one.manifest["metadata"]["name"] for one in found.invalid] == ["chat-2"]
    assert [one.metadata.name for one in found.everyone] == ["chat-0", "chat-3"]
