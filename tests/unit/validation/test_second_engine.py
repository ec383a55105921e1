"""The engine that judges laws, compared with sums by hand, a plain replay step by step, and queues with a known answer."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import pytest

from breakeven.tiers import Schedule
from validation.second_engine import Asked, Asking, BatchingMachine, arrivals, drawn, served
from validation.step_clocks import (
    CoreClock,
    DenseClock,
    Drafting,
    ExpertClock,
    KneeClock,
    RegimeClock,
    RooflineClock,
    padded,
)


class LinearClock:
    """A step of a + b*j; prompts and drafts cost nothing."""

    def __init__(self, base_s, request_s):
        self.base_s, self.request_s = base_s, request_s
        self.most = 0

    def step_s(self, decoding, k, context, prompt):
        self.most = max(self.most, decoding)
        return self.base_s + self.request_s * max(decoding, 1)


def alone(prompt, output):
    """One request whose every step accepts two drafts."""
    return Asked(np.array([prompt]), np.array([output]), np.full(output - 1, 2), np.array([0]))


DRAFTING = Drafting(0.0003, 0.0005, 1e-6)


def test_a_lone_request_takes_as_long_as_the_sum_of_its_steps_by_hand():
    clock = RooflineClock(0.010, 1e-4, 1e-7, DRAFTING)
    course = served(BatchingMachine(clock, 8, 256), 2, alone(600, 31), np.array([5.0]))
    # 600 prompt tokens in three steps of at most 256, bound by arithmetic, by arithmetic, and by the weights.
    first_s = 0.0256 + 0.0256 + 0.010
    # 30 tokens in ten steps of three; the context is 601 tokens and grows by three a step.
    contexts = [601 + 3 * step for step in range(10)]
    decode_s = sum(0.010 + 1e-7 * context + 0.0003 + 2 * (0.0005 + 1e-6) for context in contexts)
    assert course.first_s[0] == pytest.approx(5.0 + first_s, rel=1e-12)
    assert course.done_s[0] == pytest.approx(5.0 + first_s + decode_s, rel=1e-12)
    assert course.steps.tolist() == [10]


def one_step_at_a_time(machine, k, asked, moments):
    """The same scheduler without any skipping: what is slow and plain."""
    steps = asked.steps(k)
    waiting = deque(range(asked.prompts.size))
    chunks: list[list[int]] = []
    decoding: dict[int, int] = {}
    now, done, first = 0.0, {}, {}
    while waiting or chunks or decoding:
        if not chunks and not decoding:
            now = max(now, moments[waiting[0]])
        room = machine.budget - len(decoding) * (k + 1)
        taken = []
        for one in chunks:
            share = min(one[1], room)
            one[1] -= share
            room -= share
            taken.append((one, share))
        while (
            waiting
            and room > 0
            and moments[waiting[0]] <= now
            and len(decoding) + len(chunks) < machine.seats
        ):
            i = waiting.popleft()
            share = min(int(asked.prompts[i]), room)
            one = [i, int(asked.prompts[i]) - share]
            chunks.append(one)
            room -= share
            taken.append((one, share))
        context = sum(
            asked.prompts[i] + 1 + (asked.outputs[i] - 1) * (1 - left / steps[i])
            for i, left in decoding.items()
        )
        now += machine.clock.step_s(len(decoding), k, float(context), sum(share for _, share in taken))
        for i in list(decoding):
            decoding[i] -= 1
            if not decoding[i]:
                done[i] = now
                del decoding[i]
        for (i, left), share in taken:
            if share and not left:
                first[i] = now
                if asked.outputs[i] == 1:
                    done[i] = now
                else:
                    decoding[i] = int(steps[i])
        chunks = [one for one in chunks if one[1]]
    order = range(asked.prompts.size)
    return np.array([first[i] for i in order]), np.array([done[i] for i in order])


@pytest.mark.parametrize(
    "clock",
    [
        DenseClock(0.001, 0.006, 6e-5, 5e-8, DRAFTING),
        CoreClock(0.02, 0.004, 8, 1.5, 1e-4, 1e-6, DRAFTING),
        ExpertClock(0.003, 0.016, 64, 6, 0.4, 3e-5, 6e-8, DRAFTING),
        KneeClock(0.01, 1e-4, 4, 4.0, 0.4, 5e-5, 3e-8, DRAFTING),
        RegimeClock(0.007, 1.5e-5, 16, 0.0025, 6e-5, 4e-8, DRAFTING),
    ],
    ids=lambda clock: type(clock).__name__,
)
@pytest.mark.parametrize("k", [0, 3])
def test_skipping_to_the_next_event_changes_nothing(clock, k):
    asked = drawn(Asking(300, 40), 250, 3)
    machine = BatchingMachine(clock, 6, 256)
    moments = arrivals(7.0, 250, 3)
    course = served(machine, k, asked, moments)
    first_s, done_s = one_step_at_a_time(machine, k, asked, moments)
    np.testing.assert_allclose(course.first_s, first_s, rtol=1e-9)
    np.testing.assert_allclose(course.done_s, done_s, rtol=1e-9)


def test_a_step_that_is_linear_in_the_batch_gives_the_latency_of_processor_sharing():
    """C1 is 40 steps of 10.5 ms, C2 40 times the .5 ms that another request adds to each."""
    clock = LinearClock(0.010, 0.0005)
    asked = drawn(Asking(1, 41, 0.0, 1.0, decay=0.0), 30_000, 5)
    for rate in (10.0, 30.0):
        course = served(BatchingMachine(clock, 1000, 10_000), 0, asked, arrivals(rate, 30_000, 5))
        latency_s = float((course.done_s - course.first_s)[3000:].mean())
        steps = float(np.mean(asked.outputs - 1))
        expected_s = steps * 0.0105 / (1.0 - rate * steps * 0.0005)
        assert latency_s == pytest.approx(expected_s, rel=0.02)


def test_a_batch_that_costs_nothing_makes_nobody_wait():
    clock = LinearClock(0.010, 0.0)
    asked = drawn(Asking(1, 50), 2000, 6)
    course = served(BatchingMachine(clock, 2000, 20_000), 2, asked, arrivals(100.0, 2000, 6))
    np.testing.assert_allclose(course.done_s - course.first_s, 0.010 * course.steps, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("clients", [1, 5, 40])
def test_a_closed_loop_keeps_every_client_busy_and_obeys_littles_law(clients):
    clock = DenseClock(0.001, 0.006, 6e-5, 5e-8, DRAFTING)
    asked = drawn(Asking(200, 60), 1000, 7)
    course = served(BatchingMachine(clock, 32, 2048), 2, asked, clients)
    until = course.arrival_s[-1]
    inside = np.minimum(course.done_s, until) - np.minimum(course.arrival_s, until)
    assert inside.sum() / until == pytest.approx(clients, rel=1e-9)


def test_no_more_requests_decode_than_there_are_seats_and_every_token_is_made():
    clock = LinearClock(0.01, 0.001)
    asked = drawn(Asking(100, 50), 400, 8)
    course = served(BatchingMachine(clock, 12, 512), 3, asked, arrivals(50.0, 400, 8))
    assert clock.most == 12
    assert np.all(course.done_s >= course.first_s)
    assert np.all(course.steps * 4 >= asked.outputs - 1)
    assert np.all(course.steps <= asked.outputs - 1)
    # With no draft length beyond the seats' budget.
    with pytest.raises(ValueError, match="budget 40: below 12 seats of 4 positions"):
        served(BatchingMachine(clock, 12, 40), 3, asked, 1)


def test_a_schedule_of_one_draft_length_is_that_draft_length():
    machine = BatchingMachine(DenseClock(0.001, 0.006, 6e-5, 5e-8, DRAFTING), 32, 2048)
    asked, moments = drawn(Asking(200, 60), 600, 9), arrivals(6.0, 600, 9)
    fixed, scheduled = (served(machine, drafts, asked, moments) for drafts in (3, Schedule(((1, 3),))))
    np.testing.assert_array_equal(fixed.steps, scheduled.steps)
    np.testing.assert_allclose(fixed.done_s, scheduled.done_s, rtol=1e-12)


def test_a_schedule_changes_the_draft_length_with_the_batch_and_loses_no_token():
    clock = LinearClock(0.010, 0.001)
    asked = Asked(np.array([1, 1]), np.array([31, 31]), np.full(60, 2), np.array([0, 30]))
    course = served(BatchingMachine(clock, 8, 256), Schedule(((1, 2), (2, 0))), asked, np.array([0.0, 0.05]))
    # Alone 3 tokens a step: the first step is its prompt, then 11 ms each. The other one joins at the end of the fifth
    # step (55 ms); the first has made 13 tokens by then (one and four times three) and lacks 18, one a step.
    assert course.first_s[0] == pytest.approx(0.011)
    assert course.steps[0] == 4 + 18
    # The other has made 18 after its prompt's step and 17 more, and goes on alone, three tokens a step.
    assert course.steps[1] == 17 + math.ceil((30 - 17) / 3)


def test_a_drafted_step_accepts_as_often_as_was_asked_for_and_deeper_drafts_less():
    asking = Asking(10, 200, acceptance=0.7, concentration=8.0, decay=0.05)
    asked = drawn(asking, 4000, 10)
    # Over steps without drafting each token counts once, so that levels are weighted by length alone.
    steps = asked.outputs - 1
    every = asked.survival(3, steps, np.ones(4000, dtype=bool))
    assert every[0] == pytest.approx(0.7, abs=0.01)
    # The mean square of a beta distribution of mean .7 and concentration 8, and the decay of the second draft.
    assert every[1] == pytest.approx((0.49 + 0.21 / 9.0) * math.exp(-0.05), abs=0.01)
    # Tokens of a request resemble each other: long drafts cross easy requests in fewer steps.
    taken = asked.steps(7)
    assert asked.survival(7, taken, np.ones(4000, dtype=bool))[0] < every[0] - 0.02


def test_lengths_and_arrivals_have_the_mean_and_spread_that_were_asked_for():
    asked = drawn(Asking(300, 150, 0.5, 1.2), 5000, 11)
    assert asked.prompts.mean() == pytest.approx(300, rel=0.01)
    assert asked.outputs.mean() == pytest.approx(150, rel=0.01)
    assert asked.outputs.std() / asked.outputs.mean() == pytest.approx(1.2, rel=0.05)
    for cv in (0.0, 1.0, 3.0):
        gaps = np.diff(arrivals(4.0, 40_000, 12, cv))
        assert gaps.mean() == pytest.approx(0.25, rel=0.05)
        assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.05 * max(cv, 1e-9))
    again = arrivals(4.0, 100, 12), arrivals(4.0, 100, 12), arrivals(4.0, 100, 12, mirrored=True)
    np.testing.assert_array_equal(again[0], again[1])
    assert np.corrcoef(np.diff(again[0]), np.diff(again[2]))[0, 1] < -0.4


def test_positions_are_padded_to_the_graphs_of_their_draft_length():
    assert [padded(decoding, 0) for decoding in (0, 1, 3, 9, 257, 512, 513)] == [0, 1, 4, 16, 272, 512, 513]
    # 16 and 32 become 18 and 33; 512 becomes 513, is larger than the largest and left out: 510 positions run without a graph.
    assert [padded(decoding, 2) for decoding in (1, 3, 4, 6, 170, 171)] == [3, 9, 18, 18, 510, 513]
    assert [padded(decoding, 7) for decoding in (1, 9, 33, 64, 65)] == [8, 72, 272, 512, 520]


def test_each_clock_bends_where_it_says():
    dense = DenseClock(0.001, 0.006, 6e-5, 0.0, DRAFTING)
    # Nothing is padded with a prompt among them, and 400 positions are bound by arithmetic in both kinds of kernels.
    assert dense.step_s(9, 0, 0.0, 391) == pytest.approx(0.001 + 400 * 6e-5)
    assert dense.step_s(9, 0, 0.0, 0) == dense.step_s(16, 0, 0.0, 0)
    cores = CoreClock(0.02, 0.004, 8, 1.5, 1e-4, 0.0, DRAFTING)
    assert cores.step_s(8, 0, 0.0, 0) == pytest.approx(0.02 + 8 * 0.004)
    assert cores.step_s(10, 0, 0.0, 0) == pytest.approx(0.02 + 8 * 0.004 + 2 * 0.006)
    knee = KneeClock(0.01, 1e-4, 32, 4.0, 0.4, 5e-5, 0.0, DRAFTING)
    assert knee.step_s(33, 0, 0.0, 0) - knee.step_s(32, 0, 0.0, 0) == pytest.approx(4e-4)
    regime = RegimeClock(0.007, 1.5e-5, 64, 0.0025, 6e-5, 0.0, DRAFTING)
    assert regime.step_s(64, 0, 0.0, 0) == pytest.approx(0.007 + 64 * 1.5e-5)
    assert regime.step_s(65, 0, 0.0, 0) == pytest.approx(0.007 + 0.0025 + 65 * 6e-5)
    even = ExpertClock(0.003, 0.016, 64, 6, 0.0, 0.0, 0.0, DRAFTING)
    assert even.step_s(3, 0, 0.0, 0) == pytest.approx(0.003 + 0.016 * (1 - (1 - 6 / 64) ** 3))
    skewed = ExpertClock(0.003, 0.016, 64, 6, 1.0, 0.0, 0.0, DRAFTING)
    assert skewed.step_s(16, 0, 0.0, 0) < even.step_s(16, 0, 0.0, 0)
