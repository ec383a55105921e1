"""The load driver's own cost and punctuality: CPU, memory, send lag and evenness of constant arrivals.

A trivial streaming server runs in a process of its own, so that what is measured is the driver. Evenness is the
coefficient of variation of the gaps between sends (0 is a metronome, 1 is Poisson); lag is how late a request was sent.
"""

# ruff: noqa: T201
from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from breakeven.arm import NO_SPECULATION
from breakeven.load_driver.client import Endpoint, EngineClient
from breakeven.load_driver.dataset import Prompt
from breakeven.load_driver.design import SweepStep
from breakeven.load_driver.lengths import LogNormalLengths
from breakeven.load_driver.measuring import Precision, Trial, measure
from breakeven.load_driver.sent_workload import ProsePrompts
from breakeven.load_driver.window import RequestRecord
from breakeven.points.point import ImposedLoad, LoadMode
from fakes.lawful_engine import LawfulEngine, serving

SECONDS = 15.0
TOKENS = 64
RATES = (20.0, 50.0)
TOKEN_S = 0.004


async def serve() -> None:
    """The server's process: until its starter closes the pipe."""
    async with serving(LawfulEngine(token_s=TOKEN_S, company_s=0.0, chunk_tokens=1)) as engine:
        print(engine.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def drive(url: str, mode: LoadMode, rate_rps: float) -> str:
    sent: list[float] = []

    class Client(EngineClient):
        async def complete(self, prompt: Prompt, output_tokens: int, record: RequestRecord) -> None:
            sent.append(time.monotonic())
            await super().complete(prompt, output_tokens, record)

    async with Client(Endpoint(url)) as client:
        await client.model()
        expected_s = TOKENS * TOKEN_S
        load = ImposedLoad(mode, rate_rps)
        step = SweepStep(
            load, expected_s, rate_rps * expected_s, 0.0, 1.0, SECONDS, SECONDS, number=1, total=1
        )
        # Precise enough is never: the whole window is measured.
        trial = Trial(
            NO_SPECULATION, ProsePrompts(64, 0), LogNormalLengths(1, TOKENS), Precision(0.0, 10**9, SECONDS)
        )
        before = time.process_time()
        point = await measure(client, trial, step, seed=0)
        cpu_s = time.process_time() - before
    seen = point.clients
    gaps = np.diff([moment for moment in sent if moment >= sent[-1] - SECONDS])
    return (
        f"{mode.value:<9} {rate_rps:>4.0f} rps   CPU {cpu_s:5.2f} s   gaps CV {gaps.std() / gaps.mean():5.3f}"
        f"   lag mean {seen.send_lag_mean_s * 1e3:5.2f} ms, p99 {seen.send_lag_p99_s * 1e3:5.2f} ms"
        f"   offered {seen.offered_rps:5.1f} rps   {' '.join(point.flags)}"
    )


def main() -> None:
    """Print one line per load."""
    print(
        f"Load driver: {SECONDS:.0f} s windows, {TOKENS} streamed tokens per request at {TOKEN_S * 1e3:.0f} ms;"
        f" load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        for rate in RATES:
            print(asyncio.run(drive(url, LoadMode.CONSTANT, rate)), flush=True)
        print(asyncio.run(drive(url, LoadMode.POISSON, 5.0)), flush=True)
    finally:
        server.communicate()
    print(f"driver process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB at most")


if __name__ == "__main__":
    if "--serve" in sys.argv:
        asyncio.run(serve())
    else:
        main()
