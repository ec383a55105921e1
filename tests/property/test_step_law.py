"""Laws of the step law: its special cases are exact, its two views agree, and its derivatives are those of its figures."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.laws.step_law import SENSITIVE, CostsOfSteps, Demand, Tier, step_s, step_sensitivities
from breakeven.laws.step_queue import Together, closed_loop
from breakeven.profile.step_fit import ArmLoads, Layout
from draws import draws

few = draws(25)
STRAIGHT = np.zeros(12)


def array(value: float) -> np.ndarray:
    return np.asarray(float(value))


def costs(**changed: float) -> CostsOfSteps:
    given_ = {
        "weights_s": 0.015,
        "position_s": 6e-5,
        "sharpness": 1.7,
        "untouched": 0.2,
        "touching": 20.0,
        "context_s": 1e-7,
        "prompt_s": 3e-5,
        "drafting_s": 1e-3,
        "draft_s": 5e-4,
        "each_draft_s": 3e-6,
        "request_s": 0.01,
        "hidden": 0.3,
        "beside_s": 0.004,
        **changed,
    }
    return CostsOfSteps(**{name: array(value) for name, value in given_.items()}, departures=STRAIGHT)


def demand(
    k: float = 0.0, e: float = 1.0, prompt: float = 512.0, output: float = 256.0, varied: float = 1.0
) -> Demand:
    tier = Tier(1, array(k), array(e))
    return Demand((tier,), array(prompt), array(output), array(prompt + output / 2), array(varied))


@few
@given(st.floats(1e-3, 0.1), st.floats(1e-5, 1e-3), st.floats(0.02, 0.9), st.floats(2.0, 400.0))
def test_a_step_linear_in_the_batch_is_processor_sharing(weights_s, position_s, share, output):
    linear = costs(
        weights_s=weights_s,
        position_s=position_s,
        sharpness=1.0,
        untouched=0.0,
        context_s=0.0,
        prompt_s=0.0,
        request_s=0.0,
        beside_s=0.0,
    )
    steps = output - 1.0
    c1_s, c2_s = steps * (weights_s + position_s), steps * position_s
    most = 4096
    together = Together.of(linear, demand(output=output), most)
    # Far below the largest batch: at a share of saturation the mean is C1/C2*share/(1 - share).
    if c1_s / c2_s * share / (1.0 - share) > 400:
        share = 0.3 * c2_s / c1_s * 400 / (1.0 + c2_s / c1_s * 400)
    found = together.along(array(share / c2_s)).served
    assert float(found.latency_s - found.ttft_s) == pytest.approx(c1_s / (1.0 - share), rel=1e-6)


@few
@given(st.floats(0.03, 0.8), st.sampled_from([0, 3, 7]), st.sampled_from([64.0, 1024.0]))
def test_what_many_in_flight_take_is_what_their_rate_takes(share, k, prompt):
    together = Together.of(costs(), demand(k, 1.0 + k / 3, prompt), 2000)
    rate = share * together.saturation_rps
    by_rate = together.along(rate).served
    by_number = together.at_inflight(rate, by_rate.inflight).served
    assert float(by_number.latency_s) == pytest.approx(float(by_rate.latency_s), rel=2e-3)
    assert float(by_number.ttft_s) == pytest.approx(float(by_rate.ttft_s), rel=1e-2)


@few
@given(st.floats(0.05, 0.9), st.sampled_from([0, 5]))
def test_load_only_slows_and_there_is_no_steady_state_beyond_saturation(share, k):
    together = Together.of(costs(), demand(k, 1.0 + k / 4), 1200)
    rate = share * together.saturation_rps
    latencies = [float(together.along(part * rate).served.latency_s) for part in (1e-6, 0.2, 0.6, 1.0)]
    assert latencies == sorted(latencies)
    assert latencies[0] < latencies[-1]
    assert np.isnan(together.along(together.saturation_rps * 1.001).served.latency_s)


@few
@given(st.integers(2, 80), st.integers(1, 80), st.floats(0.05, 0.97), st.sampled_from([0, 4]))
def test_an_engine_that_takes_fewer_at_a_time_is_never_faster(most, more, share, k):
    fewer, many = (Together.of(costs(), demand(k, 1.0 + k / 4), n) for n in (most, most + more))
    assert fewer.saturation_rps < many.saturation_rps
    rate = share * fewer.saturation_rps
    slow, fast = (one.along(rate).served for one in (fewer, many))
    assert fast.latency_s <= slow.latency_s * (1.0 + 1e-3)
    # At a small share of it none waits.
    near, same = (one.along(0.02 * rate).served.latency_s for one in (fewer, many))
    assert float(near) == pytest.approx(float(same), rel=0.03)


@few
@given(st.integers(2, 40), st.floats(0.3, 0.95), st.sampled_from([0, 4]))
def test_what_waits_is_in_the_number_in_flight_and_in_the_first_token(most, share, k):
    together = Together.of(costs(), demand(k, 1.0 + k / 4), most)
    rate = share * together.saturation_rps
    by_rate = together.along(rate).served
    by_number = together.at_inflight(rate, by_rate.inflight).served
    assert float(by_number.latency_s) == pytest.approx(float(by_rate.latency_s), rel=0.002)
    # A request that has its place decodes no slower than in a full step.
    assert float(by_rate.latency_s - by_rate.ttft_s) <= float(together.decode_s[..., -1]) * 3.0


@few
@given(st.floats(1.0, 300.0), st.sampled_from([0, 4]))
def test_a_closed_loop_keeps_little_s_law_and_reads_each_prompt_once(clients, k):
    asked = demand(k, 1.0 + k / 4)
    found = closed_loop(costs(), asked, array(clients)).served
    without = closed_loop(costs(prompt_s=1e-12), asked, array(clients)).served
    prompts_s = 3e-5 * 512 * clients
    assert float(found.latency_s) <= float(without.latency_s) + prompts_s + 1e-9
    # Whose prompt is read does not decode, so fewer decode beside each other.
    assert float(found.latency_s) > 0.6 * (float(without.latency_s) + prompts_s)


@few
@given(st.sampled_from(SENSITIVE), st.integers(0, 7), st.floats(1.0, 500.0))
def test_sensitivities_are_the_slopes_of_a_step(name, k, decoding):
    tier, context, at = Tier(1, array(k), array(1.0)), array(700.0), array(decoding)
    value, h = float(getattr(costs(), name)), 1e-5

    def moved(by: float) -> CostsOfSteps:
        if name == "sharpness":
            return costs(sharpness=1.0 + (value - 1.0) * np.exp(by))
        if name == "untouched":
            return costs(untouched=1.0 / (1.0 + (1.0 / value - 1.0) * np.exp(-by)))
        return costs(**{name: value * np.exp(by)})

    steps = [float(np.log(step_s(moved(by), tier, context, at))) for by in (h, -h)]
    found = step_sensitivities(costs(), tier, context, at)[SENSITIVE.index(name)]
    assert float(found) == pytest.approx((steps[0] - steps[1]) / (2 * h), abs=1e-7)


@pytest.mark.parametrize(("most", "busy"), [(400, 1.0), (12, 0.3)])
def test_answers_are_the_slopes_of_a_latency(most, busy):
    layout = Layout(("eagle3",), ("none", "eagle3/3"))
    engine = [*np.log([0.015, 1e-4]), -0.3, -1.0, 2.5, np.log(1e-7), -0.5, np.log(0.01), 0.4, 0.6]
    departures = np.random.default_rng(0).normal(0.0, 0.02, 12)
    figures = np.array([*engine, *np.log([1e-3, 5e-4, 3e-6]), 0.01, -0.02, *departures])
    loads = ArmLoads(
        Demand((Tier(1, array(3), array(2.0)),), array(512), array(256), array(640)),
        np.array([0, 0, 1, 1, 0]),
        busy * np.array([2.0, 6.0, 3.0, 8.0, 10.0]),
        np.array([5.0, 25.0, 4.0, 40.0, 50.0]),
    )
    found = layout.answers(figures, "eagle3", "eagle3/3", loads, most)
    h = 1e-4
    for at in range(layout.size):
        away = np.zeros(layout.size)
        away[at] = h
        up, down = (
            layout.answers(figures + sign * away, "eagle3", "eagle3/3", loads, most) for sign in (1, -1)
        )
        slope = np.log(up.latency_s / down.latency_s) / (2 * h)
        assert found.of_latency[:, at] == pytest.approx(slope, abs=0.03), at


def shared_by_the_chain(rate: float, step_s: float, beside_s: float, prompt_s: float) -> float:
    """Steps with prompts for each prompt: a step holds the prompts that came during the one before."""
    number = np.arange(150)
    came = rate * (step_s + beside_s * (number > 0) + prompt_s * number)[:, None]
    chain = np.exp(number * np.log(came) - came - np.array([math.lgamma(n + 1.0) for n in number]))
    chances = np.linalg.matrix_power(chain / chain.sum(axis=1, keepdims=True), 512)[0]
    return float((1.0 - chances[0]) / (chances @ number))


@pytest.mark.parametrize("busy", [0.1, 0.3, 0.5, 0.7])
def test_prompts_of_one_step_share_what_it_takes_more(busy):
    changed = {"weights_s": 0.008, "position_s": 1e-9, "sharpness": 1.0, "untouched": 0.0, "context_s": 0.0}
    read_s, beside_s = 3e-5 * 512, 0.009
    rate = busy / (read_s + beside_s)
    shared = shared_by_the_chain(rate, 0.008, beside_s, read_s)
    # An engine whose prompts take as much longer to read as they have of the step's cost.
    dear = costs(**changed, hidden=0.0, beside_s=0.0, prompt_s=(read_s + beside_s * shared) / 512)
    with_cost, as_dear = (
        Together.of(one, demand(), 400).along(array(rate)).served
        for one in (costs(**changed, hidden=0.0, beside_s=beside_s), dear)
    )
    assert float(with_cost.latency_s) == pytest.approx(float(as_dear.latency_s), rel=0.05)


def test_clients_in_step_read_no_prompt_beside_decodes():
    def latency_s(clients: float, beside_s: float, varied: float) -> float:
        found = closed_loop(costs(beside_s=beside_s), demand(varied=varied), array(clients))
        return float(found.served.latency_s)

    assert latency_s(16, 0.004, 0) == latency_s(16, 0, 1)
    # Sixteen prompts in 256 steps: hardly any two share one.
    assert latency_s(16, 0.004, 1) - latency_s(16, 0, 1) == pytest.approx(16 * 0.004, rel=0.04)
    assert latency_s(1, 0.004, 1) == pytest.approx(latency_s(1, 0, 1))
