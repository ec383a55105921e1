"""A queue by discrete events, knowing nothing of the law: every request in flight slows every other one.

With j in flight each of them gets work done at rate 1 / (c1 + (j - 1)*c2) of a request per second; arrivals are Poisson
or equally spaced.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Observed:
    mean_latency_s: float
    mean_inflight: float
    time_share: NDArray[np.float64]
    arrival_share: NDArray[np.float64]


def simulate(
    c1_s: float, c2_s: float, rps: float, lengths: str, requests: int, seed: int, *, evenly: bool = False
) -> Observed:
    rng = np.random.default_rng(seed)
    gaps = np.full(requests, 1.0 / rps) if evenly else rng.exponential(1.0 / rps, requests)
    sizes = {
        "constant": np.ones(requests),
        "exponential": rng.exponential(1.0, requests),
        # Lognormal with a coefficient of variation of 2, scaled to mean 1.
        "heavy": rng.lognormal(-0.5 * np.log(5.0), np.sqrt(np.log(5.0)), requests),
    }[lengths]
    # All requests in flight progress at one pace, so a request ends when the common progress reaches its own mark.
    marks: list[tuple[float, float]] = []
    now = progress = 0.0
    arrival = gaps.cumsum()
    latencies = []
    busy: list[float] = [0.0] * 400
    met: list[float] = [0.0] * 400
    following = 0
    while following < requests:
        inflight = len(marks)
        pace = 1.0 / (c1_s + (inflight - 1) * c2_s) if inflight else 0.0
        until_end = (marks[0][0] - progress) / pace if inflight else np.inf
        until_arrival = arrival[following] - now
        step = min(until_end, until_arrival)
        busy[inflight] += step
        now, progress = now + step, progress + pace * step
        if until_end <= until_arrival:
            latencies.append(now - heapq.heappop(marks)[1])
        else:
            met[inflight] += 1
            heapq.heappush(marks, (progress + float(sizes[following]), now))
            following += 1
    time_share = np.array(busy) / sum(busy)
    return Observed(
        mean_latency_s=float(np.mean(latencies)),
        mean_inflight=float(time_share @ np.arange(len(busy))),
        time_share=time_share,
        arrival_share=np.array(met) / sum(met),
    )
