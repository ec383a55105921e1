"""Numbers, times and status models: what is written is what is read."""

import math
import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from breakeven.errors import InputError
from breakeven_operator.resources.base import DECIMAL_PATTERN, decimal_string, fits
from breakeven_operator.resources.calibrationrun import CalibrationRunStatus, StoredPoint
from breakeven_operator.resources.decisionstatus import DecisionStatus
from breakeven_operator.resources.memorystatus import MemoryStatus, SeenAcceptance
from breakeven_operator.resources.meta import Condition
from breakeven_operator.resources.servicestatus import SpeculativeServiceStatus


@given(st.floats(min_value=-1e14, max_value=1e14).filter(lambda value: value == 0 or abs(value) > 1e-6))
def test_a_figure_is_read_as_it_was_written_to_six_digits(value):
    text = DecisionStatus(load_rps=value).to_json_object()["loadRps"]
    assert DecisionStatus.read({"loadRps": text}, "x").load_rps == pytest.approx(value, rel=1e-5)
    # Writing what was read changes nothing: a status that is read and written back must not differ.
    assert decimal_string(float(text)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.82, "1.82"),
        (14400.0, "14400"),
        (0.0293456789, "0.0293457"),
        (1e7, "10000000"),
        (-0.5, "-0.5"),
        (1.23456e-8, "0.000000012346"),
        (1.369e-16, "0"),
        (-1e-16, "0"),
    ],
)
def test_a_figure_has_no_exponent(value, text):
    assert decimal_string(value) == text


@given(st.floats(min_value=-9e14, max_value=9e14))
@example(1.369e-16)
def test_every_figure_fits_the_schema(value):
    text = decimal_string(value)
    assert re.fullmatch(DECIMAL_PATTERN, text)
    assert len(text) <= 32


@pytest.mark.parametrize("wrong", [True, "1e3", "fast", "1,5", ""])
def test_what_is_no_figure_is_refused(wrong):
    with pytest.raises((InputError, ValueError), match="decimal"):
        DecisionStatus(load_rps=wrong)


@given(st.floats())
@example(1e25)
@example(999_999_999_999_999.9)
@example(-999_999_500_000_000.0)
@example(float("nan"))
@example(float("inf"))
def test_any_figure_is_written_as_the_schema_takes_it_or_left_out(value):
    made = DecisionStatus(load_rps=value)
    for status in (made, DecisionStatus().model_copy(update={"load_rps": value})):
        document = status.to_json_object()
        assert set(document) == ({"loadRps"} if fits(value) else set())
        assert all(re.fullmatch(DECIMAL_PATTERN, text) and len(text) <= 32 for text in document.values())
        assert DecisionStatus.read(document, "x").to_json_object() == document
    assert (made.load_rps is None) != fits(value)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e15, -1e25])
def test_a_figure_that_must_be_there_is_refused_where_none_can_be(wrong):
    with pytest.raises(ValueError, match="decimal"):
        SeenAcceptance(arm="eagle/3", tokens_per_step=wrong)
    with pytest.raises(ValueError, match="below 1e15"):
        decimal_string(wrong)


def test_an_instant_keeps_milliseconds_and_a_condition_whole_seconds():
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone(timedelta(hours=2)))
    memory = MemoryStatus(last_switch_time=moment).to_json_object()
    assert memory["lastSwitchTime"] == "2026-01-02T01:04:05.678Z"
    condition = Condition(type="Ready", status="True", reason="Watching", last_transition_time=moment)
    assert condition.to_json_object()["lastTransitionTime"] == "2026-01-02T01:04:05Z"
    read = MemoryStatus.read(memory, "x").last_switch_time
    assert read == moment.astimezone(UTC).replace(microsecond=678000)


def test_a_time_without_zone_is_refused():
    with pytest.raises(ValueError, match="timezone"):
        MemoryStatus(last_switch_time=datetime(2026, 1, 2))  # noqa: DTZ001 -- the point


def test_a_point_has_the_columns_of_a_points_file():
    point = StoredPoint(
        arm="eagle/7",
        index=3,
        method="eagle3",
        k=7,
        candidate="eagle",
        request_rate_rps=2.5,
        mean_latency_s=0.53,
        p95_latency_s=0.9,
        tpot_mean_s=0.0065,
        output_tokens_sq=70000.0,
        accept=(0.8, 0.6),
        requests=120,
    )
    assert point.to_json_object() == {
        "arm": "eagle/7",
        "index": 3,
        "method": "eagle3",
        "k": 7,
        "candidate": "eagle",
        "requestRateRps": "2.5",
        "meanLatencyS": "0.53",
        "p95LatencyS": "0.9",
        "tpotMeanS": "0.0065",
        "outputTokensSq": "70000",
        "accept": ["0.8", "0.6"],
        "requests": 120,
    }


def test_what_a_newer_version_wrote_into_a_status_is_ignored():
    status = SpeculativeServiceStatus.read(
        {"decision": {"arm": "eagle/7", "invented": 1}, "more": {}, "conditions": []}, "x"
    )
    assert status.decision.arm == "eagle/7"


def test_a_status_shows_no_empty_lists():
    assert SpeculativeServiceStatus().to_json_object() == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"restored": 1}, "Extra inputs are not permitted"),
        ({"restores": -1}, "greater than or equal to 0"),
        ({"restores": "often"}, "valid integer"),
        ({"largest_rps": math.inf}, "not a decimal number"),
        ({"evidence": [SeenAcceptance(arm="none", tokens_per_step=1.0)]}, "LiveEvidence"),
        ({"seen": [SeenAcceptance(arm="none", tokens_per_step=1.0)] * 2}, "is there twice"),
    ],
)
def test_a_field_is_replaced_by_what_a_new_object_takes_or_not_at_all(changes, said):
    memory = MemoryStatus(failures=2)
    with pytest.raises(ValidationError, match=said):
        memory.replace(**changes)
    assert memory == MemoryStatus(failures=2)


def test_what_is_not_replaced_stays_the_same_object_and_what_was_not_given_is_not_given():
    memory = MemoryStatus(seen=[SeenAcceptance(arm="none", tokens_per_step=1.0)])
    changed = memory.replace(restores=3)
    assert changed.restores == 3
    assert changed.seen is memory.seen
    assert changed.model_fields_set == {"seen", "restores"}


def test_points_of_an_arm_come_by_index():
    status = CalibrationRunStatus.read(
        {"points": [{"arm": "a/2", "index": 1}, {"arm": "none", "index": 0}, {"arm": "a/2", "index": 0}]}, "x"
    )
    assert [point.index for point in status.points_of("a/2")] == [0, 1]


def test_a_point_is_there_once():
    with pytest.raises(InputError, match=r"points\[1\]: is there twice; expected each once"):
        CalibrationRunStatus.read({"points": [{"arm": "none", "index": 0}] * 2}, "run")


@pytest.mark.parametrize("arm", ["eagle", "eagle/0", "eagle/07", "/7", "Eagle/7", "eagle/100"])
def test_what_is_no_arm_is_refused(arm):
    with pytest.raises(InputError, match="arm: "):
        DecisionStatus.read({"arm": arm}, "x")


@pytest.mark.parametrize("arm", ["none", "eagle/7", "draft_model/12", "a.b-c_d/1"])
def test_what_is_an_arm_is_read(arm):
    assert DecisionStatus.read({"arm": arm}, "x").arm == arm


def test_a_replace_that_changes_nothing_is_the_same_object_and_a_misspelt_field_is_refused():
    memory = MemoryStatus(failures=2)
    assert memory.replace(failures=2, pays=None) is memory
    assert memory.replace(failures=3).failures == 3
    with pytest.raises(ValidationError):
        memory.replace(failure=2)
