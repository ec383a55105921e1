"""Warnings about a fit: what a reader of the profile must know of its rows, its arms and its families."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from breakeven.fitting.observations import RAMP_SHARE
from breakeven.points.point import ENGINE, WHERE, LoadMode, Point
from breakeven.profile.fits import ArmFit
from breakeven.reasons import Reason

_MEANING = {reason.value: reason.meaning for reason in Reason}

_Imposed = tuple[LoadMode, float | None]
"""A foreign row's load: its clients may be a mean, which no imposed load is."""

_OFF = 0.15
"""Share by which rows of one load, or a row and the law, may differ without a word."""


def warnings_of(fits: Sequence[ArmFit], points: Sequence[Point], share: float) -> Iterator[str]:
    """Warnings in whole sentences; `share` is the part of a closed-loop row that ramp and drain take."""
    for fit in fits:
        yield from arm_warnings(fit, share)
        yield from _label_warnings(fit, [one for one in points if one.arm == fit.arm])
    if not any(fit.k == 0 for fit in fits):
        yield "no row of method none: nothing says what the engine does without speculation, so no arm has a speedup"
    elif len(fits) == 1:
        yield "only method none was measured: there is nothing to compare it with"
    repeated = len(points) - len({repr(replace(one, origin=points[0].origin)) for one in points})
    if repeated:
        noun = "row repeats" if repeated == 1 else "rows repeat"
        yield f"{repeated} {noun} another one in every figure: a measurement given twice counts as two"
    yield from _engine_warnings(points)


def _engine_warnings(points: Sequence[Point]) -> Iterator[str]:
    """Warnings about rows that may come from two engines; clear cases are refused (`reading.one_setting`)."""
    several = {"engine_version": "engine versions", "target": "addresses", "endpoint": "kinds of request"}
    for column, noun in several.items():
        values = sorted({value for one in points if (value := one.text(column)) is not None})
        if len(values) > 1:
            yield f"rows of {len(values)} {noun} ({', '.join(values)}) were fitted together"
    together = sorted({count for one in points if (count := one.text("replicas")) is not None})
    if together:
        counts = ", ".join(together)
        yield f"rows of {counts} replicas together: rates and requests in flight are of all, not of one engine"
    foreign = [one for one in points if one.origin.tool]
    named = ("engine", "engine_version", "target")
    if len(foreign) > 1 and not any(one.text(column) for one in foreign for column in named):
        yield "no file names the engine: nothing shows whether all runs were measured on one"


def _label_warnings(fit: ArmFit, points: Sequence[Point]) -> Iterator[str]:
    """A warning about labels of a tool that split an arm's rows, as `--metadata gpu_name=L4` does.

    A label that names the load, or each row by itself, splits nothing. Numbers may be figures of a run, or count its
    repetitions: such a label counts if rows of one load differ by it.
    """
    found = []
    for column in dict.fromkeys(key for one in points for key in one.extra if key not in (*ENGINE, *WHERE)):
        rows: dict[str, dict[_Imposed, list[float]]] = {}
        for one in points:
            if (value := one.text(column)) is not None:
                load = one.load_mode, one.concurrency if one.closed else one.request_rate_rps
                rows.setdefault(value, {}).setdefault(load, []).append(one.mean_latency_s)
        splits = len(rows) > 1 and max(map(len, rows.values())) > 1
        if splits and (not all(map(_is_number, rows)) or _differ(list(rows.values()))):
            found.append(f"{column} ({', '.join(list(rows)[:4])})")
    if found:
        first = found[0].partition(" (")[0]
        yield (
            f"{fit.arm}: rows differ in {', '.join(found[:6])} and were fitted together: "
            f"--group-by {first}, or --where"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _differ(values: Sequence[Mapping[_Imposed, Sequence[float]]]) -> bool:
    """Whether latencies of one load differ between values of a label by more than rows of one arm do."""
    for load in set.union(*map(set, values)):
        means_s = [sum(of[load]) / len(of[load]) for of in values if load in of]
        if max(means_s) > (1.0 + _OFF) * min(means_s):
            return True
    return False


def _places(fit: ArmFit, reason: str) -> str:
    """The rows that were left out for a reason; by their files, where the arm was measured in several."""
    of_file = Counter([*(one.source for one in fit.measurements), *(one.source for one in fit.excluded)])
    places = []
    for source, count in of_file.items():
        rows = [str(one.row) for one in fit.excluded if (one.reason, one.source) == (reason, source)]
        numbers = f"{'row' if len(rows) == 1 else 'rows'} {', '.join(rows)}"
        if len(of_file) == 1:
            return numbers
        if rows:
            places.append(source if count == 1 else f"{source} {numbers}")
    return ", ".join(places)


def arm_warnings(fit: ArmFit, share: float) -> Iterator[str]:
    """Sentences about one arm."""
    if not fit.points:
        yield f"{fit.arm}: not measured ({Reason.TOO_FEW_POINTS}): {Reason.TOO_FEW_POINTS.meaning}"
    if (fit.max_relative_error or 0.0) > _OFF:
        yield (
            f"{fit.arm}: a row lies {fit.max_relative_error:.0%} off the law of all rows: do they come from one engine, "
            "one GPU and one kind of text?"
        )
    for reason in dict.fromkeys(row.reason for row in fit.excluded):
        yield f"{fit.arm}: {_places(fit, reason)} left out ({reason}): {_MEANING[reason]}"
    constant = [one for one in fit.measurements if one.mode == "constant"]
    alike = sum(one.others == one.inflight for one in constant)
    if constant:
        yield (
            f"{fit.arm}: {len(constant)} of {fit.points} rows had arrivals at a constant rate, which meet up to one other "
            "less than Poisson arrivals do; "
            + (
                f"{alike} without output_tokens_sq are taken for Poisson"
                if alike
                else "that is taken into account"
            )
        )
    assumed = sum(one.inflight_assumed for one in fit.measurements)
    if assumed:
        how = "assumed" if share == RAMP_SHARE else "learned from the other rows"
        yield (
            f"{fit.arm}: {assumed} of {fit.points} closed-loop rows are short and without mean_inflight; ramp and drain are {how} (rho {share:.2f})"
        )
