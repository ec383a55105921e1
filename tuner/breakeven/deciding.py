"""The door to decisions with a memory: the arm that a fleet should run now, and the reason in one sentence.

The operator asks here; anybody who runs vLLM without Kubernetes may do the same. `breakeven plan` answers without a memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from breakeven.arm import Arm
from breakeven.planning.capacity import FewestReplicas
from breakeven.planning.decision import Action, Decision, Situation, decide, followed_past, with_acceptance
from breakeven.planning.decision_memory import DecisionMemory, LiveAcceptance
from breakeven.planning.evaluation import evaluate_live
from breakeven.planning.expected_saving import known_speedup
from breakeven.planning.forecast import PastRates
from breakeven.planning.learned_laws import fitted_law
from breakeven.planning.objective import Follow, Policy, Slo
from breakeven.planning.wording import sentence
from breakeven.profile import Profile
from breakeven.serving.counted_window import Load

__all__ = [
    "Action",
    "Decision",
    "DecisionMemory",
    "Decisions",
    "FewestReplicas",
    "Follow",
    "LiveAcceptance",
    "Load",
    "PastRates",
    "Policy",
    "Slo",
    "sentence",
]


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decisions about one fleet: the profile in force, arms that it may run, and gain, risk and times of its changes."""

    profile: Profile
    candidates: Sequence[Arm]
    policy: Policy

    def at(
        self,
        load: Load,
        memory: DecisionMemory,
        now_s: float,
        past: PastRates | None = None,
        fewest: FewestReplicas | None = None,
    ) -> Decision:
        """Decide at a load. Pure: equal arguments give equal answers.

        Args:
            load: of one window, per replica.
            memory: `memory` of the last answer, or a new one with the running arm.
            now_s: time (s), on the clock of the memory and the past.
            past: earlier rates, which are expected again; None if only the present rate is expected.
            fewest: the arm that needs fewest replicas, for a fleet that an autoscaler scales.

        Raises:
            BreakevenError: the profile does not determine the laws of this load, these lengths or the running arm.
            ValueError: the load has a figure that is no number.
        """
        memory, running = with_acceptance(self.profile, memory, load.checked(), now_s), memory.running
        evaluations = evaluate_live(
            self.profile, load, running, self.candidates, memory.seen, self.policy.slo
        )
        laws = [fitted_law(one) for one in evaluations.arms]
        situation = Situation(laws, load, memory, self.policy, now_s, past or PastRates(), fewest)
        decision = decide(situation)
        level = self.profile.confidence
        known = known_speedup(laws, decision.memory.evidence, running, load.rps, now_s, level)
        followed = followed_past(laws, situation.past)
        return replace(decision, evaluations=evaluations, confidence=level, speedup=known, followed=followed)
