"""The conditions of a service as sentences: readiness, calibration, metrics, profit, progress, objectives and doubts."""

from __future__ import annotations

import re

from breakeven.phrases import spoken
from breakeven.planning.wording import figures_text
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.conditions import (
    CALIBRATED,
    METRICS,
    OBJECTIVES,
    PROFITABLE,
    PROGRESSING,
    READY,
    Aspect,
)
from breakeven_operator.reconcile.cycle_facts import CycleFacts
from breakeven_operator.reconcile.doubt_aspects import doubt_aspects
from breakeven_operator.reconcile.drift import MADE_UP_TEXT
from breakeven_operator.reconcile.formatting import pays_until
from breakeven_operator.reconcile.metrics_aspect import metrics_aspect
from breakeven_operator.reconcile.objectives import objectives_aspect
from breakeven_operator.reconcile.paying import pays_now, with_measured
from breakeven_operator.reconcile.verdict import HOLD, RECOMMEND
from breakeven_operator.resources import SpeculativeServiceStatus
from breakeven_operator.resources.decisionstatus import Basis
from breakeven_operator.resources.rolloutstatus import HistoryEntry, RolloutPhase


def aspects_of(cycle: CycleFacts, status: SpeculativeServiceStatus) -> tuple[Aspect, ...]:
    """The aspects of all conditions, in the order in which the status lists them."""
    calibrated, live = cycle.calibrated, cycle.live
    kept = objectives_aspect(
        cycle.objectives,
        status.objectives,
        asked_before=cycle.service.status.condition(OBJECTIVES) is not None,
    )
    return (
        _ready(cycle),
        metrics_aspect(live)
        if live is not None
        else Aspect(METRICS, None, str(cycle.verdict.reason), cycle.verdict.message),
        Aspect(CALIBRATED, _is_calibrated(cycle), str(calibrated.reason), _calibrated_message(cycle, status)),
        _profitable(cycle),
        _progressing(cycle, status),
        *doubt_aspects(cycle),
        *((kept,) if kept is not None else ()),
    )


def _is_calibrated(cycle: CycleFacts) -> bool | None:
    """Whether a profile is in force; unknown while no pod serves: the next one may have what was measured, or not."""
    if cycle.calibrated.reason is ClusterReason.NO_POD_SERVES:
        return None
    return cycle.calibrated.entry is not None


def _calibrated_message(cycle: CycleFacts, status: SpeculativeServiceStatus) -> str:
    """The message about the profile, with a note on every drafter whose acceptance is a guess.

    What was accepted of made-up text, or was imposed, says little about users' text. Live traffic on the drafter outranks it.
    """
    calibrated = cycle.calibrated
    profile = calibrated.profile
    if profile is None:
        return calibrated.message
    memory = status.memory
    seen = {one.arm.partition("/")[0] for one in memory.seen} if memory is not None else set()
    guessed: dict[str, set[str]] = {}
    for fit in profile.arms:
        text = fit.acceptance.text if fit.acceptance is not None else None
        family = fit.arm.name.partition("/")[0]
        if text in MADE_UP_TEXT and family not in seen:
            guessed.setdefault(text, set()).add(family)
    notes = (
        f"; acceptance of {', '.join(sorted(families))} was measured on {text}: a guess until live traffic has been seen on it"
        for text, families in sorted(guessed.items())
    )
    return f"{calibrated.message}{''.join(notes)}"


def _ready(cycle: CycleFacts) -> Aspect:
    service, cannot, step = cycle.service, cycle.cannot_roll, cycle.step
    if cannot is not None:
        return Aspect(READY, False, str(cannot.reason), cannot.message)
    if step.memory.taken_over_by is not None:
        reason = step.reason or ClusterReason.TAKEN_OVER
        return Aspect(
            READY, False, str(reason), step.message or f"{step.memory.taken_over_by} owns the annotation"
        )
    if cycle.running is not None and cycle.running.arm is None:
        return Aspect(READY, False, str(cycle.verdict.reason), cycle.verdict.message)
    if cycle.refused is not None:
        return Aspect(READY, False, str(cycle.refused.reason), cycle.refused.sentence)
    if service.spec.paused:
        return Aspect(
            READY, True, str(ClusterReason.PAUSED), "spec.paused is set: nothing is changed or started"
        )
    if cycle.calibrated.reason is ClusterReason.GPU_CLASS_UNKNOWN:
        return Aspect(READY, False, str(cycle.calibrated.reason), cycle.calibrated.message)
    name = cycle.calibrated.profile_name
    profile = f"profile {name} in force" if name is not None else "no profile in force yet"
    live = cycle.live
    metrics = "metrics fresh" if live is not None and live.usable else "no usable metrics now"
    if live is not None and not live.usable:
        metrics += f" ({live.reason})"
    return Aspect(READY, True, str(ClusterReason.WATCHING), f"target found, {profile}, {metrics}")


def _profitable(cycle: CycleFacts) -> Aspect:
    verdict, comparison, decision = cycle.verdict, cycle.verdict.against_none, cycle.verdict.decision
    if decision is None or comparison is None or decision.subject is None:
        return Aspect(PROFITABLE, None, str(verdict.reason), verdict.message)
    message = figures_text(decision)
    if comparison.break_even_rps is None:
        message += f"; {pays_until(comparison)}"
    if cycle.verdict.basis is Basis.PAST:
        message = f"by the target's own past, and nothing is measured yet: {message}"
        return Aspect(PROFITABLE, pays_now(cycle.verdict), str(ClusterReason.FROM_PAST), message)
    message = with_measured(message, cycle.verdict)
    if cycle.verdict.basis is Basis.FORMER and cycle.calibrated.former is not None:
        message = (
            f"by {cycle.calibrated.former.name}, which is not in force any more and may be wrong: {message}"
        )
    return Aspect(PROFITABLE, pays_now(cycle.verdict), str(decision.reason), message)


def _progressing(cycle: CycleFacts, status: SpeculativeServiceStatus) -> Aspect:
    step, verdict = cycle.step, cycle.verdict
    if step.reason in {ClusterReason.WRITE_REFUSED, ClusterReason.REVERTED_TWICE}:
        return Aspect(PROGRESSING, False, str(step.reason), step.message)
    if step.rollout is not None and step.busy:
        return Aspect(PROGRESSING, True, str(step.reason or ClusterReason.ROLLING), step.message)
    if step.rollout is not None and step.rollout.phase is RolloutPhase.CONFIRMING:
        change = step.rollout.change
        return Aspect(
            PROGRESSING,
            False,
            str(ClusterReason.ROLL_FINISHED),
            f"{change}: all pods run it, and it is being measured"
            if cycle.workload is not None and cycle.workload.desired
            else f"{change}: no pod runs, so that nothing is measured",
        )
    tail = _last_roll(status.history[0]) if status.history else "no roll so far"
    if verdict.action == RECOMMEND:
        return Aspect(
            PROGRESSING,
            False,
            str(ClusterReason.RECOMMEND_ONLY),
            f"{spoken(verdict.arm)} should run ({verdict.reason}) and mode Recommend changes nothing: set updatePolicy.mode to "
            "RollingUpdate, or change the target yourself",
        )
    if (
        verdict.action == HOLD
        and verdict.arm is not None
        and cycle.running is not None
        and verdict.arm != cycle.running.arm
    ):
        return Aspect(PROGRESSING, False, str(ClusterReason.ROLL_BLOCKED), verdict.message)
    return Aspect(PROGRESSING, False, str(ClusterReason.STABLE), tail)


def _last_roll(last: HistoryEntry) -> str:
    """When, what and why, and how it ended; an age would change the message every cycle."""
    change = last.change
    why = f" ({last.reason})" if last.reason else ""
    how = (last.message or "").removeprefix(f"{change}: ").removeprefix(f"{change} ")
    result = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", str(last.result)).lower()
    ended = how if how.startswith(result) else f"{result}: {how}"
    return f"last roll, ended {last.time:%Y-%m-%d %H:%M} UTC: {change}{why}, {ended}"
