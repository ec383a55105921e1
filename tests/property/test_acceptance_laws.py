"""Laws of acceptance: conversions invert, the mixture renews, its bounds hold what they claim."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import PchipInterpolator

from breakeven.laws.acceptance_numbers import (
    AcceptanceModel,
    alpha_from_tokens_per_step,
    interpolate_tokens_per_step,
    survival_per_step,
    tokens_per_step_iid,
)
from breakeven.laws.mixture import TwoPointMixture, default_decay, tokens_per_step_bounds
from draws import draws
from validation.accepted import resampled_tokens_per_step

few = draws(30)
rates = st.floats(0.0, 1.0)
lengths = st.integers(1, 16)


@st.composite
def survivals(draw, most=10):
    shares = draw(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=most))
    return np.cumprod(shares)


@st.composite
def mixtures(draw, decay=None):
    low, high = sorted((draw(rates), draw(rates)))
    share = draw(rates)
    return TwoPointMixture(
        (low, high), (share, 1.0 - share), draw(st.floats(0.0, 0.05)) if decay is None else decay
    )


@few
@given(rates, lengths)
def test_alpha_and_tokens_per_step_are_inverse(alpha, k):
    e = tokens_per_step_iid(alpha, k)
    assert 1.0 <= e <= k + 1.0
    assert alpha_from_tokens_per_step(e, k) == pytest.approx(alpha, abs=1e-8)
    assert e == pytest.approx(sum(alpha**i for i in range(k + 1)))


@few
@given(st.floats(1e-12, 1e-3), lengths)
def test_no_digits_are_lost_near_certain_acceptance(rejected, k):
    alpha = 1.0 - rejected
    rejected = 1.0 - alpha
    series = k + 1.0 - rejected * k * (k + 1) / 2 + rejected**2 * (k - 1) * k * (k + 1) / 6
    assert tokens_per_step_iid(alpha, k) == pytest.approx(series, rel=max(1e-14, (rejected * k) ** 3))


def test_its_ends_are_exact():
    assert tokens_per_step_iid([0.0, 1.0, 0.5], [4, 4, 0]).tolist() == [1.0, 5.0, 1.0]
    assert alpha_from_tokens_per_step([1.0, 5.0], 4).tolist() == [0.0, 1.0]


@few
@given(rates, lengths)
def test_a_geometric_profile_is_the_independent_case(alpha, k):
    survival = alpha ** np.arange(1, k + 1)
    assert 1.0 + survival.sum() == pytest.approx(float(tokens_per_step_iid(alpha, k)))


@few
@given(survivals())
def test_the_acceptance_rate_is_at_most_alpha(survival):
    # Equal only at k = 1: the mean of survival counts late positions, alpha does not.
    alpha = alpha_from_tokens_per_step(1.0 + survival.sum(), len(survival))
    assert survival.mean() <= alpha + 1e-9


@few
@given(mixtures(), lengths)
def test_the_mixture_renews(mixture, k):
    survival = mixture.survival(k)
    assert mixture.tokens_per_step(k) == pytest.approx(1.0 + survival.sum())
    assert np.all(np.diff(survival) <= 1e-12)


@few
@given(mixtures(), lengths)
def test_longer_drafts_yield_more_tokens_but_each_position_less(mixture, k):
    here, longer = mixture.tokens_per_step([k, k + 1])
    assert here <= longer * (1 + 1e-12)
    assert longer <= k + 2
    assert np.all(mixture.survival(k + 1)[:k] <= mixture.survival(k) + 1e-12)


@few
@given(mixtures(), lengths)
def test_it_equals_a_walk_through_the_text(mixture, k):
    """Renewal reward: steps per token is the mean over tokens of the steps that each stretch needs per token."""
    i = np.arange(1, k + 1)
    per_step = [1.0 + np.sum(a**i * np.exp(-mixture.decay * i * (i - 1) / 2)) for a in mixture.rates]
    steps_per_token = sum(share / e for share, e in zip(mixture.token_shares, per_step, strict=True))
    assert mixture.tokens_per_step(k) == pytest.approx(1.0 / steps_per_token)


@few
@given(st.floats(0.03, 0.75), st.floats(0.16, 0.97), st.floats(0.11, 0.89), st.integers(3, 7))
def test_a_profile_of_a_mixture_gives_the_mixture_back(low, apart, share, k):
    mixture = TwoPointMixture((low, min(low + apart, 0.99)), (share, 1.0 - share), 0.0)
    fitted = TwoPointMixture.fit(mixture.survival(k), 0.0)
    others = np.arange(1, 11)
    np.testing.assert_allclose(fitted.tokens_per_step(others), mixture.tokens_per_step(others), rtol=3e-3)


@few
@given(survivals(), st.sampled_from(["eagle3", "ngram"]))
def test_any_profile_can_be_fitted_and_keeps_its_limits(survival, method):
    fitted = TwoPointMixture.fit(survival, default_decay(method))
    e = fitted.tokens_per_step(np.arange(0, 13))
    assert e[0] == 1.0
    assert np.all((e >= 1.0) & (e <= np.arange(1, 14)))
    lower, upper = tokens_per_step_bounds(survival, np.arange(0, 13), method)
    assert np.all(lower <= e + 1e-12)
    assert np.all(e <= upper + 1e-12)


@few
@given(
    st.lists(st.tuples(rates, st.floats(0.01, 1.0)), min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(1, 12),
)
def test_the_bounds_hold_every_mixture_with_the_measured_profile(stretches, measured_k, k):
    a = np.array([rate for rate, _ in stretches])
    shares = np.array([share for _, share in stretches])
    shares = shares / shares.sum()

    def of(length):
        powers = a[:, None] ** np.arange(1, length + 1)
        per_step = 1.0 + powers.sum(axis=1)
        return 1.0 / (shares / per_step).sum(), ((shares / per_step) @ powers) / (shares / per_step).sum()

    _, survival = of(measured_k)
    lower, upper = tokens_per_step_bounds(survival, k, "ngram")
    # A profile on the edge of what is possible leaves nothing open, and rounding decides on which side it falls.
    assert lower * (1 - 1e-3) <= of(k)[0] <= upper * (1 + 1e-3)


def test_fewer_positions_leave_more_open():
    mixture = TwoPointMixture((0.3, 0.9), (0.5, 0.5), 0.0)
    widths = []
    for measured_k in (1, 2, 3):
        lower, upper = tokens_per_step_bounds(mixture.survival(measured_k), 7, "ngram")
        widths.append(float(upper / lower))
    assert widths[0] > widths[1] > widths[2] > 1.0
    assert widths[2] < 1.02


@few
@given(st.dictionaries(lengths, st.floats(0.0, 1.0), min_size=1, max_size=5), lengths)
def test_interpolation_passes_through_and_stays_between_the_measured(shares, k):
    ks = sorted(shares)
    values = 1.0 + np.cumsum([shares[j] for j in ks])
    found = interpolate_tokens_per_step(ks, values, ks)
    np.testing.assert_allclose(found, values)
    between = interpolate_tokens_per_step(ks, values, k)
    if k > ks[-1]:
        assert np.isnan(between)
    else:
        low = max((v for j, v in zip(ks, values, strict=True) if j <= k), default=1.0)
        high = min(v for j, v in zip(ks, values, strict=True) if j >= k)
        assert low * (1 - 1e-12) <= between <= high * (1 + 1e-12)


@few
@given(st.dictionaries(lengths, st.floats(1.0, 20.0), min_size=1, max_size=6))
def test_interpolation_is_scipy_s_whatever_was_measured(measured):
    ks = sorted(measured)
    x, y = np.log1p([0, *ks]), np.log([1.0, *(measured[k] for k in ks)])
    asked = np.linspace(0.0, 17.0, 120)
    expected = np.exp(PchipInterpolator(x, y, extrapolate=False)(np.log1p(asked)))
    found = interpolate_tokens_per_step(ks, [measured[k] for k in ks], asked)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@few
@given(survivals(most=7), lengths)
def test_the_model_answers_for_every_draft_length(survival, k):
    measured_k = len(survival)
    model = AcceptanceModel("eagle3", {measured_k: 1.0 + survival.sum()}, {measured_k: tuple(survival)})
    found = model.at(k)
    assert 1.0 <= found.lower <= found.value <= found.upper <= k + 1.0
    assert found.basis == ("measured" if k == measured_k else "mixture" if survival.sum() else "one-rate")
    assert model.at(0).value == 1.0


def test_the_best_basis_is_taken():
    s3 = (0.6731, 0.4395, 0.2811)
    model = AcceptanceModel("eagle3", {3: 2.3937, 7: 2.7697}, {3: s3})
    assert [model.at(k).basis for k in (3, 5, 9)] == ["measured", "interpolated", "one-rate"]
    assert AcceptanceModel("eagle3", {3: 2.3937}, {3: s3}).at(5).basis == "mixture"


def test_lookup_drafters_do_not_draft_at_every_step():
    # A real vLLM 0.32 page: 392 tokens in 127 steps, 1 + accepted/drafts says 3.92 because steps without a match
    # are not counted as drafts.
    per_draft = np.array([0.99, 0.97, 0.96])
    e = 392 / 127
    per_step = survival_per_step(per_draft, e)
    assert 1.0 + per_step.sum() == pytest.approx(e)
    assert per_step[0] / per_draft[0] == pytest.approx(per_step[2] / per_draft[2])
    with pytest.raises(ValueError, match="tokens_per_step"):
        survival_per_step([0.5], 2.0)


def test_requests_are_resampled_whole():
    rng = np.random.default_rng(3)
    # Half of the requests copy text (E = 5), half do not (E = 1): drafts are many, requests few.
    steps = np.array([100.0] * 20)
    tokens = np.array([500.0, 100.0] * 10)
    drawn = resampled_tokens_per_step(tokens, steps, rng, 4000)
    assert drawn.mean() == pytest.approx(3.0, abs=0.05)
    assert drawn.std() == pytest.approx(2.0 / np.sqrt(20), rel=0.1)
    assert np.all(np.diff(drawn) >= 0)
    alike = resampled_tokens_per_step(np.full(5, 300.0), np.full(5, 100.0), rng, 50)
    assert np.allclose(alike, 3.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tokens_per_step_iid(1.1, 3), "alpha"),
        (lambda: alpha_from_tokens_per_step(5.1, 4), "more than k"),
        (lambda: alpha_from_tokens_per_step(0.9, 4), "tokens_per_step"),
        (lambda: survival_per_step([0.5, 0.6], 1.2), "rises with position"),
        (lambda: TwoPointMixture.fit([], 0.0), "survival"),
        (lambda: TwoPointMixture.fit([0.5, np.nan], 0.0), "survival"),
        (lambda: TwoPointMixture((0.1, 0.2), (0.5, 0.4), 0.0), "token_shares"),
        (lambda: interpolate_tokens_per_step([3, 3], [2.0, 2.1], 2), "twice"),
        (lambda: AcceptanceModel("eagle3", {}, {}), "tokens_per_step"),
        (lambda: AcceptanceModel("eagle3", {2: 3.5}, {}), "tokens_per_step"),
    ],
)
def test_impossible_input_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
