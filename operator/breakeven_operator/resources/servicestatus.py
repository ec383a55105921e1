"""Status of a SpeculativeService: everything the operator needs after a restart, and everything a person asks."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources.base import (
    ATOMIC,
    ArmName,
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
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.meta import Condition
from breakeven_operator.resources.modelstatus import ModelStatus
from breakeven_operator.resources.objectivestatus import ObjectiveStatus
from breakeven_operator.resources.rolloutstatus import HistoryEntry, Rollout
from breakeven_operator.resources.targetstatus import Current, Target


class PaysWhereStatus(StrEnum):
    """For which loads the compared arm beats no speculation (design of the model, comparison table)."""

    BELOW = "Below"
    ABOVE = "Above"
    ALWAYS = "Always"
    NEVER = "Never"
    TIE = "Tie"
    UNCERTAIN = "Uncertain"


class Alternative(StatusModel):
    """The best arm among those that were not chosen."""

    arm: Annotated[ArmName, Field(description="The arm.")]
    speedup: Annotated[
        Number | None, Field(description="Its speedup against no speculation at this load.")
    ] = None
    speedup_lower: Annotated[Number | None, Field(description="Lower bound.")] = None
    speedup_upper: Annotated[Number | None, Field(description="Upper bound.")] = None


class DecisionStatus(StatusModel):
    """The last decision with the figures that made it."""

    time: Annotated[Instant | None, Field(description="When it was made.")] = None
    action: Annotated[Word | None, Field(description="Stay, Switch or Hold.")] = None
    arm: Annotated[ArmName | None, Field(description="The arm that should run.")] = None
    running_arm: Annotated[ArmName | None, Field(description="The arm that ran when it was made.")] = None
    reason: Annotated[Word | None, Field(description="One word why; see docs/reasons.md.")] = None
    message: Annotated[
        Sentence | None, Field(description="The same as a sentence, with what would change it.")
    ] = None
    compared_arm: Annotated[
        ArmName | None,
        Field(
            description="The speculative arm that the following figures are about: the running one, else the best one."
        ),
    ] = None
    saturated_arms: Annotated[
        tuple[ArmName, ...],
        Field(
            max_length=2,
            json_schema_extra=ATOMIC,
            description="Which of the compared arm and none cannot carry the present load, by its law: requests queue, "
            "and there is no speedup to state.",
        ),
    ] = ()
    speedup: Annotated[
        Number | None,
        Field(
            description="Latency without speculation over latency with the compared arm; absent where one of the two is saturated."
        ),
    ] = None
    speedup_lower: Annotated[Number | None, Field(description="Lower bound of the speedup.")] = None
    speedup_upper: Annotated[Number | None, Field(description="Upper bound of the speedup.")] = None
    c1_ratio: Annotated[
        Number | None, Field(description="C1,R: latency of a lone request, compared arm over none.")
    ] = None
    c2_ratio: Annotated[
        Number | None,
        Field(
            description="C2,R: cost of company, compared arm over none; above 1 the gain shrinks with load."
        ),
    ] = None
    c2_ratio_lower: Annotated[Number | None, Field(description="Lower bound of C2,R.")] = None
    c2_ratio_upper: Annotated[Number | None, Field(description="Upper bound of C2,R.")] = None
    verdict: Annotated[
        PaysWhereStatus | None, Field(description="For which loads the compared arm pays.")
    ] = None
    break_even_rps: Annotated[
        Number | None, Field(description="Load per replica at which the gain is gone, requests per second.")
    ] = None
    break_even_lower_rps: Annotated[Number | None, Field(description="Lower bound; absent where open.")] = (
        None
    )
    break_even_upper_rps: Annotated[Number | None, Field(description="Upper bound; absent where open.")] = (
        None
    )
    confidence_percent: Annotated[
        int | None, Field(ge=0, le=100, description="Confidence of all bounds here.")
    ] = None
    load_rps: Annotated[
        Number | None, Field(description="Offered load per replica, requests per second.")
    ] = None
    considered_arm: Annotated[
        ArmName | None,
        Field(
            description="The arm that saving and roll cost are about: the one to change to, else the best other one."
        ),
    ] = None
    saving_percent: Annotated[
        Number | None,
        Field(
            description="Request time that the considered arm saves over the loads of the next horizonSeconds; below 0 it "
            "takes more."
        ),
    ] = None
    saving_lower_percent: Annotated[Number | None, Field(description="Lower bound of the saving.")] = None
    saving_upper_percent: Annotated[Number | None, Field(description="Upper bound of the saving.")] = None
    roll_cost_seconds: Annotated[
        Number | None,
        Field(description="What a roll to the considered arm takes, as time of serving the present load."),
    ] = None
    pays_until_rps: Annotated[
        Number | None,
        Field(description="breakEvenRps as the live latency of the arms that ran has corrected it."),
    ] = None
    expected_peak_rps: Annotated[
        Number | None,
        Field(
            description="Highest load per replica that is expected to come again, requests per second; absent when the "
            "present load is taken to last."
        ),
    ] = None
    expected_observations: Annotated[
        int | None,
        Field(
            ge=0,
            description="Past loads behind expectedPeakRps, each a mean over the same time: those of the last updatePolicy.horizonSeconds "
            "and what followed this time of day on the days before.",
        ),
    ] = None
    inflight: Annotated[Number | None, Field(description="Mean requests in flight per replica.")] = None
    utilization: Annotated[Number | None, Field(description="Load over the running arm's saturation.")] = None
    tokens_per_step: Annotated[
        Number | None, Field(description="Measured tokens per request-step of the running arm.")
    ] = None
    observed_latency_seconds: Annotated[
        Number | None, Field(description="Measured mean latency of a request.")
    ] = None
    predicted_latency_seconds: Annotated[
        Number | None, Field(description="What the profile predicts for the running arm.")
    ] = None
    requests: Annotated[
        int | None, Field(ge=0, description="Finished requests behind the measured figures.")
    ] = None
    given_up_percent: Annotated[
        Number | None,
        Field(
            description="Requests that began and whose clients went away before the end, of all that began."
        ),
    ] = None
    window_seconds: Annotated[Number | None, Field(description="Time over which they were counted.")] = None
    evidence_time: Annotated[Instant | None, Field(description="Time of the newest sample used.")] = None
    alternative: Annotated[Alternative | None, Field(description="The best arm that was not chosen.")] = None
    held_until: Annotated[
        Instant | None, Field(description="End of the cool-down, dwell or back-off that holds a change back.")
    ] = None
    profile: Annotated[ObjectName | None, Field(description="SpeculationProfile the figures come from.")] = (
        None
    )


class CalibrationStatus(StatusModel):
    """Where measuring stands."""

    run: Annotated[ObjectName | None, Field(description="CalibrationRun under way, else the last one.")] = (
        None
    )
    profile: Annotated[ObjectName | None, Field(description="SpeculationProfile in force.")] = None
    profile_time: Annotated[Time | None, Field(description="When it was measured.")] = None
    fingerprint: Annotated[str | None, Field(max_length=64, description="What it was measured on.")] = None
    points_done: Annotated[int | None, Field(ge=0, description="Points of the run that are measured.")] = None
    points_planned: Annotated[int | None, Field(ge=0, description="Points of the run in all.")] = None
    gpu_seconds_used: Annotated[Number | None, Field(description="GPU-seconds the run has held so far.")] = (
        None
    )
    last_run_time: Annotated[
        Instant | None, Field(description="When the last run ended, whatever its result.")
    ] = None
    last_run: Annotated[ObjectName | None, Field(description="The run that ended then.")] = None
    last_reason: Annotated[Word | None, Field(description="How it ended, in one word.")] = None
    last_message: Annotated[Sentence | None, Field(description="The same as a sentence.")] = None
    failures: Annotated[
        int, Field(ge=0, description="Runs that failed in a row; each doubles the pause.")
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
    arm: Annotated[Cell | None, Field(description="Running arm.")] = None
    pays: Annotated[Cell | None, Field(description="Yes, No or ?: does speculation pay at this load.")] = None
    speedup: Annotated[Cell | None, Field(description="Speedup of the compared arm with bounds.")] = None
    break_even: Annotated[Cell | None, Field(description="Load per replica at which the gain is gone.")] = (
        None
    )
    load: Annotated[Cell | None, Field(description="Load per replica.")] = None
    recommended: Annotated[Cell | None, Field(description="Arm that should run.")] = None
    c2_ratio: Annotated[Cell | None, Field(description="C2,R with bounds.")] = None
    profile: Annotated[Cell | None, Field(description="Profile in force.")] = None
    reason: Annotated[Cell | None, Field(description="Reason word with progress.")] = None


class ServiceWorkings(StatusModel):
    """Fields that the operator writes for itself; kubectl describe sorts by name and prints them last."""

    memory: Annotated[
        MemoryStatus | None, Field(description="What the decision remembers between cycles.")
    ] = None
    display: Annotated[
        ServiceDisplay | None, Field(description="The columns of kubectl get, ready to print.")
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
        DecisionStatus | None, Field(description="The last decision with the figures that made it.")
    ] = None
    rollout: Annotated[Rollout | None, Field(description="A change of arm on its way.")] = None
    capacity: Annotated[
        CapacityStatus | None,
        Field(description="How much load the target's replicas carry, and how many it needs."),
    ] = None
    model: Annotated[
        ModelStatus | None,
        Field(description="What measured latency says of the profile's predictions for the arm in place."),
    ] = None
    objectives: Annotated[
        tuple[ObjectiveStatus, ...],
        Field(
            max_length=8,
            json_schema_extra=list_map("figure"),
            description="What users wait, from vLLM's histograms, held against spec.slo; absent without an objective.",
        ),
    ] = ()
    calibration: Annotated[CalibrationStatus | None, Field(description="Where measuring stands.")] = None
    history: Annotated[
        tuple[HistoryEntry, ...],
        Field(
            max_length=10,
            json_schema_extra=ATOMIC,
            description="Changes of arm that have ended, newest first.",
        ),
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
