"""Synthetic sweeps: rows that follow a given law, for tests of fitting, prediction and the command line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from breakeven.arm import Arm
from breakeven.load_driver.next_point import Purchase, imagined, log_latencies, next_point
from breakeven.load_driver.question import Question, known_from
from breakeven.points.point import ImposedLoad, LoadMode, Origin, Point
from breakeven.points.row import point
from breakeven.profile import Profile
from breakeven.profile.step_fit import EngineStarts
from breakeven.reasons import Reason

CLIENTS = (1, 2, 4, 8, 16, 32, 64)
BEGUN_S = 1.7e9
"""Arms are measured load by load: windows of one load begin together."""


def closed(
    method: str,
    k: int,
    c1_s: float,
    c2_s: float,
    *,
    clients: Sequence[float] = CLIENTS,
    noise: float = 0.0,
    seed: int = 0,
    first_row: int = 2,
    **columns: Any,
) -> list[Point]:
    """Closed-loop rows L = C1 + (C-1)*C2 with relative noise; `columns` are added to every row."""
    rng = np.random.default_rng([seed, k])
    rows = []
    for number, concurrency in enumerate(clients, start=first_row):
        latency_s = (c1_s + (concurrency - 1) * c2_s) * (1 + noise * rng.standard_normal())
        fields: dict[str, Any] = {
            "method": method,
            "k": float(k),
            "concurrency": float(concurrency),
            "mean_latency_s": latency_s,
            "begun_s": BEGUN_S + 60.0 * concurrency,
        }
        rows.append(point(fields | columns, Origin("sweep.csv", number)))
    return rows


def poisson(
    method: str, k: int, c1_s: float, c2_s: float, rates: Sequence[float], first_row: int = 2, **columns: Any
) -> list[Point]:
    """Open-loop rows L = C1/(1 - RPS*C2)."""
    rows = []
    for number, rps in enumerate(rates, start=first_row):
        latency_s = c1_s / (1 - rps * c2_s)
        fields: dict[str, Any] = {
            "method": method,
            "k": float(k),
            "request_rate_rps": float(rps),
            "mean_latency_s": latency_s,
            "begun_s": BEGUN_S + 1e5 + 60.0 * rps,
        }
        rows.append(point(fields | columns, Origin("sweep.csv", number)))
    return rows


def without_starts(profile: Profile) -> Profile:
    """The profile as if starts and minutes of an engine were all alike, for tests of other doubts."""
    assert profile.steps is not None
    return replace(profile, steps=replace(profile.steps, starts=EngineStarts()))


def csv_of(points: Sequence[Point], *extra: str) -> str:
    """Write points as a points file with the columns that any of them has."""
    names = [
        "concurrency",
        "request_rate_rps",
        "mean_latency_s",
        "mean_inflight",
        "achieved_rps",
        "p95_latency_s",
        "ttft_mean_s",
        "tpot_mean_s",
        "prompt_tokens",
        "output_tokens",
        "tokens_per_step",
        "requests",
        "preemptions",
        "begun_s",
        *extra,
    ]
    used = [name for name in names if any(getattr(one, name) is not None for one in points)]
    lines = [",".join(["method", "k", *used])]
    for one in points:
        values = ["" if getattr(one, name) is None else f"{getattr(one, name):.12g}" for name in used]
        lines.append(",".join([one.arm.method, str(one.arm.k), *values]))
    return "\n".join(lines) + "\n"


def seen(
    load: ImposedLoad, latency_s: float, inflight: float, achieved_rps: float, window_s: float, *flags: Reason
) -> Point:
    """The point that such a window makes."""
    return Point(
        load_mode=load.mode,
        concurrency=load.clients,
        request_rate_rps=load.rps,
        mean_latency_s=latency_s,
        mean_inflight=inflight,
        achieved_rps=achieved_rps,
        window_s=window_s,
        flag=" ".join(flags) or None,
    )


def planned(question: Question, measured: Sequence[Point], left_s: float = math.inf) -> list[Purchase]:
    """The points that would be bought if every point came out as expected now; an engine stays up until another starts."""
    points, plan = list(measured), list[Purchase]()
    while len(plan) < 500 and isinstance(step := next_point(question, points, left_s), Purchase):
        plan.append(step)
        points.append(imagined(step))
        question = replace(question, running=step.arm)
        left_s -= step.measuring_s
    return plan


def recommended(question: Question, measured: Sequence[Point]) -> tuple[tuple[float, Arm | None], ...]:
    """Per expected load (1/s) the arm that is believed fastest of all with enough points; None without one."""
    state = known_from(question, measured)
    logs, _ = log_latencies(state)
    found = list[tuple[float, Arm | None]]()
    for at, rate in enumerate(state.rates):
        best = min(state.recommendable(at), key=lambda i: float(logs[i, at]), default=None)
        found.append((rate, None if best is None else state.belief.arms[best]))
    return tuple(found)


_LENGTHS = (1.0, 2.0, 3.0, 30.0, 300.0, 1e5)


def wild_sweep(rng: np.random.Generator) -> list[Point]:
    """Rows of two or three arms. Latencies of half the sweeps scatter by a factor of 1.6, so that rows contradict each other."""
    scatter = rng.choice([0.05, 0.5])
    arms = [("none", 0)]
    arms += [
        (str(rng.choice(["eagle3", "ngram", "draft_model"])), int(rng.integers(1, 9)))
        for _ in range(rng.integers(1, 3))
    ]
    rows: list[Point] = []
    for method, k in arms:
        c1_s = 10.0 ** rng.uniform(-4.0, 2.0)
        c2_s = c1_s * 10.0 ** rng.uniform(-4.0, 1.0)
        rows += [_wild_row(rng, method, k, c1_s, c2_s, scatter, len(rows)) for _ in range(rng.integers(1, 7))]
    return rows


def _wild_row(
    rng: np.random.Generator, method: str, k: int, c1_s: float, c2_s: float, scatter: float, number: int
) -> Point:
    clients = float(rng.integers(1, 200)) if rng.random() < 0.6 else None
    rps = None if clients else 10.0 ** rng.uniform(-4.0, 3.0)
    inflight = clients or 1.0 + (rps or 0.0) * c1_s
    latency_s = min((c1_s + c2_s * (inflight - 1.0)) * float(np.exp(rng.normal(0.0, scatter))), 86_400.0)
    tokens = float(rng.choice(_LENGTHS))
    first_s = max(latency_s * float(rng.choice([1e-6, 0.1, 0.5, 0.99, 1.0])), 1e-9)
    figures = {
        "mean_inflight": max(inflight * float(rng.choice([1.0, 0.5, 1e-6, 3.0])), 1e-9),
        "achieved_rps": min(max(inflight / latency_s * float(rng.choice([1.0, 0.9, 0.1])), 1e-9), 1e6),
        "output_tokens": tokens,
        "output_tokens_sq": tokens**2 * float(rng.choice([1.0, 1.5, 4.0])),
        "prompt_tokens": float(rng.choice([0.0, 1.0, 100.0, 8000.0, 1e6])),
        "ttft_mean_s": first_s,
        "tpot_mean_s": max((latency_s - first_s) / max(tokens - 1.0, 1.0), 1e-12),
        "tpot_p50_s": 10.0 ** rng.uniform(-9.0, 0.0),
        "p95_latency_s": min(1.5 * latency_s, 86_400.0),
        "tokens_per_step": float(rng.uniform(1.0, k + 1.0)),
        "requests": float(rng.integers(1, 300)),
        "relative_error": 10.0 ** rng.uniform(-6.0, 0.0),
        "queued_ratio": float(rng.random()),
        "start": str(rng.integers(0, 3)),
    }
    return Point(
        method=method,
        k=k,
        load_mode=LoadMode.CLOSED if clients else LoadMode.POISSON,
        concurrency=clients,
        request_rate_rps=rps,
        mean_latency_s=latency_s,
        origin=Origin("wild.csv", number + 2),
        **{name: value for name, value in figures.items() if rng.random() < 0.7},
    )
