"""Adaptive verification as a case of the law of steps: what is drafted, what is verified, and what rows show of it."""

from __future__ import annotations

import numpy as np
import pytest

from breakeven.arm import Arm
from breakeven.laws.acceptance_numbers import AcceptanceModel
from breakeven.laws.mixture import TwoPointMixture
from breakeven.laws.step_law import CostsOfSteps, Tier, step_s
from breakeven.profile.step_fit import Verifying

ARM = Arm("dspark", 7, scheduled=True, adaptive=True)
SURVIVAL = (0.712, 0.517, 0.390, 0.305, 0.244, 0.200, 0.168)
MODEL = AcceptanceModel("dspark", {7: 1.0 + sum(SURVIVAL)}, {7: SURVIVAL})


def costs(position_s: float = 1e-4, drafting_s: float = 1e-3) -> CostsOfSteps:
    nothing = np.zeros(())
    return CostsOfSteps(
        weights_s=np.asarray(0.02),
        position_s=np.asarray(position_s),
        sharpness=np.asarray(4.0),
        untouched=nothing,
        touching=np.asarray(10.0),
        context_s=nothing,
        prompt_s=nothing,
        drafting_s=np.asarray(drafting_s),
        draft_s=nothing,
        each_draft_s=nothing,
        request_s=nothing,
        hidden=nothing,
        beside_s=nothing,
        departures=np.zeros(12),
    )


def test_all_is_drafted_at_every_batch_and_less_is_verified_the_fuller_it_is():
    tiers = Verifying.of(ARM, MODEL, ()).tiers(costs(), 1000.0, 512)
    assert all(float(tier.drafted) == 7.0 for tier in tiers)
    verified = [float(tier.verified) for tier in tiers]
    assert verified == sorted(verified, reverse=True)
    assert verified[0] == pytest.approx(7.0)
    assert verified[-1] < 1.0


@pytest.mark.parametrize("batch", [1, 16, 64, 256])
def test_no_other_number_of_drafts_yields_more_tokens_for_the_time_of_a_step(batch):
    verifying = Verifying.of(ARM, MODEL, ())
    tier = next(t for t in reversed(verifying.tiers(costs(), 1000.0, 256)) if t.first <= batch)
    at = np.asarray(float(tier.first))
    best = float(tier.tokens_per_step / step_s(costs(), tier, np.asarray(1000.0), at))
    for verified in np.linspace(0.0, 7.0, 57):
        e = np.interp(verified, verifying.verified, verifying.tokens)
        other = Tier(tier.first, tier.drafted, e, np.asarray(verified))
        assert float(e / step_s(costs(), other, np.asarray(1000.0), at)) <= best * (1 + 1e-9)


def test_dear_drafting_makes_more_of_it_worth_verifying():
    """Drafting is paid whatever is verified, so it is no reason to verify less."""

    def verified(drafting_s: float) -> float:
        return sum(
            float(t.verified)
            for t in Verifying.of(ARM, MODEL, ()).tiers(costs(drafting_s=drafting_s), 1.0, 256)
        )

    assert verified(0.05) > verified(0.001) + 1.0


def test_tokens_per_step_that_rows_counted_hold_around_their_load_and_not_far_from_it():
    free = Verifying.of(ARM, MODEL, ()).tiers(costs(), 1000.0, 512)
    told = Verifying.of(ARM, MODEL, [(2.0, 3.1), (4.0, None)]).tiers(costs(), 1000.0, 512)
    e = {t.first: float(t.tokens_per_step) for t in told}
    assert e[2] == pytest.approx(3.1)
    two = Verifying.of(ARM, MODEL, [(2.0, 3.1), (256.0, 1.5)]).tiers(costs(), 1000.0, 512)
    by_first = {t.first: t for t in two}
    assert float(by_first[256].tokens_per_step) == pytest.approx(1.5)
    assert 0.0 < float(by_first[256].verified) < 1.0
    middle = next(t for t in free if t.first == 24)
    assert float(by_first[24].tokens_per_step) == pytest.approx(float(middle.tokens_per_step))


@pytest.mark.parametrize(
    "model",
    [MODEL, AcceptanceModel("dspark", {7: 3.4}, {}), AcceptanceModel("ngram", {2: 1.2}, {2: (0.15, 0.05)})],
)
def test_the_likeliest_drafts_come_first_and_all_of_them_yield_what_the_fixed_length_does(model):
    verified, tokens = model.likeliest_first(7)
    assert (verified[0], tokens[0]) == (0.0, 1.0)
    assert verified[-1] == pytest.approx(7.0)
    assert tokens[-1] == pytest.approx(model.at(7).value)
    gains = np.diff(tokens) / np.diff(verified)
    assert np.all(np.diff(gains) <= 1e-9)


def test_choosing_among_requests_yields_more_than_a_shorter_draft_of_all():
    verified, tokens = MODEL.likeliest_first(7)
    fixed = 1.0 + np.cumsum(SURVIVAL)
    assert np.interp(2.0, verified, tokens) > fixed[1] + 0.2


@pytest.mark.parametrize(("e", "k"), [(3.4, 7), (2.0, 3), (6.5, 7)])
def test_partly_easy_text_yields_the_tokens_that_were_counted(e, k):
    assert float(TwoPointMixture.partly_easy(e, k, 0.02).tokens_per_step(k)) == pytest.approx(e, rel=1e-3)
