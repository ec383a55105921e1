"""Rows of the board: every column's words, from a status that an operator wrote, and from those with gaps."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from breakeven.estimate import Estimate
from breakeven_operator.board.board_rows import load_bar, ratio_span, row_of
from fakes.published_board import CHAT


def edited(published, **parts):
    """The publication with other parts of the service's status."""
    service = published.services[CHAT]
    return replace(published, services={CHAT: service.with_status(service.status.model_copy(update=parts))})


def decided(published, **fields):
    decision = published.services[CHAT].status.decision.model_copy(update=fields)
    return edited(published, decision=decision).services[CHAT]


def test_a_settled_service_says_what_runs_what_pays_and_what_was_measured(settled):
    row = row_of(settled, CHAT, settled.time)
    assert (row.target, row.mode) == ("Deployment/chat-vllm", "RollingUpdate")
    assert (row.arm, row.recommended) == ("eagle/3", "eagle/3")
    assert (row.pays, row.mark) == ("Yes", "✓")
    assert row.speedup.startswith("1.7")
    assert row.speedup.endswith("] expected"), "its arms were measured one after the other"
    assert row.load == "3 rps"
    assert row.break_even.endswith("rps")
    assert row.load_bar.load < row.load_bar.break_even.value < 100.0
    assert 50.0 < row.speedup_bar.low < row.speedup_bar.value < row.speedup_bar.high
    assert row.calibration.startswith("chat-p1 ")
    assert not row.first
    assert not row.concerns


def test_a_service_without_a_profile_claims_nothing(fresh):
    row = row_of(fresh, CHAT, fresh.time)
    assert (row.pays, row.mark) == ("not known", "?")
    assert (row.speedup, row.break_even) == ("-", "-")
    assert row.load_bar is None
    assert row.speedup_bar is None


def test_an_old_decision_shows_its_age_when_it_is_read(settled):
    later = settled.time + timedelta(hours=2)
    row = row_of(settled, CHAT, later)
    assert row.age == "120m"
    assert "is the operator running?" in row.concerns[-1].text
    assert "Status not of now" not in {
        one.short for one in row_of(settled, CHAT, settled.time + timedelta(hours=1)).concerns
    }


def test_a_paused_service_says_that_a_person_holds_it(settled):
    service = settled.services[CHAT]
    display = service.status.display.model_copy(update={"mode": "RollingUpdate, paused"})
    workings = service.status.workings.model_copy(update={"display": display})
    status = service.status.model_copy(update={"workings": workings})
    paused = service.model_copy(update={"spec": service.spec.replace(paused=True), "status": status})
    row = row_of(replace(settled, services={CHAT: paused}), CHAT, settled.time)
    assert row.mode == "RollingUpdate, paused"
    assert row.waits[0].text.startswith("A person: spec.paused is true.")


def test_figures_of_a_past_are_marked(settled):
    display = settled.services[CHAT].status.display.model_copy(update={"pays": "Yes (past)"})
    workings = settled.services[CHAT].status.workings.model_copy(update={"display": display})
    assert row_of(edited(settled, workings=workings), CHAT, settled.time).first


def test_an_invalid_spec_is_a_row_with_its_problem(settled):
    published = replace(settled, services={}, invalid={CHAT: "spec.targetRef: Field required"})
    row = row_of(published, CHAT, settled.time)
    assert [one.text for one in row.concerns] == ["spec.targetRef: Field required"]
    assert row.reason == "InvalidSpec"


@pytest.mark.parametrize(
    "fields",
    [
        {"load_rps": None},
        {"break_even_rps": None},
        {"load_rps": math.nan},
        {"load_rps": math.inf},
        {"break_even_rps": math.inf},
        {"break_even_rps": 0.0},
    ],
)
def test_a_load_or_a_break_even_that_is_not_known_has_no_bar(settled, fields):
    assert load_bar(decided(settled, **fields)) is None


def test_open_ends_of_a_break_even_reach_the_ends_of_the_bar(settled):
    bar = load_bar(decided(settled, break_even_lower_rps=None, break_even_upper_rps=None))
    assert (bar.break_even.low, bar.break_even.high) == (0.0, 100.0)
    assert bar.words.endswith("(not known yet)")


@pytest.mark.parametrize(
    ("known", "places"),
    [
        (Estimate(1.0, 0.8, 1.25), (50.0, 37.8, 62.2)),
        (Estimate(1.5, None, None), (72.1, 72.1, 72.1)),
        (Estimate(1.5, 1.2, None), (72.1, 59.9, 100.0)),
        (Estimate(9.0, 0.0, 12.0), (100.0, 0.0, 100.0)),
        (Estimate(0.0), None),
        (Estimate(math.nan), None),
        (None, None),
    ],
)
def test_a_speedup_lies_around_1_twice_as_fast_as_far_as_half_as_fast(known, places):
    assert ratio_span(known) == places


def test_the_bar_shows_the_figure_that_stands_beside_it(settled):
    display = settled.services[CHAT].status.display.model_copy(
        update={"speedup": "0.64 [0.51,0.80] measured"}
    )
    workings = settled.services[CHAT].status.workings.model_copy(update={"display": display})
    row = row_of(edited(settled, workings=workings), CHAT, settled.time)
    assert row.speedup_bar == ratio_span(Estimate(0.64, 0.51, 0.80))


def test_an_arm_that_loses_needs_attention_before_a_change_that_is_held(fleet):
    by_name = {name.name: row_of(fleet, name, fleet.time) for name in fleet.names}
    assert [one.short for one in by_name["code"].concerns] == ["SpeculationUnprofitable"]
    assert by_name["agents"].concerns[0].short == "eagle/3 loses"
    assert not by_name["batch"].concerns, "no speculation runs there, which is right"
    firsts = [by_name[name].concerns[0].rank for name in ("code", "agents", "broken", "embed")]
    assert firsts == sorted(set(firsts))
