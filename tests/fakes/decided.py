"""The whole decision on a profile of known laws: acceptance, evaluation, rule, limits."""

from __future__ import annotations

from collections.abc import Sequence

from breakeven.arm import Arm
from breakeven.deciding import DecisionMemory, Decisions, Explained, FewestReplicas, Load, PastRates, Policy
from breakeven.profile import Profile


def decided(
    profile: Profile,
    load: Load,
    memory: DecisionMemory,
    policy: Policy,
    now_s: float,
    candidates: Sequence[Arm],
    past: PastRates | None = None,
    fewest: FewestReplicas | None = None,
) -> Explained:
    return Decisions(profile, candidates, policy).at(load, memory, now_s, past, fewest)
