"""Loads that were seen: bounded, dated by their own time, and nothing is made up."""

from __future__ import annotations

import math

import pytest

from breakeven_operator.board.load_trail import MOST_SAMPLES, LoadTrail
from breakeven_operator.resources import SpeculativeService


def service(minute=0.0, rps="3", uid="u1", **decision):
    seconds = round(60 * minute)
    time = f"2026-11-{21 + seconds // 86400:02}T{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"
    said = {"loadRps": rps, "evidenceTime": time, **decision}
    return SpeculativeService.read(
        {
            "metadata": {"name": "chat", "namespace": "llm", "uid": uid},
            "spec": {
                "targetRef": {"name": "chat-vllm"},
                "candidates": {"methods": [{"name": "lookup", "method": "ngram"}]},
            },
            "status": {
                "decision": {name: value for name, value in said.items() if value is not None},
            },
        },
        "service",
    )


def test_a_window_is_one_sample_however_often_it_is_published():
    trail = LoadTrail()
    for _ in range(3):
        trail.add([service(minute=1)])
    (sample,) = trail.of("u1")
    assert sample.rps == 3.0


def test_twelve_hours_take_no_more_room_than_the_bound_and_the_newest_load_is_there():
    trail = LoadTrail()
    for quarter in range(4 * 60 * 14):
        trail.add([service(minute=quarter / 4, rps=str(quarter))])
    samples = trail.of("u1")
    assert MOST_SAMPLES / 2 <= len(samples) <= MOST_SAMPLES
    newest_s = samples[-1].time_s
    assert 11.8 * 3600 <= newest_s - samples[0].time_s <= 12 * 3600
    assert samples[-1].rps >= 4 * 60 * 14 - 17
    assert [one.time_s for one in samples] == sorted({one.time_s for one in samples})


@pytest.mark.parametrize("missing", [{"rps": None}, {"evidenceTime": None}])
def test_a_decision_without_a_load_or_its_time_leaves_no_sample(missing):
    trail = LoadTrail()
    trail.add([service(**missing)])
    assert trail.of("u1") == ()


def test_a_load_that_is_no_number_leaves_no_sample():
    broken = service()
    status = broken.status.replace(decision=broken.status.decision.model_copy(update={"load_rps": math.nan}))
    trail = LoadTrail()
    trail.add([broken.with_status(status)])
    assert trail.of("u1") == ()


def test_a_service_that_is_gone_is_forgotten():
    trail = LoadTrail()
    trail.add([service(), service(uid="u2")])
    trail.add([service(uid="u2")])
    assert trail.of("u1") == ()
    assert len(trail.of("u2")) == 1
