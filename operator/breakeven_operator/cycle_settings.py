"""Settings of the operator that its cycles need."""

from __future__ import annotations

import math
from dataclasses import dataclass

from breakeven_operator.ports import TrialSettings
from breakeven_operator.reconcile.case import CycleLimits
from breakeven_operator.resources.updatepolicy import PRODUCTION, Timing
from breakeven_operator.settings import Settings
from breakeven_operator.watching import WatchSettings


@dataclass(frozen=True, slots=True)
class CycleSettings:
    """Settings of the operator that the loop needs.

    Attributes:
        deciding_s: longest time of deciding in one cycle; the services left wait for the next cycle, which begins at once.
        watching: of the services that are made for annotated workloads; None: none are made.
    """

    trial: TrialSettings
    status_refresh_s: float
    max_parallel_rolls: int
    max_parallel_calibrations: int
    deciding_s: float = 1.0
    watching: WatchSettings | None = None
    gpu_price_per_hour: float | None = None
    timing: Timing = PRODUCTION

    def limits(self, *, may_roll: bool = True) -> CycleLimits:
        """The settings that decisions use."""
        return CycleLimits(self.status_refresh_s, may_roll, self.gpu_price_per_hour)


def settings_of_cycles(settings: Settings, *, once: bool) -> CycleSettings:
    """Settings of the cycles; a single cycle takes the time that it needs."""
    return CycleSettings(
        trial=settings.trial,
        status_refresh_s=settings.status_refresh_s,
        max_parallel_rolls=settings.max_parallel_rolls,
        max_parallel_calibrations=settings.max_parallel_calibrations,
        watching=_watch_settings(settings),
        gpu_price_per_hour=settings.gpu_price_per_hour,
        timing=settings.timing,
        **({"deciding_s": math.inf} if once else {}),
    )


def _watch_settings(settings: Settings) -> WatchSettings | None:
    candidates = settings.default_candidates
    if settings.watch_annotated == "false" or candidates is None:
        return None
    return WatchSettings(
        candidates.to_json_object(), settings.most_watched, settings.most_watched_per_namespace
    )
