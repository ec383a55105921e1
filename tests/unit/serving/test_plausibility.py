"""Impossible windows are named with the figure that they contradict; unusual ones are let through."""

from __future__ import annotations

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.serving.growths import EngineLimits, Growths, engine_limits, impossible

WINDOW_S = 300.0
EAGLE = Arm("eagle3", 3, "eagle")
LIMITS = EngineLimits(4.0, 64, 8192)


def served(
    rps=2.0,
    latency_s=1.2,
    *,
    ttft_s=0.2,
    prompt=250.0,
    output=100.0,
    e=2.5,
    window_s=WINDOW_S,
    **changes,
):
    """One pod in a steady state."""
    n = rps * window_s
    return {
        "completed": n,
        "started": n,
        "ttft_s": n * ttft_s,
        "e2e_s": n * latency_s,
        "e2e_n": n,
        "generated": n * output,
        "steps": n * (output - 1) / e,
        "prompt_tokens": n * prompt,
        "output_tokens": n * output,
        "output_n": n,
        "running": rps * latency_s,
        "waiting": 0.0,
        "waiting_min": 0.0,
        "running_growth": 0.0,
        "waiting_growth": 0.0,
        "last_seen_s": 1.7e9,
    } | changes


def said(stats, limits=LIMITS, window_s=WINDOW_S):
    return impossible(Growths(stats), limits, window_s)


def test_no_position_accepts_more_than_the_one_before_it_or_than_was_drafted():
    stats = served(drafts=900.0)
    assert impossible(Growths(stats, {0: 800.0, 1: 600.0}), LIMITS, WINDOW_S) is None
    assert "accepted at position 1" in str(impossible(Growths(stats, {0: 990.0}), LIMITS, WINDOW_S))
    assert "accepted at position 2" in str(impossible(Growths(stats, {0: 600.0, 1: 800.0}), LIMITS, WINDOW_S))


@pytest.mark.parametrize(
    ("stats", "words"),
    [
        (served(e=0.5), "0.5 tokens per step, where the arm that runs makes 1 to 4"),
        (served(e=4.5), "4.5 tokens per step, where the arm that runs makes 1 to 4"),
        (served(steps=1e13), "tokens per step"),
        (served(steps=0.0), "tokens decoded in no step"),
        (served(completed=1e13), "600 and 10000000000000 requests finished"),
        (
            served(rps=30.0, running=3.0),
            "30 requests a second of 1.2 s each are 36 in flight, where 3 were seen",
        ),
        (served(latency_s=0.001), "no engine makes 40.6 steps in less than 0.00406 s"),
        (served(output=1.0, latency_s=1e-9, ttft_s=1e-9), "no engine makes 1 steps"),
        (served(ttft_s=400.0), "first tokens came after 400 s, and whole answers after 1.2 s"),
        (served(prompt=9000.0), "9100 tokens per request, where --max-model-len allows 8192"),
        (served(running=70.0), "70 requests run at once, where --max-num-seqs allows 64"),
        (served(waiting=1e8), "no server holds more"),
        (served(waiting_growth=1e9), "no server takes more"),
        (served() | {"generated": 1e14, "steps": 1e14}, "generated grew by 333333333333 a second"),
        (served(waiting=2.0, waiting_min=5.0), "5 requests wait at least, and 2 on average"),
        (served(waiting=9e5, waiting_min=9e5), "while others begin after 0.2 s"),
        (served(running=-1.0), "running is -1, and nothing counts below zero"),
    ],
)
def test_what_cannot_be_is_named(stats, words):
    found = said(stats)
    assert found is not None
    assert words in found


def test_every_counter_too_high_alike_contradicts_what_is_in_flight():
    stats = {
        name: value * 1e10 if name not in {"running", "last_seen_s"} else value
        for name, value in served().items()
    }
    found = said(stats, EngineLimits())
    assert found is not None
    assert "where 2.4 were seen" in found


def test_without_speculation_a_step_makes_one_token():
    found = said(served(e=2.5), engine_limits((), NO_SPECULATION, ()))
    assert found is not None
    assert "makes exactly 1" in found
    assert "makes 1 to 2" in str(said(served(e=2.5), EngineLimits(2.0)))
    assert "makes at least 1" in str(said(served(e=0.5), EngineLimits()))


@pytest.mark.parametrize(
    "stats",
    [
        served(),
        served(e=1.0),
        served(e=0.97),
        served(e=4.08),
        # Answers of a token: what is left for steps is a small difference.
        served(output=1.02, e=0.7),
        # A queue that grows from nothing through the window.
        served(
            latency_s=20.0,
            ttft_s=19.0,
            running=64.0,
            waiting=300.0,
            running_growth=64.0,
            waiting_growth=600.0,
        ),
        # One that is worked off: who leaves waited for longer than the window.
        served(
            latency_s=400.0, ttft_s=399.0, running=64.0, waiting=300.0, waiting_min=5.0, waiting_growth=-600.0
        ),
        # Requests longer than the window, which few of many finish.
        served(rps=0.1, latency_s=500.0, running=60.0),
        # Short ones that pass between two looks at a gauge.
        served(rps=5.0, latency_s=0.5, running=0.0),
        # A few only.
        served(rps=4 / 300, latency_s=20.0, running=0.0),
        served(rps=0.0),
        {},
    ],
    ids=lambda stats: f"{stats.get('completed', 0):g}",
)
def test_what_is_unusual_is_let_through(stats):
    assert said(stats) is None


@pytest.mark.parametrize("window_s", [6.0, 60.0])
def test_a_short_window_is_no_contradiction(window_s):
    # Ten requests that began together before the window and end in it.
    stats = served(
        rps=10 / window_s,
        latency_s=30.0,
        running=5.0,
        running_growth=-10.0,
        window_s=window_s,
    )
    assert said(stats, window_s=window_s) is None


def test_what_prometheus_does_not_hold_is_not_checked():
    whole = served(rps=30.0, running=3.0)
    assert said({name: value for name, value in whole.items() if name != "waiting"}) is None
    assert said({name: value for name, value in served(steps=1e13).items() if name != "generated"}) is None


def test_limits_come_from_the_command_line_and_the_arm():
    line = (
        "vllm",
        "serve",
        "m",
        "--max-num-seqs=128",
        "--max-model-len",
        "8192",
        "--data-parallel-size",
        "2",
    )
    assert engine_limits(line, EAGLE, (EAGLE,)) == EngineLimits(4.0, 256, 8192, engines=2)
    # A draft length that nobody gave is the drafter's own.
    assert engine_limits(line, Arm("eagle3", 1), (EAGLE,)).tokens_per_step is None
    assert engine_limits(line, None, (EAGLE,)).tokens_per_step is None
    odd = ("--max-num-seqs=many", "--max-model-len=auto", "--scheduling-policy=priority")
    assert engine_limits(odd, NO_SPECULATION, ()) == EngineLimits(1.0, in_order=False, engines=1)


@pytest.mark.parametrize(
    ("line", "engines", "contradicted"),
    [
        ((), 1, ""),
        ((), 2, "2 engines by their labels, where --data-parallel-size starts 1"),
        (("--data-parallel-size=4",), 4, ""),
        (("--data-parallel-size=4",), 1, "does a relabelling drop the label engine?"),
        # Of these the others stand in other pods.
        (("--data-parallel-size=4", "--data-parallel-rank=1"), 1, ""),
        (("--data-parallel-size=4", "--data-parallel-size-local=2"), 2, ""),
        (("--data-parallel-size=4", "--data-parallel-hybrid-lb"), 5, "5 engines"),
        (("--config=/etc/vllm.yaml",), 8, ""),
        (("--data-parallel-size=many",), 8, ""),
    ],
)
def test_engines_are_those_that_the_command_line_starts(line, engines, contradicted):
    found = said(served() | {"engines": float(engines)}, engine_limits(line, None, ()))
    assert contradicted in found if contradicted else found is None


def test_a_policy_that_lets_requests_overtake_may_leave_some_waiting():
    stats = served(waiting=9e5, waiting_min=9e5)
    assert said(stats, EngineLimits(in_order=False)) is None
