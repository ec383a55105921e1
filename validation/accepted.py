"""Tokens per step at draft lengths that were not measured: replaying a recording is the truth."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from breakeven.laws.acceptance_numbers import AcceptanceModel
from breakeven.laws.arrays import FloatArray
from validation import published
from validation.outcomes import Goal, ValidationOutcome, error_outcome

_LENGTHS = range(1, 8)
_SETS = tuple(itertools.product(("gsm8k", "sharegpt"), ("eagle", "ngram")))

Recording = dict[int, published.Replay]


def tokens_per_step_elsewhere(folder: Path) -> Iterator[ValidationOutcome]:
    """E at k = 1 to 7 from the profile at one k, and from E alone at two; with the stated bounds."""
    recordings = {}
    for dataset, drafter in _SETS:
        sequences = published.recorded(folder, dataset, drafter)
        recordings[dataset, drafter] = {k: published.replay(sequences, k) for k in _LENGTHS}
    pooled: list[float] = []
    for (dataset, drafter), recording in recordings.items():
        errors, _ = _errors(drafter, recording, (3,))
        pooled += errors
        yield error_outcome("tokens per step", f"{dataset}, {drafter}", "profile at k = 3", errors, {})
    goals = {"mean": Goal(0.01, below=True), "worst": Goal(0.02, below=True)}
    yield error_outcome("tokens per step", "all four", "profile at k = 3", pooled, goals)
    pairs = [pair for pair in itertools.combinations(_LENGTHS, 2) if pair[1] > pair[0] + 1]
    splits: list[tuple[str, list[tuple[int, ...]]]] = [(f"profile at k = {k}", [(k,)]) for k in (1, 2, 5, 7)]
    splits.append(("E at any two k, others between", [*pairs]))
    for split, bases in splits:
        found, held = [], []
        for (_, drafter), recording in recordings.items():
            for base in bases:
                errors, inside = _errors(drafter, recording, base)
                found += errors
                held += inside
        outcome = error_outcome(
            "tokens per step", "all four", split, found, {"coverage": Goal(0.9, below=False)}
        )
        outcome.figures["coverage"] = float(np.mean(held))
        yield outcome


def _errors(drafter: str, recording: Recording, base: tuple[int, ...]) -> tuple[list[float], list[bool]]:
    """Relative errors at the other draft lengths (between two, where two are given), and whether bounds hold them."""
    measured = {k: recording[k].tokens_per_step for k in base}
    profiles = {k: tuple(float(s) for s in recording[k].survival) for k in base} if len(base) == 1 else {}
    model = AcceptanceModel(drafter, measured, profiles)
    errors, held = [], []
    for k, replay in recording.items():
        if k in base or (len(base) > 1 and not base[0] < k < base[1]):
            continue
        found, truth = model.at(k), replay.tokens_per_step
        errors.append(found.value / truth - 1.0)
        held.append(found.lower <= truth <= found.upper)
    return errors, held


def resampling(folder: Path, samples: int = 200, requests: int = 30) -> ValidationOutcome:
    """Intervals of E from resampled requests: how often they hold the whole recording's E."""
    rng = np.random.default_rng(5)
    sequences = published.recorded(folder, "gsm8k", "eagle")
    whole = published.replay(sequences, 3)
    hits = 0
    for _ in range(samples):
        chosen = rng.choice(whole.tokens.size, size=requests, replace=False)
        draws = resampled_tokens_per_step(whole.tokens[chosen], whole.steps[chosen], rng, 500)
        low, high = np.quantile(draws, [0.05, 0.95])
        hits += bool(low <= whole.tokens_per_step <= high)
    return ValidationOutcome(
        "bounds of E",
        "gsm8k, eagle k = 3",
        f"{requests} requests resampled, 90 % interval",
        {"coverage": hits / samples},
        {"coverage": Goal(0.85, below=False)},
        samples,
    )


def resampled_tokens_per_step(
    made: FloatArray, taken: FloatArray, rng: np.random.Generator, resamples: int
) -> FloatArray:
    """Draw E (a ratio of sums) from resampled requests, shape (resamples,), ascending: tokens made over steps taken, by request."""
    # Counts of a multinomial are the same resampling as indices, without resamples x n of them.
    weights = rng.multinomial(made.size, np.full(made.size, 1.0 / made.size), size=resamples)
    return np.asarray(np.sort((weights @ made) / (weights @ taken)), dtype=float)
