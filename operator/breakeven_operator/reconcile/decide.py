"""From live figures and a profile to the arm that should run: the library's decision with the service's policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.deciding import Decision, DecisionMemory, Decisions
from breakeven.planning.fluid_queue import Backlog
from breakeven.planning.learned_laws import Evidence
from breakeven.planning.surprise import LargestRate
from breakeven.profile import Profile
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.calibration_state import ProfileEntry
from breakeven_operator.reconcile.case import Case
from breakeven_operator.reconcile.questions import load_of, policy_of, seen_of
from breakeven_operator.reconcile.verdict import RECOMMEND
from breakeven_operator.resources.memorystatus import LiveEvidence, MemoryStatus, SeenAcceptance
from breakeven_operator.resources.updatepolicy import Mode


def leave_or_keep(case: Case, former: ProfileEntry) -> tuple[Decision, MemoryStatus]:
    """Ask the library by a profile that is not in force any more whether the arm in place is to be left for no speculation.

    Raises:
        BreakevenError: see `choose`.
    """
    assert former.profile is not None  # noqa: S101 - one that cannot be read is no former one
    return choose(replace(case, calibrated=replace(case.calibrated, entry=former)), former.profile, ())


def choose(
    case: Case, profile: Profile, candidates: Sequence[Arm] | None = None
) -> tuple[Decision, MemoryStatus]:
    """Ask the library: its answer, which may not be acted upon yet, and the memory that it leaves.

    Args:
        case: with usable figures and a known arm.
        profile: by which arms are compared.
        candidates: arms that may be entered beside no speculation; None: all of the spec.

    Raises:
        BreakevenError: the profile does not know this load, these lengths or this arm.
    """
    figures, running, advised = case.live.figures, case.measured_arm, _advised(case)
    assert figures is not None and running is not None  # noqa: PT018, S101 - see above
    replicas = max(case.workload.desired, 1)
    load = load_of(
        figures,
        settled=case.settled,
        strain=case.objectives.strain if case.objectives is not None else None,
    )
    arms = case.spec.candidates.arms() if candidates is None else candidates
    decision = Decisions(profile, arms, policy_of(case.spec, case.roll_cost)).at(
        load,
        _remembered(case, running, advised, replicas),
        case.now.timestamp(),
        case.live.past.rates if case.scaled else case.live.past.rates.on(replicas),
        case.need.fewest if case.need is not None and case.scaled else None,
    )
    return decision, _kept(case, decision.memory, running, advised, replicas)


def _advised(case: Case) -> Arm | None:
    """The arm that the last cycle recommended by figures, and that a person has not entered yet."""
    last = case.service.status.decision
    if case.spec.update_policy.mode is not Mode.RECOMMEND or last is None or last.action != RECOMMEND:
        return None
    return case.spec.candidates.named(last.arm or "") if last.reason != ClusterReason.PINNED else None


def forget_candidate(remembered: MemoryStatus) -> MemoryStatus:
    """The memory after a cycle in which the library was not asked: such a cycle ends a dwell."""
    return remembered.replace(candidate_arm=None, candidate_since_time=None)


def _remembered(case: Case, running: Arm, advised: Arm | None, replicas: int) -> DecisionMemory:
    """The library's memory from the status: loads of the fleet come per replica."""
    memory = case.memory
    arms = {arm.name: arm for arm in (*case.spec.candidates.arms(), running, NO_SPECULATION)}
    candidate = arms.get(memory.candidate_arm or "")
    # Lessons about another profile do not count.
    evidence = memory.evidence if memory.profile == case.calibrated.profile_name else ()
    return DecisionMemory(
        running=running,
        last_switch_s=_epoch(memory.last_switch_time),
        candidate=candidate,
        candidate_since_s=_epoch(memory.candidate_since_time) if candidate is not None else None,
        advised=advised,
        seen=seen_of(memory, arms),
        saved=memory.saved_request_seconds / (replicas if memory.largest_replicas else 1),
        evidence={arms[one.arm]: one.evidence for one in evidence if one.arm in arms},
        largest=_largest(memory, replicas, scaled=case.scaled),
        decided_s=_epoch(memory.decided_time),
        backlog=Backlog(
            memory.queued_requests / replicas,
            memory.queued_without / replicas,
            _epoch(memory.queued_time),
        ),
    )


def _largest(remembered: MemoryStatus, replicas: int, *, scaled: bool) -> LargestRate:
    """The largest load on the replicas that it would come to now."""
    there = remembered.largest_replicas
    time = remembered.largest_time or remembered.decided_time
    if time is None:
        return LargestRate()
    per = 1 if there is None else there if scaled else replicas
    return LargestRate(remembered.largest_rps / per, time.timestamp())


def _kept(
    case: Case, memory: DecisionMemory, running: Arm, advised: Arm | None, replicas: int
) -> MemoryStatus:
    """The status' memory from the library's."""
    # Loads belong to the fleet: on other replicas tomorrow they are other loads of each.
    # A Switch clears the candidate; whether it is carried out is decided elsewhere, and until it is, the
    # wish stands: time and running arm in the status follow the target, not the wish.
    kept = {}
    if memory.running in {running, NO_SPECULATION}:
        kept = _wish(memory.candidate, memory.candidate_since_s)
    elif memory.running == advised and case.memory.candidate_arm != advised.name:
        kept = _wish(advised, memory.decided_s)
    return case.memory.replace(
        **kept,
        running_arm=running.name,
        profile=case.calibrated.profile_name,
        decided_time=_time(memory.decided_s),
        saved_request_seconds=memory.saved * replicas,
        **_stored_largest(case.memory, memory.largest, replicas),
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


def _wish(arm: Arm | None, since_s: float | None) -> dict[str, object]:
    return {
        "candidate_arm": arm.name if arm is not None else None,
        "candidate_since_time": _time(since_s),
    }


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


def _epoch(time: datetime | None) -> float | None:
    return time.timestamp() if time is not None else None


def _time(epoch_s: float | None) -> datetime | None:
    return datetime.fromtimestamp(epoch_s, UTC) if epoch_s is not None else None
