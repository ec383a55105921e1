"""Gates of a roll as one ordered table: the status shows the first gate that refuses a change that is due.

Whether a target can be managed at all is asked before anything is decided (`target`); these gates stand between a decision and
the one write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, time, timedelta
from typing import Final, NamedTuple, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.phrases import spoken
from breakeven.planning.decision import Decision
from breakeven.planning.evaluation import Evaluations
from breakeven.profile import Profile
from breakeven.reasons import Reason
from breakeven_operator.actions import WriteProposal
from breakeven_operator.case import HOLD, RECOMMEND, STAY, Case, Verdict
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import FIELD_MANAGER
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.targetstatus import Target
from breakeven_operator.resources.updatepolicy import (
    Mode,
    RollWindow,
    Timing,
    Weekday,
)
from breakeven_operator.rolls.barred_arms import LEAVING, refuse_answers, refuse_barred, suspicion_of
from breakeven_operator.rolls.under_way import rolls_stopped
from breakeven_operator.workloads.running_arm import same_value
from breakeven_operator.workloads.target import Refusal
from breakeven_operator.workloads.workload import Workload

URGENT = frozenset({Reason.ENTERED_SATURATION, Reason.SLO_VIOLATED})
"""Reasons of a change that measurements ask for, not a profile: requests queue, or an objective is missed."""


def refuse_suspect(
    memory: MemoryStatus, profile_name: str, decision: Decision | None, wanted: Arm
) -> Refusal | None:
    """Why an arm is not entered on the word of a profile that measurements have contradicted; None if it may be.

    No speculation is where nothing can be lost against, and an arm that has evidence of its own has been seen at work. Without a
    decision a person wants the arm.
    """
    suspicion = suspicion_of(memory, profile_name)
    if suspicion is None or decision is None or wanted == NO_SPECULATION or decision.reason in URGENT:
        return None
    if memory.profile == profile_name and wanted.name in {one.arm for one in memory.evidence}:
        return None
    return Refusal(
        ClusterReason.PROFILE_SUSPECT,
        f"{profile_name} alone speaks for it, which is under suspicion ({suspicion.reason}: "
        f"{suspicion.message or 'measured latency has contradicted it'}); no speculation, and arms whose own latency was "
        "measured here, may be entered, and any arm while requests queue up or miss an objective",
    )


def refuse_now(
    workload: Workload,
    timing: Timing,
    scaled: datetime | None,
    memory: MemoryStatus,
    now: datetime,
    *,
    urgent: bool = False,
) -> Refusal | None:
    """Why no roll of this workload may begin at this moment; None if nothing forbids it.

    An autoscaler moves in steps: between two of them the target looks settled although the next one is due, so the
    time since the last change (`scaled`) counts. That asks nothing of the autoscaler, whatever kind it is. If it is `urgent`, a
    roll that was measured to lose holds up no other; a roll whose pods did not come up still does.
    """
    waits = _backing_off(memory, now, urgent=urgent)
    if waits is not None:
        return waits
    said = f"; {workload.trouble.message}" if workload.trouble is not None else ""
    said += workload.blocked_words()
    if workload.observed_generation < workload.generation or workload.updated < min(
        workload.desired, workload.total
    ):
        return Refusal(
            ClusterReason.ROLL_WAITS,
            f"a roll is under way that the operator did not start: {workload.updated} of {workload.desired} pods updated"
            + workload.blocked_words(),
        )
    if workload.total != workload.desired and not said:
        return Refusal(
            ClusterReason.ROLL_WAITS,
            f"the number of replicas is changing ({workload.total} exist, {workload.desired} wanted)",
        )
    if workload.ready < workload.desired or len(workload.serving) < workload.desired:
        return Refusal(
            ClusterReason.REPLICAS_UNREADY,
            f"{len(workload.serving)} of {workload.desired} replicas are ready; a roll would take more away{said}",
        )
    quiet_s = timing.replicas_quiet_seconds
    if scaled is not None and (since_s := (now - scaled).total_seconds()) < quiet_s:
        return Refusal(
            ClusterReason.ROLL_WAITS,
            f"the number of replicas was changed to {workload.desired} {since_s:.0f} s ago; a roll waits until it has stood still "
            f"for {quiet_s} s (timing.replicasQuietSeconds of the installation)",
        )
    if workload.desired == 0:
        return Refusal(ClusterReason.REPLICAS_UNREADY, "the target is scaled to zero")
    return None


def _backing_off(memory: MemoryStatus, now: datetime, *, urgent: bool) -> Refusal | None:
    measured = memory.backoff_reason == ClusterReason.ROLL_DISPROVED
    until = None if urgent and measured else memory.backoff_until_time
    if until is None or now >= until:
        return None
    left_s = (until - now).total_seconds()
    undone = (
        f"the last {memory.failures} rolls were undone" if memory.failures > 1 else "the last roll was undone"
    )
    return Refusal(
        ClusterReason.BACKING_OFF,
        f"{undone}; the next one may begin in {left_s:.0f} s, or at once when the annotation breakeven.dev/resume of "
        "the SpeculativeService gets a new value",
    )


def scaled_time(workload: Workload, seen: Target | None, now: datetime) -> datetime | None:
    """When the number of wanted replicas last changed, as far as it was watched; None if it never did.

    `seen` is the target as the status has it, from an earlier cycle (or an earlier process).
    """
    if seen is None or seen.uid != workload.ref.uid:
        return None
    return now if seen.replicas != workload.desired else seen.replicas_changed_time


def refuse_capacity(case: Case, arms: tuple[Arm, ...], evaluations: Evaluations | None) -> Refusal | None:
    """Whether the pods left during a roll could not carry the load, running either of `arms`.

    A roll by surge (maxUnavailable 0) takes no replica away and is not held back: an arm that is near its saturation
    is exactly what must be left. Within a window of the policy nothing is held back. If the load is not known (a pinned
    arm), any lost replica is too much. Live acceptance and lengths move a saturation by more than the limit's room, so
    `evaluations` come before the profile.
    """
    policy, workload, figures = case.spec.update_policy, case.workload, case.live.figures
    left, no_outage = workload.desired - workload.max_unavailable, why_no_outage(policy.windows, case.now)
    if workload.max_unavailable == 0 or no_outage is None:
        return None
    without_loss = workload.pods_kind.without_loss
    advice = f"{without_loss}, or wait for less load"
    if left <= 0:
        return Refusal(
            ClusterReason.OUTAGE_NOT_ALLOWED,
            "the target's strategy takes every pod away at once, so no roll is without an outage at any load: where a GPU is "
            f"spare, {without_loss}; else {no_outage}",
        )
    if figures is None:
        return Refusal(ClusterReason.INSUFFICIENT_CAPACITY, f"the load is not known; {advice}")
    limit = policy.max_utilization_percent / 100
    rps = figures.total_rps / left
    for arm in arms:
        saturation_rps = _saturation_rps(arm, case.profile, evaluations)
        if saturation_rps is None:
            continue
        used = rps / saturation_rps
        if used > limit:
            return Refusal(
                ClusterReason.INSUFFICIENT_CAPACITY,
                f"{left} replicas left during the roll would run at {used:.0%} of the saturation of {spoken(arm)} (allowed: {limit:.0%}); "
                + advice,
            )
    return None


def _saturation_rps(arm: Arm, profile: Profile | None, evaluations: Evaluations | None) -> float | None:
    """Rate at which an arm saturates now, else when it was measured; None if it is not known."""
    live = evaluations.of(arm) if evaluations is not None else None
    if live is not None:
        return live.saturation_rps
    fit = profile.fit_of(arm) if profile is not None else None
    return fit.saturation_rps if fit is not None else None


_DAYS = get_args(Weekday)
_WEEK = 7


def refuse_outside_windows(
    windows: Sequence[RollWindow], decision: Decision | None, now: datetime
) -> Refusal | None:
    """Why an ordinary roll may not begin now; None if it may, or if the roll protects users."""
    if not windows or (decision is not None and decision.protects):
        return None
    waits = _wait_for(windows, now)
    return Refusal(ClusterReason.OUTSIDE_WINDOWS, f"an ordinary roll waits: {waits}") if waits else None


def why_no_outage(windows: Sequence[RollWindow], now: datetime) -> str | None:
    """What to do before a roll may begin that leaves too few pods, or none; None if it may begin now."""
    allowed = [one for one in windows if one.allow_outage]
    if not allowed:
        return "allow an outage at a time of your choice (updatePolicy.windows, with allowOutage: true)"
    return _wait_for(allowed, now)


def _wait_for(windows: Sequence[RollWindow], now: datetime) -> str | None:
    """The advice to wait for the next of some windows; None within one."""
    starts: list[datetime] = []
    for window in windows:
        try:
            zone = ZoneInfo(window.time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return f"name a time zone that exists: updatePolicy.windows has {window.time_zone!r}"
        if _is_within(window, zone, now):
            return None
        starts += (start for start in _starts(window, zone, now, range(_WEEK + 2)) if start > now)
    return f"wait for the next window of updatePolicy.windows, {min(starts):%Y-%m-%dT%H:%MZ}"


def _is_within(window: RollWindow, zone: ZoneInfo, now: datetime) -> bool:
    """A window may last a week: whether one of those that began in the last eight days has not ended."""
    lasts = timedelta(seconds=window.duration_seconds)
    return any(start <= now < start + lasts for start in _starts(window, zone, now, range(-_WEEK - 1, 1)))


def _starts(window: RollWindow, zone: ZoneInfo, now: datetime, days: range) -> list[datetime]:
    """When it begins on the days from today, in the zone of `now`."""
    today = now.astimezone(zone).date()
    at = time.fromisoformat(window.start)
    dates = [today + timedelta(days=day) for day in days]
    return [
        datetime.combine(date, at, zone).astimezone(now.tzinfo)
        for date in dates
        if not window.days or _DAYS[date.weekday()] in window.days
    ]


Reasons = frozenset[Reason | ClusterReason]
Refuses = Callable[[Case, Verdict], Refusal | None]
ORDERED: Final[Reasons] = frozenset({ClusterReason.PINNED})
"""Reasons that a person gives: a suspect profile does not forbid such a change."""


class Gate(NamedTuple):
    """A gate of changes, which some reasons pass by.

    A gate of advice keeps what it refuses from being recommended too. A gate that is not of restarts counts in mode NextRollout too.
    """

    about: str
    refuses: Refuses
    passed_by: Reasons = frozenset()
    of_advice: bool = False
    of_restarts: bool = True


def _moment(case: Case, verdict: Verdict) -> Refusal | None:
    scaled = scaled_time(case.workload, case.service.status.target, case.now)
    urgent = verdict.reason in URGENT
    return refuse_now(case.workload, case.context.timing, scaled, case.memory, case.now, urgent=urgent)


def _capacity(case: Case, verdict: Verdict) -> Refusal | None:
    arms = tuple(arm for arm in (case.running.arm, verdict.arm) if arm is not None)
    decision = verdict.decision
    return refuse_capacity(case, arms, decision.evaluations if decision is not None else None)


def _of_profile(about: str, refuses: Refuses) -> Gate:
    """A gate of the word on which an arm is entered, wherever it comes from."""
    return Gate(about, refuses, ORDERED | LEAVING, of_advice=True, of_restarts=False)


# An arm that crashes or fails requests is left whatever the profile, the rolls before and the moment say, as a roll is undone.
GATES: Final = (
    Gate(
        "a person's order",
        lambda case, _: Refusal(ClusterReason.PAUSED, "spec.paused is set") if case.spec.paused else None,
        of_restarts=False,
    ),
    _of_profile(
        "suspicion of the profile",
        lambda case, verdict: refuse_suspect(
            case.memory, case.profile_name, verdict.decision, verdict.wanted
        ),
    ),
    _of_profile("failures of the arm", lambda case, verdict: refuse_barred(case.memory, verdict.wanted)),
    _of_profile(
        "guards of the user", lambda case, verdict: None if verdict.wanted == NO_SPECULATION else case.breach
    ),
    _of_profile(
        "answers of the arm",
        lambda case, verdict: refuse_answers(case.spec.answer_check, case.profile, verdict.wanted),
    ),
    Gate("the target", lambda case, _: case.cannot_roll, of_restarts=False),
    Gate(
        "rolls before",
        lambda case, _: rolls_stopped(case.memory, case.profile_name),
        URGENT | ORDERED | LEAVING,
    ),
    Gate(
        "windows of the policy",
        lambda case, verdict: refuse_outside_windows(
            case.spec.update_policy.windows, verdict.decision, case.now
        ),
        ORDERED | LEAVING,
    ),
    Gate("this moment", _moment, LEAVING),
    # The pods of the service beside a control carry its load meanwhile.
    Gate("capacity during the roll", _capacity, LEAVING | {ClusterReason.CONTROL}),
    Gate(
        "other services",
        lambda case, _: (
            None
            if case.may_roll
            else Refusal(ClusterReason.ROLL_WAITS, "other services are being rolled; this one is next")
        ),
    ),
    Gate(
        "the API server",
        lambda case, _: Refusal(case.waits.reason, case.waits.sentence) if case.waits else None,
    ),
)
"""A person's order, the profile, the target, rolls before, this moment, then what is not the service's own."""


def proposed(case: Case, verdict: Verdict) -> WriteProposal | None:
    """The proposal to the target's next rollout, if it changes: the arm that should run, or the arm in place where that is refused.

    It names the model for which the arm was chosen, because under another model the policy takes no speculation. Out of mode
    NextRollout, and while the service is paused, none stays.
    """
    workload, running, policy = case.workload, case.running.arm, case.spec.update_policy
    text = workload.proposal
    if policy.mode is not Mode.NEXT_ROLLOUT or case.spec.paused or case.cannot_roll is not None:
        text = None
    elif workload.identity is not None and (arm := _to_take(verdict, running)) is not None:
        text = f"{workload.identity.model} {case.spec.candidates.speculative_config(arm)}"
    return None if text == workload.proposal else WriteProposal(workload.ref, text)


def refuse_owners_arm(workload: Workload, memory: MemoryStatus | None) -> Refusal | None:
    """An arm that the target's owner chose himself stays in his rollouts; None without one. A value of no speculation is no choice.

    The memory has the value that his last rollout took from a proposal, or that the operator wrote.
    """
    known = (None, memory.written_value if memory is not None else None)
    if any(same_value(workload.value, one) for one in known) or took_proposal(workload):
        return None
    if FIELD_MANAGER in workload.value_managers or not workload.value_managers:
        return None
    return Refusal(
        ClusterReason.TAKEN_OVER,
        f"{', '.join(workload.value_managers)} set the annotation of {workload.title} to an arm: take it out of the manifest, and "
        "the next rollout after that takes the arm that should run",
    )


def took_proposal(workload: Workload) -> bool:
    """Whether the annotation is what a rollout took from the proposal, in its owner's name."""
    value = (workload.proposal or "").partition(" ")[2]
    return bool(value) and workload.value == value and FIELD_MANAGER not in workload.value_managers


def _to_take(verdict: Verdict, running: Arm | None) -> Arm | None:
    """The arm that the next rollout is to take; None while nothing new is known about that."""
    if verdict.action == STAY or verdict.reason is ClusterReason.AWAITS_ROLLOUT:
        return verdict.arm
    refused = verdict.action == HOLD and verdict.decision is not None and verdict.arm != running
    return running if refused else None


def gates_of(reason: Reason | ClusterReason) -> list[Gate]:
    """The gates that a change for this reason is asked at, in their order."""
    return [one for one in GATES if reason not in one.passed_by]


def held(case: Case, verdict: Verdict) -> Verdict | None:
    """The verdict in place of a change that is due and must not be made; None if it may be made."""
    asked, mode = gates_of(verdict.reason), case.spec.update_policy.mode
    if mode is Mode.RECOMMEND and not any(one.refuses(case, verdict) for one in asked if one.of_advice):
        return replace(verdict, action=RECOMMEND)
    if mode is Mode.NEXT_ROLLOUT:
        asked = [one for one in asked if not one.of_restarts]
    refusal = next((found for one in asked if (found := one.refuses(case, verdict)) is not None), None)
    if refusal is None and mode is Mode.NEXT_ROLLOUT:
        refusal = Refusal(
            ClusterReason.AWAITS_ROLLOUT,
            f"nothing restarts for it: the next rollout of {case.workload.title} takes it ({verdict.message})",
        )
    if refusal is None:
        return None
    message = f"{spoken(verdict.arm)} should run ({verdict.reason}), but {refusal.message}"
    return replace(verdict, action=HOLD, reason=refusal.reason, message=message)
