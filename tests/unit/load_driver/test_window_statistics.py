"""Records of requests -> statistics of a window, on hand-made records with known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from breakeven.load_driver.window import CUT_OFF, RequestRecord, mean_inflight, relative_error, summarise


def record(
    sent_s: float, latency_s: float | None, ttft_s: float = 0.1, output_tokens: int = 11, **more
) -> RequestRecord:
    done_s = None if latency_s is None else sent_s + latency_s
    return RequestRecord(
        scheduled_s=more.pop("scheduled_s", sent_s),
        sent_s=sent_s,
        first_token_s=sent_s + ttft_s,
        done_s=done_s,
        prompt_tokens=20,
        output_tokens=output_tokens,
        **more,
    )


def test_inflight_is_the_exact_integral_over_the_window():
    records = [record(-1.0, 2.0), record(0.5, 1.0), record(1.5, None), record(5.0, 1.0)]
    # 1 s of the first, 1 s of the second, 0.5 s of the one still open, nothing of the last.
    assert mean_inflight(records, 0.0, 2.0) == pytest.approx(2.5 / 2)


def test_requests_sent_in_the_window_count_wherever_they_end():
    records = [record(-0.5, 1.0), record(0.5, 1.0), record(1.5, 3.0), record(2.5, 1.0)]
    seen = summarise(records, 0.0, 2.0)
    assert seen.requests == 2
    assert seen.latency.mean_s == pytest.approx(2.0)
    assert seen.offered_rps == pytest.approx(1.0)
    assert seen.achieved_rps == pytest.approx(1.0)  # ended inside: the first and the second


def test_means_of_one_window_fit_together():
    records = [record(0.1, 1.1, ttft_s=0.1, output_tokens=11), record(0.2, 2.2, ttft_s=0.2, output_tokens=21)]
    seen = summarise(records, 0.0, 1.0)
    assert seen.tpot.mean_s == pytest.approx(3.0 / 30)
    assert seen.ttft.mean_s + (seen.output_tokens - 1) * seen.tpot.mean_s == pytest.approx(
        seen.latency.mean_s
    )
    assert seen.output_tokens_sq == pytest.approx((11**2 + 21**2) / 2)


def test_quantiles_of_tpot_are_over_requests():
    records = [record(0.1 * i, 0.1 + 0.1 * i, ttft_s=0.1, output_tokens=11) for i in range(1, 5)]
    seen = summarise(records, 0.0, 1.0)
    # 10, 20, 30 and 40 ms per token.
    assert (seen.tpot.p50_s, seen.tpot.p95_s) == (pytest.approx(0.025), pytest.approx(0.0385))
    assert seen.tpot.p99_s == pytest.approx(0.0397)


def test_little_residual_is_zero_in_a_perfect_cycle():
    records = [record(0.25 * index, 0.5) for index in range(-8, 48)]
    seen = summarise(records, 0.0, 10.0)
    assert seen.mean_inflight == pytest.approx(2.0)
    assert seen.little_residual == pytest.approx(0.0, abs=1e-12)


def test_failed_requests_are_counted_and_left_out_of_the_means():
    records = [record(0.1, 1.0), record(0.2, 0.01, error="HTTP 500"), record(0.3, 0.1, error=CUT_OFF)]
    seen = summarise(records, 0.0, 1.0)
    assert (seen.requests, seen.failed) == (1, 1)
    assert seen.latency.mean_s == pytest.approx(1.0)


def test_no_answer_no_statistics():
    assert summarise([record(0.1, None)], 0.0, 1.0) is None
    assert summarise([], 0.0, 1.0) is None


def test_send_lag_is_the_drivers_own():
    seen = summarise([record(0.10, 1.0, scheduled_s=0.08), record(0.2, 1.0)], 0.0, 1.0)
    assert seen.send_lag_p99_s == pytest.approx(0.02, rel=0.02)
    assert seen.send_lag_mean_s == pytest.approx(0.01)


def test_too_few_requests_tell_no_error():
    assert relative_error([record(0.1 * index, 0.5) for index in range(10)], 0.0, 1.0) == math.inf


def test_relative_error_of_independent_latencies_is_that_of_their_mean():
    random = np.random.default_rng(5)
    ratios = []
    for _ in range(60):
        # Far apart, so that other requests in flight explain nothing.
        latencies = random.normal(1.0, 0.2, 200)
        records = [record(10.0 * index, float(latency)) for index, latency in enumerate(latencies)]
        ratios.append(relative_error(records, 0.0, 2000.0) / (0.2 / math.sqrt(200)))
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.15)


def test_scatter_that_company_explains_is_not_error():
    # Batches of 25 requests alternate between meeting nobody (1 s each) and meeting one other (2 s each): C2 = 1 s.
    records = [
        record(
            float(index), 1.0 if index // 25 % 2 else 2.0, steps=10, others_met=0 if index // 25 % 2 else 10
        )
        for index in range(250)
    ]
    assert relative_error(records, 0.0, 250.0) > 0.1
    assert relative_error(records, 0.0, 250.0, company_s=1.0) == pytest.approx(0.0, abs=1e-12)


def test_company_is_a_mean_over_steps_so_that_long_answers_weigh_as_they_do_in_the_latency():
    records = [
        record(0.1, 1.0, steps=10, others_met=20),
        record(0.2, 1.0, steps=2, others_met=0),
        record(0.3, 1.0),
    ]
    assert [entry.others for entry in records] == [2.0, 0.0, None]
    assert summarise(records, 0.0, 1.0).others_met == pytest.approx(20 / 12)


def test_answers_of_different_lengths_obey_the_law_with_the_company_of_their_steps():
    c1_s, c2_s = 0.01, 0.002  # per step
    met = [(10, 1.0), (100, 5.0), (400, 2.0)]
    records = [
        record(0.1, steps * (c1_s + others * c2_s), steps=steps, others_met=steps * others)
        for steps, others in met
    ]
    seen = summarise(records, 0.0, 1.0)
    steps = sum(one for one, _ in met) / len(met)
    assert seen.latency.mean_s == pytest.approx(steps * (c1_s + seen.others_met * c2_s))
