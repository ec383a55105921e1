"""Memory of a decision in the status of a SpeculativeService: an operator that starts again continues with it.

Actions that were taken and are waited for are as new as the status. Evidence of windows may be half a day older, see
`status_diff`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from breakeven.planning.decision_memory import Evidence
from breakeven_operator.resources.base import (
    ATOMIC,
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
from breakeven_operator.resources.figures import FigureGauge, Renewal, row
from breakeven_operator.resources.modelstatus import ModelAccount

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


class InflightTime(StatusModel):
    """Requests in flight of all replicas together, added up over time since the last roll; what the roll was worth follows from it."""

    since: Annotated[Instant, Field(description="The first window."), Renewal.BEGINNING]
    until: Annotated[Instant, Field(description="The newest window."), Renewal.LEARNED]
    inflight: Annotated[RequiredNumber, Field(description="Requests in flight then."), Renewal.LEARNED]
    request_seconds: Annotated[
        RequiredNumber, Field(description="Sum over the time between both, request-seconds."), Renewal.AMOUNT
    ]


class MemoryStatus(StatusModel):
    """The decision's memory from one cycle to the next; an operator that starts again continues with it."""

    target_uid: str | None = row(
        "UID of the target that was seen last; kept while there is none, so that another one is known to be new.",
        max_length=64,
    )
    running_arm: ArmName | None = row("The arm that was running.")
    last_switch_time: Instant | None = row("When the arm was last changed; starts the cool-down.")
    candidate_arm: ArmName | None = row("A speculative arm that would be entered if no limit held it back.")
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
    inflight_time: InflightTime | None = row(
        "Requests in flight since the last roll, if that was measured and led to the running arm."
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
