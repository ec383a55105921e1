"""The target as the operator found it, and the arm that runs on it (part of a SpeculativeService's status)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from breakeven_operator.resources.base import ArmName, Instant, StatusModel, Time, list_map
from breakeven_operator.resources.figures import FigureGauge


class ArmSource(StrEnum):
    """Reason why the pods run the arm they run."""

    ANNOTATION = "Annotation"
    COMMAND_LINE = "CommandLine"
    UNSET = "Unset"


class Target(StatusModel):
    """What the target was found to be."""

    uid: Annotated[
        str | None, Field(max_length=64, description="UID of the target; another one means it was recreated.")
    ] = None
    generation: Annotated[int | None, Field(ge=0, description="Generation of the target that was read.")] = (
        None
    )
    container_name: Annotated[str | None, Field(max_length=63, description="Container that runs vLLM.")] = (
        None
    )
    image: Annotated[
        str | None, Field(max_length=1024, description="Image of that container, by digest where pods tell.")
    ] = None
    model: Annotated[str | None, Field(max_length=512, description="Model that is served.")] = None
    served_model_name: Annotated[
        str | None, Field(max_length=512, description="Value of vLLM's model_name label that is asked for.")
    ] = None
    gpu_product: Annotated[
        str | None,
        Field(max_length=128, description="GPU class of the nodes its pods run on (nvidia.com/gpu.product)."),
    ] = None
    gpus_per_pod: Annotated[int | None, Field(ge=0, description="GPUs each pod holds.")] = None
    replicas: Annotated[int | None, Field(ge=0, description="Pods wanted.")] = None
    replicas_changed_time: Annotated[
        Instant | None, Field(description="When the number of pods wanted was last seen to change.")
    ] = None
    ready_replicas: Annotated[int | None, Field(ge=0, description="Pods ready.")] = None
    fingerprint: Annotated[
        str | None,
        Field(
            max_length=64,
            description="Hash of image, model, engine arguments without speculative ones, GPU class and parallelism: "
            "a profile counts only for its own.",
        ),
    ] = None
    opted_in: Annotated[
        bool | None, Field(description="Whether the manifest takes its arm from the annotation.")
    ] = None
    drain_configured: Annotated[bool | None, Field(description="Whether a restart loses no request.")] = None


class PodsOfArm(StatusModel):
    """How many pods run an arm."""

    arm: Annotated[ArmName, Field(description="The arm.")]
    pods: Annotated[int, Field(ge=0, description="Pods that run it.")]


class Current(StatusModel):
    """What runs now."""

    arm: Annotated[
        ArmName | None,
        Field(description="The arm the target's pods run."),
        FigureGauge(
            "breakeven_current_arm_info",
            "1 for the arm that the target's pods run.",
            {"arm": "arm"},
            info=True,
        ),
    ] = None
    method: Annotated[
        str | None, Field(max_length=64, description="vLLM's word for its method; none without speculation.")
    ] = None
    draft_length: Annotated[
        int | None,
        Field(ge=0, description="Tokens drafted per step; of a schedule the longest."),
        FigureGauge(
            "breakeven_current_draft_tokens",
            "Draft length of the running arm, tokens per step, of a schedule the longest; 0 without speculation.",
        ),
    ] = None
    schedule: Annotated[
        str | None,
        Field(
            max_length=1024, description="Draft length per batch size that runs, such as 1-8:5,9-32:2,33-:0."
        ),
    ] = None
    source: Annotated[ArmSource | None, Field(description="Annotation, CommandLine (static), or Unset.")] = (
        None
    )
    since: Annotated[Time | None, Field(description="Since when.")] = None
    pods_by_arm: Annotated[
        tuple[PodsOfArm, ...],
        Field(
            max_length=8,
            json_schema_extra=list_map("arm"),
            description="More than one entry only during a roll.",
        ),
    ] = ()
