"""Receipts of many known pasts against their truth, as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from breakeven.past.receipts import Receipt, added, receipts
from fakes.known_savings import Known, KnownPast, known_past


@dataclass
class Trials:
    """Pasts of one kind.

    Attributes:
        hours: claimed of those looked at. booked_s, truth_s: request time by the estimate, and in truth.
        inside: pasts whose truth lies within the bounds. too_high: pasts whose booking is above the truth's upper bound.
        gpus_too_high: pasts whose lower bound of GPU-hours is above the truth.
    """

    kind: KnownPast
    pasts: int = 0
    hours: float = 0.0
    looked_at: float = 0.0
    booked_s: float = 0.0
    truth_s: float = 0.0
    inside: int = 0
    too_high: int = 0
    gpus_too_high: int = 0

    def add(self, known: Known, found: Sequence[Receipt]) -> None:
        """Judges one past by the receipts of its months."""
        (one,) = added(replace(each, month="all") for each in found)
        self.looked_at += (known.grid.last_s - known.grid.first_s) / 3600
        self.hours += one.claimed_hours
        if not one.claimed_hours:
            return
        saved, gpus = one.request_saved_s, one.gpu_hours_saved
        assert saved.value is not None
        assert saved.lower is not None
        assert saved.upper is not None
        self.pasts += 1
        self.booked_s += saved.value
        self.truth_s += known.truth_s
        self.inside += saved.lower <= known.truth_s <= saved.upper
        self.too_high += saved.value > known.upper_s
        self.gpus_too_high += (gpus.lower or 0.0) > known.truth_gpu_hours + 1e-6


def trials(number: int, end_s: int, read: Callable[[Known], Sequence[Receipt]] | None = None) -> list[Trials]:
    """So many pasts of each kind, by the pure core unless they are read otherwise."""
    found = []
    for kind in KnownPast:
        one = Trials(kind)
        for seed in range(number):
            known = known_past(kind, seed, end_s)
            one.add(known, receipts(known.on_grid(), known.grid) if read is None else read(known))
        found.append(one)
    return found


def lines(found: Sequence[Trials]) -> list[str]:
    """The table as text."""
    head = f"{'past':<14} pasts  hours claimed  booked h  truth h  within bounds  booked above truth's upper: waiting  GPU-h"
    rows = [
        f"{one.kind:<14} {one.pasts:>5}  {one.hours / one.looked_at:>12.0%}  {one.booked_s / 3600:>8.0f}  {one.truth_s / 3600:>7.0f}"
        f"  {one.inside / max(one.pasts, 1):>12.1%}  {one.too_high / max(one.pasts, 1):>34.0%}  {one.gpus_too_high:>5}"
        for one in found
    ]
    return [head, *rows]
