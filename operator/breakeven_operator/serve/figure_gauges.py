"""The gauges that rows of the status declare, in the order of its fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from breakeven_operator.resources import Model, SpeculativeService
from breakeven_operator.resources.figures import FigureGauge, StatusField, status_fields
from breakeven_operator.serve.service_gauges import LabelledValue, ServiceGauge, one_value

BOUNDS = ("estimate", "lower", "upper")
"""Values of the label `bound`: of a figure, and of the fields that hold its ends."""


def gauges_of(status: type[Model]) -> tuple[ServiceGauge, ...]:
    """One gauge per name; the fields of one name follow each other."""
    rows = [(row, gauge) for row in status_fields(status) for gauge in row.marks(FigureGauge)]
    return tuple(_gauge(list(group)) for _, group in groupby(rows, key=lambda one: one[1].name))


def _gauge(rows: Sequence[tuple[StatusField, FigureGauge]]) -> ServiceGauge:
    def samples(service: SpeculativeService, _: datetime) -> Iterator[LabelledValue]:
        status = service.status
        for row, one in rows:
            if not (one.fresh and status.undecided):
                for part in _parts(status, row.path):
                    yield from _samples(part, row.name, one)

    _, first = rows[0]
    bound = ("bound",) if first.ends else ()
    return ServiceGauge(first.name, first.help, samples, (*first.labels, *first.fixed, *bound))


def _samples(part: Any, name: str, gauge: FigureGauge) -> Iterator[LabelledValue]:
    labels = [getattr(part, field) for field in gauge.labels.values()]
    if None in labels or (gauge.only_with and getattr(part, gauge.only_with) is None):
        return
    values = [1.0 if gauge.info else getattr(part, field) for field in (name, *gauge.ends)]
    if gauge.instead is not None:
        values[0] = gauge.instead(part)
    for bound, value in zip(BOUNDS, values, strict=False):
        own = (*map(str, labels), *gauge.fixed.values(), *([bound] if gauge.ends else []))
        yield from one_value(_shown(name, value), *own)


def _shown(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.timestamp()
    return float(value) / (100.0 if name.endswith("_percent") else 1.0)


def _parts(value: Any, path: Sequence[str]) -> Iterator[Any]:
    """The objects at the end of a path of fields, one of each item of a list."""
    if isinstance(value, tuple):
        for one in value:
            yield from _parts(one, path)
    elif value is not None and path:
        yield from _parts(getattr(value, path[0]), path[1:])
    elif value is not None:
        yield value
