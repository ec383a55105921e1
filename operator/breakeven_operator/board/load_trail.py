"""Loads that the operator has published since it started: a bounded number per service, so that memory is bounded too.

No status holds them, and a page never asks Prometheus. A restart loses them, which the page says.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from breakeven_operator.resources import SpeculativeService

MOST_SAMPLES = 180
"""Samples of a service: twelve hours at the widest distance."""

# Four doublings apart.
_CLOSEST_S = 15.0
_WIDEST_S = 240.0


class LoadSample(NamedTuple):
    """One published window: the time of its newest sample since the epoch, and the offered load per replica."""

    time_s: float
    rps: float


class LoadTrail:
    """Samples by uid of the service: the last quarter of an hour closely, twelve hours at most."""

    def __init__(self) -> None:
        self._samples: dict[str, _Samples] = {}

    def add(self, services: Iterable[SpeculativeService]) -> None:
        """Take what the services publish now; one that is gone is forgotten."""
        kept: dict[str, _Samples] = {}
        for service in services:
            uid = service.metadata.uid
            kept[uid] = self._samples.get(uid) or _Samples()
            if (sample := _sample(service)) is not None:
                kept[uid].add(sample)
        self._samples = kept

    def of(self, uid: str) -> tuple[LoadSample, ...]:
        """Samples of a service, oldest first."""
        # Read in a thread while the next cycle adds: whatever is looked at twice may have changed.
        found = self._samples.get(uid)
        return tuple(found.all()) if found is not None else ()


class _Samples:
    """Two floats a sample. A full array keeps every second one, until their distance is the widest; then the oldest go."""

    def __init__(self) -> None:
        self._figures = array("d")
        self._apart_s = _CLOSEST_S

    def add(self, sample: LoadSample) -> None:
        if self._figures and sample.time_s - self._figures[-2] < self._apart_s:
            return
        if len(self._figures) >= 2 * MOST_SAMPLES:
            self._thin()
        self._figures.extend(sample)

    def _thin(self) -> None:
        if self._apart_s >= _WIDEST_S:
            del self._figures[:2]
            return
        self._apart_s *= 2.0
        kept = [figure for number, sample in enumerate(self.all()) if number % 2 == 0 for figure in sample]
        self._figures = array("d", kept)

    def all(self) -> Iterator[LoadSample]:
        figures = self._figures[:]
        for start in range(0, len(figures), 2):
            yield LoadSample(*figures[start : start + 2])


def _sample(service: SpeculativeService) -> LoadSample | None:
    """The window behind a decision; None without one, or with figures that cannot be."""
    decision = service.status.decision
    if decision is None or decision.load_rps is None or decision.evidence_time is None:
        return None
    if not math.isfinite(decision.load_rps):
        return None
    return LoadSample(decision.evidence_time.timestamp(), decision.load_rps)
