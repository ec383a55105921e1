"""Drawn texts against the mixture's formulas, and replay of recorded ones."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven_operator.calibration.sending import imposed
from breakeven_operator.resources.calibrationspec import SyntheticAcceptance, WorkloadSpec
from breakeven_sim.engine.costs import Text, default_document
from breakeven_sim.engine.drafting import DraftedText, TextSource, plain_steps, plan_steps, survival
from breakeven_sim.engine.speculative_config import speculation


def tokens_per_step(text: Text, k: int) -> float:
    """E(k) = 1 / sum of w/E(a,k): long drafts cross easy text in fewer steps."""
    easy, hard = (1 + survival(rate, text.depth_decay, k).sum() for rate in (text.easy_rate, text.hard_rate))
    return 1 / (text.easy_share / easy + (1 - text.easy_share) / hard)


def replayed(source: TextSource, k: int, requests: int = 40, tokens: int = 3000) -> tuple[float, np.ndarray]:
    plans = [plan_steps(source.draw(i, tokens), 0, tokens, k) for i in range(requests)]
    accepted = np.concatenate([p.accepted for p in plans])
    return requests * tokens / len(accepted), np.array([(accepted >= i).mean() for i in range(1, k + 1)])


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_long_stretches_give_the_length_biased_mixture(k, decay):
    text = Text(easy_rate=0.9, hard_rate=0.3, easy_share=0.4, mean_easy_stretch_tokens=300, depth_decay=decay)
    e, s = replayed(TextSource(text, 5), k)
    expected = tokens_per_step(text, k)
    assert e == pytest.approx(expected, rel=0.04)
    shares = [w / (1 + survival(a, decay, k).sum()) for a, w in ((0.9, 0.4), (0.3, 0.6))]
    biased = expected * (shares[0] * survival(0.9, decay, k) + shares[1] * survival(0.3, decay, k))
    assert s == pytest.approx(biased, abs=0.04)


def test_the_text_of_a_request_is_the_same_for_every_k_and_order():
    source = TextSource(Text(easy_rate=0.9, hard_rate=0.3, easy_share=0.4), 7)
    again = TextSource(Text(easy_rate=0.9, hard_rate=0.3, easy_share=0.4), 7)
    source.draw(0, 10)
    assert source.draw(3, 50) == again.draw(3, 50)
    assert source.draw(3, 50) != source.draw(4, 50)
    assert TextSource(Text(easy_rate=0.9, hard_rate=0.3, easy_share=0.4), 8).draw(3, 50) != again.draw(3, 50)


@given(
    yields=st.lists(st.integers(1, 9), min_size=1, max_size=60),
    k=st.integers(1, 8),
    begin=st.integers(0, 59),
)
def test_a_plan_covers_the_text_exactly_once(yields, k, begin):
    total = len(yields)
    begin = min(begin, total - 1)
    plan = plan_steps(DraftedText(yields), begin, total, k)
    assert plan.advance.sum() == total - begin
    assert plan.advance.min() >= 1
    assert plan.advance.max() <= k + 1
    assert ((plan.accepted <= plan.drafted) & (plan.drafted == k)).all()
    assert (plan.advance[:-1] == plan.accepted[:-1] + 1).all()


def test_without_a_match_a_step_drafts_nothing():
    plan = plan_steps(DraftedText([5] * 6, [True, False, False, False, True, True]), 0, 6, 3)
    assert plan.advance.tolist() == [4, 2]
    plan = plan_steps(DraftedText([5] * 6, [False] * 6), 0, 6, 3)
    assert (plan.advance.tolist(), plan.drafted.sum(), plan.accepted.sum()) == ([1] * 6, 0, 0)
    assert len(plain_steps(1, 6)) == 5


def test_lookup_methods_draft_in_easy_text_and_seldom_in_hard():
    text = Text(easy_rate=0.8, hard_rate=0.0, easy_share=0.5, mean_easy_stretch_tokens=200, hard_match=0.1)
    drawn = [TextSource(text, 1).draw(i, 2000) for i in range(20)]
    matches = np.concatenate([d.matches for d in drawn])
    assert matches.mean() == pytest.approx(0.5 + 0.5 * 0.1, abs=0.06)


def test_beyond_the_context_that_a_drafter_knows_all_text_is_hard():
    easy = {"easy_rate": 1.0, "hard_rate": 0.0, "mean_easy_stretch_tokens": 10_000}
    knows = TextSource(Text(**easy, easy_share=1.0, familiar_context_tokens=100), 1)
    assert min(knows.draw(0, 20, 79).yields) > 1
    assert knows.draw(0, 20, 100).yields == [1] * 20
    crossing = knows.draw(0, 20, 90).yields
    assert min(crossing[:10]) > 1
    assert crossing[10:] == [1] * 10
    assert TextSource(Text(**easy, easy_share=1.0), 1).draw(0, 20, 79) == knows.draw(0, 20, 79)


def test_imposed_acceptance_replaces_the_text():
    text = Text(easy_rate=0.1, hard_rate=0.1, easy_share=0.5)
    e, s = replayed(TextSource(text, 2, imposed=[1.0, 1.0, 0.25]), 3)
    assert s == pytest.approx([1.0, 1.0, 0.25], abs=0.01)
    assert e == pytest.approx(3.25, rel=0.01)


# Tokens per step at k=7 of recorded sequences, from the mixture fitted at k=3 (SpecDecode-Bench, sharegpt).
@pytest.mark.parametrize(
    ("method", "measured", "tolerance"), [("eagle", 2.583, 0.02), ("ngram", 1.480, 0.01)]
)
def test_default_texts_reproduce_the_recorded_acceptance(method, measured, tolerance):
    for costs in default_document().gpus.values():
        assert tokens_per_step(costs.methods[method].text, 7) == pytest.approx(measured, rel=tolerance)


def test_survival_multiplies_decaying_rates():
    assert survival(0.8, 0.1, 3) == pytest.approx([0.8, 0.8 * 0.8 * math.exp(-0.1), 0.8**3 * math.exp(-0.3)])


@pytest.mark.parametrize("k", [2, 5])
def test_a_calibration_pod_with_imposed_acceptance_accepts_just_that(k):
    """The whole way: rates of a spec, the Job's configuration, the engine's reading of it, its steps."""
    rates = SyntheticAcceptance(rates=(0.8, 0.5))
    document = WorkloadSpec(synthetic_acceptance=rates).to_json_object()
    config = imposed(json.dumps(document), {"method": "eagle3", "model": "m", "num_speculative_tokens": k}, k)
    taken = speculation(config)
    assert taken is not None
    assert taken.imposed_survival == tuple(rates.of_length(k))
    source = TextSource(Text(easy_rate=0.1, hard_rate=0.1, easy_share=0.5), 3, taken.imposed_survival)
    e, s = replayed(source, k)
    assert e == pytest.approx(1 + sum(rates.of_length(k)), rel=0.01)
    assert s == pytest.approx(rates.of_length(k), abs=0.01)
