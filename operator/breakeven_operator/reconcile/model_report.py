"""`status.model`: the account of the arm in place in figures that people read."""

from __future__ import annotations

from datetime import datetime

from breakeven_operator.reconcile.calibration_state import ProfileEntry
from breakeven_operator.reconcile.drift import survival
from breakeven_operator.reconcile.first_cause import first_cause
from breakeven_operator.reconcile.live_metrics import Live
from breakeven_operator.reconcile.model_account import (
    latency_ratio,
    measured_speedup,
    predicted_bounds,
    recent,
)
from breakeven_operator.reconcile.questions import seen_of
from breakeven_operator.reconcile.verdict import Verdict
from breakeven_operator.resources import SpeculativeServiceSpec
from breakeven_operator.resources.figures import read_figures
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.modelstatus import ModelFacts, ModelStatus, PositionSurvival


def model_status(
    spec: SpeculativeServiceSpec,
    entry: ProfileEntry | None,
    verdict: Verdict,
    live: Live | None,
    memory: MemoryStatus,
    now: datetime,
) -> ModelStatus | None:
    """The account in figures; None before its first window, and if no profile predicts.

    Args:
        spec: of the service.
        entry: the profile in force.
        verdict: of this cycle, with the library's answer.
        live: its figures.
        memory: after this cycle's window.
        now: time of the observation.
    """
    account = memory.account
    if account is None or entry is None or entry.profile is None or account.profile != entry.name:
        return None
    windows, confidence = recent(account, now), spec.update_policy.confidence_percent / 100
    ratio = latency_ratio(windows, confidence)
    if ratio is None:
        return None
    arms = {arm.name: arm for arm in (*spec.candidates.arms(), *(fit.arm for fit in entry.profile.arms))}
    arm = arms.get(account.arm)
    positions = survival(entry.profile, arm, seen_of(memory, arms)) if arm is not None else ()
    found = ModelFacts(
        account,
        windows,
        ratio,
        predicted_bounds(windows),
        measured_speedup(windows, confidence),
        verdict.speedup,
        first_cause(entry.profile, arm, verdict, live),
        tuple(
            PositionSurvival(position=one.position, live_accept=one.live, calibrated_accept=one.calibrated)
            for one in positions
        ),
    )
    return ModelStatus(**read_figures(ModelStatus, found))
