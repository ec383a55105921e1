"""A service in the library's own types: its policy, the cost of a roll, the acceptance that was seen, and two arms compared."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from breakeven.arm import Arm
from breakeven.planning.decision_memory import LiveAcceptance
from breakeven.planning.learned_laws import slowdown
from breakeven.planning.objective import Follow, Policy, Slo
from breakeven.profile import Profile
from breakeven.profile.credit import with_steps_times
from breakeven_operator.resources import SpeculativeServiceSpec
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.speculativeservice import ServiceLevel

# Without any measured start of this engine.
_UNKNOWN_ROLL_S = 600.0
SLO_QUANTILE = 0.95


def objectives_of(slo: ServiceLevel) -> dict[str, float]:
    """Limits (s) by figure, of those that are set."""
    limits = {
        "e2e": slo.e2e_p95_milliseconds,
        "ttft": slo.ttft_p95_milliseconds,
        "tpot": slo.tpot_p95_milliseconds,
    }
    return {figure: limit / 1000.0 for figure, limit in limits.items() if limit is not None}


def policy_of(
    spec: SpeculativeServiceSpec, startup_s: float | None = None, away_share: float = 0.0
) -> Policy:
    """Gain that a roll needs and risk that it may take: the spec, a replica's start (None if none was ever measured), and what a roll takes away."""
    policy = spec.update_policy
    return Policy(
        min_gain=policy.min_gain_percent / 100,
        day_risk=policy.day_risk_percent / 100,
        cooldown_s=policy.cooldown_seconds,
        dwell_s=policy.stabilization_window_seconds,
        lookback_s=policy.lookback_seconds,
        follow=Follow(policy.follow),
        roll_seconds=startup_s if startup_s is not None else _UNKNOWN_ROLL_S,
        roll_away_share=away_share,
        slo=Slo(
            **{f"{figure}_s": limit for figure, limit in objectives_of(spec.slo).items()},
            quantile=SLO_QUANTILE,
        ),
    )


def seen_of(memory: MemoryStatus, arms: Mapping[str, Arm]) -> tuple[LiveAcceptance, ...]:
    """Live acceptance as the library takes it, of the arms that still are."""
    return tuple(
        LiveAcceptance(
            arms[seen.arm],
            seen.tokens_per_step,
            seen.accept,
            ((seen.relative_scatter or 0.0) * seen.tokens_per_step) ** 2,
        )
        for seen in memory.seen
        if seen.arm in arms
    )


def as_measured(
    profile: Profile, running: Arm | None, memory: MemoryStatus, now: datetime, confidence: float
) -> Profile:
    """The profile with the running arm as slow as its live latency is, once that excludes the profile's promise.

    A decision rests on the same evidence. An autoscaler that followed the promise would take away pods that the load needs.
    """
    evidence = next((one.evidence for one in memory.evidence if running and one.arm == running.name), None)
    if evidence is None or running is None:
        return profile
    return with_steps_times(profile, running, slowdown(evidence, now.timestamp(), confidence))
