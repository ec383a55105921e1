"""Courses of pods that obey a law, as `breakeven history` has them, and the same in a store of series."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from breakeven.past.courses import NOW, RESETS, SAMPLES, PodCourse, PodName, TimeGrid
from breakeven.serving.promql import COUNTED, DRAFTED
from fakes.held_series import SeriesStore

STEP_S, BEGIN_S = 600, 1_760_054_400
"""Length of a window, and a midnight."""
C1_S, C2_S = 2.0, 0.1
PROMPT, OUTPUT = 200.0, 100.0

Rates = NDArray[np.float64]


def day_rates(days: int, low: float = 0.3, high: float = 3.0) -> Rates:
    """A rate for each window of some days, low at night."""
    hours = np.arange(days * 86_400 // STEP_S) * STEP_S / 3600.0
    return low + (high - low) * (1.0 - np.cos(2.0 * np.pi * hours / 24.0)) / 2.0


def grid_of(windows: int) -> TimeGrid:
    """The grid of so many windows."""
    return TimeGrid(BEGIN_S, STEP_S, windows + 1)


def lawful(
    rates: Rates,
    name: str = "chat-7d9f8b6c5d-bbbbb",
    *,
    k: int = 0,
    c1_s: float = C1_S,
    c2_s: float = C2_S,
    accept: Rates | float = 0.6,
    output: Rates | float = OUTPUT,
    noise: Rates | float = 0.0,
    first: int = 0,
    last: int | None = None,
    model: str = "m",
) -> PodCourse:
    """A pod that serves each window's rate at L = C1 + n*C2 for answers of `OUTPUT` tokens, in proportion for others.

    Args:
        rates: 1/s, one per window of the grid.
        name: of the pod.
        k: draft length.
        c1_s, c2_s: of its law.
        accept: share of drafts accepted at the first position; at each further one that of the one before.
        output: mean tokens of an answer.
        noise: relative error of the latency.
        first, last: windows between which it lives.
        model: that it serves.
    """
    last = rates.size if last is None else last
    scale = np.broadcast_to(output, rates.shape) / OUTPUT
    latency_s = scale * c1_s / (1.0 - scale * c2_s * rates) * (1.0 + np.broadcast_to(noise, rates.shape))
    inflight = rates * latency_s
    done = rates * STEP_S
    shares = [np.broadcast_to(accept, rates.shape) ** (position + 1) for position in range(k)]
    e = 1.0 + sum(shares, np.zeros(rates.shape))
    steps = done * (OUTPUT * scale - 1.0) / e
    grown = {
        **dict.fromkeys(("completed", "started", "e2e_n", "prompt_n", "output_n"), done),
        "ttft_s": 0.05 * done,
        "e2e_s": latency_s * done,
        "generated": OUTPUT * scale * done,
        "steps": steps,
        "step_s": (latency_s - 0.05) * done,
        "prompt_tokens": PROMPT * done,
        "output_tokens": OUTPUT * scale * done,
        "preemptions": 0.0 * done,
    }
    if k:
        grown |= {"drafts": steps, "drafted": k * steps}
    alive = np.zeros(rates.size + 1, dtype=bool)
    alive[first : last + 1] = True

    def counter(growth: Rates) -> Rates:
        return np.where(alive, np.concatenate([[0.0], growth]).cumsum(), np.nan)

    def gauge(values: Rates) -> Rates:
        return np.where(alive, np.concatenate([values[:1], values]), np.nan)

    stats = {stat: counter(growth) for stat, growth in grown.items()}
    stats |= {"running": gauge(inflight), f"running{NOW}": gauge(inflight)}
    stats |= {name: gauge(0.0 * rates) for name in ("waiting", f"waiting{NOW}", "waiting_min", RESETS)}
    stats[SAMPLES] = gauge(np.full(rates.size, 20.0))
    accepted = {position: counter(steps * share) for position, share in enumerate(shares)}
    return PodCourse(PodName("llm", name, model), stats, accepted)


def stored(
    pods: Sequence[PodCourse],
    grid: TimeGrid,
    *,
    prefix: str = "vllm:",
    copies: Sequence[str] = ("a",),
    scrapes: int = 10,
    more: Callable[[str], Mapping[str, str]] = lambda _pod: {},
) -> SeriesStore:
    """The pods' samples as scrapes store them: straight between the ends of windows.

    Args:
        pods: to store.
        grid: of their courses.
        prefix: of the names.
        copies: values of the label `prometheus`: each one stores all.
        scrapes: in a window.
        more: further labels of a pod.
    """
    store = SeriesStore()
    for pod in pods:
        for copy in copies:
            own = {
                "namespace": pod.name.namespace,
                "pod": pod.name.replica,
                "model_name": pod.name.model,
                "prometheus": copy,
            }
            own |= more(pod.name.replica)
            for stat, values in pod.stats.items():
                if stat == "drafted" or stat in COUNTED:
                    name = DRAFTED.name if stat == "drafted" else COUNTED[stat].name
                    labels = own | ({"finished_reason": "stop"} if stat == "completed" else {})
                    _store(store, f"{prefix}{name}", labels, grid, values, scrapes)
            for gauge in ("running", "waiting"):
                _store(store, f"{prefix}num_requests_{gauge}", own, grid, pod.stats[gauge], scrapes)
            for position, values in pod.accepted.items():
                name = f"{prefix}spec_decode_num_accepted_tokens_per_pos_total"
                _store(store, name, own | {"position": str(position)}, grid, values, scrapes)
    return store


def _store(
    store: SeriesStore, name: str, labels: Mapping[str, str], grid: TimeGrid, values: Rates, scrapes: int
) -> None:
    at = np.arange(scrapes * (grid.times - 1) + 1) / scrapes
    made = np.interp(at, np.arange(grid.times), values)
    there = np.isfinite(made)
    if there.any():
        times_s = grid.first_s + at[there] * grid.step_s
        store.of(name, labels).extend(times_s.tolist(), made[there].tolist())
