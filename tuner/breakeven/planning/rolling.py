"""Cost of a roll: replicas that start up serve nothing, and requests wait longer on those that are left."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from breakeven.arm import Arm
from breakeven.planning.evaluation import ArmEvaluation, Evaluations, evaluate_live
from breakeven.planning.observed_load import LiveAcceptance, Load
from breakeven.planning.outlook import ExpectedLoad, bearable_s, peak_rps
from breakeven.planning.policy import Policy
from breakeven.profile import LoadPoint, Profile
from breakeven.profile.predictions import predict_on


@dataclass(frozen=True, slots=True)
class Roll:
    """A roll that would begin now.

    Attributes:
        profile: the fitted model.
        load: what was observed, and what is expected.
        policy: how long a replica takes to start, how many are away at a time, and the horizon.
        seen: acceptance measured live.
    """

    profile: Profile
    load: Load
    policy: Policy
    seen: tuple[LiveAcceptance, ...]

    def paid_by(self, gain: float, running: ArmEvaluation, to: ArmEvaluation) -> bool:
        """Whether a gain (old latency over new one, ahead) exceeds over the horizon what the roll takes.

        The roll takes each replica away for its start-up time, and makes requests wait on those that are left.
        """
        saved_s = (1.0 - 1.0 / gain) * self.policy.horizon_s
        return saved_s > self.policy.roll_seconds + self._waiting_s(running, to)

    def _waiting_s(self, running: ArmEvaluation, to: ArmEvaluation) -> float:
        """Time (s) for which the running arm could serve the expected requests in what these wait more during the roll."""
        away, rps = self.policy.roll_away_share, self.load.rps
        if away == 0.0 or self.policy.roll_seconds == 0.0:
            return 0.0
        if away == 1.0 or running.ahead_s in (0.0, math.inf) or running.prediction.latency_s is None:
            return math.inf
        lasts_s = self.policy.roll_seconds / away
        # Half of the roll is spent on the old arm, half on the new one, all of it with replicas away.
        fewer_s = sum(self._bearable_s(c, rps / (1.0 - away), lasts_s) for c in (running, to)) / 2
        more_s = max(fewer_s - running.prediction.latency_s, 0.0) * rps * lasts_s
        expected = self.load.expected or (ExpectedLoad(1.0, rps),)
        mean_rps = math.fsum(share * rate for share, rate in expected)
        return more_s / (mean_rps * running.ahead_s) if mean_rps > 0.0 else math.inf

    def _bearable_s(self, one: ArmEvaluation, rps: float, lasts_s: float) -> float:
        there = predict_on(one.arm, one.curve, LoadPoint(rps=rps), self.profile.confidence)
        return bearable_s(there, one.curve.at_rps(0.0).latency_s, lasts_s)

    def at_peak(self, running: Arm, other: Arm) -> Evaluations:
        """Both arms' figures at the highest load that is expected."""
        peak = peak_rps(self.load.expected)
        there = replace(
            self.load,
            rps=self.load.rps if peak is None else peak,
            latency_s=None,
            inflight=None,
            expected=(),
        )
        return evaluate_live(self.profile, there, running, [other], self.seen, self.policy.slo)
