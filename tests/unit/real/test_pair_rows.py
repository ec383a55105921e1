"""What a script of pairs has shown, by figures whose truth is known."""

from __future__ import annotations

import math

import pytest

from real import pair_rows
from real.machine_state import MachineLook
from real.pair_rows import AGAIN, BESIDE, IN_TURN, LENGTHS, MIXED, ONE_LENGTH, OPEN, RESTARTED, STOPPED, Kept

ORDER = ("none", "eagle3/2", "eagle3/5", "eagle3/5", "eagle3/2", "none")
LATENCIES_S = {"none": 1.4, "eagle3/2": 1.0, "eagle3/5": 0.7}


def window(engine, at_s, factor=1.0, part=IN_TURN, what="26 rps"):
    latency_s = LATENCIES_S.get(engine, 1.4) * factor
    return Kept(part, engine, what, at_s, 14.0, {"latency_s": latency_s})


def in_turn(factors):
    """Windows of fifteen seconds in the order of the script, each slowed down by its factor."""
    return [
        window(ORDER[number % 6], 15.0 * number, factor) for number, factor in enumerate(factors)
    ]  # fmt: skip


def prompts(term_s, part=BESIDE, engine="none", per_token_s=3e-5, step_s=0.005):
    """Ten prompts of each length in 2.5 s, each of which costs its tokens, and beside decodes a term more."""
    kept = []
    for tokens in (1, 128, 520):
        alone = {"alone_s": 0.007 + per_token_s * (tokens - 1), "tokens": tokens, "prompts": 10}
        kept.append(Kept(part, engine, f"{tokens} alone", 0.0, 0.1, alone))
        cost_s = 10 * (per_token_s * (tokens - 1) + term_s)
        # In the same time there are fewer steps.
        slower = {"quiet_s": step_s, "step_s": step_s * 2.5 / (2.5 - cost_s), "tokens": tokens, "prompts": 10}
        if tokens > 1:
            kept.append(Kept(part, engine, f"{tokens} beside", 0.0, 2.5, slower))
    return kept


def rows_of(kept, part, looks=()):
    return {
        what: (figure, error)
        for where, what, figure, error, _ in pair_rows.rows(kept, looks)
        if where == part
    }


def test_nothing_kept_is_nothing_said():
    assert pair_rows.rows([], []) == []
    assert all(line.endswith("not measured") for line in pair_rows.verdicts([]))
    assert "not reached: in turn" in pair_rows.table([], [])


@pytest.mark.parametrize(
    ("term_s", "word"), [(0.009, "above 4 ms: the term stays"), (0.001, "at most 4 ms: the term goes")]
)
def test_a_term_is_found_whatever_a_prompt_costs_alone(term_s, word):
    kept = prompts(term_s)
    assert pair_rows.term(kept).value == pytest.approx(term_s)
    assert pair_rows.verdicts(kept)[0] == (
        f"a prompt beside decodes: {1e3 * term_s:.1f} ms more than alone, {word}"
    )
    alone, beside = pair_rows.prompt_costs(kept, BESIDE, "none")[520]
    assert (alone, beside) == pytest.approx((519 * 3e-5, 519 * 3e-5 + term_s))


def test_a_machine_that_drifts_is_in_the_windows_and_cancels_in_pairs():
    # Slower by one percent with each window, there and back.
    kept = in_turn([math.exp(0.01 * number) for number in range(18)])
    ratios = pair_rows.pairs(kept)
    assert {arm: len(found) for arm, found in ratios.items()} == {"eagle3/2": 6, "eagle3/5": 6}
    for arm, found in ratios.items():
        assert pair_rows.speedup(found).value == pytest.approx(1.4 / LATENCIES_S[arm], rel=1e-6)
    assert pair_rows.state(kept).value > 0.05
    _, state, pairs = pair_rows.verdicts(kept)
    assert state.endswith(": pairs only")
    assert pairs.endswith("at most 3 %: the old points were one bad minute")
    linked, _ = rows_of(kept, IN_TURN)["a window's state and the next window's, 15 s later, correlation"]
    assert float(linked) > 0.7


def test_a_machine_that_differs_from_window_to_window_is_in_both():
    kept = in_turn([1.15 if number % 4 in {1, 2} else 0.9 for number in range(18)])
    _, state, pairs = pair_rows.verdicts(kept)
    assert state.endswith("above 5 %: pairs only")
    assert pairs.endswith("above 3 %: the old points were no one bad minute")


def test_the_chance_of_drafts_is_no_state_of_the_machine():
    kept = in_turn([1.0 if number % 6 in {0, 5} else 1.0 + 0.2 * (number % 2) for number in range(12)])
    assert pair_rows.verdicts(kept)[1].startswith("state of the machine: 0.0 % scatter, at most 5 %")
    assert pair_rows.state(kept).value > 0.05


def test_a_steady_machine_needs_no_pairs():
    kept = in_turn([1.01 if number % 5 else 0.99 for number in range(12)])
    _, state, _ = pair_rows.verdicts(kept)
    assert state.endswith("at most 5 %: windows one after the other will do")


def test_a_window_is_compared_with_the_nearest_one_of_no_speculation():
    # The second none is slow; only the windows beside it are compared with it.
    kept = in_turn([1, 1, 1, 1, 1, 2])
    assert pair_rows.pairs(kept)["eagle3/5"] == pytest.approx([math.log(2), math.log(4)])
    assert pair_rows.pairs(kept[1:5]) == {}
    # Two windows of each arm: three degrees of freedom.
    assert pair_rows.state(kept).value == pytest.approx(math.log(2) / math.sqrt(2 * 3))
    assert pair_rows.state(kept).error == pytest.approx(pair_rows.state(kept).value / math.sqrt(6))


def test_a_window_in_which_requests_piled_up_is_no_latency_to_believe():
    full = Kept(IN_TURN, "none", "26 rps", 0.0, 14.0, {"latency_s": 9.0, "piled_up": 1.0})
    assert "latency of none, s, requests piled up" in rows_of([full], IN_TURN)


def test_the_state_follows_what_the_machine_shows():
    slow = [1.1 if number % 3 else 1.0 for number in range(12)]
    looks = [
        MachineLook(15.0 * number + 5, {"loop_ms": 10 * factor, "sm_mhz": 1980.0}, 0x4 if factor > 1 else 0)
        for number, factor in enumerate(slow)
    ]
    kept = in_turn(slow)
    found = rows_of(kept, IN_TURN, looks)
    assert float(found["a window's state and loop of Python, ms, correlation"][0]) > 0.8
    # A clock that never changes explains nothing.
    assert not any("clock" in what for what in found)
    machine = rows_of(kept, "machine", looks)
    assert machine["clock, MHz: least, median, most"][0] == "1980, 1980, 1980"
    assert machine["GPU throttled: power cap, looks"][0] == "8"


def test_other_parts_are_ratios_to_the_windows_in_turn():
    kept = [
        *in_turn([1.0, 1.02, 0.98, 1.0, 1.0, 1.0]),
        *(window(engine, 100.0 + at, 0.9, STOPPED) for at, engine in enumerate(("none", "eagle3/2"))),
        window(AGAIN, 200.0, 0.8, RESTARTED),
        window("none", 150.0, 1.2, MIXED, ONE_LENGTH),
        window("none", 160.0, 1.1, MIXED, LENGTHS),
        window("none", 170.0, 1.0, MIXED, OPEN),
        *prompts(0.002, RESTARTED, AGAIN),
    ]
    stopped = rows_of(kept, STOPPED)
    assert stopped["none: latency over that beside the stopped engine"][0] == "0.9"
    restarted = rows_of(kept, RESTARTED)
    assert restarted["none again: latency over that before the restart"][0] == "0.8"
    assert restarted["none again, a prompt beside streams more than alone, ms"][0] == "2"
    mixed = [figure for figure, _ in rows_of(kept, MIXED).values()]
    assert mixed == ["1.2", "1.1"]
