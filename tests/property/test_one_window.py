"""Counters become figures in one place: what five places made of the same counters before, written out here, and where they differed."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from breakeven.load_driver.counters import between
from breakeven.serving.counted_window import Load
from breakeven.serving.growths import EngineLimits, Growths
from draws import draws

COUNTERS = ("completed", "started", "e2e_n", "output_n", "e2e_s", "ttft_s", "generated", "steps", "step_s", "prompt_tokens", "output_tokens", "drafts")  # fmt: skip
counts = st.one_of(st.just(0.0), st.floats(0.01, 1e6))
changes = st.floats(-20.0, 20.0)
pods = st.builds(
    lambda counted, gauges, accepted, span_s: Growths(
        counted | gauges, dict(enumerate(accepted)), span_s
    ),
    st.fixed_dictionaries({}, optional=dict.fromkeys(COUNTERS, counts)),
    st.fixed_dictionaries(
        {"running": st.floats(0.0, 64.0), "waiting": st.floats(0.0, 9.0), "waiting_min": st.sampled_from([0.0, 1.0])},
        optional={"running_growth": changes, "waiting_growth": changes},
    ),
    st.lists(counts, max_size=4),
    st.sampled_from([300.0, 120.0, 0.0]),
)  # fmt: skip
fleets = st.lists(pods, min_size=1, max_size=3)


def total(fleet, name):
    """Sum over the pods that count it; None: none does."""
    found = [pod.stats[name] for pod in fleet if name in pod.stats]
    return sum(found) if found else None


def ratio(part, whole):
    return part / whole if part is not None and whole else None


def offered(stats):
    """Requests that were asked for, of one pod."""
    begun, finished = stats.get("started"), stats.get("completed")
    if finished is not None:
        finished += stats.get("running_growth", 0.0)
    known = [count for count in (begun, finished) if count is not None]
    return max(max(known) + stats.get("waiting_growth", 0.0), 0.0) if known else 0.0


def tokens_per_step(fleet):
    made, begun, steps = (total(fleet, name) for name in ("generated", "started", "steps"))
    return None if made is None or begun is None else ratio(max(made - begun, 0.0), steps)


def close(found, expected):
    return found is expected if expected is None else found == pytest.approx(expected, rel=1e-9, abs=1e-9)


@draws(150)
@given(fleets)
def test_means_are_ratios_of_sums_over_pods(fleet):
    """The operator's, the agenda's and the doctor's were these."""
    seen = Load.of(fleet)
    assert close(seen.latency_s, ratio(total(fleet, "e2e_s"), total(fleet, "e2e_n")))
    assert close(seen.ttft_s, ratio(total(fleet, "ttft_s"), total(fleet, "started")))
    assert close(seen.step_s, ratio(total(fleet, "step_s"), total(fleet, "steps")))
    assert close(seen.prompt_tokens, ratio(total(fleet, "prompt_tokens"), total(fleet, "output_n")))
    assert close(seen.requests, total(fleet, "completed") or 0.0)
    in_flight = total(fleet, "running") + total(fleet, "waiting")
    assert close(seen.inflight, in_flight / len(fleet))
    assert seen.saturated is all(pod.stats["waiting_min"] > 0 for pod in fleet)


@draws(150)
@given(fleets)
@example([Growths({"started": 100.0}, span_s=300.0), Growths({"completed": 100.0}, span_s=300.0)])
def test_load_is_the_sum_of_what_each_pod_was_asked_for(fleet):
    """The operator's was this. The agenda took the larger sum, the doctor left out what was added to those in the engine."""
    rates = [offered(pod.stats) / pod.span_s for pod in fleet if pod.span_s > 0]
    seen = Load.of(fleet)
    assert close(seen.total_rps, sum(rates))
    assert close(seen.rps, sum(rates) / len(fleet))


@draws(150)
@given(fleets, st.sampled_from([None, 1.0, 4.0]))
def test_a_step_makes_between_one_token_and_what_the_arm_can_make(fleet, most):
    """The operator's was this. The agenda and the doctor knew no bounds, and the load driver no lower one."""
    e = tokens_per_step(fleet)
    expected = None if e is None else min(max(e, 1.0), most or math.inf)
    assert close(Load.of(fleet, EngineLimits(tokens_per_step=most)).tokens_per_step, expected)


@draws(150)
@given(fleets)
def test_time_per_token_is_that_of_finished_requests_or_unknown(fleet):
    """The doctor's divided by the tokens of requests that clients cut short, and said 0 where the operator's was below 0."""
    first_s, finished = Load.of(fleet).ttft_s, total(fleet, "e2e_n")
    tokens, answers = total(fleet, "output_tokens"), total(fleet, "output_n")
    known = None not in (first_s, finished, tokens, answers) and finished > 0 and tokens > answers
    left_s = (total(fleet, "e2e_s") or 0.0) - first_s * finished if known else 0.0
    assume(abs(left_s) > 1e-6 or not known)
    assert close(Load.of(fleet).tpot_s, left_s / (tokens - answers) if known and left_s > 0 else None)


@draws(150)
@given(fleets)
def test_accepted_tokens_count_by_position_and_together(fleet):
    """The agenda's was the sum, the others' by position."""
    seen, drafts = Load.of(fleet), total(fleet, "drafts")
    at = [sum(pod.accepted.get(place, 0.0) for pod in fleet) for place in range(4)]
    assert close(seen.accepted_per_draft, ratio(sum(at), drafts) or 0.0)
    assert len(seen.survival) == (max(len(pod.accepted) for pod in fleet) if drafts else 0)
    assert all(close(share, count / drafts) for share, count in zip(seen.survival, at, strict=False))


def test_a_position_that_was_not_counted_ends_the_list():
    """The operator's and the doctor's put the next position in its place, and the load driver's a zero."""
    seen = Load.of([Growths({"drafts": 100.0}, {0: 80.0, 2: 20.0})])
    assert seen.survival == (0.8,)


@draws(150)
@given(pods, st.sampled_from([1.0, 4.0]))
def test_the_load_drivers_two_pages_are_a_window(pod, most):
    stats = {
        name: pod.stats[name] for name in ("generated", "started", "steps", "drafts") if name in pod.stats
    }
    late = Growths(stats, dict(enumerate(pod.accepted.values())))
    early = Growths(dict.fromkeys(stats, 0.0))
    found = between(early, late, EngineLimits(tokens_per_step=most))
    e = tokens_per_step([pod])
    assert close(found.tokens_per_step, None if e is None else min(max(e, 1.0), most))
    assert found.drafts == pod.stats.get("drafts")
    drafted = found.drafts or 0.0
    assert found.survival == (tuple(count / drafted for count in pod.accepted.values()) if drafted else ())
