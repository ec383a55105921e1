"""Measured latency overrules the profile only when it was measured often enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.deciding import DecisionMemory, Decisions
from breakeven.estimate import Estimate
from breakeven.planning.observed_load import Load
from breakeven.planning.policy import Policy
from breakeven.reasons import Reason
from breakeven_operator.reconcile.paying import pays_now, with_measured
from breakeven_operator.reconcile.verdict import STAY, Verdict
from fakes.lawmodel import ArmLaw, law_model

EAGLE = Arm("eagle3", 3, "eagle")


@pytest.mark.parametrize(
    ("windows", "measured", "overruled"),
    [
        (0, Estimate(0.35, 0.14, 0.88), False),
        (1, Estimate(0.35, 0.14, 0.88), False),
        (2, Estimate(0.10, 0.05, 0.20), False),
        (3, Estimate(0.35, 0.14, 0.88), True),
        (40, Estimate(0.90, 0.85, 0.95), True),
        (40, Estimate(1.60, 1.50, 1.70), False),
    ],
)
def test_fewer_than_three_windows_overrule_no_profile(windows, measured, overruled):
    profile = law_model({NO_SPECULATION: ArmLaw(1.0, 0.05), EAGLE: ArmLaw(0.6, 0.06, 3.0)})
    load = Load(3.0, 300.0, 900.0, inflight=2.2, latency_s=0.73)
    found = Decisions(profile, [EAGLE], Policy()).at(load, DecisionMemory(EAGLE), 1e6)
    verdict = Verdict(
        STAY, EAGLE, Reason.BELOW_BREAK_EVEN, "so", replace(found, speedup=measured), windows=windows
    )
    assert pays_now(replace(verdict, windows=0)) is True, "by the profile"
    assert pays_now(verdict) is not overruled
    assert ("by measured latency" in with_measured("so", verdict)) is overruled
