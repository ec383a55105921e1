"""Laws of the sweep: whatever the engine, it ends, stays below saturation, and may be cut anywhere."""

from __future__ import annotations

import random
from itertools import pairwise, takewhile

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from breakeven.load_driver.course import Sweep
from breakeven.load_driver.design import (
    EXTRA_ATTEMPTS,
    HIGHEST_UTILISATION,
    Finished,
    SweepSettings,
    SweepStep,
    next_step,
    planned_rates,
)
from breakeven.load_driver.measuring import residual_lengths, send_offsets
from breakeven.load_driver.window import RequestRecord, mean_inflight, summarise
from breakeven.points.point import ImposedLoad, LoadMode, Point
from breakeven.reasons import Reason
from draws import draws
from sweeps import seen

laws = st.tuples(st.floats(0.05, 30.0), st.floats(0.0005, 0.5), st.floats(0.3, 1.2))
plans = st.builds(
    SweepSettings,
    loads=st.integers(3, 12),
    max_concurrency=st.integers(2, 128),
    reference_rps=st.lists(st.floats(0.1, 100.0), max_size=6).map(tuple),
)


def measure(load: ImposedLoad, law: tuple[float, float, float]) -> Point:
    """An engine that obeys its law until a share of its saturation rate, and queues beyond."""
    c1_s, c2_s, share = law
    if load.clients is not None:
        latency_s = c1_s + (load.clients - 1) * c2_s
        return seen(load, latency_s, load.clients, load.clients / latency_s, 10.0)
    ceiling_rps = min(share, 0.99) / c2_s
    if load.value > ceiling_rps:
        return seen(load, 50 * c1_s, 50.0, ceiling_rps, 10.0, Reason.SATURATED_POINT)
    latency_s = c1_s / (1 - load.value * c2_s)
    return seen(load, latency_s, load.value * latency_s, load.value, 10.0)


def sweep(
    plan: SweepSettings, law: tuple[float, float, float]
) -> tuple[list[Point], list[SweepStep], Finished]:
    measured: list[Point] = []
    steps: list[SweepStep] = []
    while isinstance(step := next_step(plan, measured), SweepStep):
        steps.append(step)
        measured.append(measure(step.load, law))
    return measured, steps, step


@draws(60)
@given(plans, laws)
def test_a_sweep_ends_and_never_aims_beyond_its_highest_utilisation(plan, law):
    measured, steps, finished = sweep(plan, law)
    assert len(measured) <= plan.loads + EXTRA_ATTEMPTS
    aimed = [step.load.rps * law[1] for step in steps if step.load.rps]
    assert all(share <= HIGHEST_UTILISATION * 1.06 for share in aimed)
    if law[2] >= 0.9:
        assert finished.complete
        assert len(measured) == plan.loads


@draws(60)
@given(plans, laws)
def test_no_load_is_measured_twice_and_none_above_a_saturated_one(plan, law):
    measured, _, _ = sweep(plan, law)
    rates = [point.load.rps for point in measured if point.load.rps]
    assert len(rates) == len(set(rates))
    for index, point in enumerate(measured):
        if Reason.SATURATED_POINT in point.flags:
            assert all(later.load.rps < point.load.rps for later in measured[index + 1 :] if later.load.rps)


@draws(60)
@given(plans, laws, st.randoms(use_true_random=False))
def test_the_order_of_what_was_measured_does_not_matter(plan, law, shuffler: random.Random):
    measured, _, _ = sweep(plan, law)
    part = measured[: shuffler.randint(0, len(measured))]
    shuffled = part[:]
    shuffler.shuffle(shuffled)
    planned, again = next_step(plan, part), next_step(plan, shuffled)
    if isinstance(planned, Finished):
        assert planned == again
    else:
        assert planned.load.mode == again.load.mode
        assert np.isclose(planned.load.value, again.load.value)


@draws(60)
@given(plans, laws)
def test_rates_are_distinct_and_ascending(plan, law):
    ends = [measure(ImposedLoad(LoadMode.CLOSED, clients), law) for clients in (1, plan.max_concurrency)]
    rates = planned_rates(plan, ends)
    assert list(rates) == sorted(set(rates))
    assert len(rates) == plan.loads - 2


@draws(60)
@given(plans, laws, st.floats(10, 3000), st.floats(0, 4000))
def test_a_step_never_plans_beyond_the_time_that_is_left(plan, law, limit_s, spent_s):
    limited = SweepSettings(loads=plan.loads, max_concurrency=plan.max_concurrency, max_seconds=limit_s)
    ends = [measure(ImposedLoad(LoadMode.CLOSED, clients), law) for clients in (1, plan.max_concurrency)]
    step = next_step(limited, ends, spent_s)
    if isinstance(step, SweepStep):
        assert spent_s + step.expected_s <= limit_s + 1e-6
    arm = ends[0].arm
    assert 0 <= Sweep((arm,), settings=limited).seconds_left(ends, spent_s) <= max(0.0, limit_s - spent_s)


@draws(40)
@given(st.floats(0.5, 200), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_poisson_arrivals_have_their_rate_and_their_scatter(rate_rps, planned, seed):
    # Planned for the whole time, for a part of it, or not at all: an ordinary Poisson process follows the plan.
    offsets = send_offsets(ImposedLoad(LoadMode.POISSON, rate_rps), seed, planned * 4000 / rate_rps)
    times = np.array([next(offsets) for _ in range(4000)])
    gaps = np.diff(times, prepend=0.0) * rate_rps
    assert abs(gaps.mean() - 1) < 0.1
    assert abs(gaps.std() - 1) < 0.15
    assert (gaps > 0).all()
    # A quarter of the time holds a quarter of the arrivals, give or take what chance allows.
    assert abs(np.searchsorted(times, 1000 / rate_rps) - 1000) < 200


@draws(40)
@given(st.floats(0.5, 200), st.floats(0.1, 100), st.integers(0, 2**32 - 1))
def test_a_planned_time_holds_as_many_arrivals_as_the_rate_says(rate_rps, over_s, seed):
    offsets = send_offsets(ImposedLoad(LoadMode.POISSON, rate_rps), seed, over_s)
    held = sum(1 for _ in takewhile(lambda at_s: at_s < over_s, offsets))
    assert held == round(rate_rps * over_s)


@draws(40)
@given(st.floats(0.5, 200), st.floats(0.5, 200), st.integers(0, 2**32 - 1))
def test_one_seed_gives_arms_the_same_arrivals_stretched(slow_rps, fast_rps, seed):
    slow, fast = (
        send_offsets(ImposedLoad(LoadMode.POISSON, rate), seed, 250 / rate) for rate in (slow_rps, fast_rps)
    )
    for _ in range(300):
        assert np.isclose(next(slow) * slow_rps, next(fast) * fast_rps)


@draws(40)
@given(st.integers(1, 200), st.integers(2, 2000))
def test_a_population_met_in_mid_flight_has_half_its_tokens_to_go(count, output_tokens):
    lengths = residual_lengths(count, (output_tokens,))
    assert len(lengths) == count
    assert all(1 <= length <= output_tokens for length in lengths)
    assert lengths == sorted(lengths, reverse=True)
    assert abs(sum(lengths) / count - output_tokens / 2) <= 0.51 + 0.5


@draws(40)
@given(st.lists(st.integers(1, 2000), min_size=1, max_size=50))
def test_long_answers_are_met_in_mid_flight_more_often_than_short_ones(output_tokens):
    """Renewal theory: what is left of a request met at a random instant is E[g^2] / (2 E[g]) on average."""
    count = 400
    rests = residual_lengths(count, output_tokens)
    squares, total = sum(g * g for g in output_tokens), sum(output_tokens)
    assert max(rests) <= max(output_tokens)
    assert abs(sum(rests) / count - squares / total / 2) <= 1.0 + 0.01 * max(output_tokens)


intervals = st.lists(st.tuples(st.floats(0, 50), st.floats(0.01, 20)), min_size=1, max_size=40)


def records_of(spans: list[tuple[float, float]]) -> list[RequestRecord]:
    return [
        RequestRecord(sent, sent, sent + length / 2, sent + length, 10, 20) for sent, length in sorted(spans)
    ]


@draws(80)
@given(intervals, st.floats(0, 30), st.floats(1, 30))
def test_inflight_equals_counting_at_every_instant(spans, start_s, seconds):
    records = records_of(spans)
    end_s = start_s + seconds
    edges = sorted(
        {start_s, end_s, *(t for r in records for t in (r.sent_s, r.done_s) if start_s < t < end_s)}
    )
    counted = sum(
        (b - a) * sum(r.sent_s <= (a + b) / 2 < r.done_s for r in records) for a, b in pairwise(edges)
    )
    assert np.isclose(mean_inflight(records, start_s, end_s), counted / seconds, atol=1e-9)


@draws(80)
@given(intervals, st.floats(1, 30))
def test_statistics_keep_the_order_of_quantiles_and_the_sum_of_phases(spans, seconds):
    seen = summarise(records_of(spans), 0.0, seconds)
    assume(seen is not None)
    assert seen.latency.p50_s <= seen.latency.p95_s <= seen.latency.p99_s
    total = seen.ttft.mean_s + (seen.output_tokens - 1) * seen.tpot.mean_s
    assert np.isclose(total, seen.latency.mean_s)
