"""Windows of a past: those of a steady state count, and each other one has its word."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from breakeven.past.courses import NOW, RESETS, SAMPLES, PodCourse
from breakeven.past.pod_facts import PodFacts, kind_of
from breakeven.past.steady import MEANINGS, CutPast, WindowWord, cut
from fakes.past_courses import C1_S, C2_S, grid_of, lawful

RATES = np.full(6, 1.0)
AT = 3
"""Time at which something is changed: the window that ends there is the third."""


def cut_of(*pods: PodCourse) -> CutPast:
    kinds = {
        one.name: kind_of(
            one.name.model, one.values("drafts") is not None, one.longest_draft, PodFacts(), None
        )
        for one in pods
    }
    return cut(grid_of(RATES.size), pods, lambda one: kinds[one.name])


def changed(pod: PodCourse, *names: str, to=None, add=None, since=AT, until=AT + 1) -> PodCourse:
    stats = {name: values.copy() for name, values in pod.stats.items()}
    for name in names:
        values = stats[name][since:until]
        stats[name][since:until] = to if add is None else values + add
    return replace(pod, stats=stats)


def test_windows_have_the_figures_of_the_law():
    found = cut_of(lawful(RATES), lawful(RATES, "chat-7d9f8b6c5d-ccccc"))
    assert len(found.windows) == RATES.size
    assert not found.dropped
    for one in found.windows:
        assert one.pods == 2
        # Less one request of the window: by chance, a pod with more of them weighs more.
        assert one.met_rps == pytest.approx(1.0, rel=3e-3)
        assert one.met_inflight == pytest.approx(C1_S / (1.0 - C2_S), rel=3e-3)
        assert one.total.latency_s == pytest.approx(C1_S / (1.0 - C2_S))


@pytest.mark.parametrize(
    ("word", "change"),
    [
        (WindowWord.COUNTER_RESET, lambda pod: changed(pod, RESETS, to=1.0)),
        (WindowWord.COUNTER_RESET, lambda pod: changed(pod, "generated", add=-150_000.0, until=None)),
        (WindowWord.SCRAPES_MISSING, lambda pod: changed(pod, SAMPLES, to=9.0)),
        (WindowWord.SERIES_MISSING, lambda pod: changed(pod, "e2e_s", to=math.nan)),
        (WindowWord.SERIES_NOT_A_NUMBER, lambda pod: changed(pod, "e2e_s", to=math.inf)),
        (WindowWord.SERIES_IMPOSSIBLE, lambda pod: changed(pod, "steps", add=90_000.0, until=None)),
        (WindowWord.TOO_FEW_REQUESTS, lambda pod: changed(pod, "completed", "e2e_n", "output_n", "started", add=-597.0, until=None)),
        (WindowWord.CLIENTS_GIVE_UP, lambda pod: changed(pod, "started", add=100.0, until=None)),
        (WindowWord.PREEMPTING, lambda pod: changed(pod, "preemptions", add=3.0, until=None)),
        (WindowWord.SATURATED, lambda pod: changed(pod, "waiting_min", "waiting", to=2.0)),
        (WindowWord.QUEUE_MOVED, lambda pod: changed(pod, f"waiting{NOW}", add=40.0, until=None)),
        (WindowWord.QUEUE_MOVED, lambda pod: changed(pod, f"running{NOW}", add=-20.0, until=None)),
        (WindowWord.NOT_STEADY, lambda pod: changed(pod, "running", to=9.0)),
    ],
)  # fmt: skip
def test_a_window_that_is_not_steady_has_its_word(word, change):
    before = lawful(RATES)
    if word is WindowWord.QUEUE_MOVED:
        before = changed(before, f"waiting{NOW}", f"running{NOW}", add=50.0, since=0, until=None)
    found = cut_of(change(before))
    assert found.dropped[word] >= 1
    assert set(found.dropped) == {word}
    assert len(found.windows) == RATES.size - found.dropped[word]
    assert word in MEANINGS


@pytest.mark.parametrize(("off", "steady"), [(1.3, True), (1.4, False)])
def test_requests_that_last_half_a_window_may_miss_little_s_law_by_a_third(off, steady):
    """All looks of such a window see the same requests, so that chance explains more."""
    pod = changed(lawful(RATES, c1_s=300.0, c2_s=0.0), "running", to=300.0 * off)
    assert (not cut_of(pod).dropped) is steady


def test_what_is_missing_and_what_contradicts_is_named():
    pod = lawful(RATES)
    assert cut_of(changed(pod, "e2e_s", to=math.nan)).missing == {"e2e_s"}
    assert "tokens" in cut_of(changed(pod, "steps", add=90_000.0, until=None)).contradiction


def test_a_pod_that_comes_or_goes_ends_the_window_for_all():
    # The new one is there from the third time on; the old one is seen for a part of the fifth window.
    new = lawful(RATES, "chat-64bd5fcf9-zzzzz", first=3)
    old = changed(lawful(RATES, last=4), SAMPLES, to=6.0, since=5, until=6)
    found = cut_of(lawful(RATES, "chat-7d9f8b6c5d-ccccc"), old, new)
    assert found.dropped == {WindowWord.PODS_CHANGED: 2}
    assert [one.pods for one in found.windows] == [2, 2, 3, 2]


def test_pods_of_two_arms_are_windows_of_their_own():
    found = cut_of(lawful(RATES), lawful(RATES, "chat-64bd5fcf9-zzzzz", k=3))
    assert sorted((one.end_s, one.kind.k) for one in found.windows) == sorted(
        (end_s, k) for end_s in {one.end_s for one in found.windows} for k in (0, 3)
    )
    assert len(found.windows) == 2 * RATES.size


def test_a_request_counts_where_it_was_served():
    # One pod serves three times as much: its load is what most requests met.
    found = cut_of(lawful(3.0 * RATES), lawful(RATES, "chat-7d9f8b6c5d-ccccc"))
    inflight = [rate * C1_S / (1.0 - C2_S * rate) for rate in (3.0, 1.0)]
    met = (3.0 * inflight[0] + inflight[1]) / 4.0
    assert found.windows[0].met_inflight == pytest.approx(met, rel=1e-3)
    assert found.windows[0].total.latency_s == pytest.approx(C1_S + C2_S * met)
