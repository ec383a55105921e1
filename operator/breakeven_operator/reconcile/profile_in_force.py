"""The profile in force: the newest one that was measured on what the target is now, and why it is, or why none is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from breakeven.phrases import counted, figure
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.calibration_state import Doubt, ProfileEntry
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.answerstatus import AnswersInForce
from breakeven_operator.resources.calibrationrun import Trigger
from breakeven_operator.resources.candidates import Candidates
from breakeven_operator.workloads.fingerprint import Identity


class InForce(NamedTuple):
    """The profile in force, why it is or none is, what to measure for (None: nothing), and whether all doubt is gone."""

    entry: ProfileEntry | None
    reason: ClusterReason
    message: str
    trigger: Trigger | None
    dispelled: bool = False


def find_in_force(
    service: SpeculativeService,
    identity: Identity | None,
    profiles: Sequence[ProfileEntry],
    failures: int,
    now: datetime,
    doubt: Callable[[ProfileEntry], Doubt] | None,
) -> InForce:
    """The newest profile of what the target is now, unless it has expired or cannot be read.

    Args:
        service: whose it is.
        identity: of the target; None while no pod serves.
        profiles: of the service, in any order.
        failures: runs in a row that have failed.
        now: time of the observation.
        doubt: gives the reason of live traffic to measure a profile again; None: it is not asked.
    """
    newest = sorted(profiles, key=lambda entry: (entry.created, entry.name), reverse=True)
    own = [entry for entry in newest if identity is not None and identity.has(entry.fingerprint)]
    if not own:
        return _none_fits(newest, identity, failures)
    entry = own[0]
    if entry.profile is None:
        return InForce(
            None,
            ClusterReason.PROFILE_UNREADABLE,
            f"{entry.name}: {entry.problem}",
            Trigger.PROFILE_UNREADABLE,
        )
    age_s = (now - entry.created).total_seconds()
    limit_s = service.spec.calibration.profile_max_age_seconds
    if age_s > limit_s:
        return InForce(
            None,
            ClusterReason.PROFILE_EXPIRED,
            f"{entry.name} is {age_s / 86400:.1f} days old (allowed: {figure(limit_s / 86400)})",
            Trigger.PROFILE_EXPIRED,
        )
    # An arm with another drafter was not measured, whatever the old one was measured to do under its name.
    measured = entry.arms - service.spec.candidates.replaced(entry.drafters)
    missing = sorted({arm.name for arm in service.spec.candidates.arms()} - measured)
    if missing:
        return InForce(
            entry,
            ClusterReason.CANDIDATES_CHANGED,
            f"{entry.name} is in force without {', '.join(missing)}, not yet measured",
            Trigger.CANDIDATES_CHANGED,
        )
    doubted = doubt(entry) if doubt is not None else Doubt()
    message = f"{_summary(entry)}{_later(service, entry)}{f'; to be measured again ({doubted.trigger})' if doubted.trigger else ''}"
    return InForce(entry, ClusterReason.PROFILE_IN_FORCE, message, doubted.trigger, doubted.dispelled)


def _none_fits(newest: Sequence[ProfileEntry], identity: Identity | None, failures: int) -> InForce:
    """The word for a target that none of the profiles (newest first) was measured on."""
    if not newest:
        message = "no calibration has succeeded yet" if failures else "the arms were never measured"
        return InForce(None, ClusterReason.NO_PROFILE, message, Trigger.INITIAL)
    if identity is None:
        return InForce(None, ClusterReason.NO_POD_SERVES, "no serving pod tells which profile counts", None)
    if identity.gpu_product is None:
        return InForce(
            None,
            ClusterReason.GPU_CLASS_UNKNOWN,
            "the nodes of the pods carry no GPU product label, so no profile counts for them: label the nodes (GPU Feature Discovery)",
            None,
        )
    return InForce(
        None,
        ClusterReason.FINGERPRINT_CHANGED,
        (
            f"{newest[0].name} was measured on {newest[0].fingerprint}, the target is {identity.fingerprint} "
            "(image, model, arguments, GPU class or parallelism differ)"
        ),
        Trigger.FINGERPRINT_CHANGED,
    )


def _later(service: SpeculativeService, entry: ProfileEntry) -> str:
    """Schedules that the profile in force lacks; because its other arms stand, they are not measured again."""
    wanted = [arm.name for arm in service.spec.candidates.measurable_arms() if arm.scheduled]
    missing = [name for name in wanted if name not in entry.arms]
    return f"; {', '.join(missing)} is measured with the next calibration" if missing else ""


def _summary(entry: ProfileEntry) -> str:
    """`chat-p1: 3 arms, 21 points, worst residual 4.1 %, measured on NVIDIA-A100-SXM4-80GB, without ...`."""
    fits = [fit for fit in entry.profile.arms if fit.believable] if entry.profile is not None else []
    worst = max((fit.max_relative_error or 0.0 for fit in fits), default=0.0)
    points = sum(fit.points for fit in fits)
    failed = ", ".join(f"{name} ({reason})" for name, reason in entry.failed)
    return (
        f"{entry.name}: {counted(len(fits), 'arm')}, {counted(points, 'point')}, worst residual {100 * worst:.1f} %, measured on "
        f"{entry.gpu_product}{f', without {failed}' if failed else ''}"
    )


def former_of(profiles: Sequence[ProfileEntry], identity: Identity | None) -> ProfileEntry | None:
    """The newest profile of what the target was before it changed; None without one of its model and GPU class.

    Other flags, another version of the engine or an old age move its figures by less than an overload costs.
    """
    if identity is None:
        return None
    alike = (
        one
        for one in profiles
        if one.profile is not None
        and identity.gpu_product in {None, one.gpu_product}
        and one.model in {None, identity.model}
    )
    return max(alike, key=lambda entry: (entry.created, entry.name), default=None)


def answers_in_force(candidates: Candidates, entry: ProfileEntry | None) -> tuple[AnswersInForce, ...]:
    """Words about the answers of each arm that was tested with the drafter that it has now, for the status."""
    if entry is None or entry.profile is None:
        return ()
    replaced = candidates.replaced(entry.drafters)
    return tuple(
        AnswersInForce(arm=fit.arm.name, word=fit.answers)
        for fit in entry.profile.arms
        if fit.answers is not None and fit.arm.name not in replaced
    )
