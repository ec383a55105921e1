"""Draft lengths of one drafter together: what was not measured is derived from what was."""

from dataclasses import replace

import pytest

from breakeven.arm import Arm
from breakeven.fitting import fit_points
from breakeven.profile import Conditions
from fakes.paper_form import PaperForm
from sweeps import closed

TRUTH = PaperForm(0.05, 0.006, 0.0004, 0.0005, 0.004, 0.0001, 0.00003, 0.00004)
STEPS = {0: 1.0, 1: 1.7, 3: 2.4, 5: 2.75, 7: 2.9}


def arm(k, g=200.0, law=TRUTH, noise=0.0, **columns):
    return closed(
        "eagle3" if k else "none", k, *law.line(STEPS[k], k, g), noise=noise,
        first_row=2 + 100 * k + int(g), output_tokens=g, **({"tokens_per_step": STEPS[k]} if k else {}), **columns,
    )  # fmt: skip


def fitted(*arms):
    profile = fit_points([row for rows in arms for row in rows])
    return profile, profile.drafters[0]


def test_an_unmeasured_draft_length_is_near_the_form_and_its_bounds_hold_it() -> None:
    profile, _ = fitted(*(arm(k, g) for k in (0, 1, 3, 7) for g in (100.0, 400.0)))
    c1_s, c2_s = TRUTH.line(STEPS[5], 5, 250.0)
    for clients in (1, 16, 48):
        truth = c1_s + (clients - 1) * c2_s
        found = profile.predict(
            Arm("eagle3", 5),
            concurrency=clients,
            conditions=Conditions(tokens_per_step=STEPS[5], output_tokens=250.0),
        )
        low, high = found.latency_ci_s
        assert found.latency_s == pytest.approx(truth, rel=0.07)
        assert low < truth < high
        assert found.basis == "others"


def test_what_the_arms_leave_open_is_filled_by_the_priors_of_the_law() -> None:
    profile, _ = fitted(*(arm(k, noise=0.01) for k in (0, 3, 7)))
    c1_s, c2_s = TRUTH.line(STEPS[1], 1, 200.0)
    found = profile.predict(Arm("eagle3", 1), concurrency=32, conditions=Conditions(tokens_per_step=STEPS[1]))
    truth = c1_s + 31 * c2_s
    assert found.latency_s == pytest.approx(truth, rel=0.09)


@pytest.mark.parametrize(("measured", "k"), [((0, 1, 3, 7), 5), ((0, 3, 7), 1), ((3, 7), 1)])
def test_ttft_of_an_unmeasured_draft_length_lies_between_its_neighbours(measured, k) -> None:
    def ttft_s(of_k, others):
        return 0.02 + 0.001 * of_k + (0.0006 + 0.00015 * of_k) * others

    rows = []
    for one in measured:
        rows += [replace(row, ttft_mean_s=ttft_s(one, row.concurrency - 1)) for row in arm(one)]
    found = fit_points(rows).predict(
        Arm("eagle3", k), concurrency=17, conditions=Conditions(tokens_per_step=STEPS[k])
    )
    assert found.basis == "others"
    assert found.ttft_s == pytest.approx(ttft_s(k, 16), rel=0.15)
    assert found.ttft_s + 199 * found.tpot_s == pytest.approx(found.latency_s, rel=0.06)


def test_without_a_ttft_of_the_drafter_none_is_made_up() -> None:
    rows = [replace(row, ttft_mean_s=0.02) for row in arm(0)] + arm(3) + arm(7)
    found = fit_points(rows).predict(
        Arm("eagle3", 5), concurrency=17, conditions=Conditions(tokens_per_step=STEPS[5])
    )
    assert (found.ttft_s, found.tpot_s) == (None, None)


def test_without_lengths_or_acceptance_no_other_length_is_derived() -> None:
    assert not fit_points(closed("none", 0, 1.2, 0.07) + closed("eagle3", 3, 0.8, 0.08)).drafters
    rows = closed("none", 0, 1.2, 0.07, output_tokens=200.0) + closed(
        "ngram", 3, 0.8, 0.08, output_tokens=200.0
    )
    assert not fit_points(rows).drafters


def test_tokens_per_step_of_an_unmeasured_length_comes_from_the_measured_ones() -> None:
    profile, fit = fitted(*(arm(k) for k in (0, 1, 3, 7)))
    derived = profile.curve(Arm("eagle3", 5))
    given = profile.curve(Arm("eagle3", 5), Conditions(tokens_per_step=fit.acceptance.at(5).value))
    assert derived.line.c1_s == pytest.approx(given.line.c1_s)
