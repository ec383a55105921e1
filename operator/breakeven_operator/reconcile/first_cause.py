"""First cause why the arm in place does not pay, as `breakeven doctor` finds it."""

from __future__ import annotations

from breakeven.arm import Arm
from breakeven.errors import BreakevenError
from breakeven.profile import Profile
from breakeven.serving.causes import Finding, ModelSnapshot
from breakeven.serving.diagnosis import diagnose
from breakeven_operator.reconcile.live_metrics import Live
from breakeven_operator.reconcile.paying import pays_now
from breakeven_operator.reconcile.verdict import Verdict


def first_cause(profile: Profile, arm: Arm | None, verdict: Verdict, live: Live | None) -> Finding | None:
    """First cause why the arm in place does not pay significantly; None if the arm pays, or no cause is known.

    The operator does not read the KV pool and inter-token latency, which `breakeven doctor` reads.
    """
    figures = live.figures if live is not None and live.usable else None
    if arm is None or arm.k == 0 or figures is None or verdict.decision is None or pays_now(verdict):
        return None
    snapshot = ModelSnapshot(
        figures.replicas, figures, speculating=True, waiting_min=1.0 if figures.saturated else 0.0
    )
    try:
        return next(iter(diagnose(snapshot, profile, arm).findings), None)
    except BreakevenError:
        # The profile does not tell about these lengths; the decision says so.
        return None
