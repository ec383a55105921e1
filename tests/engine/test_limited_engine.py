"""An engine that takes few requests into a step: the law with its limit follows the queue, which no row showed."""

from __future__ import annotations

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.points.point import LoadMode, Point
from validation.second_engine import Asking, BatchingMachine, arrivals, drawn, served
from validation.step_clocks import DenseClock, Drafting

SEATS = 8
MACHINE = BatchingMachine(DenseClock(0.001, 0.006, 6e-5, 5e-8, Drafting(1.4e-3, 6e-4, 6e-6)), SEATS, 4096)
ARMS = {0: NO_SPECULATION, 3: Arm("eagle3", 3)}


def measured(k, load, requests=4000, seed=1, limit=None):
    """The point of so many clients (a whole number), or of a rate (1/s)."""
    asked = drawn(Asking(300, 120, acceptance=0.55), requests, seed)
    closed = isinstance(load, int)
    course = served(MACHINE, k, asked, load if closed else arrivals(load, requests, seed))
    kept = slice(requests // 6, -requests // 6)
    latency_s, ttft_s = (
        float(np.mean((moments - course.arrival_s)[kept])) for moments in (course.done_s, course.first_s)
    )
    return Point(
        method=ARMS[k].method,
        k=k,
        load_mode=LoadMode.CLOSED if closed else LoadMode.POISSON,
        concurrency=float(load) if closed else None,
        request_rate_rps=None if closed else load,
        mean_latency_s=latency_s,
        mean_inflight=load if closed else load * latency_s,
        window_s=100.0,
        achieved_rps=load / latency_s if closed else load,
        ttft_mean_s=ttft_s,
        prompt_tokens=float(asked.prompts[kept].mean()),
        output_tokens=float(asked.outputs[kept].mean()),
        output_tokens_sq=float(np.mean(asked.outputs[kept] ** 2.0)),
        tokens_per_step=float((asked.outputs[kept] - 1).sum() / course.steps[kept].sum()) if k else None,
        max_num_seqs=limit,
    )


@pytest.fixture(scope="module")
def laws():
    """Without the limit and with it, fitted to the same loads; no row has more clients than seats."""
    rates = {k: measured(k, SEATS).achieved_rps for k in ARMS}
    rows = [measured(k, load) for k in ARMS for load in (1, 2, 4, 8, 0.3 * rates[k], 0.6 * rates[k])]
    limited = [measured(row.k, row.load.clients or row.load.rps, limit=float(SEATS)) for row in rows]
    return fit_points(rows), fit_points(limited)


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("clients", [6, 12, 40])
def test_clients_beyond_the_limit_wait_in_a_queue(laws, k, clients):
    true = measured(k, clients, 6000, 9)
    unlimited, limited = (law.predict(ARMS[k], concurrency=clients) for law in laws)
    assert limited.latency_s == pytest.approx(true.mean_latency_s, rel=0.03)
    assert limited.latency_ci_s[0] < true.mean_latency_s < limited.latency_ci_s[1]
    if clients > SEATS:
        assert unlimited.latency_s < 0.8 * true.mean_latency_s


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("share", [0.5, 0.75])
def test_rates_near_the_rate_of_full_steps_queue(laws, k, share):
    _, limited = laws
    full = measured(k, SEATS, 6000, 9).achieved_rps
    found = limited.predict(ARMS[k], rps=share * full)
    assert limited.curve(ARMS[k]).saturation_rps == pytest.approx(full, rel=0.04)
    assert found.latency_s == pytest.approx(measured(k, share * full, 20_000, 9).mean_latency_s, rel=0.08)


def test_latency_rises_steadily_through_the_limit(laws):
    _, limited = laws
    curve = limited.curve(NO_SPECULATION)
    for closed in (True, False):
        others = np.linspace(0.0, 4.0 * SEATS, 400)
        latencies = np.array([curve.loop_latency_s(n, closed=closed) for n in others])
        steps = np.diff(latencies)
        assert (steps >= 0).all()
        assert steps.max() < 0.03 * latencies[0] + 2.0 * np.median(steps)
    at_limit = curve.loop_latency_s(SEATS - 1.0, closed=True)
    # Beyond it as many are answered a second.
    assert curve.loop_latency_s(2.0 * SEATS - 1.0, closed=True) == pytest.approx(2.0 * at_limit, rel=0.01)


def test_an_arm_pays_at_a_rate_that_full_steps_carry_with_it_alone(laws):
    _, limited = laws
    beyond = 1.05 * limited.curve(NO_SPECULATION).saturation_rps
    found = limited.compare(ARMS[3], rps=beyond)
    assert (found.speedup, found.against_saturated, found.saturated) == (np.inf, True, False)
    assert (
        limited.predict(ARMS[3], rps=beyond).latency_s > limited.predict(ARMS[3], rps=0.5 * beyond).latency_s
    )


def test_the_document_holds_the_limit_where_one_is_known(laws):
    unlimited, limited = (law.document()["steps"] for law in laws)
    assert "max_num_seqs" not in unlimited
    assert limited["max_num_seqs"] == SEATS
