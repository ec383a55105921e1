"""A rate that is served is no saturation, whatever the profile says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.profile import Conditions, Profile
from breakeven.profile.credit import credited, with_steps_times
from sweeps import closed

EAGLE = Arm("eagle3", 3)
AS_MEASURED = Conditions()


def profile(ceiling_rps: float | None = None) -> Profile:
    """No speculation saturates at 14.3 rps, eagle3 at 28.7, or at a ceiling below."""
    rows = closed("none", 0, 1.2, 0.07, noise=0.01)
    rows += closed("eagle3", 3, 0.35, 1 / 28.7, noise=0.01, clients=(1, 2, 4, 8, 16))
    found = fit_points(rows)
    none, eagle = found.arms
    return replace(found, arms=(none, replace(eagle, measured_saturation_rps=ceiling_rps)))


def test_a_rate_below_saturation_changes_nothing():
    before = profile()
    assert credited(before, EAGLE, 22.0, 5.0, AS_MEASURED) is before


def test_steps_as_long_as_before_leave_the_profile_whose_curves_are_known():
    before = profile()
    assert with_steps_times(before, EAGLE, 1.0) is before
    assert with_steps_times(before, EAGLE, 1.1).steps != before.steps


def test_a_carried_rate_lifts_a_ceiling_and_leaves_the_law():
    before = profile(19.0)
    assert before.predict(EAGLE, rps=20.0).saturated
    after = credited(before, EAGLE, 20.0, 1.2, AS_MEASURED)
    assert not after.predict(EAGLE, rps=20.0).saturated
    assert after.predict(EAGLE, rps=20.0).latency_s == profile().predict(EAGLE, rps=20.0).latency_s
    assert after.steps == before.steps
    assert after.predict(EAGLE, rps=21.2).saturated, "what was not carried is not promised"
    assert after.arm(NO_SPECULATION) is before.arm(NO_SPECULATION)


@pytest.mark.parametrize("conditions", [AS_MEASURED, Conditions(output_tokens=300.0)])
def test_a_rate_beyond_the_law_has_the_latency_that_was_measured(conditions):
    rows = closed("none", 0, 1.2, 0.07, noise=0.01, output_tokens=200.0)
    before = fit_points(rows)
    after = credited(before, NO_SPECULATION, 16.0, 9.0, conditions)
    found = after.predict(
        NO_SPECULATION, rps=16.0, conditions=Conditions(output_tokens=conditions.output_tokens)
    )
    assert found.latency_s == pytest.approx(9.0, rel=0.01)
    assert found.utilisation < 1
    assert found.outside_measured
