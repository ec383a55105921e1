"""The target, the arm that runs on it, the change of arm on its way, and changes that have ended (of a SpeculativeService's status)."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from breakeven.phrases import change_text, spoken
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
    list_map,
)
from breakeven_operator.resources.figures import FigureGauge, Renewal, ends_of, row

LONGEST_IMAGE = 1024
LONGEST_MODEL = 512
"""Characters of an image and of a model's name that statuses hold."""


class ArmSource(StrEnum):
    """Reason why the pods run the arm they run."""

    ANNOTATION = "Annotation"
    COMMAND_LINE = "CommandLine"
    UNSET = "Unset"


class Target(StatusModel):
    """What the target was found to be."""

    uid: str | None = row("UID of the target; another one means it was recreated.", IN_NOTES, max_length=64)
    generation: int | None = row("Generation of the target that was read.", IN_NOTES, ge=0)
    container_name: str | None = row("Container that runs vLLM.", IN_NOTES, max_length=63)
    image: str | None = row("Image of that container, by digest where pods tell.", max_length=LONGEST_IMAGE)
    model: str | None = row("Model that is served.", max_length=LONGEST_MODEL)
    served_model_name: str | None = row(
        "Value of vLLM's model_name label that is asked for.", IN_NOTES, max_length=LONGEST_MODEL
    )
    gpu_product: str | None = row(
        "GPU class of the nodes its pods run on (nvidia.com/gpu.product).", max_length=128
    )
    gpus_per_pod: int | None = row(
        "GPUs each pod holds.", IN_NOTES, FigureGauge("breakeven_pod_gpus", "GPUs that each pod holds."), ge=0
    )
    replicas: int | None = row("Pods wanted.", ge=0)
    replicas_changed_time: Instant | None = row(
        "When the number of pods wanted was last seen to change.", IN_NOTES
    )
    ready_replicas: int | None = row(
        "Pods ready.", FigureGauge("breakeven_ready_replicas", "Pods of the target that are ready."), ge=0
    )
    fingerprint: str | None = row(
        "Hash of image, model, engine arguments without speculative ones, GPU class and parallelism: "
        "a profile counts only for its own.",
        IN_NOTES,
        max_length=64,
    )
    opted_in: bool | None = row("Whether the manifest takes its arm from the annotation.", IN_NOTES)


class PodsOfArm(StatusModel):
    """How many pods run an arm."""

    arm: ArmName = Field(description="The arm.")
    pods: int = Field(ge=0, description="Pods that run it.")


class Current(StatusModel):
    """What runs now."""

    arm: ArmName | None = row(
        "The arm the target's pods run.",
        FigureGauge(
            "breakeven_current_arm_info",
            "1 for the arm that the target's pods run.",
            {"arm": "arm"},
            info=True,
        ),
    )
    method: str | None = row("vLLM's word for its method; none without speculation.", IN_NOTES, max_length=64)
    draft_length: int | None = row(
        "Tokens drafted per step; of a schedule the longest.",
        IN_NOTES,
        FigureGauge(
            "breakeven_current_draft_tokens",
            "Draft length of the running arm, tokens per step, of a schedule the longest; 0 without speculation.",
        ),
        ge=0,
    )
    schedule: str | None = row(
        "Draft length per batch size that runs, such as 1-8:5,9-32:2,33-:0.", max_length=1024
    )
    source: ArmSource | None = row("Annotation, CommandLine (static), or Unset.")
    since: Time | None = row("Since when.", IN_NOTES)
    pods_by_arm: tuple[PodsOfArm, ...] = row(
        "More than one entry only during a roll.", IN_NOTES, default=(), extra=list_map("arm"), max_length=8
    )

    @property
    def spoken(self) -> str:
        """The arm in a sentence."""
        return spoken(self.arm)


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

    id: str = Field(max_length=64, description="Name of this change in events and logs.")
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

    @property
    def change(self) -> str:
        """`no speculation -> eagle/3`."""
        return change_text(self.from_arm, self.to_arm)


class ControlStatus(StatusModel):
    """Speedup of now by a standing control: pods of two targets that run two arms at the same time."""

    service: ObjectName | None = row("The SpeculativeService whose target keeps the other arm.", IN_NOTES)
    arm: ArmName | None = row("The arm of the target.", IN_NOTES)
    against: ArmName | None = row("The arm of the control.", IN_NOTES)
    speedup: Number | None = row(
        "Measured latency on the control's arm over latency on the target's arm, at equal load over the last twelve windows; above 1 the "
        "target's is faster.",
        IN_NOTES,
        Renewal.MOVED,
        FigureGauge(
            "breakeven_control_speedup_ratio",
            "Measured latency on the arm `against`, which the standing control runs, over latency on the target's arm, at equal load over the "
            "last twelve windows, by default an hour; above 1 the target's arm is faster. Absent while nothing is measured.",
            {"arm": "arm", "against": "against"},
            ends=ends_of("speedup"),
            fresh=True,
        ),
    )
    speedup_lower: Number | None = row("Lower bound of it.", IN_NOTES, Renewal.MOVED)
    speedup_upper: Number | None = row("Upper bound of it.", IN_NOTES, Renewal.MOVED)
    time: Instant | None = row("When the last of these windows ended.", IN_NOTES, Renewal.MOVED)
    since_time: Instant | None = row("Since when the speedup has been such.", IN_NOTES)
    first_lower: Number | None = row("Lower bound of it then.", IN_NOTES)
    first_upper: Number | None = row("Upper bound of it then.", IN_NOTES)
    message: Sentence | None = row("The same as a sentence, or why nothing is measured.", Renewal.MOVED)


class HistoryEntry(PromiseAndMeasurement):
    """A change of arm that has ended."""

    time: Time = Field(description="When it ended.")
    from_arm: ArmName | None = row("The arm that ran.")
    to_arm: ArmName | None = row("The arm that should run.")
    reason: Word | None = row("Why, in one word.")
    result: HistoryResult = Field(
        description="What was measured (Confirmed, NotWorse, Unproven, Disproved and left in place, Unmeasured), Undone or Superseded."
    )
    seconds: Number | None = row("How long it took.", IN_NOTES)
    message: Sentence | None = row("The same as a sentence.")

    @property
    def change(self) -> str:
        """`no speculation -> eagle/3`."""
        return change_text(self.from_arm, self.to_arm)
