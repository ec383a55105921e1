"""Reasons to refuse a roll now although the figures ask for it: the last check before the one write."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.phrases import spoken
from breakeven.planning.decision import Decision
from breakeven.planning.evaluation import Evaluations
from breakeven.profile import Profile
from breakeven.reasons import Reason
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.case import Case
from breakeven_operator.reconcile.suspicion import suspicion_of
from breakeven_operator.reconcile.target import Refusal
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.targetstatus import Target
from breakeven_operator.resources.updatepolicy import AllowOutage, OutageWindow, Timing, UpdatePolicy, Weekday
from breakeven_operator.workloads.workload import Workload

URGENT = frozenset({Reason.ENTERED_SATURATION, Reason.SLO_VIOLATED})
"""Reasons of a change that measurements ask for, not a profile: requests queue, or an objective is missed."""


def refuse_suspect(
    memory: MemoryStatus, profile_name: str, decision: Decision | None, wanted: Arm
) -> Refusal | None:
    """Why an arm is not entered on the word of a profile that measurements have contradicted; None: it may be.

    No speculation is where nothing can be lost against, and an arm that has evidence of its own has been seen at work.

    Args:
        memory: of the service.
        profile_name: of the profile in force.
        decision: that wants the arm; None: a person does.
        wanted: the arm.
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
    time since the last change counts. That asks nothing of the autoscaler, whatever kind it is.

    Args:
        workload: the target.
        timing: times of the installation.
        scaled: when the number of wanted replicas was last seen to change; None: never.
        memory: of the service.
        now: time of the observation.
        urgent: whether requests queue, or an objective is missed; a roll that was measured to lose then holds up no other.
            One whose pods did not come up still does.
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
    """Whether the pause after undone rolls lasts."""
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
    """When the number of wanted replicas last changed, as far as it was watched; None: it never did.

    Args:
        workload: the target.
        seen: the target as the status has it, from an earlier cycle (or an earlier process).
        now: time of the observation.
    """
    if seen is None or seen.uid != workload.ref.uid:
        return None
    return now if seen.replicas != workload.desired else seen.replicas_changed_time


def refuse_capacity(case: Case, arms: tuple[Arm, ...], evaluations: Evaluations | None) -> Refusal | None:
    """Whether the pods left during a roll could not carry the load.

    A roll by surge (maxUnavailable 0) takes no replica away and is not held back: an arm that is near its saturation
    is exactly what must be left. Within a window of the policy nothing is held back. If the load is not known (a pinned
    arm), any lost replica is too much.

    Args:
        case: of the service.
        arms: from and to; during the roll some pods run each.
        evaluations: of the arms at the present lengths and acceptance, which move a saturation by more than the limit's
            room; None if nothing was evaluated: saturations are those of the profile.
    """
    policy, workload, figures = case.spec.update_policy, case.workload, case.live.figures
    if workload.max_unavailable == 0:
        return None
    left = workload.desired - workload.max_unavailable
    outage = outage_allowed(policy, case.now)
    if outage.now:
        return None
    without_loss = workload.kind.without_loss
    advice = f"{without_loss}, or wait for less load"
    if left <= 0:
        return Refusal(
            ClusterReason.OUTAGE_NOT_ALLOWED,
            "the target's strategy takes every pod away at once, so no roll is without an outage at any load: where a GPU is "
            f"spare, {without_loss}; else {outage.message}",
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
    fits = profile.arms if profile is not None else ()
    return next((fit.saturation_rps for fit in fits if fit.arm == arm), None)


# Whether an outage is allowed at a moment: by the windows of the update policy.


_DAYS = tuple(Weekday)
_WEEK = 7


class Allowed(NamedTuple):
    """Whether an outage is allowed, and what is said if it is not."""

    now: bool
    message: str = ""


def outage_allowed(policy: UpdatePolicy, now: datetime) -> Allowed:
    """Whether a roll may begin now that leaves too few pods, or none.

    Args:
        policy: of the service.
        now: time of the observation.
    """
    if policy.allow_outage is AllowOutage.NEVER:
        return Allowed(
            False,
            "allow an outage at a time of your choice (updatePolicy.allowOutage Window, with outageWindows)",
        )
    starts = []
    for window in policy.outage_windows:
        try:
            zone = ZoneInfo(window.time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return Allowed(False, f"name a time zone that exists: outageWindows has {window.time_zone!r}")
        if _is_within(window, zone, now):
            return Allowed(True)
        starts.append(_next_start(window, zone, now))
    return Allowed(
        False, f"wait for the next window of updatePolicy.outageWindows, {min(starts):%Y-%m-%dT%H:%MZ}"
    )


def _is_within(window: OutageWindow, zone: ZoneInfo, now: datetime) -> bool:
    """A window may last a week: whether one of those that began in the last eight days has not ended."""
    lasts = timedelta(seconds=window.duration_seconds)
    return any(start <= now < start + lasts for start in _starts(window, zone, now, range(-_WEEK - 1, 1)))


def _next_start(window: OutageWindow, zone: ZoneInfo, now: datetime) -> datetime:
    later = [start for start in _starts(window, zone, now, range(_WEEK + 2)) if start > now]
    return min(later)


def _starts(window: OutageWindow, zone: ZoneInfo, now: datetime, days: range) -> list[datetime]:
    """When it begins on the days from today, in the zone of `now`."""
    today = now.astimezone(zone).date()
    at = time.fromisoformat(window.start)
    dates = [today + timedelta(days=day) for day in days]
    return [
        datetime.combine(date, at, zone).astimezone(now.tzinfo)
        for date in dates
        if not window.days or _DAYS[date.weekday()] in window.days
    ]
