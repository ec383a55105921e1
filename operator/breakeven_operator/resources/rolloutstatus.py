"""A change of arm in the status of a SpeculativeService: the one on its way, and those that have ended."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from breakeven.phrases import change_text
from breakeven.reasons import Witness
from breakeven_operator.resources.base import (
    IN_NOTES,
    ArmName,
    Instant,
    Number,
    ObjectName,
    Sentence,
    StatusModel,
    Time,
    Word,
)
from breakeven_operator.resources.figures import FigureGauge, Renewal, row

MOST_HISTORY = 10
"""Changes of arm that have ended, of which the status keeps no more."""


class RolloutPhase(StrEnum):
    """How far a change of arm has come."""

    INTENDED = "Intended"
    ROLLING = "Rolling"
    CONFIRMING = "Confirming"
    UNDOING = "Undoing"


MEASURED_PHASES = frozenset({RolloutPhase.ROLLING, RolloutPhase.CONFIRMING})
"""Phases in which a change is an experiment under way."""


class HistoryResult(StrEnum):
    """How a change of arm ended."""

    CONFIRMED = "Confirmed"
    NOT_WORSE = "NotWorse"
    UNPROVEN = "Unproven"
    DISPROVED = "Disproved"
    UNMEASURED = "Unmeasured"
    UNDONE = "Undone"
    SUPERSEDED = "Superseded"


class PromiseAndMeasurement(StatusModel):
    """Expected speedup of a change of arm, and the measured one."""

    predicted_speedup: Number | None = row(
        "Predicted latency ratio, old arm over new; once it is measured, for the load that was measured.",
        IN_NOTES,
    )
    predicted_speedup_lower: Number | None = row("Lower bound of it.", IN_NOTES)
    predicted_speedup_upper: Number | None = row("Upper bound of it.", IN_NOTES)
    load_rps: Number | None = row(
        "Load per replica at which it was decided; once it is measured, at which it was.", IN_NOTES
    )
    measured_speedup: Number | None = row(
        "Measured latency ratio, old arm over new, at equal load.", IN_NOTES
    )
    measured_speedup_lower: Number | None = row("Lower bound of it.", IN_NOTES)
    measured_speedup_upper: Number | None = row("Upper bound of it.", IN_NOTES)
    measured_requests: int | None = row("Requests behind the measurement.", IN_NOTES, ge=0)
    witness: Witness | None = row(
        "What the measurement rests on: SideBySide (both arms at the same time), BeforeAfter, or Both.",
        IN_NOTES,
    )


def _deadline(rollout: Rollout) -> datetime | None:
    # Once all pods run the new arm only measuring is left, which the deadline is not about.
    return rollout.deadline_time if rollout.finished_time is None else None


class Rollout(PromiseAndMeasurement):
    """A change of arm on its way; written before the target is."""

    id: Annotated[str, Field(max_length=64, description="Name of this change in events and logs.")]
    from_arm: ArmName | None = row("The arm that ran.")
    to_arm: ArmName | None = row("The arm that shall run.")
    reason: Word | None = row("Why, in one word.")
    phase: RolloutPhase = row("Intended, Rolling, Confirming or Undoing.", default=RolloutPhase.INTENDED)
    value: str | None = row("The annotation's value that is written.", max_length=8192)
    previous_value: str | None = row(
        "The annotation's value to go back to; absent: there was none.", max_length=8192
    )
    started_time: Instant | None = row("When it was decided.")
    deadline_time: Instant | None = row(
        "When it is undone unless it has finished.",
        FigureGauge(
            "breakeven_rollout_deadline_timestamp_seconds",
            "When a roll is undone unless all pods run the new arm; absent when none is under way.",
            instead=_deadline,
        ),
    )
    unschedulable_since_time: Instant | None = row(
        "Since when a new pod has found no GPU.", IN_NOTES, Renewal.MOVED
    )
    finished_time: Instant | None = row("When all pods ran the new arm; measuring starts here.")
    from_replica_set: ObjectName | None = row(
        "The ReplicaSet or ControllerRevision whose pods run the old arm.", IN_NOTES
    )
    to_replica_set: ObjectName | None = row(
        "The ReplicaSet or ControllerRevision whose pods run the new arm.", IN_NOTES
    )
    gpu_product: str | None = row(
        "GPU class of the target's pods when it began: pods of another class say nothing about the arms.",
        IN_NOTES,
        max_length=128,
    )
    target_generation: int | None = row(
        "The target's generation before the write, and after it once the value was seen there; two more are a write and its reversal.",
        IN_NOTES,
        ge=0,
    )
    latency_before_seconds: Number | None = row("Measured mean latency before it.", IN_NOTES)

    @property
    def change(self) -> str:
        """`no speculation -> eagle/3`."""
        return change_text(self.from_arm, self.to_arm)


class HistoryEntry(PromiseAndMeasurement):
    """A change of arm that has ended."""

    time: Annotated[Time, Field(description="When it ended.")]
    from_arm: ArmName | None = row("The arm that ran.")
    to_arm: ArmName | None = row("The arm that should run.")
    reason: Word | None = row("Why, in one word.")
    result: Annotated[
        HistoryResult,
        Field(
            description="What was measured (Confirmed, NotWorse, Unproven, Disproved and left in place, Unmeasured), Undone or Superseded."
        ),
    ]
    seconds: Number | None = row("How long it took.", IN_NOTES)
    message: Sentence | None = row("The same as a sentence.")

    @property
    def change(self) -> str:
        """`no speculation -> eagle/3`."""
        return change_text(self.from_arm, self.to_arm)
