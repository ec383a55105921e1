"""Measured latency against the profile's predictions (part of a SpeculativeService's status)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import Annotated

from pydantic import Field

from breakeven.estimate import Estimate
from breakeven.serving.causes import Finding
from breakeven_operator.resources.base import (
    ATOMIC,
    IN_NOTES,
    LEARNED,
    ArmName,
    Instant,
    Learned,
    Number,
    ObjectName,
    RequiredNumber,
    Sentence,
    StatusModel,
    Word,
    list_map,
)
from breakeven_operator.resources.figures import (
    FigureGauge,
    LowerBound,
    Reading,
    Renewal,
    UpperBound,
    ends_of,
    row,
)

MOST_WINDOWS = 12
"""Windows that an account keeps."""


class AccountWindow(Learned):
    """One window of the arm in place: what was measured over what the profile predicts for its load, lengths and acceptance."""

    time: Annotated[Instant, Field(description="When it ended."), Renewal.BEGINNING]
    window_seconds: Annotated[RequiredNumber, Field(description="How long it was.")]
    requests: Annotated[int, Field(ge=0, description="Requests that finished in it.")]
    observed_seconds: Annotated[RequiredNumber, Field(description="Measured mean latency.")]
    latency_ratio: Annotated[RequiredNumber, Field(description="Measured over predicted mean latency.")]
    sampling_error: Annotated[
        RequiredNumber, Field(description="Relative standard error of the measured mean, from its requests.")
    ]
    predicted_lower: Number | None = row(
        "Lower bound of the prediction over the prediction; absent where open."
    )
    predicted_upper: Number | None = row(
        "Upper bound of the prediction over the prediction; absent where open."
    )
    ttft_ratio: Number | None = row("Measured over predicted time to first token.")
    tpot_ratio: Number | None = row("Measured over predicted time per output token.")
    speedup: Number | None = row("Predicted latency without speculation over the measured one.")
    speedup_error: Number | None = row("Relative standard error of that prediction without speculation.")
    drifted: tuple[Word, ...] = row(
        "What was surely outside of what was calibrated: AcceptanceDrifted, LengthsDrifted.",
        default=(),
        extra=ATOMIC,
        max_length=4,
    )

    @property
    def possible(self) -> bool:
        """See Learned."""
        ratios = (self.latency_ratio, self.ttft_ratio, self.tpot_ratio, self.speedup, self.observed_seconds)
        return (
            all(one is None or 0.0 < one < 1e9 for one in ratios)
            and all(one is None or one >= 0.0 for one in (self.predicted_lower, self.predicted_upper))
            and all(one is None or 0.0 <= one < 1e6 for one in (self.sampling_error, self.speedup_error))
            and 0.0 < self.window_seconds < 1e6
        )


class ModelAccount(StatusModel):
    """The last windows of the arm in place, none of which overlaps another."""

    arm: Annotated[ArmName, Field(description="The arm.")]
    profile: Annotated[ObjectName, Field(description="The profile that predicted.")]
    windows: Annotated[tuple[AccountWindow, ...], LEARNED] = row(
        "Oldest first.", Renewal.LEARNED, default=(), extra=ATOMIC, max_length=MOST_WINDOWS
    )


class PositionSurvival(StatusModel):
    """One draft position of the arm in place."""

    position: Annotated[int, Field(ge=1, description="The position, from 1.")]
    live_accept: Number | None = row(
        "Share of drafts whose first tokens up to here were all accepted, averaged over a quarter of an hour."
    )
    calibrated_accept: Number | None = row("The same when the arm was calibrated; absent where not measured.")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts that the figures of an account are read from.

    Attributes:
        windows: windows of the account that count, oldest first; at least one.
        latency_ratio: measured over predicted latency. predicted: bounds of the prediction over the prediction.
        measured_speedup: by measured latency alone. speedup: by measured latency and the profile; None if there is none.
        cause: why speculation does not pay; None where it does, or no cause is known.
    """

    account: ModelAccount
    windows: Sequence[AccountWindow]
    latency_ratio: Estimate
    predicted: tuple[float, float]
    measured_speedup: Estimate | None
    speedup: Estimate | None
    cause: Finding | None
    survival: tuple[PositionSurvival, ...]


def _read(of: Callable[[ModelFacts], object]) -> Reading:
    return Reading(of)


def typical(values: Iterable[float | None]) -> float | None:
    """The median of what is known."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


class ModelStatus(StatusModel):
    """How measured latency of the arm in place compares with what the profile predicts for the same load, lengths and acceptance."""

    profile: ObjectName | None = row(
        "The profile that predicts.", IN_NOTES, _read(lambda facts: facts.account.profile), Renewal.AT_ONCE
    )
    arm: ArmName | None = row(
        "The arm in place.", IN_NOTES, _read(lambda facts: facts.account.arm), Renewal.AT_ONCE
    )
    since: Instant | None = row(
        "Begin of the oldest window behind these figures.",
        IN_NOTES,
        _read(lambda facts: facts.windows[0].time - timedelta(seconds=facts.windows[0].window_seconds)),
    )
    windows: int | None = row(
        "Windows behind them, none overlapping another.",
        IN_NOTES,
        _read(lambda facts: len(facts.windows)),
        ge=0,
    )
    requests: int | None = row(
        "Requests that finished in these windows.",
        IN_NOTES,
        _read(lambda facts: sum(one.requests for one in facts.windows)),
        ge=0,
    )
    latency_ratio: Number | None = row(
        "Measured over predicted mean latency: the median of the windows.",
        IN_NOTES,
        _read(lambda facts: facts.latency_ratio),
        FigureGauge(
            "breakeven_model_error_ratio",
            "Measured over predicted mean latency of the running arm at the same load, lengths and acceptance: the median of the "
            "last windows.",
            {"arm": "arm"},
            ends=ends_of("latency_ratio"),
        ),
    )
    latency_ratio_lower: Number | None = row(
        "Lower bound, from how windows differ and at least from the requests in them.", IN_NOTES
    )
    latency_ratio_upper: Annotated[UpperBound, IN_NOTES] = None
    predicted_lower: Number | None = row(
        "The prediction's own lower bound, over the prediction; absent where open.",
        IN_NOTES,
        _read(lambda facts: facts.predicted[0] or None),
    )
    predicted_upper: Number | None = row(
        "The prediction's own upper bound, over the prediction; absent where open.",
        IN_NOTES,
        _read(lambda facts: facts.predicted[1]),
    )
    ttft_ratio: Number | None = row(
        "Measured over predicted time to first token.",
        _read(lambda facts: typical(one.ttft_ratio for one in facts.windows)),
    )
    tpot_ratio: Number | None = row(
        "Measured over predicted time per output token.",
        _read(lambda facts: typical(one.tpot_ratio for one in facts.windows)),
    )
    measured_speedup: Number | None = row(
        "Predicted latency without speculation over the measured latency of the speculative arm in place: no "
        "acceptance and no law of that arm is in it.",
        IN_NOTES,
        _read(lambda facts: facts.measured_speedup),
        FigureGauge(
            "breakeven_measured_speedup_ratio",
            "Predicted latency without speculation over the measured latency of the running arm; no law of that arm is in it.",
            {"arm": "arm"},
            ends=ends_of("measured_speedup"),
        ),
    )
    measured_speedup_lower: Annotated[LowerBound, IN_NOTES] = None
    measured_speedup_upper: Annotated[UpperBound, IN_NOTES] = None
    speedup: Number | None = row(
        "The same by the profile and all that live latency has said about its laws, each by its precision: "
        "what decisions rest on.",
        IN_NOTES,
        _read(lambda facts: facts.speedup),
    )
    speedup_lower: Annotated[LowerBound, IN_NOTES] = None
    speedup_upper: Annotated[UpperBound, IN_NOTES] = None
    cause: Word | None = row(
        "Why speculation does not surely pay, as `breakeven doctor` says it; absent where it does.",
        _read(lambda facts: facts.cause and facts.cause.cause),
    )
    cause_evidence: Sentence | None = row(
        "The figures that show the cause.", _read(lambda facts: facts.cause and facts.cause.evidence[:1024])
    )
    remedy: Sentence | None = row(
        "What to do first.", _read(lambda facts: facts.cause and facts.cause.remedy[:1024])
    )
    survival: tuple[PositionSurvival, ...] = row(
        "Acceptance of the arm in place by draft position; a schedule has none.",
        IN_NOTES,
        _read(lambda facts: facts.survival),
        default=(),
        extra=list_map("position"),
        max_length=32,
    )
