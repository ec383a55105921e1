"""The pooled form: recovered where arms determine it, honest where they do not."""

from dataclasses import replace

import numpy as np
import pytest

from breakeven.arm import Arm
from breakeven.fitting import fit_points
from breakeven.laws.speculation import PooledLaw, design
from breakeven.profile import Conditions
from sweeps import closed

TRUTH = PooledLaw(0.05, 0.006, 0.0004, 0.0005, 0.004, 0.0001, 0.00003, 0.00004)
STEPS = {0: 1.0, 1: 1.7, 3: 2.4, 5: 2.75, 7: 2.9}


def arm(k, g=200.0, law=TRUTH, noise=0.0, **columns):
    row = design(STEPS[k], k, g)
    return closed(
        "eagle3" if k else "none", k, float(law.c1_s(row)), float(law.c2_s(row)), noise=noise,
        first_row=2 + 100 * k + int(g), output_tokens=g, **({"tokens_per_step": STEPS[k]} if k else {}), **columns,
    )  # fmt: skip


def pooled(*arms):
    profile = fit_points([row for rows in arms for row in rows])
    return profile, profile.pooled[0]


def test_three_draft_lengths_and_two_output_lengths_recover_all_eight_coefficients() -> None:
    _, fit = pooled(*(arm(k, g) for k in (0, 1, 3, 7) for g in (100.0, 400.0)))
    assert fit.unidentified == ()
    assert [fit.coefficients[name] for name in fit.coefficients] == pytest.approx(
        list(TRUTH.vector), rel=1e-4
    )
    assert fit.mape == pytest.approx(0, abs=1e-6)


def test_an_unmeasured_draft_length_is_predicted_exactly_where_the_form_holds() -> None:
    profile, _ = pooled(*(arm(k, g) for k in (0, 1, 3, 7) for g in (100.0, 400.0)))
    curve = profile.curve(Arm("eagle3", 5), Conditions(tokens_per_step=STEPS[5], output_tokens=250.0))
    row = design(STEPS[5], 5, 250.0)
    assert (float(curve.law.c1), float(curve.law.c2)) == (
        pytest.approx(float(TRUTH.c1_s(row)), rel=1e-4),
        pytest.approx(float(TRUTH.c2_s(row)), rel=1e-4),
    )
    assert curve.basis == "pooled"


def test_one_output_length_leaves_prefill_open() -> None:
    _, fit = pooled(*(arm(k) for k in (0, 1, 3, 7)))
    assert fit.unidentified == ("c1p", "c2p")


def test_one_draft_length_leaves_the_flat_cost_open_too() -> None:
    profile, fit = pooled(arm(0), arm(7))
    assert set(fit.unidentified) == {"c1p", "c1d", "c1s", "c2p", "c2d", "c2s"}
    assert any("do not determine" in warning for warning in profile.warnings)


def test_bounds_hold_whatever_the_arms_leave_open() -> None:
    profile, _ = pooled(*(arm(k, noise=0.01) for k in (0, 3, 7)))
    row = design(STEPS[1], 1, 200.0)
    found = profile.predict(Arm("eagle3", 1), concurrency=32, tokens_per_step=STEPS[1])
    truth = float(TRUTH.c1_s(row)) + 31 * float(TRUTH.c2_s(row))
    low, high = found.latency_ci_s
    assert low < truth < high


@pytest.mark.parametrize(
    ("measured", "k"), [((0, 1, 3, 7), 5), ((0, 3, 7), 1), ((0, 1, 3, 5), 7), ((3, 7), 1)]
)
def test_ttft_of_an_unmeasured_draft_length_lies_on_the_line_of_its_neighbours(measured, k) -> None:
    def ttft_s(of_k, others):
        return 0.02 + 0.001 * of_k + (0.0006 + 0.00015 * of_k) * others

    rows = []
    for one in measured:
        rows += [replace(row, ttft_mean_s=ttft_s(one, row.concurrency - 1)) for row in arm(one)]
    found = fit_points(rows).predict(Arm("eagle3", k), concurrency=17, tokens_per_step=STEPS[k])
    assert found.basis == "pooled"
    assert found.ttft_s == pytest.approx(ttft_s(k, 16), rel=1e-6)
    assert found.ttft_s + 199 * found.tpot_s == pytest.approx(found.latency_s)


def test_without_a_ttft_of_the_drafter_none_is_made_up() -> None:
    rows = [replace(row, ttft_mean_s=0.02) for row in arm(0)] + arm(3) + arm(7)
    found = fit_points(rows).predict(Arm("eagle3", 5), concurrency=17, tokens_per_step=STEPS[5])
    assert (found.ttft_s, found.tpot_s) == (None, None)


def test_without_lengths_or_acceptance_there_is_no_pooled_fit() -> None:
    assert not fit_points(closed("none", 0, 1.2, 0.07) + closed("eagle3", 3, 0.8, 0.08)).pooled
    rows = closed("none", 0, 1.2, 0.07, output_tokens=200.0) + closed(
        "ngram", 3, 0.8, 0.08, output_tokens=200.0
    )
    assert not fit_points(rows).pooled


def test_tokens_per_step_of_an_unmeasured_length_comes_from_the_measured_ones() -> None:
    profile, fit = pooled(*(arm(k) for k in (0, 1, 3, 7)))
    derived = profile.curve(Arm("eagle3", 5))
    given = profile.curve(Arm("eagle3", 5), Conditions(tokens_per_step=fit.acceptance.at(5).value))
    assert float(derived.law.c1) == pytest.approx(float(given.law.c1))
    assert np.all(np.diag(derived.law.covariance) >= np.diag(given.law.covariance))


def test_a_row_that_the_arm_fit_rejected_does_not_enter_the_pool() -> None:
    arms = [arm(k, noise=0.003) for k in (0, 1, 3, 7)]
    bad = closed(
        "eagle3", 3, 9.0, 0.9, clients=[5], first_row=999, output_tokens=200.0, tokens_per_step=STEPS[3]
    )
    profile, found = pooled(*arms, bad)
    assert [row.reason for row in profile.arm(Arm("eagle3", 3)).excluded] == ["Outlier"]
    assert found.points == 28
    assert found.mape < 0.01


PROMPT, LONGER = 500.0, 2000.0
U_S, W_S = TRUTH.c2p / PROMPT, 5e-8


def at_prompt(k, clients, p, g, rows=2):
    """Rows of an engine that prefills at u per token and reads w per token of context, of which TRUTH holds at 500/200."""
    # Two tokens are one step, and the first of them comes at the end of one; the form counts g/E.
    steps = g / STEPS[k] if g > 2 else 1.0 + 1.0 / STEPS[k]
    row = design(STEPS[k], k, steps * STEPS[k])
    more = U_S * (p - PROMPT) + W_S * steps * (p + g / 2 - PROMPT - 100.0)
    c1_s, c2_s = float(TRUTH.c1_s(row)) + more, float(TRUTH.c2_s(row)) + more
    e = {"tokens_per_step": STEPS[k] if g > 2 else 1.0} if k else {}
    return closed(
        "eagle3" if k else "none", k, c1_s, c2_s, clients=clients, first_row=rows + 100 * k + int(p + g),
        prompt_tokens=p, output_tokens=g, ttft_mean_s=0.9 * TRUTH.c1p + U_S * (p - PROMPT), **e,
    )  # fmt: skip


def swept(k, *, probed=True):
    own = at_prompt(k, (1, 2, 4, 8, 16, 32), PROMPT, 200.0)
    return own + at_prompt(k, (1,), LONGER, 2.0) + at_prompt(k, (16,), LONGER, 200.0) if probed else own


def test_prefill_is_identified_by_the_points_at_other_lengths_that_a_calibration_measures() -> None:
    _, fit = pooled(*(swept(k) for k in (0, 3, 7)))
    assert not {"c1p", "c2p"} & set(fit.unidentified)
    assert fit.prefill_token.value_s == pytest.approx(U_S, rel=1e-6)
    assert fit.coefficients["c2p"] == pytest.approx(TRUTH.c2p, rel=1e-6)
    assert fit.coefficients["c1p"] == pytest.approx(TRUTH.c1p, rel=0.02)
    assert fit.lengths.prompt_tokens == PROMPT


@pytest.mark.parametrize("k", [1, 5])
def test_rows_at_other_prompts_bias_nothing_and_carry_the_form_there(k) -> None:
    profile, _ = pooled(*(swept(j) for j in (0, 3, 7)))
    for p, g in ((PROMPT, 200.0), (1500.0, 200.0), (250.0, 400.0)):
        wanted = Conditions(STEPS[k], p, g)
        truth = at_prompt(k, (1, 2), p, g)
        law = profile.curve(Arm("eagle3", k), wanted).law
        assert float(law.c1) == pytest.approx(truth[0].mean_latency_s, rel=0.01)
        assert float(law.c2) == pytest.approx(truth[1].mean_latency_s - truth[0].mean_latency_s, rel=0.02)


def test_without_the_price_of_a_prompt_token_rows_at_other_prompts_are_left_out() -> None:
    rows = [swept(j, probed=False) for j in (0, 3, 7)]
    _, alone = pooled(*rows)
    _, beside = pooled(*rows, *(at_prompt(j, (4, 16), LONGER, 200.0) for j in (0, 3, 7)))
    assert beside.prefill_token is None
    assert beside.points == alone.points
    assert list(beside.coefficients.values()) == pytest.approx(list(alone.coefficients.values()))
