"""The status of a service: what was seen, what was decided and why, in the shape that people and restarts read."""

from __future__ import annotations

from datetime import UTC, datetime

from breakeven.arm import NO_SPECULATION
from breakeven.errors import BreakevenError
from breakeven.planning.evaluation import ArmEvaluation
from breakeven.profile import Comparison
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.conditions import merge
from breakeven_operator.reconcile.cycle_aspects import aspects_of
from breakeven_operator.reconcile.cycle_facts import CycleFacts
from breakeven_operator.reconcile.formatting import PAST_MARK, break_even, figure, ratio, speedup
from breakeven_operator.reconcile.gpu_classes import GpuClass
from breakeven_operator.reconcile.model_report import model_status
from breakeven_operator.reconcile.objectives import with_predictions
from breakeven_operator.reconcile.paying import pays_now, with_measured
from breakeven_operator.reconcile.preconditions import scaled_time
from breakeven_operator.reconcile.scaling import capacity_status
from breakeven_operator.reconcile.worth import inflight_time, worth_of
from breakeven_operator.resources import SpeculativeServiceStatus
from breakeven_operator.resources.decisionstatus import Basis, ClassStanding, DecisionFacts, DecisionStatus
from breakeven_operator.resources.figures import read_figures
from breakeven_operator.resources.servicestatus import ServiceDisplay, ServiceWorkings
from breakeven_operator.resources.targetstatus import (
    LONGEST_IMAGE,
    LONGEST_MODEL,
    ArmSource,
    Current,
    PodsOfArm,
    Target,
)
from breakeven_operator.workloads.running_arm import pods_by_arm
from breakeven_operator.workloads.workload import Workload


def report(cycle: CycleFacts, gpu_price_per_hour: float | None) -> SpeculativeServiceStatus:
    """The whole status of this cycle.

    Args:
        cycle: what the cycle found.
        gpu_price_per_hour: None: the status says no money.
    """
    service, old, step = cycle.service, cycle.service.status, cycle.step
    need = cycle.case.need if cycle.case is not None else None
    current = _current(cycle)
    decision = _decision(cycle)
    memory = step.memory
    profile = cycle.calibrated.profile_name
    if old.calibration is not None and profile is not None and old.calibration.profile not in {None, profile}:
        # Acceptance seen before belongs to the profile before.
        memory = memory.replace(seen=())
    paying = pays_now(cycle.verdict)
    if paying is not None and cycle.verdict.basis is Basis.MEASURED:
        memory = memory.replace(pays=paying)
    status = SpeculativeServiceStatus(
        observed_generation=service.metadata.generation,
        target=_target(cycle),
        current=current,
        decision=decision,
        rollout=step.rollout,
        capacity=capacity_status(need) if need is not None else None,
        model=model_status(
            service.spec,
            cycle.calibrated.entry,
            cycle.verdict,
            cycle.live,
            memory,
            cycle.now,
        ),
        objectives=with_predictions(cycle.objectives, cycle.verdict.running),
        calibration=cycle.calibrated.status,
        history=step.history(old.history),
        workings=ServiceWorkings(memory=memory, display=_display(cycle, current)),
    )
    status = _with_worth(status, cycle, gpu_price_per_hour)
    conditions = merge(old.conditions, aspects_of(cycle, status), service.metadata.generation, cycle.now)
    return status.replace(conditions=conditions)


def _with_worth(
    status: SpeculativeServiceStatus, cycle: CycleFacts, gpu_price_per_hour: float | None
) -> SpeculativeServiceStatus:
    """The status with what speculation has been worth up to this window."""
    memory = cycle.step.memory if status.memory is None else status.memory
    figures = cycle.live.figures if cycle.live is not None else None
    passed = inflight_time(status, memory.inflight_time, figures, cycle.now)
    workings = ServiceWorkings(memory=memory.replace(inflight_time=passed), display=status.display)
    status = status.replace(workings=workings)
    return status.replace(savings=worth_of(status, gpu_price_per_hour))


def _target(cycle: CycleFacts) -> Target | None:
    workload = cycle.workload
    if workload is None:
        return None
    engine, identity = workload.engine, workload.identity
    return Target(
        uid=workload.ref.uid,
        generation=workload.generation,
        container_name=engine.name if engine else None,
        image=_cut(identity.image, LONGEST_IMAGE) if identity else None,
        model=_cut(identity.model, LONGEST_MODEL) if identity else None,
        served_model_name=(
            cycle.service.spec.metrics_source.served_model_name
            or (_cut(identity.served_model, LONGEST_MODEL) if identity else None)
        ),
        gpu_product=_cut(_gpu_product(workload), 128),
        gpus_per_pod=identity.gpus if identity else None,
        replicas=workload.desired,
        replicas_changed_time=scaled_time(workload, cycle.service.status.target, cycle.now),
        ready_replicas=workload.ready,
        fingerprint=identity.fingerprint if identity and len(workload.by_class) < 2 else None,
        opted_in=engine.opt_in.ok if engine else None,
        drain_configured=engine.drain.ok if engine else None,
    )


def _cut(text: str | None, longest: int) -> str | None:
    """A text of the target as a status has room for it; `refuse_target` names the one that is too long."""
    return None if text is None else text[:longest]


def _gpu_product(workload: Workload) -> str | None:
    """The GPU class of the pods; all of several."""
    names = [one.gpu_class for one in workload.by_class if one.gpu_class is not None]
    if not names:
        return workload.identity.gpu_product if workload.identity is not None else None
    return ", ".join(names)


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
    pods = [pod for pod in workload.pods if not pod.terminating]
    candidates = cycle.service.spec.candidates
    found = {arm: len(pods)} if source is ArmSource.COMMAND_LINE and pods else pods_by_arm(pods, candidates)
    counts = {runs.name: count for runs, count in found.items() if runs is not None}
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
    case, verdict = cycle.case, cycle.verdict
    decision = verdict.decision
    figures = case.live.figures if case is not None else None
    running = case.running.arm if case is not None else None
    past = len(case.live.past.rates.rps) if case is not None else 0
    return DecisionStatus(
        time=cycle.now,
        action=verdict.action,
        arm=verdict.arm.name if verdict.arm is not None else None,
        running_arm=running.name if running is not None else None,
        reason=str(verdict.reason),
        message=with_measured(_with_overload(verdict.message, verdict.running), verdict)[:1024],
        profile=cycle.calibrated.profile_name,
        basis=verdict.basis if decision is not None else None,
        held_until=(
            datetime.fromtimestamp(decision.until_s, UTC)
            if decision is not None and decision.until_s is not None and verdict.reason == decision.reason
            else None
        ),
        classes=tuple(_standing(cycle, one) for one in case.classes[:8]) if case is not None else (),
        first_token_seconds=case.first_token_s if case is not None else None,
        **read_figures(DecisionStatus, DecisionFacts(cycle.now, figures, decision, past)),
    )


def _standing(cycle: CycleFacts, one: GpuClass) -> ClassStanding:
    """A GPU class with its load, and the arm in question on it alone."""
    decision, figures = cycle.verdict.decision, one.figures
    subject = decision.subject if decision is not None else None
    standing = ClassStanding(
        gpu=one.product,
        pods=one.pods,
        profile=one.entry.name if one.entry is not None else None,
        load_rps=figures.rps if figures is not None else None,
    )
    if decision is None or subject is None:
        return standing
    return standing.compared(one.compared(cycle.service, cycle.step.memory, decision.running, subject))


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


def _running_arm(cycle: CycleFacts, current: Current | None) -> str:
    """The column ARM: what serves, and what the target is on its way to while no pod of that serves yet."""
    if current is None or current.arm is None:
        return "?"
    pods = cycle.workload.pods if cycle.workload is not None else ()
    # Of an older template too: those are what serves until the first new one is Ready.
    ready = [pod for pod in pods if pod.ready and not pod.terminating]
    if current.source is ArmSource.COMMAND_LINE:
        return current.arm
    arms = pods_by_arm(ready, cycle.service.spec.candidates)
    there = sorted(str(arm) for arm in arms if arm is not None)
    return current.arm if current.arm in there or not there else f"{', '.join(there)} -> {current.arm}"[:128]


def _display(cycle: CycleFacts, current: Current | None) -> ServiceDisplay:
    target, verdict = cycle.service.spec.target_ref, cycle.verdict
    comparison = cycle.verdict.against_none
    figures = cycle.live.figures if cycle.live is not None else None
    reason = str(verdict.reason)
    # A reader of this column alone must see that nothing is measured.
    marked = PAST_MARK if comparison is not None and cycle.verdict.basis is Basis.PAST else ""
    run = cycle.calibrated.run
    if run is not None and run.status.display is not None and run.status.display.points:
        progress = f"{run.status.display.points} points"
        if run.status.display.left:
            progress += f", {run.status.display.left} left"
        measuring = verdict.reason is ClusterReason.CALIBRATION_RUNNING
        reason += f" {progress}" if measuring else f"; calibrating {progress}"
    return ServiceDisplay(
        target=f"{target.kind}/{target.name}"[:128],
        arm=_running_arm(cycle, current),
        pays={True: "Yes", False: "No", None: "?"}[pays_now(cycle.verdict)] + marked,
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
