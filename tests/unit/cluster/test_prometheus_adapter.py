"""The Prometheus adapter: credentials by reference, one line per failure, no secret in any of them."""

from __future__ import annotations

import base64
import contextlib
import math
import re
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from breakeven.serving.promql import LabelNames
from breakeven_operator.cluster.prometheus_api import OwnPrometheus, PrometheusClient
from breakeven_operator.kinds import SECRETS
from breakeven_operator.ports import MetricsError, PrometheusAccess
from fakes.api_server import FakeCluster
from fakes.manual_clock import FakeClock

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


def answer(kind, *rows):
    return {"status": "success", "data": {"resultType": kind, "result": list(rows)}}


@asynccontextmanager
async def server(status=200, body=VECTOR, headers=None, tls=None):
    asked = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request)
        # The request keeps its body, so that a test can read it later.
        await request.post()
        code, said = body(request) if callable(body) else (status, body)
        return (
            web.Response(text=said, status=code)
            if isinstance(said, str)
            else web.json_response(said, status=code, headers=headers)
        )

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}/prefix/", asked
    finally:
        await runner.cleanup()


@asynccontextmanager
async def adapter(cluster=None, **settings):
    prometheus = PrometheusClient(cluster or cluster_with(), **{"allowed": ("127.0.0.1",), **settings})
    try:
        yield prometheus
    finally:
        await prometheus.close()


async def ask(source, cluster=None, promql="up", **settings):
    async with adapter(cluster, **settings) as prometheus:
        return await prometheus.query(source, promql)


async def ask_past(source):
    async with adapter() as prometheus:
        return await prometheus.query_past(source, "up[1h:5m]")


def cluster_with(name="token", address="", **keys):
    """One Secret, that may be sent to an address."""
    cluster = FakeCluster(FakeClock())
    data = {key: base64.b64encode(value.encode()).decode() for key, value in keys.items()}
    annotations = {"breakeven.dev/prometheus-address": address}
    meta = {"namespace": "llm", "name": name, "annotations": annotations}
    cluster.put(SECRETS, {"metadata": meta, "data": data})
    return cluster


async def test_numbers_arrive_also_those_that_are_none():
    async with server() as (url, asked):
        series = await ask(PrometheusAccess(url), promql='up{a="b\\"c"}')
    assert [s.labels["pod"] for s in series] == ["a", "b"]
    assert series[0].value == 3.5
    assert math.isnan(series[1].value)
    assert asked[0].path == "/prefix/api/v1/query"
    assert asked[0].query["query"] == 'up{a="b\\"c"}'
    assert "Authorization" not in asked[0].headers


async def test_a_question_that_is_too_long_for_an_address_is_posted_with_the_same_words():
    words = "a" * 5000
    for promql, method in ((words, "GET"), (words * 2, "POST")):
        async with server() as (url, asked):
            await ask(PrometheusAccess(url, headers=(("X-Scope-OrgID", "team"),)), promql=promql)
        assert asked[0].method == method
        assert asked[0].path == "/prefix/api/v1/query"
        assert (asked[0].query or await asked[0].post())["query"] == promql
        assert asked[0].headers["X-Scope-OrgID"] == "team"


MATRIX = {
    "status": "success",
    "data": {
        "resultType": "matrix",
        "result": [{"metric": {"workload": "a"}, "values": [[1.0, "3.5"], [2.0, "NaN"], [4.0, "0"]]}],
    },
}


async def test_a_range_vector_arrives_with_its_gaps_closed_and_numbers_that_are_none():
    async with server(body=MATRIX) as (url, asked):
        (found,) = await ask_past(PrometheusAccess(url))
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
    async with server(body=answer("matrix", row)) as (url, _):
        with pytest.raises(MetricsError, match="no range vector"):
            await ask_past(PrometheusAccess(url))


async def test_tokens_and_tenants_come_from_secrets_at_every_query():
    async with (
        server() as (url, asked),
        adapter(
            cluster := cluster_with(address=f"http://other:1 {url}", value="first\n", tenant="team-a")
        ) as prometheus,
    ):
        source = PrometheusAccess(
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
    source = PrometheusAccess("http://127.0.0.1:1", "llm", bearer_secret=("token", "other"))
    with pytest.raises(MetricsError, match="no Secret token with key other"):
        await ask(source, cluster_with(address="http://127.0.0.1:1/", value="hush"))


@pytest.mark.parametrize("key", ["bearer_secret", "secret_headers"])
@pytest.mark.parametrize(
    "address", ["", "http://127.0.0.1:2", "http://127.0.0.1:1/other", "http://127.0.0.1"]
)
async def test_a_secret_is_sent_only_where_it_says_itself(address, key):
    reference = ("token", "value")
    named = (
        {"bearer_secret": reference}
        if key == "bearer_secret"
        else {"secret_headers": (("X-Tenant", reference),)}
    )
    with pytest.raises(
        MetricsError, match=r"annotate it with breakeven\.dev/prometheus-address=http://127\.0\.0\.1:1"
    ):
        await ask(
            PrometheusAccess("http://127.0.0.1:1", "llm", **named),
            cluster_with(address=address, value="hush"),
        )


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (503, "busy", "refused the query: HTTP 503"),
        (405, "no", "refused the query: HTTP 405: .* POST must be allowed"),
        (503, "<html>" * 1000, "refused the query: HTTP 503"),
        (
            422,
            {"status": "error", "errorType": "execution", "error": "query\ntimed out (token hush)"},
            r"refused the query: HTTP 422 execution$",
        ),
        (
            200,
            {"status": "error", "errorType": "timeout", "error": "late"},
            "refused the query: timeout$",
        ),
        (200, "<html>", "not Prometheus' JSON"),
        (200, "", "not Prometheus' JSON"),
        (200, '{"status": "success", "da', "not Prometheus' JSON"),
        (200, "[" * 100_000, "not Prometheus' JSON"),
        (200, '{"data": ' + "[" * 100_000, "not Prometheus' JSON"),
        (
            200,
            '{"data": {"resultType": "vector", "x": ' + "[" * 100_000 + "]" * 100_000 + "}}",
            "not Prometheus' JSON",
        ),
        (200, ["data"], "not Prometheus' JSON"),
        (200, {"data": {"resultType": "scalar", "result": [1.0, "2"]}}, "no instant vector"),
        (200, {"data": {"resultType": "matrix", "result": []}}, "no instant vector"),
        (200, {"data": {"resultType": "vector", "result": {}}}, "no instant vector"),
        (200, {"data": {"result": []}}, "no instant vector"),
        (200, answer("vector", {"metric": {}}), "no instant vector"),
        (200, answer("vector", {"metric": {}, "value": [1, "x"]}), "no instant vector"),
        (200, answer("vector", {"metric": {}, "value": [1, 10**400]}), "no instant vector"),
        (200, answer("vector", {"metric": [], "value": [1, "2"]}), "no instant vector"),
        (200, answer("vector", {"metric": {"pod": 1}, "value": [1, "2"]}), "no instant vector"),
        (200, answer("vector", {"metric": {}, "histogram": [1, {"count": "x"}]}), "no instant vector"),
        (
            200,
            answer("vector", {"metric": {}, "histogram": [1, {"count": "1", "buckets": [[0, "0"]]}]}),
            "no instant vector",
        ),
        (200, answer("vector", "pod"), "no instant vector"),
    ],
)
async def test_an_answer_that_is_none_is_one_line(status, body, said):
    async with server(status, body) as (url, _):
        source = PrometheusAccess(url, "llm", bearer_secret=("token", "value"))
        with pytest.raises(MetricsError, match=said) as caught:
            await ask(source, cluster_with(address=url, value="hush"))
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


async def test_what_a_server_says_is_logged_in_printable_words_and_stands_in_no_status(caplog):
    body = {"status": "error", "errorType": "e\x1b[2J", "error": "see\u202e http://internal " + "s" * 500}
    async with server(500, body) as (url, _):
        with pytest.raises(MetricsError) as caught:
            await ask(PrometheusAccess(url))
    assert str(caught.value).endswith("refused the query: HTTP 500")
    (line,) = [record.getMessage() for record in caplog.records]
    assert "see http://internal sss" in line
    assert line.isprintable()
    assert len(line) < 300


async def test_nobody_there():
    with pytest.raises(MetricsError, match=r"127\.0\.0\.1:1 is not reached") as caught:
        await ask(PrometheusAccess("http://127.0.0.1:1"), promql="a_long_query")
    assert "a_long_query" not in str(caught.value)


async def test_a_token_file_that_is_gone_is_a_fault_of_the_metrics_and_not_of_the_cycle(tmp_path):
    own = PrometheusAccess("http://127.0.0.1:9")
    with pytest.raises(MetricsError, match="gone cannot be read"):
        await ask(own, own=OwnPrometheus(own, str(tmp_path / "gone")))


@pytest.mark.parametrize("token", ["schl\u00fcssel", "schl\nX-Scope-OrgID: another"])
@pytest.mark.parametrize("where", ["bearer", "header"])
async def test_a_credential_that_is_no_header_is_named_and_not_shown(where, token):
    cluster = cluster_with(address="http://127.0.0.1:9", token=token)
    source = (
        PrometheusAccess("http://127.0.0.1:9", "llm", bearer_secret=("token", "token"))
        if where == "bearer"
        else PrometheusAccess("http://127.0.0.1:9", "llm", secret_headers=(("X-Tenant", ("token", "token")),))
    )
    with pytest.raises(MetricsError, match="not plain ASCII") as caught:
        await ask(source, cluster)
    assert "schl" not in str(caught.value)


async def test_proxies_and_passwords_of_the_machine_are_nobody_s_configuration(monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hush")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with server() as (url, asked):
        assert await ask(PrometheusAccess(url))
    assert "Authorization" not in asked[0].headers


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_logged_and_takes_no_credential_along(status, caplog):
    async with server() as (other, asked_there):
        where = {"Location": other.replace("//", "//user:pass@") + "?token=hush"}
        async with server(status, {}, headers=where) as (url, _):
            cluster = cluster_with(address=url, value="hush", tenant="team-a")
            source = PrometheusAccess(
                url,
                "llm",
                bearer_secret=("token", "value"),
                secret_headers=(("X-Scope-OrgID", ("token", "tenant")),),
            )
            with pytest.raises(MetricsError, match="redirects, which is not followed") as caught:
                await ask(source, cluster)
    assert asked_there == []
    (line,) = [record.getMessage() for record in caplog.records]
    assert re.search(r"redirects to http://127\.0\.0\.1:\d+$", line)
    assert not {"hush", "pass"} & set(re.findall(r"\w+", f"{caught.value} {line}"))


async def test_the_operator_s_own_token_and_authority_are_for_its_own_prometheus_alone(tmp_path):
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("hush")
    authority.write_text("nonsense")
    async with server() as (own, asked), server() as (of_a_tenant, asked_of_a_tenant):
        access = PrometheusAccess(own)
        await ask(access, own=OwnPrometheus(access, str(token)))
        await ask(PrometheusAccess(of_a_tenant), own=OwnPrometheus(access, str(token), str(authority)))
    assert asked[0].headers["Authorization"] == "Bearer hush"
    assert "Authorization" not in asked_of_a_tenant[0].headers


@pytest.mark.parametrize("address", ["http://127.0.0.1:99999", "http://[::1", "http://\u2100/"])
async def test_an_address_that_is_none_is_one_line(address):
    with pytest.raises(MetricsError, match="is no address that can be asked"):
        await ask(PrometheusAccess(address))


async def test_a_native_histogram_is_its_count_and_its_buckets():
    found = {"count": "7", "sum": "1.5", "buckets": [[3, "-Inf", "0.1", "3"], [0, "0.5", "+Inf", "4"]]}
    async with server(body=answer("vector", {"metric": {"pod": "a"}, "histogram": [1.0, found]})) as (url, _):
        client = PrometheusClient(FakeCluster(FakeClock()), allowed=("127.0.0.1",))
        (one,) = await client.query(PrometheusAccess(url), "x")
        await client.close()
    assert (one.labels, one.value) == ({"pod": "a"}, 7.0)
    assert one.buckets == ((-math.inf, 0.1, 3.0), (0.5, math.inf, 4.0))


async def test_a_server_with_other_labels_is_asked_by_them_and_read_as_any_other():
    row = {"metric": {"exported_pod": "a", "pod": "prometheus-0", "stat": "x"}, "value": [1.0, "3.5"]}
    source_labels = LabelNames(pod="exported_pod")
    async with server(body=answer("vector", row)) as (url, asked):
        (found,) = await ask(PrometheusAccess(url, labels=source_labels), promql='sum by(pod)(up{pod="pod"})')
    assert asked[0].query["query"] == 'sum by(exported_pod)(up{exported_pod="pod"})'
    assert found.labels == {"pod": "a", "stat": "x"}


class OtherServer:
    """Answers as VictoriaMetrics does: it refuses functions of native histograms, and has a path for range queries."""

    def __init__(self, refusal=422):
        self._refusal = refusal

    def __call__(self, request):
        if "histogram_" in request.query["query"]:
            return self._refusal, {"status": "error", "errorType": "422", "error": "unsupported function"}
        return 200, MATRIX if request.path.endswith("query_range") else VECTOR


NATIVE = "increase(a_count[5m]) or histogram_count(increase(a[5m]))"


def asked_for(requests):
    return [
        (request.path.rpartition("/")[2], request.query["query"])
        for request in requests
        if "vector(0)" not in request.query["query"]
    ]


async def test_a_server_without_native_histograms_is_asked_in_its_own_words_and_probed_once():
    async with server(body=OtherServer()) as (url, asked), adapter(now=lambda: 1830.0) as prometheus:
        source = PrometheusAccess(url)
        for _ in range(2):
            assert len(await prometheus.query(source, NATIVE)) == 2
        await prometheus.query_past(source, "(up)[600s:60s]")
        await prometheus.query_past(source, f"({NATIVE})[600s:60s] @ 1200")
    assert len(asked) == 6
    classic = "increase(a_count[5m])"
    assert asked_for(asked) == [
        ("query", NATIVE),
        ("query", classic),
        ("query", classic),
        ("query_range", "up"),
        ("query_range", classic),
    ]
    spans = [tuple(one.query[name] for name in ("start", "end", "step")) for one in asked[4:]]
    # Without the newest half minute; and as of the time that is named, less nothing.
    assert spans == [("1260", "1800", "60s"), ("660", "1200", "60s")]


@pytest.mark.parametrize("body", [VECTOR, OtherServer(refusal=500)], ids=["prometheus", "starting"])
async def test_any_other_server_is_asked_as_prometheus_is(body):
    async with server(body=body) as (url, asked), adapter() as prometheus:
        with contextlib.suppress(MetricsError):
            await prometheus.query(PrometheusAccess(url), NATIVE)
        with contextlib.suppress(MetricsError):
            await prometheus.query_past(PrometheusAccess(url), "(up)[600s:60s]")
    assert asked_for(asked) == [("query", NATIVE), ("query", "(up)[600s:60s]")]


async def test_a_question_that_prometheus_itself_refuses_is_not_asked_in_other_words():
    refusal = {"status": "error", "errorType": "execution", "error": "too many samples"}
    body = lambda request: (200, VECTOR) if "vector(0)" in request.query["query"] else (422, refusal)  # noqa: E731
    async with server(body=body) as (url, asked), adapter() as prometheus:
        for _ in range(2):
            with pytest.raises(MetricsError, match="HTTP 422 execution"):
                await prometheus.query(PrometheusAccess(url), NATIVE)
    assert asked_for(asked) == [("query", NATIVE)] * 2
    assert len(asked) == 3, "and is probed once"


async def test_a_question_that_all_servers_understand_alike_needs_no_probe():
    async with server() as (url, asked):
        await ask(PrometheusAccess(url))
    assert asked_for(asked) == [("query", "up")] == [("query", one.query["query"]) for one in asked]


async def test_no_server_may_leave_out_a_store_that_is_down():
    async with server() as (url, asked):
        await ask(PrometheusAccess(url))
    assert asked[0].query.items() >= {("partial_response", "false"), ("deny_partial_response", "1")}
    async with server(body={**VECTOR, "isPartial": True}) as (url, _):
        with pytest.raises(MetricsError, match="answered in part: a store behind it is down"):
            await ask(PrometheusAccess(url))
