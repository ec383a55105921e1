"""The same requests as counted by users and engine."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.traffic import Endpoints, RequestOutcome, RequestShape
from real.greedy_users import (
    Account,
    EngineTotals,
    Offered,
    SteadyLoad,
    TaskUsers,
    reconcile,
    steady,
    together,
)
from real.tasks import TASKS

LOAD = SteadyLoad(rps=1.0, shape=RequestShape(48, 48), seconds=40.0, warmup_s=5.0)


def outcome(sent_s, latency_s=1.0, error=None, tokens=48):
    return RequestOutcome(1000.0 + sent_s, "pod", latency_s, 0.1, tokens, error)


def page(requests, latency_s, tokens, **more):
    lines = [
        f'vllm:e2e_request_latency_seconds_count{{engine="0",model_name="chat"}} {requests}',
        f'vllm:e2e_request_latency_seconds_sum{{engine="0",model_name="chat"}} {latency_s}',
        f'vllm:e2e_request_latency_seconds_bucket{{engine="0",le="+Inf",model_name="chat"}} {requests}',
        f'vllm:request_generation_tokens_sum{{engine="0",model_name="chat"}} {tokens}',
    ]
    lines += [f'vllm:{name}{{engine="0",model_name="chat"}} {value}' for name, value in more.items()]
    return "\n".join(lines) + "\n"


def test_series_of_several_engine_cores_are_one_engine():
    text = page(3, 4.5, 90) + page(1, 0.5, 10).replace('engine="0"', 'engine="1"')
    found = EngineTotals.read(text)
    assert (found.requests, found.latency_s, found.output_tokens) == (4, 5.0, 100)


def test_an_engine_that_has_answered_nothing_counts_nothing():
    assert EngineTotals.read("# nothing\n").requests == 0


@given(st.lists(st.floats(0, 40, allow_nan=False), min_size=1, max_size=60).map(sorted))
def test_counted_is_who_met_a_busy_engine_all_along(sent):
    outcomes = [outcome(sent_s) for sent_s in sent]
    counted = steady(outcomes, LOAD)
    for one in counted:
        since_s = one.sent_s - outcomes[0].sent_s
        assert LOAD.warmup_s <= since_s <= LOAD.seconds - one.latency_s + 1e-6


def test_a_request_that_failed_is_in_no_mean_and_stays_in_the_count():
    outcomes = [outcome(0), outcome(6), outcome(7, error="HTTP 500"), outcome(8)]
    assert [one.sent_s for one in steady(outcomes, LOAD)] == [1006.0, 1008.0]
    account = reconcile(outcomes, EngineTotals.read(page(0, 0, 0)), EngineTotals.read(page(3, 2.7, 144)))
    assert (account.asked, account.answered, account.engine_requests) == (4, 3, 3)
    assert account.client_latency_s == pytest.approx(1.0)
    assert account.engine_latency_s == pytest.approx(0.9)


def test_nothing_sent_and_nothing_answered_is_no_number():
    assert steady([], LOAD) == []
    nothing = EngineTotals.read(page(0, 0, 0))
    account = reconcile([], nothing, nothing)
    assert math.isnan(account.client_latency_s)
    assert math.isnan(account.engine_latency_s)
    assert account.tokens_per_step is None


def test_tokens_per_step_is_the_engines_own_count():
    before = page(
        0,
        0,
        0,
        generation_tokens_total=0,
        time_to_first_token_seconds_count=0,
        inter_token_latency_seconds_count=0,
    )
    after = page(
        2,
        2,
        96,
        generation_tokens_total=96,
        time_to_first_token_seconds_count=2,
        inter_token_latency_seconds_count=47,
    )
    account = reconcile([outcome(0), outcome(1)], EngineTotals.read(before), EngineTotals.read(after))
    assert account.tokens_per_step == pytest.approx(94 / 47)


def test_users_of_a_mix_ask_for_each_of_its_tasks_in_turn():
    users = TaskUsers("chat", RequestShape(8, 48), Endpoints(), seed=1)
    users.mix = ("repeat", "story")
    bodies = [users.body() for _ in range(4)]
    assert [TASKS["story"] in str(body["prompt"]) for body in bodies] == [True, False, True, False]
    assert [TASKS["repeat"] in str(body["prompt"]) for body in bodies] == [False, True, False, True]
    assert all(
        (body["max_tokens"], body["temperature"], body["ignore_eos"]) == (48, 0, True) for body in bodies
    )


def test_blocks_of_a_load_together_weigh_by_their_requests():
    def block(latency_s, counted, e):
        account = Account(counted + 2, counted + 2, latency_s, latency_s, 480, 480.0, counted + 2.0, e)
        return Offered(LOAD, 2.0, latency_s, counted, account)

    silent = Offered(LOAD, 0.0, math.nan, 0, Account(2, 0, math.nan, math.nan, 0, 0.0, 0.0, None))
    found = together([block(1.0, 10, 2.0), block(2.0, 30, 3.0), silent])
    assert (found.counted, found.latency_s, found.rps) == (40, 1.75, pytest.approx(4 / 3))
    account = found.account
    assert (account.asked, account.answered, account.engine_tokens) == (46, 44, 960.0)
    # 480 tokens in 240 steps and 480 in 160.
    assert account.tokens_per_step == pytest.approx(2.4)
    assert together([silent]).account.tokens_per_step is None
    assert math.isnan(together([silent]).latency_s)
