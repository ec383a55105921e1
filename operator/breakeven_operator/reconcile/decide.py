"""From live figures and a profile to the arm that should run: the library's decision with the service's policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.estimate import Estimate
from breakeven.planning.capacity import FewestReplicas
from breakeven.planning.decision import Decision, DecisionMemory, decide, with_acceptance
from breakeven.planning.evaluation import ArmEvaluation, evaluate_live
from breakeven.planning.expected_saving import fitted_law
from breakeven.planning.fluid_queue import Backlog
from breakeven.planning.known_speedup import known_speedup
from breakeven.planning.learned_laws import Evidence
from breakeven.planning.objective import Slo
from breakeven.planning.observed_load import LiveAcceptance, Load
from breakeven.planning.outlook import PastRates
from breakeven.planning.policy import Policy
from breakeven.planning.surprise import LargestRate
from breakeven.planning.wording import Explained
from breakeven.profile import Bounds, Comparison, Profile
from breakeven.serving.counted_window import Window
from breakeven_operator.resources import SpeculativeServiceSpec
from breakeven_operator.resources.memorystatus import LiveEvidence, MemoryStatus, SeenAcceptance

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
    """The library's answer; whether it may be acted upon is decided elsewhere.

    Attributes:
        explained: the decision beside every arm's figures; None when it was not asked (no profile, no usable figures).
        memory: for the status.
        speedup: of the arm in place at the present load, by the profile and what live latency has said about it; None
            where it has none.
    """

    explained: Explained | None
    memory: MemoryStatus
    speedup: Estimate | None = None

    @property
    def decision(self) -> Decision | None:
        """What is to be done; None when it was not asked."""
        return self.explained.decision if self.explained is not None else None

    @property
    def running(self) -> ArmEvaluation | None:
        """The running arm at the present load."""
        return self.explained.running if self.explained is not None else None

    @property
    def against_none(self) -> Comparison | None:
        """The speculative arm in question against no speculation at this load."""
        return self.explained.against_none if self.explained is not None else None


def load_of(figures: Window, *, settled: bool = True, strain: Bounds | None = None) -> Load:
    """The decision's view of the figures, and of the objectives as users see them."""
    return Load(
        rps=figures.rps,
        window_s=figures.window_s,
        requests=figures.requests,
        inflight=figures.inflight,
        latency_s=figures.latency_s,
        tokens_per_step=figures.tokens_per_step,
        prompt_tokens=figures.prompt_tokens,
        output_tokens=figures.output_tokens,
        ttft_s=figures.ttft_s,
        tpot_s=figures.tpot_s,
        survival=figures.survival,
        dispersion=figures.arrivals.dispersion,
        saturated=figures.saturated,
        settled=settled,
        strain=strain,
    )


def policy_of(spec: SpeculativeServiceSpec, roll: RollCost) -> Policy:
    """What must be gained and may be risked, from the service's spec and the cost of a roll."""
    policy, slo = spec.update_policy, spec.slo
    return Policy(
        min_gain=policy.min_gain_percent / 100,
        risk=policy.risk_percent / 100,
        day_risk=None if policy.day_risk_percent is None else policy.day_risk_percent / 100,
        cooldown_s=policy.cooldown_seconds,
        dwell_s=policy.stabilization_window_seconds,
        horizon_s=policy.horizon_seconds,
        lookback_s=policy.lookback_seconds,
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
    profile_name: str,
    figures: Window,
    running: Arm,
    remembered: MemoryStatus,
    roll: RollCost,
    now: datetime,
    past: PastRates,
    fewest: FewestReplicas | None = None,
    *,
    replicas: int = 1,
    scaled: bool = False,
    settled: bool = True,
    strain: Bounds | None = None,
) -> Choice:
    """Ask the library.

    Args:
        spec: of the service.
        profile: in force.
        profile_name: its name; what was learned about another one does not count.
        figures: usable ones.
        running: the arm that runs.
        remembered: from the status.
        roll: the capacity that a change of arm costs the target.
        now: time of the observation.
        past: loads before now.
        fewest: which arm needs fewest replicas, where an autoscaler scales the target.
        replicas: of the target.
        scaled: whether an autoscaler scales the target: a load comes to as many replicas as it came to before.
        settled: whether the figures' latency is that of their load.
        strain: bounds of the largest ratio of a measured quantile to its limit; None: not known.
    """
    arms = {arm.name: arm for arm in (*spec.candidates.arms(), running, NO_SPECULATION)}
    candidate = arms.get(remembered.candidate_arm or "")
    same = remembered.profile == profile_name
    memory = DecisionMemory(
        running=running,
        last_switch_s=_epoch(remembered.last_switch_time),
        candidate=candidate,
        candidate_since_s=_epoch(remembered.candidate_since_time) if candidate is not None else None,
        seen=seen_of(remembered, arms),
        saved=remembered.saved_request_seconds / (replicas if remembered.largest_replicas else 1),
        evidence={
            arms[one.arm]: Evidence(
                (one.precision_alone, one.precision_both, one.precision_company),
                (one.pull_alone, one.pull_company),
                one.time.timestamp(),
                (one.alone_seconds, one.company_seconds)
                if one.alone_seconds and one.company_seconds
                else None,
            )
            for one in remembered.evidence
            if same and one.arm in arms
        },
        largest=_largest(remembered, replicas, scaled=scaled),
        decided_s=_epoch(remembered.decided_time),
        backlog=Backlog(
            remembered.queued_requests / replicas,
            remembered.queued_without / replicas,
            _epoch(remembered.queued_time),
        ),
    )
    past = past if scaled else past.on(replicas)
    load, policy, now_s = (
        load_of(figures, settled=settled, strain=strain),
        policy_of(spec, roll),
        now.timestamp(),
    )
    memory = with_acceptance(profile, memory, load, now_s)
    evaluations = evaluate_live(profile, load, running, spec.candidates.arms(), memory.seen, policy.slo)
    laws = [fitted_law(one) for one in evaluations.arms]
    decision = decide(laws, load, past, memory, policy, now_s, fewest)
    explained = Explained(decision, evaluations, profile.confidence)
    speedup = known_speedup(laws, decision.memory.evidence, running, load.rps, now_s, profile.confidence)
    return Choice(explained, _remember(remembered, decision.memory, running, profile_name, replicas), speedup)


def _largest(remembered: MemoryStatus, replicas: int, *, scaled: bool) -> LargestRate:
    """The largest load on the replicas that it would come to now."""
    there = remembered.largest_replicas
    time = remembered.largest_time or remembered.decided_time
    if time is None:
        return LargestRate()
    per = 1 if there is None else there if scaled else replicas
    return LargestRate(remembered.largest_rps / per, time.timestamp())


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


def forget_candidate(remembered: MemoryStatus) -> MemoryStatus:
    """A dwell is interrupted by anything that keeps the decision from being asked: nothing counts as "still best"."""
    return remembered.replace(candidate_arm=None, candidate_since_time=None)


def _remember(
    status: MemoryStatus, memory: DecisionMemory, running: Arm, profile_name: str, replicas: int
) -> MemoryStatus:
    # Loads belong to the fleet: on other replicas tomorrow they are other loads of each.
    # A Switch clears the candidate; whether it is carried out is decided elsewhere, and until it is, the
    # wish stands: time and running arm in the status follow the target, not the wish.
    switched = memory.running != running
    kept = (
        {}
        if switched
        else {
            "candidate_arm": memory.candidate.name if memory.candidate is not None else None,
            "candidate_since_time": _time(memory.candidate_since_s),
        }
    )
    return status.replace(
        **kept,
        running_arm=running.name,
        profile=profile_name,
        decided_time=_time(memory.decided_s),
        saved_request_seconds=memory.saved * replicas,
        **_stored_largest(status, memory.largest, replicas),
        queued_requests=memory.backlog.here * replicas,
        queued_without=memory.backlog.without * replicas,
        queued_time=_time(memory.backlog.stood_s),
        seen=tuple(
            SeenAcceptance(
                arm=seen.arm.name,
                tokens_per_step=seen.tokens_per_step,
                relative_scatter=seen.relative_scatter or None,
                accept=seen.survival,
            )
            for seen in memory.seen
        ),
        evidence=tuple(_stored(arm, found) for arm, found in memory.evidence.items()),
    )


def _stored_largest(status: MemoryStatus, largest: LargestRate, replicas: int) -> dict[str, object]:
    """The largest load as the status has it; the one that it has already stays as it came."""
    if status.largest_replicas is not None and _epoch(status.largest_time) == largest.at_s:
        return {}
    at_s = largest.at_s if math.isfinite(largest.at_s) else None
    return {
        "largest_rps": largest.rps * replicas,
        "largest_replicas": replicas,
        "largest_time": _time(at_s),
    }


def _stored(arm: Arm, evidence: Evidence) -> LiveEvidence:
    alone, both, company = evidence.precision
    return LiveEvidence(
        arm=arm.name,
        time=datetime.fromtimestamp(evidence.at_s, UTC),
        precision_alone=alone,
        precision_both=both,
        precision_company=company,
        pull_alone=evidence.pull[0],
        pull_company=evidence.pull[1],
        alone_seconds=evidence.level_s[0] if evidence.level_s is not None else None,
        company_seconds=evidence.level_s[1] if evidence.level_s is not None else None,
    )


def _seconds(milliseconds: int | None) -> float | None:
    return milliseconds / 1000 if milliseconds is not None else None


def _epoch(time: datetime | None) -> float | None:
    return time.timestamp() if time is not None else None


def _time(epoch_s: float | None) -> datetime | None:
    return datetime.fromtimestamp(epoch_s, UTC) if epoch_s is not None else None
