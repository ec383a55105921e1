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

from breakeven.arm import Arm
from breakeven.errors import InputError
from breakeven.points.point import ACCEPT, NUMBERS, Origin, Point
from breakeven.points.row import point
from breakeven.readers.jsonwalk import Node

_REQUIRED = ("request_rate_rps", "mean_latency_s")


@dataclass(frozen=True, slots=True)
class Series:
    """One time series of a response.

    Attributes:
        labels: its labels, `__name__` included.
        samples: (Unix time in seconds, value); a value may be NaN or infinite, as Prometheus sends it.
    """

    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]


def recognises_response(document: Node) -> bool:
    """Tell whether this is a response of Prometheus' HTTP API."""
    value = document.value
    return isinstance(value, dict) and "status" in value and ("data" in value or "error" in value)


def recognises(document: Node) -> bool:
    """Tell whether this is an object of responses by column."""
    value = document.value
    if not isinstance(value, dict) or not value:
        return False
    members = [document.get(key) for key in value]
    return any(recognises_response(member) for member in members)


def series(response: Node) -> tuple[Series, ...]:
    """Read one response; an empty result is an empty tuple.

    Raises:
        InputError: an error response, or not the documented form.
    """
    status = response.get("status").text("success")
    if status != "success":
        message = response.get("error").value
        raise InputError(response.get("status").where, f"{status}: {message}"[:120], "a successful query")
    data = response.get("data")
    kind = data.get("resultType").text("vector, matrix or scalar")
    result = data.get("result")
    if kind in {"scalar", "string"}:
        return (Series({}, (_sample(result),)),)
    if kind not in {"vector", "matrix"}:
        raise InputError(data.get("resultType").where, repr(kind)[:40], "vector, matrix or scalar")
    found = []
    for one in result.items():
        labels_node = one.get("metric")
        if not isinstance(labels_node.value, dict):
            raise labels_node.refuse("an object of labels")
        labels = {str(name): labels_node.get(name).text("a label's text") for name in labels_node.value}
        samples = (
            (_sample(one.get("value")),)
            if kind == "vector"
            else tuple(_sample(sample) for sample in one.get("values").items())
        )
        found.append(Series(labels, samples))
    return tuple(found)


def _sample(node: Node) -> tuple[float, float]:
    pair = list(node.items())
    if len(pair) != 2:
        raise InputError(node.where, f"{len(pair)} elements", "a pair of time and value")
    time_s = pair[0].number("Unix time in seconds")
    text = pair[1].text("a number as text")
    try:
        return time_s, float(text)
    except ValueError as error:
        raise InputError(pair[1].where, repr(text)[:40], "a number as text") from error


def read(document: Node, arm: Arm) -> tuple[Point, ...]:
    """Make operating points of an object of responses by column.

    Args:
        document: the parsed file.
        arm: which arm served while the samples were taken.

    Raises:
        InputError: naming the JSON path; also when a column's response has more than one series (sum by what?), no
            sample, or no time stamp has all required columns.
    """
    columns: dict[str, dict[float, float]] = {}
    for key in document.value:
        if key not in NUMBERS and not ACCEPT.fullmatch(str(key)):
            raise InputError(
                document.get(key).where, "no column of a points file", "a column's name as the key"
            )
        columns[key] = _column(document.get(key))
    for name in _REQUIRED:
        if name not in columns:
            raise InputError(document.get(name).where, "nothing there", f"the response for {name}")
    points: list[Point] = []
    for time_s in sorted(set.intersection(*(set(columns[name]) for name in _REQUIRED))):
        fields: dict[str, str | float] = {"method": arm.method, "k": float(arm.k)}
        if arm.candidate:
            fields["candidate"] = arm.candidate
        fields |= {name: values[time_s] for name, values in columns.items() if time_s in values}
        # A load that nobody imposed is what arrived: offered and answered rate are one figure.
        fields.setdefault("achieved_rps", fields["request_rate_rps"])
        places = {name: f"{name} at time {time_s:.0f}" for name in fields}
        points.append(point(fields, Origin(document.source, len(points) + 1, places=places)))
    if not points:
        raise InputError(
            document.source,
            "no time stamp with both request_rate_rps and mean_latency_s",
            "range queries with the same start and step",
        )
    return tuple(points)


def _column(response: Node) -> dict[float, float]:
    found = series(response)
    if len(found) != 1:
        what = "no series" if not found else f"{len(found)} series"
        raise InputError(response.at("data", "result").where, what, "one series: aggregate in the query")
    # NaN is a division by no requests in that window: there is no figure for it.
    finite = {time_s: value for time_s, value in found[0].samples if math.isfinite(value)}
    if not finite:
        raise InputError(response.at("data", "result").where, "only NaN", "samples with a figure")
    return finite
