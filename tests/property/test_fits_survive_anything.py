"""Rows of any figures that a points file may hold give a profile that can be read and asked, or one line why there is none."""

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.errors import BreakevenError
from breakeven.fitting import fit_points
from breakeven.points.point import LoadMode, Origin, Point
from breakeven.profile import Profile
from draws import draws

LENGTHS = (1.0, 2.0, 3.0, 30.0, 300.0, 1e5)


def wild_sweep(rng: np.random.Generator) -> list[Point]:
    """Rows of one to three arms, of which half the sweeps contradict themselves by a factor of 1.6."""
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
        rows += [wild_row(rng, method, k, c1_s, c2_s, scatter, len(rows)) for _ in range(rng.integers(1, 7))]
    return rows


def wild_row(
    rng: np.random.Generator, method: str, k: int, c1_s: float, c2_s: float, scatter: float, number: int
) -> Point:
    clients = float(rng.integers(1, 200)) if rng.random() < 0.6 else None
    rps = None if clients else 10.0 ** rng.uniform(-4.0, 3.0)
    inflight = clients or 1.0 + (rps or 0.0) * c1_s
    latency_s = min((c1_s + c2_s * (inflight - 1.0)) * float(np.exp(rng.normal(0.0, scatter))), 86_400.0)
    tokens = float(rng.choice(LENGTHS))
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


@contextmanager
def refusing() -> Iterator[None]:
    """What follows may be refused, in one line."""
    try:
        yield
    except BreakevenError as error:
        if "\n" in str(error):
            raise AssertionError(f"more than a line: {error}") from error


def survives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    with warnings.catch_warnings(), refusing():
        warnings.simplefilter("error", RuntimeWarning)
        found = fit_points(wild_sweep(rng))
        try:
            read = Profile.from_json(found.to_json())
        except BreakevenError as error:
            raise AssertionError(f"a fit wrote what cannot be read: {error}") from error
        assert read.arms == found.arms
        loads = ({"rps": 10.0 ** rng.uniform(-3.0, 3.0)}, {"concurrency": float(rng.integers(1, 300))})
        lengths = {
            "prompt_tokens": float(rng.choice([1.0, 1e5])),
            "output_tokens": float(rng.choice([1.0, 5e3])),
        }
        for fit, load in itertools.product(found.arms, loads):
            for asked in (load, load | lengths):
                with refusing():
                    found.compare(fit.arm, **asked)
                    latency_s = found.predict(fit.arm, **asked).latency_s
                    assert latency_s is None or latency_s > 0.0


@draws(10)
@given(st.integers(0, 1 << 32))
def test_a_fit_of_anything_is_a_profile_or_one_line(seed):
    survives(seed)


@pytest.mark.parametrize("seed", [4, 75, 119, 260, 289])
def test_what_once_broke_a_fit(seed):
    survives(seed)
