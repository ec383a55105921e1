"""What it would take: each figure once, and none of a service that gains or of another arm."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from breakeven_operator.plugin.explanation import losing, needed
from breakeven_operator.plugin.service_view import ServiceView


@pytest.fixture
def view(recommending):
    return ServiceView.of(recommending.service)


def deciding(view, memory=None, **figures):
    status = json.loads(json.dumps(view.status, default=str))
    status["decision"] |= figures
    status["decision"] = {name: value for name, value in status["decision"].items() if value is not None}
    status["workings"]["memory"] |= memory or {}
    return replace(view, status=status)


LOSES = {"speedup": "0.8", "loadRps": "11"}


def test_a_service_that_gains_has_no_losing_arm(view):
    assert losing(view) is None


def test_a_losing_arm_is_asked_about_at_its_load_and_at_the_acceptance_that_was_last_seen_live(view):
    seen = {"seen": [{"arm": "owl/9", "tokensPerStep": "3"}, {"arm": "eagle/3", "tokensPerStep": "1.25"}]}
    assert losing(deciding(view, seen, **LOSES)) == ("eagle/3", 11.0, 1.25)
    assert losing(deciding(view, {"seen": []}, **LOSES)) == ("eagle/3", 11.0, None)


@pytest.mark.parametrize("change", [{"loadRps": None}, {"comparedArm": None}, {"speedup": None}])
def test_without_a_load_an_arm_or_a_speedup_nothing_is_asked(view, change):
    assert losing(deciding(view, **LOSES | change)) is None


def test_the_load_is_said_only_if_no_break_even_says_it(view):
    texts = {"tokens_per_step": "Acceptance.", "rps": "The load.", "answers": "Lengths."}
    assert needed(view, texts) == ["Acceptance.", "Lengths."]
    assert needed(deciding(view, breakEvenRps=None), texts) == [*texts.values()]
