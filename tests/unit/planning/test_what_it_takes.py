"""The nearest figure is found: there the arm is as fast as no speculation, and a little nearer it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.planning.what_it_takes import what_it_takes, would_pay
from breakeven.profile import Conditions, Profile
from fakes.lawful_profile import lawful_profile_json

EAGLE = Arm("eagle3", 3, "eagle")
EDGE_RPS = (1.0 - 0.5) / (0.08 - 0.5 * 0.05)


def profile_of(c1_s, c2_s):
    laws = {NO_SPECULATION: (1.0, 0.05), EAGLE: (c1_s, c2_s)}
    made = lawful_profile_json(
        laws, {NO_SPECULATION: 1.0, EAGLE: 2.5}, prompt_tokens=500, output_tokens=200, gpu="g"
    )
    return Profile.from_json(made)


@pytest.fixture(scope="module")
def profile():
    return profile_of(0.5, 0.08)


def speedup(profile, rps, **conditions):
    return profile.compare(EAGLE, rps=rps, conditions=Conditions(**conditions)).speedup


def test_an_arm_that_pays_needs_nothing(profile):
    assert what_it_takes(profile, EAGLE, 3.0, Conditions()) == {}


def test_the_load_is_the_break_even(profile):
    found = what_it_takes(profile, EAGLE, 11.0, Conditions())
    assert found["rps"].now == 11.0
    assert found["rps"].wanted == pytest.approx(profile.compare(EAGLE, rps=11.0).break_even_rps, rel=0.02)
    assert found["rps"].wanted == pytest.approx(EDGE_RPS, rel=0.05)


def test_the_acceptance_is_the_least_that_suffices(profile):
    found = what_it_takes(profile, EAGLE, 11.0, Conditions())
    turn = found["tokens_per_step"]
    assert turn.now == pytest.approx(2.5, rel=0.01)
    assert turn.now < turn.wanted < 4.0
    assert speedup(profile, 11.0, tokens_per_step=turn.wanted) >= 1.0
    assert speedup(profile, 11.0, tokens_per_step=turn.wanted - 0.05) < 1.0


def test_acceptance_that_fell_is_what_has_to_rise(profile):
    assert speedup(profile, 6.0) > 1.0
    found = what_it_takes(profile, EAGLE, 6.0, Conditions(tokens_per_step=1.1))
    assert found["tokens_per_step"].now == 1.1
    assert 1.1 < found["tokens_per_step"].wanted < 2.5


def test_lengths_at_which_it_would_pay_do(profile):
    found = what_it_takes(profile, EAGLE, 11.0, Conditions())
    turns = {"prompt_tokens": found["prompts"], "output_tokens": found["answers"]}
    assert {name: turn.now for name, turn in turns.items()} == {"prompt_tokens": 500, "output_tokens": 200}
    wanted = {name: turn.wanted for name, turn in turns.items() if turn.wanted is not None}
    assert wanted
    for name, tokens in wanted.items():
        assert speedup(profile, 11.0, **{name: tokens}) >= 1.0


def test_an_arm_that_is_slower_at_every_load_has_no_load_that_suffices():
    found = what_it_takes(profile_of(1.5, 0.09), EAGLE, 2.0, Conditions())
    assert found["rps"].wanted is None


def test_beyond_the_acceptance_that_a_draft_can_have_nothing_suffices():
    assert what_it_takes(profile_of(2.5, 0.2), EAGLE, 2.0, Conditions())["tokens_per_step"].wanted is None


def test_an_arm_that_was_not_measured_is_refused(profile):
    with pytest.raises(BreakevenError):
        what_it_takes(profile, Arm("mtp", 2), 3.0, Conditions())


def test_without_no_speculation_nothing_is_said_of_what_would_pay(profile):
    alone = replace(profile, arms=tuple(fit for fit in profile.arms if fit.k))
    with pytest.raises(BreakevenError, match="none: not in the profile"):
        would_pay(alone, EAGLE, 11.0, Conditions())


def test_each_figure_is_said_once_by_its_name(profile):
    texts = would_pay(profile, EAGLE, 11.0, Conditions())
    assert [*texts] == ["tokens_per_step", "rps", "answers", "prompts"]
    assert texts["tokens_per_step"].startswith("Acceptance: eagle/3 would pay from ")
    assert texts["tokens_per_step"].endswith("it is 2.5 now, and 4 at most.")
    assert texts["rps"].startswith("The load: eagle/3 would pay at 9.")
    assert texts["rps"].endswith("it is 11 rps now.")
    assert would_pay(profile, EAGLE, 3.0, Conditions()) == {}
