"""The table of `kubectl breakeven status`: the columns of `kubectl get specsvc`, and what a column there has no room for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from breakeven.phrases import fixed, spoken
from breakeven.printable import one_line
from breakeven_operator.plugin.service_view import Json, LeaseView, ServiceView, number_of, short_age, time_of

HEADER = (
    "NAME", "ARM", "PAYS", "SPEEDUP", "BREAK-EVEN", "LOAD", "RECOMMENDED", "REASON", "MODE", "DECIDED", "LAST ROLL",
    "CALIBRATION",
)  # fmt: skip
_COLUMNS = ("arm", "pays", "speedup", "breakEven", "load", "recommended", "reason", "mode")
# A living operator renews each status within an hour (outcome/action_plan.py), and looks at each service every five minutes.
_RENEWED = timedelta(hours=1, minutes=15)
_MISSED_RENEWALS = 3.0


def rows(services: Iterable[ServiceView], now: datetime, *, everywhere: bool = False) -> list[list[str]]:
    """The table with its header, cell by cell."""
    first = ["NAMESPACE"] if everywhere else []
    lines = [[*first, *HEADER]]
    for one in services:
        cells = [str(one.display.get(name) or "-") for name in _COLUMNS]
        # The operator writes the display; before its first cycle the spec says this much.
        cells[-1] = one.mode if cells[-1] == "-" else cells[-1]
        where = [one.namespace] if everywhere else []
        line = [*where, one.name, *cells, short_age(one.decided, now), last_roll(one), calibration(one, now)]
        lines.append([one_line(cell) for cell in line])
    return lines


def text_of(lines: Sequence[Sequence[str]]) -> str:
    """Columns side by side, as wide as their cells."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def last_roll(service: ServiceView) -> str:
    """The roll under way, else the last one: result, measured and promised speedup."""
    under_way = service.part("rollout")
    if under_way:
        return f"{under_way.get('phase', 'Rolling')} to {spoken(under_way.get('toArm'))}"
    ended = service.last_roll
    if ended is None:
        return "-"
    return " ".join([str(ended.get("result", "?")), *speedups(ended)])


def speedups(roll: Json) -> Iterator[str]:
    """The measured speedup of a roll and the promised one."""
    measured, promised = number_of(roll, "measuredSpeedup"), number_of(roll, "predictedSpeedup")
    if measured is not None:
        yield f"{fixed(measured, 2)}x"
    if promised is not None:
        yield f"(promised {fixed(promised, 2)}x)"


def measuring(service: ServiceView) -> bool:
    """Whether a calibration is under way: its run is not the last ended one."""
    state = service.part("calibration")
    return bool(state.get("run")) and state.get("run") != state.get("lastRun")


def calibration(service: ServiceView, now: datetime) -> str:
    """The progress of a calibration under way, else the profile in force with its age, else how the last run ended."""
    state = service.part("calibration")
    if measuring(service):
        done, planned = state.get("pointsDone"), state.get("pointsPlanned")
        return f"{state['run']} {done or 0}/{planned} points" if planned else f"{state['run']} begins"
    if state.get("profile"):
        measured = time_of(state.get("profileTime"))
        return " ".join([str(state["profile"]), *([short_age(measured, now)] if measured else [])])
    return str(state.get("lastReason") or "-")


def operator_gone(leases: Sequence[LeaseView], now: datetime) -> str | None:
    """A sentence if operators had Leases and none renews one; None where one does, or where nothing is known."""
    newest = max(leases, key=lambda one: one.renewed, default=None)
    if newest is None or now - newest.renewed <= timedelta(
        seconds=_MISSED_RENEWALS * max(newest.lasts_s, 10.0)
    ):
        return None
    return (
        f"no operator runs: the Lease {newest.place} was last renewed {short_age(newest.renewed, now)} ago, "
        "and every status is as old as that"
    )


def doubts(service: ServiceView, now: datetime) -> Iterator[str]:
    """Sentences about a status that is not of now."""
    if not service.status:
        yield f"{service.name}: has no status yet; an operator that runs writes one within a minute"
    elif service.unseen_spec:
        seen = service.status.get("observedGeneration")
        yield (
            f"{service.name}: its spec is of generation {service.generation}, the status of {seen}: the operator has not "
            "acted on the last change yet, which takes seconds"
        )
    decided = service.decided
    if decided is not None and now - decided > _RENEWED:
        yield (
            f"{service.name}: its status is {short_age(decided, now)} old; a living operator renews it within an hour: "
            "is the operator running?"
        )


def frame(
    services: Sequence[ServiceView], leases: Sequence[LeaseView], now: datetime, *, everywhere: bool = False
) -> str:
    """The table, and below it what makes its figures doubtful."""
    warnings = [*filter(None, [operator_gone(leases, now)])]
    warnings += [line for one in services for line in doubts(one, now)]
    return "\n".join(
        [text_of(rows(services, now, everywhere=everywhere)), *(f"! {line}" for line in warnings)]
    )


def document(services: Sequence[ServiceView], leases: Sequence[LeaseView], now: datetime) -> dict[str, Any]:
    """The same facts for `--json`."""
    return {
        "operator": operator_gone(leases, now),
        "services": [
            {
                "namespace": one.namespace,
                "name": one.name,
                "target": one.target,
                "arm": one.running,
                "recommended": one.recommended,
                "reason": one.reason,
                "decided": one.decision.get("time"),
                "pays": one.display.get("pays"),
                "speedup": number_of(one.decision, "speedup"),
                "break_even_rps": number_of(one.decision, "breakEvenRps"),
                "load_rps": number_of(one.decision, "loadRps"),
                "last_roll": last_roll(one),
                "calibration": calibration(one, now),
                "warnings": list(doubts(one, now)),
            }
            for one in services
        ],
    }
