"""Rows whose own acceptance departs from that of their arm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakeven.fitting import fit_points
from breakeven.fitting.even_acceptance import mean_acceptance
from breakeven.points.point import Point
from breakeven.profile.fits import ArmFit
from sweeps import closed

OUTPUT, STEP_S, FIRST_S, E = 201, 0.01, 0.02, 2.0


def sweep() -> list[Point]:
    """Lone requests take a prefill and 100 steps of 10 ms; another one in flight adds 0.2 ms to each step."""
    decoding_s = (OUTPUT - 1) / E * STEP_S
    columns = {"output_tokens": OUTPUT, "prompt_tokens": 10, "tokens_per_step": E, "requests": 400.0}
    rows = closed("eagle3", 5, FIRST_S + decoding_s, 0.02, clients=[1, 2, 4, 8, 16, 32], **columns)
    return [
        replace(row, ttft_mean_s=FIRST_S, tpot_mean_s=(row.mean_latency_s - FIRST_S) / (OUTPUT - 1))
        for row in rows
    ]


def with_short_lone_row(e: float) -> list[Point]:
    """The lone row had five requests, whose drafts fitted otherwise: as many tokens, other steps, each as long."""
    lone, *rest = sweep()
    decoding_s = (OUTPUT - 1) / e * STEP_S
    tpot_s = decoding_s / (OUTPUT - 1)
    latency_s = FIRST_S + decoding_s
    return [
        replace(lone, mean_latency_s=latency_s, tpot_mean_s=tpot_s, tokens_per_step=e, requests=5.0),
        *rest,
    ]


def fitted(points: list[Point]) -> ArmFit:
    return fit_points(points).arms[0]


@pytest.mark.parametrize("e", [1.7, 1.85, 2.2])
def test_a_few_requests_of_other_acceptance_do_not_move_what_a_step_costs(e: float) -> None:
    """The law through the rows as they came had C1 too large where their E was low, and so C2 too small."""
    found, expected = fitted(with_short_lone_row(e)), fitted(sweep())
    assert found.fit is not None
    assert expected.fit is not None
    # By so much less or more the mean E is: 5 requests of 2005.
    assert found.tokens_per_step == pytest.approx(E, rel=5e-4)
    assert found.c1_s == pytest.approx(expected.c1_s, rel=1e-3)
    assert found.c2_s == pytest.approx(expected.c2_s, rel=2e-3)
    assert found.tpot is not None
    assert expected.tpot is not None
    assert found.tpot.c1_s == pytest.approx(expected.tpot.c1_s, rel=1e-3)
    assert found.tpot.c2_s == pytest.approx(expected.tpot.c2_s, rel=2e-3)
    assert found.fit.noise == pytest.approx(expected.fit.noise, abs=1e-4)


def test_a_row_of_other_acceptance_is_no_outlier() -> None:
    assert not fitted(with_short_lone_row(1.5)).excluded


def test_rows_that_say_nothing_of_their_acceptance_stay_as_they_are() -> None:
    told = with_short_lone_row(1.7)
    silent = [replace(row, tokens_per_step=None) for row in told]
    assert [row.latency_s for row in fitted(silent).measurements] == [row.mean_latency_s for row in silent]


def test_the_bounds_of_c1_hold_that_the_mean_acceptance_is_a_sample() -> None:
    rows = [
        replace(row, tokens_per_step=e, mean_latency_s=row.mean_latency_s * E / e, ttft_mean_s=None)
        for row, e in zip(sweep(), [1.8, 2.2, 1.9, 2.1, 1.85, 2.15], strict=True)
    ]
    found = fitted(rows)
    assert found.fit is not None
    assert found.acceptance is not None
    low, high = found.acceptance.tokens_per_step_ci or (None, None)
    assert low is not None
    assert high is not None
    own_low, own_high = found.c1_ci_s or (None, None)
    assert own_low is not None
    assert own_high is not None
    assert (own_high - own_low) / found.fit.c1_s > 0.9 * (high - low) / found.acceptance.tokens_per_step


def test_a_mean_over_few_requests_hardly_counts_in_the_error_of_e() -> None:
    columns = {"tokens_per_step": 2.0, "requests": 1000.0}
    rows = closed("eagle3", 5, 1.0, 0.02, clients=[1, 2, 4, 8], **columns)
    short = replace(rows[0], tokens_per_step=1.6, requests=10.0)
    found = mean_acceptance([short, *rows[1:]])
    assert found is not None
    assert found.relative_error == pytest.approx(0.2 * (10.0 / 3.0 / 3010.0) ** 0.5, rel=0.02)
