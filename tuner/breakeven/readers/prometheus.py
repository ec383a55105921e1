"""Samples of Prometheus' answers. No sample is ever read as zero: a series that is missing and a NaN are different facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec


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
