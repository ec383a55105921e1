"""Worth of speculation to a service, and what it cost (part of a SpeculativeService's status)."""

from __future__ import annotations

from typing import Annotated

from breakeven.estimate import Estimate
from breakeven_operator.resources.base import IN_NOTES, ArmName, Instant, Number, Sentence, StatusModel, Word
from breakeven_operator.resources.figures import (
    FigureGauge,
    LowerOrOpen,
    Renewal,
    UpperOrOpen,
    ends_of,
    row,
)


class SavingsStatus(StatusModel):
    """Gain of speculation and its cost. Nothing here is a promise."""

    since: Instant | None = row(
        "Begin of the loads behind requestSavedSeconds, after the last roll.", IN_NOTES, Renewal.NEVER
    )
    against: ArmName | None = row(
        "The arm that ran before that roll; the time is saved against it.", IN_NOTES
    )
    request_saved_seconds: Number | None = row(
        "Request time saved since then, below 0 lost: requests in flight over time, times the speedup that the roll measured less 1. "
        "Absent unless the last roll led to the running arm and was measured.",
        IN_NOTES,
        Renewal.AMOUNT,
        FigureGauge(
            "breakeven_request_saved_seconds",
            "Request time saved since the last roll by its measured speedup, below 0 lost; absent unless it was measured. Begins "
            "again with each roll.",
            {"against": "against"},
            ends=ends_of("request_saved_seconds"),
        ),
    )
    request_saved_lower_seconds: Number | None = row(
        "Lower bound; absent where open.", IN_NOTES, Renewal.AMOUNT
    )
    request_saved_upper_seconds: Number | None = row(
        "Upper bound; absent where open.", IN_NOTES, Renewal.AMOUNT
    )
    gpus_arm: ArmName | None = row(
        "The arm that gpusNotNeeded is about: the running one, else the recommended one.", IN_NOTES
    )
    gpus_basis: Word | None = row("Running or Recommended: whether that arm runs.", IN_NOTES)
    gpus_not_needed: Number | None = row(
        "GPUs that the highest expected load (else the present one) does not need with that arm, within spec.slo; below 0 it needs more. "
        "They are saved only if an autoscaler or a person removes them.",
        IN_NOTES,
        FigureGauge(
            "breakeven_gpus_not_needed",
            "GPUs that the expected load does not need with an arm, within the objectives, below 0 more; basis says whether it runs. "
            "Times 24 it is GPU-hours a day.",
            {"arm": "gpus_arm", "basis": "gpus_basis"},
            ends=ends_of("gpus_not_needed"),
        ),
    )
    gpus_not_needed_lower: Annotated[LowerOrOpen, IN_NOTES] = None
    gpus_not_needed_upper: Annotated[UpperOrOpen, IN_NOTES] = None
    rolls_seconds: Number | None = row(
        "How long the rolls of status.history took together.",
        IN_NOTES,
        FigureGauge(
            "breakeven_rolls_listed_seconds", "How long the rolls that the status lists took together."
        ),
    )
    message: Sentence | None = row(
        "The same as a sentence, with the cost of calibrations, and with money if the chart has a price."
    )

    @property
    def request_time(self) -> Estimate:
        """Request time saved (s); empty where nothing is claimed."""
        return Estimate(
            self.request_saved_seconds, self.request_saved_lower_seconds, self.request_saved_upper_seconds
        )

    @property
    def gpus(self) -> Estimate:
        """GPUs not needed; empty where not known."""
        return Estimate(self.gpus_not_needed, self.gpus_not_needed_lower, self.gpus_not_needed_upper)
