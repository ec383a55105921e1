"""The Prometheus adapter: credentials by reference, one line per failure, no secret in any of them."""

from __future__ import annotations

import base64
import math
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from breakeven_operator.adapters.prometheus import Prometheus
from breakeven_operator.plan import SECRETS
from breakeven_operator.ports import MetricsError, Source
from fakes.clock import FakeClock
from fakes.cluster import FakeCluster

VECTOR = {
    "status": "success",
    "data": {
        "resultType": "vector",
        "result": [
            {"metric": {"pod": "a"}, "value": [1.0, "3.5"]},
            {"metric": {"pod": "b"}, "value": [1.0, "NaN"]},
        ],
    },
}


@asynccontextmanager
async def server(status=200, body=VECTOR):
    asked = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request)
        return (
            web.Response(text=body, status=status)
            if isinstance(body, str)
            else web.json_response(body, status=status)
        )

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/prefix/", asked
    finally:
        await runner.cleanup()


def cluster_with(name="token", **keys):
    cluster = FakeCluster(FakeClock())
    data = {key: base64.b64encode(value.encode()).decode() for key, value in keys.items()}
    cluster.put(SECRETS, {"metadata": {"namespace": "llm", "name": name}, "data": data})
    return cluster


async def test_numbers_arrive_also_those_that_are_none():
    async with server() as (url, asked):
        series = await Prometheus(cluster_with()).query(Source(url), 'up{a="b\\"c"}')
    assert [s.labels["pod"] for s in series] == ["a", "b"]
    assert series[0].value == 3.5
    assert math.isnan(series[1].value)
    assert asked[0].path == "/prefix/api/v1/query"
    assert asked[0].query["query"] == 'up{a="b\\"c"}'
    assert "Authorization" not in asked[0].headers


MATRIX = {
    "status": "success",
    "data": {
        "resultType": "matrix",
        "result": [{"metric": {"workload": "a"}, "values": [[1.0, "3.5"], [2.0, "NaN"], [4.0, "0"]]}],
    },
}


async def test_a_range_vector_arrives_with_its_gaps_closed_and_numbers_that_are_none():
    async with server(body=MATRIX) as (url, asked):
        (found,) = await Prometheus(cluster_with()).query_past(Source(url), "up[1h:5m]")
    assert found.labels == {"workload": "a"}
    assert found.values[::2] == ((1.0, 3.5), (4.0, 0.0))
    assert found.values[1][0] == 2.0
    assert math.isnan(found.values[1][1])
    assert asked[0].query["query"] == "up[1h:5m]"


@pytest.mark.parametrize(
    "row",
    [
        {"metric": {}},
        {"metric": {}, "value": [1, "2"]},
        {"metric": {}, "values": [[1, "x"]]},
        {"metric": {}, "values": [[1]]},
    ],
)
async def test_an_answer_that_is_no_range_vector_is_one_line(row):
    async with server(body={"data": {"result": [row]}}) as (url, _):
        with pytest.raises(MetricsError, match="no range vector"):
            await Prometheus(cluster_with()).query_past(Source(url), "up[1h:5m]")


async def test_tokens_and_tenants_come_from_secrets_at_every_query():
    cluster = cluster_with(value="first\n", tenant="team-a")
    async with server() as (url, asked):
        prometheus = Prometheus(cluster)
        source = Source(
            url,
            "llm",
            bearer_secret=("token", "value"),
            secret_headers=(("X-Scope-OrgID", ("token", "tenant")),),
        )
        await prometheus.query(source, "up")
        rotated = base64.b64encode(b"second").decode()
        cluster.change(SECRETS, "llm", "token", lambda secret: secret["data"].update(value=rotated))
        await prometheus.query(source, "up")
    assert [request.headers["Authorization"] for request in asked] == ["Bearer first", "Bearer second"]
    assert asked[0].headers["X-Scope-OrgID"] == "team-a"


async def test_a_missing_secret_is_named_without_its_content():
    source = Source("http://127.0.0.1:1", "llm", bearer_secret=("token", "other"))
    with pytest.raises(MetricsError, match="no Secret token with key other"):
        await Prometheus(cluster_with(value="hush")).query(source, "up")


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (503, "busy", "refused the query"),
        (200, "<html>", "not Prometheus' JSON"),
        (200, {"status": "success", "data": {"result": [{"metric": {}}]}}, "no instant vector"),
        (200, {"data": {"result": [{"metric": {}, "value": [1, "x"]}]}}, "no instant vector"),
    ],
)
async def test_an_answer_that_is_none_is_one_line(status, body, said):
    async with server(status, body) as (url, _):
        source = Source(url, "llm", bearer_secret=("token", "value"))
        with pytest.raises(MetricsError, match=said) as caught:
            await Prometheus(cluster_with(value="hush")).query(source, "up")
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_nobody_there():
    with pytest.raises(MetricsError, match=r"127\.0\.0\.1:1 is not reached") as caught:
        await Prometheus(cluster_with()).query(Source("http://127.0.0.1:1"), "a_long_query")
    assert "a_long_query" not in str(caught.value)


async def test_a_token_file_that_is_gone_is_a_fault_of_the_metrics_and_not_of_the_cycle(tmp_path):
    adapter = Prometheus(FakeCluster(FakeClock()), bearer_file=str(tmp_path / "gone"))
    with pytest.raises(MetricsError, match="gone cannot be read"):
        await adapter.query(Source("http://127.0.0.1:9"), "up")


@pytest.mark.parametrize("where", ["bearer", "header"])
async def test_a_credential_that_is_no_header_is_named_and_not_shown(where):
    cluster = cluster_with(token="schl\u00fcssel")
    source = (
        Source("http://127.0.0.1:9", "llm", bearer_secret=("token", "token"))
        if where == "bearer"
        else Source("http://127.0.0.1:9", "llm", secret_headers=(("X-Tenant", ("token", "token")),))
    )
    with pytest.raises(MetricsError, match="not plain ASCII") as caught:
        await Prometheus(cluster).query(source, "up")
    assert "schl" not in str(caught.value)


async def test_an_authority_that_is_no_certificate_is_one_line():
    source = Source("https://127.0.0.1:9", "llm", ca_secret=("token", "ca"))
    with pytest.raises(MetricsError, match="is not reached"):
        await Prometheus(cluster_with(ca="nonsense")).query(source, "up")


async def test_proxies_of_the_machine_are_nobody_s_configuration(monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with server() as (url, asked):
        assert await Prometheus(cluster_with()).query(Source(url), "up")
    assert asked
