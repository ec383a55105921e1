"""Orders of a person, which outrank every figure: mode Disabled and a pinned arm."""

from __future__ import annotations

from breakeven.arm import Arm
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.case import Case
from breakeven_operator.reconcile.verdict import HOLD, STAY, SWITCH, Verdict
from breakeven_operator.resources.updatepolicy import Mode


def ordered(case: Case, arm: Arm) -> Verdict | None:
    """The verdict that a person has ordered; None: nobody has.

    Args:
        case: of the service.
        arm: that runs.
    """
    policy = case.spec.update_policy
    if policy.mode is Mode.DISABLED:
        return Verdict(HOLD, arm, ClusterReason.DISABLED, f"mode Disabled decides nothing; {keeping(arm)}")
    if policy.pinned_arm is not None:
        return _pinned(case, policy.pinned_arm, arm)
    return None


def _pinned(case: Case, name: str, running: Arm) -> Verdict:
    """A pinned arm is a person's choice of *which* arm; that it starts and serves must have been seen all the same."""
    asks, wanted, state = f"pinnedArm asks for {name}", case.spec.candidates.named(name), case.calibrated
    measured = wanted is not None and wanted in case.spec.candidates.arms()
    if measured and wanted == running:
        return Verdict(STAY, wanted, ClusterReason.PINNED, asks)
    if state.profile is None:
        reason = ClusterReason.PAUSED if case.spec.paused else state.reason
        message = f"{asks}, which waits for an accepted profile: {state.message}; {keeping(running)}"
        return Verdict(HOLD, wanted, reason, message)
    if not measured or wanted not in {fit.arm for fit in state.profile.arms}:
        message = (
            f"{asks}, of which the profile in force has no measurement ({state.message}); {keeping(running)}"
        )
        return Verdict(HOLD, wanted, ClusterReason.PINNED_UNMEASURED, message)
    return Verdict(SWITCH, wanted, ClusterReason.PINNED, asks)


def keeping(arm: Arm) -> str:
    """The arm that stays, as the end of a verdict's sentence."""
    return f"keeping {arm if arm.k else 'no speculation'}"
