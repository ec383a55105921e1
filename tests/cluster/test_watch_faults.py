"""Watches of a real API server, through a proxy that cuts, holds back, repeats, reorders and refuses what passes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from breakeven_operator.cluster.cluster_objects import Interest
from breakeven_operator.cluster.kubernetes import KubernetesCluster
from breakeven_operator.cluster.own_objects import OwnObjects
from breakeven_operator.cluster.watched_objects import WatchedObjects
from breakeven_operator.kinds import CONFIG_MAPS, DEPLOYMENTS, NODES, PODS, REPLICASETS, Ref
from breakeven_operator.loop.assembly import SystemClock
from breakeven_operator.ports import ClusterError, EventKind
from localcluster import LocalCluster
from operatorcluster.api_proxy import ApiProxy, Line

pytestmark = pytest.mark.always

PATIENCE_S, LOOK_S = 180.0, 0.05
OLDEST_S = 5.0


@contextlib.asynccontextmanager
async def through(
    cluster: LocalCluster, silence_s: float = 90.0
) -> AsyncIterator[tuple[ApiProxy, KubernetesCluster]]:
    async with ApiProxy(cluster.kubeconfig).running() as proxy:
        adapter = KubernetesCluster(client.Configuration(host=proxy.address), silence_s=silence_s)
        try:
            yield proxy, adapter
        finally:
            await adapter.close()


@contextlib.asynccontextmanager
async def watching(
    adapter: KubernetesCluster, namespace: str, **settings: Any
) -> AsyncIterator[WatchedObjects]:
    objects = WatchedObjects(
        adapter,
        SystemClock(),
        OwnObjects(SystemClock(), namespaces=(namespace,)),
        relist_s=3600.0,
        **settings,
    )
    try:
        yield objects
    finally:
        await objects.rest()


async def sizes(objects: WatchedObjects) -> dict[str, str]:
    """The sizes of the test's ConfigMaps, as the watch has them."""
    found = await objects.read(CONFIG_MAPS)
    return {o["metadata"]["name"]: o["data"]["size"] for o in found if "size" in (o.get("data") or {})}


async def until(what: str, objects: WatchedObjects, wanted: dict[str, str]) -> None:
    """Read until the sizes are those; a reading that is refused meanwhile is none."""
    found: object = None
    for _ in range(round(PATIENCE_S / LOOK_S)):
        try:
            found = await sizes(objects)
        except ClusterError as error:
            found = error
        if found == wanted:
            return
        await asyncio.sleep(LOOK_S)
    raise AssertionError(f"{what}: {found} instead of {wanted}")


async def refusal(objects: WatchedObjects) -> tuple[str, float]:
    """Read until that is refused: the words, and when the last reading that was not refused began (monotonic, s)."""
    given = time.monotonic()
    for _ in range(round(PATIENCE_S / LOOK_S)):
        began = time.monotonic()
        try:
            await objects.read(CONFIG_MAPS)
        except ClusterError as error:
            return str(error), given
        given = began
        await asyncio.sleep(LOOK_S)
    raise AssertionError("what was read grew old, and was given out all the same")


async def put(adapter: KubernetesCluster, namespace: str, name: str, size: str) -> None:
    body = {"metadata": {"namespace": namespace, "name": name}, "data": {"size": size}}
    await adapter.apply(CONFIG_MAPS, body, force=True, manager="test")


async def test_a_list_comes_as_one_stream_and_nothing_is_asked_again(cluster, namespace):
    async with through(cluster) as (proxy, adapter), watching(adapter, namespace) as objects:
        await put(adapter, namespace, "a", "1")
        await put(adapter, namespace, "b", "1")
        await until("listed", objects, {"a": "1", "b": "1"})
        await put(adapter, namespace, "a", "2")
        await adapter.delete(Ref(CONFIG_MAPS, namespace, "b"))
        await until("followed", objects, {"a": "2"})
        (first,) = proxy.watches()
        assert first["sendInitialEvents"] == "true"
        assert not [query for method, _, query in proxy.asked if method == "GET" and "watch" not in query]


async def test_a_server_that_streams_no_lists_gives_them_in_pages(cluster, namespace):
    def refuse(query):
        text = json.dumps({"kind": "Status", "code": 422, "message": "sendInitialEvents: Forbidden"})
        return web.Response(status=422, text=text) if "sendInitialEvents" in query else None

    async with through(cluster) as (proxy, adapter), watching(adapter, namespace) as objects:
        proxy.refuse = refuse
        await put(adapter, namespace, "a", "1")
        await until("listed", objects, {"a": "1"})
        await put(adapter, namespace, "a", "2")
        await until("followed", objects, {"a": "2"})
        assert [query["limit"] for _, _, query in proxy.asked if "limit" in query] == ["500"]
        assert len(proxy.watches()) == 2


async def test_a_cut_connection_is_taken_up_without_a_list(cluster, namespace):
    async with through(cluster) as (proxy, adapter), watching(adapter, namespace) as objects:
        await put(adapter, namespace, "a", "1")
        await until("listed", objects, {"a": "1"})
        for size in ("2", "3", "4"):
            proxy.cut()
            await put(adapter, namespace, "a", size)
            await until(f"followed after a cut, {size}", objects, {"a": size})
        lists = [query for query in proxy.watches() if "sendInitialEvents" in query]
        assert len(lists) == 1
        assert len(proxy.watches()) == 4


async def test_repeated_and_reordered_lines_end_with_what_the_server_has(cluster, namespace):
    async with through(cluster) as (proxy, adapter), watching(adapter, namespace) as objects:
        await put(adapter, namespace, "a", "1")
        await until("listed", objects, {"a": "1"})
        held: list[Line] = []

        def in_reverse_and_twice(lines):
            # Lines come one by one; three of them are needed for an order.
            held.extend(lines)
            if len(held) < 4:
                return []
            sent = [line for line in reversed(held) for _ in range(2)]
            held.clear()
            proxy.lines = lambda more: more
            return sent

        proxy.lines = in_reverse_and_twice
        await put(adapter, namespace, "b", "1")
        await put(adapter, namespace, "a", "2")
        await adapter.delete(Ref(CONFIG_MAPS, namespace, "b"))
        await put(adapter, namespace, "a", "3")
        await until("the newest state", objects, {"a": "3"})
        # The event of b came after that of its deletion. Other events may be lost as well, so everything is read again.
        await put(adapter, namespace, "a", "4")
        await until("the server's state", objects, {"a": "4"})
        assert len([query for query in proxy.watches() if "sendInitialEvents" in query]) == 2


async def test_what_is_held_back_arrives_and_an_answer_to_a_write_is_seen_at_once(cluster, namespace):
    async with through(cluster) as (proxy, adapter), watching(adapter, namespace) as objects:
        await put(adapter, namespace, "a", "1")
        await until("listed", objects, {"a": "1"})
        proxy.hold()
        body = {"metadata": {"namespace": namespace, "name": "a"}, "data": {"size": "2"}}
        answer = await adapter.apply(CONFIG_MAPS, body, force=True, manager="test")
        assert await sizes(objects) == {"a": "1"}
        objects.adopt(CONFIG_MAPS, answer)
        assert await sizes(objects) == {"a": "2"}
        proxy.hold(held=False)
        await put(adapter, namespace, "a", "3")
        await until("all of it", objects, {"a": "3"})


async def test_a_watch_that_falls_silent_is_noticed_and_nothing_old_is_given_out(cluster, namespace):
    async with (
        through(cluster, silence_s=2.0) as (proxy, adapter),
        watching(adapter, namespace, oldest_s=OLDEST_S) as objects,
    ):
        await put(adapter, namespace, "a", "1")
        await until("listed", objects, {"a": "1"})
        proxy.hold()
        for _ in range(round(PATIENCE_S / LOOK_S)):
            if len(proxy.watches()) > 1:
                break
            await asyncio.sleep(LOOK_S)
        assert "sendInitialEvents" not in proxy.watches()[-1]
        proxy.refuse = lambda query: web.Response(status=503, text="{}") if "watch" in query else None
        silent = time.monotonic()
        said, given = await refusal(objects)
        found = re.fullmatch(r"ConfigMaps of \S+: nothing heard for (\d+) s: WATCH \S+: 503.*", said)
        assert found is not None, said
        assert int(found[1]) >= OLDEST_S
        # However slow the machine is; a watch that began just before it was refused may have been heard a little later.
        assert given - silent <= 2 * OLDEST_S
        proxy.refuse = lambda _query: None
        proxy.hold(held=False)
        await put(adapter, namespace, "a", "2")
        await until("heard again", objects, {"a": "2"})


async def test_a_place_too_old_and_a_token_that_expired_are_outlasted(cluster, namespace):
    async with through(cluster) as (proxy, adapter), watching(adapter, namespace) as objects:
        await put(adapter, namespace, "a", "1")
        await until("listed", objects, {"a": "1"})
        refusals = [(401, "Unauthorized"), (410, "Expired: too old resource version"), (500, "etcd is away")]

        def refuse(query):
            if "watch" not in query or not refusals:
                return None
            code, message = refusals.pop(0)
            return web.Response(
                status=code, text=json.dumps({"kind": "Status", "code": code, "message": message})
            )

        proxy.refuse = refuse
        proxy.cut()
        await put(adapter, namespace, "a", "2")
        await until("followed", objects, {"a": "2"})
        assert not refusals
        assert "sendInitialEvents" in proxy.watches()[-1]


async def test_a_restarted_api_server_is_outlasted_and_does_not_know_old_places(cluster, namespace):
    async with through(cluster) as (proxy, adapter), watching(adapter, namespace) as objects:
        await put(adapter, namespace, "a", "1")
        await until("listed", objects, {"a": "1"})
        await asyncio.to_thread(cluster.restart_process, "kube-apiserver")
        for _ in range(round(PATIENCE_S / LOOK_S)):
            with contextlib.suppress(ClusterError):
                await put(adapter, namespace, "a", "2")
                break
            await asyncio.sleep(LOOK_S)
        await until("followed", objects, {"a": "2"})
        assert len(proxy.watches()) >= 2
        # The answer to a place that is too old; the unit tests' server gives the same.
        events = adapter.watch(CONFIG_MAPS, namespace, "", "1")
        assert (await anext(events)).kind is EventKind.BOOKMARK
        with pytest.raises(ClusterError) as raised:
            await asyncio.wait_for(anext(events), PATIENCE_S)
        assert raised.value.status == 410


async def test_namespaces_and_targets_that_join_are_fetched_and_those_that_leave_are_let_go(
    cluster, namespace
):
    """Read among everybody's objects, as for services in many namespaces."""
    template = {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"none": "such"}},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "x"}}, "template": template}

    async with through(cluster) as (proxy, adapter):
        for name in ("one", "two"):
            await adapter.create(
                DEPLOYMENTS, {"metadata": {"namespace": namespace, "name": name}, "spec": spec}
            )
        objects = WatchedObjects(adapter, SystemClock(), OwnObjects(SystemClock()), relist_s=3600.0)
        others = frozenset(f"other-{number}" for number in range(5))

        async def read(resource, namespaces, targets=()):
            interest = Interest(
                frozenset(namespaces), frozenset(Ref(DEPLOYMENTS, namespace, t) for t in targets)
            )
            return [o["metadata"]["name"] for o in await objects.read(resource, interest)]

        try:
            assert await read(PODS, others) == []
            assert await read(REPLICASETS, others) == []
            assert await read(DEPLOYMENTS, others) == []
            for _ in range(round(PATIENCE_S / LOOK_S)):
                if [len(await read(kind, others | {namespace})) for kind in (PODS, REPLICASETS)] == [2, 2]:
                    break
                await asyncio.sleep(LOOK_S)
            assert len(await read(REPLICASETS, others | {namespace})) == 2
            assert await read(DEPLOYMENTS, others | {namespace}, ["one"]) == ["one"]
            assert sorted(await read(DEPLOYMENTS, others | {namespace}, ["one", "two", "none"])) == [
                "one",
                "two",
            ]
            assert await read(DEPLOYMENTS, others | {namespace}, ["two"]) == ["two"]
            assert await read(PODS, others) == []
            everywhere = [path for _, path, query in proxy.asked if "watch" in query]
            assert sorted(everywhere) == [
                "/api/v1/pods",
                "/apis/apps/v1/deployments",
                "/apis/apps/v1/replicasets",
            ]
        finally:
            await objects.rest()


async def test_of_nodes_and_replica_sets_nothing_but_their_metadata_is_sent(cluster, namespace):
    async with through(cluster) as (proxy, adapter):
        seen: list[Line] = []
        proxy.lines = lambda lines: (seen.extend(lines), lines)[1]
        objects = WatchedObjects(adapter, SystemClock(), OwnObjects(SystemClock()), relist_s=3600.0)
        try:
            nodes = await objects.read(NODES)
            assert [node["metadata"]["labels"]["nvidia.com/gpu.product"] for node in nodes]
        finally:
            await objects.rest()
        assert all("spec" not in json.loads(line)["object"] for line in seen if line)
