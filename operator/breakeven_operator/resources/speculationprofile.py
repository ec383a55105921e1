"""SpeculationProfile: an accepted fit; written once by the operator, read by people and by others."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from breakeven_operator.resources.base import (
    ArmName,
    Cell,
    Model,
    Number,
    Rule,
    Sentence,
    StatusModel,
    Time,
    Word,
    list_map,
)
from breakeven_operator.resources.calibrationrun import MAX_ARMS
from breakeven_operator.resources.decisionstatus import PaysWhereStatus
from breakeven_operator.resources.figures import row
from breakeven_operator.resources.meta import Condition, Metadata, ServiceReference


class ProfileArm(Model):
    """One arm as it was fitted, and how it compares with no speculation."""

    arm: ArmName = Field(description="The arm.")
    schedule: str | None = row(
        "Draft length per batch size that was measured, such as 1-8:5,9-32:2,33-:0; adaptive: the engine chose it.",
        max_length=1024,
    )
    drafter: str | None = row(
        "Hash of its --speculative-config without draft length: under another drafter of the same name it does not count.",
        max_length=12,
    )
    saturation_rps: Number | None = row("Load per replica at which it saturates.")
    points: int | None = row("Points behind the fit.", ge=0)
    reason: Word | None = row("Why it has no point, in one word.")
    answers: Word | None = row("How its answers compare with answers without speculation.")
    verdict: PaysWhereStatus | None = row("For which loads it beats no speculation.")
    break_even_rps: Number | None = row("Load per replica at which the gain is gone.")
    break_even_lower_rps: Number | None = row("Lower bound; absent where open.")
    break_even_upper_rps: Number | None = row("Upper bound; absent where open.")


class SpeculationProfileSpec(Model):
    """What was measured and fitted."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("self == oldSelf", "a SpeculationProfile's spec cannot be changed", "a new calibration"),
    )

    service_ref: ServiceReference = Field(description="The SpeculativeService it was measured for.")
    gpu_product: str = Field(max_length=128, description="GPU class it was measured on.")
    model: str | None = row("Model it was measured with.", max_length=512)
    image: str | None = row("Engine image it was measured with.", max_length=1024)
    fingerprint: str = Field(max_length=64, description="It counts only for a target with this fingerprint.")
    created_time: Time | None = row(
        "When the last point was measured, at the latest when the object was made."
    )
    arms: tuple[ProfileArm, ...] = row(
        "The fitted arms, for readers.", default=(), extra=list_map("arm"), max_length=MAX_ARMS
    )
    profile: str = Field(
        min_length=2,
        max_length=1048576,
        description="The whole fit as JSON: save it to a file and `breakeven plan FILE` answers from it.",
    )


class ProfileDisplay(StatusModel):
    """The columns of kubectl get, ready to print."""

    worst: Cell | None = row("Worst residual of all arms.")
    break_even: Cell | None = row("Break-even of the best speculative arm with bounds.")


class SpeculationProfileStatus(StatusModel):
    """Whether it counts."""

    in_force: bool | None = row("Whether decisions use it now.")
    worst_error_percent: Number | None = row("Worst residual of all arms.")
    reason: Word | None = row("Why it is or is not in force, in one word.")
    message: Sentence | None = row("The same as a sentence.")
    conditions: tuple[Condition, ...] = row(
        "InForce: decisions use it.", default=(), extra=list_map("type"), max_length=8
    )
    display: ProfileDisplay | None = row("The columns of kubectl get, ready to print.")


class SpeculationProfile(Model):
    """What one calibration found: per arm the latency law, its bounds and its break-even."""

    api_version: Literal["breakeven.dev/v1alpha1"] = "breakeven.dev/v1alpha1"
    kind: Literal["SpeculationProfile"] = "SpeculationProfile"
    metadata: Metadata
    spec: SpeculationProfileSpec = Field(description="What was measured and fitted.")
    status: SpeculationProfileStatus = row("Whether it counts.", default=SpeculationProfileStatus())
