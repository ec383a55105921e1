"""Result files that real tools wrote, read as they are."""

from __future__ import annotations

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.points.point import LoadMode
from breakeven.readers.reading import read_file
from validation.published import data_folder

FOLDER = data_folder()
pytestmark = pytest.mark.skipif(
    FOLDER is None, reason="no captured files: set BREAKEVEN_DATA or put them at ../shared/data"
)


def read(name: str, arm: Arm = NO_SPECULATION):
    return read_file(FOLDER / "tools" / name, arm)


def test_vllm_bench_open_loop() -> None:
    (one,) = read("vllm_bench_0.32_open.json")
    assert (one.load_mode, one.request_rate_rps, one.requests, one.output_tokens) == (
        LoadMode.POISSON,
        4.0,
        60,
        64,
    )
    assert one.mean_latency_s == pytest.approx(0.8194, abs=1e-4)


def test_vllm_bench_closed_loop_has_nearly_its_clients_in_flight() -> None:
    (one,) = read("vllm_bench_0.32_closed.json")
    assert (one.load_mode, one.concurrency) == (LoadMode.CLOSED, 8)
    assert one.achieved_rps * one.mean_latency_s == pytest.approx(7.98, abs=0.01)


def test_vllm_bench_speculation_counts_request_steps_not_drafts() -> None:
    (one,) = read("vllm_bench_0.32_spec.json", Arm("ngram", 3))
    # 694 steps are 2520 decoded tokens less 1826 accepted; some of those lay beyond a request's last token.
    assert 2520 / (694 + 2 * 40) < one.tokens_per_step < 2520 / 694
    assert one.drafts == 622


def test_guidellm_sweep_gives_a_law_and_no_ceiling_from_one_generation() -> None:
    points = read("guidellm_0.8.1_sweep_mock.json")
    assert [one.load_mode for one in points] == [LoadMode.CLOSED] * 2 + [LoadMode.CONSTANT] * 3
    for one in points[2:]:
        assert one.ttft_mean_s + (one.output_tokens - 1) * one.tpot_mean_s == pytest.approx(
            one.mean_latency_s, rel=0.01
        )
    (fit,) = fit_points(points).arms
    assert fit.points == 4
    # In its throughput run 81 of 531 requests failed, which excludes a row before saturation does.
    assert [row.reason for row in fit.excluded] == ["RequestsFailed"]
    # That run had 351 requests in flight and finished 450: a wave and a quarter count nothing.
    assert fit.measured_saturation_rps is None
