"""Laws of a past's windows: growths are the true ones whatever began again, and no order matters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.past.clustering import arm_past
from breakeven.past.courses import POD, RESETS, PodCourse, TimeGrid, courses
from breakeven.past.pod_facts import PodFacts, kind_of
from breakeven.past.steady import WindowWord, cut
from breakeven.readers.prometheus import Samples, TimedValue
from fakes.past_courses import BEGIN_S, STEP_S, grid_of, lawful

WINDOWS = 12
RATES = st.lists(st.floats(0.05, 8.0), min_size=WINDOWS, max_size=WINDOWS).map(np.array)


def windows_of(*pods: PodCourse):
    return cut(
        grid_of(WINDOWS),
        pods,
        lambda one: kind_of("m", bool(one.accepted), one.longest_draft, PodFacts(), None),
    )


def restarted(pod: PodCourse, ends: set[int]) -> PodCourse:
    """The pod with counters that begin again within the windows that end at some times."""
    stats = {name: values.copy() for name, values in pod.stats.items()}
    for end in ends:
        for name, values in pod.stats.items():
            if not name.startswith(("running", "waiting")) and name not in {RESETS, "samples"}:
                # The process began in the middle of the window.
                stats[name][end:] -= 0.5 * (values[end] + values[end - 1])
        stats[RESETS][end] = 1.0
    return replace(pod, stats=stats)


@given(RATES, st.sets(st.integers(1, WINDOWS)))
def test_windows_have_the_true_rates_however_often_counters_begin_again(rates, ends):
    found = windows_of(restarted(lawful(rates), ends))
    assert found.dropped[WindowWord.COUNTER_RESET] == len(ends)
    whole = {BEGIN_S + at * STEP_S for at in range(1, WINDOWS + 1) if at not in ends}
    seen = {one.end_s: one for one in found.windows}
    # A load that jumps is no steady window, and no other window is lost.
    assert whole - set(seen) <= {
        BEGIN_S + at * STEP_S
        for at in range(1, WINDOWS + 1)
        if at > 1 and abs(rates[at - 1] - rates[at - 2]) > 0.5
    }
    for end_s, one in seen.items():
        rate = rates[(end_s - BEGIN_S) // STEP_S - 1]
        assert one.total.latency_s == pytest.approx(2.0 / (1.0 - 0.1 * rate))
        assert one.met_inflight == pytest.approx(rate * 2.0 / (1.0 - 0.1 * rate))


@given(RATES, st.randoms(use_true_random=False), st.integers(0, 3))
def test_the_order_of_series_and_pods_does_not_matter(rates, random, k):
    grid = grid_of(WINDOWS)
    pods = [lawful(rates, f"chat-7d9f8b6c5d-{letter * 5}", k=k) for letter in "bcd"]
    answers = [(stat, list(series)) for pod in pods for stat, series in answered(pod, grid)]
    first = courses(grid, answers)
    random.shuffle(answers)
    assert [one.name for one in courses(grid, answers)] == [one.name for one in first]
    before, after = windows_of(*first), windows_of(*random.sample(first, len(first)))
    assert (before.dropped, before.windows) == (after.dropped, after.windows)
    if before.windows:
        shuffled = random.sample(before.windows, len(before.windows))
        rows, again = (arm_past(one, "eagle3", "w").points for one in (before.windows, shuffled))
        assert [one.mean_latency_s for one in rows] == [one.mean_latency_s for one in again]


def answered(pod: PodCourse, grid):
    """The pod's course as answers of a Prometheus: a series for each statistic, without what is not there."""
    own = dict(zip(POD, pod.name, strict=True))
    for stat, values in pod.stats.items():
        yield stat, [Samples(own, samples(values, grid))]
    for position, values in pod.accepted.items():
        yield "accepted", [Samples(own | {"position": str(position)}, samples(values, grid))]


def samples(values, grid):
    times = (grid.first_s + at * grid.step_s for at in range(grid.times))
    return tuple(
        TimedValue(float(time_s), float(value))
        for time_s, value in zip(times, values, strict=True)
        if not np.isnan(value)
    )


@given(st.integers(0, 10**6), st.integers(1, 3600), st.integers(2, 500), st.integers(-(10**6), 10**7))
def test_a_grid_since_a_time_holds_that_time_on_the_same_steps(begin, step_s, times, time_s):
    grid = TimeGrid(begin * step_s, step_s, times)
    found = grid.since(time_s)
    assert found.last_s == grid.last_s
    assert found.times >= 2
    assert (found.first_s - grid.first_s) % step_s == 0
    assert grid.first_s <= found.first_s
    assert found.first_s <= max(time_s, grid.first_s) or found.times == 2
    assert found.times == 2 or time_s < found.first_s + step_s
