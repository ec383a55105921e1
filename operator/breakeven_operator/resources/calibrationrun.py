"""CalibrationRun: one sweep over the arms of a service; owned by it, resumable, kept for a while. Its findings about answers too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, create_model

from breakeven.arm import ADAPTIVE, NO_SPECULATION, SCHEDULE
from breakeven.errors import InputError
from breakeven.points.point import COLUMNS, POINTS_AT_OTHER_LENGTHS, SETTING, PointColumn, first_half
from breakeven_operator.resources.base import (
    AGAIN,
    ATOMIC,
    LIST_SET,
    ArmName,
    Cell,
    Instant,
    KeyName,
    Model,
    Number,
    ObjectName,
    RequiredNumber,
    Rule,
    Sentence,
    StatusModel,
    TrialName,
    Word,
    list_map,
)
from breakeven_operator.resources.calibrationspec import MOST_TOKENS, Budget, LoadChoice, WorkloadSpec
from breakeven_operator.resources.candidates import drafter_mark
from breakeven_operator.resources.figures import FigureGauge, row
from breakeven_operator.resources.meta import Condition, Metadata, ObjectReference, ServiceReference
from breakeven_operator.resources.targetstatus import LONGEST_IMAGE, LONGEST_MODEL


class ArmAnswers(StatusModel):
    """How the answers of one arm compare with answers without speculation; holds nothing of a request or an answer."""

    arm: ArmName = Field(description="The arm.")
    word: Word = Field(
        description="AnswersAgree, AnswersDiffer, AnswersBroken or AnswersUndecided; see docs/reasons.md."
    )
    message: Sentence | None = row("The same as a sentence.")
    answers: int = row("Judged answers.", default=0, ge=0)
    tokens: int = row("Judged tokens.", default=0, ge=0)
    near_ties: int = row(
        "Tokens that are not the judge's first choice by no more than rounding explains.", default=0, ge=0
    )
    differing: int = row("Answers with a token that no speculation would not choose.", default=0, ge=0)
    flawed: int = row(
        "Answers that are empty, invalid or looping where no speculation's are not.", default=0, ge=0
    )
    places: tuple[Annotated[str, Field(max_length=128)], ...] = row(
        "First faults: name of the request, position in the answer.", default=(), extra=ATOMIC, max_length=8
    )
    equal: int = row("Answers with the very tokens of the answers without speculation.", default=0, ge=0)
    compared: int = row("Answers that could be compared so.", default=0, ge=0)
    first_difference: int | None = row("Smallest position at which two of them part.", ge=0)
    widest_gap_nats: Number | None = row(
        "Widest gap between the judge's first choice and a token of the arm, as logarithms of probability."
    )
    p_value: Number | None = row("Chance of so much difference without a fault.")
    share_upper_percent: Number | None = row(
        "Upper bound of the share of requests that are answered differently."
    )


class AnswersInForce(StatusModel):
    """The word of the profile in force about the answers of one arm."""

    arm: ArmName = Field(description="The arm.")
    word: Annotated[
        Word,
        Field(
            description="AnswersAgree, AnswersDiffer, AnswersBroken or AnswersUndecided; see docs/reasons.md."
        ),
        FigureGauge(
            "breakeven_arm_answers",
            "1 for the word about an arm's answers beside answers without speculation: AnswersAgree, AnswersDiffer, AnswersBroken "
            "or AnswersUndecided. Absent where they were not compared.",
            {"arm": "arm", "word": "word"},
            info=True,
        ),
    ]


class GateFindingStatus(StatusModel):
    """One thing that a gate compared; holds nothing of a request or an answer."""

    figure: str = Field(
        min_length=1, max_length=128, description="Its name with its unit; upgrade: all of them together."
    )
    word: Word | None = row(
        "Same, Faster, Slower, AcceptanceLost, CacheLost, AnswersDiffer, Refused, DoesNotStart or Undecided; absent: only shown."
    )
    message: Sentence | None = row("Both figures, and their ratio with bounds, as a sentence.")


UPGRADE = "upgrade"
"""The finding that holds a gate's own word."""


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

    name: ObjectName = Field(description="Name of the ConfigMap.")
    keys: tuple[KeyName, ...] = Field(
        min_length=1,
        max_length=32,
        json_schema_extra=LIST_SET,
        description="Its keys: GuideLLM reports, `vllm bench serve` results (one per rate, or appended to one file), points files.",
    )


class ImportedArm(Model):
    """What another tool has measured of one arm."""

    arm: ArmName = Field(
        description="The arm that the engine ran: none, or <name>/<draft length>; no tool's file says so."
    )
    config_map: ImportedFiles = Field(description="Where the results are.")


EngineImage = Annotated[
    str, Field(min_length=1, max_length=LONGEST_IMAGE, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$")
]


class CalibrationRunSpec(Model):
    """The wish of a calibration; fields that are left out come from the service."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("self == oldSelf", "a CalibrationRun's spec cannot be changed", "another CalibrationRun"),
    )

    service_ref: ServiceReference = Field(description="The SpeculativeService whose arms are measured.")
    arms: tuple[ArmName, ...] = row(
        "Arms to measure, none, <name>/<draft length>, <name>/schedule or <name>/adaptive. Without it: all of the service. none is "
        "always measured, and so are the draft lengths from which a schedule is made.",
        default=(),
        extra=LIST_SET,
        max_length=MAX_ARMS,
    )
    trigger: Trigger = row("Why the run was made.", default=Trigger.MANUAL)
    budget: Budget | None = row("What it may cost at most. Without it: the service's budget.")
    import_from: tuple[ImportedArm, ...] = row(
        "Results of other load generators in place of measuring: no pod starts, and the fit is judged like any "
        "other. No speculation has to be among them, measured on the target's GPU class, with its image and arguments.",
        default=(),
        extra=list_map("arm"),
        max_length=MAX_ARMS,
    )
    gate: tuple[EngineImage, ...] | None = row(
        "Images of the engine before an upgrade and after it: the run compares one arm on both, and measures no others. The arm is the "
        "one in `arms`, else the target's own. Who may start pods in the namespace may ask for it.",
        extra=ATOMIC,
        min_length=2,
        max_length=2,
    )


def _is_configuration(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | None)
    except (ValueError, RecursionError):
        return False


def _is_workload(text: str | None) -> bool:
    try:
        return text is None or bool(WorkloadSpec.read(json.loads(text), "workload"))
    except (ValueError, RecursionError, InputError):
        return False


class PlannedArm(StatusModel):
    """One arm as it is measured."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            None,
            "is no configuration",
            "null or a JSON object, as the operator wrote it",
            lambda arm: _is_configuration(arm.speculative_config),
            ".speculativeConfig",
        ),
    )
    arm: TrialName = Field(
        description="Its name; <arm>/again: a second start of it, with the loads that its first start left. none/again also "
        "judges the answers of all arms."
    )
    method: str = Field(max_length=64, description="vLLM's word for its method.")
    k: int = Field(ge=0, le=1024, description="Draft length, tokens per step; of a schedule the longest.")
    candidate: str | None = row("Name of the method in the service's spec.", max_length=63)
    speculative_config: str = Field(
        max_length=8192,
        description="Value of --speculative-config; null for none. A schedule is added when it is made, see armStatuses.",
    )

    @property
    def drafter(self) -> str | None:
        """The mark of its drafter; None for no speculation."""
        return drafter_mark(json.loads(self.speculative_config))

    @property
    def scheduled(self) -> bool:
        """Whether it runs a draft length per batch size, made from the arms before it."""
        return self.first.endswith(f"/{SCHEDULE}")

    @property
    def adaptive(self) -> bool:
        """Whether the engine chooses how many of its drafts it verifies."""
        return self.first.endswith(f"/{ADAPTIVE}")

    @property
    def first(self) -> str:
        """Name of the arm, which its first start has too."""
        return self.arm.removesuffix(AGAIN)

    @property
    def second_start(self) -> bool:
        """Whether it is an arm of the run on a second start of its engine, and no arm of its own."""
        return self.arm.endswith(AGAIN)


class CalibrationPlan(StatusModel):
    """The run's measurements, fixed when it starts, so that a change of the service's spec cannot bend it half-way."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            None,
            "is no workload",
            "the JSON of spec.workload, as the operator wrote it",
            lambda plan: _is_workload(plan.workload),
            ".workload",
        ),
    )
    arms: tuple[PlannedArm, ...] = row(
        "Arms in the order of measuring; in turns all but the last start a second time, in reverse order, side by side all "
        "but schedules.",
        default=(),
        extra=list_map("arm"),
        max_length=2 * MAX_ARMS,
    )
    pods_at_once: int | None = row(
        "Arms that are measured side by side, each on a pod; absent where they take turns on one.",
        ge=2,
        le=MAX_ARMS,
    )
    loads: int = Field(
        ge=1, le=20, description="Operating points per arm; the most of them with loadChoice Auto."
    )
    load_choice: LoadChoice = row("Which loads an arm is measured at.", default="Even")
    expected_rps: tuple[RequiredNumber, ...] = row(
        "Loads per replica that the service is expected to see: loadChoice Auto buys points for them. Without any, 15 to 75 % of "
        "what no speculation carries.",
        default=(),
        extra=ATOMIC,
        max_length=8,
    )
    prompt_tokens: int = Field(ge=1, le=MOST_TOKENS, description="Mean prompt length, tokens.")
    output_tokens: int = Field(ge=1, le=MOST_TOKENS, description="Mean output length, tokens.")
    workload: str | None = row(
        "What is sent beside the mean lengths, as the JSON of spec.workload; absent where it is made-up prose of one "
        "length.",
        max_length=16384,
    )
    point_seconds: int = Field(ge=1, le=3600, description="Measuring time of one point.")
    warmup_seconds: int = Field(ge=0, le=600, description="Uncounted time at each load.")
    startup_deadline_seconds: int = Field(ge=1, le=86400, description="How long an engine may take to start.")
    pending_deadline_seconds: int = Field(ge=1, le=86400, description="How long a pod may wait for a GPU.")
    answers_seconds: int | None = row(
        "Time for the answers of one arm, and for their judgement; absent where no answers are compared.",
        ge=1,
        le=3600,
    )
    answers_output_tokens: int | None = row("Tokens of an answer at most.", ge=16, le=1024)
    budget: Budget = Field(description="What the run may cost at most.")
    confidence_percent: int = row("Confidence of the fit's intervals.", default=90, ge=50, le=99)
    target: ObjectName = Field(description="Name of the workload that was copied.")
    target_uid: str | None = row("Its UID.", max_length=64)
    container_name: str = Field(max_length=63, description="Container that runs vLLM.")
    image: str | None = row("Image of that container.", max_length=LONGEST_IMAGE)
    model: str | None = row("Model that is served.", max_length=LONGEST_MODEL)
    served_model_name: str | None = row("Name under which it is asked.", max_length=LONGEST_MODEL)
    gpu_product: str = Field(max_length=128, description="GPU class the pods are pinned to.")
    gpus_per_pod: int = row("GPUs each pod holds.", default=1, ge=0, le=1024)
    fingerprint: str = Field(max_length=64, description="What the profile will count for.")
    template_hash: str | None = row(
        "Hash of what calibration pods copy of the target's pod template. When it changes, the run ends: arms "
        "of two templates cannot be compared.",
        max_length=64,
    )
    image_digest: str | None = row(
        "Digest of the engine's image as the target's pods run it; a calibration pod with another one ends "
        "the run.",
        max_length=256,
    )

    @property
    def in_turns(self) -> bool:
        """Whether all arms but the last start twice, in reverse order: A B C, B A."""
        again = sum(arm.second_start for arm in self.arms)
        return self.pods_at_once is None and again > 0 and len(self.arms) == 2 * again + 1

    @property
    def _halved(self) -> bool:
        return self.in_turns or self.pods_at_once is not None

    def beside(self, arm: PlannedArm) -> tuple[PlannedArm, ...]:
        """The arms that are measured at the same time as this one, itself included: all first starts, or all second ones.

        A schedule is made from the first starts, and stands alone between the two.
        """
        if self.pods_at_once is None or arm.scheduled:
            return (arm,)
        return tuple(one for one in self.arms if not one.scheduled and one.second_start == arm.second_start)

    @property
    def judge(self) -> str | None:
        """Name of the trial that judges the answers of all arms after its loads; None if no answers are compared."""
        return f"{NO_SPECULATION.name}{AGAIN}" if self.answers_seconds else None

    def halves(self, arm: PlannedArm, statuses: Iterable[ArmStatus]) -> bool:
        """Whether a trial leaves loads to the arm's second start, which is planned and was not skipped."""
        over = {one.arm for one in statuses if one.over}
        again = f"{arm.arm}{AGAIN}"
        return self._halved and again not in over and any(one.arm == again for one in self.arms)

    def loads_of(self, arm: PlannedArm, statuses: Iterable[ArmStatus]) -> int:
        """Loads of a trial; a second start measures one of the first start's loads again."""
        if arm.second_start:
            return 1 + (self.loads - first_half(self.loads) if self._halved else 0)
        return first_half(self.loads) if self.halves(arm, statuses) else self.loads

    def points_of(self, arm: PlannedArm, statuses: Iterable[ArmStatus]) -> int:
        """Points of a trial: its loads; in a first start those at other lengths, and without a second one the first load again.

        An arm whose draft length follows the load has none at other lengths.
        """
        if arm.second_start:
            return self.loads_of(arm, statuses)
        other_lengths = 0 if arm.scheduled or arm.adaptive else POINTS_AT_OTHER_LENGTHS
        return self.loads_of(arm, statuses) + other_lengths + (not self.halves(arm, statuses))


class Stored(StatusModel):
    """One measured operating point of one arm: a row of a points file, its columns in camelCase."""

    arm: TrialName = Field(description="The arm, or its second start: <arm>/again.")
    index: int = Field(ge=0, le=1023, description="Number of the point within the arm.")
    time: Instant | None = row("When it was finished.")


# How long a word may be in a CRD; what the plan says of all points stands there once (workload, GPU, model).
_LONGEST = {
    "method": 64,
    "candidate": 63,
    "schedule": 1024,
    "flag": 256,
    "sweep": 64,
    "engine_version": 64,
    "text_source": 64,
    "start": 64,
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

    arm: TrialName = Field(description="The arm, or its second start: <arm>/again.")
    phase: ArmPhase | None = row("Waiting, Starting, Measuring, Done, Failed or Skipped.")
    schedule: str | None = row(
        "Draft length per batch size that is measured, such as 1-8:5,9-32:2,33-:0; made from the arms before it.",
        max_length=1024,
    )
    job: ObjectName | None = row("Job that measures it.")
    pod: ObjectName | None = row("Pod of that Job.")
    reason: Word | None = row("Why it failed or ended early, in one word.")
    message: Sentence | None = row("The same as a sentence, with the engine's last lines.")
    started_time: Instant | None = row("When its pod got its GPU.")
    ready_time: Instant | None = row("When its engine answered.")
    finished_time: Instant | None = row("When its pod ended.")
    gpu_seconds_used: Number | None = row("GPUs times seconds its pods have held.")
    earlier_gpu_seconds: Number | None = row("The same of the Jobs before the present one.")
    attempts: int = row("Jobs started for it.", default=0, ge=0, le=1024)

    @property
    def over(self) -> bool:
        """Whether nothing more is measured of the arm."""
        return self.phase is not None and self.phase.over


class RunDisplay(StatusModel):
    """The columns of kubectl get, ready to print."""

    arm: Cell | None = row("Arm under measurement.")
    points: Cell | None = row("Points measured of points planned.")
    gpu_seconds: Cell | None = row("GPU-seconds used of the budget.")
    break_even: Cell | None = row("Break-even with bounds, as far as it is known.")
    left: Cell | None = row("Estimate of the time left.")


class CalibrationRunStatus(StatusModel):
    """How the run goes; points and answers are written by the load drivers, everything else by the operator."""

    observed_generation: int | None = row("Generation of the spec that was acted upon.", ge=0)
    phase: RunPhase | None = row("How far the run has come.")
    reason: Word | None = row("Why it is there, in one word; see docs/reasons.md.")
    message: Sentence | None = row("The same as a sentence.")
    conditions: tuple[Condition, ...] = row(
        "Complete: the run has ended; Succeeded: with a profile.",
        default=(),
        extra=list_map("type"),
        max_length=8,
    )
    started_time: Instant | None = row("When it was admitted.")
    finished_time: Instant | None = row("When it ended.")
    plan: CalibrationPlan | None = row("What is measured, fixed at the start.")
    arm_statuses: tuple[ArmStatus, ...] = row(
        "How each arm goes.", default=(), extra=list_map("arm"), max_length=2 * MAX_ARMS
    )
    points: tuple[StoredPoint, ...] = row(
        "What was measured; each point is written before the next one starts.",
        default=(),
        extra=list_map("arm", "index"),
        max_length=1024,
    )
    answers: tuple[ArmAnswers, ...] = row(
        "How each arm's answers compare with answers without speculation; written by the judge's driver.",
        default=(),
        extra=list_map("arm"),
        max_length=MAX_ARMS,
    )
    findings: tuple[GateFindingStatus, ...] = row(
        "Of a gate, what it compared; written by the driver beside the engine of now.",
        default=(),
        extra=list_map("figure"),
        max_length=64,
    )
    gpu_seconds_used: Number | None = row("GPUs times seconds held so far.")
    profile_ref: ObjectReference | None = row("The SpeculationProfile that came out.")
    display: RunDisplay | None = row("The columns of kubectl get, ready to print.")

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to the run."""
        return self.phase is not None and self.phase.final

    @property
    def planned_points(self) -> int:
        """Points the run will have: an arm that is over has what it has, and a sweep may replace points that were no good."""
        plan, statuses = self.plan, self.arm_statuses
        planned = {} if plan is None else {arm.arm: plan.points_of(arm, statuses) for arm in plan.arms}
        total = 0
        for arm in self.arm_statuses:
            measured = len(self.points_of(arm.arm))
            total += measured if arm.over else max(planned.get(arm.arm, 0), measured)
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
    spec: CalibrationRunSpec = Field(description="What to measure.")
    status: CalibrationRunStatus = row("How the run goes.", default=CalibrationRunStatus())


def read_run(manifest: Mapping[str, Any]) -> CalibrationRun:
    """Parse a run as the API server holds it.

    Raises:
        InputError: it breaks the schema; names the run and the field.
    """
    meta = manifest["metadata"]
    return CalibrationRun.read(manifest, f"CalibrationRun {meta['namespace']}/{meta['name']}")
