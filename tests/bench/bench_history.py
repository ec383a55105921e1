"""Seconds and memory of `breakeven history` for 14 days of 30 pods, of a real Prometheus; and its bounds against truth.

    python tests/bench/bench_history.py [trials]

Thirty pods of two arms are scraped every minute for 14 days, which are 12 million samples. The command reads as many answers
whatever the interval is. With `trials` pasts of all engines kept apart are made and judged: an hour.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from fakes.past_samples import openmetrics
from localcluster.binaries import ensure
from operatorcluster.made_up_prometheus import prometheus_of
from validation.past_trials import past_trials
from validation.pasts import DEPLOYMENT, MadePast, PastOf, ScrapedPod

DAYS, PODS, SCRAPE_S, SLICE_S = 14, 30, 60, 7200


def fleet(end_s: int) -> MadePast:
    """Pods with smooth counters, replaced by those of the other arm in the middle."""
    begin_s, half_s = end_s - DAYS * 86_400, end_s - DAYS // 2 * 86_400
    pods = [_pod(f"{DEPLOYMENT}-{owner}-{number:05d}", k, first, last) for owner, k, first, last in
            (("7d9f8b6c5d", 0, begin_s, half_s), ("64bd5fcf9", 3, half_s, end_s)) for number in range(PODS)]  # fmt: skip
    return MadePast(PastOf.TWO_ARMS, tuple(pods), end_s, DAYS)


def _pod(name: str, k: int, first_s: int, last_s: int) -> ScrapedPod:
    times_s = np.arange(first_s + SCRAPE_S, last_s + 1, SCRAPE_S, dtype=float)
    rate = 1.6 - 1.4 * np.cos(2.0 * np.pi * times_s / 86_400.0)
    latency_s = 2.0 / (1.0 - 0.1 * rate)
    done, took = (rate * SCRAPE_S).cumsum(), (rate * latency_s * SCRAPE_S).cumsum()
    steps = done * 99.0 / (1.0 + 0.5 * k)
    values = {
        **dict.fromkeys(("request_success_total", "e2e_request_latency_seconds_count", "request_prompt_tokens_count"), done),
        **dict.fromkeys(("request_generation_tokens_count", "time_to_first_token_seconds_count"), done),
        "e2e_request_latency_seconds_sum": took,
        "request_prompt_tokens_sum": 200.0 * done,
        "request_generation_tokens_sum": 100.0 * done,
        "generation_tokens_total": 100.0 * done,
        "time_to_first_token_seconds_sum": 0.05 * done,
        "inter_token_latency_seconds_count": steps,
        "inter_token_latency_seconds_sum": took - 0.05 * done,
        "num_requests_running": rate * latency_s,
        "num_requests_waiting": 0.0 * rate,
    }  # fmt: skip
    if k:
        values |= {"spec_decode_num_drafts_total": steps, "spec_decode_num_draft_tokens_total": k * steps}
    return ScrapedPod(name, k, times_s, values, {at: steps * 0.7 ** (at + 1) for at in range(k)})


_RUN = """
import resource, sys
from breakeven.cli import root
root.main(sys.argv[1:], standalone_mode=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def measure() -> None:
    """Make the past, and time one start of the command on it."""
    past = fleet(int(time.time()) // SLICE_S * SLICE_S)
    begins = range(past.end_s - DAYS * 86_400, past.end_s, SLICE_S)
    with tempfile.TemporaryDirectory() as folder:
        for begin_s in begins[:-1]:
            block(Path(folder), samples(past, begin_s))
        with prometheus_of(Path(folder), samples(past, begins[-1])) as address:
            ask(address, folder)


def samples(past: MadePast, begin_s: int) -> str:
    """The samples of one block, as text."""
    pods = []
    for one in past.pods:
        inside = (one.times_s > begin_s) & (one.times_s <= begin_s + SLICE_S)
        values = {name: series[inside] for name, series in one.values.items()}
        accepted = {at: series[inside] for at, series in one.accepted.items()}
        pods.append(replace(one, times_s=one.times_s[inside], values=values, accepted=accepted))
    return openmetrics({"llm": replace(past, pods=tuple(pods))})


def block(folder: Path, text: str) -> None:
    """Write one block; promtool reads its whole file again for each block in it."""
    (folder / "block.txt").write_text(text)
    promtool = ensure(("promtool",))["promtool"]
    command = [str(promtool), "tsdb", "create-blocks-from", "openmetrics", "block.txt", "data"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def ask(address: str, folder: str) -> None:
    """Start the command on the past, and print what it took."""
    file = f"{folder}/points.csv"
    words = ["history", "--prometheus", address, "--deployment", f"llm/{DEPLOYMENT}", "-o", file]
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", _RUN, *words], capture_output=True, text=True, check=True)
    took_s = time.monotonic() - begun
    click.echo(done.stdout)
    peak = int(done.stderr.split()[-1]) / 1024
    shown = f"{took_s:.1f} s, {peak:.0f} MiB (goal: 60 s, 400 MB)"
    click.echo(f"{DAYS} days of {PODS} pods, scraped every {SCRAPE_S} s: {shown}")


def judge() -> None:
    """Print each trial, and how often bounds hold the truth."""
    held: Counter[bool] = Counter()
    for one in past_trials():
        if one.held is not None:
            held[one.held] += 1
        bounds = " to ".join("..." if end is None else f"{end:.3f}" for end in one.bounds_rps)
        click.echo(
            f"{one.engine:13} k={one.k} {one.kind:30} true {one.true.rps:.3f} +- {one.true.error_rps:.3f} bounds {bounds} {one.held} {' '.join(one.words)}"
        )
    click.echo(f"bounds of 90 % hold {held[True]} of {held.total()} break-evens")


if __name__ == "__main__":
    judge() if "trials" in sys.argv[1:] else measure()
