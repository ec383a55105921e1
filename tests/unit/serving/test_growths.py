"""Figures of an engine's counters: what is missing is None, what is counted twice by nobody is in none."""

from __future__ import annotations

import math

import pytest

from breakeven.serving.growths import Growths

STATS = {"started": 100.0, "completed": 100.0, "e2e_s": 200.0, "e2e_n": 100.0, "ttft_s": 20.0, "generated": 10_000.0,
         "steps": 3960.0, "output_tokens": 10_000.0, "output_n": 100.0, "prompt_tokens": 5e4}  # fmt: skip


def window(**changes):
    stats = STATS | changes
    return Growths({name: value for name, value in stats.items() if value is not None}, {})


def test_every_figure_of_a_steady_window():
    found = window()
    assert (found.offered, found.given_up, found.clients_give_up) == (100.0, 0.0, False)
    assert (found.latency_s, found.ttft_s, found.tokens_per_step) == pytest.approx((2.0, 0.2, 2.5))
    assert found.tpot_s == pytest.approx(1.8 / 99)
    assert (found.prompt_tokens, found.output_tokens) == pytest.approx((500.0, 100.0))


@pytest.mark.parametrize(
    ("changes", "offered"),
    [
        ({"completed": 40.0}, 100.0),
        ({"completed": None}, 100.0),
        ({"started": None}, 100.0),
        ({"started": 90.0, "running_growth": 5.0}, 105.0),
        ({"waiting_growth": 30.0}, 130.0),
        ({"waiting_growth": -30.0}, 70.0),
        ({"waiting_growth": -300.0}, 0.0),
        ({"started": None, "completed": None}, None),
    ],
)
def test_offered_are_those_that_began_or_finished_and_what_the_queue_grew_by(changes, offered):
    assert window(**changes).offered == offered


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({"completed": 50.0}, 50.0),
        ({"completed": 50.0, "running_growth": 50.0}, 0.0),
        ({"started": None}, None),
    ],
)
def test_given_up_are_those_that_began_and_neither_finished_nor_are_there(changes, share):
    found = window(**changes)
    assert found.given_up == share
    assert found.clients_give_up is bool(share)


def test_no_share_is_given_up_of_requests_of_which_none_began():
    assert window(started=0.0, completed=0.0, running_growth=-6.0).given_up_share == 0.0


@pytest.mark.parametrize(("began_s", "tpot_s"), [(0.2, 1.8 / 99), (2.0, 0.0), (2.1, None)])
def test_first_tokens_later_than_whole_answers_say_nothing_of_the_tokens(began_s, tpot_s):
    # Those that began waited longer than those that finished: a load that ends, or one that begins.
    assert window(ttft_s=100.0 * began_s).tpot_s == pytest.approx(tpot_s)


def test_answers_that_clients_cut_short_count_with_the_tokens_that_were_made():
    cut = window(completed=50.0, e2e_n=50.0, output_n=50.0, output_tokens=5000.0, generated=6000.0)
    assert cut.output_tokens == pytest.approx(60.0)
    assert cut.finished_tokens == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("missing", "figure"),
    [("e2e_s", "latency_s"), ("e2e_n", "latency_s"), ("ttft_s", "ttft_s"), ("ttft_s", "tpot_s"), ("steps", "tokens_per_step"),
     ("generated", "tokens_per_step"), ("started", "tokens_per_step"), ("output_n", "output_tokens"), ("prompt_tokens", "prompt_tokens")],
)  # fmt: skip
def test_a_figure_whose_counter_is_missing_is_not_zero(missing, figure):
    assert getattr(window(**{missing: None}), figure) is None


def test_not_a_number_gives_no_error():
    """The agenda looks at figures before anything has judged them."""
    for name in STATS:
        found = window(**{name: math.nan})
        assert found.clients_give_up in {True, False}
        assert found.offered is not None


@pytest.mark.parametrize(
    ("changes", "gives_up"),
    [
        # A drain: 31 had no first token at its begin, and finished with all others.
        ({"completed": 243.0, "running_growth": -174.0, "running": 60.0}, False),
        # They began, and as many run as before.
        ({"completed": 69.0, "ttft_s": 360.0, "running": 179.0}, False),
        # Requests that were thrown out wait again.
        ({"completed": 60.0, "running_growth": -40.0, "waiting_growth": 40.0}, False),
        ({"completed": 0.0, "running_growth": 70.0}, False),
        ({"completed": 50.0, "running": 179.0, "waiting": 20.0, "ttft_s": 360.0, "waiting_growth": 5.0}, True),
        ({"completed": 50.0, "running_growth": -20.0}, True),
        ({"completed": 50.0, "running_growth": 20.0}, False),
    ],
)  # fmt: skip
def test_requests_before_their_first_token_and_a_queue_that_moves_are_nobody_who_left(changes, gives_up):
    found = Growths(STATS | changes, {}, 12.0)
    assert found.clients_give_up is gives_up


def test_lengths_of_finished_requests_stay_in_force_while_a_queue_moves():
    """Tokens of a drain were made for requests that began before it."""
    cut = {"completed": 50.0, "e2e_n": 50.0, "output_n": 50.0, "output_tokens": 5000.0, "generated": 6000.0}
    moving = window(**cut, running_growth=-20.0)
    assert (moving.clients_give_up, moving.queue_moved) == (True, True)
    assert moving.output_tokens == pytest.approx(100.0)
    assert window(**cut).output_tokens == pytest.approx(60.0)
