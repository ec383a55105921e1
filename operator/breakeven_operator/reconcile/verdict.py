"""Verdict of a cycle about a service: an action word, an arm, one reason word, a sentence, and the figures behind them."""

from __future__ import annotations

from dataclasses import dataclass

from breakeven.arm import Arm
from breakeven.deciding import Decision
from breakeven.estimate import Estimate
from breakeven.planning.evaluation import ArmEvaluation
from breakeven.profile import Comparison
from breakeven.reasons import Reason
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources.decisionstatus import Basis

STAY = "Stay"
SWITCH = "Switch"
HOLD = "Hold"
RECOMMEND = "Recommend"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision that status, event, log line and metric repeat.

    Attributes:
        action: Stay: the right arm runs. Switch: the target is rolled. Recommend: it should be, by somebody else.
            Hold: nothing can or may be done now.
        arm: the arm that should run; None if that is not known.
        reason: one word.
        message: a whole sentence with the figures that decided.
        decision: the library's, with every arm's figures; None if it was not asked (no profile, no usable figures).
        basis: source of those figures.
        windows: of the account in which latency of the running arm was measured.
    """

    action: str
    arm: Arm | None
    reason: Reason | ClusterReason
    message: str
    decision: Decision | None = None
    basis: Basis = Basis.MEASURED
    windows: int = 0

    @property
    def words(self) -> tuple[str, ...]:
        """Two verdicts are the same when these words are; figures alone make no other verdict."""
        return self.action, str(self.arm), str(self.reason)

    @property
    def switches(self) -> bool:
        """Whether the target is to be rolled."""
        return self.action == SWITCH

    @property
    def speedup(self) -> Estimate | None:
        """Speedup of the running arm at the present load, as live latency has corrected it."""
        return self.decision.speedup if self.decision is not None else None

    @property
    def running(self) -> ArmEvaluation | None:
        """The running arm at the present load."""
        return self.decision.figures if self.decision is not None else None

    @property
    def against_none(self) -> Comparison | None:
        """The speculative arm in question against no speculation at this load."""
        return self.decision.against_none if self.decision is not None else None
