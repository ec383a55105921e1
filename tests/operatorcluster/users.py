"""Users of a target while a test looks elsewhere: a steady open loop that follows the Ready pods."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from demo.traffic import Endpoints, RequestOutcome, RequestShape, Traffic
from operatorcluster.beside import beside
from operatorcluster.stage import Place
from operatorcluster.target_engine import MODEL, OUTPUT_TOKENS, PROMPT_TOKENS

_FOLLOW_S = 0.2
_PLACE_IN_GROUP = "leaderworkerset.sigs.k8s.io/worker-index"


@contextlib.contextmanager
def users(place: Place, rps: float, app: str = "chat-vllm") -> Iterator[list[RequestOutcome]]:
    """Send so many requests per second until the block ends; yields the outcomes as they come in."""
    traffic = Traffic(MODEL, RequestShape(PROMPT_TOKENS, OUTPUT_TOKENS), Endpoints(lag_s=0.5), seed=1)
    with beside(lambda ended: asyncio.run(_send(traffic, place, rps, app, ended))):
        yield traffic.outcomes


async def _send(traffic: Traffic, place: Place, rps: float, app: str, stop: threading.Event) -> None:
    sending = asyncio.create_task(traffic.run())
    while not stop.is_set():
        traffic.endpoints.learn(await asyncio.to_thread(_ready, place, app))
        if traffic.endpoints.urls and not traffic.rate_rps:
            traffic.set_rate(rps)
        await asyncio.sleep(_FOLLOW_S)
    sending.cancel()
    await asyncio.wait([sending])


def _ready(place: Place, app: str) -> dict[str, str]:
    return {
        pod["metadata"]["name"]: f"http://{pod['status']['podIP']}:8000"
        for pod in place.all("pod")
        if (labels := pod["metadata"].get("labels") or {}).get("app") == app
        # Of a group the leader serves.
        and labels.get(_PLACE_IN_GROUP, "0") == "0"
        and "deletionTimestamp" not in pod["metadata"]
        and any(
            c["type"] == "Ready" and c["status"] == "True"
            for c in pod.get("status", {}).get("conditions") or ()
        )
    }
