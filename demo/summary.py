"""What happened, judged against what the measured laws said must happen; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from demo.record import PhaseResult, Record, ServiceRecord
from demo.story import Story

PHASE_HEAD = (
    "service",
    "phase",
    "load, rps per replica",
    "arm",
    "latency, s",
    "requests",
    "predicted, s",
    "other arm, predicted s",
    "reason",
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that had to happen."""

    what: str
    ok: bool
    detail: str


def phase_rows(record: Record) -> list[tuple[str, ...]]:
    """One row per service and phase."""
    return [_row(service, result) for service in record.services.values() for result in service.phases]


def _row(service: ServiceRecord, result: PhaseResult) -> tuple[str, ...]:
    phase = result.phase
    recommends = service.mode == "Recommend" and result.recommended != result.arm
    arm = f"{result.arm} (recommended {result.recommended})" if recommends else result.arm
    other = "saturated" if phase.other_latency_s is None else f"{phase.other_latency_s:.2f}"
    return (
        service.name,
        phase.name,
        f"{phase.rps:.1f}",
        arm,
        "-" if result.latency_s is None else f"{result.latency_s:.2f}",
        str(result.requests),
        "-" if phase.best_latency_s is None else f"{phase.best.name} {phase.best_latency_s:.2f}",
        f"{phase.other.name} {other}",
        result.reason,
    )


def judge(record: Record, stories: Mapping[str, Story], changes: Mapping[str, Sequence[str]]) -> list[Check]:
    """Every check of the demo.

    Args:
        record: what was seen.
        stories: what the profile of each service said would happen.
        changes: writes to the Deployment of each service by the operator, one line each (from the audit log).
    """
    checks = []
    for service in record.services.values():
        story = stories[service.name]
        for result in service.phases:
            verb = "runs" if service.mode == "RollingUpdate" else "is recommended"
            took = (
                f"after {result.settled_s - result.started_s:.0f} s" if result.settled_s else "did not happen"
            )
            checks.append(
                Check(
                    f"{service.name}: {result.phase.best} {verb} at {result.phase.rps:.1f} rps ({result.phase.name})",
                    result.settled_s is not None,
                    took,
                )
            )
        writes = changes.get(service.name, ())
        if service.mode == "Recommend":
            checks.append(
                Check(f"{service.name}: nothing was changed", not writes, "; ".join(writes) or "no write")
            )
            checks += _alert_checks(service)
        else:
            wanted = 2 if story.switches else 0
            # The first phase's arm is reached by a roll too, unless it is what ran from the start.
            checks.append(
                Check(
                    f"{service.name}: rolled at least {wanted} times, each with a reason",
                    len(writes) >= wanted,
                    f"{len(writes)} writes",
                )
            )
    checks.append(
        Check(
            "no request failed or was cut off",
            not record.failures,
            f"{record.requests} requests"
            + (f"; first failure: {record.failures[0]}" if record.failures else ""),
        )
    )
    return checks


def _alert_checks(service: ServiceRecord) -> list[Check]:
    """The alert fires exactly where the running arm speculates and the laws say that it should not."""
    checks = []
    for result in service.phases:
        due = result.phase.best.k == 0 and result.arm not in {"", "none"}
        checks.append(
            Check(
                f"{service.name}: alert {'fires' if due else 'is silent'} at {result.phase.rps:.1f} rps ({result.phase.name})",
                result.alert == due,
                "firing" if result.alert else "silent",
            )
        )
    return checks
