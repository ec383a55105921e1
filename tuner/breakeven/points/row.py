"""One row of raw fields, whatever file it stands in, checked into a point: every unit and range is refused here, in one line."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from breakeven.arm import ADAPTIVE, NO_SPECULATION, Arm
from breakeven.errors import InputError
from breakeven.phrases import figure
from breakeven.points.point import (
    ACCEPT,
    COLUMNS,
    NUMBERS,
    SHARE,
    TEXTS,
    LoadMode,
    Origin,
    Point,
    PointColumn,
)
from breakeven.tiers import Schedule

MISSING = frozenset({"", "-", "na", "n/a", "nan", "null"})
"""Spellings of "not measured", in lower case: what spreadsheets and data frames write for an empty cell."""

_ANOTHER_UNIT = 100.0
"""Rate times latency over the number in flight from which the latency is in another unit; a queue explains a factor of ten."""

_PLAIN_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")


def point(fields: Mapping[str, str | float], origin: Origin, *, decimal_comma: bool = False) -> Point:
    """Check one row and give it its types; text is parsed, numbers are taken as they are, unknown columns are kept as text.

    Raises:
        InputError: naming the first value that is missing, no number, outside its range or against another one.
    """
    numbers = {
        name: _number(column, fields[name], origin.of(name), decimal_comma=decimal_comma)
        for name, column in NUMBERS.items()
        if name in fields
    }
    texts = {name: text for name in TEXTS if (text := _text(fields.get(name))) is not None}
    arm = _arm(fields, numbers, texts.get("candidate"), origin)
    schedule = _schedule(texts.get("schedule"), arm, origin)
    mode = _mode(numbers, texts.get("load_mode"), origin)
    if numbers.get("mean_latency_s") is None:
        raise InputError(origin.of("mean_latency_s"), "nothing there", NUMBERS["mean_latency_s"].meaning)
    accept = _survival(fields, arm, origin, decimal_comma=decimal_comma)
    extra = {
        name: str(value)
        for name, value in fields.items()
        if name not in NUMBERS and name not in TEXTS and not ACCEPT.fullmatch(name)
    }
    columns: dict[str, Any] = {**numbers, **texts}
    columns |= {"method": arm.method, "k": arm.k, "candidate": arm.candidate, "schedule": schedule}
    columns["load_mode"] = mode
    checked = Point(**columns, accept=accept, origin=origin, extra=extra)
    _check_together(checked)
    return checked


def _number(
    column: PointColumn, value: str | float, where: str, *, decimal_comma: bool = False
) -> float | None:
    shown, text = _shown(value) if isinstance(value, str) else f"{value:g}", value
    if isinstance(text, str):
        text = text.strip()
        if text.lower() in MISSING:
            return None
        if decimal_comma:
            text = text.replace(",", ".")
        # float() also takes "1_000", "infinity" and other alphabets' digits; a points file does not.
        if not (text.isascii() and _PLAIN_NUMBER.fullmatch(text)):
            raise InputError(where, f"{shown} is not a number", column.meaning)
    if not column.holds(number := float(text)):
        problem = "out of range" if math.isfinite(number) else "not a finite number"
        raise InputError(where, f"{shown} is {problem}", column.meaning)
    return number


def _shown(value: str) -> str:
    text = repr(value.strip())
    return text if len(text) <= 40 else f"{text[:37]}..."


def _text(value: str | float | None) -> str | None:
    if value is None:
        return None
    text = value.strip() if isinstance(value, str) else f"{value:g}"
    return None if text.lower() in MISSING else text


def _arm(
    fields: Mapping[str, str | float],
    numbers: Mapping[str, float | None],
    candidate: str | None,
    origin: Origin,
) -> Arm:
    expected = COLUMNS["method"].meaning
    method = str(fields.get("method", "")).strip()
    if not method:
        raise InputError(origin.of("method"), "nothing there", expected)
    if len(method) > 64 or not method.isprintable() or "/" in method or " " in method:
        raise InputError(origin.of("method"), f"{method[:64]!r} is no method name", expected)
    k = numbers.get("k")
    if method.lower() == "none":
        if k:
            raise InputError(
                origin.of("k"), f"{k:g} with method none", "0: without speculation nothing is drafted"
            )
        return Arm("none", 0)
    if not k:
        raise InputError(
            origin.of("k"),
            "nothing there" if k is None else f"0 with method {method}",
            "the draft length, at least 1 (0 only for method none)",
        )
    if candidate is not None and (len(candidate) > 64 or not candidate.isprintable() or "/" in candidate):
        raise InputError(
            origin.of("candidate"), f"{candidate[:64]!r} is no name", "a short name without slash"
        )
    return Arm(method, int(k), candidate)


def _schedule(text: str | None, arm: Arm, origin: Origin) -> str | None:
    """The table in its one spelling; None for a draft length that holds at every batch size."""
    if text is None:
        return None
    where = origin.of("schedule")
    if arm == NO_SPECULATION:
        raise InputError(where, f"{text[:40]!r} with method none", "nothing: nothing is ever drafted")
    if text == ADAPTIVE:
        return text
    table = Schedule.parse(text, where)
    if table.num_speculative_tokens > arm.k:
        raise InputError(
            where,
            f"a draft length of {table.num_speculative_tokens} with k = {arm.k}",
            "none above k (vLLM's num_speculative_tokens)",
        )
    return str(table)


def _mode(numbers: Mapping[str, float | None], given: str | None, origin: Origin) -> LoadMode:
    closed, rate = numbers.get("concurrency"), numbers.get("request_rate_rps")
    if (closed is None) == (rate is None):
        both = "both are given" if closed is not None else "neither is given"
        raise InputError(
            f"{origin}, columns concurrency and request_rate_rps",
            both,
            "exactly one: what was imposed on this row",
        )
    if given is None:
        return LoadMode.CLOSED if closed is not None else LoadMode.POISSON
    allowed = ("closed",) if closed is not None else ("poisson", "constant")
    if given.lower() not in allowed:
        column = "concurrency" if closed is not None else "request_rate_rps"
        raise InputError(origin.of("load_mode"), f"{given[:40]!r} with {column}", " or ".join(allowed))
    return LoadMode(given.lower())


def _survival(
    fields: Mapping[str, str | float], arm: Arm, origin: Origin, *, decimal_comma: bool
) -> tuple[float, ...]:
    found: dict[int, float] = {}
    for name, value in fields.items():
        if match := ACCEPT.fullmatch(name):
            share = _number(SHARE, value, origin.of(name), decimal_comma=decimal_comma)
            if share is not None:
                found[int(match[1])] = share
    for position in sorted(found):
        if position > arm.k:
            raise InputError(origin.of(f"accept_{position}"), f"a value beyond k = {arm.k}", "nothing")
        if position > 1 and position - 1 not in found:
            raise InputError(
                origin.of(f"accept_{position - 1}"),
                "nothing there",
                f"a value, since accept_{position} has one",
            )
        # Reports round: a survival that rises by less than a rounding step is flat.
        if position > 1 and found[position] > found[position - 1] + 0.005:
            raise InputError(
                origin.of(f"accept_{position}"),
                f"{found[position]:g} is more than accept_{position - 1} = {found[position - 1]:g}",
                "unconditional survival, which never rises with the position",
            )
    return tuple(found[position] for position in sorted(found))


def _check_quantiles(row: Point, of_mean: str, form: str) -> None:
    """Refuse quantiles that fall, and one in milliseconds: a mean is at least (1 - q) times its quantile q."""
    mean, low, below = getattr(row, of_mean), "", 0.0
    for percent in (50, 95, 99):
        name = form.format(percent)
        value = getattr(row, name)
        if value is None:
            continue
        if value < below * 0.999:
            raise InputError(
                row.origin.of(name), f"{value:g} is below {low} = {below:g}", "quantiles in rising order"
            )
        # TPOT's mean weighs requests by their tokens, which moves it, though not by a factor of three.
        if mean is not None and (1.0 - percent / 100.0) * value > 3.0 * mean:
            raise InputError(
                row.origin.of(name),
                f"{value:g} cannot belong to {of_mean} = {mean:g}",
                "both in seconds, of the same requests",
            )
        low, below = name, value


def _check_latency_unit(row: Point) -> None:
    """Refuse a mean latency in milliseconds, or one that was divided by 1000 twice: rate times latency is the number in flight."""
    rate = row.answered_rps if row.answered_rps is not None else row.request_rate_rps
    inflight = row.mean_inflight if row.mean_inflight is not None else row.concurrency
    if rate is None or inflight is None:
        return
    times = rate * row.mean_latency_s / inflight
    # Idle clients are not in flight: only a counted number in flight shows a latency that is too short.
    if times > _ANOTHER_UNIT or (row.mean_inflight is not None and times < 1.0 / _ANOTHER_UNIT):
        unit = "milliseconds" if times > 1.0 else "seconds that were taken for milliseconds"
        raise InputError(
            row.origin.of("mean_latency_s"),
            f"{row.mean_latency_s:g} s at {rate:g} requests per second is {figure(times)} times the {inflight:g} in flight; "
            f"it looks like {unit}",
            "seconds",
        )


def _check_together(row: Point) -> None:
    """Refuse values that contradict each other, as they do when one was given in milliseconds."""
    _check_quantiles(row, "mean_latency_s", "p{}_latency_s")
    _check_quantiles(row, "ttft_mean_s", "ttft_p{}_s")
    _check_quantiles(row, "tpot_mean_s", "tpot_p{}_s")
    _check_latency_unit(row)
    mean = row.mean_latency_s
    if row.ttft_mean_s is not None and row.ttft_mean_s > 1.05 * mean:
        raise InputError(
            row.origin.of("ttft_mean_s"),
            f"{row.ttft_mean_s:g} is more than mean_latency_s = {mean:g}",
            "both in seconds, the first token before the last",
        )
    if row.tpot_mean_s is not None:
        tokens = row.output_tokens if row.output_tokens is not None else 1.0
        decode_s = (tokens - 1.0) * row.tpot_mean_s
        # Means of ratios differ from ratios of means, never by a factor of ten.
        if row.tpot_mean_s > mean or decode_s > 10.0 * mean:
            raise InputError(
                row.origin.of("tpot_mean_s"),
                f"{row.tpot_mean_s:g} for {tokens:g} tokens does not fit into mean_latency_s = {mean:g}",
                "seconds per output token after the first",
            )
    for name, most in (("tokens_per_step", row.arm.k + 1.0), ("drafted_per_step", row.arm.k)):
        value = getattr(row, name)
        if value is not None and value > most + 1e-6:
            raise InputError(row.origin.of(name), f"{value:g} with k = {row.arm.k}", NUMBERS[name].meaning)
    if (
        row.output_tokens is not None
        and row.output_tokens_sq is not None
        and row.output_tokens_sq < 0.999 * row.output_tokens**2
    ):
        raise InputError(
            row.origin.of("output_tokens_sq"),
            f"{row.output_tokens_sq:g} is below the square of output_tokens = {row.output_tokens:g}",
            "the mean of squares, never below the square of the mean",
        )
