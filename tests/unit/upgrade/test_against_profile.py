"""The word for an engine whose past is a profile: what was not measured enough leaves it undecided."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.points.point import LoadMode, Origin, Point
from breakeven.profile import Conditions, Profile
from breakeven.upgrade.against_profile import compare_with_past
from breakeven.upgrade.record import EngineRecord, UpgradeReport, UpgradeWord
from fakes.lawful_profile import lawful_points

ARM, TOKENS, E = Arm("eagle3", 3), 64.0, 2.2
LOADS = (1.0, 8.0)


@functools.cache
def profile() -> Profile:
    laws = {NO_SPECULATION: (0.9, 0.05), ARM: (0.6, 0.02)}
    points = [
        replace(one, ttft_mean_s=0.05 * (one.mean_latency_s or 0.0), tpot_mean_s=0.015 * (one.mean_latency_s or 0.0))
        for arm, law in laws.items()
        for one in lawful_points(arm, law, E if arm.k else 1.0, prompt_tokens=TOKENS, output_tokens=TOKENS)
    ]  # fmt: skip
    return fit_points(points, provenance={"gpu": "H100"})


def window(pair: int, clients: float, **changes: Any) -> Point:
    """One that is as the profile expects it."""
    lengths = Conditions(prompt_tokens=TOKENS, output_tokens=TOKENS)
    known = profile().predict(ARM, concurrency=clients, conditions=lengths)
    one = Point(
        method="eagle3", k=3, load_mode=LoadMode.CLOSED, concurrency=clients, replicate=str(pair), origin=Origin("a trial", 1), mean_latency_s=1.0,
        prompt_tokens=TOKENS, output_tokens=TOKENS, tokens_per_step=E, drafts=1000.0, requests=100.0, failed=0.0,
        accept=(0.6, 0.4, 0.2), tpot_mean_s=known.tpot_s, ttft_mean_s=known.ttft_s,
    )  # fmt: skip
    return replace(one, **changes)


def compared(*windows: Point) -> UpgradeReport:
    return compare_with_past(profile(), ARM, EngineRecord(windows=windows))


def test_windows_as_the_profile_expects_them_lose_nothing():
    report = compared(*(window(pair, load) for pair in range(1, 9) for load in LOADS))
    words = {one.word for one in report.findings if "time" in one.figure}
    assert words <= {UpgradeWord.SAME, UpgradeWord.UNDECIDED}
    assert report.word.status != 1


def test_a_profile_without_bounds_of_tokens_per_step_leaves_them_uncompared():
    bare = tuple(
        replace(fit, acceptance=fit.acceptance and replace(fit.acceptance, tokens_per_step_ci=None))
        for fit in profile().arms
    )
    report = compare_with_past(replace(profile(), arms=bare), ARM, EngineRecord(windows=(window(1, 1.0),)))
    assert any("the profile has no bounds of them" in one.sentence for one in report.findings)


def test_latencies_are_expected_at_the_lengths_that_the_windows_had():
    lengths = Conditions(prompt_tokens=4 * TOKENS, output_tokens=TOKENS)
    known = profile().predict(ARM, concurrency=8.0, conditions=lengths)
    report = compared(*(window(pair, 8.0, prompt_tokens=4 * TOKENS) for pair in range(1, 9)))
    (found,) = [one for one in report.findings if one.figure == "time to first token at 8 clients"]
    assert found.before == pytest.approx(known.ttft_s, rel=1e-3)


@pytest.mark.parametrize(("pairs", "changes"), [(1, {}), (8, {"flag": "DriverLagging"})])
def test_a_load_without_enough_windows_is_not_called_the_same(pairs, changes):
    """Tokens per step were compared, and the latency at eight clients was not."""
    alone, together = (
        [window(1 + pair, load, **more) for pair in range(pairs)]
        for load, more in zip(LOADS, ({}, changes), strict=True)
    )
    report = compared(*alone, *together)
    found = {one.figure: one for one in report.findings}
    assert found["tokens per step"].word is UpgradeWord.SAME
    assert found["time per output token at 8 clients"].word is UpgradeWord.UNDECIDED
    assert report.word is UpgradeWord.UNDECIDED
    assert "time per output token at 8 clients: at least 2 pairs of windows" in str(report.needs)
