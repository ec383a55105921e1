"""Synthetic sweeps: rows that follow a given law, for tests of fitting, prediction and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from breakeven.points.point import ImposedLoad, Origin, Point
from breakeven.points.row import point
from breakeven.reasons import Reason

CLIENTS = (1, 2, 4, 8, 16, 32, 64)


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
        }
        rows.append(point(fields | columns, Origin("sweep.csv", number)))
    return rows


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
