"""A change of arm in the status of a SpeculativeService: the one on its way, and those that have ended."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from breakeven.planning.roll_experiment import Witness
from breakeven_operator.resources.base import (
    ArmName,
    Instant,
    Number,
    ObjectName,
    Sentence,
    StatusModel,
    Time,
    Word,
)
from breakeven_operator.resources.figures import FigureGauge, Renewal


class RolloutPhase(StrEnum):
    """How far a change of arm has come."""

    INTENDED = "Intended"
    ROLLING = "Rolling"
    CONFIRMING = "Confirming"
    UNDOING = "Undoing"


MEASURED_PHASES = frozenset({RolloutPhase.ROLLING, RolloutPhase.CONFIRMING})
"""Phases in which a change is an experiment under way."""


class HistoryResult(StrEnum):
    """How a change of arm ended; `Unconfirmed` stands in entries of earlier versions only."""

    CONFIRMED = "Confirmed"
    NOT_WORSE = "NotWorse"
    UNPROVEN = "Unproven"
    DISPROVED = "Disproved"
    UNMEASURED = "Unmeasured"
    UNCONFIRMED = "Unconfirmed"
    UNDONE = "Undone"
    SUPERSEDED = "Superseded"


class PromiseAndMeasurement(StatusModel):
    """Expected speedup of a change of arm, and the measured one."""

    predicted_speedup: Annotated[
        Number | None,
        Field(
            description="Predicted latency ratio, old arm over new; once it is measured, for the load that was measured."
        ),
    ] = None
    predicted_speedup_lower: Annotated[Number | None, Field(description="Lower bound of it.")] = None
    predicted_speedup_upper: Annotated[Number | None, Field(description="Upper bound of it.")] = None
    load_rps: Annotated[
        Number | None,
        Field(description="Load per replica at which it was decided; once it is measured, at which it was."),
    ] = None
    measured_speedup: Annotated[
        Number | None, Field(description="Measured latency ratio, old arm over new, at equal load.")
    ] = None
    measured_speedup_lower: Annotated[Number | None, Field(description="Lower bound of it.")] = None
    measured_speedup_upper: Annotated[Number | None, Field(description="Upper bound of it.")] = None
    measured_requests: Annotated[int | None, Field(ge=0, description="Requests behind the measurement.")] = (
        None
    )
    witness: Annotated[
        Witness | None,
        Field(
            description="What the measurement rests on: SideBySide (both arms at the same time), BeforeAfter, or Both."
        ),
    ] = None


def _deadline(rollout: Rollout) -> datetime | None:
    # Once all pods run the new arm only measuring is left, which the deadline is not about.
    return rollout.deadline_time if rollout.finished_time is None else None


class Rollout(PromiseAndMeasurement):
    """A change of arm on its way; written before the target is."""

    id: Annotated[str, Field(max_length=64, description="Name of this change in events and logs.")]
    from_arm: Annotated[ArmName | None, Field(description="The arm that ran.")] = None
    to_arm: Annotated[ArmName | None, Field(description="The arm that shall run.")] = None
    reason: Annotated[Word | None, Field(description="Why, in one word.")] = None
    phase: Annotated[RolloutPhase, Field(description="Intended, Rolling, Confirming or Undoing.")] = (
        RolloutPhase.INTENDED
    )
    value: Annotated[
        str | None, Field(max_length=8192, description="The annotation's value that is written.")
    ] = None
    previous_value: Annotated[
        str | None,
        Field(max_length=8192, description="The annotation's value to go back to; absent: there was none."),
    ] = None
    started_time: Annotated[Instant | None, Field(description="When it was decided.")] = None
    deadline_time: Annotated[
        Instant | None,
        Field(description="When it is undone unless it has finished."),
        FigureGauge(
            "breakeven_rollout_deadline_timestamp_seconds",
            "When a roll is undone unless all pods run the new arm; absent when none is under way.",
            instead=_deadline,
        ),
    ] = None
    unschedulable_since_time: Annotated[
        Instant | None, Field(description="Since when a new pod has found no GPU."), Renewal.MOVED
    ] = None
    finished_time: Annotated[
        Instant | None, Field(description="When all pods ran the new arm; measuring starts here.")
    ] = None
    from_replica_set: Annotated[
        ObjectName | None, Field(description="The ReplicaSet whose pods run the old arm.")
    ] = None
    to_replica_set: Annotated[
        ObjectName | None, Field(description="The ReplicaSet whose pods run the new arm.")
    ] = None
    target_generation: Annotated[
        int | None, Field(ge=0, description="The target's generation after the write.")
    ] = None
    latency_before_seconds: Annotated[
        Number | None, Field(description="Measured mean latency before it.")
    ] = None


class HistoryEntry(PromiseAndMeasurement):
    """A change of arm that has ended."""

    time: Annotated[Time, Field(description="When it ended.")]
    from_arm: Annotated[ArmName | None, Field(description="The arm that ran.")] = None
    to_arm: Annotated[ArmName | None, Field(description="The arm that should run.")] = None
    reason: Annotated[Word | None, Field(description="Why, in one word.")] = None
    result: Annotated[
        HistoryResult,
        Field(
            description="What was measured (Confirmed, NotWorse, Unproven, Disproved and left in place, Unmeasured), Undone or "
            "Superseded; Unconfirmed in entries of earlier versions."
        ),
    ]
    seconds: Annotated[Number | None, Field(description="How long it took.")] = None
    message: Annotated[Sentence | None, Field(description="The same as a sentence.")] = None
