"""Status of a SpeculativeService: everything the operator needs after a restart, and everything a person asks."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from breakeven.estimate import Estimate
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.packed import LONGEST, split
from breakeven_operator.resources.base import (
    ATOMIC,
    IN_NOTES,
    ArmName,
    Cell,
    Instant,
    Number,
    ObjectName,
    RequiredNumber,
    Sentence,
    StatusModel,
    Time,
    Word,
    list_map,
)
from breakeven_operator.resources.calibrationrun import AnswersInForce
from breakeven_operator.resources.decisionstatus import DecisionStatus
from breakeven_operator.resources.figures import (
    FigureGauge,
    ItsLower,
    ItsUpperOrOpen,
    LowerOrOpen,
    Renewal,
    UpperOrOpen,
    ends_of,
    row,
    status_fields,
)
from breakeven_operator.resources.memorystatus import MemoryStatus, ModelStatus
from breakeven_operator.resources.meta import Condition
from breakeven_operator.resources.targetstatus import (
    LONGEST_IMAGE,
    MOST_HISTORY,
    ControlStatus,
    Current,
    HistoryEntry,
    Rollout,
    Target,
)


class SavingsStatus(StatusModel):
    """GPUs that speculation spares now, and its cost; what it saved is in the receipts."""

    gpus_arm: ArmName | None = row(
        "The arm that gpusNotNeeded is about: the running one, else the recommended one.", IN_NOTES
    )
    gpus_basis: Word | None = row("Running or Recommended: whether that arm runs.", IN_NOTES)
    gpus_not_needed: Number | None = row(
        "GPUs that the highest expected load (else the present one) does not need with that arm, within spec.slo; below 0 it needs more. "
        "They are saved only if an autoscaler or a person removes them.",
        IN_NOTES,
        FigureGauge(
            "breakeven_gpus_not_needed",
            "GPUs that the expected load does not need with an arm, within the objectives, below 0 more; basis says whether it runs. "
            "Times 24 it is GPU-hours a day.",
            {"arm": "gpus_arm", "basis": "gpus_basis"},
            ends=ends_of("gpus_not_needed"),
        ),
    )
    gpus_not_needed_lower: Annotated[LowerOrOpen, IN_NOTES] = None
    gpus_not_needed_upper: Annotated[UpperOrOpen, IN_NOTES] = None
    rolls_seconds: Number | None = row(
        "How long the rolls of status.history took together.",
        IN_NOTES,
        FigureGauge(
            "breakeven_rolls_listed_seconds", "How long the rolls that the status lists took together."
        ),
    )
    message: Sentence | None = row(
        "The same as a sentence, with the cost of calibrations, and with money if the chart has a price."
    )

    @property
    def gpus(self) -> Estimate:
        """GPUs not needed; empty where not known."""
        return Estimate(self.gpus_not_needed, self.gpus_not_needed_lower, self.gpus_not_needed_upper)


class ObjectiveFinding(StrEnum):
    """Verdict of the measured quantile on an objective, its bounds considered."""

    KEPT = "Kept"
    MISSED = "Missed"
    UNCERTAIN = "Uncertain"
    UNMEASURED = "Unmeasured"


def _promised(name: str, text: str, ends: tuple[str, ...] = ()) -> FigureGauge:
    """A gauge of figures with an objective.

    Requests and missed ones are counts of the last window, published at every cycle: summed over an hour both count a
    request equally often, so that their ratio holds for the hour, whichever pods came and went. A status of an earlier cycle would
    be counted again and again.
    """
    return FigureGauge(name, text, {"figure": "figure"}, ends=ends, only_with="limit_seconds", fresh=True)


def _quantile(quantile: str, name: str) -> FigureGauge:
    return FigureGauge(
        "breakeven_latency_quantile_seconds",
        "Measured quantile over the last window, by figure (e2e, ttft, tpot), of services with an objective; its bounds are edges of "
        "vLLM's histogram.",
        {"figure": "figure"},
        fixed={"quantile": quantile},
        ends=ends_of(name),
        fresh=True,
    )


class ObjectiveStatus(StatusModel):
    """One figure of vLLM's histograms over the last window, and its objective where spec.slo has one."""

    figure: Annotated[
        Word,
        Field(
            description="e2e: whole requests. ttft: time to first token. tpot: time per output token, as a mean of each request."
        ),
    ]
    finding: ObjectiveFinding | None = row(
        "Kept or Missed: the bounds of the measured quantile lie on one side of the limit. Uncertain: on both. "
        "Unmeasured: there is no such quantile now. Absent without an objective.",
        Renewal.AT_ONCE,
    )
    since_time: Instant | None = row("Since when it has been found so.", Renewal.AT_ONCE)
    limit_seconds: Number | None = row(
        "What the objective allows.",
        Renewal.AT_ONCE,
        _promised("breakeven_objective_seconds", "Limit of spec.slo that 95 % of requests shall keep."),
    )
    target_percent: int | None = row("Share of requests that shall keep it.", ge=0, le=100)
    attainment_percent: Number | None = row(
        "Share of requests that kept it, interpolated between two edges of the histogram.",
        _promised(
            "breakeven_objective_attainment_ratio",
            "Share of the last window's requests within the limit.",
            ends_of("attainment_percent"),
        ),
    )
    attainment_lower_percent: Number | None = row(
        "Its lower bound: sampling, and no request between the edges kept it."
    )
    attainment_upper_percent: Number | None = row(
        "Its upper bound: sampling, and each request between the edges kept it."
    )
    requests: int | None = row(
        "Requests in the histogram.",
        _promised(
            "breakeven_objective_requests", "Requests of the last window that were held against the limit."
        ),
        ge=0,
    )
    missed_requests: int | None = row(
        "Requests that surely took longer than the limit.",
        _promised("breakeven_objective_missed_requests", "Requests of the window that surely took longer."),
        ge=0,
    )
    p50_seconds: Number | None = row(
        "Median; half of the requests took no longer.", _quantile("0.5", "p50_seconds")
    )
    p50_lower_seconds: ItsLower = None
    p50_upper_seconds: ItsUpperOrOpen = None
    p95_seconds: Number | None = row("95th percentile.", _quantile("0.95", "p95_seconds"))
    p95_lower_seconds: ItsLower = None
    p95_upper_seconds: ItsUpperOrOpen = None
    p99_seconds: Number | None = row("99th percentile.", _quantile("0.99", "p99_seconds"))
    p99_lower_seconds: ItsLower = None
    p99_upper_seconds: ItsUpperOrOpen = None
    predicted_p95_seconds: Number | None = row(
        "95th percentile that the profile predicts for the running arm at the present load; absent where none was calibrated.",
        _promised(
            "breakeven_objective_predicted_seconds",
            "95th percentile that the profile predicts for the running arm at the present load.",
            ends_of("predicted_p95_seconds"),
        ),
    )
    predicted_p95_lower_seconds: ItsLower = None
    predicted_p95_upper_seconds: ItsUpperOrOpen = None


class ArmCapacity(StatusModel):
    """What one replica carries with an arm."""

    arm: Annotated[ArmName, Field(description="The arm.")]
    capacity_rps: Annotated[
        RequiredNumber,
        Field(
            description="Largest load per replica that keeps spec.slo, requests per second; without one, what it carries at all."
        ),
        FigureGauge(
            "breakeven_capacity_requests_per_second",
            "Largest load per replica that keeps the objectives; what an arm carries at all without any. Absent where unknown or a "
            "bound is open.",
            {"arm": "arm"},
            ends=("lower_rps", "upper_rps"),
        ),
    ]
    lower_rps: LowerOrOpen = None
    upper_rps: UpperOrOpen = None
    limit: Word | None = row(
        "What bounds it: Objective, Saturation, MaxNumSeqs (the engine's batch) or KvPool."
    )
    replicas: int | None = row(
        "Replicas for the present load of all of them, with headroom, by the estimate.", ge=1
    )


class CapacityStatus(StatusModel):
    """How much load the target's replicas carry, and how many it needs."""

    arms: tuple[ArmCapacity, ...] = row(
        "Every arm that may run.", IN_NOTES, default=(), extra=list_map("arm"), max_length=64
    )
    fleet_load_rps: Number | None = row("Offered load of all replicas together, requests per second.")
    recommended_replicas: int | None = row(
        "Replicas for that load times 1.2, by the lower bound of the running arm (during a roll: of the arm that carries least). "
        "Absent while load or capacity is not known.",
        FigureGauge(
            "breakeven_recommended_replicas",
            "Replicas for the present load of all of them times 1.2, by the lower bound of the running arm's capacity; absent while "
            "load or capacity is not known.",
            # Users act upon this figure, so it must not be of an earlier cycle.
            fresh=True,
        ),
        ge=1,
    )
    scaled_by: str | None = row(
        "Field manager of the autoscaler that last set the target's replicas; absent: none has.",
        Renewal.AT_ONCE,
        max_length=128,
    )
    message: Sentence | None = row("The same as a sentence.")


class GateStatus(StatusModel):
    """The last gate that an image of the target had to pass."""

    run: ObjectName = Field(description="The CalibrationRun.")
    fingerprint: str | None = row("What the target was with that image.", max_length=64)
    image: str = Field(max_length=LONGEST_IMAGE, description="The image of now.")
    word: Annotated[
        Word,
        Field(description="How it ended: Same and Faster let the profile of before go on."),
        FigureGauge(
            "breakeven_gate",
            "1 for the word about the target's last new image: Same, Faster, a loss (Slower, AcceptanceLost, CacheLost, AnswersDiffer, "
            "Refused, DoesNotStart) or Undecided. Absent without a gate.",
            {"word": "word", "image": "image"},
            info=True,
        ),
    ]
    message: Sentence = Field(description="The same as a sentence.")
    time: Instant | None = row("When it ended.")


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
    gate: GateStatus | None = row(
        "The last gate that an image of the target had to pass.", IN_NOTES, Renewal.AT_ONCE
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

    arm: Cell | None = row("Running arm.", Renewal.AT_ONCE)
    pays: Cell | None = row("Yes, No or ?: does speculation pay at this load.", Renewal.AT_ONCE)
    speedup: Cell | None = row("Speedup of the compared arm with bounds.")
    break_even: Cell | None = row("Load per replica at which the gain is gone.")
    load: Cell | None = row("Load per replica.")
    recommended: Cell | None = row("Arm that should run.", Renewal.AT_ONCE)
    reason: Cell | None = row("Reason word with progress.")
    mode: Cell | None = row("Mode, with `pinned` and `paused`.", Renewal.AT_ONCE)


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
    control: ControlStatus | None = row(
        "The speedup of now, by a standing control.", IN_NOTES, Renewal.AT_ONCE
    )
    savings: SavingsStatus | None = row("What speculation is worth, and what it cost.", Renewal.MOVED)
    workings: ServiceWorkings | None = row("The operator's own notes; no interface, they may change.")

    def whole(self) -> dict[str, Any]:
        """The JSON object with every field in its own place."""
        return super().to_json_object()

    def to_json_object(self) -> dict[str, Any]:
        """The JSON object as the API server holds it: what nobody waits for stands in its notes."""
        return with_notes(self.whole())

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


def with_notes(status: Mapping[str, Any]) -> dict[str, Any]:
    """A whole status as the API server holds it."""
    return split(status, NOTED, frozenset({"history"}))
