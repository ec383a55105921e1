"""Fit a set of points into a profile: every arm, every method, and what a reader must be warned of."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import replace

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError
from breakeven.fitting.arms import fit_arm
from breakeven.fitting.fit_warnings import arm_warnings, rows_left_out, warnings_of
from breakeven.fitting.law_findings import held_over_starts, judged
from breakeven.fitting.law_of_points import at_mean_acceptance, law_of_points
from breakeven.fitting.observations import ramp_share_of
from breakeven.fitting.pooled import family_of
from breakeven.points.point import LoadMode, Origin, Point
from breakeven.profile.document import Profile
from breakeven.profile.fits import ArmFit
from breakeven.readers.reading import one_setting

_FITTED_AGAIN = "written by an older version: its law was fitted again to the rows that it holds"

_PROVENANCE = ("model", "gpu", "workload", "engine_version")


def fit_points(
    points: Sequence[Point],
    confidence: float = 0.9,
    provenance: Mapping[str, str] | None = None,
) -> Profile:
    """Fit all points of one workload, GPU and model.

    Args:
        points: rows, of any number of arms.
        confidence: two-sided level of all bounds.
        provenance: added to what the points say themselves (model, gpu, workload, engine version, files, time).

    Raises:
        InputError: no point, or points of more than one setting.
    """
    if not points:
        raise InputError("points", "none", "at least one measured operating point")
    one_setting(points)
    share = ramp_share_of(points)
    arms = [*_arms(points), *schedules_of(points)]
    fits = _in_order(
        [fit_arm(arm, [one for one in points if one.arm == arm], share, confidence) for arm in arms]
    )
    families = tuple(
        found for family in _families(fits) if (found := family_of(family, fits, points, share)) is not None
    )
    steps = law_of_points(points, fits, families, share)
    if steps is not None:
        fits = tuple(at_mean_acceptance(fit, points, steps, share, confidence) for fit in fits)
    profile = held_over_starts(judged(Profile(confidence, fits, families, steps)), arms)
    of_starts = steps.start_findings if steps is not None else ()
    warnings = [
        *warnings_of(profile.arms, profile.pooled, points, share),
        *(f"{one.sentence} ({one.reason})" for one in of_starts),
    ]
    return replace(
        profile, warnings=tuple(warnings), provenance={**_provenance(points), **(provenance or {})}
    )


def with_law(profile: Profile, where: str = "profile") -> Profile:
    """The profile with a law of steps: that of an older version is fitted again, to the rows it holds.

    Args:
        profile: of any version.
        where: name of its file, for messages.

    Raises:
        InputError: the rows do not determine a law.
    """
    if profile.steps is not None:
        return profile
    if left_out := rows_left_out(profile.arms):
        raise InputError(where, f"no row of it is usable ({left_out})", "rows of a steady state")
    points = points_of(profile)
    share = ramp_share_of(points)
    steps = law_of_points(points, profile.arms, profile.pooled, share)
    if steps is None:
        why = ", ".join(f"{fit.arm}: {fit.reason}" for fit in profile.arms)
        raise InputError(
            where, f"its rows determine no law of steps ({why})", "a profile of more or better rows"
        )
    found = judged(replace(profile, steps=steps, warnings=(*profile.warnings, _FITTED_AGAIN)))
    return held_over_starts(found, [fit.arm for fit in found.arms])


def with_schedule(profile: Profile, points: Sequence[Point]) -> Profile:
    """The profile with one schedule more, which was measured after the arms in it.

    Args:
        profile: of all arms but the schedule. A schedule of the same family in it is replaced.
        points: of one schedule.

    Raises:
        InputError: no point, points of another arm, or of more than one setting.
    """
    scheduled = schedules_of(points)
    if len(scheduled) != 1 or any(one.arm != scheduled[0] for one in points):
        raise InputError("points", "not those of one schedule", "at least one, all of one arm")
    one_setting(points)
    arm, share = scheduled[0], ramp_share_of(points)
    kept = [one for one in profile.arms if one.arm.name != arm.name]
    fits = _in_order([*kept, fit_arm(arm, points, share, profile.confidence)])
    rows = [*(one for one in points_of(profile) if one.arm.name != arm.name), *points]
    found = judged(replace(profile, arms=fits, steps=law_of_points(rows, fits, profile.pooled, share)))
    found = held_over_starts(found, [arm])
    warnings = (*profile.warnings, *arm_warnings(found.arm(arm), share))
    return replace(found, warnings=warnings)


def points_of(profile: Profile) -> list[Point]:
    """The rows that a profile holds, as points; what a row does not say is that of its arm.

    They count as rows of a window: they were judged when they were measured, and their latency may have been moved since.
    """
    return [
        Point(
            method=fit.method,
            k=fit.k,
            candidate=fit.candidate,
            schedule=fit.schedule,
            load_mode=LoadMode(row.mode),
            mean_latency_s=row.latency_s,
            origin=Origin(row.source, row.row),
            concurrency=row.concurrency,
            request_rate_rps=None if row.mode == "closed" else row.rps,
            mean_inflight=row.others if row.mode == "constant" else row.inflight,
            window_s=0.0,
            achieved_rps=row.rps,
            prompt_tokens=row.prompt_tokens or fit.lengths.prompt_tokens,
            output_tokens=row.output_tokens or fit.lengths.output_tokens,
            output_tokens_sq=fit.lengths.output_tokens_sq,
            tokens_per_step=row.tokens_per_step or (fit.tokens_per_step if fit.k else None),
            drafted_per_step=fit.acceptance.drafted_per_step if fit.acceptance else None,
            ttft_mean_s=None if fit.ttft is None else fit.ttft.among(row.others),
        )
        for fit in profile.arms
        for row in (*fit.measurements, *fit.other_lengths)
    ]


def schedules_of(points: Sequence[Point]) -> list[Arm]:
    """Every arm whose draft length follows the batch size, by family.

    Raises:
        InputError: two schedules of one family, which the arm's name does not distinguish.
    """
    found: dict[Arm, str] = {}
    for one in points:
        if one.schedule is None:
            continue
        known = found.setdefault(one.arm, one.schedule)
        if known != one.schedule:
            raise InputError(
                f"{one.origin.source}: schedule of {one.arm}",
                f"{known!r} and {one.schedule!r}",
                "one of them",
            )
    return sorted(found, key=lambda arm: (arm.family, arm.adaptive))


def _in_order(fits: Sequence[ArmFit]) -> tuple[ArmFit, ...]:
    """No speculation first, then by family and draft length, each family's schedule and adaptive verification last."""
    return tuple(
        sorted(
            fits,
            key=lambda fit: (
                fit.arm != NO_SPECULATION,
                fit.arm.family,
                fit.arm.scheduled,
                fit.arm.adaptive,
                fit.k,
            ),
        )
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
