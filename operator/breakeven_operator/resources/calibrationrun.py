"""CalibrationRun: one sweep over the arms of a service; owned by it, resumable, kept for a while."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, create_model

from breakeven.arm import SCHEDULE
from breakeven.load_driver.design import POINTS_AT_OTHER_LENGTHS
from breakeven.points.point import COLUMNS, SETTING, PointColumn
from breakeven_operator.resources.base import (
    ATOMIC,
    LIST_SET,
    ArmName,
    Cell,
    Instant,
    Model,
    Number,
    ObjectName,
    RequiredNumber,
    Rule,
    Sentence,
    StatusModel,
    Word,
    list_map,
)
from breakeven_operator.resources.calibrationspec import Budget, LoadChoice
from breakeven_operator.resources.meta import Condition, Metadata, ObjectReference, ServiceReference
from breakeven_operator.resources.workloadspec import MOST_TOKENS, WorkloadSpec

MAX_ARMS = 43  # none, and six methods with six draft lengths and a schedule each


class Trigger(StrEnum):
    """Why a run was made."""

    MANUAL = "Manual"
    INITIAL = "Initial"
    SCHEDULE = "Schedule"
    REQUESTED = "Requested"
    FINGERPRINT_CHANGED = "FingerprintChanged"
    PROFILE_EXPIRED = "ProfileExpired"
    PROFILE_UNREADABLE = "ProfileUnreadable"
    CANDIDATES_CHANGED = "CandidatesChanged"
    MODEL_DISAGREES = "ModelDisagrees"
    ROLL_DISPROVED = "RollDisproved"
    ACCEPTANCE_DRIFTED = "AcceptanceDrifted"
    LENGTHS_DRIFTED = "LengthsDrifted"


class RunPhase(StrEnum):
    """How far a run has come; Succeeded, Failed and Superseded are final."""

    PENDING = "Pending"
    STARTING = "Starting"
    MEASURING = "Measuring"
    FITTING = "Fitting"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUPERSEDED = "Superseded"

    @property
    def final(self) -> bool:
        """Nothing more will happen to a run in this phase."""
        return self in {RunPhase.SUCCEEDED, RunPhase.FAILED, RunPhase.SUPERSEDED}


FINAL_PHASES = frozenset(str(phase) for phase in RunPhase if phase.final)
"""The words of the phases in which nothing more happens to a run."""


class ArmPhase(StrEnum):
    """How far one arm of a run has come."""

    WAITING = "Waiting"
    STARTING = "Starting"
    MEASURING = "Measuring"
    DONE = "Done"
    FAILED = "Failed"
    SKIPPED = "Skipped"

    @property
    def over(self) -> bool:
        """Nothing more will be measured of an arm in this phase."""
        return self in {ArmPhase.DONE, ArmPhase.FAILED, ArmPhase.SKIPPED}


class ImportedFiles(Model):
    """Keys of one ConfigMap in the namespace of the SpeculativeService."""

    name: Annotated[ObjectName, Field(description="Name of the ConfigMap.")]
    keys: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")], ...],
        Field(
            min_length=1,
            max_length=32,
            json_schema_extra=LIST_SET,
            description="Its keys: GuideLLM reports, `vllm bench serve` results (one per rate, or appended to one file), points files.",
        ),
    ]


class ImportedArm(Model):
    """What another tool has measured of one arm."""

    arm: Annotated[
        ArmName,
        Field(
            description="The arm that the engine ran: none, or <name>/<draft length>; no tool's file says so."
        ),
    ]
    config_map: Annotated[ImportedFiles, Field(description="Where the results are.")]
    text: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=64,
            pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$",
            description="Which text was sent, in a few words. Without it: imported results.",
        ),
    ] = None


class CalibrationRunSpec(Model):
    """The wish of a calibration; fields that are left out come from the service."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("self == oldSelf", "a CalibrationRun's spec cannot be changed", "another CalibrationRun"),
    )

    service_ref: Annotated[
        ServiceReference, Field(description="The SpeculativeService whose arms are measured.")
    ]
    arms: Annotated[
        tuple[ArmName, ...],
        Field(
            max_length=MAX_ARMS,
            json_schema_extra=LIST_SET,
            description="Arms to measure, none, <name>/<draft length> or <name>/schedule. Without it: all of the service. none is "
            "always measured, and so are the draft lengths from which a schedule is made.",
        ),
    ] = ()
    trigger: Annotated[Trigger, Field(description="Why the run was made.")] = Trigger.MANUAL
    budget: Annotated[
        Budget | None, Field(description="What it may cost at most. Without it: the service's budget.")
    ] = None
    workload: Annotated[
        WorkloadSpec | None, Field(description="The requests to send. Without it: the service's workload.")
    ] = None
    loads: Annotated[
        int | None,
        Field(ge=3, le=20, description="Operating points per arm. Without it: as the service says."),
    ] = None
    import_from: Annotated[
        tuple[ImportedArm, ...],
        Field(
            max_length=MAX_ARMS,
            json_schema_extra=list_map("arm"),
            description="Results of other load generators in place of measuring: no pod starts, and the fit is judged like any "
            "other. none has to be among them, measured on the same GPU class with the image and arguments that the target has.",
        ),
    ] = ()


class PlannedArm(StatusModel):
    """One arm as it is measured."""

    arm: Annotated[ArmName, Field(description="Its name.")]
    method: Annotated[str, Field(max_length=64, description="vLLM's word for its method.")]
    k: Annotated[
        int, Field(ge=0, le=1024, description="Draft length, tokens per step; of a schedule the longest.")
    ]
    candidate: Annotated[
        str | None, Field(max_length=63, description="Name of the method in the service's spec.")
    ] = None
    speculative_config: Annotated[
        str,
        Field(
            max_length=8192,
            description="Value of --speculative-config; null for none. A schedule is added when it is made, see armStatuses.",
        ),
    ]

    @property
    def scheduled(self) -> bool:
        """Whether it runs a draft length per batch size, made from the arms before it."""
        return self.arm.endswith(f"/{SCHEDULE}")


class CalibrationPlan(StatusModel):
    """The run's measurements, fixed when it starts, so that a change of the service's spec cannot bend it half-way."""

    arms: Annotated[
        tuple[PlannedArm, ...],
        Field(
            max_length=MAX_ARMS,
            json_schema_extra=list_map("arm"),
            description="Arms in the order of measuring.",
        ),
    ] = ()
    loads: Annotated[
        int,
        Field(ge=1, le=20, description="Operating points per arm; the most of them with loadChoice Auto."),
    ]
    load_choice: Annotated[LoadChoice, Field(description="Which loads an arm is measured at.")] = (
        LoadChoice.EVEN
    )
    expected_rps: Annotated[
        tuple[RequiredNumber, ...],
        Field(
            max_length=8,
            json_schema_extra=ATOMIC,
            description="Loads per replica that loadChoice Auto decides for; without any, 15 to 75 % of what no speculation carries.",
        ),
    ] = ()
    prompt_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS, description="Mean prompt length, tokens.")]
    output_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS, description="Mean output length, tokens.")]
    workload: Annotated[
        str | None,
        Field(
            max_length=16384,
            description="What is sent beside the mean lengths, as the JSON of spec.workload; absent where it is made-up prose of one "
            "length.",
        ),
    ] = None
    point_seconds: Annotated[int, Field(ge=1, le=3600, description="Measuring time of one point.")]
    warmup_seconds: Annotated[int, Field(ge=0, le=600, description="Uncounted time at each load.")]
    startup_deadline_seconds: Annotated[
        int, Field(ge=1, le=86400, description="How long an engine may take to start.")
    ]
    pending_deadline_seconds: Annotated[
        int, Field(ge=1, le=86400, description="How long a pod may wait for a GPU.")
    ]
    budget: Annotated[Budget, Field(description="What the run may cost at most.")]
    confidence_percent: Annotated[
        int, Field(ge=50, le=99, description="Confidence of the fit's intervals.")
    ] = 90
    target: Annotated[ObjectName, Field(description="Name of the workload that was copied.")]
    target_uid: Annotated[str | None, Field(max_length=64, description="Its UID.")] = None
    container_name: Annotated[str, Field(max_length=63, description="Container that runs vLLM.")]
    image: Annotated[str | None, Field(max_length=1024, description="Image of that container.")] = None
    model: Annotated[str | None, Field(max_length=512, description="Model that is served.")] = None
    served_model_name: Annotated[
        str | None, Field(max_length=512, description="Name under which it is asked.")
    ] = None
    gpu_product: Annotated[str, Field(max_length=128, description="GPU class the pods are pinned to.")]
    gpus_per_pod: Annotated[int, Field(ge=0, le=1024, description="GPUs each pod holds.")] = 1
    fingerprint: Annotated[str, Field(max_length=64, description="What the profile will count for.")]
    template_hash: Annotated[
        str | None,
        Field(
            max_length=64,
            description="Hash of what calibration pods copy of the target's pod template. When it changes, the run ends: arms "
            "of two templates cannot be compared.",
        ),
    ] = None
    image_digest: Annotated[
        str | None,
        Field(
            max_length=256,
            description="Digest of the engine's image as the target's pods run it; a calibration pod with another one ends "
            "the run.",
        ),
    ] = None

    def points_of(self, arm: PlannedArm) -> int:
        """Points of an arm: its loads, and those at other lengths, which a schedule has not."""
        return self.loads + (0 if arm.scheduled else POINTS_AT_OTHER_LENGTHS)


class Stored(StatusModel):
    """One measured operating point of one arm: a row of a points file, its columns in camelCase."""

    arm: Annotated[ArmName, Field(description="The arm.")]
    index: Annotated[int, Field(ge=0, le=1023, description="Number of the point within the arm.")]
    time: Annotated[Instant | None, Field(description="When it was finished.")] = None


# How long a word may be in a CRD; what the plan says of all points stands there once (workload, GPU, model).
_LONGEST = {
    "method": 64,
    "candidate": 63,
    "schedule": 1024,
    "flag": 256,
    "sweep": 64,
    "engine_version": 64,
    "text_source": 64,
}
_ATOMIC_SHARES = Field(max_length=32, json_schema_extra={"x-kubernetes-list-type": "atomic"})


def _stored_column(column: PointColumn) -> tuple[Any, Any]:
    """The field of a CRD for a column of the points file: type and default."""
    described = Field(description=f"{column.meaning[0].upper()}{column.meaning[1:]}.")
    if column.name == "accept":
        return Annotated[tuple[RequiredNumber, ...], _ATOMIC_SHARES, described], ()
    if column.name == "load_mode":
        return Annotated[Literal["closed", "poisson", "constant"] | None, described], None
    if column.name in _LONGEST:
        return Annotated[str | None, Field(max_length=_LONGEST[column.name]), described], None
    if column.counted or column.name == "replicate":
        return Annotated[int | None, Field(ge=0), described], None
    return Annotated[Number | None, described], None


STORED_COLUMNS = tuple(name for name in COLUMNS if name not in SETTING)
"""Columns of a points file that a stored point has."""

if TYPE_CHECKING:

    class StoredPoint(Stored):
        """The columns are made of the library's model: a type checker knows the other fields only."""

        def __init__(self, **columns: object) -> None: ...

        def __getattr__(self, column: str) -> Any: ...
else:
    StoredPoint = create_model(
        "StoredPoint",
        __base__=Stored,
        __doc__=Stored.__doc__,
        **{name: _stored_column(COLUMNS[name]) for name in STORED_COLUMNS},
    )


class ArmStatus(StatusModel):
    """How measuring one arm goes."""

    arm: Annotated[ArmName, Field(description="The arm.")]
    phase: Annotated[
        ArmPhase | None, Field(description="Waiting, Starting, Measuring, Done, Failed or Skipped.")
    ] = None
    schedule: Annotated[
        str | None,
        Field(
            max_length=1024,
            description="Draft length per batch size that is measured, such as 1-8:5,9-32:2,33-:0; made from the arms before it.",
        ),
    ] = None
    job: Annotated[ObjectName | None, Field(description="Job that measures it.")] = None
    pod: Annotated[ObjectName | None, Field(description="Pod of that Job.")] = None
    reason: Annotated[Word | None, Field(description="Why it failed or ended early, in one word.")] = None
    message: Annotated[
        Sentence | None, Field(description="The same as a sentence, with the engine's last lines.")
    ] = None
    started_time: Annotated[Instant | None, Field(description="When its pod got its GPU.")] = None
    ready_time: Annotated[Instant | None, Field(description="When its engine answered.")] = None
    finished_time: Annotated[Instant | None, Field(description="When its pod ended.")] = None
    gpu_seconds_used: Annotated[
        Number | None, Field(description="GPUs times seconds its pods have held.")
    ] = None
    earlier_gpu_seconds: Annotated[
        Number | None, Field(description="The same of the Jobs before the present one.")
    ] = None
    attempts: Annotated[int, Field(ge=0, le=1024, description="Jobs started for it.")] = 0


class RunDisplay(StatusModel):
    """The columns of kubectl get, ready to print."""

    arm: Annotated[Cell | None, Field(description="Arm under measurement.")] = None
    points: Annotated[Cell | None, Field(description="Points measured of points planned.")] = None
    gpu_seconds: Annotated[Cell | None, Field(description="GPU-seconds used of the budget.")] = None
    break_even: Annotated[
        Cell | None, Field(description="Break-even with bounds, as far as it is known.")
    ] = None
    left: Annotated[Cell | None, Field(description="Estimate of the time left.")] = None


class CalibrationRunStatus(StatusModel):
    """How the run goes; points are written by the load driver, everything else by the operator."""

    observed_generation: Annotated[
        int | None, Field(ge=0, description="Generation of the spec that was acted upon.")
    ] = None
    phase: Annotated[RunPhase | None, Field(description="How far the run has come.")] = None
    reason: Annotated[
        Word | None, Field(description="Why it is there, in one word; see docs/reasons.md.")
    ] = None
    message: Annotated[Sentence | None, Field(description="The same as a sentence.")] = None
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=8,
            json_schema_extra=list_map("type"),
            description="Complete: the run has ended; Succeeded: with a profile.",
        ),
    ] = ()
    started_time: Annotated[Instant | None, Field(description="When it was admitted.")] = None
    finished_time: Annotated[Instant | None, Field(description="When it ended.")] = None
    plan: Annotated[CalibrationPlan | None, Field(description="What is measured, fixed at the start.")] = None
    arm_statuses: Annotated[
        tuple[ArmStatus, ...],
        Field(max_length=MAX_ARMS, json_schema_extra=list_map("arm"), description="How each arm goes."),
    ] = ()
    points: Annotated[
        tuple[StoredPoint, ...],
        Field(
            max_length=1024,
            json_schema_extra=list_map("arm", "index"),
            description="What was measured; each point is written before the next one starts.",
        ),
    ] = ()
    gpu_seconds_used: Annotated[Number | None, Field(description="GPUs times seconds held so far.")] = None
    profile_ref: Annotated[
        ObjectReference | None, Field(description="The SpeculationProfile that came out.")
    ] = None
    display: Annotated[
        RunDisplay | None, Field(description="The columns of kubectl get, ready to print.")
    ] = None

    @property
    def planned_points(self) -> int:
        """Points the run will have: an arm that is over has what it has, and a sweep may replace points that were no good."""
        planned = {} if self.plan is None else {arm.arm: self.plan.points_of(arm) for arm in self.plan.arms}
        total = 0
        for arm in self.arm_statuses:
            measured = len(self.points_of(arm.arm))
            over = arm.phase is not None and arm.phase.over
            total += measured if over else max(planned.get(arm.arm, 0), measured)
        return total

    def points_of(self, arm: str) -> tuple[StoredPoint, ...]:
        """The points of one arm by index."""
        return tuple(
            sorted((point for point in self.points if point.arm == arm), key=lambda point: point.index)
        )


class CalibrationRun(Model):
    """One measurement of a service's arms on pods of its own."""

    api_version: Literal["breakeven.dev/v1alpha1"] = "breakeven.dev/v1alpha1"
    kind: Literal["CalibrationRun"] = "CalibrationRun"
    metadata: Metadata
    spec: Annotated[CalibrationRunSpec, Field(description="What to measure.")]
    status: Annotated[CalibrationRunStatus, Field(description="How the run goes.")] = CalibrationRunStatus()


def read_run(manifest: Mapping[str, Any]) -> CalibrationRun:
    """Parse a run as the API server holds it.

    Raises:
        InputError: it breaks the schema; names the run and the field.
    """
    meta = manifest["metadata"]
    return CalibrationRun.read(manifest, f"CalibrationRun {meta['namespace']}/{meta['name']}")
