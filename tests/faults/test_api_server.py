"""An API server that refuses, cuts and forgets: the operator behind a proxy ends its rolls, each once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
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


class Disturbance:
    """The harm that a proxy does to every n-th request or part of a watch; `met` counts how often it did."""

    def __init__(self, draw):
        self._draw = draw
        self.met = 0

    def _now(self, every):
        met = self._draw.random() * every < 1
        self.met += met
        return met

    def answers(self, status, reason):
        def disturb(_request):
            if not self._now(EVERY):
                return None
            body = {
                "kind": "Status",
                "status": "Failure",
                "code": status,
                "reason": reason,
                "message": reason,
            }
            return web.json_response(
                body, status=status, headers={"Retry-After": "1"} if status == 429 else {}
            )

        return disturb

    def halves(self, lines):
        """Some lines of a watch end in their middle; its connection stays."""
        return [line[: len(line) // 2] if self._now(EVERY_LINE) else line for line in lines]


EVERY, EVERY_LINE, FEWEST = 3, 12, 3
FAULTS = {
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


@pytest.mark.table
def test_it_refuses_cuts_and_forgets(stage, place, facing, tmp_path):
    """Each roll begins and ends while the API server behaves like that."""
    draw = random.Random(9)
    with proxied(stage.cluster) as (proxy, loop), local_operator(stage, proxy, tmp_path):
        # With a third of all requests refused a roll is slow, and not late.
        place.managed(updatePolicy={"pinnedArm": "none", "rollDeadlineSeconds": 600})
        place.until_settled("none")
        arms = itertools.cycle(["eagle/3", "none"])

        def roll(row):
            arm = next(arms)
            place.patch("specsvc", "chat", {"spec": {"updatePolicy": {"pinnedArm": arm}}})
            row.writes += 1
            row.times = row.writes
            return arm

        with facing(
            place,
            "API server answers 409, 410, 429, 500, 503 to every third request; truncates and cuts watches",
            "each roll ends, with one write",
        ) as row:
            met = {}
            for status, reason in FAULTS.items():
                fault = Disturbance(draw)
                proxy.disturb = fault.answers(status, reason)
                place.until_settled(roll(row), timeout_s=400.0)
                proxy.disturb = lambda _request: None
                met[str(status)] = fault.met
            fault = Disturbance(draw)
            proxy.lines = fault.halves
            while fault.met < FEWEST:
                place.until_settled(roll(row), timeout_s=400.0)
            met["half-lines"] = fault.met
            proxy.lines = lambda lines: lines
            arm = roll(row)
            for _ in range(FEWEST):
                loop.call_soon_threadsafe(proxy.cut)
                answered = row.users.answered
                until("a request is answered", lambda answered=answered: row.users.answered > answered)
            row.over()
            place.until_settled(arm)
            row.recovered()
            assert min(met.values()) >= FEWEST, met
            row.seen = f"{row.writes} rolls, {row.writes} writes; met: " + ", ".join(
                f"{count} {what}" for what, count in met.items()
            )
