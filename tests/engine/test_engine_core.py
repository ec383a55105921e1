"""The engine on its event clock against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from breakeven_sim.engine.configuration import EngineConfig
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.costs import Text
from breakeven_sim.engine.drafting import DraftedText, TextSource
from breakeven_sim.engine.requests import Request
from draws import draws

TEXTS = {
    "eagle3": Text(easy_rate=0.9, hard_rate=0.4, easy_share=0.5, mean_easy_stretch_tokens=100),
    "ngram": Text(easy_rate=0.8, hard_rate=0.01, easy_share=0.5, hard_match=0.1),
}


def poisson(
    config: EngineConfig, rps: float, count: int, output: int, seed: int = 1, prompt: int = 10
) -> list[Request]:
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1 / rps, count))
    source = TextSource(TEXTS[config.method], seed) if config.method else None
    lengths = random.integers(1, 2 * output, count)
    return [
        Request(i, float(t), prompt, int(n), source.draw(i, int(n)) if source else None)
        for i, (t, n) in enumerate(zip(arrivals, lengths, strict=True))
    ]


def replay(config: EngineConfig, requests: list[Request]) -> Engine:
    engine = Engine(config)
    for request in requests:
        engine.advance(request.arrival_s)
        engine.submit(request)
    engine.advance(math.inf)
    return engine


def replay_by_steps(config: EngineConfig, requests: list[Request]) -> Engine:
    """Replay as the server does it: one step at a time, arrivals handed over while a step is under way."""
    engine, coming = Engine(config), list(reversed(requests))
    while coming or engine.outstanding:
        if not engine.outstanding:
            engine.submit(coming.pop())
        end = engine.next_end_s()
        while coming and coming[-1].arrival_s <= end:
            engine.submit(coming.pop())
        engine.step()
    return engine


def test_a_lone_request_takes_its_prompt_and_its_steps(make_config):
    config = make_config(step__per_prefill_token_s=1e-4, step__per_kv_token_s=1e-6)
    request = Request(0, 5.0, 50, 100)
    replay(config, [request])
    prefill = 0.020 + 50 * 1e-4
    decode = 99 * 0.021 + 1e-6 * sum(50 + generated for generated in range(1, 100))
    assert request.first_token_s == pytest.approx(5.0 + prefill)
    assert request.finished_s == pytest.approx(5.0 + prefill + decode)
    assert (request.steps, request.generated) == (99, 100)


def test_a_step_reads_the_experts_that_its_tokens_touch(make_config):
    # Of four experts each token goes to one: 8 requests that verify 4 tokens each miss an expert with (3/4)^32.
    config = make_config("eagle3", 3, step__experts={"all_s": 1.0, "share_per_token": 0.25})
    requests = [Request(i, 0.0, 10, 31, DraftedText([3] * 31)) for i in range(8)]
    engine = replay(config, requests)
    drafting = 0.002 + 3 * 0.003
    step = 0.020 + drafting + 8 * 4 * 0.001 + 8 * 3 * 0.0001
    read = 1.0 - 0.75**80 + 10 * (1.0 - 0.75**32)
    assert engine.clock_s == pytest.approx(0.020 + drafting + 10 * step + read)


def test_a_batch_pays_for_every_token_that_it_verifies(make_config):
    config = make_config("eagle3", 3)
    # Two drafts accepted at every step: 3 tokens per step, 30 tokens after the first in 10 steps.
    requests = [Request(i, 0.0, 10, 31, DraftedText([3] * 31)) for i in range(8)]
    engine = replay(config, requests)
    drafting = 0.002 + 3 * 0.003
    step = 0.020 + drafting + 8 * 4 * 0.001 + 8 * 3 * 0.0001
    assert engine.clock_s == pytest.approx(0.020 + drafting + 10 * step)
    assert {(r.steps, r.drafts, r.drafted, r.accepted) for r in requests} == {(10, 10, 30, 20)}


def test_the_last_step_is_cut_but_its_drafts_count(make_config):
    request = Request(0, 0.0, 10, 3, DraftedText([4, 4, 4]))
    replay(make_config("eagle3", 3), [request])
    assert (request.generated, request.steps, request.accepted) == (3, 1, 3)


def test_drafting_nothing_is_not_no_speculation(make_config):
    plain, idle = Request(0, 0.0, 10, 101), Request(0, 0.0, 10, 101, DraftedText([4] * 101))
    replay(make_config(), [plain])
    replay(make_config("eagle3", 3, ((1, 0),)), [idle])
    assert idle.finished_s == pytest.approx(1.1 * plain.finished_s)
    assert (idle.steps, idle.drafts) == (100, 0)


def test_a_schedule_changes_k_with_the_batch(make_config):
    config = make_config("eagle3", 3, ((1, 3), (2, 1)))
    first, second = (Request(i, 0.0, 10, 61, DraftedText([4] * 61)) for i in range(2))
    third = Request(2, 0.0, 10, 7, DraftedText([4] * 7))
    for requests, most in (([first], 3), ([second, third], 1)):
        replay(config, requests)
        assert requests[-1].accepted / requests[-1].steps == most
    # 6 tokens of the third in 3 steps at k=1, then the second goes on alone at k=3: 54 left, 4 per step.
    assert second.steps == 3 + 14


@pytest.mark.parametrize("rps", [1.5, 4.0, 6.5])
def test_poisson_load_follows_the_law_within_3_percent(make_config, rps):
    # Step time linear in the batch makes the engine a processor-sharing queue, and the law is exact for that.
    config = make_config(step__base_s=0.002, step__per_token_s=0.0001)
    requests = poisson(config, rps * 10, 30_000, 100, seed=11)
    replay(config, requests)
    measured = requests[1000:]
    tokens = np.mean([r.output_tokens for r in measured])
    # One step more than tokens - 1: the prompt's, and an arrival waits half a step for its turn.
    c1 = 0.002 + (tokens - 1) * 0.0021 + 0.00105
    c2 = tokens * 0.0001
    latency = np.mean([r.finished_s - r.arrival_s for r in measured])
    rate = len(requests) / requests[-1].arrival_s
    assert latency == pytest.approx(c1 / (1 - rate * c2), rel=0.03)


def test_mean_in_flight_is_little_s(make_config):
    config = make_config("eagle3", 2)
    requests = poisson(config, 3.0, 4000, 60)
    engine = Engine(config)
    samples = []
    for request in requests:
        engine.advance(request.arrival_s)
        samples.append(engine.outstanding)
        engine.submit(request)
    engine.advance(math.inf)
    latency = np.mean([r.finished_s - r.arrival_s for r in requests])
    rate = len(requests) / requests[-1].arrival_s
    # Poisson arrivals see time averages. The samples lag by the step under way, a small fraction of a latency.
    assert np.mean(samples) == pytest.approx(rate * latency, rel=0.06)


# The fixture only builds configurations, so that examples may share it.
@settings(draws(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(
        [(None, 0, ()), ("eagle3", 3, ()), ("ngram", 4, ()), ("eagle3", 3, ((1, 3), (4, 1), (9, 0)))]
    ),
    pool=st.sampled_from([10**7, 700, 1500]),
    seqs=st.sampled_from([3, 10**4]),
    batched=st.sampled_from([60, 10**6]),
    rps=st.floats(0.5, 12.0),
    experts=st.sampled_from([None, {"all_s": 0.02, "share_per_token": 0.0625}]),
    seed=st.integers(0, 1000),
)
def test_step_by_step_and_all_at_once_agree(make_config, method, pool, seqs, batched, rps, experts, seed):
    name, k, tiers = method
    step = {"step__per_kv_token_s": 1e-5, "step__per_prefill_token_s": 1e-4, "step__experts": experts}
    config = make_config(name, k, tiers, pool, seqs, batched, **step)
    runs = []
    for way in (replay, replay_by_steps):
        requests = poisson(config, rps, 60, 50, seed, prompt=40)
        engine = way(config, requests)
        assert all(r.generated == r.output_tokens for r in requests)
        assert (engine.outstanding, engine.kv_usage) == (0, 0.0)
        runs.append((engine, requests))
    (one, first), (other, second) = runs
    assert [r.finished_s for r in first] == pytest.approx([r.finished_s for r in second], rel=1e-9)
    assert [r.first_token_s for r in first] == pytest.approx([r.first_token_s for r in second], rel=1e-9)
    assert (one.steps, one.request_steps, one.preemptions) == (
        other.steps,
        other.request_steps,
        other.preemptions,
    )
    assert one.request_steps == sum(r.steps for r in first)


def test_a_full_pool_preempts_the_newest_and_loses_nothing(make_config):
    # 100 tokens of prompt and 100 of output each: four fit at first, two at the end.
    config = make_config(pool=410)
    requests = [Request(i, 0.0, 100, 100) for i in range(4)]
    engine = replay(config, requests)
    assert engine.preemptions >= 2
    assert [r.preemptions > 0 for r in requests] == [False, False, True, True]
    assert [r.generated for r in requests] == [100] * 4
    assert requests[0].finished_s == requests[1].finished_s < requests[2].finished_s


def test_a_preempted_request_comes_before_those_who_wait(make_config):
    config = make_config(pool=205)
    first, preempted, waiting = Request(0, 0.0, 100, 100), Request(1, 0.0, 100, 100), Request(2, 0.0, 150, 50)
    replay(config, [first, preempted, waiting])
    assert preempted.preemptions == 1
    assert first.finished_s < preempted.finished_s < waiting.finished_s


def test_nobody_joins_the_step_that_somebody_had_to_leave(make_config):
    # Steps of 4 tokens: two contexts of 17 want 8 more of 41. Without one's 4 there is room for its 17 in that step,
    # but not in the next one, and it would be read and thrown out again and again.
    config = make_config("eagle3", 3, pool=41)
    first, newest = (Request(i, 0.0, 8, 24, DraftedText([4] * 24)) for i in range(2))
    engine = replay(config, [first, newest])
    assert engine.preemptions == 1
    assert newest.first_token_s < first.finished_s < newest.finished_s


def test_max_num_seqs_makes_requests_wait(make_config):
    config = make_config(seqs=2)
    requests = [Request(i, 0.0, 10, 50) for i in range(3)]
    engine = replay(config, requests)
    assert requests[2].admitted_s == requests[0].finished_s
    assert engine.clock_s == requests[2].finished_s


def test_a_long_prompt_is_read_in_chunks_beside_the_others(make_config):
    config = make_config(batched=100, step__per_prefill_token_s=1e-4)
    short, long = Request(0, 0.0, 10, 200), Request(1, 0.0, 500, 1)
    engine = replay(config, [short, long])
    # The first step holds the short prompt and 90 tokens of the long one, each later one 99 beside one decode token.
    steps = 1 + math.ceil((500 - 90) / 99)
    assert long.first_token_s == pytest.approx(0.03 + (steps - 1) * 0.021 + (500 - 90) * 1e-4)
    assert short.generated == 200
    assert engine.outstanding == 0


def test_more_drafts_than_the_step_may_hold_bound_the_batch(make_config):
    config = make_config("eagle3", 3, batched=40)
    engine = Engine(config)
    for i in range(30):
        engine.submit(Request(i, 0.0, 1, 50, DraftedText([1] * 50)))
    engine.advance(1.0)
    assert engine.running == 10


def test_an_aborted_request_leaves_no_trace(make_config):
    config = make_config("eagle3", 2)
    stay, gone, early = (Request(i, 0.0, 10, 40, DraftedText([2] * 40)) for i in range(3))
    engine = Engine(config)
    for request in (stay, gone, early):
        engine.submit(request)
    engine.next_end_s()
    engine.abort(early)  # while its prompt is under way
    engine.step()
    engine.step()
    engine.abort(gone)  # while it decodes
    engine.advance(math.inf)
    assert (stay.generated, gone.finished_s != gone.finished_s, early.generated) == (40, True, 0)
    assert (engine.outstanding, engine.kv_usage) == (0, 0.0)


def test_what_can_never_run_is_refused(make_config):
    engine = Engine(make_config(pool=100))
    with pytest.raises(ValueError, match="longer than the KV pool"):
        engine.submit(Request(0, 0.0, 90, 11))
    with pytest.raises(ValueError, match="at least one"):
        engine.submit(Request(0, 0.0, 10, 0))
    with pytest.raises(RuntimeError, match="idle"):
        engine.step()


def test_long_lives_reuse_the_books(make_config):
    config = make_config("ngram", 3)
    requests = poisson(config, 0.1, 300, 400)  # far more steps than the books hold at first
    engine = replay(config, requests)
    assert engine.steps > 1 << 14
    assert all(r.generated == r.output_tokens for r in requests)


def test_prompts_alone_may_fill_any_number_of_steps(make_config):
    config = make_config(batched=10)
    requests = [Request(i, 0.0, 10_000, 1) for i in range(20)]
    engine = replay(config, requests)
    assert engine.steps == 20_000 > 1 << 14
    assert all(r.generated == 1 for r in requests)
