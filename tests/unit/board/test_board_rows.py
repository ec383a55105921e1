"""Rows of the board: every column's words, from a status that an operator wrote, and from those with gaps."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from breakeven_operator.board.board_rows import answers, load_bar, model_error, row_of
from breakeven_operator.resources.calibrationrun import AnswersInForce
from breakeven_operator.resources.memorystatus import ModelStatus
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
    assert row.bar.share(row.bar.load_rps) < row.bar.share(row.bar.break_even_rps.value) < 100.0
    assert row.last_roll.startswith("Confirmed 1.")
    assert "promised" in row.last_roll
    assert row.calibration.startswith("chat-p1 ")
    assert not row.first
    assert not row.needs_attention


def test_a_service_without_a_profile_claims_nothing(fresh):
    row = row_of(fresh, CHAT, fresh.time)
    assert (row.pays, row.mark) == ("not known", "?")
    assert (row.speedup, row.break_even, row.model_error, row.last_roll, row.answers) == ("-",) * 5
    assert row.bar is None


def test_an_old_decision_shows_its_age_when_it_is_read(settled):
    later = settled.time + timedelta(hours=20)
    row = row_of(settled, CHAT, later)
    assert row.age == "20h"
    assert "is the operator running?" in row.doubts[0]
    assert row.needs_attention
    assert row_of(settled, CHAT, settled.time + timedelta(hours=1)).doubts == ()


def test_a_paused_service_says_that_a_person_holds_it(settled):
    service = settled.services[CHAT]
    display = service.status.display.model_copy(update={"mode": "RollingUpdate, paused"})
    workings = service.status.workings.model_copy(update={"display": display})
    status = service.status.model_copy(update={"workings": workings})
    paused = service.model_copy(update={"spec": service.spec.replace(paused=True), "status": status})
    row = row_of(replace(settled, services={CHAT: paused}), CHAT, settled.time)
    assert row.mode == "RollingUpdate, paused"
    assert row.waits[0].startswith("A person: spec.paused is true.")


def test_figures_of_a_past_are_marked(settled):
    display = settled.services[CHAT].status.display.model_copy(update={"pays": "Yes (past)"})
    workings = settled.services[CHAT].status.workings.model_copy(update={"display": display})
    assert row_of(edited(settled, workings=workings), CHAT, settled.time).first


def test_an_invalid_spec_is_a_row_with_its_problem(settled):
    published = replace(settled, services={}, invalid={CHAT: "spec.targetRef: Field required"})
    row = row_of(published, CHAT, settled.time)
    assert row.worries == ("spec.targetRef: Field required",)
    assert row.reason == "InvalidSpec"
    assert row.needs_attention


@pytest.mark.parametrize(
    "fields",
    [
        {"load_rps": None},
        {"break_even_rps": None},
        {"load_rps": math.nan},
        {"load_rps": math.inf},
        {"break_even_rps": math.inf},
    ],
)
def test_a_load_or_a_break_even_that_is_not_known_has_no_bar(settled, fields):
    assert load_bar(decided(settled, **fields)) is None


def test_open_ends_of_a_break_even_reach_the_ends_of_the_bar(settled):
    bar = load_bar(decided(settled, break_even_lower_rps=None, break_even_upper_rps=None))
    assert bar.share(bar.break_even_rps.lower, 0.0) == 0.0
    assert bar.share(bar.break_even_rps.upper) == 100.0
    assert bar.words.endswith("(not known yet)")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            ModelStatus(latency_ratio=1.034, latency_ratio_lower=0.99, latency_ratio_upper=1.08),
            "+3 % [-1,+8]",
        ),
        (
            ModelStatus(latency_ratio=0.999, latency_ratio_lower=None, latency_ratio_upper=None),
            "0 % [-,-]",
        ),
        (
            ModelStatus(latency_ratio=3.46, latency_ratio_lower=0.0, latency_ratio_upper=57284.9),
            "not known yet",
        ),
        (ModelStatus(latency_ratio=None), "-"),
        (None, "-"),
    ],
)
def test_model_error_is_a_deviation_with_bounds(settled, model, words):
    assert model_error(edited(settled, model=model).services[CHAT]) == words


def test_a_model_error_that_is_no_number_is_not_shown(settled):
    broken = ModelStatus().model_copy(update={"latency_ratio": math.nan})
    assert model_error(edited(settled, model=broken).services[CHAT]) == "-"


def test_answers_are_those_of_the_arm_that_speculates(settled):
    state = settled.services[CHAT].status.calibration.model_copy(
        update={"answers": (AnswersInForce(arm="eagle/3", word="AnswersAgree"),)}
    )
    assert answers(edited(settled, calibration=state).services[CHAT]) == "AnswersAgree"
    assert answers(settled.services[CHAT]) == "-"
