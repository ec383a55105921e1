"""How sure one must be to change the arm, and how often it may change."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from breakeven.planning.objective import Slo
from breakeven.planning.trust import TRUSTED_UTILISATION


@dataclass(frozen=True, slots=True)
class Policy:
    """How sure one must be, and how often an arm may change; the defaults are for production.

    Attributes:
        min_gain: gain that the lower bound must exceed to enter an arm (1); below about 0.05 a gain is noise.
        exit_margin: a running arm is left when the upper bound of its speedup is below 1 + this.
        max_utilisation: no arm is entered above this share of its saturation: laws are extrapolation there.
        cooldown_s: least time between two switches (s).
        dwell_s: time for which another arm must have been better before it is entered (s).
        slo: limits that the arm must keep.
        roll_seconds: capacity that one roll costs each replica, its start-up time (s).
        roll_away_share: share of the replicas that are away at a time during a roll; 0 where new ones come first.
        horizon_s: time that is looked ahead (s): whose loads are expected, and over which a gain must pay for the roll.
    """

    min_gain: float = 0.05
    exit_margin: float = 0.0
    max_utilisation: float = TRUSTED_UTILISATION
    cooldown_s: float = 3600.0
    dwell_s: float = 900.0
    slo: Slo = field(default_factory=Slo)
    roll_seconds: float = 300.0
    roll_away_share: float = 0.0
    horizon_s: float = 14400.0

    def __post_init__(self) -> None:
        for name in ("min_gain", "exit_margin", "cooldown_s", "dwell_s", "roll_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: {value!r} is not a finite number of at least 0")
        if self.exit_margin > self.min_gain:
            raise ValueError(
                "exit_margin exceeds min_gain: an arm would be left at a gain at which it is entered"
            )
        if not 0 < self.max_utilisation <= 1:
            raise ValueError(f"max_utilisation: {self.max_utilisation!r} is not between 0 and 1")
        if not 0 <= self.roll_away_share <= 1:
            raise ValueError(f"roll_away_share: {self.roll_away_share!r} is not between 0 and 1")
        if not self.horizon_s > 0:
            raise ValueError(f"horizon_s: {self.horizon_s!r} is not above 0")
