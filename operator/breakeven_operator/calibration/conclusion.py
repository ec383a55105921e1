"""From the fit to a profile: the gate, and the SpeculationProfile for readers and for the operator itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from pydantic import ValidationError

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.estimate import Estimate
from breakeven.phrases import counted, percent, spoken
from breakeven.profile import ArmFit, Comparison, Profile
from breakeven.profile.document import HIDDEN_PROMPTS
from breakeven.reasons import Reason
from breakeven_operator.actions import Action, Create, EmitEvent, FitOutcome, WriteStatus
from breakeven_operator.calibration.transition import RunView, Transition
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import PROFILES, RUN_LABEL, SERVICE_LABEL, Ref, new_object
from breakeven_operator.outcome.formatting import break_even
from breakeven_operator.resources.calibrationrun import (
    ArmAnswers,
    ArmPhase,
    CalibrationPlan,
    CalibrationRun,
    RunPhase,
    read_run,
)
from breakeven_operator.resources.decisionstatus import PaysWhereStatus
from breakeven_operator.resources.figures import bounded
from breakeven_operator.resources.meta import ObjectReference, ServiceReference
from breakeven_operator.resources.speculationprofile import (
    ProfileArm,
    ProfileDisplay,
    SpeculationProfileSpec,
    SpeculationProfileStatus,
)
from breakeven_operator.step import ProfileEntry


def conclude(view: RunView, outcome: FitOutcome, now: datetime) -> tuple[Action, ...]:
    """Actions after the fit: a profile is written, or the run fails with the reason why none is.

    A profile needs points of no speculation and of at least one speculative arm. Arms without a point stay in it with the
    reason, so that nobody looks for them in vain.

    Raises:
        InputError: the run cannot be read.
    """
    run = read_run(view.run)
    transition = Transition(view, run, now)
    plan = run.status.plan
    if plan is None or run.status.phase is None or run.status.ended or view.service is None:
        return ()
    if outcome.profile_json is None:
        return transition.finish(
            RunPhase.FAILED, ClusterReason.FIT_REJECTED, outcome.error or "the fit gave no reason"
        )
    try:
        profile = Profile.from_json(outcome.profile_json, f"fit of {run.metadata.name}")
    except BreakevenError as error:
        return transition.finish(RunPhase.FAILED, ClusterReason.FIT_REJECTED, str(error))
    if words := {one.arm: one.word for one in run.status.answers}:
        # The word about each arm's answers goes where the profile goes.
        fits = (replace(fit, answers=words.get(fit.arm.name)) for fit in profile.arms)
        profile = replace(profile, arms=tuple(fits))
    measured = [fit for fit in profile.arms if fit.points]
    if len(measured) < 2 or all(fit.k for fit in measured):
        return transition.finish(RunPhase.FAILED, ClusterReason.FIT_REJECTED, complaints(profile.arms))
    try:
        return _succeeded(transition, plan, profile, measured, outcome.profile_json)
    except ValidationError as error:
        field, said = error.errors()[0]["loc"], error.errors()[0]["msg"]
        message = f"the profile cannot be stored: {'.'.join(map(str, field))}: {said}"
        return transition.finish(RunPhase.FAILED, ClusterReason.CALIBRATION_FAILED, message)


def carried_profile(
    transition: Transition, former: ProfileEntry, fingerprint: str, image: str
) -> tuple[Action, ...]:
    """A profile of before as one of another image, which a gate has found no worse; its age stays."""
    profile, run = former.profile, transition.run
    if profile is None:
        return ()
    fits = [fit for fit in profile.arms if fit.points]
    compared = {fit.arm: _comparison(profile, fit) for fit in fits}
    spec = SpeculationProfileSpec(
        service_ref=ServiceReference(name=run.spec.service_ref.name),
        gpu_product=former.gpu_product,
        model=former.model,
        image=image,
        fingerprint=fingerprint,
        created_time=former.created,
        arms=(
            *(_readable(fit, compared[fit.arm], former.drafters.get(fit.arm.name)) for fit in fits),
            *(ProfileArm(arm=arm, points=0, reason=why) for arm, why in former.failed.items()),
        ),
        profile=json.dumps(json.loads(profile.to_json(), parse_float=_short), separators=(",", ":")),
    )
    worst = max((fit.max_relative_error or 0.0 for fit in fits), default=0.0)
    shown = ProfileDisplay(worst=percent(worst), break_even=best_break_even(compared))
    status = SpeculationProfileStatus(worst_error_percent=100 * worst, display=shown)
    labels = {SERVICE_LABEL: run.spec.service_ref.name, RUN_LABEL: run.metadata.name}
    meta = run.metadata
    return (
        Create(PROFILES, new_object(PROFILES, meta.name, meta.namespace, labels, spec=spec.to_json_object())),
        WriteStatus(Ref(PROFILES, meta.namespace, meta.name), status.to_json_object()),
    )


def not_concluded(view: RunView, now: datetime) -> tuple[Action, ...]:
    """The end of a run whose fit led to a defect of this operator. Left as it is, it would be fitted in each cycle.

    Raises:
        InputError: the run cannot be read.
    """
    message = "a defect of breakeven: the operator's log has it"
    return Transition(view, read_run(view.run), now).finish(
        RunPhase.FAILED, ClusterReason.CALIBRATION_FAILED, message
    )


def _succeeded(
    transition: Transition,
    plan: CalibrationPlan,
    profile: Profile,
    good: Sequence[ArmFit],
    fitted_json: str,
) -> tuple[Action, ...]:
    run, compared = transition.run, {fit.arm: _comparison(profile, fit) for fit in good}
    best, missing = best_break_even(compared), _missing(run, plan, good)
    points = sum(fit.points for fit in good)
    worst = max((fit.max_relative_error or 0.0 for fit in good), default=0.0)
    message = f"{counted(len(good), 'arm')}, {counted(points, 'point')}, worst residual {percent(worst)}"
    if missing:
        message += f"; without {', '.join(f'{arm.arm} ({arm.reason})' for arm in missing)}"
    if HIDDEN_PROMPTS in profile.warnings:
        message += f"; {HIDDEN_PROMPTS}"
    drafters = {arm.arm: arm.drafter for arm in plan.arms}
    readable = (*(_readable(fit, compared[fit.arm], drafters.get(fit.arm.name)) for fit in good), *missing)
    text = profile.to_json() if run.status.answers else fitted_json
    return (
        *_answer_events(transition, run.status.answers),
        *_start_events(transition, profile),
        Create(PROFILES, _profile_object(transition, plan, readable, text)),
        WriteStatus(
            Ref(PROFILES, run.metadata.namespace, run.metadata.name),
            SpeculationProfileStatus(
                worst_error_percent=100 * worst,
                display=ProfileDisplay(worst=percent(worst), break_even=best),
            ).to_json_object(),
        ),
        *transition.finish(
            RunPhase.SUCCEEDED,
            ClusterReason.CALIBRATION_SUCCEEDED,
            message,
            {"profile_ref": ObjectReference(name=run.metadata.name)},
            break_even=best,
        ),
    )


def _answer_events(transition: Transition, answers: Iterable[ArmAnswers]) -> tuple[Action, ...]:
    bad = {Reason.ANSWERS_DIFFER, Reason.ANSWERS_BROKEN}
    return tuple(
        EmitEvent(transition.ref, one.word, f"{one.arm}: {one.message}"[:1024], warning=True)
        for one in answers
        if one.word in bad
    )


def _start_events(transition: Transition, profile: Profile) -> tuple[Action, ...]:
    """The events about arms whose starts significantly differ, or whose machine drifted while they were measured."""
    found = profile.steps.start_findings if profile.steps is not None else ()
    return tuple(
        EmitEvent(
            transition.ref,
            str(one.reason),
            f"{one.sentence}; the bounds of all arms hold it"[:1024],
            warning=True,
        )
        for one in found
    )


def _missing(run: CalibrationRun, plan: CalibrationPlan, good: Iterable[ArmFit]) -> tuple[ProfileArm, ...]:
    """Arms without a point to fit; if the profile lacked them they would be tried again and again."""
    fitted = {fit.arm.name for fit in good}
    statuses = {arm.arm: arm for arm in run.status.arm_statuses}

    def broken(name: str) -> bool:
        return name in statuses and statuses[name].phase in {ArmPhase.FAILED, ArmPhase.SKIPPED}

    return tuple(
        ProfileArm(
            arm=arm.arm,
            schedule=statuses[arm.arm].schedule if arm.arm in statuses else None,
            drafter=arm.drafter,
            points=0,
            reason=statuses[arm.arm].reason if broken(arm.arm) else Reason.TOO_FEW_POINTS,
        )
        for arm in plan.arms
        if arm.arm not in fitted and not arm.second_start
    )


def _short(figure: str) -> float:
    """A figure with ten digits: all seventeen of 43 arms at 20 loads are longer than an object may be."""
    return float(f"{float(figure):.10g}")


def _profile_object(
    transition: Transition, plan: CalibrationPlan, arms: tuple[ProfileArm, ...], text: str
) -> dict[str, object]:
    """The SpeculationProfile; named after its run, so that a cycle repeated after a crash makes it once."""
    run = transition.run

    points = [point.time for point in run.status.points if point.time is not None]
    spec = SpeculationProfileSpec(
        service_ref=ServiceReference(name=run.spec.service_ref.name),
        gpu_product=plan.gpu_product,
        model=plan.model,
        image=plan.image,
        fingerprint=plan.fingerprint,
        created_time=max(points, default=transition.now),
        arms=arms,
        profile=json.dumps(json.loads(text, parse_float=_short), separators=(",", ":")),
    )
    labels = {SERVICE_LABEL: run.spec.service_ref.name, RUN_LABEL: run.metadata.name}
    # The profile has no owner: its fingerprint makes it valid, so that a service that is made again finds it.
    return new_object(PROFILES, run.metadata.name, run.metadata.namespace, labels, spec=spec.to_json_object())


def _comparison(profile: Profile, fit: ArmFit) -> Comparison | None:
    """Of an arm against no speculation; None for that arm itself, and if either has no law."""
    if fit.k == 0 or fit.c1_s is None:
        return None
    try:
        return profile.compare(fit.arm, NO_SPECULATION, rps=0.0)
    except BreakevenError:
        return None


def _readable(fit: ArmFit, comparison: Comparison | None, drafter: str | None) -> ProfileArm:
    """The arm as the SpeculationProfile shows it."""
    compared: dict[str, object] = {}
    if comparison is not None:
        edge = Estimate.of(comparison.break_even_rps, comparison.break_even_ci_rps)
        verdict = PaysWhereStatus(str(comparison.verdict).capitalize())
        compared = {"verdict": verdict, **bounded("break_even_rps", edge)}
    return ProfileArm(
        arm=fit.arm.name,
        schedule=fit.schedule,
        drafter=drafter,
        saturation_rps=fit.saturation_rps,
        points=fit.points,
        answers=fit.answers,
        **compared,
    )


def best_break_even(compared: Mapping[Arm, Comparison | None]) -> str | None:
    """`8.7 [8.1,9.4] rps` of the speculative arm that pays up to the highest load, or its verdict; of several it names the arm."""
    found = {arm: one for arm, one in compared.items() if arm.k}

    def reach(arm: Arm) -> tuple[bool, float]:
        one = found[arm]
        if one is None:
            return False, -1.0
        return str(one.verdict) == "always", one.break_even_rps or 0.0

    best = max(found, key=reach, default=None)
    if best is None or found[best] is None:
        return None
    return break_even(found[best], bounded=True, of=best if len(found) > 1 else None)


def complaints(fits: Sequence[ArmFit]) -> str:
    """Whose points are missing, and why all points of an arm without a usable one were left out."""
    lacking = "no speculation" if all(fit.k for fit in fits if fit.points) else "speculation"
    said = "".join(
        f"; {spoken(fit.arm)}: {', '.join(dict.fromkeys(row.reason for row in fit.excluded))}"
        for fit in fits
        if not fit.points
    )
    return f"no usable point of {lacking}{said}"
