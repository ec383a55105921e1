"""Memory of a decision in the status of a SpeculativeService: an operator that starts again continues with it.

Actions that were taken and are waited for are as new as the status. Evidence of windows may be half a day older, see
`status_diff`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from breakeven_operator.resources.base import (
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
from breakeven_operator.resources.figures import FigureGauge, Renewal
from breakeven_operator.resources.modelstatus import ModelAccount

LONGEST_VALUE = 256
"""Characters of an annotation's value that are remembered; what comes after them makes no other value."""

_ATOMIC_SHARES = Field(max_length=32, json_schema_extra={"x-kubernetes-list-type": "atomic"})


class SeenAcceptance(StatusModel):
    """Acceptance measured live on the target."""

    arm: Annotated[ArmName, Field(description="The arm that ran.")]
    tokens_per_step: Annotated[
        RequiredNumber, Field(description="Tokens per request-step, bonus token included."), Renewal.MOVED
    ]
    relative_scatter: Annotated[
        Number | None,
        Field(description="Its standard deviation between windows of time, over itself."),
        Renewal.LEARNED,
    ] = None
    accept: Annotated[
        tuple[RequiredNumber, ...],
        _ATOMIC_SHARES,
        Field(description="Share of drafts whose first tokens up to each position were all accepted."),
        Renewal.LEARNED,
    ] = ()


class LiveEvidence(StatusModel):
    """What the live latency of an arm has said about its law: a Gaussian over the logarithms of two factors.

    The first factor is on C1 (a request alone), the second on C2 (its company); see docs/model.md.
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
    alone_seconds: Annotated[
        Number | None,
        Field(
            description="C1 that the profile gave at the acceptance and lengths of then; a law that was converted since is in more doubt."
        ),
    ] = None
    company_seconds: Annotated[Number | None, Field(description="C2, likewise.")] = None


class Suspicion(StatusModel):
    """Why a profile is not taken at its word any more."""

    profile: Annotated[ObjectName, Field(description="The profile.")]
    reason: Annotated[Word, Field(description="Why, in one word.")]
    message: Annotated[Sentence | None, Field(description="The same as a sentence, with both figures.")] = (
        None
    )
    since_time: Annotated[Instant | None, Field(description="Since when.")] = None


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
    message: Annotated[Sentence | None, Field(description="The same as a sentence, with its figures.")] = None
    profile: Annotated[ObjectName | None, Field(description="Profile in force then; a new one ends it.")] = (
        None
    )
    since_time: Annotated[Instant, Field(description="Since when.")]


class RequestsBefore(StatusModel):
    """Outcomes of the requests of the arm that ran before the one in place; later requests are compared with them."""

    arm: Annotated[ArmName, Field(description="The arm in place, whose requests are compared.")]
    posts: Annotated[int, Field(ge=0, description="HTTP requests that came, before it was entered.")]
    refusals: Annotated[int, Field(ge=0, description="Those answered with HTTP 4xx or 5xx.")]
    served: Annotated[int, Field(ge=0, description="Requests that an engine finished.")]


class MemoryStatus(StatusModel):
    """The decision's memory from one cycle to the next; an operator that starts again continues with it."""

    target_uid: Annotated[
        str | None,
        Field(
            max_length=64,
            description="UID of the target that was seen last; kept while there is none, so that another one is known to be new.",
        ),
    ] = None
    running_arm: Annotated[ArmName | None, Field(description="The arm that was running.")] = None
    last_switch_time: Annotated[
        Instant | None, Field(description="When the arm was last changed; starts the cool-down.")
    ] = None
    candidate_arm: Annotated[
        ArmName | None, Field(description="A speculative arm that would be entered if no limit held it back.")
    ] = None
    candidate_since_time: Annotated[
        Instant | None, Field(description="Since when entering one has been worth it.")
    ] = None
    decided_time: Annotated[
        Instant | None, Field(description="When it was last decided on figures."), Renewal.BEGINNING
    ] = None
    profile: Annotated[
        ObjectName | None,
        Field(description="Profile that the evidence is about; under another one it does not count."),
    ] = None
    saved_request_seconds: Annotated[
        RequiredNumber,
        Field(description="Request time of the fleet that speculation has saved; it fades over ten days."),
        Renewal.AMOUNT,
    ] = 0.0
    largest_rps: Annotated[
        RequiredNumber,
        Field(description="Largest load of the fleet that was seen within ten days."),
        Renewal.AMOUNT,
    ] = 0.0
    largest_replicas: Annotated[
        int | None,
        Field(
            ge=1,
            description="Replicas that it came to. Absent in the status of an older operator, whose figures are per replica.",
        ),
        Renewal.LEARNED,
    ] = None
    largest_time: Annotated[Instant | None, Field(description="When it came."), Renewal.LEARNED] = None
    queued_requests: Annotated[
        RequiredNumber,
        Field(
            description="Requests of the fleet that wait, by what came and what the arm in place carries; until they are served latency teaches nothing."
        ),
        Renewal.LEARNED,
    ] = 0.0
    queued_without: Annotated[
        RequiredNumber,
        Field(description="Those that would wait, had no speculation run all along."),
        Renewal.LEARNED,
    ] = 0.0
    queued_time: Annotated[
        Instant | None, Field(description="When requests last waited."), Renewal.LEARNED
    ] = None
    evidence: Annotated[
        tuple[LiveEvidence, ...],
        Field(
            max_length=64,
            json_schema_extra=list_map("arm"),
            description="What live latency has said about each arm that ever ran.",
        ),
        Renewal.LEARNED,
    ] = ()
    seen: Annotated[
        tuple[SeenAcceptance, ...],
        Field(
            max_length=8,
            json_schema_extra=list_map("arm"),
            description="Newest live acceptance per drafter; it outranks the calibrated one until a new profile counts.",
        ),
    ] = ()
    account: Annotated[
        ModelAccount | None,
        Field(
            description="Measured over predicted latency of the arm in place, window by window; a change of arm or profile begins anew."
        ),
    ] = None
    suspicion: Annotated[
        Suspicion | None,
        Field(description="Why the profile in force is not taken at its word; a new profile begins anew."),
    ] = None
    pays: Annotated[
        bool | None,
        Field(description="Whether speculation paid when the bounds last told; a flip is said in an event."),
    ] = None
    barred: Annotated[
        tuple[BarredArm, ...],
        Field(
            max_length=8,
            json_schema_extra=list_map("arm"),
            description="Arms that are not entered: requests failed on them, or their engines crashed.",
        ),
    ] = ()
    requests_before: Annotated[
        RequestsBefore | None,
        Field(
            description="Requests before the last roll, once it was judged: one that fails them later is left, too."
        ),
    ] = None
    failures: Annotated[
        int,
        Field(ge=0, description="Rolls undone in a row."),
        FigureGauge("breakeven_rolls_undone", "Rolls that were undone in a row."),
    ] = 0
    disproved: Annotated[
        int, Field(ge=0, description="Rolls in a row that measurement disproved, under one profile.")
    ] = 0
    disproved_profile: Annotated[
        ObjectName | None, Field(description="The profile that they were decided on.")
    ] = None
    backoff_reason: Annotated[
        Word | None,
        Field(description="Why the last roll was undone; urgent rolls do not wait for a measurement."),
    ] = None
    backoff_until_time: Annotated[Instant | None, Field(description="No roll before this.")] = None
    restores: Annotated[
        int, Field(ge=0, description="How often the annotation was put back after somebody dropped it.")
    ] = 0
    others_wrote_time: Annotated[
        Instant | None,
        Field(
            description="Newest change of the target by another field manager that was seen while the annotation stood; only a later one can have dropped it."
        ),
    ] = None
    written_value: Annotated[
        str | None,
        Field(
            max_length=8192,
            description="The annotation's value as last written by the operator; anything else is somebody's.",
        ),
    ] = None
    recalibrate: Annotated[
        str | None,
        Field(
            max_length=LONGEST_VALUE,
            description="Value of the recalibrate annotation that was last acted upon.",
        ),
    ] = None
    resume: Annotated[
        str | None,
        Field(
            max_length=LONGEST_VALUE, description="Value of the resume annotation that was last acted upon."
        ),
    ] = None
    taken_over_by: Annotated[
        str | None,
        Field(max_length=128, description="Field manager that owns the annotation in the operator's place."),
    ] = None
    force_next: Annotated[
        bool,
        Field(
            description="Whether the next write takes the annotation from whoever owns it; a person handed it back."
        ),
    ] = False
    pause_seen: Annotated[
        bool,
        Field(
            description="Whether spec.paused was set since then; unset again it hands the annotation back."
        ),
    ] = False
