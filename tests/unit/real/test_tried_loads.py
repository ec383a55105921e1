"""Loads of a run of the real engine, and the arms that its laws ask for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.profile import Conditions
from fakes.core_profile import DRAFTER, LOOKUP
from real.served_model import random_words
from real.tried_loads import RunError, best_at, decision_rps, most_promising, unfitted


def test_probes_lie_between_the_loads_that_were_fitted_and_at_other_lengths(profile):
    fitted = {round(row.rps, 6) for row in profile.arm(NO_SPECULATION).measurements}
    probes = unfitted(profile, random_words(Path()))
    assert len({what for what, _ in probes}) == len(probes) == 4
    saturation_rps = profile.arm(NO_SPECULATION).saturation_rps
    for _, load in probes:
        assert round(load.rps, 6) not in fitted
        assert 0.15 * saturation_rps < load.rps < 0.75 * saturation_rps
    assert {(load.shape.prompt_tokens, load.shape.output_tokens) for _, load in probes} == {
        (48, 48), (144, 48), (48, 96),
    }  # fmt: skip


def test_no_load_is_beyond_what_an_engine_takes_at_a_time(profile):
    """An engine that queues, beside one that starts, cannot drain in its time: users lose requests."""
    served = replace(random_words(Path()), max_batch=2)
    most_rps = 2 / profile.predict(NO_SPECULATION, concurrency=2).latency_s
    assert most_rps < 0.5 * profile.arm(NO_SPECULATION).saturation_rps
    assert decision_rps(profile, served) == pytest.approx(0.3 * most_rps)
    assert all(load.rps <= 0.6 * most_rps for _, load in unfitted(profile, served))


def test_a_block_is_long_enough_for_the_latency_that_is_predicted(profile):
    served = random_words(Path())
    short = replace(served, pace=replace(served.pace, block_s=1.0))
    for _, load in unfitted(profile, short):
        shape = load.shape
        latency_s = profile.predict(
            NO_SPECULATION,
            rps=load.rps,
            conditions=Conditions(prompt_tokens=shape.prompt_tokens, output_tokens=shape.output_tokens),
        ).latency_s
        assert load.seconds == pytest.approx(load.warmup_s + 2.5 * latency_s)
    assert {load.seconds for _, load in unfitted(profile, served)} == {served.pace.block_s}


def test_asked_for_is_the_fastest_arm_and_who_is_no_slower_than_the_operator_can_tell(profile):
    arms = [fit.arm for fit in profile.arms]
    assert best_at(profile, arms, 2.0) == {LOOKUP.name}
    assert best_at(profile, [NO_SPECULATION, DRAFTER], 2.0) == {"none"}


def test_a_load_that_no_arm_carries_is_one_line(profile):
    with pytest.raises(RunError, match=r"50\.00 rps: every arm with a law is saturated"):
        best_at(profile, [NO_SPECULATION, LOOKUP], 50.0)


def test_no_speculation_may_stay_where_the_fastest_is_not_surely_faster(profile):
    unsure = SimpleNamespace(
        predict=profile.predict, compare=lambda *_, **__: SimpleNamespace(speedup_ci=(0.9, 3.0))
    )
    assert best_at(unsure, [fit.arm for fit in profile.arms], 2.0) == {LOOKUP.name, "none"}


def test_the_most_promising_arm_is_the_fastest_that_drafts(profile):
    assert most_promising(profile, random_words(Path())) == LOOKUP
    lone = SimpleNamespace(arms=profile.arms[:1], arm=profile.arm, predict=profile.predict)
    with pytest.raises(RunError, match="no arm beside none"):
        most_promising(lone, random_words(Path()))
