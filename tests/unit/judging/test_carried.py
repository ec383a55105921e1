"""Live figures that show a rate below saturation, and their consequence for a profile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.planning.observed_load import live_conditions
from breakeven.profile import Conditions, Profile
from breakeven.serving.counted_window import Load
from breakeven_operator.case import Live
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.reconcile import carries, with_carried
from breakeven_operator.resources.servicestatus import CalibrationStatus
from breakeven_operator.step import Calibrated, ProfileEntry
from fakes.fleet_world import EAGLE, GPU, profile_json

# Two replicas, 20 rps and 30 in flight on each, over 12 s.
STEADY = Load(
    rps=20.0,
    total_rps=40.0,
    requests=480.0,
    window_s=12.0,
    inflight=30.0,
    latency_s=1.5,
    ttft_s=0.1,
    tpot_s=0.05,
    tokens_per_step=2.9,
    prompt_tokens=64.0,
    output_tokens=16.0,
    replicas=2,
    age_s=1.0,
)


@pytest.mark.parametrize(
    ("figures", "carried"),
    [
        (STEADY, True),
        # 22 more in flight on two replicas that hold 60: two standard deviations of two counts.
        (replace(STEADY, requests=459.0), True),
        (replace(STEADY, requests=440.0), False),
        # Old demand is worked off: the rate asked for now is below saturation all the more.
        (replace(STEADY, requests=520.0), True),
        (replace(STEADY, saturated=True), False),
        (replace(STEADY, latency_s=None), False),
        (replace(STEADY, rps=0.0, total_rps=0.0), False),
    ],
)
def test_a_rate_is_carried_where_what_is_in_flight_does_not_grow(figures, carried):
    assert carries(figures) is carried


def test_hours_of_slight_overload_are_growth():
    assert not carries(replace(STEADY, window_s=300.0, requests=0.98 * 40 * 300))


PROFILE = Profile.from_json(profile_json())
ENTRY = ProfileEntry("p1", "p1", NamespacedName("llm", "chat"), "f1", GPU, None, frozenset(), PROFILE)
STATE = Calibrated(
    ENTRY, ClusterReason.PROFILE_IN_FORCE, "in force", None, None, None, CalibrationStatus(), None
)


def test_under_bursts_the_corrected_law_answers_bursts_as_they_were_measured():
    """Taken for Poisson's, a latency that bursts made would have made the steps too long."""
    figures = replace(
        STEADY,
        rps=15.0,
        total_rps=30.0,
        requests=360.0,
        inflight=22.5,
        prompt_tokens=200.0,
        output_tokens=100.0,
        tokens_per_step=2.5,
        dispersion=9.0,
    )
    found = with_carried(STATE, EAGLE, Live(ClusterReason.METRICS_AVAILABLE, "measured", figures))
    curve = found.entry.profile.curve(EAGLE, Conditions(2.5, 200.0, 100.0, dispersion=9.0))
    assert curve.loop_latency_s(15.0 * figures.latency_s, closed=False) == pytest.approx(
        figures.latency_s, rel=0.01
    )


@pytest.mark.parametrize(
    ("tokens_per_step", "carried_rps"),
    [(None, 12.5), (2.5, 12.5), (1.5, 12.5 * 1.5 / 2.5), (3.5, 12.5 * 3.5 / 2.5), (9.0, 12.5 * 4.0 / 2.5)],
)
def test_a_profile_is_corrected_by_a_rate_beyond_its_saturation_at_the_live_acceptance(
    tokens_per_step, carried_rps
):
    """Its eagle/3 saturates at 12.5 rps with 2.5 tokens per step, and makes 4 at the most; prompts cost the same at any."""
    seen = replace(STEADY, tokens_per_step=tokens_per_step, prompt_tokens=200.0, output_tokens=100.0)
    for share, corrected in ((0.6, False), (1.2, True)):
        rps = share * carried_rps
        figures = replace(seen, rps=rps, total_rps=2.0 * rps, requests=24.0 * rps, inflight=1.5 * rps)
        live = Live(ClusterReason.METRICS_AVAILABLE, "measured", figures)
        assert (with_carried(STATE, EAGLE, live).entry.profile != PROFILE) is corrected


def test_no_speculation_is_asked_about_as_decisions_ask(monkeypatch):
    """It has no acceptance; with one, the same curve would be made once more in every decision."""
    asked, curve = [], Profile.curve

    def noted(profile, arm, conditions=None):
        asked.append(conditions)
        return curve(profile, arm, conditions)

    monkeypatch.setattr(Profile, "curve", noted)
    figures = replace(STEADY, rps=3.0, tokens_per_step=1.0, prompt_tokens=200.0, output_tokens=100.0)
    live = Live(ClusterReason.METRICS_AVAILABLE, "measured", figures)
    assert with_carried(STATE, NO_SPECULATION, live).entry.profile == PROFILE
    assert asked == [live_conditions(PROFILE, figures, ())(NO_SPECULATION)]
