"""`status.model`: the account of the arm in place in figures that people read."""

from __future__ import annotations

from datetime import datetime

from breakeven.arm import Arm
from breakeven.errors import BreakevenError
from breakeven.profile import Profile
from breakeven.serving.causes import Finding, ModelSnapshot
from breakeven.serving.diagnosis import diagnose
from breakeven_operator.reconcile.calibration_state import ProfileEntry
from breakeven_operator.reconcile.doubts import rules_of
from breakeven_operator.reconcile.drift import survival
from breakeven_operator.reconcile.live_metrics import Live
from breakeven_operator.reconcile.model_account import (
    latency_ratio,
    measured_speedup,
    predicted_bounds,
    recent,
)
from breakeven_operator.reconcile.paying import pays_now
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
    windows, confidence = recent(account, now), rules_of(spec).confidence
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
        _first_cause(entry.profile, arm, verdict, live),
        tuple(
            PositionSurvival(position=one.position, live_accept=one.live, calibrated_accept=one.calibrated)
            for one in positions
        ),
    )
    return ModelStatus(**read_figures(ModelStatus, found))


def _first_cause(profile: Profile, arm: Arm | None, verdict: Verdict, live: Live | None) -> Finding | None:
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
