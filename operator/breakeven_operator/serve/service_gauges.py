"""A gauge of every service: a name, a meaning, and the samples of a status."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from breakeven_operator.resources import SpeculativeService


class LabelledValue(NamedTuple):
    """One sample: the values of its own labels, and the figure."""

    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True)
class ServiceGauge:
    """A gauge of every service.

    Attributes:
        name: metric name with its unit.
        help: what the value means.
        samples: (values of `labels`, value) of one service at a time; none if there is nothing to say.
        labels: labels beside those that name the service.
    """

    name: str
    help: str
    samples: Callable[[SpeculativeService, datetime], Iterator[LabelledValue]]
    labels: tuple[str, ...] = ()


def one_value(value: float | None, *labels: str) -> Iterator[LabelledValue]:
    """One sample, or none if the value is not known."""
    if value is not None:
        yield LabelledValue(labels, float(value))
