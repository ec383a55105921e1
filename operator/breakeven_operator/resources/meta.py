"""Metadata and the parts that more than one kind uses, conditions among them.

A condition is one aspect, one reason word, and a sentence with the figures that decided. Ready says that the spec is valid and the
operator able to act; it does not move with load, metrics or gain. An Argo CD that calls an application unhealthy during every roll
is the price of folding run-time health into it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from breakeven_operator.resources.base import (
    LABEL_PATTERN,
    KeyName,
    Model,
    ObjectName,
    StatusModel,
    Time,
    Word,
)
from breakeven_operator.resources.figures import FigureGauge, Renewal, row


class Metadata(Model):
    """The few fields of an object's metadata that decisions use; all others are ignored."""

    model_config = ConfigDict(extra="ignore")

    name: ObjectName
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    labels: Annotated[dict[str, str], Field(default_factory=dict)]
    annotations: Annotated[dict[str, str], Field(default_factory=dict)]


class ConditionStatus(StrEnum):
    """Values that Kubernetes allows as a condition's status."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(StatusModel):
    """One aspect of the object's state, as in every Kubernetes API."""

    type: Annotated[
        Word,
        Field(description="Name of the aspect, such as Ready or Profitable."),
        FigureGauge(
            "breakeven_condition_info",
            "1 for each condition of the status, with its status and reason word.",
            {"condition": "type", "status": "status", "reason": "reason"},
            info=True,
        ),
    ]
    status: ConditionStatus = Field(description="True, False, or Unknown where nothing could be observed.")
    reason: Word = Field(
        description="One word why; docs/reasons.md says what each word means and what to do."
    )
    message: str = row(
        "One sentence with the figures that decided.", Renewal.MOVED, default="", max_length=4096
    )
    last_transition_time: Time = Field(description="When the status last changed.")


class ServiceReference(Model):
    """The SpeculativeService an object belongs to, in the same namespace."""

    name: str = Field(
        min_length=1, max_length=42, pattern=LABEL_PATTERN, description="Name of the SpeculativeService."
    )


class ObjectReference(Model):
    """An object of a known kind in the same namespace."""

    name: ObjectName = Field(description="Name of the object.")


class SecretKeyReference(Model):
    """One key of a Secret in the namespace of the SpeculativeService; read at every use, never copied."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: KeyName = Field(description="Key inside the Secret.")


READY = "Ready"
METRICS = "MetricsAvailable"
CALIBRATED = "Calibrated"
PROFITABLE = "Profitable"
PROGRESSING = "Progressing"
MODEL = "ModelAgrees"
ACCEPTANCE = "AcceptanceAsCalibrated"
LENGTHS = "LengthsAsCalibrated"
COST_TABLE = "CostTableFits"
OBJECTIVES = "ObjectivesKept"
_STATUS = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}


@dataclass(frozen=True, slots=True)
class Aspect:
    """State of a condition in this cycle; `holds` is None if it is unknown."""

    type: str
    holds: bool | None
    reason: str
    message: str


def merge(old: Iterable[Condition], aspects: Iterable[Aspect], now: datetime) -> tuple[Condition, ...]:
    """The conditions of a status after `aspects` were looked at.

    A condition of which no aspect speaks stays as it was. The time of transition moves only with the status. Types keep
    their order; new ones come last, in the order of `aspects`.
    """
    before = {condition.type: condition for condition in old}
    said = {aspect.type: _said(aspect, before.get(aspect.type), now) for aspect in aspects}
    return tuple((before | said).values())


def _said(aspect: Aspect, earlier: Condition | None, now: datetime) -> Condition:
    status = _STATUS[aspect.holds]
    return Condition(
        type=aspect.type,
        status=status,
        reason=aspect.reason,
        message=aspect.message[:4096],
        last_transition_time=(
            earlier.last_transition_time if earlier is not None and earlier.status is status else now
        ),
    )
