"""The memory of decisions: one state that the rule and its limits carry from one decision to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from breakeven.arm import Arm
from breakeven.planning.fluid_queue import Backlog
from breakeven.planning.learned_laws import Evidence
from breakeven.planning.observed_load import LiveAcceptance
from breakeven.planning.surprise import LargestRate


@dataclass(frozen=True, slots=True)
class DecisionMemory:
    """State kept from one decision to the next; small, and meant to be stored.

    Its first part is control: an old copy of it would repeat a switch or skip a limit, so it is stored at once. The second is
    learned from windows: an old copy of it is merely less sure.

    Attributes:
        last_switch_s: when the running arm was switched to (s, any clock that `now_s` uses too); None if never.
        candidate: the speculative arm that would have been entered last time, if a limit had not held it back.
        candidate_since_s: since when entering one has been worth it without a pause (s).
        advised: the arm that somebody else was last advised to run in place of `running`, and does not run yet; None if no
            advice stands.
        seen: newest live acceptance per drafter. Without it an arm that was left because its acceptance fell would be
            entered again on its calibrated one. Drop it when a new profile comes into force, and `evidence` with it.
        saved: request-seconds per replica that speculation has saved; older ones fade.
        largest: largest rate that was seen within ten days (1/s per replica), the forecast's past apart.
        decided_s: time of the last decision (s); None if never.
    """

    running: Arm
    last_switch_s: float | None = None
    candidate: Arm | None = None
    candidate_since_s: float | None = None
    advised: Arm | None = None

    seen: tuple[LiveAcceptance, ...] = ()
    saved: float = 0.0
    evidence: Mapping[Arm, Evidence] = field(default_factory=dict)
    largest: LargestRate = field(default_factory=LargestRate)
    decided_s: float | None = None
    backlog: Backlog = field(default_factory=Backlog)
