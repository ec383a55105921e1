"""Every known cause is named by the figures that show it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakeven.serving.diagnosis import Cause, Snapshot, diagnose

HEALTHY = Snapshot(
    pods=2,
    requests=600.0,
    window_s=300.0,
    latency_s=2.0,
    ttft_s=0.2,
    tokens_per_step=2.4,
    survival=(0.7, 0.45, 0.25),
    speculating=True,
    waiting_min=0.0,
    kv_usage=0.4,
    preemptions=0.0,
    output_tokens=200.0,
)


def causes(snapshot):
    return {finding.cause for finding in diagnose(snapshot, None, None).findings}


def test_healthy_figures_without_a_profile_cannot_be_judged():
    found = diagnose(HEALTHY, None, None)
    assert found.pays is None
    assert causes(HEALTHY) == {Cause.NO_PROFILE}


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"pods": 0}, Cause.NO_SERIES),
        ({"requests": 0.0}, Cause.NO_REQUESTS),
        ({"speculating": False, "survival": ()}, Cause.NOT_SPECULATING),
        ({"tokens_per_step": 1.02, "survival": (0.02, 0.0, 0.0)}, Cause.ACCEPTANCE_COLLAPSED),
        ({"survival": (0.7, 0.3, 0.02)}, Cause.DRAFT_TOO_LONG),
        ({"waiting_min": 4.0}, Cause.SATURATED),
        ({"kv_usage": 0.99}, Cause.KV_CACHE_FULL),
        ({"preemptions": 3.0}, Cause.KV_CACHE_FULL),
        ({"ttft_s": 1.5}, Cause.PREFILL_DOMINATES),
    ],
)
def test_each_cause_is_seen_in_its_figures_and_not_in_healthy_ones(change, cause):
    assert cause in causes(replace(HEALTHY, **change))
    assert cause not in causes(HEALTHY)


def test_collapsed_acceptance_is_no_gain_even_without_a_profile():
    assert diagnose(replace(HEALTHY, tokens_per_step=1.0), None, None).pays is False


def test_the_load_is_per_pod():
    assert HEALTHY.rps == pytest.approx(1.0)
