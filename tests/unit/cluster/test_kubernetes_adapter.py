"""The Kubernetes adapter against a server that says what real ones say."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio import client

from breakeven_operator.cluster.api_json import problem_of
from breakeven_operator.cluster.kubernetes import KubernetesCluster
from breakeven_operator.kinds import DEPLOYMENTS, JOBS, NODES, PODS, PROFILES, REPLICASETS, SERVICES, Ref
from breakeven_operator.ports import ClusterError, FieldConflictError, StaleObjectError

# The answer of kube-apiserver 1.36.
CONFLICT = {
    "kind": "Status",
    "status": "Failure",
    "reason": "Conflict",
    "code": 409,
    "message": 'Apply failed with 1 conflict: conflict with "kubectl" using apps/v1: .spec.template.metadata.annotations.x',
    "details": {
        "causes": [
            {
                "reason": "FieldManagerConflict",
                "message": 'conflict with "kubectl" using apps/v1',
                "field": ".spec.x",
            },
            {
                "reason": "FieldManagerConflict",
                "message": 'conflict with "helm" using apps/v1 at 2026',
                "field": ".spec.y",
            },
        ]
    },
}
STALE = {"kind": "Status", "reason": "Conflict", "code": 409, "message": "the object has been modified"}
TAKEN = {"kind": "Status", "reason": "AlreadyExists", "code": 409, "message": 'jobs "x" already exists'}


@asynccontextmanager
async def api(answer):
    """An adapter on a server that records requests and answers with `answer(request)`."""
    asked = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(
            (request.method, request.path, dict(request.query), dict(request.headers), await request.text())
        )
        status, body = answer(request)
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = client.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    configuration.api_key["BearerToken"] = "bearer abc"
    counted = []
    adapter = KubernetesCluster(configuration, counted=lambda verb, code: counted.append((verb, code)))
    try:
        yield adapter, asked, counted
    finally:
        await adapter.close()
        await runner.cleanup()


async def test_a_list_follows_its_pages_and_asks_no_more_than_it_needs():
    def answer(request):
        last = "continue" in request.query
        item = {"metadata": {"name": "b" if last else "a", "uid": "2" if last else "1"}}
        return 200, {"items": [item], "metadata": {} if last else {"continue": "token"}}

    async with api(answer) as (adapter, asked, counted):
        found = await adapter.list_all(PODS, "llm", "a=b")
        assert [item["metadata"]["uid"] for item in found] == ["1", "2"]
        assert [entry[1] for entry in asked] == ["/api/v1/namespaces/llm/pods"] * 2
        assert asked[0][2] == {"limit": "500", "labelSelector": "a=b"}
        assert asked[0][3]["Authorization"] == "bearer abc"
        assert counted == [("GET", 200)] * 2


@pytest.mark.parametrize(
    ("resource", "small"),
    [(REPLICASETS, True), (NODES, True), (PROFILES, False), (PODS, False), (DEPLOYMENTS, False)],
)
async def test_only_metadata_is_read_where_it_suffices(resource, small):
    async with api(lambda _: (200, {"items": []})) as (adapter, asked, _):
        await adapter.list_all(resource)
        assert ("PartialObjectMetadataList" in asked[0][3]["Accept"]) is small


async def test_apply_is_a_raw_apply_patch_without_force_unless_asked():
    async with api(lambda _: (200, {"metadata": {}})) as (adapter, asked, _):
        body = {"metadata": {"namespace": "llm", "name": "chat"}, "status": {"x": 1}}
        await adapter.apply(SERVICES, body, subresource="status")
        await adapter.apply(DEPLOYMENTS, body, force=True, manager="other")
    method, path, query, headers, text = asked[0]
    assert (method, path) == (
        "PATCH",
        "/apis/breakeven.dev/v1alpha1/namespaces/llm/speculativeservices/chat/status",
    )
    assert query == {"fieldManager": "breakeven", "force": "false"}
    assert headers["Content-Type"] == "application/apply-patch+yaml"
    assert json.loads(text)["kind"] == "SpeculativeService"
    assert asked[1][2] == {"fieldManager": "other", "force": "true"}


async def test_field_conflicts_name_their_managers():
    async with api(lambda _: (409, CONFLICT)) as (adapter, _, _counted):
        with pytest.raises(FieldConflictError) as caught:
            await adapter.apply(DEPLOYMENTS, {"metadata": {"namespace": "a", "name": "b"}})
    assert caught.value.managers == ("helm", "kubectl")
    assert "\n" not in str(caught.value)


async def test_other_conflicts_are_told_apart():
    async with api(lambda _: (409, STALE)) as (adapter, _, _counted):
        with pytest.raises(StaleObjectError):
            await adapter.apply(SERVICES, {"metadata": {"namespace": "a", "name": "b"}})
    async with api(lambda _: (409, TAKEN)) as (adapter, _, _counted):
        with pytest.raises(ClusterError) as caught:
            await adapter.create(JOBS, {"metadata": {"namespace": "a", "name": "b"}})
    assert type(caught.value) is ClusterError
    assert caught.value.status == 409


@pytest.mark.parametrize("reason", ["Conflict", "Forbidden"])
async def test_a_webhook_that_denies_with_409_is_no_object_that_has_changed(reason):
    said = 'admission webhook "guard.example.com" denied the request: another change is on'
    answer = {"kind": "Status", "code": 409, "reason": reason, "message": said}
    async with api(lambda _: (409, answer)) as (adapter, _, _counted):
        with pytest.raises(ClusterError) as caught:
            await adapter.apply(SERVICES, {"metadata": {"namespace": "a", "name": "b"}})
    assert type(caught.value) is ClusterError
    assert caught.value.refused
    assert caught.value.said == said


async def test_absence_is_an_answer():
    gone = {"kind": "Status", "code": 404, "message": "not found"}
    async with api(lambda _: (404, gone)) as (adapter, asked, _):
        assert await adapter.get(PODS, "a", "b") is None
        await adapter.delete(Ref(JOBS, "a", "b", "uid-1"))
        with pytest.raises(ClusterError):
            await adapter.list_all(SERVICES)
    assert json.loads(asked[1][4]) == {"propagationPolicy": "Background", "preconditions": {"uid": "uid-1"}}


async def test_a_kind_is_there_when_its_version_names_it_and_its_objects_are_not_read():
    kinds = {"kind": "APIResourceList", "resources": [{"name": SERVICES.plural}, {"name": "other"}]}
    async with api(lambda _: (200, kinds)) as (adapter, asked, _):
        assert await adapter.serves(SERVICES)
        assert not await adapter.serves(PROFILES)
        assert not await adapter.serves(PODS)
    assert [entry[1] for entry in asked] == ["/apis/breakeven.dev/v1alpha1"] * 2 + ["/api/v1"]
    async with api(lambda _: (404, {"code": 404})) as (adapter, _, _counted):
        assert not await adapter.serves(SERVICES)
    async with api(lambda _: (403, {"code": 403})) as (adapter, _, _counted):
        with pytest.raises(ClusterError, match="403"):
            await adapter.serves(SERVICES)


async def test_what_is_no_api_server_is_an_error_and_no_traceback():
    async with api(lambda _: (502, "<html>Bad gateway</html>")) as (adapter, _, counted):
        with pytest.raises(ClusterError, match="502"):
            await adapter.list_all(PODS)
    assert counted == [("GET", 502)]


DEEP = '{"a":' * 250 + "1" + "}" * 250


async def test_an_object_that_cannot_be_read_is_named_and_the_others_are_listed():
    odd = f'{{"metadata": {{"name": "odd", "uid": "2"}}, "spec": {DEEP}}}'
    good = '{"metadata": {"name": "good", "uid": "1"}}'
    body = f'{{"metadata": {{"resourceVersion": "1"}}, "items": [{good}, {odd}]}}'
    async with api(lambda _: (200, body)) as (adapter, _, _counted):
        found = await adapter.list_all(SERVICES)
    assert [item["metadata"]["name"] for item in found] == ["good", "odd"]
    assert [problem_of(item) for item in found] == [None, "spec is nested too deep"]


async def test_a_watch_goes_on_behind_an_object_that_cannot_be_read():
    odd = f'{{"type": "ADDED", "object": {{"metadata": {{"name": "odd", "uid": "2", "resourceVersion": "8"}}, "spec": {DEEP}}}}}'
    lines = (changed("ADDED"), odd.encode() + b"\n", changed("MODIFIED", version="9"))
    async with api(watched(*lines)) as (adapter, _, _):
        assert await events_of(adapter, SERVICES) == [("ADDED", "7"), ("ADDED", "8"), ("MODIFIED", "9")]


@pytest.mark.parametrize("body", ["<html>Welcome</html>", "", "[]", '{"kind": "Status"}', DEEP])
async def test_an_answer_of_status_200_that_cannot_be_read_is_an_error_and_never_an_empty_list(body):
    async with api(lambda _: (200, body)) as (adapter, _, _counted):
        with pytest.raises(ClusterError):
            await adapter.list_all(SERVICES)
        with pytest.raises(ClusterError):
            await adapter.get(SERVICES, "a", "b")
        if body not in {'{"kind": "Status"}', DEEP}:
            with pytest.raises(ClusterError):
                await adapter.serves(SERVICES)


async def test_nobody_there_is_an_error_with_status_0():
    adapter = KubernetesCluster(client.Configuration(host="http://127.0.0.1:1"))
    with pytest.raises(ClusterError) as caught:
        await adapter.get(PODS, "a", "b")
    await adapter.close()
    assert caught.value.status == 0


def watched(*lines):
    """An API server that answers a watch with these lines, in pieces that know nothing of lines, and ends it."""

    def answer(_request):
        text = b"".join(
            line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines
        )
        return 200, text.decode()

    return answer


def changed(kind, name="a", version="7", **annotations):
    meta = {"name": name, "uid": name, "resourceVersion": version, "annotations": annotations}
    return {"type": kind, "object": {"metadata": meta}}


async def events_of(adapter, resource=PODS, version=""):
    """Events of a watch: kinds and versions, and the error that it ends with."""
    found = []

    def take(event):
        found.append((str(event.kind), event.manifest["metadata"]["resourceVersion"]))

    try:
        async for event in adapter.watch(resource, "llm", "a=b", version):
            take(event)
    except ClusterError as error:
        found.append((error.status, str(error)))
    return found


async def test_a_watch_begins_with_what_there_is_and_says_when_that_was_all():
    end = {"k8s.io/initial-events-end": "true"}
    lines = (
        changed("ADDED"),
        changed("BOOKMARK", version="9", **end),
        changed("MODIFIED", version="10"),
        changed("BOOKMARK", version="12"),
        b"\n",
        changed("DELETED", version="13"),
    )
    async with api(watched(*lines)) as (adapter, asked, counted):
        assert await events_of(adapter) == [
            ("ADDED", "7"),
            ("SYNCED", "9"),
            ("MODIFIED", "10"),
            ("BOOKMARK", "12"),
            ("DELETED", "13"),
        ]
        assert asked[0][2] == {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "sendInitialEvents": "true",
            "resourceVersionMatch": "NotOlderThan",
            "labelSelector": "a=b",
        }
        assert counted == [("WATCH", 200)]


async def test_a_watch_that_goes_on_says_first_that_the_server_has_taken_it_up():
    async with api(watched(changed("ADDED", version="8"))) as (adapter, asked, _):
        assert await events_of(adapter, version="7") == [("BOOKMARK", "7"), ("ADDED", "8")]
        assert asked[0][2]["resourceVersion"] == "7"
        assert "sendInitialEvents" not in asked[0][2]


async def test_a_watch_of_a_kind_whose_metadata_suffices_asks_for_no_more():
    async with api(watched(changed("ADDED"))) as (adapter, asked, _):
        await events_of(adapter, NODES)
        assert "as=PartialObjectMetadata;" in asked[0][3]["Accept"]


async def test_a_line_longer_than_any_buffer_is_one_event():
    long = changed("ADDED", name="x" * (1 << 20))
    async with api(watched(long, changed("DELETED", version="8"))) as (adapter, _, _):
        assert [kind for kind, _ in await events_of(adapter)] == ["ADDED", "DELETED"]


@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        ({"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}, 410, "too old"),
        (b"<html>\n", 0, "a line that is no event"),
        (b"[1]\n", 0, "a line that is no event"),
        ({"type": "ADDED"}, 0, "a line that is no event"),
        ({"type": "RENAMED", "object": {"metadata": {}}}, 0, "a line that is no event"),
        ({"type": "ADDED", "object": {"metadata": None}}, 0, "a line that is no event"),
    ],
)
async def test_what_is_no_event_ends_a_watch_with_one_line(line, status, words):
    async with api(watched(changed("ADDED"), line)) as (adapter, _, _):
        first, (code, text) = await events_of(adapter)
        assert first == ("ADDED", "7")
        assert code == status
        assert words in text
        assert "\n" not in text


async def test_a_server_without_streamed_lists_is_asked_for_pages_and_for_streams_no_more():
    def answer(request):
        query = request.query
        if "sendInitialEvents" in query:
            return 422, {"kind": "Status", "code": 422, "message": "sendInitialEvents: Forbidden"}
        if "watch" in query:
            return 200, json.dumps(changed("MODIFIED", version="31")) + "\n"
        item = changed("ADDED", name=query.get("continue", "first"), version="20")["object"]
        more = {} if "continue" in query else {"continue": "second"}
        return 200, {"items": [item], "metadata": {"resourceVersion": "30", **more}}

    async with api(answer) as (adapter, asked, _):
        listed = [("ADDED", "20"), ("ADDED", "20"), ("SYNCED", "30"), ("BOOKMARK", "30"), ("MODIFIED", "31")]
        assert await events_of(adapter) == listed
        assert await events_of(adapter) == listed
        assert sum("sendInitialEvents" in query for _, _, query, _, _ in asked) == 1


async def test_a_deleted_object_is_gone_unless_finalizers_hold_it():
    held = {"metadata": {"name": "x", "uid": "u", "finalizers": ["example.com/wait"]}}
    for answered, left in (
        ({"kind": "Status", "status": "Success"}, None),
        ({"metadata": {"name": "x", "uid": "u"}}, None),
        (held, held),
    ):
        async with api(lambda _, answered=answered: (200, answered)) as (adapter, _, _):
            assert await adapter.delete(Ref(JOBS, "llm", "x", "u")) == left


async def test_requests_do_not_wait_for_a_connection_that_watches_hold():
    """A client's pool has a hundred connections by default; an installation for many namespaces has more watches."""
    watches, open_ones = 120, asyncio.Event()
    count = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal count
        if "watch" not in request.query:
            return web.json_response({"metadata": {"name": "x"}})
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(json.dumps(changed("ADDED")).encode() + b"\n")
        count += 1
        if count == watches:
            open_ones.set()
        await asyncio.Event().wait()
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    adapter = KubernetesCluster(client.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}"))
    following = [asyncio.create_task(events_of(adapter)) for _ in range(watches)]
    try:
        await asyncio.wait_for(open_ones.wait(), 60)
        assert await asyncio.wait_for(adapter.get(JOBS, "llm", "x"), 60) == {"metadata": {"name": "x"}}
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        await adapter.close()
        await runner.cleanup()


async def test_an_object_that_has_changed_since_it_was_read_is_not_deleted():
    changed = {"kind": "Status", "code": 409, "reason": "Conflict", "message": "the ResourceVersion is 7"}
    async with api(lambda _: (409, changed)) as (adapter, asked, _):
        with pytest.raises(StaleObjectError):
            await adapter.delete(Ref(SERVICES, "a", "b", "uid-1"), "6")
    assert json.loads(asked[0][4])["preconditions"] == {"uid": "uid-1", "resourceVersion": "6"}
