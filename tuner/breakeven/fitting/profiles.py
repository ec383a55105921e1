"""Fit a set of points into a profile: every arm, every method, and what a reader must be warned of."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError
from breakeven.fitting.arms import fit_arm
from breakeven.fitting.observations import RAMP_SHARE, ramp_share_of
from breakeven.fitting.pooled import fit_pooled
from breakeven.points.point import Point
from breakeven.profile.document import Profile
from breakeven.profile.fits import ArmFit, PooledFit
from breakeven.readers.reading import one_setting
from breakeven.reasons import Reason

_MEANING = {reason.value: reason.meaning for reason in Reason}

_PROVENANCE = ("model", "gpu", "workload", "engine_version")


def fit_points(
    points: Sequence[Point], confidence: float = 0.9, provenance: Mapping[str, str] | None = None
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
    fits = tuple(
        fit_arm(arm, [one for one in points if one.arm == arm], share, confidence) for arm in _arms(points)
    )
    pooled = tuple(fit_pooled(family, fits, points, share) for family in _families(fits))
    found = tuple(one for one in pooled if one is not None)
    return Profile(
        confidence,
        fits,
        found,
        tuple(_warnings(fits, found, points, share)),
        {**_provenance(points), **(provenance or {})},
    )


def _arms(points: Sequence[Point]) -> list[Arm]:
    """Every arm: no speculation first, then by family and draft length."""
    arms = {one.arm for one in points}
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
    versions = {one.engine_version for one in points if one.engine_version is not None}
    if len(versions) > 1:
        yield f"rows of {len(versions)} engine versions ({', '.join(sorted(versions))}) were fitted together"
    for one in pooled:
        if one.unidentified and set(one.unidentified) - {"c1p", "c2p"}:
            lengths = ", ".join(str(k) for k in one.draft_lengths)
            yield (
                f"{one.method}: draft lengths {lengths} do not determine {', '.join(one.unidentified)}; "
                "measure another draft length before trusting predictions of others"
            )


def _arm_warnings(fit: ArmFit, share: float) -> Iterator[str]:
    if not fit.believable:
        yield f"{fit.arm}: not to be believed ({fit.reason}): {_MEANING[fit.reason]}"
    if fit.bend is not None:
        yield (
            f"{fit.arm}: the law bends at {fit.bend.others:.3g} others in flight (residual {fit.bend.residual:+.1%}): "
            "predictions inside the measured range use the points"
        )
    counts: dict[str, int] = {}
    for row in fit.excluded:
        counts[row.reason] = counts.get(row.reason, 0) + 1
    for reason, count in counts.items():
        rows = ", ".join(str(row.row) for row in fit.excluded if row.reason == reason)
        noun = "row" if count == 1 else "rows"
        yield f"{fit.arm}: {noun} {rows} left out ({reason}): {_MEANING[reason]}"
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
