"""Responses of Prometheus' HTTP API, and operating points made of them.

`series` reads one response (`/api/v1/query` or `/api/v1/query_range`). An empty result, a sample that is NaN and a
missing series are different facts and stay different: no sample is ever read as zero.

A points document is what a shell loop over queries saves: an object whose keys are columns of a points file and
whose values are the responses, for example

    {"request_rate_rps": <response>, "mean_latency_s": <response>, "mean_inflight": <response>}

Each time stamp at which the required columns have a sample becomes one operating point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import starmap
from typing import NamedTuple

import msgspec

from breakeven.arm import Arm
from breakeven.points.point import ACCEPT, LIVE_TRAFFIC, NUMBERS, Origin, Point
from breakeven.points.row import point
from breakeven.points.table import MOST_ROWS
from breakeven.readers.foreign import Document

_REQUIRED = ("request_rate_rps", "mean_latency_s")


class TimedValue(NamedTuple):
    """One value of a series, with the Unix time (s) that it is of."""

    time_s: float
    value: float


class Bucket(NamedTuple):
    """A part of a native histogram: how many values lay between two ends."""

    lower: float
    upper: float
    values: float


class InstantSample(msgspec.Struct, frozen=True, gc=False):
    """One element of an instant vector, kept from the garbage collector: an answer about ten thousand pods has a quarter of a million.

    Attributes:
        labels: label set without the metric's name.
        value: may be NaN or infinite; of a native histogram the number of values.
        buckets: of a native histogram, those that are not empty.
    """

    labels: Mapping[str, str]
    value: float
    buckets: tuple[Bucket, ...] = ()


@dataclass(frozen=True, slots=True)
class Samples:
    """One time series of a response, oldest value first; a value may be NaN or infinite, as Prometheus sends it."""

    labels: Mapping[str, str]
    values: tuple[TimedValue, ...]


def recognises_response(document: Document) -> bool:
    """Tell whether this is a response of Prometheus' HTTP API."""
    return document.has("status", "data") or document.has("status", "error")


def recognises(document: Document) -> bool:
    """Tell whether this is an object of responses by column."""
    return document.has() and any(recognises_response(document.member(key)) for key in document.value)


def series(response: Document) -> tuple[Samples, ...]:
    """Read one response; an empty result is an empty tuple.

    Raises:
        InputError: an error response, or not the documented form.
    """
    answer = response.read("Prometheus")
    if answer.status != "success":
        raise response.refuse(
            f"{answer.status}: {'' if answer.error is None else answer.error}"[:120].rstrip(": "),
            "a successful query",
            "status",
        )
    if answer.partial:
        raise response.refuse(
            "an answer in part, because a store behind the server is down", "a whole one", "isPartial"
        )
    if answer.kind is None or answer.result is None:
        raise response.refuse("not a result", "an object with resultType and result", "data")
    if answer.kind in {"scalar", "string"}:
        return (Samples({}, (TimedValue(*response.read("Prometheus scalar").sample),)),)
    rows = [*response.member("data").member("result").items()]
    if answer.kind == "vector":
        instants = [row.read("Prometheus vector") for row in rows]
        return tuple(Samples(one.metric, (TimedValue(*one.value),)) for one in instants)
    ranges = [row.read("Prometheus matrix") for row in rows]
    return tuple(Samples(one.metric, tuple(starmap(TimedValue, one.values))) for one in ranges)


def read(document: Document, arm: Arm) -> tuple[Point, ...]:
    """Make operating points of an object of responses by column.

    Raises:
        InputError: naming the JSON path; also when a column's response has more than one series (sum by what?), no
            sample, or no time stamp has all required columns.
    """
    columns: dict[str, dict[float, float]] = {}
    for key in document.value:
        if key not in NUMBERS and not ACCEPT.fullmatch(str(key)):
            raise document.refuse("no column of a points file", "a column's name as the key", key)
        columns[key] = _column(document.member(key))
    for name in _REQUIRED:
        if name not in columns:
            raise document.refuse("nothing there", f"the response for {name}", name)
    points: list[Point] = []
    times_s = sorted(set.intersection(*(set(columns[name]) for name in _REQUIRED)))
    if len(times_s) > MOST_ROWS:
        raise document.refuse(f"{len(times_s)} time stamps", f"at most {MOST_ROWS}: a longer step")
    for time_s in times_s:
        fields: dict[str, str | float] = {"method": arm.method, "k": float(arm.k)}
        if arm.candidate:
            fields["candidate"] = arm.candidate
        fields |= {name: values[time_s] for name, values in columns.items() if time_s in values}
        # The load of real traffic is the observed arrivals: offered and answered rate are one figure.
        fields.setdefault("achieved_rps", fields["request_rate_rps"])
        # Prometheus saw what users sent.
        fields.setdefault("text_source", LIVE_TRAFFIC)
        places = {name: f"{name} at time {time_s:.0f}" for name in fields}
        points.append(point(fields, Origin(document.source, len(points) + 1, places=places)))
    if not points:
        raise document.refuse(
            "no time stamp with both request_rate_rps and mean_latency_s",
            "range queries with the same start and step",
        )
    return tuple(points)


def _column(response: Document) -> dict[float, float]:
    found = series(response)
    if len(found) != 1:
        what = "no series" if not found else f"{len(found)} series"
        raise response.refuse(what, "one series: aggregate in the query", "data", "result")
    # NaN is a division by no requests in that window: there is no figure for it.
    finite = {time_s: value for time_s, value in found[0].values if math.isfinite(value)}
    if not finite:
        raise response.refuse("only NaN", "samples with a figure", "data", "result")
    return finite
