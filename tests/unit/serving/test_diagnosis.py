"""Every known cause is named by the figures that show it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.profile import Profile
from breakeven.serving.counted_window import Load
from breakeven.serving.diagnosis import Diagnosis, diagnose
from breakeven.serving.findings import Cause
from breakeven.serving.growths import Growths
from breakeven.serving.model_watch import HttpRequests, ModelSnapshot
from breakeven.tiers import Schedule
from fakes.lawful_profile import lawful_profile_json
from fakes.scheduled_points import STEEP, all_points

HEALTHY = ModelSnapshot(
    pods=2,
    window=Load(
        window_s=300.0,
        replicas=2,
        rps=1.0,
        total_rps=2.0,
        requests=600.0,
        latency_s=2.0,
        ttft_s=0.2,
        tpot_s=1.8 / 199.0,
        tokens_per_step=2.4,
        survival=(0.7, 0.45, 0.25),
        preemptions=0.0,
        output_tokens=200.0,
    ),
    speculating=True,
    waiting_min=0.0,
    kv_usage=0.4,
)


def changed(**changes):
    """Healthy figures but for some."""
    seen = {name: changes.pop(name) for name in [*changes] if hasattr(HEALTHY.window, name)}
    return replace(HEALTHY, **changes, window=replace(HEALTHY.window, **seen))


def causes(snapshot):
    return {finding.cause for finding in diagnose(snapshot, None, None).findings}


@pytest.mark.parametrize(("refused", "failing"), [(19.0, False), (25.0, True)])
def test_requests_fail_from_one_in_a_hundred_on(refused, failing):
    busy = changed(requests=2000.0 - refused, given_up_requests=0.0, http=HttpRequests(2000.0, refused))
    assert (Cause.REQUESTS_FAIL in causes(busy)) is failing


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
        ({"survival": (0.7, 0.02, 0.01)}, Cause.DRAFT_TOO_LONG),
        ({"not_a_number": "e2e_s"}, Cause.SERIES_NOT_A_NUMBER),
        ({"impossible": "running is -1, and nothing counts below zero"}, Cause.SERIES_IMPOSSIBLE),
        ({"waiting_min": 4.0}, Cause.SATURATED),
        ({"kv_usage": 0.99}, Cause.KV_CACHE_FULL),
        ({"preemptions": 3.0}, Cause.KV_CACHE_FULL),
        ({"ttft_s": 1.5}, Cause.PREFILL_DOMINATES),
    ],
)
def test_each_cause_is_seen_in_its_figures_and_not_in_healthy_ones(change, cause):
    assert cause in causes(changed(**change))
    assert cause not in causes(HEALTHY)


@pytest.mark.parametrize(
    ("change", "evidence"),
    [
        (
            {"kv_usage": None, "preemptions": 12.0},
            "12 preemptions; how full the KV cache is, is not exported",
        ),
        ({"kv_usage": 0.99, "preemptions": None}, "preemptions are not exported; KV cache up to 99% full"),
        ({"kv_usage": 0.0, "preemptions": 2.0}, "2 preemptions; KV cache up to 0% full"),
    ],
)
def test_a_figure_that_is_not_exported_is_never_zero(change, evidence):
    found = diagnose(changed(**change), None, None).findings
    (full,) = [one for one in found if one.cause is Cause.KV_CACHE_FULL]
    assert full.evidence.startswith(evidence)


def test_collapsed_acceptance_is_no_gain_even_without_a_profile():
    dead = changed(tokens_per_step=1.0, survival=(0.01, 0.0, 0.0))
    assert diagnose(dead, None, None).pays is False
    assert Cause.DRAFT_TOO_LONG not in causes(dead), "a draft length of 0 is no advice"


def test_the_load_is_per_pod():
    of_both = Growths({"completed": 600.0}, span_s=300.0)
    assert Load.of([of_both], replicas=2).rps == pytest.approx(1.0)


EAGLE = Arm("eagle3", 3)
# Break-even at 4.17 rps; saturation at 8.3 rps with speculation and at 12.5 rps without.
LAWS = {NO_SPECULATION: (1.0, 0.08), EAGLE: (0.75, 0.12)}


@pytest.fixture(scope="module")
def at_rps():
    profile = Profile.from_json(
        lawful_profile_json(
            LAWS, {NO_SPECULATION: 1.0, EAGLE: 2.4}, prompt_tokens=100.0, output_tokens=200.0, gpu="A100"
        )
    )

    def diagnosed(rps: float) -> Diagnosis:
        snapshot = changed(rps=rps, requests=600.0 * rps)
        return diagnose(snapshot, profile, EAGLE)

    return diagnosed


def test_a_profile_judges_the_live_load(at_rps):
    assert (at_rps(1.0).pays, at_rps(1.0).findings) == (True, ())
    assert at_rps(1.0).speedup == pytest.approx(1.0 / 0.75 * (1 - 0.12) / (1 - 0.08), rel=0.01)
    assert at_rps(4.17).pays is None
    slow = at_rps(7.0)
    assert slow.pays is False
    assert slow.sentence.startswith("speculation slows requests: 0.")
    assert [finding.cause for finding in slow.findings] == [Cause.BEYOND_BREAK_EVEN]
    assert "it pays until 4." in slow.findings[0].evidence


def test_an_arm_that_is_saturated_alone_does_not_pay(at_rps):
    lost = at_rps(10.0)
    assert (lost.pays, lost.speedup, lost.speedup_ci) == (False, 0.0, None)
    assert lost.sentence == "eagle3/3 is saturated at 10.00 rps per pod, no speculation is not"
    assert lost.findings[0].cause is Cause.BEYOND_BREAK_EVEN
    both = at_rps(13.0)
    assert (both.pays, both.speedup) == (None, None)
    assert "both saturated" in both.sentence


def test_what_a_schedule_accepts_is_judged_as_a_mixture_over_its_tiers():
    profile = fit_points(all_points(STEEP, Schedule(((1, 3), (21, 0))), tax=0.1))
    scheduled = Arm("eagle3", 3, scheduled=True)
    late = {"survival": (0.7, 0.3, 0.01), "output_tokens": None}
    assert Cause.DRAFT_TOO_LONG in causes(changed(**late))
    found = diagnose(changed(**late), profile, scheduled)
    assert {finding.cause for finding in found.findings} == set()
    assert found.pays is True
    resting = diagnose(changed(**late, tokens_per_step=1.01), profile, scheduled)
    assert [finding.cause for finding in resting.findings] == [Cause.SCHEDULE_RESTS]
    assert Cause.ACCEPTANCE_COLLAPSED in causes(changed(**late, tokens_per_step=1.01))
