"""The run judged against the measured laws; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from breakeven.phrases import change_text, counted, spoken
from breakeven.profile import Profile
from breakeven.reasons import Reason
from breakeven_operator.outcome.formatting import PAST_MARK
from demo.record import PhaseResult, Record, ServiceRecord, Speedup
from demo.story import Story

PHASE_HEAD = (
    "service",
    "phase",
    "load, rps per replica",
    "arm",
    "latency, s",
    "requests",
    "best by the profile, predicted s",
    "other arm, predicted s",
    "reason",
)


ANSWER_HEAD = ("service", "arm", "answers as no speculation does")
ROLL_HEAD = ("service", "roll", "result", "promised", "measured", "requests")
# A part of the asked load below which no arm can be judged at it: the generator of the load had no processor.
_CARRIED = 0.8

_WORDS_ABOUT_ANSWERS = {
    str(word)
    for word in (
        Reason.ANSWERS_AGREE,
        Reason.ANSWERS_DIFFER,
        Reason.ANSWERS_BROKEN,
        Reason.ANSWERS_UNDECIDED,
    )
}


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


def roll_rows(record: Record) -> list[tuple[str, ...]]:
    """One row per change of arm: what it promised, and what was measured of it."""
    return [
        (
            service.name,
            change_text(roll.from_arm, roll.to_arm),
            roll.result,
            _speedup_text(roll.promised),
            _speedup_text(roll.measured),
            str(roll.requests) if roll.requests else "-",
        )
        for service in record.services.values()
        for roll in service.rolls
    ]


def _speedup_text(speedup: Speedup | None) -> str:
    if speedup is None:
        return "-"
    lower, upper = ("" if end is None else f"{end:.2f}" for end in speedup[1:])
    return f"{speedup.value:.2f}x" + (f" ({lower} to {upper})" if lower or upper else "")


def judge(
    record: Record,
    stories: Mapping[str, Story],
    changes: Mapping[str, Sequence[str]],
    failures: Sequence[str] = (),
) -> list[Check]:
    """Every check of the demo.

    Args:
        record: what was seen.
        stories: what the profile of each service said would happen.
        changes: writes to the Deployment of each service by the operator, one line each (from the audit log).
        failures: of the operator itself, one line each (`operator_failures`).
    """
    checks = []
    for service in record.services.values():
        story = stories[service.name]
        checks += [_arm_check(service, result) for result in service.phases]
        writes = changes.get(service.name, ())
        if service.mode == "Recommend":
            checks.append(
                Check(f"{service.name}: nothing was changed", not writes, "; ".join(writes) or "no write")
            )
            checks += _alert_checks(service)
        else:
            checks.append(_rolls_check(service, story, writes))
    return checks + safety_checks(record, failures)


def _arm_check(service: ServiceRecord, result: PhaseResult) -> Check:
    """The arm that was seen, where the laws ask for one; a failure says what was there instead."""
    phase, rolls = result.phase, service.mode == "RollingUpdate"
    seen = _settled_arm(service, result, rolls=rolls)
    verb, where = "runs" if rolls else "is recommended", f"at {phase.rps:.1f} rps ({phase.name})"
    if result.settled_s is None or seen not in phase.acceptable:
        why = f" ({result.reason})" if result.reason else ""
        detail = f"{spoken(seen)} instead{why}, after {result.ended_s - result.started_s:.0f} s"
        if result.answered_rps < _CARRIED * phase.rps:
            detail += f"; this machine was too busy for the load: {result.answered_rps:.1f} rps were answered"
        return Check(f"{service.name}: {spoken(phase.best)} {verb} {where}", ok=False, detail=detail)
    detail = f"after {result.settled_s - result.started_s:.0f} s"
    if seen != phase.best.name:
        detail += f"; {spoken(phase.best)} is faster by less than a roll is made for"
    return Check(f"{service.name}: {spoken(seen)} {verb} {where}", ok=True, detail=detail)


def _settled_arm(service: ServiceRecord, result: PhaseResult, *, rolls: bool) -> str:
    """The arm of the sample by which the phase settled, else the last one of the phase."""
    at_s = result.settled_s
    found = [one for one in service.samples if at_s is not None and result.started_s <= one.at_s <= at_s]
    last = found[-1] if found else result
    return last.arm if rolls else last.recommended


def answer_rows(profiles: Mapping[str, Profile]) -> list[tuple[str, str, str]]:
    """One row per service and speculative arm: the answer gate's word."""
    return [
        (name, fit.arm.name, fit.answers or "not compared")
        for name, profile in profiles.items()
        for fit in profile.arms
        if fit.k
    ]


def answer_checks(profiles: Mapping[str, Profile]) -> list[Check]:
    """Check that the gate has a word for every arm; the simulated engine's arms are sound unless its costs break them."""
    return [
        Check(f"{service}: answers of {arm} were compared", word in _WORDS_ABOUT_ANSWERS, word)
        for service, arm, word in answer_rows(profiles)
    ]


def first_row(service: ServiceRecord) -> Check:
    """Check that the past spoke before the first calibration had measured anything."""
    seen = next((one for one in service.samples if one.pays.endswith(PAST_MARK)), None)
    detail = f"PAYS {seen.pays}, SPEEDUP {seen.speedup}" if seen is not None else "no such row"
    return Check(
        f"{service.name}: the first row is of its past, before anything is measured", seen is not None, detail
    )


def safety_checks(record: Record, failures: Sequence[str]) -> list[Check]:
    """Checks of every story: the operator met no error (for the arguments see `judge`), and no request was lost."""
    return [
        Check(
            "the operator met no error of its own",
            not failures,
            f"{len(failures)} lines of its log; first: {failures[0]}" if failures else "none in its log",
        ),
        Check(
            "no request failed or was cut off",
            not record.failures,
            counted(record.requests, "request")
            + (f"; first failure: {record.failures[0]}" if record.failures else ""),
        ),
    ]


def tell_checks(console: Console, checks: Sequence[Check]) -> None:
    """Print one line per check."""
    for check in checks:
        console.print(
            f"{'ok  ' if check.ok else 'FAIL'}  {check.what}: {check.detail}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def _rolls_check(service: ServiceRecord, story: Story, writes: Sequence[str]) -> Check:
    """The number of rolls that the phases ask for; exactly that number if the same arm should run at every load."""
    started_with = next((sample.arm for sample in service.samples if sample.arm not in {"", "?", "-"}), "")
    wanted, running = 0, started_with
    for phase in story.phases:
        if running not in phase.acceptable:
            wanted, running = wanted + 1, phase.best.name
    said = f"{counted(len(writes), 'write')}; {spoken(started_with or 'no arm')} ran at first"
    if story.switches:
        return Check(
            f"{service.name}: rolled at least {counted(wanted, 'time')}, each with a reason",
            len(writes) >= wanted,
            said,
        )
    what = f"rolled to {spoken(story.phases[0].best)} once and never again" if wanted else "never rolled"
    return Check(f"{service.name}: {what}", len(writes) == wanted, said)


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


def operator_failures(log: str, restarts: int) -> list[str]:
    """Lines of the operator's log about a failure of its own, shortened; none in a good run.

    Args:
        log: as `kubectl logs` gives it: one JSON object per line, or plain text from below the operator's logging.
        restarts: of its container; a restart took the log of the process before it away.

    Returns:
        Lines of level error or above, lines with a traceback, and cycles that ended as InternalError.
    """
    found = [f"the operator was restarted {restarts} times"] if restarts else []
    return found + [failure for line in log.splitlines() if (failure := _failure(line))]


def _failure(line: str) -> str:
    """The failure in a line of the log; empty if there is none."""
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        words = ("Traceback (most recent call last)", "ERROR", "CRITICAL", "InternalError")
        return line.strip()[:200] if any(word in line for word in words) else ""
    failed = (
        str(fields.get("level")) in {"error", "critical"}
        or "traceback" in fields
        or fields.get("reason") == "InternalError"
    )
    if not failed:
        return ""
    said = str(fields.get("message") or fields.get("reason") or line)
    last = str(fields.get("traceback", "")).strip().rpartition("\n")[2]
    return f"{said}: {last}"[:200] if last else said[:200]
