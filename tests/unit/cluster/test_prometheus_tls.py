"""TLS to Prometheus: authorities and client certificates come from Secrets, and no key touches a disk."""

from __future__ import annotations

import base64
import ssl
import tempfile
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization

from breakeven_operator.cluster.prometheus_api import PrometheusClient
from breakeven_operator.kinds import SECRETS
from breakeven_operator.ports import MetricsError, PrometheusAccess
from fakes.api_server import FakeCluster
from fakes.manual_clock import FakeClock
from localcluster.pki import Authority, CertificateIdentity


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    authority = Authority(folder)
    for name in ("server", "client"):
        authority.issue(CertificateIdentity(name, name))
    return folder


@asynccontextmanager
async def server(keys):
    """Yields its address and the names of the clients that asked; without a certificate nobody does."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=keys / "ca.crt")
    context.load_cert_chain(keys / "server.crt", keys / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    asked = []

    async def handle(request):
        ((common_name,),) = request.transport.get_extra_info("peercert")["subject"]
        asked.append(common_name[1])
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": []}})

    app = web.Application()
    app.router.add_get("/api/v1/query", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


async def ask(address, ca=None, certificate=None, key=None):
    cluster = FakeCluster(FakeClock())
    given = {"ca": ca, "tls.crt": certificate, "tls.key": key}
    data = {name: base64.b64encode(value).decode() for name, value in given.items() if value is not None}
    cluster.put(SECRETS, {"metadata": {"namespace": "llm", "name": "tls"}, "data": data})
    source = PrometheusAccess(
        address,
        "llm",
        ca_secret=("tls", "ca") if ca is not None else None,
        cert_secret=("tls", "tls.crt") if certificate is not None else None,
        key_secret=("tls", "tls.key") if key is not None else None,
    )
    prometheus = PrometheusClient(cluster, allowed=("127.0.0.1",))
    try:
        return await prometheus.query(source, "up")
    finally:
        await prometheus.close()


def pair(keys, name="client"):
    return (keys / f"{name}.crt").read_bytes(), (keys / f"{name}.key").read_bytes()


async def test_a_client_certificate_is_shown_without_a_file(keys, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "read-only"))
    async with server(keys) as (address, asked):
        assert await ask(address, (keys / "ca.crt").read_bytes(), *pair(keys)) == []
    assert asked == ["client"]


async def test_a_server_of_an_unknown_authority_is_not_asked(keys):
    async with server(keys) as (address, asked):
        with pytest.raises(MetricsError, match=r"127\.0\.0\.1:\d+ is not trusted \(.*certificate"):
            await ask(address)
    assert asked == []


async def test_a_client_without_certificate_is_told_so(keys):
    async with server(keys) as (address, asked):
        with pytest.raises(MetricsError, match=r"is not reached|broke its answer off"):
            await ask(address, (keys / "ca.crt").read_bytes())
    assert asked == []


async def test_a_server_without_tls_is_one_line(keys):
    async with server(keys) as (address, _):
        with pytest.raises(MetricsError, match=r"broke its answer off|refused the query"):
            await ask(address.replace("https", "http"))


def encrypted(keys):
    key = serialization.load_pem_private_key(pair(keys)[1], None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"hush"),
    )


@pytest.mark.parametrize(
    "broken", ["authority", "umlaut", "certificate", "key", "another's key", "encrypted"]
)
async def test_what_is_no_certificate_or_key_is_one_line(keys, broken):
    authority = (keys / "ca.crt").read_bytes()
    certificate, key = pair(keys)
    match broken:
        case "authority":
            authority = b"nonsense"
        case "umlaut":
            authority = "Schlüssel".encode()
        case "certificate":
            certificate = b"nonsense"
        case "key":
            key = b"nonsense"
        case "another's key":
            key = pair(keys, "server")[1]
        case "encrypted":
            key = encrypted(keys)
    with pytest.raises(MetricsError, match="certificate or key for it, is not usable") as caught:
        await ask("https://127.0.0.1:9", authority, certificate, key)
    assert "nonsense" not in str(caught.value)
