"""Status of a SpeculativeService: everything the operator needs after a restart, and everything a person asks."""

from __future__ import annotations

from typing import Any

from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.packed import LONGEST, split
from breakeven_operator.resources.answerstatus import AnswersInForce
from breakeven_operator.resources.base import (
    ATOMIC,
    IN_NOTES,
    Cell,
    Instant,
    Number,
    ObjectName,
    Sentence,
    StatusModel,
    Time,
    Word,
    list_map,
)
from breakeven_operator.resources.capacitystatus import CapacityStatus
from breakeven_operator.resources.decisionstatus import DecisionStatus
from breakeven_operator.resources.figures import FigureGauge, Renewal, row, status_fields
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.meta import Condition
from breakeven_operator.resources.modelstatus import ModelStatus
from breakeven_operator.resources.objectivestatus import ObjectiveStatus
from breakeven_operator.resources.rolloutstatus import MOST_HISTORY, HistoryEntry, Rollout
from breakeven_operator.resources.savingsstatus import SavingsStatus
from breakeven_operator.resources.targetstatus import Current, Target


class CalibrationStatus(StatusModel):
    """Where measuring stands."""

    run: ObjectName | None = row("CalibrationRun under way, else the last one.", Renewal.AT_ONCE)
    profile: ObjectName | None = row("SpeculationProfile in force.", Renewal.AT_ONCE)
    profile_time: Time | None = row("When it was measured.", IN_NOTES)
    fingerprint: str | None = row("What it was measured on.", IN_NOTES, max_length=64)
    points_done: int | None = row("Points of the run that are measured.", ge=0)
    points_planned: int | None = row("Points of the run in all.", ge=0)
    gpu_seconds_used: Number | None = row("GPU-seconds the run has held so far.")
    total_gpu_seconds: Number | None = row(
        "GPU-seconds of all runs that ended.",
        FigureGauge(
            "breakeven_calibrations_gpu_seconds_spent",
            "GPUs times seconds of all calibrations that the status has counted; a restart of the operator loses none.",
        ),
    )
    last_run_time: Instant | None = row(
        "When the last run ended, whatever its result.", IN_NOTES, Renewal.AT_ONCE
    )
    last_run: ObjectName | None = row("The run that ended then.", IN_NOTES)
    last_reason: Word | None = row("How it ended, in one word.")
    last_message: Sentence | None = row("The same as a sentence.")
    failures: int = row(
        "Runs that failed in a row; each doubles the pause.",
        Renewal.AT_ONCE,
        FigureGauge("breakeven_calibrations_failed", "Calibrations that failed in a row."),
        default=0,
        ge=0,
    )
    doubts: int = row(
        "Runs in a row that were asked for by what live traffic says against the profile; each doubles the pause.",
        IN_NOTES,
        default=0,
        ge=0,
    )
    startup_seconds: Number | None = row(
        "Longest engine start-up seen; sets the deadline of rolls.", IN_NOTES
    )
    answers: tuple[AnswersInForce, ...] = row(
        "Whether the arms of the profile in force answer as no speculation does; absent where that was not compared.",
        Renewal.AT_ONCE,
        default=(),
        extra=list_map("arm"),
        max_length=64,
    )


class ServiceDisplay(StatusModel):
    """The columns of kubectl get, ready to print."""

    target: Cell | None = row("Kind and name of the target.")
    arm: Cell | None = row("Running arm.", Renewal.AT_ONCE)
    pays: Cell | None = row("Yes, No or ?: does speculation pay at this load.", Renewal.AT_ONCE)
    speedup: Cell | None = row("Speedup of the compared arm with bounds.")
    break_even: Cell | None = row("Load per replica at which the gain is gone.")
    load: Cell | None = row("Load per replica.")
    recommended: Cell | None = row("Arm that should run.", Renewal.AT_ONCE)
    reason: Cell | None = row("Reason word with progress.")


class ServiceWorkings(StatusModel):
    """Fields that the operator writes for itself; kubectl describe sorts by name and prints them last."""

    memory: MemoryStatus | None = row("What the decision remembers between cycles.", IN_NOTES)
    display: ServiceDisplay | None = row("The columns of kubectl get, ready to print.", Renewal.MOVED)
    notes: str | None = row(
        "What the decision remembers between cycles, and figures that nobody waits for: a version, and compressed JSON. "
        "`kubectl breakeven explain` reads it.",
        max_length=LONGEST,
    )


class SpeculativeServiceStatus(StatusModel):
    """What is, written by the operator."""

    observed_generation: int | None = row("Generation of the spec that was last acted upon.", ge=0)
    conditions: tuple[Condition, ...] = row(
        "Ready: spec valid and the operator able to act. MetricsAvailable: fresh figures of every ready pod. Calibrated: a profile is in force. Profitable: speculation "
        "pays at this load. Progressing: a roll is under way. ModelAgrees: measured latency is as the profile predicts. "
        "AcceptanceAsCalibrated, LengthsAsCalibrated: live requests are such as were calibrated; absent before they ever were not. ObjectivesKept: measured latency keeps spec.slo.",
        default=(),
        extra=list_map("type"),
        max_length=16,
    )
    target: Target | None = row("What the target was found to be.")
    current: Current | None = row("What runs now.")
    decision: DecisionStatus | None = row("The last decision with the figures that made it.", Renewal.MOVED)
    rollout: Rollout | None = row("A change of arm on its way.")
    capacity: CapacityStatus | None = row(
        "How much load the target's replicas carry, and how many it needs.", Renewal.MOVED
    )
    model: ModelStatus | None = row(
        "What measured latency says of the profile's predictions for the arm in place.", Renewal.MOVED
    )
    objectives: tuple[ObjectiveStatus, ...] = row(
        "What users wait, from vLLM's histograms, held against spec.slo; absent without an objective.",
        IN_NOTES,
        Renewal.MOVED,
        default=(),
        extra=list_map("figure"),
        max_length=8,
    )
    calibration: CalibrationStatus | None = row("Where measuring stands.", Renewal.MOVED)
    history: tuple[HistoryEntry, ...] = row(
        "The last change of arm that has ended; earlier ones stand in the notes.",
        Renewal.MOVED,
        default=(),
        extra=ATOMIC,
        max_length=MOST_HISTORY,
    )
    savings: SavingsStatus | None = row("What speculation is worth, and what it cost.", Renewal.MOVED)
    workings: ServiceWorkings | None = row("The operator's own notes; no interface, they may change.")

    def to_json_object(self) -> dict[str, Any]:
        """The JSON object as the API server holds it: what nobody waits for stands in its notes."""
        return split(super().to_json_object(), NOTED, frozenset({"history"}))

    @property
    def memory(self) -> MemoryStatus | None:
        """The decision's memory between cycles; None before the first one."""
        return self.workings.memory if self.workings is not None else None

    @property
    def display(self) -> ServiceDisplay | None:
        """The columns of kubectl get."""
        return self.workings.display if self.workings is not None else None

    def condition(self, type_: str) -> Condition | None:
        """The condition of this type, if it was ever set."""
        return next((condition for condition in self.conditions if condition.type == type_), None)

    @property
    def undecided(self) -> bool:
        """Whether a defect of the operator kept it from deciding: every figure here is of an earlier cycle."""
        ready = self.condition("Ready")
        return ready is not None and ready.reason == ClusterReason.INTERNAL_ERROR


NOTED = frozenset(
    one.json_path for one in status_fields(SpeculativeServiceStatus) if IN_NOTES in one.marks(str)
)
"""Paths of the fields that stand in the notes."""
