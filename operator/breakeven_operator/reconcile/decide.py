"""From live figures and a profile to the arm that should run: the library's guard with the service's policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from breakeven.arm import Arm
from breakeven.planning.guard import Decision, DecisionMemory, Policy, decide
from breakeven.planning.objective import Slo
from breakeven.planning.observed_load import LiveAcceptance, Load
from breakeven.planning.outlook import expected_loads
from breakeven.profile import Comparison, Profile
from breakeven_operator.reconcile.live_metrics import Figures
from breakeven_operator.resources import SpeculativeServiceSpec
from breakeven_operator.resources.servicestatus import MemoryStatus, SeenAcceptance

# Without any measured start of this engine.
_UNKNOWN_ROLL_S = 600.0
_SLO_QUANTILE = 0.95


@dataclass(frozen=True, slots=True)
class RollCost:
    """What a roll takes from the target.

    Attributes:
        seconds: a replica's start-up time; None when no start was ever measured.
        away_share: share of the replicas that are away at a time; 0 where new ones come first.
    """

    seconds: float | None = None
    away_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The guard's answer; whether it may be acted upon is decided elsewhere.

    Attributes:
        decision: the guard's; None when it was not asked (no profile, no usable figures).
        memory: for the status.
    """

    decision: Decision | None
    memory: MemoryStatus

    @property
    def against_none(self) -> Comparison | None:
        """The decision's subject against no speculation at this load."""
        return self.decision.against_none if self.decision is not None else None


def load_of(figures: Figures, past_rps: Sequence[float] = ()) -> Load:
    """The guard's view of the figures, and of the loads before them (1/s per replica) as what comes again."""
    return Load(
        rps=figures.rps,
        window_s=figures.window_s,
        requests=figures.requests,
        inflight=figures.inflight,
        latency_s=figures.latency_s,
        tokens_per_step=figures.tokens_per_step,
        prompt_tokens=figures.prompt_tokens,
        output_tokens=figures.output_tokens,
        saturated=figures.saturated,
        # The present load belongs to the past already. Without a past it is the only load, which `Load` says by expecting none.
        expected=expected_loads((*past_rps, figures.rps)) if past_rps else (),
    )


def policy_of(spec: SpeculativeServiceSpec, roll: RollCost) -> Policy:
    """The guard's thresholds, from the service's spec and the cost of a roll."""
    policy, slo = spec.update_policy, spec.slo
    return Policy(
        min_gain=policy.min_gain_percent / 100,
        exit_margin=policy.exit_margin_percent / 100,
        max_utilisation=policy.max_utilization_percent / 100,
        cooldown_s=policy.cooldown_seconds,
        dwell_s=policy.stabilization_window_seconds,
        horizon_s=policy.horizon_seconds,
        roll_seconds=roll.seconds if roll.seconds is not None else _UNKNOWN_ROLL_S,
        roll_away_share=roll.away_share,
        slo=Slo(
            tpot_s=_seconds(slo.tpot_p95_milliseconds),
            ttft_s=_seconds(slo.ttft_p95_milliseconds),
            e2e_s=_seconds(slo.e2e_p95_milliseconds),
            quantile=_SLO_QUANTILE,
        ),
    )


def choose(
    spec: SpeculativeServiceSpec,
    profile: Profile,
    figures: Figures,
    running: Arm,
    remembered: MemoryStatus,
    roll: RollCost,
    now: datetime,
    past_rps: Sequence[float] = (),
) -> Choice:
    """Ask the guard.

    Args:
        spec: of the service.
        profile: in force.
        figures: usable ones.
        running: the arm that runs.
        remembered: from the status.
        roll: the capacity that a change of arm costs the target.
        now: time of the observation.
        past_rps: loads per replica before now, which are expected again.
    """
    arms = {arm.name: arm for arm in (*spec.candidates.arms(), running)}
    candidate = arms.get(remembered.candidate_arm or "")
    memory = DecisionMemory(
        running=running,
        last_switch_s=_epoch(remembered.last_switch_time),
        candidate=candidate,
        candidate_since_s=_epoch(remembered.candidate_since_time) if candidate is not None else None,
        # What another arm showed tells nothing of this one.
        collapsed_since_s=(
            _epoch(remembered.collapsed_since_time) if remembered.running_arm == running.name else None
        ),
        seen=tuple(
            LiveAcceptance(arms[seen.arm], seen.tokens_per_step)
            for seen in remembered.seen
            if seen.arm in arms
        ),
    )
    decision = decide(
        profile,
        load_of(figures, past_rps),
        memory,
        policy_of(spec, roll),
        now.timestamp(),
        spec.candidates.arms(),
    )
    return Choice(decision, _remember(remembered, decision.memory, running))


def forget_candidate(remembered: MemoryStatus) -> MemoryStatus:
    """A dwell is interrupted by anything that keeps the guard from being asked: nothing counts as "still best"."""
    return remembered.model_copy(
        update={"candidate_arm": None, "candidate_since_time": None, "collapsed_since_time": None}
    )


def _remember(status: MemoryStatus, memory: DecisionMemory, running: Arm) -> MemoryStatus:
    # A Switch clears the guard's candidate; whether it is carried out is decided elsewhere, and until it is, the
    # wish stands: time and running arm in the status follow the target, not the wish.
    switched = memory.running != running
    kept = (
        {}
        if switched
        else {
            "candidate_arm": memory.candidate.name if memory.candidate is not None else None,
            "candidate_since_time": _time(memory.candidate_since_s),
            "collapsed_since_time": _time(memory.collapsed_since_s),
        }
    )
    return status.model_copy(
        update={
            **kept,
            "running_arm": running.name,
            "seen": tuple(
                SeenAcceptance(arm=seen.arm.name, tokens_per_step=seen.tokens_per_step)
                for seen in memory.seen
            ),
        }
    )


def _seconds(milliseconds: int | None) -> float | None:
    return milliseconds / 1000 if milliseconds is not None else None


def _epoch(time: datetime | None) -> float | None:
    return time.timestamp() if time is not None else None


def _time(epoch_s: float | None) -> datetime | None:
    return datetime.fromtimestamp(epoch_s, UTC) if epoch_s is not None else None
