"""Policy of a user: the gain that a decision requires, its risk, and how often the arm may change."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from breakeven.planning.objective import Slo

_DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Policy:
    """Gain that a change of arm requires, and its risk; the defaults are for production.

    Attributes:
        min_gain: least saving, as a share of the request time on the arm that is entered (1).
        risk: share of ten days' request time without speculation that a surprise may cost, savings aside (1).
        day_risk: share of a day's request time without speculation by which the worst hour that the day may bring may make it
            longer (1); None if only ten days together are bounded.
        cooldown_s: least time between two switches (s); no arm is left for no speculation later because of it.
        dwell_s: time for which entering a speculative arm must have been worth it (s).
        slo: the objectives; request time at a load that misses one counts several times.
        roll_seconds: capacity that one roll costs each replica, its start-up time (s).
        roll_away_share: share of the replicas that are away at a time during a roll; 0 where new ones come first.
        lookback_s: how far back loads are known at the most (s); 0: the present load is taken to last.
    """

    min_gain: float = 0.03
    risk: float = 0.12
    day_risk: float | None = None
    cooldown_s: float = 3600.0
    dwell_s: float = 300.0
    slo: Slo = field(default_factory=Slo)
    roll_seconds: float = 300.0
    roll_away_share: float = 0.0
    horizon_s: float = 14400.0
    lookback_s: float = 259200.0

    @property
    def day_s(self) -> float:
        """A day, or the lookback if that is shorter (s)."""
        return min(_DAY_S, self.lookback_s)

    def __post_init__(self) -> None:
        for name in ("min_gain", "risk", "cooldown_s", "dwell_s", "roll_seconds", "lookback_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: {value!r} is not a finite number of at least 0")
        if self.day_risk is not None and not (math.isfinite(self.day_risk) and self.day_risk >= 0):
            raise ValueError(f"day_risk: {self.day_risk!r} is not a finite number of at least 0")
        if not 0 <= self.roll_away_share <= 1:
            raise ValueError(f"roll_away_share: {self.roll_away_share!r} is not between 0 and 1")
        if not self.horizon_s > 0:
            raise ValueError(f"horizon_s: {self.horizon_s!r} is not above 0")
