"""The Kubernetes adapter against a server that says what real ones say."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio import client

from breakeven_operator.adapters.kubernetes import KubernetesCluster
from breakeven_operator.kinds import DEPLOYMENTS, JOBS, NODES, PODS, PROFILES, REPLICASETS, SERVICES, Ref
from breakeven_operator.ports import ClusterError, FieldConflictError, StaleObjectError

# As kube-apiserver 1.36 answers.
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
        return 200, {"items": [{"n": 2 if last else 1}], "metadata": {} if last else {"continue": "token"}}

    async with api(answer) as (adapter, asked, counted):
        assert await adapter.list_all(PODS, "llm", "a=b") == [{"n": 1}, {"n": 2}]
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
    async with api(lambda _: (200, {})) as (adapter, asked, _):
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


async def test_absence_is_an_answer():
    gone = {"kind": "Status", "code": 404, "message": "not found"}
    async with api(lambda _: (404, gone)) as (adapter, asked, _):
        assert await adapter.get(PODS, "a", "b") is None
        await adapter.delete(Ref(JOBS, "a", "b", "uid-1"))
        with pytest.raises(ClusterError):
            await adapter.list_all(SERVICES)
    assert json.loads(asked[1][4]) == {"propagationPolicy": "Background", "preconditions": {"uid": "uid-1"}}


async def test_what_is_no_api_server_is_an_error_and_no_traceback():
    async with api(lambda _: (502, "<html>Bad gateway</html>")) as (adapter, _, counted):
        with pytest.raises(ClusterError, match="502"):
            await adapter.list_all(PODS)
    assert counted == [("GET", 502)]


async def test_nobody_there_is_an_error_with_status_0():
    adapter = KubernetesCluster(client.Configuration(host="http://127.0.0.1:1"))
    with pytest.raises(ClusterError) as caught:
        await adapter.get(PODS, "a", "b")
    await adapter.close()
    assert caught.value.status == 0
