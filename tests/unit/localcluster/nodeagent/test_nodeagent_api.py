"""The agent's side of the API server: watches that repair themselves, events that count up, kubeconfigs."""

import asyncio
import base64
import json

import pytest
from aiohttp import web

from localcluster.nodeagent import api_access
from localcluster.nodeagent.api_access import Connection, KubeconfigError
from localcluster.nodeagent.api_client import ApiClient, ApiError
from localcluster.nodeagent.event_recorder import About, Recorder


def pod(name, version):
    return {"metadata": {"name": name, "resourceVersion": version}}


class Server:
    """Answers lists with `listing` and each watch with the next of `streams` (a list of events, or a status)."""

    def __init__(self):
        self.listing = []
        self.streams = []
        self.asked = []
        self.written = []

    async def pods(self, request):
        assert request.query["fieldSelector"] == "spec.nodeName=n"
        self.asked.append(request.query.get("resourceVersion", "list"))
        if "watch" not in request.query:
            return web.json_response({"items": self.listing, "metadata": {"resourceVersion": "10"}})
        if not self.streams:
            await asyncio.sleep(60)
        stream = self.streams.pop(0)
        if isinstance(stream, int):
            return web.json_response({"message": "too old"}, status=stream)
        response = web.StreamResponse()
        await response.prepare(request)
        for event in stream:
            await response.write(json.dumps(event).encode() + b"\n")
        return response

    async def write(self, request):
        body = json.loads(await request.text() or "{}")
        self.written.append((request.method, request.path, request.content_type, body))
        if request.path.endswith("/gone"):
            return web.json_response({"message": 'events "gone" not found'}, status=404)
        return web.json_response({"metadata": {"name": "e"}})


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def short_s():
    """See `ApiClient`."""
    return 1.0


@pytest.fixture
async def api(server, short_s):
    app = web.Application()
    app.router.add_get("/api/v1/pods", server.pods)
    app.router.add_route("*", "/{rest:.*}", server.write)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    client = ApiClient(
        Connection(f"http://127.0.0.1:{runner.addresses[0][1]}", None, "t0ken"), (0.01, 0.05), short_s
    )
    yield client
    await client.close()
    await runner.cleanup()


async def take(api, count):
    found = []
    stream = api.follow("/api/v1/pods", {"fieldSelector": "spec.nodeName=n"})
    async with asyncio.timeout(60):
        async for kind, item in stream:
            found.append(
                (kind, [p["metadata"]["name"] for p in item] if kind == "LIST" else item["metadata"]["name"])
            )
            if len(found) == count:
                break
    await stream.aclose()
    return found


# The streams of this server end at once, which otherwise only a stopping server's do.
@pytest.mark.parametrize("short_s", [-1.0])
async def test_a_watch_goes_on_from_the_last_version_it_saw(server, api):
    server.listing = [pod("a", "1")]
    server.streams = [
        [{"type": "ADDED", "object": pod("b", "11")}, {"type": "BOOKMARK", "object": pod("", "20")}],
        [{"type": "DELETED", "object": pod("a", "21")}],
    ]
    assert await take(api, 3) == [("LIST", ["a"]), ("ADDED", "b"), ("DELETED", "a")]
    assert server.asked == ["list", "10", "20"]


@pytest.mark.parametrize(
    "gap", [410, 500, [{"type": "ERROR", "object": {"message": "too old resource version"}}], []]
)
async def test_after_a_gap_everything_is_listed_again(server, api, gap):
    server.streams = [[{"type": "ADDED", "object": pod("b", "11")}], gap] if gap == [] else [gap]
    found = await take(api, 3 if gap == [] else 2)
    assert [kind for kind, _ in found if kind == "LIST"] == ["LIST", "LIST"]


async def test_refusals_carry_the_server_s_message(api):
    with pytest.raises(ApiError, match='404 events "gone" not found') as refusal:
        await api.create("/api/gone", {})
    assert refusal.value.status == 404
    assert await api.find("/api/gone") is None


ABOUT = About("Pod", "shop", "chat-0", "u-1", "a100")


async def test_the_same_event_counts_up_in_powers_of_two(server, api):
    recorder = Recorder(api)
    for _ in range(9):
        recorder.record(ABOUT, "Warning", "Unhealthy", "Readiness probe failed", "spec.containers{main}")
    recorder.record(ABOUT, "Normal", "Started", "Container started: main")
    task = asyncio.ensure_future(recorder.run())
    await recorder.flush()
    task.cancel()
    (first, *counts, other) = server.written
    assert first[0] == "POST"
    assert first[1] == "/api/v1/namespaces/shop/events"
    assert first[3]["involvedObject"]["fieldPath"] == "spec.containers{main}"
    assert (first[3]["reason"], first[3]["type"], first[3]["count"]) == ("Unhealthy", "Warning", 1)
    assert [(method, body["count"]) for method, _, _, body in counts] == [
        ("PATCH", 2),
        ("PATCH", 4),
        ("PATCH", 8),
    ]
    assert other[3]["reason"] == "Started"


def write_kubeconfig(tmp_path, cluster, user):
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    (tmp_path / "config").write_text(json.dumps(document))
    return tmp_path / "config"


def test_a_kubeconfig_with_a_token_file(tmp_path):
    (tmp_path / "token").write_text("t0ken\n")
    found = api_access.load(
        write_kubeconfig(tmp_path, {"server": "http://127.0.0.1:8001/"}, {"tokenFile": "token"})
    )
    assert (found.server, found.host, found.port, found.token) == (
        "http://127.0.0.1:8001",
        "127.0.0.1",
        8001,
        "t0ken",
    )
    assert found.ssl is None


@pytest.mark.parametrize(
    ("cluster", "user", "message"),
    [
        ({"server": "https://x"}, {"exec": {}}, r"users\[\].user.exec is not supported"),
        ({}, {}, "cannot be used as a kubeconfig: 'server'"),
        ({"server": "https://x", "certificate-authority": "none.crt"}, {}, "none.crt"),
        (
            {"server": "https://x", "certificate-authority-data": base64.b64encode(b"x").decode()},
            {},
            "config: ",
        ),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path, cluster, user, message):
    with pytest.raises(KubeconfigError, match=message):
        api_access.load(write_kubeconfig(tmp_path, cluster, user))
