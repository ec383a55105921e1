"""Sentences about what it would take: each figure once, and none of a service that gains or of another arm."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from breakeven.profile import Profile
from breakeven_operator.plugin.explanation import loses, needed
from breakeven_operator.plugin.service_view import ServiceView


@pytest.fixture
def view(recommending):
    return ServiceView.of(recommending.service)


@pytest.fixture
def profile(recommending):
    found = recommending.cluster.objects["speculationprofiles", "llm", "chat-p1"]
    return Profile.from_json(found["spec"]["profile"])


def deciding(view, memory=None, **figures):
    status = json.loads(json.dumps(view.status, default=str))
    status["decision"] |= figures
    status["decision"] = {name: value for name, value in status["decision"].items() if value is not None}
    status["workings"]["memory"] |= memory or {}
    return replace(view, status=status)


def test_a_service_that_gains_needs_nothing(view, profile):
    assert not loses(view)
    assert [*needed(view, profile)] == []


def test_a_losing_arm_names_acceptance_and_lengths_and_its_load_only_if_no_break_even_says_it(view, profile):
    losing = deciding(view, speedup="0.8", loadRps="11")
    assert loses(losing)
    acceptance, *lengths = needed(losing, profile)
    assert acceptance.startswith("Acceptance: eagle/3 would pay from ")
    assert "and 4 at most" in acceptance
    assert lengths
    assert all("engths" in one for one in lengths)
    _, load, *_ = needed(deciding(losing, breakEvenRps=None), profile)
    assert load.startswith("The load: eagle/3 would pay at 9.")
    assert load.endswith("it is 11 rps now.")


def test_acceptance_is_what_was_last_seen_live(view, profile):
    seen = {"seen": [{"arm": "eagle/3", "tokensPerStep": "1.25"}]}
    acceptance, *_ = needed(deciding(view, seen, speedup="0.8", loadRps="6"), profile)
    assert "it is 1.25 now" in acceptance


@pytest.mark.parametrize("change", [{"comparedArm": "owl/9"}, {"loadRps": None}, {"comparedArm": None}])
def test_without_a_load_or_a_measured_arm_nothing_is_said(view, profile, change):
    assert [*needed(deciding(view, **{"speedup": "0.8", "loadRps": "11"} | change), profile)] == []


def test_a_law_that_does_not_know_the_figures_says_nothing(view, profile):
    impossible = {"seen": [{"arm": "eagle/3", "tokensPerStep": "9"}]}
    assert [*needed(deciding(view, impossible, speedup="0.8", loadRps="11"), profile)] == []
