"""A figure of the status is one row: what is shown of it elsewhere, and when it is written, follows from the row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from breakeven.estimate import Estimate
from breakeven_operator.outcome.action_plan import Worth, worth_writing
from breakeven_operator.resources import SpeculativeServiceStatus
from breakeven_operator.resources.base import Number, StatusModel
from breakeven_operator.resources.decisionstatus import DecisionStatus
from breakeven_operator.resources.figures import (
    LOGGED,
    FigureGauge,
    LowerBound,
    Reading,
    Renewal,
    UpperBound,
    bounded,
    ends_of,
    read_figures,
    row,
    status_fields,
)
from breakeven_operator.serve.telemetry import gauges_of

NOW = datetime(2026, 11, 25, tzinfo=UTC)


class Inner(StatusModel):
    """A part."""

    arm: str | None = None
    load_rps: Number | None = row(
        "Load.",
        Reading(lambda facts: facts["load"]),
        LOGGED,
        FigureGauge("made_load", "The load.", {"arm": "arm"}, ends=ends_of("load_rps")),
    )
    load_lower_rps: LowerBound = None
    load_upper_rps: UpperBound = None
    share_percent: Number | None = row("Share.", Reading(lambda facts: facts["share"]), Renewal.AT_ONCE)


class Outer(StatusModel):
    """A status of parts."""

    parts: tuple[Inner, ...] = row("Parts.", Renewal.MOVED, default=())


def test_a_row_fills_its_field_and_the_fields_of_its_bounds():
    found = read_figures(Inner, {"load": Estimate(3.0, 2.5), "share": None})
    assert found == {"load_rps": 3.0, "load_lower_rps": 2.5, "load_upper_rps": None, "share_percent": None}
    assert Inner(**found).to_json_object() == {"loadRps": "3", "loadLowerRps": "2.5"}


def test_a_row_has_the_rule_of_its_part_unless_it_says_another():
    rules = {one.json_path: one.renewal for one in status_fields(Outer)}
    assert rules["parts"] is rules["parts.loadRps"] is rules["parts.loadLowerRps"] is Renewal.MOVED
    assert rules["parts.sharePercent"] is Renewal.AT_ONCE
    assert [one.json_path for one in status_fields(Outer) if LOGGED in one.marks(str)] == ["parts.loadRps"]


def test_a_row_is_a_gauge_with_its_labels_and_bounds():
    (gauge,) = gauges_of(Outer)
    parts = (Inner(arm="a/1", load_rps=3.0, load_upper_rps=4.0), Inner(load_rps=1.0))
    service = SimpleNamespace(status=SimpleNamespace(undecided=False, parts=parts))
    assert (gauge.name, gauge.help, gauge.labels) == ("made_load", "The load.", ("arm", "bound"))
    assert list(gauge.samples(service, NOW)) == [
        (("a/1", "estimate"), 3.0),
        (("a/1", "upper"), 4.0),
    ], "a part without the label, and an open bound, have no sample"


def test_a_row_is_in_the_schema_with_its_description_and_nothing_of_its_marks():
    schema = Inner.model_json_schema()["properties"]["loadRps"]
    assert schema["description"] == "Load."
    assert set(schema) <= {"anyOf", "default", "description", "title"}


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("speedup", ("speedup_lower", "speedup_upper")),
        ("p95_seconds", ("p95_lower_seconds", "p95_upper_seconds")),
        ("saving_percent", ("saving_lower_percent", "saving_upper_percent")),
    ],
)
def test_bounds_stand_before_the_unit(name, ends):
    assert ends_of(name) == ends
    assert bounded(name, None) == dict.fromkeys((name, *ends))


def test_the_bounds_of_every_row_are_fields_of_its_part():
    fields = status_fields(SpeculativeServiceStatus)
    for found in fields:
        for gauge in found.marks(FigureGauge):
            names = {one.name for one in fields if one.path == found.path}
            assert {*gauge.ends, *gauge.labels.values(), *filter(None, [gauge.only_with])} <= names, (
                found.json_path
            )


def test_a_field_of_another_version_has_the_rule_of_its_part():
    def worth(before, after):
        return worth_writing(before, after, NOW - timedelta(seconds=10), NOW, 60.0)

    assert worth({"decision": {"new": "a"}}, {"decision": {"new": "b"}}) is Worth.LATER
    assert worth({"new": "a"}, {"new": "b"}) is Worth.NOW


def test_the_log_repeats_figures_of_a_decision_by_their_names():
    logged = {one.json_path for one in status_fields(DecisionStatus) if LOGGED in one.marks(str)}
    assert {"loadRps", "speedup", "speedupLower", "breakEvenRps", "profile", "heldUntil"} <= logged
