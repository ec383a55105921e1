"""The status of a service: what was seen, what was decided and why, in the shape that people and restarts read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from breakeven.arm import NO_SPECULATION
from breakeven.errors import BreakevenError
from breakeven.laws.latency import BURSTY
from breakeven.planning.evaluation import ArmEvaluation
from breakeven.planning.wording import figures_text
from breakeven.profile import Comparison
from breakeven.serving.counted_window import Arrivals
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.active_profile import Calibrated
from breakeven_operator.reconcile.conditions import (
    CALIBRATED,
    METRICS,
    OBJECTIVES,
    PROFITABLE,
    PROGRESSING,
    READY,
    Aspect,
    merge,
)
from breakeven_operator.reconcile.decide import Choice
from breakeven_operator.reconcile.doubts import aspects, present_drift, rules_of
from breakeven_operator.reconcile.drift import MADE_UP_TEXT, Drift
from breakeven_operator.reconcile.formatting import break_even, figure, pays_until, ratio, speedup
from breakeven_operator.reconcile.live_metrics import Live
from breakeven_operator.reconcile.model_report import model_status
from breakeven_operator.reconcile.objectives import Objectives, objectives_aspect, with_predictions
from breakeven_operator.reconcile.paying import pays_now, with_measured
from breakeven_operator.reconcile.preconditions import scaled_time
from breakeven_operator.reconcile.scaling import FleetNeed, capacity_status
from breakeven_operator.reconcile.steps import RolloutStep
from breakeven_operator.reconcile.target import Refusal
from breakeven_operator.reconcile.verdict import HOLD, RECOMMEND, Verdict
from breakeven_operator.refused_writes import RefusedWrite
from breakeven_operator.resources import SpeculativeService, SpeculativeServiceStatus
from breakeven_operator.resources.decisionstatus import DecisionFacts, DecisionStatus
from breakeven_operator.resources.figures import read_figures
from breakeven_operator.resources.rolloutstatus import HistoryEntry
from breakeven_operator.resources.servicestatus import ServiceDisplay, ServiceWorkings
from breakeven_operator.resources.targetstatus import ArmSource, Current, PodsOfArm, Target
from breakeven_operator.workloads.running_arm import RunningArm, arm_of_value
from breakeven_operator.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class CycleFacts:
    """Everything a cycle found out about one service.

    Attributes:
        failures: writes for it that failed, and have not succeeded since.
    """

    service: SpeculativeService
    workload: Workload | None
    running: RunningArm | None
    calibrated: Calibrated
    live: Live | None
    step: RolloutStep
    choice: Choice
    verdict: Verdict
    cannot_roll: Refusal | None
    now: datetime
    need: FleetNeed | None = None
    objectives: Objectives | None = None
    failures: tuple[RefusedWrite, ...] = ()

    @property
    def refused(self) -> RefusedWrite | None:
        """The write that the API server refuses and that keeps the operator from its work; the oldest of several."""
        return min((one for one in self.failures if one.refused), key=lambda one: one.since, default=None)


def report(cycle: CycleFacts) -> SpeculativeServiceStatus:
    """The whole status of this cycle."""
    service, old, step = cycle.service, cycle.service.status, cycle.step
    current = _current(cycle)
    decision = _decision(cycle)
    memory = step.memory
    profile = cycle.calibrated.profile_name
    if old.calibration is not None and profile is not None and old.calibration.profile not in {None, profile}:
        # Acceptance seen before belongs to the profile before.
        memory = memory.replace(seen=())
    paying = pays_now(cycle.choice)
    if paying is not None:
        memory = memory.replace(pays=paying)
    status = SpeculativeServiceStatus(
        observed_generation=service.metadata.generation,
        target=_target(cycle),
        current=current,
        decision=decision,
        rollout=step.rollout,
        capacity=capacity_status(cycle.need) if cycle.need is not None else None,
        model=model_status(
            service.spec,
            cycle.calibrated.entry,
            cycle.choice,
            cycle.live,
            memory,
            cycle.now,
        ),
        objectives=with_predictions(cycle.objectives, cycle.choice.running),
        calibration=cycle.calibrated.status,
        history=step.history(old.history),
        workings=ServiceWorkings(memory=memory, display=_display(cycle, current)),
    )
    conditions = merge(old.conditions, _aspects(cycle, status), service.metadata.generation, cycle.now)
    return status.replace(conditions=conditions)


def _target(cycle: CycleFacts) -> Target | None:
    workload = cycle.workload
    if workload is None:
        return None
    engine, identity = workload.engine, workload.identity
    return Target(
        uid=workload.ref.uid,
        generation=workload.generation,
        container_name=engine.name if engine else None,
        image=identity.image if identity else None,
        model=identity.model if identity else None,
        served_model_name=(
            cycle.service.spec.metrics_source.served_model_name
            or (identity.served_model if identity else None)
        ),
        gpu_product=identity.gpu_product if identity else None,
        gpus_per_pod=identity.gpus if identity else None,
        replicas=workload.desired,
        replicas_changed_time=scaled_time(workload, cycle.service.status.target, cycle.now),
        ready_replicas=workload.ready,
        fingerprint=identity.fingerprint if identity else None,
        opted_in=engine.opt_in.ok if engine else None,
        drain_configured=engine.drain.ok if engine else None,
    )


def _current(cycle: CycleFacts) -> Current | None:
    running, workload = cycle.running, cycle.workload
    if running is None or workload is None:
        return None
    source = {"Annotation": ArmSource.ANNOTATION, "Arguments": ArmSource.COMMAND_LINE}.get(
        running.source, ArmSource.UNSET
    )
    arm = running.arm
    old = cycle.service.status.current
    name = arm.name if arm is not None else None
    since = old.since if old is not None and old.arm == name and old.since is not None else cycle.now
    counts: dict[str, int] = {}
    for pod in workload.pods:
        if pod.terminating:
            continue
        if source is ArmSource.COMMAND_LINE:
            runs = arm
        else:
            runs = arm_of_value(pod.value, cycle.service.spec.candidates).arm
        if runs is not None:
            counts[runs.name] = counts.get(runs.name, 0) + 1
    return Current(
        arm=name,
        method=arm.method if arm is not None else None,
        draft_length=arm.k if arm is not None else None,
        schedule=str(running.schedule) if running.schedule is not None else None,
        source=source,
        since=since,
        pods_by_arm=tuple(PodsOfArm(arm=key, pods=counts[key]) for key in sorted(counts))[:8],
    )


def _decision(cycle: CycleFacts) -> DecisionStatus:
    verdict, figures = cycle.verdict, cycle.live.figures if cycle.live is not None else None
    explained, decision = cycle.choice.explained, cycle.choice.decision
    running = cycle.running.arm if cycle.running is not None else None
    past = len(cycle.live.past.rates.rps) if cycle.live is not None else 0
    return DecisionStatus(
        time=cycle.now,
        action=verdict.action,
        arm=verdict.arm.name if verdict.arm is not None else None,
        running_arm=running.name if running is not None else None,
        reason=str(verdict.reason),
        message=with_measured(_with_overload(verdict.message, cycle.choice.running), cycle.choice)[:1024],
        profile=cycle.calibrated.profile_name,
        held_until=(
            datetime.fromtimestamp(decision.until_s, UTC)
            if decision is not None and decision.until_s is not None and verdict.reason == decision.reason
            else None
        ),
        **read_figures(DecisionStatus, DecisionFacts(cycle.now, figures, explained, past)),
    )


def _with_overload(message: str, running: ArmEvaluation | None) -> str:
    """The sentence, with a remark if the load is beyond what the running arm can carry."""
    if running is None or running.utilisation <= 1:
        return message
    return (
        f"{message}; the load is {100 * running.utilisation:.0f} % of what {running.arm} can carry "
        f"({running.saturation_rps:.3g} rps per replica): requests queue"
    )


def _calibrated(cycle: CycleFacts) -> Comparison | None:
    """Without live figures: the running arm with its calibrated acceptance, which still has a break-even."""
    profile, running = cycle.calibrated.profile, cycle.running
    if profile is None or running is None or running.arm is None or running.arm.k == 0:
        return None
    try:
        return profile.compare(running.arm, NO_SPECULATION, rps=0.0)
    except BreakevenError:
        return None


def _display(cycle: CycleFacts, current: Current | None) -> ServiceDisplay:
    target, verdict = cycle.service.spec.target_ref, cycle.verdict
    comparison = cycle.choice.against_none
    figures = cycle.live.figures if cycle.live is not None else None
    reason = str(verdict.reason)
    run = cycle.calibrated.run
    if run is not None and run.status.display is not None and run.status.display.points:
        progress = f"{run.status.display.points} points"
        if run.status.display.left:
            progress += f", {run.status.display.left} left"
        measuring = verdict.reason is ClusterReason.CALIBRATION_RUNNING
        reason += f" {progress}" if measuring else f"; calibrating {progress}"
    return ServiceDisplay(
        target=f"{target.kind}/{target.name}"[:128],
        arm=(current.arm if current is not None else None) or "?",
        pays={True: "Yes", False: "No", None: "?"}[pays_now(cycle.choice)],
        speedup=speedup(comparison),
        break_even=break_even(comparison or _calibrated(cycle)),
        load=figure(figures.rps, "rps") if figures is not None else "-",
        recommended=verdict.arm.name
        if verdict.arm is not None and cycle.calibrated.entry is not None
        else "-",
        c2_ratio=ratio(comparison.c2_ratio, comparison.c2_ratio_ci) if comparison is not None else "-",
        profile=cycle.calibrated.profile_name or "-",
        reason=reason[:128],
    )


def _aspects(cycle: CycleFacts, status: SpeculativeServiceStatus) -> tuple[Aspect, ...]:
    calibrated, live = cycle.calibrated, cycle.live
    entry = calibrated.entry
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
        Aspect(CALIBRATED, entry is not None, str(calibrated.reason), _calibrated_message(cycle, status)),
        _profitable(cycle),
        _progressing(cycle, status),
        *doubt_aspects(cycle),
        *((kept,) if kept is not None else ()),
    )


def doubt_aspects(cycle: CycleFacts) -> tuple[Aspect, ...]:
    """Doubts of live traffic about the profile in force."""
    spec, calibrated, live = cycle.service.spec, cycle.calibrated, cycle.live
    running = cycle.running.arm if cycle.running is not None else None
    memory = cycle.step.memory

    def found() -> Drift:
        return present_drift(memory, spec, calibrated.profile, running, live) if live is not None else Drift()

    return aspects(memory, calibrated.profile_name, found, rules_of(spec), cycle.now, live)


def metrics_aspect(live: Live) -> Aspect:
    """Whether there are figures to decide on; that clients give up is said here too, because no decision waits for it."""
    gone = live.usable and live.figures is not None and live.figures.given_up > 0.0
    reason = ClusterReason.CLIENTS_GIVE_UP if gone else live.reason
    return Aspect(METRICS, live.usable, str(reason), _metrics_message(live))


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


def _metrics_message(live: Live) -> str:
    """The message about the figures, with notes on arrivals that are not Poisson's and on a past that could not be read."""
    if not live.usable or live.figures is None:
        return live.message
    return "; ".join(filter(None, (live.message, _arrivals_note(live.figures.arrivals), live.past.problem)))


def _arrivals_note(seen: Arrivals) -> str:
    if seen.dispersion is None:
        return f"arrivals are taken for Poisson's, because their dispersion is unknown: {seen.problem}"
    if seen.dispersion < BURSTY:
        return ""
    return f"predictions hold for arrivals of dispersion {figure(seen.dispersion)} in spans of {figure(seen.span_s)} s"


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
        return Aspect(READY, False, str(ClusterReason.WRITE_REFUSED), cycle.refused.sentence)
    if service.spec.paused:
        return Aspect(
            READY, True, str(ClusterReason.PAUSED), "spec.paused is set: nothing is changed or started"
        )
    name = cycle.calibrated.profile_name
    profile = f"profile {name} in force" if name is not None else "no profile in force yet"
    live = cycle.live
    metrics = "metrics fresh" if live is not None and live.usable else "no usable metrics now"
    if live is not None and not live.usable:
        metrics += f" ({live.reason})"
    return Aspect(READY, True, str(ClusterReason.WATCHING), f"target found, {profile}, {metrics}")


def _profitable(cycle: CycleFacts) -> Aspect:
    verdict, comparison, explained = cycle.verdict, cycle.choice.against_none, cycle.choice.explained
    if explained is None or comparison is None or explained.decision.subject is None:
        return Aspect(PROFITABLE, None, str(verdict.reason), verdict.message)
    message = figures_text(explained)
    if comparison.break_even_rps is None:
        message += f"; {pays_until(comparison)}"
    message = with_measured(message, cycle.choice)
    return Aspect(PROFITABLE, pays_now(cycle.choice), str(explained.decision.reason), message)


def _progressing(cycle: CycleFacts, status: SpeculativeServiceStatus) -> Aspect:
    step, verdict = cycle.step, cycle.verdict
    if step.reason is ClusterReason.WRITE_REFUSED:
        return Aspect(PROGRESSING, False, str(step.reason), step.message)
    if step.rollout is not None and step.busy:
        return Aspect(PROGRESSING, True, str(step.reason or ClusterReason.ROLLING), step.message)
    tail = _last_roll(status.history[0]) if status.history else "no roll so far"
    if verdict.action == RECOMMEND:
        return Aspect(
            PROGRESSING,
            False,
            str(ClusterReason.RECOMMEND_ONLY),
            f"{verdict.arm} should run ({verdict.reason}) and mode Recommend changes nothing: set updatePolicy.mode to "
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
    change = f"{last.from_arm} -> {last.to_arm}"
    why = f" ({last.reason})" if last.reason else ""
    how = (last.message or "").removeprefix(f"{change}: ").removeprefix(f"{change} ")
    result = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", str(last.result)).lower()
    ended = how if how.startswith(result) else f"{result}: {how}"
    return f"last roll, ended {last.time:%Y-%m-%d %H:%M} UTC: {change}{why}, {ended}"
