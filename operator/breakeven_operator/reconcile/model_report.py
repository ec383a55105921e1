"""`status.model`: the account of the arm in place in figures that people read."""

from __future__ import annotations

from datetime import datetime, timedelta

from breakeven_operator.reconcile.active_profile import ProfileEntry
from breakeven_operator.reconcile.decide import Choice, seen_of
from breakeven_operator.reconcile.drift import survival
from breakeven_operator.reconcile.model_account import (
    AccountRules,
    Bounded,
    latency_ratio,
    measured_speedup,
    predicted_bounds,
    recent,
    typical,
)
from breakeven_operator.resources import SpeculativeServiceSpec
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.modelstatus import ModelStatus, PositionSurvival


def model_status(
    spec: SpeculativeServiceSpec,
    entry: ProfileEntry | None,
    choice: Choice,
    memory: MemoryStatus,
    rules: AccountRules,
    now: datetime,
) -> ModelStatus | None:
    """The account in figures; None before its first window, and where no profile predicts.

    Args:
        spec: of the service.
        entry: the profile in force.
        choice: the library's answer of this cycle.
        memory: after this cycle's window.
        rules: how the account is kept.
        now: time of the observation.
    """
    account = memory.account
    if account is None or entry is None or entry.profile is None or account.profile != entry.name:
        return None
    windows = recent(account, rules, now)
    ratio = latency_ratio(windows, rules.confidence)
    if ratio is None:
        return None
    lower, upper = predicted_bounds(windows)
    arms = {arm.name: arm for arm in (*spec.candidates.arms(), *(fit.arm for fit in entry.profile.arms))}
    arm = arms.get(account.arm)
    positions = survival(entry.profile, arm, seen_of(memory, arms)) if arm is not None else ()
    return ModelStatus(
        profile=account.profile,
        arm=account.arm,
        since=windows[0].time - timedelta(seconds=windows[0].window_seconds),
        windows=len(windows),
        requests=sum(one.requests for one in windows),
        latency_ratio=ratio.value,
        latency_ratio_lower=ratio.lower,
        latency_ratio_upper=ratio.upper,
        predicted_lower=lower or None,
        predicted_upper=upper,
        ttft_ratio=typical(one.ttft_ratio for one in windows),
        tpot_ratio=typical(one.tpot_ratio for one in windows),
        **_bounded("measured_speedup", measured_speedup(windows, rules.confidence)),
        **_bounded("speedup", choice.speedup),
        survival=tuple(
            PositionSurvival(position=one.position, live_accept=one.live, calibrated_accept=one.calibrated)
            for one in positions
        ),
    )


def _bounded(name: str, found: Bounded | tuple[float, float, float] | None) -> dict[str, float | None]:
    value, lower, upper = found if found is not None else (None, None, None)
    return {name: value, f"{name}_lower": lower, f"{name}_upper": upper}
