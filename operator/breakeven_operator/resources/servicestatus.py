"""Status of a SpeculativeService: everything the operator needs after a restart, and everything a person asks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources.base import (
    ATOMIC,
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
from breakeven_operator.resources.figures import FigureGauge, Renewal
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.meta import Condition
from breakeven_operator.resources.modelstatus import ModelStatus
from breakeven_operator.resources.objectivestatus import ObjectiveStatus
from breakeven_operator.resources.rolloutstatus import HistoryEntry, Rollout
from breakeven_operator.resources.targetstatus import Current, Target


class CalibrationStatus(StatusModel):
    """Where measuring stands."""

    run: Annotated[
        ObjectName | None,
        Field(description="CalibrationRun under way, else the last one."),
        Renewal.AT_ONCE,
    ] = None
    profile: Annotated[
        ObjectName | None, Field(description="SpeculationProfile in force."), Renewal.AT_ONCE
    ] = None
    profile_time: Annotated[Time | None, Field(description="When it was measured.")] = None
    fingerprint: Annotated[str | None, Field(max_length=64, description="What it was measured on.")] = None
    points_done: Annotated[int | None, Field(ge=0, description="Points of the run that are measured.")] = None
    points_planned: Annotated[int | None, Field(ge=0, description="Points of the run in all.")] = None
    gpu_seconds_used: Annotated[Number | None, Field(description="GPU-seconds the run has held so far.")] = (
        None
    )
    last_run_time: Annotated[
        Instant | None,
        Field(description="When the last run ended, whatever its result."),
        Renewal.AT_ONCE,
    ] = None
    last_run: Annotated[ObjectName | None, Field(description="The run that ended then.")] = None
    last_reason: Annotated[Word | None, Field(description="How it ended, in one word.")] = None
    last_message: Annotated[Sentence | None, Field(description="The same as a sentence.")] = None
    failures: Annotated[
        int,
        Field(ge=0, description="Runs that failed in a row; each doubles the pause."),
        Renewal.AT_ONCE,
        FigureGauge("breakeven_calibrations_failed", "Calibrations that failed in a row."),
    ] = 0
    doubts: Annotated[
        int,
        Field(
            ge=0,
            description="Runs in a row that were asked for by what live traffic says against the profile; each doubles the pause.",
        ),
    ] = 0
    startup_seconds: Annotated[
        Number | None, Field(description="Longest engine start-up seen; sets the deadline of rolls.")
    ] = None


class ServiceDisplay(StatusModel):
    """The columns of kubectl get, ready to print."""

    target: Annotated[Cell | None, Field(description="Kind and name of the target.")] = None
    arm: Annotated[Cell | None, Field(description="Running arm."), Renewal.AT_ONCE] = None
    pays: Annotated[
        Cell | None, Field(description="Yes, No or ?: does speculation pay at this load."), Renewal.AT_ONCE
    ] = None
    speedup: Annotated[Cell | None, Field(description="Speedup of the compared arm with bounds.")] = None
    break_even: Annotated[Cell | None, Field(description="Load per replica at which the gain is gone.")] = (
        None
    )
    load: Annotated[Cell | None, Field(description="Load per replica.")] = None
    recommended: Annotated[Cell | None, Field(description="Arm that should run."), Renewal.AT_ONCE] = None
    c2_ratio: Annotated[Cell | None, Field(description="C2,R with bounds.")] = None
    profile: Annotated[Cell | None, Field(description="Profile in force.")] = None
    reason: Annotated[Cell | None, Field(description="Reason word with progress.")] = None


class ServiceWorkings(StatusModel):
    """Fields that the operator writes for itself; kubectl describe sorts by name and prints them last."""

    memory: Annotated[
        MemoryStatus | None, Field(description="What the decision remembers between cycles.")
    ] = None
    display: Annotated[
        ServiceDisplay | None,
        Field(description="The columns of kubectl get, ready to print."),
        Renewal.MOVED,
    ] = None


class SpeculativeServiceStatus(StatusModel):
    """What is, written by the operator."""

    observed_generation: Annotated[
        int | None, Field(ge=0, description="Generation of the spec that was last acted upon.")
    ] = None
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=16,
            json_schema_extra=list_map("type"),
            description="Ready: spec valid and the operator able to act. MetricsAvailable: fresh figures of every ready pod. Calibrated: a profile is in force. Profitable: speculation "
            "pays at this load. Progressing: a roll is under way. ModelAgrees: measured latency is as the profile predicts. "
            "AcceptanceAsCalibrated, LengthsAsCalibrated: live requests are such as were calibrated. ObjectivesKept: measured latency keeps spec.slo.",
        ),
    ] = ()
    target: Annotated[Target | None, Field(description="What the target was found to be.")] = None
    current: Annotated[Current | None, Field(description="What runs now.")] = None
    decision: Annotated[
        DecisionStatus | None,
        Field(description="The last decision with the figures that made it."),
        Renewal.MOVED,
    ] = None
    rollout: Annotated[Rollout | None, Field(description="A change of arm on its way.")] = None
    capacity: Annotated[
        CapacityStatus | None,
        Field(description="How much load the target's replicas carry, and how many it needs."),
        Renewal.MOVED,
    ] = None
    model: Annotated[
        ModelStatus | None,
        Field(description="What measured latency says of the profile's predictions for the arm in place."),
        Renewal.MOVED,
    ] = None
    objectives: Annotated[
        tuple[ObjectiveStatus, ...],
        Field(
            max_length=8,
            json_schema_extra=list_map("figure"),
            description="What users wait, from vLLM's histograms, held against spec.slo; absent without an objective.",
        ),
        Renewal.MOVED,
    ] = ()
    calibration: Annotated[
        CalibrationStatus | None, Field(description="Where measuring stands."), Renewal.MOVED
    ] = None
    history: Annotated[
        tuple[HistoryEntry, ...],
        Field(
            max_length=10,
            json_schema_extra=ATOMIC,
            description="Changes of arm that have ended, newest first.",
        ),
        Renewal.MOVED,
    ] = ()
    workings: Annotated[
        ServiceWorkings | None, Field(description="The operator's own notes; no interface, they may change.")
    ] = None

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
