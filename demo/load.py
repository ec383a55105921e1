"""`make load`: users for the cluster that `make demo KEEP=1` left, so that its services have something to decide on."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from pathlib import Path

from demo import installation
from demo.sight import Sight
from demo.traffic import Endpoints, RequestShape, Traffic, mean_latency_s

_REPORT_S = 5.0
_PORT = 8000


def main() -> int:
    """Send until Ctrl-C or the end of the time; 0 if every request was answered whole."""
    parser = argparse.ArgumentParser(prog="demo.load", description=__doc__)
    parser.add_argument("service", help="chat or code: the SpeculativeService whose pods are asked")
    parser.add_argument("rps", type=float, help="requests per second per replica")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long (default 120)")
    parser.add_argument("--kubeconfig", type=Path, default=installation.ROOT / ".local" / "kubeconfig")
    options = parser.parse_args()
    if not options.kubeconfig.is_file():
        print("demo.load: no cluster is up; start one with `make demo KEEP=1`", file=sys.stderr)
        return 1
    with contextlib.suppress(KeyboardInterrupt):
        return asyncio.run(_send(options.service, options.rps, options.seconds, options.kubeconfig))
    return 130


async def _send(service: str, rps: float, seconds: float, kubeconfig: Path) -> int:
    shape = RequestShape(installation.PROMPT_TOKENS, installation.OUTPUT_TOKENS)
    traffic = Traffic(service, shape, Endpoints(lag_s=0.0), seed=0)
    until = time.time() + seconds
    async with Sight(kubeconfig, installation.NAMESPACE, alertmanager_url="") as sight:
        users = asyncio.create_task(traffic.run())
        reported = time.time()
        while (now := time.time()) < until:
            pods = await sight.ready_pods({"app": f"{service}-vllm"}, _PORT)
            if not pods:
                print(f"demo.load: no ready pod of {service}", file=sys.stderr)
                break
            traffic.endpoints.learn(pods)
            traffic.set_rate(rps * len(pods))
            if now - reported >= _REPORT_S:
                _report(service, traffic, reported, now)
                reported = now
            await asyncio.sleep(min(1.0, until - now))
        users.cancel()
        await users
    failed = [outcome.error for outcome in traffic.outcomes if outcome.error]
    print(
        f"{service}: {len(traffic.outcomes)} requests, {len(failed)} failed"
        + (f": {failed[0]}" if failed else "")
    )
    return 1 if failed or not traffic.outcomes else 0


def _report(service: str, traffic: Traffic, since_s: float, until_s: float) -> None:
    measured = mean_latency_s(traffic.outcomes, since_s, until_s)
    latency = f"mean latency {measured[0]:.2f} s of {measured[1]} requests" if measured else "no answer yet"
    print(
        f"{service}: {traffic.rate_rps:.1f} requests per second over {len(traffic.endpoints.urls)} pods, {latency}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
