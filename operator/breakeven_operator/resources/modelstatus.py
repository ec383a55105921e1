"""Measured latency against the profile's predictions (part of a SpeculativeService's status)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from breakeven_operator.resources.base import (
    ATOMIC,
    ArmName,
    Instant,
    Number,
    ObjectName,
    RequiredNumber,
    Sentence,
    StatusModel,
    Word,
    list_map,
)
from breakeven_operator.resources.figures import FigureGauge, LowerBound, Renewal, UpperBound, ends_of

MOST_WINDOWS = 12
"""Windows that an account keeps."""


class AccountWindow(StatusModel):
    """One window of the arm in place: what was measured over what the profile predicts for its load, lengths and acceptance."""

    time: Annotated[Instant, Field(description="When it ended."), Renewal.BEGINNING]
    window_seconds: Annotated[RequiredNumber, Field(description="How long it was.")]
    requests: Annotated[int, Field(ge=0, description="Requests that finished in it.")]
    observed_seconds: Annotated[RequiredNumber, Field(description="Measured mean latency.")]
    latency_ratio: Annotated[RequiredNumber, Field(description="Measured over predicted mean latency.")]
    sampling_error: Annotated[
        RequiredNumber, Field(description="Relative standard error of the measured mean, from its requests.")
    ]
    predicted_lower: Annotated[
        Number | None,
        Field(description="Lower bound of the prediction over the prediction; absent where open."),
    ] = None
    predicted_upper: Annotated[
        Number | None,
        Field(description="Upper bound of the prediction over the prediction; absent where open."),
    ] = None
    ttft_ratio: Annotated[
        Number | None, Field(description="Measured over predicted time to first token.")
    ] = None
    tpot_ratio: Annotated[
        Number | None, Field(description="Measured over predicted time per output token.")
    ] = None
    speedup: Annotated[
        Number | None, Field(description="Predicted latency without speculation over the measured one.")
    ] = None
    speedup_error: Annotated[
        Number | None, Field(description="Relative standard error of that prediction without speculation.")
    ] = None
    drifted: Annotated[
        tuple[Word, ...],
        Field(
            max_length=4,
            json_schema_extra=ATOMIC,
            description="What was surely outside of what was calibrated: AcceptanceDrifted, LengthsDrifted.",
        ),
    ] = ()


class ModelAccount(StatusModel):
    """The last windows of the arm in place, none of which overlaps another."""

    arm: Annotated[ArmName, Field(description="The arm.")]
    profile: Annotated[ObjectName, Field(description="The profile that predicted.")]
    windows: Annotated[
        tuple[AccountWindow, ...],
        Field(max_length=MOST_WINDOWS, json_schema_extra=ATOMIC, description="Oldest first."),
        Renewal.LEARNED,
    ] = ()


class PositionSurvival(StatusModel):
    """One draft position of the arm in place."""

    position: Annotated[int, Field(ge=1, description="The position, from 1.")]
    live_accept: Annotated[
        Number | None,
        Field(
            description="Share of drafts whose first tokens up to here were all accepted, averaged over a quarter of an hour."
        ),
    ] = None
    calibrated_accept: Annotated[
        Number | None, Field(description="The same when the arm was calibrated; absent where not measured.")
    ] = None


class ModelStatus(StatusModel):
    """How measured latency of the arm in place compares with what the profile predicts for the same load, lengths and acceptance."""

    profile: Annotated[
        ObjectName | None, Field(description="The profile that predicts."), Renewal.AT_ONCE
    ] = None
    arm: Annotated[ArmName | None, Field(description="The arm in place."), Renewal.AT_ONCE] = None
    since: Annotated[
        Instant | None, Field(description="Begin of the oldest window behind these figures.")
    ] = None
    windows: Annotated[
        int | None, Field(ge=0, description="Windows behind them, none overlapping another.")
    ] = None
    requests: Annotated[int | None, Field(ge=0, description="Requests that finished in these windows.")] = (
        None
    )
    latency_ratio: Annotated[
        Number | None,
        Field(description="Measured over predicted mean latency: the median of the windows."),
        FigureGauge(
            "breakeven_model_error_ratio",
            "Measured over predicted mean latency of the running arm at the same load, lengths and acceptance: the median of the "
            "last windows.",
            {"arm": "arm"},
            ends=ends_of("latency_ratio"),
        ),
    ] = None
    latency_ratio_lower: Annotated[
        Number | None,
        Field(description="Lower bound, from how windows differ and at least from the requests in them."),
    ] = None
    latency_ratio_upper: UpperBound = None
    predicted_lower: Annotated[
        Number | None,
        Field(description="The prediction's own lower bound, over the prediction; absent where open."),
    ] = None
    predicted_upper: Annotated[
        Number | None,
        Field(description="The prediction's own upper bound, over the prediction; absent where open."),
    ] = None
    ttft_ratio: Annotated[
        Number | None, Field(description="Measured over predicted time to first token.")
    ] = None
    tpot_ratio: Annotated[
        Number | None, Field(description="Measured over predicted time per output token.")
    ] = None
    measured_speedup: Annotated[
        Number | None,
        Field(
            description="Predicted latency without speculation over the measured latency of the speculative arm in place: no "
            "acceptance and no law of that arm is in it."
        ),
        FigureGauge(
            "breakeven_measured_speedup_ratio",
            "Predicted latency without speculation over the measured latency of the running arm; no law of that arm is in it.",
            {"arm": "arm"},
            ends=ends_of("measured_speedup"),
        ),
    ] = None
    measured_speedup_lower: LowerBound = None
    measured_speedup_upper: UpperBound = None
    speedup: Annotated[
        Number | None,
        Field(
            description="The same by the profile and all that live latency has said about its laws, each by its precision: "
            "what decisions rest on."
        ),
    ] = None
    speedup_lower: LowerBound = None
    speedup_upper: UpperBound = None
    cause: Annotated[
        Word | None,
        Field(
            description="Why speculation does not surely pay, as `breakeven doctor` says it; absent where it does."
        ),
    ] = None
    cause_evidence: Annotated[Sentence | None, Field(description="The figures that show the cause.")] = None
    remedy: Annotated[Sentence | None, Field(description="What to do first.")] = None
    survival: Annotated[
        tuple[PositionSurvival, ...],
        Field(
            max_length=32,
            json_schema_extra=list_map("position"),
            description="Acceptance of the arm in place by draft position; a schedule has none.",
        ),
    ] = ()
