"""Verdict of a cycle about a service: an action word, an arm, one reason word, a sentence."""

from __future__ import annotations

from dataclasses import dataclass

from breakeven.arm import Arm
from breakeven.reasons import Reason
from breakeven_operator.cluster_reasons import ClusterReason

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
    """

    action: str
    arm: Arm | None
    reason: Reason | ClusterReason
    message: str

    @property
    def words(self) -> tuple[str, ...]:
        """Two verdicts are the same when these words are; figures alone make no other verdict."""
        return self.action, str(self.arm), str(self.reason)
