"""The demo's reading of an API server that has just begun."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio.client.exceptions import ApiException

from demo.sight import Sight

# Servers say whole seconds; a test need not wait so long.
RETRY_AFTER_S = 0.1
# The answer of kube-apiserver 1.36 about a kind whose CRD has just been applied.
INITIALIZING = {
    "kind": "Status",
    "status": "Failure",
    "reason": "TooManyRequests",
    "code": 429,
    "message": "storage is (re)initializing",
    "details": {"retryAfterSeconds": 3},
}
FORBIDDEN = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "no"}
CHAT = {"metadata": {"name": "chat"}}


@asynccontextmanager
async def seen(tmp_path, *answers):
    """A view through a server that gives these answers, one after the other."""
    left = list(answers)

    async def handle(request: web.Request) -> web.Response:
        answer = left.pop(0)
        status = answer.get("code", 200)
        headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 429 else {}
        return web.Response(
            status=status, text=json.dumps(answer), headers=headers, content_type="application/json"
        )

    app = web.Application()
    app.router.add_get("/apis/breakeven.dev/v1alpha1/namespaces/llm/speculativeservices", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    kubeconfig = tmp_path / "kubeconfig"
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    kubeconfig.write_text(
        json.dumps(
            {
                "current-context": "one",
                "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
                "clusters": [{"name": "one", "cluster": {"server": address}}],
                "users": [{"name": "one", "user": {}}],
            }
        )
    )
    try:
        async with Sight(kubeconfig, "llm", "http://127.0.0.1:9") as sight:
            yield sight
    finally:
        await runner.cleanup()


async def test_a_kind_whose_storage_is_still_being_made_is_waited_for_as_long_as_the_server_asks(tmp_path):
    async with seen(tmp_path, INITIALIZING, INITIALIZING, {"items": [CHAT]}) as sight:
        began_s = asyncio.get_running_loop().time()
        assert await sight.custom("speculativeservices") == [CHAT]
        assert asyncio.get_running_loop().time() - began_s >= 2 * RETRY_AFTER_S


async def test_any_other_refusal_is_not_waited_out(tmp_path):
    async with seen(tmp_path, FORBIDDEN, {"items": [CHAT]}) as sight:
        with pytest.raises(ApiException, match="403"):
            await sight.custom("speculativeservices")
