"""The memory of decisions: one state that the rule and its limits carry from one decision to the next, and its parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from breakeven.arm import Arm
from breakeven.serving.counted_window import Load

DAY_S = 86400.0
RARE_DAYS = 10.0
"""Days between two surprises of the load; the savings that pay for them are remembered for as long."""
ACCOUNT_S = RARE_DAYS * DAY_S
"""Time over which a surprise may cost at most the risked share, and over which savings are remembered."""
RISK = 0.12
"""That share of the request time without speculation, savings aside (1); a bound of one's own is `Policy.day_risk`."""
ANOTHER_UNIT = math.log(1000.0)
"""Departure (ln) from the profile's law that is no evidence about it: a mean in another unit, or a page with any figure."""
_MOST_PRECISION = 1e9
"""Precision that no week of windows reaches: the mean of each half hour is known to 4 %."""
_FORGOTTEN_S = 7 * DAY_S
_MISSING = 0.25
"""Share of a calculated queue; with fewer requests in flight there is no queue, and the arm carries more than by its law."""


@dataclass(frozen=True, slots=True)
class LiveAcceptance:
    """Acceptance that was measured live: it outranks the calibrated one for every arm of the same drafter.

    Attributes:
        survival: unconditional survival per draft and position; empty if not seen.
        variance: of E over windows of time about their average; 0 where only one was seen.
    """

    arm: Arm
    tokens_per_step: float
    survival: tuple[float, ...] = ()
    variance: float = 0.0

    @property
    def relative_scatter(self) -> float:
        """Relative standard deviation of E between windows; 0 where only one was seen."""
        return math.sqrt(self.variance) / self.tokens_per_step

    def moved(self, e: float, survival: tuple[float, ...], weight: float) -> LiveAcceptance:
        """The averages with one more window at its weight; a survival of another length replaces the old one."""
        weight = share_of_steps(weight, e, self.tokens_per_step)
        missed = e - self.tokens_per_step
        same_positions = len(survival) == len(self.survival)
        return replace(
            self,
            tokens_per_step=self.tokens_per_step + weight * missed,
            survival=tuple(
                before + weight * (now - before) for before, now in zip(self.survival, survival, strict=True)
            )
            if same_positions
            else survival or self.survival,
            variance=(1.0 - weight) * (self.variance + weight * missed**2),
        )


def share_of_steps(weight: float, e: float, before: float) -> float:
    """Share of request-steps that a window brings at a weight of the tokens: E is all tokens over all steps.

    Users ask for tokens. A mean of E over windows counts those with few steps as much as those with many, and is too high.
    """
    return weight * before / (weight * before + (1.0 - weight) * e)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of one arm's live latency about the logarithms (u1, u2) of its factors.

    Attributes:
        precision: of (u1, u1), (u1, u2) and (u2, u2).
        pull: precision times mean, of u1 and u2.
        at_s: when it was last added to (s); it fades from then on.
        level_s: C1 and C2 (s) of the profile's law, as converted to the acceptance and lengths of that time; None if as now.
    """

    precision: tuple[float, float, float] = (0.0, 0.0, 0.0)
    pull: tuple[float, float] = (0.0, 0.0)
    at_s: float = 0.0
    level_s: tuple[float, float] | None = None

    @property
    def possible(self) -> bool:
        """Whether windows of live latency can have left it: in a file or a status that a person changed, it may be anything."""
        (a, b, c), towards = self.precision, math.hypot(*self.pull)
        if not (0.0 <= a <= _MOST_PRECISION and 0.0 <= c <= _MOST_PRECISION):
            return False
        # Six digits of each are stored. Means beyond the bound are no evidence, see `with_latency`.
        together = b * b <= a * c * (1.0 + 1e-4) + 1e-9
        return together and towards <= 2.0 * ANOTHER_UNIT * (a + c) and min(self.level_s or (1.0,)) > 0.0

    def faded(self, now_s: float) -> Evidence:
        """The evidence as it counts later: it fades, because engines and requests change."""
        kept = math.exp(-max(now_s - self.at_s, 0.0) / _FORGOTTEN_S)
        a, b, c = self.precision
        pull = (self.pull[0] * kept, self.pull[1] * kept)
        return replace(self, precision=(a * kept, b * kept, c * kept), pull=pull, at_s=now_s)


@dataclass(frozen=True, slots=True)
class DecisionMemory:
    """State kept from one decision to the next; small, and meant to be stored.

    Its first part is control: an old copy of it would repeat a switch or skip a limit, so it is stored at once. The second is
    learned from windows: an old copy of it is merely less sure.

    Attributes:
        last_switch_s: when the running arm was switched to (s, any clock that `now_s` uses too); None if never.
        candidate: the arm that would have been entered last time, if nothing had held it back.
        candidate_since_s: since when entering a speculative arm, or leaving one, has been worth it without a pause (s).
        advised: the arm that somebody else was last advised to run in place of `running`, and does not run yet; None if no
            advice stands.
        chosen: whether an arm was entered, or left, by the profile in force; a policy that follows changes enters none then.
        seen: newest live acceptance per drafter. Without it an arm that was left because its acceptance fell would be
            entered again on its calibrated one. Drop it when a new profile comes into force, and `evidence` with it.
        saved: request-seconds per replica that speculation has saved; older ones fade.
        largest_rps, largest_at_s: largest rate that was seen within ten days (1/s per replica), the forecast's past apart, and when (s).
        decided_s: time of the last decision (s); None if never.
        queued, queued_without: requests that wait, per replica, here and had no speculation run all the time. They are calculated
            from arrivals and the capacity by laws: a rule that looked at latency would leave out the windows that contradict a law.
        queued_at_s: when there was last a queue here (s); None if never.
    """

    running: Arm
    last_switch_s: float | None = None
    candidate: Arm | None = None
    candidate_since_s: float | None = None
    advised: Arm | None = None
    chosen: bool = False

    seen: tuple[LiveAcceptance, ...] = ()
    saved: float = 0.0
    evidence: Mapping[Arm, Evidence] = field(default_factory=dict)
    largest_rps: float = 0.0
    largest_at_s: float = -math.inf
    decided_s: float | None = None
    queued: float = 0.0
    queued_without: float = 0.0
    queued_at_s: float | None = None

    def with_largest(self, rps: float, now_s: float) -> DecisionMemory:
        """The memory after another rate was seen: a smaller one counts as soon as the larger one is ten days old."""
        older = not 0.0 <= now_s - self.largest_at_s <= ACCOUNT_S
        return (
            replace(self, largest_rps=rps, largest_at_s=now_s) if older or rps >= self.largest_rps else self
        )

    def with_queue(
        self, load: Load, carries_rps: tuple[float, float], during_s: float, now_s: float
    ) -> DecisionMemory:
        """The memory after an interval (s) that ends now, by the capacity (1/s) of the arm in place, and of no speculation.

        A number in flight that contradicts the queue here empties it.
        """
        here, without = (
            max(before + (load.rps - carried) * during_s, 0.0)
            for before, carried in zip((self.queued, self.queued_without), carries_rps, strict=True)
        )
        if load.inflight is not None and load.inflight < _MISSING * here:
            return replace(self, queued=0.0, queued_without=0.0, queued_at_s=None)
        at_s = now_s if here > 0.0 else self.queued_at_s
        return replace(self, queued=here, queued_without=without, queued_at_s=at_s)

    def teaches(self, window_s: float, now_s: float) -> bool:
        """Whether a window met no queue, not even the rest of an earlier one."""
        return not self.queued and (
            self.queued_at_s is None or not 0.0 <= now_s - self.queued_at_s <= window_s
        )
