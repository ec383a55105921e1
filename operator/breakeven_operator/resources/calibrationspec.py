"""How arms are measured: the part of a spec that SpeculativeService and CalibrationRun share."""

from __future__ import annotations

from enum import StrEnum

from breakeven_operator.resources.base import Model, TimeZone
from breakeven_operator.resources.figures import row
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
    """Whether a calibration compares the arms' answers with answers without speculation, and what follows from it."""

    DISABLED = "Disabled"
    WARN = "Warn"
    REQUIRE = "Require"


class AnswersSpec(Model):
    """How the answers of arms are compared with answers without speculation."""

    check: AnswerCheck = row(
        "Warn: each arm answers a set of greedy requests (256 tokens, together and some alone), and the second start of no "
        "speculation judges them; the word stands beside the arm. This costs a few minutes. Require: an arm is entered only with "
        "the word AnswersAgree. Disabled: nothing is compared.",
        default=AnswerCheck.WARN,
    )
    output_tokens: int = row(
        "Tokens of an answer at most: long enough for a drafter's cache to go wrong.",
        default=256,
        ge=16,
        le=1024,
    )
    max_seconds_per_arm: int = row(
        "Time for the answers of one arm, and again for their judgement. What is not answered by then does not count.",
        default=300,
        ge=10,
        le=3600,
    )

    @property
    def seconds(self) -> int | None:
        """Time for the answers of one arm; None if nothing is compared."""
        return None if self.check is AnswerCheck.DISABLED else self.max_seconds_per_arm


class Budget(Model):
    """Limits of one calibration; points measured until a limit are kept."""

    max_gpu_seconds: int = row(
        "GPUs times seconds that the pods of one calibration may hold, engine start-up included.",
        default=14400,
        ge=1,
        le=2592000,
    )
    max_duration_seconds: int = row(
        "Time from the first pod to the last point of one calibration. The operator's installation may allow less.",
        default=14400,
        ge=1,
        le=604800,
    )

    def within(self, longest_s: int) -> Budget:
        """The budget as far as an installation allows it."""
        return self.replace(max_duration_seconds=min(self.max_duration_seconds, longest_s))


class Calibration(Model):
    """When and how long the arms are measured."""

    schedule: str | None = row(
        "Cron expression for measuring again, such as `0 3 * * 0`. Without it: only on change, age or request.",
        min_length=9,
        max_length=100,
        pattern=r"^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|\S+ \S+ \S+ \S+ \S+)$",
    )
    time_zone: TimeZone | None = row(
        "IANA time zone of the schedule, such as Europe/Berlin. Without it: the time zone of the control plane."
    )
    past: PastUse = row(
        "Use: until there is a profile, the last 14 days of the target at its Prometheus are read, and what they say "
        "of the arms that ran is shown, marked as such. No roll rests on it. Ignore: nothing is read.",
        default=PastUse.USE,
    )
    budget: Budget = row("What one calibration may cost at most.", default=Budget())
    workload: WorkloadSpec = row("The requests that are sent.", default=WorkloadSpec())
    answers: AnswersSpec = row(
        "Whether the arms answer as no speculation does: the gate before a speed is believed.",
        default=AnswersSpec(),
    )
    loads: int = row(
        "Operating points per arm, from one request at a time to the ceiling. Between these points predictions "
        "follow the measured latencies by a departure from the law that the fit estimates. Two short points at longer "
        "prompts are measured as well.",
        default=7,
        ge=3,
        le=20,
    )
    load_choice: LoadChoice = row(
        "Even: as many loads as `loads` says, spread over what the arm carries. Auto: at most so many, each next one "
        "the load that tells most, per second of GPU, about which arm is fastest at the service's present and expected "
        "loads; an arm that surely loses gets no more points than its law needs.",
        default=LoadChoice.EVEN,
    )
    point_seconds: int = row("Measuring time of one point, after its warm-up.", default=60, ge=1, le=3600)
    warmup_seconds: int = row(
        "Time at each load that is not counted, until the engine is steady.", default=15, ge=0, le=600
    )
    startup_deadline_seconds: int = row(
        "How long an engine may take from its container's start to its first answer.",
        default=1800,
        ge=1,
        le=86400,
    )
    pending_deadline_seconds: int = row(
        "How long a calibration pod, or a new pod of a roll, may wait for room (a node, a GPU, a quota).",
        default=900,
        ge=1,
        le=86400,
    )
    profile_max_age_seconds: int = row(
        "Age at which a profile is measured again (30 days by default).", default=2592000, ge=1, le=31536000
    )
