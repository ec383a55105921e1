"""Which of no speculation, a fixed length, the schedule and adaptive verification: the lines, the words, and when they are shown."""

from __future__ import annotations

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.reporting.lines import ArmCurve, kinds_over_load, which_kind

SHORT, LONG = Arm("mtp", 2), Arm("mtp", 7)
TABLE = Arm("mtp", 7, scheduled=True)
ADAPTIVE = Arm("mtp", 7, scheduled=True, adaptive=True)
RPS = np.linspace(0.0, 10.0, 101)


def curve(arm: Arm, lone_s: float, slope: float, until_rps: float = 10.0) -> ArmCurve:
    """An arm whose latency rises with the load."""
    rps = RPS[until_rps + 1e-9 >= RPS]
    nothing = np.full(rps.size, np.nan)
    latency_s = lone_s + slope * rps
    return ArmCurve(
        arm, rps, latency_s, latency_s, latency_s, nothing, nothing, nothing, nothing[:0], nothing[:0], nothing[:0],
        until_rps, None, (None, None),
    )  # fmt: skip


CURVES = (
    curve(NO_SPECULATION, 2.0, 0.10),
    curve(SHORT, 1.2, 0.10),
    curve(LONG, 1.0, 0.40, until_rps=8.0),
    curve(TABLE, 1.1, 0.09),
    curve(ADAPTIVE, 1.08, 0.05),
)


def test_one_fixed_length_stands_for_all_beside_the_kinds_that_follow_the_load():
    assert [kind.arm for kind in kinds_over_load(CURVES)] == [NO_SPECULATION, SHORT, TABLE, ADAPTIVE]


def test_each_is_held_against_the_fastest_of_all_arms_at_its_load():
    kinds = {kind.arm: kind for kind in kinds_over_load(CURVES)}
    assert kinds[ADAPTIVE].longer[0] == pytest.approx(0.08)
    assert kinds[SHORT].longer[0] == pytest.approx(0.2)
    assert kinds[ADAPTIVE].longer[-1] == 0.0
    assert kinds[NO_SPECULATION].longer[-1] == pytest.approx(3.0 / 1.58 - 1.0)


def test_the_words_say_what_each_loses_at_light_load_and_gains_at_heavy_load():
    light, heavy = which_kind(kinds_over_load(CURVES), (0.0, 10.0)).split(". ")
    assert light == (
        "At light load (0 rps) mtp/adaptive takes 8 % longer, mtp/schedule takes 10 % longer, mtp/2 takes 20 % longer, "
        "no speculation takes 100 % longer"
    )
    assert heavy.startswith(
        "At heavy load (10 rps) mtp/adaptive is the fastest, mtp/schedule takes 27 % longer"
    )


def test_an_arm_beyond_its_saturation_is_called_saturated():
    kinds = kinds_over_load((CURVES[0], CURVES[2], CURVES[4]))
    assert "mtp/7 is saturated" in which_kind(kinds, (0.0, 9.0))


def test_without_adaptive_verification_nothing_is_shown():
    assert kinds_over_load(CURVES[:4]) == []
