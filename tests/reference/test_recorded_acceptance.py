"""The mixture against recorded acceptance: E at unseen draft lengths from the profile at k = 3, and sharp bounds."""

import csv
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from breakeven.laws.acceptance_numbers import AcceptanceModel
from breakeven.laws.mixture import TwoPointMixture, default_decay, tokens_per_step_bounds


def recorded():
    with (Path(__file__).parent / "acceptance_by_k.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(line for line in stream if not line.startswith("#")))
    table: dict[Any, Any] = {}
    for row in rows:
        k = int(row["k"])
        survival = tuple(
            float(row[f"cum_accept_pos{i}"]) for i in range(min(k, 7)) if row[f"cum_accept_pos{i}"]
        )
        table.setdefault((row["dataset"], row["method"]), {})[k] = (
            float(row["mean_tokens_per_step_pooled"]),
            survival,
        )
    return table


RECORDED = recorded()


def errors_from(measured_k, method):
    found = []
    for (_, drafter), profiles in RECORDED.items():
        if drafter != method:
            continue
        e, survival = profiles[measured_k]
        mixture = TwoPointMixture.fit(survival, default_decay(drafter))
        assert mixture.tokens_per_step(measured_k) == pytest.approx(e, rel=1e-3)
        unseen = [k for k in profiles if k != measured_k]
        found += [float(mixture.tokens_per_step(k)) / profiles[k][0] - 1.0 for k in unseen]
    return np.abs(found)


@pytest.mark.parametrize(("method", "mean", "worst"), [("eagle", 0.010, 0.018), ("ngram", 0.0015, 0.006)])
def test_errors_at_unseen_draft_lengths(method, mean, worst):
    errors = errors_from(3, method)
    assert len(errors) == 10
    assert errors.mean() <= mean
    assert errors.max() <= worst


def test_a_geometric_tail_is_far_worse():
    e, survival = RECORDED["sharegpt", "ngram"][3]
    tail = survival[-1] * (survival[-1] / survival[-2]) ** np.arange(1, 5)
    assert abs((e + tail.sum()) / RECORDED["sharegpt", "ngram"][7][0] - 1.0) > 0.1


# Tokens per step by draft length: Apertus 8B with EAGLE-3 (concurrency 256) and with the block drafter dspark
# (swiss-ai/apertus-speculative-decoding), Llama-3.1-8B with EAGLE-3 on three tasks
# (pramodjella/speculative-decoding-draft-length-audit, batch 1).
PUBLISHED = {
    "apertus eagle3": {1: 1.8554, 3: 3.1419, 7: 4.5209},
    "apertus dspark": {1: 1.57, 2: 1.86, 3: 2.0, 5: 2.1, 7: 2.12},
    "llama gsm8k": {1: 1.5327, 2: 1.8447, 3: 1.9852, 5: 2.1601, 7: 2.2081},
    "llama humaneval": {1: 1.5436, 2: 1.8495, 3: 1.9933, 5: 2.1281, 7: 2.1825},
    "llama mt_bench": {1: 1.3825, 2: 1.5296, 3: 1.6191, 5: 1.6765, 7: 1.6966},
}


def from_pairs():
    """Method, measured pair, draft length, what is predicted from E at the pair alone, and the truth."""
    known = {
        f"{name} {method}": (method, {k: e for k, (e, _) in p.items()})
        for (name, method), p in RECORDED.items()
    }
    known |= {name: ("eagle3", e) for name, e in PUBLISHED.items()}
    for method, e in known.values():
        for pair in itertools.combinations(sorted(e), 2):
            model = AcceptanceModel(method, {k: e[k] for k in pair}, {})
            for k in set(e) - set(pair):
                yield method, pair, k, model.at(k), e[k]


def test_two_measured_lengths_predict_the_ones_between_to_half_a_percent():
    errors = [
        abs(found.value / truth - 1.0) for _, pair, k, found, truth in from_pairs() if pair[0] < k < pair[1]
    ]
    assert np.mean(errors) < 0.005
    assert max(errors) < 0.022


def test_bounds_from_two_measured_lengths_hold_the_truth():
    held: dict[bool, list[bool]] = {True: [], False: []}
    for _, pair, k, found, truth in from_pairs():
        held[k < pair[0]].append(found.lower * 0.9995 <= truth <= found.upper * 1.0005)
    assert all(held[False])
    assert np.mean(held[True]) > 0.97


def test_a_longer_draft_never_yields_less_even_where_rates_fall_steeply():
    model = AcceptanceModel("eagle3", {2: 2.0, 7: 2.01}, {})
    found = [model.at(k).value for k in range(1, 11)]
    assert found == sorted(found)


@pytest.mark.parametrize("measured_k", [1, 2, 3, 5])
def test_the_stated_bounds_hold_the_truth(measured_k):
    for (_, method), profiles in RECORDED.items():
        e, survival = profiles[measured_k]
        model = AcceptanceModel(method, {measured_k: e}, {measured_k: survival})
        for k, (truth, _) in profiles.items():
            found = model.at(k)
            assert found.lower * 0.9995 <= truth <= found.upper * 1.0005, (method, measured_k, k)


@pytest.mark.parametrize("measured_k", [1, 2, 3])
@pytest.mark.parametrize("k", [1, 2, 5, 8])
def test_bounds_are_those_of_a_linear_programme(measured_k, k):
    """Sharp bounds of E over all distributions on 401 rates with the profile's moments, by linear programming."""
    mixture = TwoPointMixture((0.35, 0.88), (0.55, 0.45), 0.0)
    survival = mixture.survival(measured_k)
    rates = np.linspace(0.0, 1.0, 401)
    # The two atoms themselves belong to the grid, so that the moments can be met exactly.
    rates = np.unique(np.concatenate([rates, mixture.rates]))
    powers = rates[:, None] ** np.arange(0, measured_k + 1)

    def per_step(length):
        return 1.0 + (rates[:, None] ** np.arange(1, length + 1)).sum(axis=1)

    functional = per_step(measured_k) / per_step(k)
    targets = np.concatenate([[1.0], survival])
    ends = [
        linprog(sign * functional, A_eq=powers.T, b_eq=targets, bounds=(0.0, None), method="highs").fun * sign
        for sign in (1.0, -1.0)
    ]
    e = 1.0 + survival.sum()
    lower, upper = tokens_per_step_bounds(survival, k, "ngram")
    assert lower == pytest.approx(e / ends[1], rel=2e-4)
    assert upper == pytest.approx(e / ends[0], rel=2e-4)
