"""The whole decision on a profile of known laws: acceptance, evaluation, rule, limits."""

from __future__ import annotations

from collections.abc import Sequence

from breakeven.arm import Arm
from breakeven.planning.capacity import FewestReplicas
from breakeven.planning.decision import DecisionMemory, decide, with_acceptance
from breakeven.planning.evaluation import evaluate_live
from breakeven.planning.expected_saving import fitted_law
from breakeven.planning.observed_load import Load
from breakeven.planning.outlook import PastRates
from breakeven.planning.policy import Policy
from breakeven.planning.wording import Explained
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
    memory = with_acceptance(profile, memory, load, now_s)
    evaluations = evaluate_live(profile, load, memory.running, candidates, memory.seen, policy.slo)
    laws = [fitted_law(one) for one in evaluations.arms]
    decision = decide(laws, load, past or PastRates(), memory, policy, now_s, fewest)
    return Explained(decision, evaluations, profile.confidence)
