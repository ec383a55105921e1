"""How arms are measured, and with which requests: the part of a spec that SpeculativeService and CalibrationRun share."""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from breakeven_operator.resources.base import (
    ATOMIC,
    KeyName,
    Model,
    ObjectName,
    RequiredNumber,
    Rule,
    TimeZone,
)
from breakeven_operator.resources.figures import row

MOST_TOKENS = 1048576
_FILE_PATTERN = r"^[A-Za-z0-9._-][A-Za-z0-9._/-]*$"
FilePath = Annotated[str, Field(min_length=1, max_length=512, pattern=_FILE_PATTERN)]
_INSIDE = Rule(
    "!self.path.contains('..')",
    "path leads out of the volume",
    "a path without ..",
    lambda file: ".." not in file.path,
    ".path",
)


class ConfigMapKey(Model):
    """One key of a ConfigMap in the namespace of the SpeculativeService."""

    name: ObjectName = Field(description="Name of the ConfigMap.")
    key: KeyName = Field(description="Key inside the ConfigMap.")


class ClaimFile(Model):
    """One file on a PersistentVolumeClaim in the namespace of the SpeculativeService."""

    rules: ClassVar[tuple[Rule, ...]] = (_INSIDE,)

    claim_name: ObjectName = Field(description="Name of the PersistentVolumeClaim.")
    path: FilePath = Field(description="Path of the file on it, such as prompts/support.jsonl.")


class ImageFile(Model):
    """One file of an image, mounted as a volume (Kubernetes 1.35 and newer, or its feature gate ImageVolume)."""

    rules: ClassVar[tuple[Rule, ...]] = (_INSIDE,)

    reference: str = Field(
        min_length=1,
        max_length=512,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$",
        description="The image, such as registry.example.com/prompts:2026-11.",
    )
    path: FilePath = Field(description="Path of the file in it, without the leading slash.")


class PromptSource(Model):
    """Which text is sent."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "[has(self.configMap), has(self.persistentVolumeClaim), has(self.image)].filter(given, given).size() <= 1",
            "prompts has more than one source",
            "one of configMap, persistentVolumeClaim and image",
            lambda prompts: len(prompts.sources) <= 1,
        ),
        Rule(
            "!has(self.sharedPrefixPercent) || !(has(self.configMap) || has(self.persistentVolumeClaim) || has(self.image))",
            "sharedPrefixPercent stands beside prompts of a file",
            "one of the two: such prompts are what they are",
            lambda prompts: prompts.shared_prefix_percent is None or not prompts.sources,
            ".sharedPrefixPercent",
        ),
        Rule(
            "!has(self.category) || has(self.configMap) || has(self.persistentVolumeClaim) || has(self.image)",
            "category selects requests of a file and none is named",
            "a source of prompts beside it",
            lambda prompts: prompts.category is None or bool(prompts.sources),
            ".category",
        ),
    )

    config_map: ConfigMapKey | None = row(
        'Requests of a ConfigMap: JSON lines such as {"prompt": "...", "output_tokens": 120}, or with messages in '
        "place of prompt. They are mounted read-only into the load driver and shown nowhere."
    )
    persistent_volume_claim: ClaimFile | None = row("Requests of a file on a volume, as of a ConfigMap.")
    image: ImageFile | None = row("Requests of a file in an image, as of a ConfigMap.")
    category: str | None = row(
        "Only the requests of the file whose line names this category, such as coding in a file of SPEED-Bench. "
        "Without it: all.",
        min_length=1,
        max_length=40,
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9 ._-]*[A-Za-z0-9])?$",
    )
    shared_prefix_percent: int | None = row(
        "Share of a mean prompt that all made-up prompts begin with, which the prefix cache then serves. Without "
        "it: the share of live prompts that the target's prefix cache held, from 5 percent on; 0: none.",
        ge=0,
        le=100,
    )

    @property
    def sources(self) -> tuple[Model, ...]:
        """The files that are named."""
        return tuple(filter(None, (self.config_map, self.persistent_volume_claim, self.image)))


class LengthsOfRequest(Model):
    """Tokens of one kind of request."""

    prompt_tokens: int = Field(ge=1, le=MOST_TOKENS, description="Prompt length, tokens.")
    output_tokens: int = Field(ge=1, le=MOST_TOKENS, description="Output length, tokens.")
    weight: int | None = row("How often it occurs, relative to the others; 1 without it.", ge=1, le=1000000)


def _between(low: float, high: float, name: str) -> Rule:
    field = "".join(part.capitalize() if position else part for position, part in enumerate(name.split("_")))
    return Rule(
        f"!has(self.{field}) || (double(self.{field}) >= {low:f} && double(self.{field}) <= {high:f})",
        f"{field} is out of range",
        f"a number from {low:g} to {high:g}",
        lambda sampling: getattr(sampling, name) is None or low <= getattr(sampling, name) <= high,
        f".{field}",
    )


class SamplingSpec(Model):
    """How the engine draws tokens; the fields of its API. Without any: the likeliest token, at which most drafts are accepted."""

    rules: ClassVar[tuple[Rule, ...]] = (
        _between(0, 10, "temperature"),
        _between(1e-6, 1, "top_p"),
    )

    temperature: RequiredNumber | None = row("Sampling temperature, 0 to 10; 0 without it.")
    top_p: RequiredNumber | None = row("Nucleus sampling, above 0 to 1.")
    top_k: int | None = row("Likeliest tokens drawn from.", ge=-1, le=1000000)


class SyntheticAcceptance(Model):
    """Acceptance that the engine imposes by chance: cost at a chosen acceptance, with answers that are garbage."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.rates.all(rate, double(rate) >= 0.0 && double(rate) <= 1.0)",
            "rates has a number out of range",
            "shares from 0 to 1",
            lambda synthetic: all(0 <= rate <= 1 for rate in synthetic.rates),
            ".rates",
        ),
        Rule(
            "self.rates.map(rate, 0.0 - double(rate)).isSorted()",
            "rates rise",
            "shares of all drafts, which never rise from one position to the next",
            lambda synthetic: all(later <= earlier for earlier, later in pairwise(synthetic.rates)),
            ".rates",
        ),
    )

    rates: tuple[RequiredNumber, ...] = Field(
        min_length=1,
        max_length=32,
        json_schema_extra=ATOMIC,
        description="Share of drafts whose first tokens up to this position are all accepted, one per position (vLLM's "
        'synthetic_acceptance_rates). Positions beyond the last follow its step: ["0.7"] means 0.7, 0.49, 0.343, ...',
    )

    def of_length(self, k: int) -> list[float]:
        """The rates of a draft length."""
        rates = list(self.rates)
        before = rates[-2] if len(rates) > 1 else 1.0
        step = rates[-1] / before if before > 0 else 0.0
        while len(rates) < k:
            rates.append(round(rates[-1] * step, 6))
        return rates[:k]


class WorkloadSpec(Model):
    """The requests that are sent."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.promptTokens) == has(self.outputTokens)",
            "one of promptTokens and outputTokens is given without the other",
            "both or none",
            lambda workload: (workload.prompt_tokens is None) == (workload.output_tokens is None),
        ),
    )

    prompt_tokens: int | None = row(
        "Mean prompt length, tokens. Without it: what the target has seen lately, else 512.",
        ge=1,
        le=MOST_TOKENS,
    )
    output_tokens: int | None = row(
        "Mean output length, tokens. Without it: what the target has seen lately, else 256.",
        ge=1,
        le=MOST_TOKENS,
    )
    lengths: tuple[LengthsOfRequest, ...] = row(
        "Lengths that occur together, in place of promptTokens and outputTokens. Without any every request is as long as the mean.",
        default=(),
        extra=ATOMIC,
        max_length=64,
    )
    prompts: PromptSource | None = row(
        "Which text is sent. Without a source: made-up prose, on which acceptance is a guess."
    )
    sampling: SamplingSpec | None = row("How the engine draws tokens.")
    synthetic_acceptance: SyntheticAcceptance | None = row(
        "Measure cost at a chosen acceptance: calibration pods run with rejection_sample_method synthetic, serving "
        "pods never do. For engines that have it (vLLM 0.21 and newer, not on CPU)."
    )


LoadChoice = Literal["Even", "Auto"]


class AnswerCheck(StrEnum):
    """Whether a calibration compares the arms' answers with answers without speculation, and what follows from it."""

    DISABLED = "Disabled"
    WARN = "Warn"
    REQUIRE = "Require"


class AnswersSpec(Model):
    """How the answers of arms are compared with answers without speculation."""

    check: AnswerCheck | None = row(
        "Warn: each arm answers a set of greedy requests (256 tokens, together and some alone), and the second start of no "
        "speculation judges them; the word stands beside the arm. This costs a few minutes. Require: an arm is entered only with "
        "the word AnswersAgree, and left for AnswersDiffer or AnswersBroken. Disabled: nothing is compared. Without it: Require in the "
        "modes NextRollout and RollingUpdate, else Warn.",
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
    past: Literal["Use", "Ignore"] = row(
        "Use: until there is a profile, the last 14 days of the target at its Prometheus are read, and what they say "
        "of the arms that ran is shown, marked as such. No roll rests on it. Ignore: nothing is read.",
        default="Use",
    )
    new_image: Literal["Calibrate", "Gate"] = row(
        "When the engine's image alone has changed. Calibrate: all arms are measured again. Gate: the target's arm is compared on the "
        "image that was measured and on the new one; if nothing is lost, the profile goes on for the new image, else all arms are "
        "measured again.",
        default="Calibrate",
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
        default="Even",
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
