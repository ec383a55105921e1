"""The mixture against recorded acceptance: E at unseen draft lengths from the profile at k = 3, and sharp bounds."""

import csv
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog

from breakeven.acceptance import INTERPOLATION_ERROR, AcceptanceModel, interpolate_tokens_per_step
from breakeven.mixture import TwoPointMixture, default_decay, tokens_per_step_bounds


def recorded():
    with (Path(__file__).parent / "acceptance_by_k.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(line for line in stream if not line.startswith("#")))
    table = {}
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


def test_interpolation_between_two_measured_lengths():
    for (_, method), profiles in RECORDED.items():
        if method == "eagle":
            measured = (3, 7)
            found = interpolate_tokens_per_step(measured, [profiles[k][0] for k in measured], [1, 2, 4, 5])
            truth = [profiles[k][0] for k in (1, 2, 4, 5)]
            assert np.abs(found / truth - 1.0).max() < INTERPOLATION_ERROR


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
