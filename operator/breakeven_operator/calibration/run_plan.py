"""The plan of a run, fixed at its start: arms, loads, lengths, deadlines, and the pod template that is copied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import ValidationError

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.intake import wrong_field
from breakeven.load_driver.design import LOADS_AGAIN
from breakeven_operator.calibration import podcopy
from breakeven_operator.calibration.jobs import TrialLimits
from breakeven_operator.calibration.run_view import RunView
from breakeven_operator.calibration.sending import NOTHING_SENT, planned_workload
from breakeven_operator.calibration.transition import mean_start_s
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.target import refuse_transfer
from breakeven_operator.resources.base import JUDGE, WINNER_AGAIN
from breakeven_operator.resources.calibrationrun import (
    ArmStatus,
    CalibrationPlan,
    CalibrationRun,
    CalibrationRunSpec,
    PlannedArm,
)
from breakeven_operator.resources.speculativeservice import SpeculativeService

# A point waits for its last answers beside its window and warm-up, and some points are measured twice.
_POINT_OVERHEAD_S = 60
_SPARE_POINTS = 3
_STOPPING_S = 60
_JUDGE = PlannedArm(arm=JUDGE, method="none", k=0, speculative_config="null")
# Which arm it is, the run's status says once the arms before it are measured.
_WINNER_AGAIN = _JUDGE.replace(arm=WINNER_AGAIN)


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
    workload = planned_workload(view, service) if not run.spec.import_from else NOTHING_SENT
    answers_s = calibration.answers.seconds if not run.spec.import_from else None
    return CalibrationPlan(
        arms=(
            *(_planned(service, arm) for arm in wanted_arms(run.spec, service)),
            # The winner comes last: a word about its answers may keep an arm from being entered.
            *([_JUDGE, _WINNER_AGAIN] if answers_s else []),
        ),
        loads=calibration.loads,
        load_choice=calibration.load_choice,
        expected_rps=_expected_rps(service),
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        workload=workload.document,
        point_seconds=calibration.point_seconds,
        warmup_seconds=calibration.warmup_seconds,
        startup_deadline_seconds=calibration.startup_deadline_seconds,
        pending_deadline_seconds=calibration.pending_deadline_seconds,
        answers_seconds=answers_s,
        answers_output_tokens=calibration.answers.output_tokens if answers_s else None,
        budget=(run.spec.budget or calibration.budget).within(view.settings.longest_s),
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
    """Time for arm number `index`: what its points need, and not more than its share of what is left of the budget.

    The share leaves the arms after it enough to be measured too; time that an arm does not need goes to the others.
    """
    present, left_s = plan.arms[index], budget_left_s(plan, used_gpu_s, elapsed_s)
    answers_s = plan.answers_seconds or 0
    judgement_s = answers_s * sum(not arm.second_start for arm in plan.arms)
    to_come = sum(not arm.second_start for arm in plan.arms[index:])
    point_s = _point_s(plan)
    # The judge needs no share of an arm's size: it measures a few loads. For the winner's second start nothing is kept: a
    # first look at an arm is worth more.
    judge_s = judgement_s + second_start_s(plan, arms) if answers_s and to_come else 0.0
    kept_s = min(judge_s, max(0.0, left_s) / (to_come + 1))
    share_s = max(0.0, left_s - kept_s) / max(1, to_come)
    needed_s = (plan.points_of(present) + _SPARE_POINTS) * point_s
    beside_s = judgement_s if present.judges else 0 if present.wins_again else answers_s
    sweep_s = max(1, round(min(needed_s, share_s - mean_start_s(arms) - beside_s)))
    active_s = min(
        plan.pending_deadline_seconds + plan.startup_deadline_seconds + sweep_s + beside_s + _STOPPING_S,
        # The budget counts from the moment the pod holds its GPUs, which the Job's own clock does not know.
        plan.pending_deadline_seconds + round(left_s) + _STOPPING_S,
    )
    return TrialLimits(sweep_s=sweep_s, active_s=max(1, active_s))


def budget_left_s(plan: CalibrationPlan, used_gpu_s: float, elapsed_s: float) -> float:
    """Seconds of one pod for which the budget lasts; below 0 once it is overdrawn."""
    gpus = max(1, plan.gpus_per_pod)
    return min(
        (plan.budget.max_gpu_seconds - used_gpu_s) / gpus, plan.budget.max_duration_seconds - elapsed_s
    )


def second_start_s(plan: CalibrationPlan, arms: Iterable[ArmStatus]) -> float:
    """Seconds that a second start of an arm takes: the engine's mean start so far, and a few loads."""
    return mean_start_s(arms) + LOADS_AGAIN * _point_s(plan)


def _point_s(plan: CalibrationPlan) -> float:
    return plan.point_seconds + plan.warmup_seconds + _POINT_OVERHEAD_S
