"""Servers that a service may have the operator ask, and those that only an installation may allow."""

from __future__ import annotations

import asyncio
import base64
import copy
import ipaddress
import re
import socket

import pytest

from breakeven_operator.cluster.prometheus_api import PrometheusClient, TenantServers, is_reserved
from breakeven_operator.cluster.prometheus_questions import prometheus_of
from breakeven_operator.kinds import SECRETS
from breakeven_operator.ports import MetricsError, PrometheusAccess
from breakeven_operator.resources import SpeculativeService
from fakes.api_server import FakeCluster
from fakes.fleet_world import SERVICE
from fakes.manual_clock import FakeClock

ALLOWED = "breakeven.dev/prometheus-address"


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1",
        "127.255.0.9",
        "::1",
        "0.0.0.0",
        "0.1.2.3",
        "::",
        "169.254.169.254",
        "169.254.0.1",
        "fe80::1",
        "febf::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "224.0.0.1",
        "ff02::1",
        "100.100.100.200",
        "168.63.129.16",
        "fd00:ec2::254",
    ],
)
def test_addresses_of_the_machine_its_link_and_clouds_are_reserved(text):
    assert is_reserved(ipaddress.ip_address(text))


@pytest.mark.parametrize(
    "text",
    ["10.0.0.1", "192.168.1.1", "8.8.8.8", "fd00::1", "2001:db8::1", "::ffff:10.0.0.1", "64:ff9b::a00:1"],
)
def test_addresses_of_a_cluster_and_of_the_world_are_not(text):
    assert not is_reserved(ipaddress.ip_address(text))


def found(address, port=9090):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port)


@pytest.mark.parametrize(
    ("allowed", "address", "opens"),
    [
        ((), "127.0.0.1", False),
        (("127.0.0.0/8",), "127.3.2.1", True),
        (("127.0.0.1",), "127.0.0.1", True),
        (("127.0.0.1",), "127.0.0.2", False),
        (("[::1]",), "::1", True),
        (("http://127.0.0.1:9090",), "127.0.0.1", False),  # that server, not every name that resolves so
        ((), "10.1.2.3", True),
        ((), "fe80::1%lo", False),
    ],
)
def test_what_a_name_resolves_to_counts(allowed, address, opens):
    servers = TenantServers(allowed)
    if opens:
        servers.socket_for(found(address)).close()
        return
    with pytest.raises(MetricsError, match="is not asked: loopback, link-local and metadata addresses"):
        servers.socket_for(found(address))


@pytest.mark.parametrize(
    ("address", "trusted"),
    [
        ("http://127.0.0.1:9090", True),
        ("http://127.0.0.1:9090/", True),
        ("http://127.0.0.1:9090/prefix", True),
        ("http://127.0.0.1:9091", False),
        ("https://127.0.0.1:9090", False),
        ("http://own:1/prometheus", True),
        ("http://own:1/elsewhere", False),
        ("http://Sidecar:7/x", True),
        ("http://prometheus.monitoring:9090", False),
    ],
)
def test_servers_that_the_installation_names_are_asked_whatever_they_resolve_to(address, trusted):
    servers = TenantServers(
        ("http://127.0.0.1:9090", "sidecar"), PrometheusAccess("http://own:1/prometheus/")
    )
    assert servers.trusts(PrometheusAccess(address)) is trusted


@pytest.mark.parametrize(
    "address",
    [
        "http://169.254.169.254/latest/meta-data?x=",
        "http://prometheus:9090/?x=",
        "http://prometheus:9090/secret#",
        "http://user:word@prometheus:9090",
        "ftp://prometheus:9090",
        "http://pro metheus",
    ],
)
def test_an_address_has_no_query_no_fragment_and_no_user(address):
    with pytest.raises(MetricsError, match="no address that can be asked"):
        TenantServers().trusts(PrometheusAccess(address))


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "localhost.", "a.localhost", "metadata.google.internal"]
)
def test_names_of_the_machine_are_not_looked_up(host):
    with pytest.raises(MetricsError, match="is not asked"):
        TenantServers().trusts(PrometheusAccess(f"http://{host}:9090"))


@pytest.mark.parametrize(
    "name",
    [
        "Host", "host", "Content-Length", "Transfer-Encoding", "Cookie", "Authorization", "Metadata-Flavor", "Connection",
        "X-Forwarded-For", "x-remote-user", "X-Original-URL", "X-aws-ec2-metadata-token", "X-Google-Metadata-Request",
        "X-HTTP-Method-Override", "X-WEBAUTH-USER",
    ],
)  # fmt: skip
def test_headers_that_say_who_asks_are_not_a_tenants_to_choose(name):
    source = PrometheusAccess("http://prometheus:9090", headers=((name, "x"),))
    with pytest.raises(MetricsError, match=f"not asked with header {name}"):
        TenantServers().trusts(source)


@pytest.mark.parametrize("name", ["X-Scope-OrgID", "x-scope-orgid", "THANOS-TENANT", "AccountID", "X-Tenant"])
def test_headers_that_select_a_tenant_are(name):
    assert not TenantServers().trusts(PrometheusAccess("http://p:9090", headers=((name, "x"),)))


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0"],
)
async def test_no_spelling_of_loopback_is_asked(host):
    async def connected(_reader, writer):
        asked.append(1)
        writer.close()

    asked: list[int] = []
    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    prometheus = PrometheusClient(FakeCluster(FakeClock()), timeout_s=5)
    try:
        with pytest.raises(MetricsError) as caught:
            await prometheus.query(PrometheusAccess(f"http://{host}:{port}"), "up")
    finally:
        await prometheus.close()
        server.close()
        await server.wait_closed()
    assert asked == []
    assert re.search("is not asked|is no address that can be asked", str(caught.value))


async def test_of_two_tenants_with_secrets_of_one_name_each_sends_its_own():
    """From `spec.metricsSource.prometheus.*SecretRef` of a service to the request that carries its credential."""

    async def answers(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.split(": ", 1) for line in head.splitlines()[1:] if ": " in line)
        sent.append((fields.get("Authorization"), fields.get("X-Scope-OrgID")))
        body = b'{"status": "success", "data": {"resultType": "vector", "result": []}}'
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body)
        )
        await writer.drain()
        writer.close()

    sent: list[tuple[str | None, str | None]] = []
    server = await asyncio.start_server(answers, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    cluster = FakeCluster(FakeClock())
    prometheus = PrometheusClient(cluster, timeout_s=30, allowed=["127.0.0.1"])
    try:
        for namespace in ("first", "second"):
            data = {key: base64.b64encode(f"{namespace}-{key}".encode()).decode() for key in ("token", "org")}
            meta = {"namespace": namespace, "name": "prometheus", "annotations": {ALLOWED: address}}
            cluster.put(SECRETS, {"metadata": meta, "data": data})
        named = {
            "address": address,
            "bearerTokenSecretRef": {"name": "prometheus", "key": "token"},
            "tenantHeader": {"name": "X-Scope-OrgID", "valueSecretRef": {"name": "prometheus", "key": "org"}},
        }
        for namespace in ("first", "second", "first"):
            manifest = copy.deepcopy(SERVICE) | {
                "metadata": {"namespace": namespace, "name": "chat", "uid": "u"}
            }
            manifest["spec"]["metricsSource"] = {"prometheus": named}
            access = prometheus_of(SpeculativeService.read(manifest, namespace))
            assert access is not None
            await prometheus.query(access, "up")
    finally:
        await prometheus.close()
        server.close()
        await server.wait_closed()
    assert sent == [(f"Bearer {name}-token", f"{name}-org") for name in ("first", "second", "first")]
