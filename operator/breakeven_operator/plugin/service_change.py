"""Changes that people make of a service by hand: a merge patch each, what is said once it is made, and what keeps it from working."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from breakeven.phrases import spoken
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import RECALIBRATE_ANNOTATION, RESUME_ANNOTATION, SERVICES
from breakeven_operator.plugin.service_view import ServiceView, time_of

_ENDED_BY_RESUME = frozenset(str(word) for word in ClusterReason if RESUME_ANNOTATION in word.remedy)


class ServiceChange(NamedTuple):
    """A merge patch of a SpeculativeService, and the words that are said once the API server has taken it."""

    fields: dict[str, Any]
    done: str


def pausing() -> ServiceChange:
    """Nothing is changed or started any more."""
    return ServiceChange({"spec": {"paused": True}}, "paused")


def resuming(now: datetime, *, retry: bool) -> ServiceChange:
    """The operator goes on; retry: rolls that wait after undone ones may begin at once."""
    fields: dict[str, Any] = {"spec": {"paused": False}}
    if retry:
        return ServiceChange(
            _annotated(RESUME_ANNOTATION, now) | fields, f"resumed, {RESUME_ANNOTATION} has a new value"
        )
    return ServiceChange(fields, "resumed")


def pinning(arm: str | None) -> ServiceChange:
    """One arm runs whatever the figures show; None if figures decide."""
    said = f"pinned to {spoken(arm)}" if arm is not None else "not pinned, figures decide"
    return ServiceChange({"spec": {"updatePolicy": {"pinnedArm": arm}}}, said)


def recalibrating(now: datetime) -> ServiceChange:
    """The arms are measured again."""
    return ServiceChange(
        _annotated(RECALIBRATE_ANNOTATION, now), f"asked for a calibration ({RECALIBRATE_ANNOTATION})"
    )


def _annotated(key: str, now: datetime) -> dict[str, Any]:
    return {"metadata": {"annotations": {key: f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"}}}


def manifest(change: ServiceChange, name: str, namespace: str | None) -> dict[str, Any]:
    """The change as the part of a manifest that makes it."""
    place = {"namespace": namespace} if namespace else {}
    meta = change.fields.get("metadata") or {}
    rest = {key: value for key, value in change.fields.items() if key != "metadata"}
    kind = {"apiVersion": SERVICES.api_version, "kind": SERVICES.kind}
    return {**kind, "metadata": {"name": name, **place, **meta}, **rest}


def after(change: ServiceChange, service: ServiceView, now: datetime) -> Iterator[str]:
    """Sentences about what keeps the change from having its effect, by the status that the API server returned."""
    name = service.name
    spec = change.fields.get("spec") or {}
    pinned = (spec.get("updatePolicy") or {}).get("pinnedArm")
    if pinned and service.mode != "RollingUpdate":
        yield f"{name}: the mode is {service.mode}, so the target is not rolled to {spoken(pinned)}"
    if pinned and service.paused:
        yield f"{name}: spec.paused is true, so the target is not rolled to {spoken(pinned)}"
    if spec.get("paused") is False and "metadata" not in change.fields and (word := _held(service, now)):
        yield (
            f"{name}: rolls still wait ({word}); `kubectl breakeven resume {name} --retry` gives {RESUME_ANNOTATION} "
            "a new value, which ends that"
        )
    if (
        RECALIBRATE_ANNOTATION in ((change.fields.get("metadata") or {}).get("annotations") or {})
        and service.paused
    ):
        yield f"{name}: spec.paused is true, so no calibration starts before `kubectl breakeven resume {name}`"


def _held(service: ServiceView, now: datetime) -> str | None:
    """The reason word that holds rolls back until a person resumes them; None if none does."""
    memory = service.memory
    backoff = time_of(memory.get("backoffUntilTime"))
    if backoff is not None and backoff > now:
        return f"{ClusterReason.BACKING_OFF} until {backoff:%Y-%m-%d %H:%M:%S} UTC"
    shown = [service.reason, *(one.get("reason") for one in service.conditions)]
    return next((str(word) for word in shown if word in _ENDED_BY_RESUME), None)
