"""Simulated sweeps with a known truth: how often stated bounds hold it, and how often a verdict claims too much."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from breakeven.arm import Arm
from breakeven.fitting import fit_points
from breakeven.laws.latency import open_loop_latency
from breakeven.points.point import Origin, Point
from breakeven.points.row import point
from breakeven.profile import Profile
from breakeven.profile.comparisons import PaysWhere
from breakeven.profile.fits import Bounds
from validation.outcomes import Goal, ValidationOutcome


class _KnownLine(NamedTuple):
    """C1 and C2 (s) of an arm, known here."""

    c1: float
    c2: float


_CLIENTS = (1, 2, 4, 8, 16, 32, 64, 96)
_NONE, _ARM = _KnownLine(1.2, 0.07), _KnownLine(0.78, 0.085)
_UTILISATIONS = (0.05, 0.15, 0.3, 0.45, 0.6, 0.75)
_EAGLE = Arm("eagle3", 3)
_RATE_RPS = 6.0


def break_even_coverage(runs: int = 400) -> Iterator[ValidationOutcome]:
    """Simulated sweeps of two arms: how often the 95 % bounds of the break-even hold the true one."""
    rng = np.random.default_rng(11)
    # Rates at which C1/(1 - rps*C2) is the same for both.
    truth = (_NONE.c1 - _ARM.c1) / (_NONE.c1 * _ARM.c2 - _ARM.c1 * _NONE.c2)
    for noise in (0.01, 0.03, 0.06):
        hits = found = 0
        for _ in range(runs):
            profile = _profile(_NONE, _ARM, noise, _CLIENTS, rng, 0.95)
            bounds = profile.compare(_EAGLE, rps=_RATE_RPS).break_even_ci_rps
            if bounds is None:
                continue
            found += 1
            hits += (bounds[0] or 0.0) <= truth <= (bounds[1] or np.inf)
        yield ValidationOutcome(
            "break-even bounds",
            "simulated, 8 loads per arm",
            f"{noise:.0%} noise, 95 % interval",
            {"coverage": hits / found},
            {"coverage": Goal(0.92, below=False)},
            found,
        )


def bounds_coverage(runs: int = 300) -> Iterator[ValidationOutcome]:
    """Coverage of the 90 % bounds of every figure that a user sees, with few loads and with many."""
    rng = np.random.default_rng(12)
    slow, fast = (float(open_loop_latency(law.c1, law.c2, _RATE_RPS)) for law in (_NONE, _ARM))
    for clients in ((1, 16, 64), (1, 4, 16, 48, 96), _CLIENTS):
        held: dict[str, list[bool]] = {"C1": [], "C2": [], "latency": [], "speedup": []}
        for _ in range(runs):
            profile = _profile(_NONE, _ARM, 0.03, clients, rng, 0.9)
            fit = profile.arm(_EAGLE)
            held["C1"].append(_holds(fit.c1_ci_s, _ARM.c1))
            held["C2"].append(_holds(fit.c2_ci_s, _ARM.c2))
            held["latency"].append(_holds(profile.predict(_EAGLE, rps=_RATE_RPS).latency_ci_s, fast))
            held["speedup"].append(_holds(profile.compare(_EAGLE, rps=_RATE_RPS).speedup_ci, slow / fast))
        for name, hits in held.items():
            yield ValidationOutcome(
                f"bounds of {name}",
                f"simulated, {len(clients)} loads per arm",
                "3 % noise, 90 % interval",
                {"coverage": float(np.mean(hits))},
                {"coverage": Goal(0.85, below=False)},
                runs,
            )


def open_loop_coverage(runs: int = 300) -> Iterator[ValidationOutcome]:
    """Coverage of the bounds of C1 and C2 at imposed rates, for each way in which noise enters."""
    rng = np.random.default_rng(14)
    c1, c2 = _ARM.c1, _ARM.c2
    for noise in ("an engine that varies", "latencies that vary"):
        held: dict[str, list[bool]] = {"C1": [], "C2": []}
        for _ in range(runs):
            rows = []
            for number, used in enumerate(_UTILISATIONS, start=2):
                rate, factor = used / c2, 1.0 + 0.03 * rng.standard_normal()
                of_engine = noise == "an engine that varies"
                latency_s = c1 * factor / (1.0 - used * factor) if of_engine else c1 / (1.0 - used) * factor
                fields: dict[str, str | float] = {
                    "method": "eagle3",
                    "k": 3.0,
                    "request_rate_rps": rate,
                    "mean_latency_s": latency_s,
                }
                rows.append(point(fields, Origin("simulated", number)))
            fit = fit_points(rows, confidence=0.9).arm(_EAGLE)
            held["C1"].append(_holds(fit.c1_ci_s, c1))
            held["C2"].append(_holds(fit.c2_ci_s, c2))
        for name, hits in held.items():
            yield ValidationOutcome(
                f"bounds of {name}",
                f"simulated, {len(_UTILISATIONS)} rates",
                f"{noise}, 3 % noise, 90 % interval",
                {"coverage": float(np.mean(hits))},
                {"coverage": Goal(0.85, below=False)},
                runs,
            )


def verdicts_on_equal_arms(runs: int = 150) -> ValidationOutcome:
    """Two arms with the same law: how often the verdict rightly claims nothing."""
    rng = np.random.default_rng(13)
    silent = (PaysWhere.UNCERTAIN, PaysWhere.TIE)
    held = [
        _profile(_NONE, _NONE, 0.03, _CLIENTS, rng, 0.9).compare(_EAGLE, rps=_RATE_RPS).verdict in silent
        for _ in range(runs)
    ]
    return ValidationOutcome(
        "verdict uncertain",
        "simulated, two equal arms",
        "3 % noise, 90 % confidence",
        {"coverage": float(np.mean(held))},
        {"coverage": Goal(0.85, below=False)},
        runs,
    )


def _holds(bounds: Bounds | None, truth: float) -> bool:
    if bounds is None:
        return True
    low, high = bounds
    return (low is None or low <= truth) and (high is None or truth <= high)


def _profile(
    none: _KnownLine,
    arm: _KnownLine,
    noise: float,
    clients: tuple[int, ...],
    rng: np.random.Generator,
    confidence: float,
) -> Profile:
    rows = [*_sweep("none", 0, none, noise, clients, rng), *_sweep("eagle3", 3, arm, noise, clients, rng)]
    return fit_points(rows, confidence=confidence)


def _sweep(
    method: str, k: int, law: _KnownLine, noise: float, clients: tuple[int, ...], rng: np.random.Generator
) -> list[Point]:
    rows = []
    for number, count in enumerate(clients, start=2):
        latency_s = (law.c1 + (count - 1) * law.c2) * (1.0 + noise * rng.standard_normal())
        fields: dict[str, str | float] = {
            "method": method,
            "k": float(k),
            "concurrency": float(count),
            "mean_latency_s": latency_s,
        }
        rows.append(point(fields, Origin("simulated", number)))
    return rows
