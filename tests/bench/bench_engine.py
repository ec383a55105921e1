"""The simulated vLLM over HTTP: CPU seconds per 1,000 requests, and how far real time lags the event clock.

A server process with the demo's costs (steps of 20 to 60 ms) is asked for streams of 32 tokens at Poisson times;
its own CPU time and lag are read from /sim/clock before and after. The client runs in this process and shares the
machine with it.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path

import aiohttp

COSTS = Path(__file__).parents[2] / "examples" / "engine-costs" / "demo.json"
EAGLE = '{"method":"eagle3","model":"drafter","num_speculative_tokens":3}'
LOADS = (("none", 5.0, 10.0), ("none", 20.0, 15.0), ("eagle3/3", 10.0, 10.0))


async def one_request(client: aiohttp.ClientSession, url: str) -> tuple[float, int]:
    body = {"prompt": list(range(64)), "max_tokens": 32, "ignore_eos": True, "stream": True}
    began, chunks = time.perf_counter(), 0
    async with client.post(f"{url}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for _ in answer.content:
            chunks += 1
    return time.perf_counter() - began, chunks


async def measure(arm: str, rps: float, seconds: float) -> None:
    flags = () if arm == "none" else ("--speculative-config", EAGLE)
    command = (
        "-m",
        "breakeven.cli",
        "engine-sim",
        "m",
        "--host",
        "127.0.0.11",
        "--port",
        "0",
        "--sim-costs",
        str(COSTS),
    )
    server = await asyncio.create_subprocess_exec(
        sys.executable, *command, *flags, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert server.stderr is not None
        url = ""
        while not url:
            url = (await server.stderr.readline()).decode().partition("Started server on ")[2].strip()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
            await one_request(client, url)
            before = await (await client.get(f"{url}/sim/clock")).json()
            rng, tasks, at = random.Random(1), [], time.perf_counter()
            end = at + seconds
            while at < end:
                at += rng.expovariate(rps)
                await asyncio.sleep(max(0.0, at - time.perf_counter()))
                tasks.append(asyncio.create_task(one_request(client, url)))
            answers = await asyncio.gather(*tasks)
            after = await (await client.get(f"{url}/sim/clock")).json()
    finally:
        server.kill()
        await server.communicate()
    cpu_s, steps = after["cpu_s"] - before["cpu_s"], after["steps"] - before["steps"]
    mean_lag_ms = (
        (after["mean_lag_s"] * after["steps"] - before["mean_lag_s"] * before["steps"]) / steps * 1e3
    )
    latency = sum(taken for taken, _ in answers) / len(answers)
    print(  # noqa: T201
        f"{arm:9} {rps:5.1f} rps  {len(answers):4d} requests  {steps:5d} steps  "
        f"CPU {cpu_s / len(answers) * 1000:5.2f} s per 1,000 requests ({cpu_s / seconds:5.1%} of a core)  "
        f"mean latency {latency:.2f} s  lag mean {mean_lag_ms:.1f} ms, worst {after['max_lag_s'] * 1e3:.1f} ms"
    )


async def main() -> None:
    for arm, rps, seconds in LOADS:
        await measure(arm, rps, seconds)


if __name__ == "__main__":
    asyncio.run(main())
