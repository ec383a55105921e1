"""An API server that refuses, cuts and forgets: the operator behind a proxy ends its rolls, each once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import threading
from typing import Any

import pytest
import yaml
from aiohttp import web

from operatorcluster.api_proxy import ApiProxy
from operatorcluster.stage import HOME, Place
from operatorcluster.waiting import until


@contextlib.contextmanager
def proxied(cluster):
    """The proxy, in a thread of its own; who asks through it shows its own token."""
    started, ended = threading.Event(), asyncio.Event()
    made: dict[str, Any] = {}

    async def serve():
        made["loop"] = asyncio.get_running_loop()
        async with ApiProxy(cluster.kubeconfig, administrator=False).running() as proxy:
            made["proxy"] = proxy
            started.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(30)
    try:
        yield made["proxy"], made["loop"]
    finally:
        made["loop"].call_soon_threadsafe(ended.set)
        thread.join()


@contextlib.contextmanager
def local_operator(stage, proxy, folder):
    """The operator as a process of its own, with the rights of the chart's account; the installed one rests."""
    home = Place(stage, HOME)
    token = home.kubectl("create", "token", "breakeven", "--duration=1h").strip()
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "proxy",
                "clusters": [{"name": "proxy", "cluster": {"server": proxy.address}}],
                "users": [{"name": "proxy", "user": {"token": token}}],
                "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
            }
        )
    )
    (deployed,) = home.get("deployment", "breakeven")["spec"]["template"]["spec"]["containers"]
    given = {one["name"]: one["value"] for one in deployed["env"] if "value" in one}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BREAKEVEN_")}
    own = {
        "KUBECONFIG": str(kubeconfig),
        "BREAKEVEN_NAMESPACE": HOME,
        "BREAKEVEN_BIND_ADDRESS": "127.0.0.1",
        "BREAKEVEN_PORT": "0",
    }
    home.kubectl("scale", "deployment/breakeven", "--replicas=0")
    until("the installed operator has ended", lambda: not home.all("pod"))
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "breakeven_operator", "run"],
            env={**inherited, **given, **own},
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        child.terminate()
        child.wait(60)
        home.kubectl("scale", "deployment/breakeven", "--replicas=1")
        home.kubectl("rollout", "status", "deployment/breakeven", "--timeout=180s")


def answers(status, reason, every, draw):
    """One request in so many is answered like that."""

    def disturb(_request):
        if draw.random() * every > 1:
            return None
        body = {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": reason}
        return web.json_response(body, status=status, headers={"Retry-After": "1"} if status == 429 else {})

    return disturb


def halved(lines):
    """A watch that ends in the middle of a line."""
    return [line[: len(line) // 2] for line in lines]


FAULTS = {
    "429": ("TooManyRequests", 3),
    "500": ("InternalError", 3),
    "503": ("ServiceUnavailable", 3),
    "409": ("Conflict", 3),
    "410": ("Expired", 3),
}


@pytest.mark.table
def test_it_refuses_cuts_and_forgets(stage, place, facing, tmp_path):
    draw = random.Random(9)
    with proxied(stage.cluster) as (proxy, loop), local_operator(stage, proxy, tmp_path):
        place.managed(updatePolicy={"pinnedArm": "none"})
        place.until_settled("none")
        arms = iter(["eagle/3", "none"] * 10)

        def roll(row):
            arm = next(arms)
            place.patch("specsvc", "chat", {"spec": {"updatePolicy": {"pinnedArm": arm}}})
            row.writes += 1
            return arm

        with facing(
            place,
            "API server answers 409, 410, 429, 500, 503 to every third request; cuts and truncates watches",
            "each roll ends, with one write",
            times=len(FAULTS) + 2,
        ) as row:
            for status, (reason, every) in FAULTS.items():
                proxy.disturb = answers(int(status), reason, every, draw)
                arm = roll(row)
                place.until_settled(arm)
                row.over()
                proxy.disturb = lambda _request: None
            proxy.lines = halved
            arm = roll(row)
            loop.call_soon_threadsafe(proxy.cut)
            place.until_service("half-lines are met", lambda _status: True)
            proxy.lines = lambda lines: lines
            loop.call_soon_threadsafe(proxy.cut)
            place.until_settled(arm)
            arm = roll(row)
            loop.call_soon_threadsafe(proxy.cut)
            place.until_settled(arm)
            row.recovered()
            row.seen = f"{row.writes} rolls, {row.writes} writes"
