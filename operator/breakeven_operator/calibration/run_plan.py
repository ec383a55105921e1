"""The plan of a run, fixed at its start: arms, loads, lengths, deadlines, and the pod template that is copied."""

from __future__ import annotations

from collections.abc import Container, Mapping
from datetime import datetime

from pydantic import ValidationError

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.intake import wrong_field
from breakeven.points.point import first_half
from breakeven_operator.calibration import podcopy
from breakeven_operator.calibration.jobs import TrialLimits
from breakeven_operator.calibration.sending import NOTHING_SENT, planned_workload
from breakeven_operator.calibration.transition import RunView, mean_start_s, to_come_s
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources.base import AGAIN
from breakeven_operator.resources.calibrationrun import (
    ArmStatus,
    CalibrationPlan,
    CalibrationRun,
    CalibrationRunSpec,
    CalibrationRunStatus,
    PlannedArm,
)
from breakeven_operator.resources.speculativeservice import SpeculativeService
from breakeven_operator.workloads.target import refuse_transfer

# A point waits for its last answers beside its window and warm-up, and some points are measured twice.
_POINT_OVERHEAD_S = 60
_SPARE_POINTS = 3
_STOPPING_S = 60


def make_plan(view: RunView, run: CalibrationRun, service: SpeculativeService) -> CalibrationPlan:
    """Fix what the run measures.

    Raises:
        podcopy.NotCopyableError: it cannot be measured; says why.
    """
    try:
        return _plan(view, run, service)
    except ValidationError as error:
        # A run's status has no room for 2,000 devices, or for an image's digest of 300 characters.
        refusal = wrong_field(error, "the target", "`kubectl explain` lists")
        raise podcopy.NotCopyableError(ClusterReason.CALIBRATION_FAILED, str(refusal)) from None


def _plan(view: RunView, run: CalibrationRun, service: SpeculativeService) -> CalibrationPlan:
    assert view.target is not None  # noqa: S101 - a run waits for its target before it is planned
    engine, identity = podcopy.engine_of(view.target.engine), view.identity
    transfer = refuse_transfer(view.target)
    if transfer is not None:
        raise podcopy.NotCopyableError(ClusterReason.TARGET_REFUSED, transfer.message)
    podcopy.engine_address(engine)
    if not run.spec.import_from:
        podcopy.check_alone(view.target)
        podcopy.check_copyable(engine.pod_spec, view.claims)
    if identity is None or identity.gpu_product is None:
        raise podcopy.NotCopyableError(
            ClusterReason.GPU_CLASS_UNKNOWN,
            "the GPU class of the target's pods is unknown: label the nodes (GPU Feature Discovery) or add a"
            f" nodeSelector on {view.settings.gpu_label}",
        )
    calibration = service.spec.calibration
    # An import sends nothing; its files say how long its requests were.
    answers_s = calibration.answers.seconds if not run.spec.import_from else None
    plan = CalibrationPlan(
        arms=tuple(_planned(service, arm) for arm in wanted_arms(run.spec, service)),
        loads=calibration.loads,
        load_choice=calibration.load_choice,
        expected_rps=_expected_rps(service),
        **(planned_workload(view, service) if not run.spec.import_from else NOTHING_SENT),
        point_seconds=calibration.point_seconds,
        warmup_seconds=calibration.warmup_seconds,
        startup_deadline_seconds=calibration.startup_deadline_seconds,
        pending_deadline_seconds=calibration.pending_deadline_seconds,
        answers_seconds=answers_s,
        answers_output_tokens=calibration.answers.output_tokens if answers_s else None,
        budget=(run.spec.budget or calibration.budget).within(view.settings.trial_longest_s),
        confidence_percent=service.spec.update_policy.confidence_percent,
        target=view.target.ref.name,
        target_uid=view.target.ref.uid,
        container_name=engine.name,
        image=engine.container.get("image"),
        model=identity.model,
        served_model_name=identity.served_model,
        gpu_product=identity.gpu_product,
        gpus_per_pod=identity.gpus,
        fingerprint=identity.fingerprint,
        template_hash=podcopy.content_hash(engine),
        image_digest=identity.registry_digest,
    )
    return plan if run.spec.import_from else _with_second_starts(plan, view.places)


def _with_second_starts(plan: CalibrationPlan, places: int) -> CalibrationPlan:
    """The plan with its arms side by side, or in turns, A B C, B A: a machine that drifts is then the same for all of them.

    Side by side needs as many places as arms. Where the loads of an arm cannot be halved, or the budget does not last for so many starts, the arms come one after the other.
    Then no speculation alone starts again, if it judges answers.
    """
    again = [arm.replace(arm=f"{arm.arm}{AGAIN}") for arm in reversed(plan.arms[:-1])]
    ways = [plan.replace(arms=(*plan.arms, *again))]
    firsts = [arm for arm in plan.arms if not arm.scheduled] if places > 1 else []
    if 1 < len(firsts) <= places:
        made = [arm for arm in plan.arms if arm.scheduled]
        seconds = [arm.replace(arm=f"{arm.arm}{AGAIN}") for arm in reversed(firsts)]
        ways.insert(0, plan.replace(arms=(*firsts, *made, *seconds), pods_at_once=len(firsts)))
    for way in ways:
        waiting = CalibrationRunStatus(arm_statuses=tuple(ArmStatus(arm=arm.arm) for arm in way.arms))
        if first_half(plan.loads) < plan.loads and needed_s(waiting, way) <= budget_left_s(way, 0.0, 0.0):
            return way
    return plan.replace(arms=(*plan.arms, *(again[-1:] if plan.answers_seconds else [])))


def wanted_arms(spec: CalibrationRunSpec, service: SpeculativeService) -> tuple[Arm, ...]:
    """The arms to measure, or to import: no speculation first, because nothing can be compared without it.

    Raises:
        podcopy.NotCopyableError: the run names an arm that the service does not have, or imports without no speculation.
    """
    candidates = service.spec.candidates
    known = {arm.name: arm for arm in candidates.measurable_arms()}
    if spec.import_from:
        return _imported_arms(spec, known)
    unknown = [name for name in spec.arms if name not in known]
    if unknown:
        raise podcopy.NotCopyableError(
            ClusterReason.INVALID_SPEC,
            f"spec.arms: {', '.join(unknown)} is no arm of the service; expected some of {', '.join(known)}",
        )
    names = set(spec.arms or known)
    for name in spec.arms:
        made = known[name].scheduled and not known[name].adaptive
        method = candidates.method_of(known[name]) if made else None
        lengths = {arm.name for arm in method.arms()} if method is not None else set()
        # A schedule is made from draft lengths of the same run: without any that is named, from all of its method.
        names |= lengths if not lengths & names else set()
    return (NO_SPECULATION, *(known[name] for name in known if name in names and name != NO_SPECULATION.name))


def _imported_arms(spec: CalibrationRunSpec, known: Mapping[str, Arm]) -> tuple[Arm, ...]:
    named = [one.arm for one in spec.import_from]
    single = [name for name, arm in known.items() if not arm.scheduled]
    problem = None
    if spec.arms:
        problem = "spec.arms beside spec.importFrom; expected one of the two"
    elif NO_SPECULATION.name not in named:
        problem = "spec.importFrom is without none; expected it, because nothing can be compared without it"
    elif unknown := [name for name in named if name not in single]:
        problem = (
            f"spec.importFrom: {', '.join(unknown)} cannot be imported; expected some of {', '.join(single)}"
        )
    if problem is not None:
        raise podcopy.NotCopyableError(ClusterReason.INVALID_SPEC, problem)
    return (
        NO_SPECULATION,
        *(known[name] for name in single if name in named and name != NO_SPECULATION.name),
    )


def _planned(service: SpeculativeService, arm: Arm) -> PlannedArm:
    candidates = service.spec.candidates
    method = candidates.method_of(arm)
    return PlannedArm(
        arm=arm.name,
        method=arm.method,
        k=arm.k,
        candidate=arm.candidate,
        speculative_config=(
            candidates.speculative_config(arm)
            if method is None or arm.adaptive
            else method.speculative_config(arm.k)
        ),
    )


def _expected_rps(service: SpeculativeService) -> tuple[float, ...]:
    """Loads per replica of the last decision: the present load and the highest that is expected again."""
    decision = service.status.decision
    loads = (decision.load_rps, decision.expected_peak_rps) if decision is not None else ()
    return tuple(sorted({rps for rps in loads if rps}))


def trial_limits(
    plan: CalibrationPlan, arms: tuple[ArmStatus, ...], index: int, used_gpu_s: float, elapsed_s: float
) -> TrialLimits:
    """Time for trial number `index`: what its points need, and not more than its share of what is left of the budget.

    Trials share by what they need, so that those after it, second starts included, are measured too. Time that one does not need
    goes to the others.
    """
    over = {one.arm for one in arms if one.over}
    others = (one for at, one in enumerate(plan.arms) if at != index and one.arm not in over)
    to_come = [plan.arms[index], *others]
    point_s = plan.point_seconds + plan.warmup_seconds + _POINT_OVERHEAD_S
    points_s = [(plan.points_of(one, arms) + _SPARE_POINTS) * point_s for one in to_come]
    answers_s = [_answers_s(plan, one) for one in to_come]
    left_s = budget_left_s(plan, used_gpu_s, elapsed_s)
    share = (left_s - len(to_come) * mean_start_s(arms)) / (sum(points_s) + sum(answers_s))
    sweep_s = max(1, round(min(1.0, share) * points_s[0]))
    active_s = min(
        plan.pending_deadline_seconds + plan.startup_deadline_seconds + sweep_s + answers_s[0] + _STOPPING_S,
        # The budget counts from the moment the pod holds its GPUs, which the Job's own clock does not know.
        plan.pending_deadline_seconds + round(left_s) + _STOPPING_S,
    )
    return TrialLimits(sweep_s, max(1, active_s), halved=plan.halves(to_come[0], arms))


def needed_s(
    status: CalibrationRunStatus,
    plan: CalibrationPlan,
    now: datetime | None = None,
    trials: Container[str | None] | None = None,
) -> float:
    """Seconds that these trials still need, with all of the time that answers may take; None stands for all trials."""
    over = {one.arm for one in status.arm_statuses if one.over}
    answers_s = sum(
        _answers_s(plan, one)
        for one in plan.arms
        if one.arm not in over and (trials is None or one.arm in trials)
    )
    return to_come_s(status, plan, now, trials) + answers_s


def _answers_s(plan: CalibrationPlan, arm: PlannedArm) -> int:
    """Time for answers in a trial: its own in a first start, answers of all arms if it judges them."""
    judged = sum(not one.second_start for one in plan.arms) if arm.arm == plan.judge else 0
    return (plan.answers_seconds or 0) * (judged if arm.second_start else 1)


def budget_left_s(plan: CalibrationPlan, used_gpu_s: float, elapsed_s: float) -> float:
    """Seconds of one pod for which the budget lasts; below 0 once it is overdrawn."""
    gpus = max(1, plan.gpus_per_pod)
    return min(
        (plan.budget.max_gpu_seconds - used_gpu_s) / gpus, plan.budget.max_duration_seconds - elapsed_s
    )
