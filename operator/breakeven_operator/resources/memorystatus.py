"""Memory of a decision in the status of a SpeculativeService: an operator that starts again continues with it.

Actions that were taken and are waited for are as new as the status. Evidence of windows may be half a day older, see `action_plan`.
The account of measured latency against the profile's predictions is part of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Annotated

from pydantic import Field

from breakeven.planning.decision_memory import Evidence
from breakeven_operator.resources.base import (
    ATOMIC,
    IN_NOTES,
    LEARNED,
    ArmName,
    Instant,
    Learned,
    LearnedAmount,
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


def typical(values: Iterable[float | None]) -> float | None:
    """The median of what is known."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


class ModelStatus(StatusModel):
    """How measured latency of the arm in place compares with what the profile predicts for the same load, lengths and acceptance."""

    profile: ObjectName | None = row("The profile that predicts.", IN_NOTES, Renewal.AT_ONCE)
    arm: ArmName | None = row("The arm in place.", IN_NOTES, Renewal.AT_ONCE)
    since: Instant | None = row("Begin of the oldest window behind these figures.", IN_NOTES)
    windows: int | None = row("Windows behind them, none overlapping another.", IN_NOTES, ge=0)
    requests: int | None = row("Requests that finished in these windows.", IN_NOTES, ge=0)
    latency_ratio: Number | None = row(
        "Measured over predicted mean latency: the median of the windows.",
        IN_NOTES,
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
        "The prediction's own lower bound, over the prediction; absent where open.", IN_NOTES
    )
    predicted_upper: Number | None = row(
        "The prediction's own upper bound, over the prediction; absent where open.", IN_NOTES
    )
    ttft_ratio: Number | None = row("Measured over predicted time to first token.")
    tpot_ratio: Number | None = row("Measured over predicted time per output token.")
    measured_speedup: Number | None = row(
        "Predicted latency without speculation over the measured latency of the speculative arm in place: no "
        "acceptance and no law of that arm is in it.",
        IN_NOTES,
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
    )
    speedup_lower: Annotated[LowerBound, IN_NOTES] = None
    speedup_upper: Annotated[UpperBound, IN_NOTES] = None
    cause: Word | None = row(
        "Why speculation does not surely pay, as `breakeven doctor` says it; absent where it does."
    )
    cause_evidence: Sentence | None = row("The figures that show the cause.")
    remedy: Sentence | None = row("What to do first.")
    survival: tuple[PositionSurvival, ...] = row(
        "Acceptance of the arm in place by draft position; a schedule has none.",
        IN_NOTES,
        default=(),
        extra=list_map("position"),
        max_length=32,
    )


LONGEST_VALUE = 256
"""Characters of an annotation's value that are remembered; what comes after them makes no other value."""


class SeenAcceptance(Learned):
    """Acceptance measured live on the target."""

    arm: Annotated[ArmName, Field(description="The arm that ran.")]
    tokens_per_step: Annotated[
        RequiredNumber, Field(description="Tokens per request-step, bonus token included."), Renewal.MOVED
    ]
    relative_scatter: Number | None = row(
        "Its standard deviation between windows of time, over itself.", Renewal.LEARNED
    )
    accept: tuple[RequiredNumber, ...] = row(
        "Share of drafts whose first tokens up to each position were all accepted.",
        Renewal.LEARNED,
        default=(),
        extra=ATOMIC,
        max_length=32,
    )

    @property
    def possible(self) -> bool:
        """See Learned."""
        return self.tokens_per_step > 0.0 and (self.relative_scatter or 0.0) >= 0.0


class LiveEvidence(Learned):
    """What the live latency of an arm has said about its law: a Gaussian over the logarithms of two factors.

    The first factor is on C1 (a request alone), the second on C2 (other requests in flight); see docs/numbers.md.
    """

    arm: Annotated[ArmName, Field(description="The arm.")]
    time: Annotated[
        Instant, Field(description="When it was last added to; it fades from then on."), Renewal.BEGINNING
    ]
    precision_alone: Annotated[
        RequiredNumber, Field(description="Precision of the first factor."), Renewal.AMOUNT
    ]
    precision_both: Annotated[RequiredNumber, Field(description="Precision that both share."), Renewal.AMOUNT]
    precision_company: Annotated[
        RequiredNumber, Field(description="Precision of the second factor."), Renewal.AMOUNT
    ]
    pull_alone: Annotated[RequiredNumber, Field(description="Precision times mean, of the first factor.")]
    pull_company: Annotated[RequiredNumber, Field(description="Precision times mean, of the second factor.")]
    alone_seconds: Number | None = row(
        "C1 that the profile gave at the acceptance and lengths of then; a law that was converted since is in more doubt."
    )
    company_seconds: Number | None = row("C2 that the profile gave at the same acceptance and lengths.")

    @property
    def possible(self) -> bool:
        """See Learned."""
        return self.evidence.possible

    @property
    def evidence(self) -> Evidence:
        """The same in the form that the library takes."""
        levels = (self.alone_seconds, self.company_seconds)
        return Evidence(
            (self.precision_alone, self.precision_both, self.precision_company),
            (self.pull_alone, self.pull_company),
            self.time.timestamp(),
            (levels[0], levels[1]) if levels[0] and levels[1] else None,
        )


class Suspicion(StatusModel):
    """Why a profile is not taken at its word any more."""

    profile: Annotated[ObjectName, Field(description="The profile.")]
    reason: Annotated[Word, Field(description="Why, in one word.")]
    message: Sentence | None = row("The same as a sentence, with both figures.")
    since_time: Instant | None = row("Since when.")


class BarredArm(StatusModel):
    """An arm that is not entered again before something about it has changed."""

    arm: Annotated[
        ArmName,
        Field(description="The arm."),
        FigureGauge(
            "breakeven_barred_arm_info",
            "1 for each arm that is not entered any more, because requests failed on it or its engines crashed.",
            {"arm": "arm", "reason": "reason"},
            info=True,
        ),
    ]
    reason: Annotated[Word, Field(description="Why it was left, in one word.")]
    message: Sentence | None = row("The same as a sentence, with its figures.")
    profile: ObjectName | None = row("Profile in force then; a new one ends it.")
    since_time: Annotated[Instant, Field(description="Since when.")]


class RequestsBefore(StatusModel):
    """Outcomes of the requests of the arm that ran before the one in place; later requests are compared with them."""

    arm: Annotated[ArmName, Field(description="The arm in place, whose requests are compared.")]
    posts: Annotated[int, Field(ge=0, description="HTTP requests that came, before it was entered.")]
    refusals: Annotated[
        int, Field(ge=0, description="HTTP requests answered with 4xx, or ended by an error of the engine.")
    ]
    served: Annotated[int, Field(ge=0, description="Requests that an engine began.")]


class MemoryStatus(StatusModel):
    """The decision's memory from one cycle to the next; an operator that starts again continues with it."""

    target_uid: str | None = row(
        "UID of the target that was seen last; kept while there is none, so that another one is known to be new.",
        max_length=64,
    )
    running_arm: ArmName | None = row("The arm that was running.")
    last_switch_time: Instant | None = row("When the arm was last changed; starts the cool-down.")
    candidate_arm: ArmName | None = row("An arm that would be entered if nothing held it back.")
    candidate_since_time: Instant | None = row("Since when entering one has been worth it.")
    decided_time: Instant | None = row("When it was last decided on figures.", Renewal.BEGINNING)
    profile: ObjectName | None = row(
        "Profile that the evidence is about; under another one it does not count."
    )
    saved_request_seconds: LearnedAmount = row(
        "Request time of the fleet that speculation has saved; it fades over ten days.",
        Renewal.AMOUNT,
        default=0.0,
    )
    largest_rps: LearnedAmount = row(
        "Largest load of the fleet that was seen within ten days.", Renewal.AMOUNT, default=0.0
    )
    largest_replicas: int | None = row(
        "Replicas that it came to; absent before any load was seen.",
        Renewal.LEARNED,
        ge=1,
    )
    largest_time: Instant | None = row("When it came.", Renewal.LEARNED)
    queued_requests: LearnedAmount = row(
        "Requests of the fleet that wait, by what came and what the arm in place carries; until they are served latency teaches nothing.",
        Renewal.LEARNED,
        default=0.0,
    )
    queued_without: LearnedAmount = row(
        "Those that would wait, had no speculation run all along.", Renewal.LEARNED, default=0.0
    )
    queued_time: Instant | None = row("When requests last waited.", Renewal.LEARNED)
    evidence: Annotated[tuple[LiveEvidence, ...], LEARNED] = row(
        "What live latency has said about each arm that ever ran.",
        Renewal.LEARNED,
        default=(),
        extra=list_map("arm"),
        max_length=64,
    )
    seen: Annotated[tuple[SeenAcceptance, ...], LEARNED] = row(
        "Newest live acceptance per drafter; it outranks the calibrated one until a new profile counts.",
        default=(),
        extra=list_map("arm"),
        max_length=8,
    )
    account: ModelAccount | None = row(
        "Measured over predicted latency of the arm in place, window by window; a change of arm or profile clears it."
    )
    suspicion: Suspicion | None = row(
        "Why the profile in force is not taken at its word; a new profile clears it."
    )
    pays: bool | None = row("Whether speculation paid when the bounds last told; a flip is said in an event.")
    barred: tuple[BarredArm, ...] = row(
        "Arms that are not entered: requests failed on them, or their engines crashed.",
        default=(),
        extra=list_map("arm"),
        max_length=8,
    )
    requests_before: RequestsBefore | None = row(
        "Requests before the last roll, once it was judged: one that fails them later is left, too."
    )
    failures: int = row(
        "Rolls undone in a row.",
        FigureGauge("breakeven_rolls_undone", "Rolls that were undone in a row."),
        default=0,
        ge=0,
    )
    disproved: int = row("Rolls in a row that measurement disproved, under one profile.", default=0, ge=0)
    disproved_profile: ObjectName | None = row("The profile that they were decided on.")
    backoff_reason: Word | None = row(
        "Why the last roll was undone; urgent rolls do not wait for a measurement."
    )
    backoff_until_time: Instant | None = row("No roll before this.")
    restores: int = row("How often the annotation was put back after somebody dropped it.", default=0, ge=0)
    others_wrote_time: Instant | None = row(
        "Newest change of the target by another field manager that was seen while the annotation stood; only a later one can have dropped it."
    )
    written_value: str | None = row(
        "The annotation's value as last written by the operator; anything else is somebody's.",
        max_length=8192,
    )
    recalibrate: str | None = row(
        "Value of the recalibrate annotation that was last acted upon.", max_length=LONGEST_VALUE
    )
    resume: str | None = row(
        "Value of the resume annotation that was last acted upon.", max_length=LONGEST_VALUE
    )
    taken_over_by: str | None = row(
        "Field manager that owns the annotation in the operator's place.", max_length=128
    )
    force_next: bool = row(
        "Whether the next write takes the annotation from whoever owns it; a person handed it back.",
        default=False,
    )
    pause_seen: bool = row(
        "Whether spec.paused was set since then; unset again it hands the annotation back.", default=False
    )
