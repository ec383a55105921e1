"""Fit a set of points into a profile: every arm, every method, and what a reader must be warned of."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError
from breakeven.fitting.arms import fit_arm
from breakeven.fitting.observations import RAMP_SHARE, observe, ramp_share_of
from breakeven.fitting.one_law import ArmRows, fit_step_law
from breakeven.fitting.pooled import fit_pooled
from breakeven.fitting.schedules import fit_schedule, schedules_of
from breakeven.points.point import Point
from breakeven.profile.document import Profile
from breakeven.profile.fits import ArmFit, PooledFit
from breakeven.profile.step_fit import StepLaw
from breakeven.readers.reading import one_setting
from breakeven.reasons import Reason
from breakeven.tiers import Schedule

_MEANING = {reason.value: reason.meaning for reason in Reason}

_PROVENANCE = ("model", "gpu", "workload", "engine_version")


def fit_points(
    points: Sequence[Point],
    confidence: float = 0.9,
    provenance: Mapping[str, str] | None = None,
    *,
    law: Literal["arms", "steps"] = "arms",
) -> Profile:
    """Fit all points of one workload, GPU and model.

    Args:
        points: rows, of any number of arms.
        confidence: two-sided level of all bounds.
        provenance: added to what the points say themselves (model, gpu, workload, engine version, files, time).
        law: `arms`, one for each arm, or `steps`, one for all of them.

    Raises:
        InputError: no point, or points of more than one setting.
    """
    if not points:
        raise InputError("points", "none", "at least one measured operating point")
    one_setting(points)
    share = ramp_share_of(points)
    scheduled = schedules_of(points)
    fits = tuple(
        fit_arm(arm, [one for one in points if one.arm == arm], share, confidence) for arm in _arms(points)
    )
    pooled = tuple(fit_pooled(family, fits, points, share) for family in _families(fits))
    found = tuple(one for one in pooled if one is not None)
    static = Profile(confidence, fits, found)
    fits += tuple(
        fit_schedule(arm, [one for one in points if one.arm == arm], share, confidence, static)
        for arm in scheduled
    )
    return Profile(
        confidence,
        _in_order(fits),
        found,
        _steps(points, found, share) if law == "steps" else None,
        tuple(_warnings(_in_order(fits), found, points, share)),
        {**_provenance(points), **(provenance or {})},
    )


def _steps(points: Sequence[Point], pooled: Sequence[PooledFit], share: float) -> StepLaw | None:
    """The one law of all arms, of every usable row at whatever lengths."""
    arms = [*_arms(points), *schedules_of(points)]
    rows = [ArmRows(arm, observe([one for one in points if one.arm == arm], share)[0]) for arm in arms]
    acceptance = {one.method: model for one in pooled if (model := one.acceptance) is not None}
    return fit_step_law([one for one in rows if one.rows], acceptance)


def with_schedule(profile: Profile, points: Sequence[Point]) -> Profile:
    """The profile with one schedule more, which was measured after the arms in it.

    Args:
        profile: with the arm of the schedule's last tier. A schedule of the same family in it is replaced.
        points: of one schedule.

    Raises:
        InputError: no point, points of another arm, or of more than one setting.
    """
    scheduled = schedules_of(points)
    if len(scheduled) != 1 or any(one.arm != scheduled[0] for one in points):
        raise InputError("points", "not those of one schedule", "at least one, all of one arm")
    one_setting(points)
    static = replace(profile, arms=tuple(fit for fit in profile.arms if not fit.arm.scheduled))
    fit = fit_schedule(scheduled[0], points, ramp_share_of(points), profile.confidence, static)
    kept = tuple(one for one in profile.arms if one.arm.name != fit.arm.name)
    warnings = (*profile.warnings, *_arm_warnings(fit, ramp_share_of(points)))
    return replace(profile, arms=_in_order((*kept, fit)), warnings=warnings)


def _in_order(fits: Sequence[ArmFit]) -> tuple[ArmFit, ...]:
    """No speculation first, then by family and draft length, each family's schedule last."""
    return tuple(
        sorted(fits, key=lambda fit: (fit.arm != NO_SPECULATION, fit.arm.family, fit.arm.scheduled, fit.k))
    )


def _arms(points: Sequence[Point]) -> list[Arm]:
    """Every arm with one draft length: no speculation first, then by family and draft length."""
    arms = {one.arm for one in points if one.schedule is None}
    return sorted(arms, key=lambda arm: (arm != NO_SPECULATION, arm.family, arm.k))


def _families(fits: Sequence[ArmFit]) -> list[str]:
    return list(dict.fromkeys(fit.arm.family for fit in fits if fit.k > 0))


def _provenance(points: Sequence[Point]) -> dict[str, str]:
    found = {"created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds")}
    found["files"] = " ".join(dict.fromkeys(one.origin.source for one in points))
    for column in _PROVENANCE:
        values = list(dict.fromkeys(value for one in points if (value := one.text(column)) is not None))
        if values:
            found[column] = ", ".join(values)
    return found


def _warnings(
    fits: Sequence[ArmFit], pooled: Sequence[PooledFit], points: Sequence[Point], share: float
) -> Iterator[str]:
    for fit in fits:
        yield from _arm_warnings(fit, share)
    if not any(fit.k == 0 for fit in fits):
        yield "no row of method none: nothing says what the engine does without speculation, so no arm has a speedup"
    elif len(fits) == 1:
        yield "only method none was measured: there is nothing to compare it with"
    repeated = len(points) - len({repr(replace(one, origin=points[0].origin)) for one in points})
    if repeated:
        noun = "row repeats" if repeated == 1 else "rows repeat"
        yield f"{repeated} {noun} another one in every figure: a measurement given twice counts as two"
    yield from _engine_warnings(points)
    for one in pooled:
        if one.unidentified and set(one.unidentified) - {"c1p", "c2p"}:
            lengths = ", ".join(str(k) for k in one.draft_lengths)
            yield (
                f"{one.method}: draft lengths {lengths} do not determine {', '.join(one.unidentified)}; "
                "measure another draft length before trusting predictions of others"
            )


def _engine_warnings(points: Sequence[Point]) -> Iterator[str]:
    """What may have been two engines: the rest is refused (`reading.one_setting`)."""
    several = {"engine_version": "engine versions", "target": "addresses", "endpoint": "kinds of request"}
    for column, noun in several.items():
        values = sorted({value for one in points if (value := one.text(column)) is not None})
        if len(values) > 1:
            yield f"rows of {len(values)} {noun} ({', '.join(values)}) were fitted together"
    together = sorted({count for one in points if (count := one.text("replicas")) is not None})
    if together:
        counts = ", ".join(together)
        yield f"rows of {counts} replicas together: rates and requests in flight are of all, not of one engine"
    foreign = [one for one in points if one.origin.tool]
    named = ("engine", "engine_version", "target")
    if len(foreign) > 1 and not any(one.text(column) for one in foreign for column in named):
        yield "no file names the engine: nothing shows whether all runs were measured on one"


def _places(fit: ArmFit, reason: str) -> str:
    """The rows that were left out for a reason; by their files, where the arm was measured in several."""
    of_file = Counter([*(one.source for one in fit.measurements), *(one.source for one in fit.excluded)])
    places = []
    for source, count in of_file.items():
        rows = [str(one.row) for one in fit.excluded if (one.reason, one.source) == (reason, source)]
        numbers = f"{'row' if len(rows) == 1 else 'rows'} {', '.join(rows)}"
        if len(of_file) == 1:
            return numbers
        if rows:
            places.append(source if count == 1 else f"{source} {numbers}")
    return ", ".join(places)


def _schedule_warnings(fit: ArmFit, text: str) -> Iterator[str]:
    table = Schedule.parse(text, str(fit.arm))
    last = f"k = {table.last}" if table.last else "no speculation"
    if fit.fit is None:
        return
    if fit.beyond is None:
        yield f"{fit.arm} ({text}): nothing says what it does beyond its points: {last}, its last tier, was not measured"
        return
    first = table.tiers[-1][0]
    reached = any(one.inflight >= first for one in fit.measurements)
    told = "" if reached else f", which its points do not reach (batches of {first} and more)"
    yield f"{fit.arm} ({text}): follows its points, and beyond them the law of {last}, its last tier{told}"


def _arm_warnings(fit: ArmFit, share: float) -> Iterator[str]:
    if not fit.believable:
        yield f"{fit.arm}: not to be believed ({fit.reason}): {_MEANING[fit.reason]}"
    if fit.schedule is not None:
        yield from _schedule_warnings(fit, fit.schedule)
    elif fit.experts is not None and fit.bend is not None:
        unlike = (
            ""
            if fit.experts.law.is_unique
            else "; at some rates it has two steady states, and a queue may outlast a peak"
        )
        yield (
            f"{fit.arm}: the law bends at {fit.bend.others:.3g} others in flight (residual {fit.bend.residual:+.1%}) as a mixture "
            f"of experts does: predictions use that law, which misses left-out loads by {fit.experts.error:.1%}{unlike}"
        )
    elif fit.bend is not None:
        yield (
            f"{fit.arm}: the law bends at {fit.bend.others:.3g} others in flight (residual {fit.bend.residual:+.1%}): "
            "predictions inside the measured range use the points"
        )
    for reason in dict.fromkeys(row.reason for row in fit.excluded):
        yield f"{fit.arm}: {_places(fit, reason)} left out ({reason}): {_MEANING[reason]}"
    constant = [one for one in fit.measurements if one.mode == "constant"]
    alike = sum(one.others == one.inflight for one in constant)
    if constant:
        yield (
            f"{fit.arm}: {len(constant)} of {fit.points} rows had arrivals at a constant rate, which meet up to one other "
            "less than Poisson arrivals do; "
            + (
                f"{alike} without output_tokens_sq are taken for Poisson"
                if alike
                else "that is taken into account"
            )
        )
    assumed = sum(one.inflight_assumed for one in fit.measurements)
    if assumed:
        how = "assumed" if share == RAMP_SHARE else "learned from the other rows"
        yield (
            f"{fit.arm}: {assumed} of {fit.points} closed-loop rows are short and without mean_inflight "
            f"({Reason.INFLIGHT_UNKNOWN}); ramp and drain are {how} (rho {share:.2f})"
        )
    if fit.measured_saturation_rps is not None and fit.c2_s and fit.measured_saturation_rps < 0.98 / fit.c2_s:
        yield (
            f"{fit.arm}: saturated at {fit.measured_saturation_rps:.3g} rps when measured; "
            f"the law alone would promise {1.0 / fit.c2_s:.3g} rps"
        )
