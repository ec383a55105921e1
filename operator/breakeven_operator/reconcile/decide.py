"""From live figures and a profile to the arm that should run: the library's guard with the service's policy."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.planning.guard import Decision, Load, Memory, Policy, Slo, decide
from breakeven.profile import Comparison, Profile
from breakeven_operator.reconcile.live import Figures
from breakeven_operator.resources import SpeculativeServiceSpec
from breakeven_operator.resources.servicestatus import MemoryStatus

# Without any measured start of this engine.
_UNKNOWN_ROLL_S = 600.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What the figures say, whether or not anything may be done about it.

    Attributes:
        decision: the guard's; None when it was not asked (no profile, no usable figures).
        memory: for the status.
        compared: the speculative arm that the figures of the status are about: the running one, else the best one.
        against_none: that arm against no speculation at this load.
        predicted_s: what the profile says about the running arm's mean latency at this load, s; None when saturated.
        utilization: load over the running arm's saturation.
    """

    decision: Decision | None
    memory: MemoryStatus
    compared: Arm | None = None
    against_none: Comparison | None = None
    predicted_s: float | None = None
    utilization: float | None = None


def load_of(figures: Figures) -> Load:
    """The guard's view of the figures."""
    return Load(
        rps=figures.rps,
        window_s=figures.window_s,
        requests=round(figures.requests),
        inflight=figures.inflight,
        latency_s=figures.latency_s,
        tokens_per_step=figures.tokens_per_step,
        prompt_tokens=figures.prompt_tokens,
        output_tokens=figures.output_tokens,
        saturated=figures.saturated,
    )


def policy_of(spec: SpeculativeServiceSpec, roll_s: float | None) -> Policy:
    """The guard's thresholds from the spec; `roll_s` is the time a roll takes."""
    policy, slo = spec.update_policy, spec.slo
    return Policy(
        min_gain=policy.min_gain_percent / 100,
        exit_margin=policy.exit_margin_percent / 100,
        max_utilisation=policy.max_utilization_percent / 100,
        cooldown_s=policy.cooldown_seconds,
        dwell_s=policy.stabilization_window_seconds,
        horizon_s=policy.horizon_seconds,
        roll_seconds=roll_s if roll_s is not None else _UNKNOWN_ROLL_S,
        slo=Slo(
            tpot_s=_seconds(slo.tpot_p95_milliseconds),
            ttft_s=_seconds(slo.ttft_p95_milliseconds),
            e2e_s=_seconds(slo.e2e_p95_milliseconds),
        ),
    )


def choose(
    spec: SpeculativeServiceSpec,
    profile: Profile,
    figures: Figures,
    running: Arm,
    remembered: MemoryStatus,
    roll_s: float | None,
    now: datetime,
) -> Choice:
    """Ask the guard, and gather what the status shows beside its decision.

    Args:
        spec: of the service.
        profile: in force.
        figures: usable ones.
        running: the arm that runs.
        remembered: from the status.
        roll_s: how long a roll takes, s; None when no start was ever measured.
        now: time of the observation.
    """
    arms = {arm.name: arm for arm in spec.candidates.arms()}
    measured = {fit.arm for fit in profile.arms}
    candidates = [arm for arm in arms.values() if arm in measured]
    if running not in candidates and running in measured:
        candidates.append(running)
    candidate = arms.get(remembered.candidate_arm or "")
    memory = Memory(
        running=running,
        last_switch_s=_epoch(remembered.last_switch_time),
        candidate=candidate,
        candidate_since_s=_epoch(remembered.candidate_since_time) if candidate is not None else None,
    )
    decision = decide(profile, load_of(figures), memory, policy_of(spec, roll_s), now.timestamp(), candidates)
    return Choice(
        decision=decision,
        memory=_remember(remembered, decision.memory, running),
        **_shown(profile, figures, running, decision, candidates),
    )


def forget_candidate(remembered: MemoryStatus) -> MemoryStatus:
    """A dwell is interrupted by anything that keeps the guard from being asked: nothing counts as "still best"."""
    return remembered.model_copy(update={"candidate_arm": None, "candidate_since_time": None})


def _shown(
    profile: Profile, figures: Figures, running: Arm, decision: Decision, candidates: list[Arm]
) -> dict[str, object]:
    wanted = [running, decision.arm, decision.alternative]
    believable = [fit.arm for fit in profile.arms if fit.believable and fit.arm in candidates]
    compared = next((arm for arm in wanted if arm is not None and arm != NO_SPECULATION), None)
    if compared is None:
        others = [arm for arm in believable if arm != NO_SPECULATION]
        compared = others[0] if others else None
    against = None
    if compared is not None and compared in {fit.arm for fit in profile.arms}:
        against = profile.compare(compared, NO_SPECULATION, **live_state(figures, compared == running))
    fit = next((fit for fit in profile.arms if fit.arm == running), None)
    predicted = profile.predict(running, **live_state(figures, live=True)) if fit is not None else None
    return {
        "compared": compared,
        "against_none": against,
        "predicted_s": predicted.latency_s if predicted is not None else None,
        "utilization": predicted.utilisation if predicted is not None else None,
    }


def live_state(figures: Figures, live: bool) -> dict[str, float | None]:
    """Arguments of a prediction at the present load; tokens per step only for the arm they were measured on."""
    return {
        "rps": figures.rps,
        "tokens_per_step": figures.tokens_per_step if live else None,
        "prompt_tokens": figures.prompt_tokens,
        "output_tokens": figures.output_tokens,
    }


def _remember(status: MemoryStatus, memory: Memory, running: Arm) -> MemoryStatus:
    return status.model_copy(
        update={
            "running_arm": running.name,
            "candidate_arm": memory.candidate.name if memory.candidate is not None else None,
            "candidate_since_time": _time(memory.candidate_since_s),
        }
    )


def _seconds(milliseconds: int | None) -> float | None:
    return milliseconds / 1000 if milliseconds is not None else None


def _epoch(time: datetime | None) -> float | None:
    return time.timestamp() if time is not None else None


def _time(epoch_s: float | None) -> datetime | None:
    return datetime.fromtimestamp(epoch_s, UTC) if epoch_s is not None else None
