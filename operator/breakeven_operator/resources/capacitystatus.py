"""Saturation of the arms, and replicas that the target needs (part of a SpeculativeService's status)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from breakeven_operator.resources.base import (
    IN_NOTES,
    ArmName,
    Number,
    RequiredNumber,
    Sentence,
    StatusModel,
    Word,
    list_map,
)
from breakeven_operator.resources.figures import FigureGauge, LowerOrOpen, Renewal, UpperOrOpen, row


class ArmCapacity(StatusModel):
    """What one replica carries with an arm."""

    arm: Annotated[ArmName, Field(description="The arm.")]
    capacity_rps: Annotated[
        RequiredNumber,
        Field(
            description="Largest load per replica that keeps spec.slo, requests per second; without one, what it carries at all."
        ),
        FigureGauge(
            "breakeven_capacity_requests_per_second",
            "Largest load per replica that keeps the objectives; what an arm carries at all without any. Absent where unknown or a "
            "bound is open.",
            {"arm": "arm"},
            ends=("lower_rps", "upper_rps"),
        ),
    ]
    lower_rps: LowerOrOpen = None
    upper_rps: UpperOrOpen = None
    limit: Word | None = row(
        "What bounds it: Objective, Saturation, MaxNumSeqs (the engine's batch) or KvPool."
    )
    replicas: int | None = row(
        "Replicas for the present load of all of them, with headroom, by the estimate.", ge=1
    )


class CapacityStatus(StatusModel):
    """How much load the target's replicas carry, and how many it needs."""

    arms: tuple[ArmCapacity, ...] = row(
        "Every arm that may run.", IN_NOTES, default=(), extra=list_map("arm"), max_length=64
    )
    fleet_load_rps: Number | None = row("Offered load of all replicas together, requests per second.")
    recommended_replicas: int | None = row(
        "Replicas for that load times 1.2, by the lower bound of the running arm (during a roll: of the arm that carries least). "
        "Absent while load or capacity is not known.",
        FigureGauge(
            "breakeven_recommended_replicas",
            "Replicas for the present load of all of them times 1.2, by the lower bound of the running arm's capacity; absent while "
            "load or capacity is not known.",
            # Users act upon this figure, so it must not be of an earlier cycle.
            fresh=True,
        ),
        ge=1,
    )
    scaled_by: str | None = row(
        "Field manager of the autoscaler that last set the target's replicas; absent: none has.",
        Renewal.AT_ONCE,
        max_length=128,
    )
    message: Sentence | None = row("The same as a sentence.")
