"""Which watches there are, whose objects they keep, and what is refused to be given out."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from breakeven_operator.cluster.cluster_objects import ClusterObjects, Interest
from breakeven_operator.cluster.watched_objects import WatchedObjects
from breakeven_operator.kinds import (
    DEPLOYMENTS,
    FINISHED_LABEL,
    LEADER_SETS,
    LEADER_WORKER_SETS,
    NODES,
    PODS,
    RUNS,
    SERVICES,
    NamespacedName,
    Ref,
)
from breakeven_operator.loop.assembly import SystemClock
from breakeven_operator.ports import ClusterError
from fakes.kopf_in_memory import FedObjects
from fakes.virtual_time import in_virtual_time
from fakes.watched_server import WatchedServer


@contextlib.asynccontextmanager
async def watching(server, *namespaces, oldest_s=150.0, **settings):
    own = FedObjects(server, SystemClock(), namespaces=namespaces, **settings)
    objects = WatchedObjects(server, SystemClock(), own, relist_s=3600.0, oldest_s=oldest_s, **settings)
    try:
        yield objects
    finally:
        own.stop()
        await objects.rest()


def interest(*namespaces, targets=()):
    return Interest(frozenset(namespaces), frozenset(Ref(DEPLOYMENTS, "a", name) for name in targets))


async def names(objects, resource, wanted=None):
    return sorted(manifest["metadata"]["name"] for manifest in await objects.read(resource, wanted))


FEW, MANY = "abcd", "abcde"


@in_virtual_time
async def test_services_in_few_namespaces_cost_a_watch_each_and_in_many_one_for_all():
    server = WatchedServer()
    for namespace in "abcdefgh":
        server.put(f"in-{namespace}", namespace=namespace)
    async with watching(server) as objects:
        assert await names(objects, PODS, interest(*FEW)) == ["in-a", "in-b", "in-c", "in-d"]
        assert server.requests == {"list and watch": 4}
        assert await names(objects, PODS, interest(*MANY)) == [f"in-{name}" for name in MANY]
        assert server.requests == {"list and watch": 5}
        # Never back, and those of one namespace each have ended: a change comes once.
        assert await names(objects, PODS, interest("a")) == ["in-a"]
        server.put("another", namespace="a")
        await asyncio.sleep(0.1)
        assert await names(objects, PODS, interest("a")) == ["another", "in-a"]
        assert server.requests == {"list and watch": 5}


@in_virtual_time
async def test_an_installation_for_some_namespaces_never_asks_about_others():
    server = WatchedServer()
    for namespace in MANY:
        server.put(f"in-{namespace}", namespace=namespace)
    async with watching(server, "a", "b") as objects:
        assert await names(objects, PODS, interest("a")) == ["in-a"]
        assert await names(objects, RUNS) == ["in-a", "in-b"]


@in_virtual_time
async def test_a_namespace_that_joins_is_fetched_alone_and_one_that_leaves_is_let_go():
    server = WatchedServer()
    for namespace in "abcdefgh":
        server.put(f"in-{namespace}", namespace=namespace)
    async with watching(server) as objects:
        await objects.read(PODS, interest(*MANY))
        assert await names(objects, PODS, interest(*MANY, "g")) == [f"in-{name}" for name in (*MANY, "g")]
        assert server.requests == {"list and watch": 1, "list": 1}
        server.put("new", namespace="g")
        server.put("foreign", namespace="h")
        await asyncio.sleep(0.1)
        assert await names(objects, PODS, interest("g")) == ["in-g", "new"]
        assert server.requests == {"list and watch": 1, "list": 1}


@in_virtual_time
async def test_a_namespace_whose_objects_were_not_given_is_asked_about_again():
    server = WatchedServer()
    for namespace in (*MANY, "g"):
        server.put(f"in-{namespace}", namespace=namespace)
    async with watching(server) as objects:
        await objects.read(PODS, interest(*MANY))
        server.refuse = [ClusterError("busy", 500)]
        with pytest.raises(ClusterError, match="busy"):
            await objects.read(PODS, interest(*MANY, "g"))
        assert await names(objects, PODS, interest(*MANY, "g")) == [f"in-{name}" for name in (*MANY, "g")]


@in_virtual_time
async def test_of_deployments_only_targets_are_kept_and_a_new_target_is_fetched_by_its_name():
    server = WatchedServer()
    for name in ("one", "two", "three"):
        server.put(name, namespace="a")
    async with watching(server) as objects:
        assert await names(objects, DEPLOYMENTS, interest("a", targets=["one"])) == ["one"]
        assert await names(objects, DEPLOYMENTS, interest("a", targets=["one", "two", "none"])) == [
            "one",
            "two",
        ]
        assert server.requests == {"list and watch": 1, "get": 2}
        # It did not exist when its service came; it is kept when it does.
        server.put("none", namespace="a")
        await asyncio.sleep(0.1)
        assert await names(objects, DEPLOYMENTS, interest("a", targets=["none"])) == ["none"]
        assert server.requests == {"list and watch": 1, "get": 2}


@in_virtual_time
async def test_a_target_that_is_wanted_otherwise_is_told_at_once_and_its_status_is_not():
    server, told = WatchedServer(), []
    server.put("one", namespace="a")
    async with watching(server, wake=lambda: told.append(1)) as objects:
        await objects.read(DEPLOYMENTS, interest("a", targets=["one"]))
        for change, times in (
            (lambda: server.put("one", namespace="a", status={"replicas": 1}), 0),
            (lambda: server.put("one", namespace="a", generation=2), 1),
            (lambda: server.put("one", namespace="a", generation=2, status={"replicas": 2}), 1),
            (lambda: server.put("foreign", namespace="a"), 1),
            (lambda: server.put("foreign", namespace="a", generation=2), 1),
            (lambda: server.delete("one", namespace="a"), 2),
            # Another one of the same name.
            (lambda: server.put("one", namespace="a", generation=2), 3),
        ):
            change()
            await asyncio.sleep(0.1)
            assert len(told) == times


@in_virtual_time
async def test_a_target_that_joined_wakes_by_what_people_change_of_it_and_not_by_joining():
    server, told = WatchedServer(), []
    for name in ("one", "two"):
        server.put(name, namespace="a")
    async with watching(server, wake=lambda: told.append(1)) as objects:
        await objects.read(DEPLOYMENTS, interest("a", targets=["one"]))
        told.clear()
        await objects.read(DEPLOYMENTS, interest("a", targets=["one", "two"]))
        assert not told
        server.put("two", namespace="a", generation=7)
        await asyncio.sleep(0.1)
        assert told


@in_virtual_time
async def test_what_people_change_of_a_service_wakes_and_a_status_does_not():
    server, told = WatchedServer(), []
    server.put("chat")
    async with watching(server, wake=lambda: told.append(1)) as objects:
        await objects.read(SERVICES)
        for change, times in (
            (lambda: server.put("chat", status={"decision": {"reason": "x"}}), 0),
            (lambda: server.put("chat", generation=2), 1),
            (lambda: server.put("chat", generation=2, annotations={"breakeven.dev/resume": "1"}), 2),
            (
                lambda: server.put(
                    "chat", generation=2, annotations={"breakeven.dev/resume": "1"}, status={}
                ),
                2,
            ),
            (lambda: server.put("code"), 3),
            (lambda: server.delete("chat"), 4),
        ):
            change()
            await asyncio.sleep(0.1)
            assert len(told) == times


@in_virtual_time
async def test_a_run_wakes_by_phase_and_point_and_not_by_its_estimate():
    server, told = WatchedServer(), []
    async with watching(server, wake=lambda: told.append(1)) as objects:
        await objects.read(RUNS)
        for status, times in (
            ({}, 1),
            ({"phase": "Measuring"}, 2),
            ({"phase": "Measuring", "display": {"left": "3m"}}, 2),
            ({"phase": "Measuring", "points": [{}]}, 3),
        ):
            server.put("run", status=status)
            await asyncio.sleep(0.1)
            assert len(told) == times


@in_virtual_time
async def test_what_a_broken_watch_did_not_tell_wakes_when_all_is_read_anew():
    server, told = WatchedServer(), []
    server.put("chat")
    server.put("code")
    async with watching(server, wake=lambda: told.append(1)) as objects:
        await objects.read(SERVICES)
        server.wire = lambda _events: ()
        server.delete("chat")
        server.compact()
        server.cut()
        await asyncio.sleep(5.0)
        assert await names(objects, SERVICES) == ["code"]
        assert len(told) == 1


@in_virtual_time
async def test_a_kind_that_was_never_read_ages_and_one_that_may_not_be_read_does_not():
    server = WatchedServer()
    async with watching(server) as objects:
        server.refuse = [ClusterError("a line that is no event")] * 10000
        with pytest.raises(ClusterError):
            await objects.read(SERVICES)
        await asyncio.sleep(300.0)
        assert objects.age_s() > 300.0
    async with watching(server) as objects:
        server.refuse = [ClusterError("forbidden", 403)] * 100
        with pytest.raises(ClusterError):
            await objects.read(NODES)
        await asyncio.sleep(300.0)
        assert objects.age_s() == 0.0


@in_virtual_time
async def test_nothing_old_is_given_out_and_it_says_what_stands_in_the_way():
    server = WatchedServer()
    server.put("one")
    async with watching(server) as objects:
        await objects.read(NODES)
        server.silent = True
        await asyncio.sleep(140.0)
        assert await names(objects, NODES) == ["one"]
        assert objects.age_s() == pytest.approx(140.0, abs=1.0)
        await asyncio.sleep(20.0)
        with pytest.raises(ClusterError, match=r"Nodes of all namespaces: nothing heard for 160 s$"):
            await objects.read(NODES)
        server.refuse = [ClusterError("WATCH /nodes: 500 etcd is away", 500)] * 100
        server.cut()
        await asyncio.sleep(10.0)
        with pytest.raises(
            ClusterError, match="nothing heard for 170 s: WATCH /nodes: 500 etcd is away"
        ) as raised:
            await objects.read(NODES)
        assert raised.value.status == 500


@in_virtual_time
async def test_a_defect_in_a_watch_is_reported_once_and_the_watch_begun_anew():
    server = WatchedServer()
    server.put("one")
    async with watching(server) as objects:
        await objects.read(NODES)

        def defect(_events):
            raise ZeroDivisionError

        server.wire = defect
        server.put("two")
        await asyncio.sleep(0.1)
        server.wire = lambda events: events
        with pytest.raises(ZeroDivisionError):
            await objects.read(NODES)
        assert await names(objects, NODES) == ["one", "two"]


@in_virtual_time
async def test_after_a_rest_everything_is_read_anew():
    server = WatchedServer()
    server.put("one")
    async with watching(server) as objects:
        await objects.read(NODES)
        await objects.rest()
        assert objects.age_s() == 0.0
        server.delete("one")
        server.put("two")
        assert await names(objects, NODES) == ["two"]
        assert server.requests == {"list and watch": 2}


@in_virtual_time
async def test_answers_to_writes_count_at_once():
    server = WatchedServer()
    server.put("one")
    async with watching(server) as objects:
        await objects.read(RUNS)
        server.silent = True
        server.put("two")
        two = server.objects["llm/two"]
        objects.adopt(RUNS, two)
        assert await names(objects, RUNS) == ["one", "two"]
        # A run that is accounted for is not looked at any more, whatever the selector of the watch says later.
        meta = {**two["metadata"], "labels": {FINISHED_LABEL: "true"}, "resourceVersion": "9"}
        objects.adopt(RUNS, {**two, "metadata": meta, "status": {"phase": "Succeeded"}})
        assert await names(objects, RUNS) == ["one"]
        objects.forget(Ref(RUNS, "llm", "one", server.objects["llm/one"]["metadata"]["uid"]))
        assert await names(objects, RUNS) == []


@in_virtual_time
async def test_profiles_are_parsed_and_lie_under_their_service():
    server = WatchedServer()
    server.put("bad", spec={"serviceRef": {"name": "chat"}, "fingerprint": "f"})
    async with watching(server) as objects:
        (filed,) = await objects.profiles()
        assert filed.service == NamespacedName("llm", "chat")
        assert filed.problem
    (listed,) = await ClusterObjects(server, ()).profiles()
    assert listed == filed
    assert server.requests["list"] == 1


@in_virtual_time
async def test_watched_and_listed_objects_are_the_same():
    server = WatchedServer()
    for namespace in MANY:
        status = {"conditions": [], "containerStatuses": [], "qosClass": "Burstable"}
        server.put(
            f"in-{namespace}", namespace=namespace, spec={"nodeName": "n", "containers": []}, status=status
        )
    listed = ClusterObjects(server, ())
    async with watching(server) as objects:
        several = (interest("a"), interest(*FEW, targets=["in-a"]), interest(*MANY))
        for resource, interests in ((PODS, several), (DEPLOYMENTS, several), (RUNS, (None,))):
            for wanted in interests:

                def by_name(manifests):
                    return sorted(manifests, key=lambda m: m["metadata"]["name"])

                assert by_name(await objects.read(resource, wanted)) == by_name(
                    await listed.read(resource, wanted)
                )


@in_virtual_time
async def test_what_makes_a_target_s_pods_is_kept_too_and_fetched_when_the_target_joins():
    server = WatchedServer()
    server.put("chat", namespace="a", owner=("LeaderWorkerSet", "chat"))
    server.put("other", namespace="a", owner=("LeaderWorkerSet", "other"))
    server.put("same-words", namespace="a", owner=("Database", "chat"))
    server.put("chat-0", namespace="a", owner=("Pod", "chat-0"))
    none = Interest(frozenset("a"), frozenset())
    one = Interest(frozenset("a"), frozenset({Ref(LEADER_WORKER_SETS, "a", "chat")}))
    elsewhere = Interest(frozenset("ab"), frozenset({Ref(LEADER_WORKER_SETS, "b", "chat")}))
    async with watching(server) as objects:
        assert await names(objects, LEADER_SETS, none) == []
        assert await names(objects, LEADER_SETS, one) == ["chat"]
        assert await names(objects, LEADER_SETS, elsewhere) == []


@in_virtual_time
async def test_annotated_workloads_are_kept_wherever_they_are_and_their_kinds_alone_are_looked_for_there():
    server = WatchedServer()
    asking = {"breakeven.dev/watch": "true"}
    server.put("asks", namespace="z", annotations=asking)
    server.put("other", namespace="z")
    server.put("target", namespace="a")
    woken = []
    wanted = replace(interest("a", targets=["target"]), annotated=True)
    async with watching(server, wake=lambda: woken.append(1)) as objects:
        assert await names(objects, DEPLOYMENTS, wanted) == ["asks", "target"]
        assert await names(objects, PODS, wanted) == ["target"]
        server.put("asks", namespace="z")
        server.put("other", namespace="z", annotations=asking)
        await asyncio.sleep(0.1)
        assert await names(objects, DEPLOYMENTS, wanted) == ["other", "target"]
        assert len(woken) == 2
    assert await names(ClusterObjects(server, ()), DEPLOYMENTS, wanted) == ["other", "target"]
    assert await names(ClusterObjects(server, ()), PODS, wanted) == ["target"]
    # The server has the same objects for every kind.
    assert await names(ClusterObjects(server, ()), LEADER_WORKER_SETS, wanted) == []
