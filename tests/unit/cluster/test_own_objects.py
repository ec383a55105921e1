"""kopf itself, with the operator's handlers, over an API server in memory: what is filed, when the loop is woken, and what the probe says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from types import SimpleNamespace
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web
from kubernetes.aio import client
from prometheus_client import CollectorRegistry

from breakeven_operator import handlers
from breakeven_operator.cluster import own_objects
from breakeven_operator.cluster.api_json import problem_of
from breakeven_operator.cluster.informer import WatchScope
from breakeven_operator.cluster.kubernetes import KubernetesCluster
from breakeven_operator.cluster.own_objects import OWN_KINDS, KopfSession, OwnObjects
from breakeven_operator.kinds import FINISHED_LABEL, RUNS, SERVICES, Ref
from breakeven_operator.loop.assembly import SystemClock
from breakeven_operator.ports import ClusterError, EventKind
from breakeven_operator.serve import logs
from breakeven_operator.settings import read_settings
from fakes.kopf_in_memory import FedObjects
from fakes.virtual_time import in_virtual_time
from fakes.watched_server import WatchedServer

_SOON_S = 5.0
_GROUPS: dict[str, Any] = {
    "/api": {"versions": ["v1"]},
    "/api/v1": {"resources": [("namespaces", "Namespace"), ("events", "Event")]},
    "/apis": {
        "groups": [
            {"name": group, "versions": [{"version": v}], "preferredVersion": {"version": v}}
            for group, v in (("breakeven.dev", "v1alpha1"), ("apiextensions.k8s.io", "v1"))
        ]
    },
    "/apis/breakeven.dev/v1alpha1": {"resources": [(kind.plural, kind.kind) for kind in OWN_KINDS]},
    "/apis/apiextensions.k8s.io/v1": {
        "resources": [("customresourcedefinitions", "CustomResourceDefinition")]
    },
}


class Server(WatchedServer):
    """Has services and no objects of other kinds, and tells which kinds there are."""

    async def document(self, path):
        found = _GROUPS[path]
        return found | {
            "resources": [
                {
                    "name": plural,
                    "kind": kind,
                    "singularName": kind.lower(),
                    "namespaced": True,
                    "verbs": ["list", "watch"],
                }
                for plural, kind in found.get("resources", [])
            ]
        }

    async def serves(self, resource):
        return True

    def watch(self, resource, namespace=None, labels="", version=""):
        server = self if resource == SERVICES else WatchedServer()
        return WatchedServer.watch(server, resource, namespace, labels, version)


class Beat:
    """The loop, which cycles never."""

    def __init__(self):
        self.ended = asyncio.Event()
        self.finished = False

    async def run(self):
        await self.ended.wait()
        self.finished = True

    def stop(self):
        self.ended.set()


class Running:
    """An operator that runs in a task."""

    def __init__(self, server):
        self.woken = 0
        self.problem = None
        self.task = None
        clock = SystemClock()
        self.own = OwnObjects(clock, wake=self._wake)
        self.session = KopfSession(server, clock, self.own, relist_s=3600.0)
        self.cluster = server
        self.health = SimpleNamespace(problem=lambda: self.problem, turns=0)
        self.registry = CollectorRegistry()
        self.loop = Beat()
        self.showing = SimpleNamespace(open=self._nothing, close=self._nothing)

    def _wake(self):
        self.woken += 1

    async def _nothing(self):
        return None

    async def names(self, kind=SERVICES):
        found = await self.own.read(kind, oldest_s=60.0, longest_s=_SOON_S)
        return sorted(manifest["metadata"]["name"] for manifest in found)


@contextlib.asynccontextmanager
async def operating(monkeypatch, server, port=0):
    """The operator's handlers in kopf, with parts in memory; ends as a signal ends it."""
    running = Running(server)

    @contextlib.asynccontextmanager
    async def parts(_settings, *, dry_run):
        assert dry_run
        yield running

    monkeypatch.setattr(handlers, "assembled", parts)
    settings = read_settings({"BREAKEVEN_BIND_ADDRESS": "127.0.0.1", "BREAKEVEN_PORT": "0"}).model_copy(
        update={"port": 0, "probe_port": port}
    )
    stop, ready = asyncio.Event(), asyncio.Event()
    memo = kopf.Memo(settings=settings, dry_run=True, stop=stop)
    task = asyncio.create_task(
        kopf.operator(
            memo=memo,
            standalone=True,
            clusterwide=True,
            stop_flag=stop,
            ready_flag=ready,
            liveness_endpoint=f"http://127.0.0.1:{port}/healthz" if port else None,
        )
    )
    running.task = task
    await asyncio.wait_for(ready.wait(), _SOON_S)
    try:
        yield running
    finally:
        stop.set()
        if not running.loop.ended.is_set():
            await asyncio.wait_for(task, 15.0)


async def until(holds):
    for _ in range(round(_SOON_S / 0.02)):
        if await holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {_SOON_S} s")


async def test_a_service_is_filed_its_change_wakes_and_its_status_does_not(monkeypatch):
    server = Server()
    server.put("chat")
    async with operating(monkeypatch, server) as running:
        assert await running.names() == ["chat"]
        assert await running.names(RUNS) == []
        assert running.woken == 0
        for change, times in (
            (lambda: server.put("chat", status={"decision": {"reason": "x"}}), 0),
            (lambda: server.put("chat", generation=2), 1),
            (lambda: server.put("code"), 2),
            (lambda: server.delete("chat"), 3),
        ):
            change()
            await asyncio.sleep(0.3)
            assert running.woken == times
        assert await running.names() == ["code"]
        assert server.requests == {"list and watch": 1}
    assert running.loop.finished


async def test_what_vanished_while_the_place_was_forgotten_is_gone_though_kopf_never_says_so(monkeypatch):
    server = Server()
    server.put("chat")
    server.put("code")
    async with operating(monkeypatch, server) as running:
        assert await running.names() == ["chat", "code"]
        server.wire = lambda _events: ()
        server.delete("chat")
        server.compact()
        server.cut()
        await until(lambda: _is(running.names(), ["code"]))
        assert running.woken == 1
        assert server.requests["list and watch"] == 2


async def _is(found, wanted):
    return await found == wanted


async def test_kopf_s_own_index_keeps_what_vanished_which_is_why_no_cycle_reads_it(monkeypatch):
    """If this fails, kopf has mended it: look at ADR 0016 again."""
    server, registry = Server(), kopf.OperatorRegistry()
    server.put("chat")
    own = OwnObjects(SystemClock())
    session = KopfSession(server, SystemClock(), own, relist_s=3600.0)
    indexed, stop = {}, asyncio.Event()

    @kopf.on.startup(registry=registry)
    async def start(settings, **_):
        handlers.bounded(settings)

    @kopf.on.login(registry=registry)
    async def connection(**_):
        return kopf.AiohttpSession(server="", aiohttp_session=session)

    @kopf.index("breakeven.dev", "v1alpha1", SERVICES.plural, id="services", registry=registry)
    async def services(name, **_):
        return {name: True}

    @kopf.on.event("breakeven.dev", "v1alpha1", SERVICES.plural, registry=registry)
    async def look(services, **_):
        indexed["now"] = services

    async def seen(*names):
        return set(indexed.get("now", ())) == set(names)

    task = asyncio.create_task(
        kopf.operator(registry=registry, standalone=True, clusterwide=True, stop_flag=stop)
    )
    await until(lambda: seen("chat"))
    server.wire = lambda _events: ()
    server.delete("chat")
    server.compact()
    server.put("code")
    server.cut()
    await asyncio.sleep(2.0)
    assert await seen("chat", "code")
    stop.set()
    await asyncio.wait_for(task, 15.0)


async def test_a_lost_connection_is_begun_again_where_it_was_and_its_reason_is_told(monkeypatch, capsys):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [*root.handlers])
    monkeypatch.setattr(root, "level", root.level)
    logs.configure("INFO")
    server = Server()
    server.put("chat")
    async with operating(monkeypatch, server) as running:
        assert await running.names() == ["chat"]
        server.refuse = [ClusterError("WATCH: 500 etcd is away", 500)]
        server.cut()
        server.put("code")
        await until(lambda: _is(running.names(), ["chat", "code"]))
        assert server.requests == {"list and watch": 1, "watch": 2}
        with pytest.raises(ClusterError, match="SpeculativeServices of all namespaces: nothing heard for"):
            await running.own.read(SERVICES, oldest_s=-1.0, longest_s=1.0)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (retried,) = [line for line in lines if "will retry" in line["message"]]
    assert retried["level"] == "warning", "a connection that ends is no error of the operator's own"
    assert [line for line in lines if line["level"] == "error"] == []


async def test_the_probe_fails_with_the_reason_why_the_process_should_be_restarted(
    monkeypatch, unused_tcp_port
):
    async with (
        operating(monkeypatch, Server(), unused_tcp_port) as running,
        aiohttp.ClientSession() as asking,
    ):
        address = f"http://127.0.0.1:{unused_tcp_port}/healthz"

        async def status():
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with asking.get(address) as answer:
                    return answer.status

        running.problem = "no watch has been heard of for 400 s"
        await until(lambda: _is(status(), 500))
        running.problem = None
        await until(lambda: _is(status(), 200))


async def test_without_the_crds_the_start_waits_and_the_probe_does_not_fail(
    monkeypatch, unused_tcp_port, caplog
):
    """A pod that was restarted every 90 s would bring no CRD, and its back-off would delay the start."""
    server, installed = Server(), {SERVICES}

    async def serves(resource):
        return resource in installed

    monkeypatch.setattr(server, "serves", serves)

    async def healthz():
        async with aiohttp.ClientSession() as asking:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with asking.get(f"http://127.0.0.1:{unused_tcp_port}/healthz") as answer:
                    return answer.status, await answer.text()

    async def install():
        await until(lambda: _is(healthz(), (200, "waiting")))
        installed.update(OWN_KINDS)

    installing = asyncio.create_task(install())
    async with operating(monkeypatch, server, unused_tcp_port):
        await installing
        await until(lambda: _is(healthz(), (200, '{"alive": "ok"}')))
    assert [r.getMessage() for r in caplog.records if r.name == handlers.__name__] == [
        "not installed: CustomResourceDefinition speculationprofiles.breakeven.dev, calibrationruns.breakeven.dev; waiting",
    ]


async def test_a_loop_that_ends_by_itself_ends_the_process(monkeypatch):
    async with operating(monkeypatch, Server()) as running:
        running.loop.stop()
        with pytest.raises(Exception, match="One or more handlers failed") as raised:
            await asyncio.wait_for(running.task, 15.0)
    assert str(raised.value.__cause__) == "the loop of cycles ended by itself"


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, {"clusterwide": True, "namespaces": (), "liveness_endpoint": None}),
        (
            {
                "BREAKEVEN_WATCH_NAMESPACES": "b,a",
                "BREAKEVEN_PROBE_PORT": "8082",
                "BREAKEVEN_BIND_ADDRESS": "::1",
            },
            {
                "clusterwide": False,
                "namespaces": ("a", "b"),
                "liveness_endpoint": "http://[::1]:8082/healthz",
            },
        ),
    ],
)
def test_kopf_is_started_with_the_namespaces_the_endpoint_and_a_name_of_the_settings(
    monkeypatch, environment, wanted
):
    given = {}
    monkeypatch.setattr(kopf, "run", lambda **words: given.update(words))
    handlers.run(read_settings({"BREAKEVEN_POD_NAME": "breakeven-0", **environment}), dry_run=True)
    assert {name: given[name] for name in wanted} == wanted
    assert (given["identity"], given["standalone"]) == ("breakeven-0", True)


# Without kopf, in virtual time.


@contextlib.asynccontextmanager
async def fed(server, **settings):
    own = FedObjects(server, SystemClock(), **settings)
    try:
        yield own
    finally:
        own.stop()


async def read(own, kind=SERVICES, oldest_s=150.0):
    found = await own.read(kind, oldest_s=oldest_s, longest_s=60.0)
    return {manifest["metadata"]["name"]: manifest for manifest in found}


@in_virtual_time
async def test_a_bookmark_keeps_a_quiet_kind_young_and_silence_lets_no_decision_rest_on_it():
    server = Server()
    server.put("chat")
    async with fed(server) as own:
        await read(own)
        for _ in range(5):
            await asyncio.sleep(100.0)
            server.bookmark()
            await asyncio.sleep(0.1)
            assert list(await read(own)) == ["chat"]
        server.silent = True
        await asyncio.sleep(160.0)
        with pytest.raises(
            ClusterError, match=r"SpeculativeServices of all namespaces: nothing heard for 160 s$"
        ):
            await read(own)
        assert own.age_s() > 160.0
        server.refuse = [ClusterError("WATCH: 500 etcd is away", 500)] * 100
        server.cut()
        await asyncio.sleep(5.0)
        with pytest.raises(ClusterError, match="nothing heard for 165 s: WATCH: 500 etcd is away") as raised:
            await read(own)
        assert raised.value.status == 500


@in_virtual_time
async def test_a_kind_that_may_not_be_read_says_so_at_once_and_has_no_age():
    server = WatchedServer()
    server.refuse = [ClusterError("WATCH: 403 forbidden", 403)] * 10000
    async with fed(server) as own:
        for kind in OWN_KINDS:
            with pytest.raises(ClusterError, match="403 forbidden"):
                await read(own, kind)
        await asyncio.sleep(300.0)
        assert own.age_s() == 0.0


@in_virtual_time
async def test_of_two_states_the_newer_counts_and_a_deleted_object_never_comes_back():
    server = Server()
    server.put("chat", spec={"state": 1})
    async with fed(server) as own:
        old = (await read(own))["chat"]
        server.silent = True
        server.put("chat", spec={"state": 2})
        own.adopt(SERVICES, server.objects["llm/chat"])
        own.take(SERVICES, EventKind.MODIFIED, old)
        assert (await read(own))["chat"]["spec"] == {"state": 2}
        uid = old["metadata"]["uid"]
        own.forget(Ref(SERVICES, "llm", "chat", uid))
        own.take(SERVICES, EventKind.MODIFIED, server.objects["llm/chat"])
        assert await read(own) == {}
        own.take(SERVICES, EventKind.DELETED, server.objects["llm/chat"])
        assert await read(own) == {}


@in_virtual_time
async def test_a_run_that_is_accounted_for_is_awaited_by_nobody():
    server = WatchedServer()
    server.put("old", labels={FINISHED_LABEL: "true"}, status={"phase": "Succeeded"})
    server.put("new", status={"phase": "Measuring"})
    async with fed(server) as own:
        assert list(await read(own, RUNS)) == ["new"]


@in_virtual_time
async def test_an_object_that_can_just_be_read_part_by_part_is_filed():
    server = Server()
    deep: Any = "x"
    for _ in range(199):
        deep = [deep]
    server.put("chat", spec={"deep": deep})
    async with fed(server) as own:
        assert list(await read(own)) == ["chat"]


def deep(levels):
    return '{"f:a":' * levels + '{".":{}}' + "}" * levels


@contextlib.asynccontextmanager
async def served(lines):
    """The adapter of an API server on a socket, whose services are these lines of a watch."""
    ended = json.dumps(
        {
            "type": "BOOKMARK",
            "object": {
                "metadata": {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}
            },
        }
    )

    async def answer(request):
        if "watch" not in request.query:
            return web.json_response(await Server().document(request.path))
        response = web.StreamResponse()
        await response.prepare(request)
        for line in (*(lines if request.path.endswith(SERVICES.plural) else ()), ended):
            await response.write(line.encode() + b"\n")
        await asyncio.sleep(60.0)
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    adapter = KubernetesCluster(client.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}"))
    try:
        yield adapter
    finally:
        await adapter.close()
        await runner.cleanup()


async def test_kopf_goes_on_behind_objects_of_9_990_levels_on_this_python(monkeypatch):
    """The deepest that an API server stores; json.loads of Python 3.12 and later refuses some 3,000 in any stack."""

    def service(version, name, managed="[]", status="{}"):
        meta = f'{{"name": "{name}", "namespace": "llm", "uid": "{name}", "resourceVersion": "{version}", "managedFields": {managed}}}'
        return f'{{"type": "ADDED", "object": {{"metadata": {meta}, "spec": {{}}, "status": {status}}}}}'

    lines = (
        service(5, "fields", managed=f'[{{"fieldsV1": {deep(9990)}}}]'),
        service(6, "status", status=deep(9990)),
        service(7, "chat"),
    )
    with pytest.raises(RecursionError):
        json.loads(lines[0])
    async with served(lines) as adapter, operating(monkeypatch, adapter) as running:
        assert await running.names() == ["chat", "fields", "status"]
        found = await running.own.read(SERVICES, oldest_s=60.0, longest_s=_SOON_S)
        assert [problem_of(one) for one in found] == [None, "status is nested too deep", None]
        assert not running.task.done()


@in_virtual_time
async def test_all_are_read_again_after_an_hour_in_case_a_watch_has_lost_something():
    server = Server()
    server.put("chat")
    async with fed(server, relist_s=3600.0) as own:
        await read(own)
        server.wire = lambda events: [event for event in events if event.kind is EventKind.BOOKMARK]
        server.put("lost")
        server.bookmark()
        await asyncio.sleep(3500.0)
        assert list(await read(own, oldest_s=1e6)) == ["chat"]
        await asyncio.sleep(200.0)
        server.bookmark()
        await asyncio.sleep(5.0)
        assert list(await read(own)) == ["chat", "lost"]


@in_virtual_time
async def test_a_defect_about_one_object_leaves_that_object_out(monkeypatch):
    server = Server()
    server.put("bad")
    server.put("chat")
    own = OwnObjects(SystemClock())
    scope = WatchScope(SERVICES, None)
    uids = frozenset(one["metadata"]["uid"] for one in server.objects.values())
    own.listed(scope, uids, 2, 0.0)
    own.adopt(SERVICES, server.objects["llm/bad"])

    def defect(_resource, manifest):
        if manifest["metadata"]["name"] == "bad":
            raise ZeroDivisionError
        return manifest

    monkeypatch.setattr(own_objects, "trimmed", defect)
    with pytest.raises(ZeroDivisionError):
        own.take(SERVICES, EventKind.ADDED, server.objects["llm/bad"])
    own.take(SERVICES, EventKind.ADDED, server.objects["llm/chat"])
    assert list(await read(own, oldest_s=1e12)) == ["chat"]


@in_virtual_time
async def test_an_installation_for_some_namespaces_asks_about_no_other():
    server = Server()
    for namespace in "abc":
        server.put(f"in-{namespace}", namespace=namespace)
    async with fed(server, namespaces=("a", "b")) as own:
        assert sorted(await read(own)) == ["in-a", "in-b"]
        server.wire = lambda _events: ()
        server.delete("in-b", namespace="b")
        server.compact()
        server.cut()
        await asyncio.sleep(5.0)
        assert sorted(await read(own)) == ["in-a"]
