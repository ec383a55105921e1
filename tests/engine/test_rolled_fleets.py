"""Verdicts on rolls whose requests are long, whose new pods are cold and whose lengths change: by events, the truth known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fakes.judged_roll import judged
from fakes.rolled_fleet import BLOCK_S, OUTPUT, RolledShape, arms_of, mean_latency_s, rolled_fleet, work_s

# Sixteen pods: the bounds are narrow, and an error that all of them share is not lost in them.
LONG = RolledShape(60.0, 1.5, replicas=16)
SHORT = RolledShape(4.0, 1.0, inflight=3.0)
COLD = replace(SHORT, cold=0.3, cold_s=1200.0, counted=True)


def looked_at(shape, speedup, seed):
    """Once in a window and a bit."""
    return judged(shape, speedup, seed, every=4)


def words(shape, speedup, seeds=2):
    return [str(looked_at(shape, speedup, seed).ended.word.result) for seed in range(seeds)]


def test_the_simulator_has_the_exact_mean_latency_whatever_the_lengths():
    """Counters of the old pods before the roll; 60 s requests for hours scatter by some percent."""
    for cv in (0.0, 1.0):
        shape = RolledShape(4.0, cv, "regimes", inflight=5.0)
        arms = arms_of(shape, 1.3)
        assert mean_latency_s(work_s("regimes", arms.old_s), arms.rps) == pytest.approx(4.0)
        assert mean_latency_s(work_s("regimes", arms.new_s), arms.rps) == pytest.approx(4.0 / 1.3)
        pods = rolled_fleet(shape, 1.3, 5, before_s=7200.0, after_s=BLOCK_S).old
        spent, done, first, begun, stepped, tokens = (
            sum(np.nanmax(pod[name]) - np.nanmin(pod[name]) for pod in pods)
            for name in ("e2e_s", "e2e_n", "ttft_s", "started", "step_s", "generated")
        )
        assert spent / done == pytest.approx(4.0, rel=0.06)
        under_way = first / begun + (OUTPUT - 1.0) * stepped / (tokens - begun)
        assert under_way == pytest.approx(spent / done, rel=0.03)


@pytest.mark.parametrize("balanced", ["RoundRobin", "LeastRequest"])
def test_long_requests_confirm_no_arm_for_having_finished_its_short_ones_first(balanced):
    """Pods that fill and drain finish others than come: the mean latency of finished requests differs by a quarter."""
    shape = replace(LONG, balanced=balanced)
    for seed in range(3):
        one = looked_at(shape, 1.0, seed)
        assert abs(one.found.log) < 0.06
        assert one.ended.word.result not in {"Confirmed", "Disproved"}


@pytest.mark.parametrize(("speedup", "said"), [(0.8, "Disproved"), (1.3, "Confirmed")])
def test_long_requests_are_judged_all_the_same(speedup, said):
    assert words(LONG, speedup) == [said] * 2


@pytest.mark.parametrize("counted", [True, None])
@pytest.mark.parametrize("speedup", [1.0, 1.1])
def test_pods_whose_caches_fill_are_not_disproved(counted, speedup):
    """New pods begin slower by 30 %, which fades over twenty minutes; with hits counted and without."""
    shape = replace(COLD, counted=counted)
    assert set(words(shape, speedup)).isdisjoint({"Disproved", "Confirmed"})
    assert "caches are filled" in looked_at(shape, speedup, 0).ended.word.remark


def test_an_arm_that_loses_is_disproved_in_minutes_where_no_cache_can_explain_it():
    for shape, most_minutes in ((SHORT, 10.0), (replace(COLD, cold=0.0), 10.0)):
        ended = judged(shape, 0.7, 1).ended
        assert (ended.word.result, ended.minutes < most_minutes) == ("Disproved", True)
    # More than a cold pod loses.
    ended = judged(COLD, 0.5, 1).ended
    assert (ended.word.result, ended.minutes < 15.0) == ("Disproved", True)


def test_lengths_that_fall_while_a_roll_is_measured_make_no_arm_faster():
    """Prompts and answers are a quarter shorter after an hour; one replica has the comparison of before with after alone."""
    for replicas in (1, 8):
        shape = RolledShape(8.0, 1.0, replicas=replicas, drift=0.6)
        ends = [looked_at(shape, 1.0, seed) for seed in range(2)]
        assert np.mean([one.found.log for one in ends]) == pytest.approx(0.0, abs=0.06), replicas
        assert {str(one.ended.word.result) for one in ends}.isdisjoint({"Confirmed", "Disproved"}), replicas
