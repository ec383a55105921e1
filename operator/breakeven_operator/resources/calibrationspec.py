"""How arms are measured: the part of a spec that SpeculativeService and CalibrationRun share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from breakeven_operator.resources.base import Model
from breakeven_operator.resources.workloadspec import WorkloadSpec


class LoadChoice(StrEnum):
    """Which loads an arm is measured at."""

    EVEN = "Even"
    AUTO = "Auto"


class PastUse(StrEnum):
    """Whether a service's past is read before its first calibration."""

    USE = "Use"
    IGNORE = "Ignore"


class AnswerCheck(StrEnum):
    """Whether a calibration compares the arms' answers with those of no speculation, and what follows from that."""

    DISABLED = "Disabled"
    WARN = "Warn"
    REQUIRE = "Require"


class AnswersSpec(Model):
    """How the answers of arms are compared with those of no speculation."""

    check: Annotated[
        AnswerCheck,
        Field(
            description="Warn: each arm answers a set of greedy requests (256 tokens, together and some alone), and a second start of no "
            "speculation judges them; the word stands beside the arm. This costs one more engine start and a few minutes. The arm that "
            "would win starts a second time too, if the budget has room. Require: an arm is entered only with the word AnswersAgree. "
            "Disabled: nothing is compared, and no engine starts twice."
        ),
    ] = AnswerCheck.WARN
    output_tokens: Annotated[
        int,
        Field(
            ge=16,
            le=1024,
            description="Tokens of an answer at most: long enough for a drafter's cache to go wrong.",
        ),
    ] = 256
    max_seconds_per_arm: Annotated[
        int,
        Field(
            ge=10,
            le=3600,
            description="Time for the answers of one arm, and again for their judgement. What is not answered by then does not count.",
        ),
    ] = 300

    @property
    def seconds(self) -> int | None:
        """Time for the answers of one arm; None if nothing is compared."""
        return None if self.check is AnswerCheck.DISABLED else self.max_seconds_per_arm


class Budget(Model):
    """Limits of one calibration; points measured until a limit are kept."""

    max_gpu_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=2592000,
            description="GPUs times seconds that the pods of one calibration may hold, engine start-up included.",
        ),
    ] = 14400
    max_duration_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=604800,
            description="Time from the first pod to the last point of one calibration. The operator's installation may allow less.",
        ),
    ] = 14400

    def within(self, longest_s: int) -> Budget:
        """The budget as far as an installation allows it."""
        return self.replace(max_duration_seconds=min(self.max_duration_seconds, longest_s))


class Calibration(Model):
    """When and how long the arms are measured."""

    schedule: Annotated[
        str | None,
        Field(
            min_length=9,
            max_length=100,
            pattern=r"^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|\S+ \S+ \S+ \S+ \S+)$",
            description="Cron expression for measuring anew, such as `0 3 * * 0`. Without it: only on change, age or request.",
        ),
    ] = None
    time_zone: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=64,
            pattern=r"^[A-Za-z][A-Za-z0-9_+/-]*$",
            description="IANA time zone of the schedule, such as Europe/Berlin. Without it: that of the control plane.",
        ),
    ] = None
    past: Annotated[
        PastUse,
        Field(
            description="Use: until there is a profile, the last 14 days of the target at its Prometheus are read, and what they say "
            "of the arms that ran is shown, marked as such. No roll rests on it. Ignore: nothing is read."
        ),
    ] = PastUse.USE
    budget: Annotated[Budget, Field(description="What one calibration may cost at most.")] = Budget()
    workload: Annotated[WorkloadSpec, Field(description="The requests that are sent.")] = WorkloadSpec()
    answers: Annotated[
        AnswersSpec,
        Field(
            description="Whether the arms answer as no speculation does: the gate before a speed is believed."
        ),
    ] = AnswersSpec()
    loads: Annotated[
        int,
        Field(
            ge=3,
            le=20,
            description="Operating points per arm, from one request at a time to the ceiling. Between these points predictions "
            "follow the measured latencies by a departure from the law that the fit estimates. Two short points at longer "
            "prompts are measured as well.",
        ),
    ] = 7
    load_choice: Annotated[
        LoadChoice,
        Field(
            description="Even: as many loads as `loads` says, spread over what the arm carries. Auto: at most so many, each next one "
            "the load that tells most, per second of GPU, about which arm is fastest at the service's present and expected "
            "loads; an arm that surely loses gets no more points than its law needs."
        ),
    ] = LoadChoice.EVEN
    point_seconds: Annotated[
        int, Field(ge=1, le=3600, description="Measuring time of one point, after its warm-up.")
    ] = 60
    warmup_seconds: Annotated[
        int,
        Field(ge=0, le=600, description="Time at each load that is not counted, until the engine is steady."),
    ] = 15
    startup_deadline_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=86400,
            description="How long an engine may take from its container's start to its first answer.",
        ),
    ] = 1800
    pending_deadline_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=86400,
            description="How long a calibration pod, or a new pod of a roll, may wait for room (a node, a GPU, a quota).",
        ),
    ] = 900
    profile_max_age_seconds: Annotated[
        int,
        Field(ge=1, le=31536000, description="Age at which a profile is measured anew (30 days by default)."),
    ] = 2592000
