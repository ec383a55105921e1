"""The target as the operator found it, and the arm that runs on it (part of a SpeculativeService's status)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from breakeven.phrases import spoken
from breakeven_operator.resources.base import IN_NOTES, ArmName, Instant, StatusModel, Time, list_map
from breakeven_operator.resources.figures import FigureGauge, row

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
    gpus_per_pod: int | None = row("GPUs each pod holds.", IN_NOTES, ge=0)
    replicas: int | None = row("Pods wanted.", ge=0)
    replicas_changed_time: Instant | None = row(
        "When the number of pods wanted was last seen to change.", IN_NOTES
    )
    ready_replicas: int | None = row("Pods ready.", ge=0)
    fingerprint: str | None = row(
        "Hash of image, model, engine arguments without speculative ones, GPU class and parallelism: "
        "a profile counts only for its own.",
        IN_NOTES,
        max_length=64,
    )
    opted_in: bool | None = row("Whether the manifest takes its arm from the annotation.", IN_NOTES)
    drain_configured: bool | None = row("Whether a restart loses no request.", IN_NOTES)


class PodsOfArm(StatusModel):
    """How many pods run an arm."""

    arm: Annotated[ArmName, Field(description="The arm.")]
    pods: Annotated[int, Field(ge=0, description="Pods that run it.")]


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
