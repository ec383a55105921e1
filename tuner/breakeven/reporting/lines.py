"""The lines that pictures draw, computed from a profile; arrays out, nothing is drawn here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError, NotIdentifiedError
from breakeven.laws.acceptance_numbers import alpha_from_tokens_per_step, tokens_per_step_iid
from breakeven.laws.arrays import BoolArray, FloatArray, Span
from breakeven.phrases import figure, spoken
from breakeven.profile import ArmFit, Bounds, Conditions, Curve, LoadPoint, Profile, speedups_at_rps
from breakeven.profile.comparisons import Speedups, compare_curves
from breakeven.profile.fits import Measurement
from breakeven.profile.operating_conditions import SAME, ConditionsOf, as_measured, strays
from breakeven.profile.student_t import t_quantile

# Beyond this share of an arm's saturation the law's error grows without bound; lines end here.
_LAST_UTILISATION = 0.97
_STEPS = 160
_LIGHT, _HEAVY = 0.05, 0.9
"""Shares of the highest load that any arm carries at which kinds of speculation are compared in words."""
_AS_FAST = 0.005
"""Share of a latency below which an arm is as fast as the fastest."""


@dataclass(frozen=True, slots=True)
class ArmCurve:
    """One arm over load; every array has one element per element of `rps`, NaN if there is no figure.

    Attributes:
        rps: load per replica, 1/s, up to just below the arm's own saturation.
        speedup, speedup_lower, speedup_upper: over no speculation at equal rate.
        measured_rps, measured_latency_s, measured_speedup: the measured points, none under other conditions or lengths; the speedup
            is taken against the prediction without speculation at the same rate. Their rate is the open-loop rate at which a
            request would meet as many others as it did (Little's law): a closed loop's own rate belongs to another kind of load.
        saturation_rps: of this arm; no measured point lies beyond it.
        break_even_rps, break_even_ci_rps: where the speedup is 1; None if there is none inside the measured range.
    """

    arm: Arm
    rps: FloatArray
    latency_s: FloatArray
    latency_lower_s: FloatArray
    latency_upper_s: FloatArray
    speedup: FloatArray
    speedup_lower: FloatArray
    speedup_upper: FloatArray
    measured_rps: FloatArray
    measured_latency_s: FloatArray
    measured_speedup: FloatArray
    saturation_rps: float
    break_even_rps: float | None
    break_even_ci_rps: Bounds


@dataclass(frozen=True, slots=True)
class KindCurve:
    """The arm that stands for no speculation, a fixed length, the schedule or adaptive verification, over load.

    `longer` is its latency over that of the fastest of all arms at the same load, less 1: 0 if it is the fastest, infinite beyond its
    saturation; one element per element of `rps`.
    """

    arm: Arm
    rps: FloatArray
    longer: FloatArray

    def sentence_at(self, place: int) -> str:
        """`eagle/7 takes 12 % longer`."""
        longer = float(self.longer[place])
        took = f"takes {100 * longer:.0f} % longer" if np.isfinite(longer) else "is saturated"
        return f"{spoken(self.arm)} {'is the fastest' if longer < _AS_FAST else took}"


@dataclass(frozen=True, slots=True)
class Measured:
    """One used point with what the profile predicts for it."""

    arm: Arm
    inflight: float
    measured_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True)
class BestArmMap:
    """The fastest arm for every acceptance of one draft token (rows) and load per replica (columns).

    Attributes:
        lead: by how much 1/latency of each arm exceeds 1/latency of the best other arm (1/s), shape
            (len(arms), len(alpha), len(rps)): above 0 if the arm is the fastest. 1/latency is a line in the load, so
            that borders between grid points are found where they are.
        measured_alpha: where the profile was measured, if it says so.
        leads_as_measured: loads of each arm whose acceptance cannot be converted at which it is the fastest as measured, shape of
            `rps`; it has no place on the map but the measured line.
    """

    arms: tuple[Arm, ...]
    rps: FloatArray
    alpha: FloatArray
    lead: FloatArray
    measured_alpha: float | None
    leads_as_measured: Mapping[Arm, BoolArray] = field(default_factory=dict)


def drawable(profile: Profile) -> list[ArmFit]:
    """Arms with a law, no speculation first, then by family and draft length, each family's schedule last."""
    fits = [fit for fit in profile.arms if fit.measurements]
    return sorted(fits, key=lambda fit: (fit.k > 0, fit.arm.family, fit.arm.scheduled, fit.k))


def highest(arrays: Iterable[FloatArray]) -> float:
    """Highest finite value; 0 if there is none."""
    return max((float(array[np.isfinite(array)].max(initial=0.0)) for array in arrays), default=0.0)


def arm_curves(profile: Profile, conditions: ConditionsOf = as_measured) -> list[ArmCurve]:
    """The curve of every arm that has a law; without those that cannot be converted to the conditions."""
    fits = drawable(profile)
    curves: dict[Arm, Curve] = {}
    for fit in fits:
        with contextlib.suppress(NotIdentifiedError):
            curves[fit.arm] = profile.curve(fit.arm, conditions(fit.arm))
    asked = any(conditions(fit.arm) != Conditions() for fit in fits)
    # A point measured at other lengths is no point of these curves.
    points = {
        fit.arm: [] if asked or strays(fit.lengths, profile.lengths, SAME) else fit.measurements
        for fit in fits
    }
    plain = curves.get(NO_SPECULATION)
    return [
        _arm_curve(fit, curves[fit.arm], plain, profile.confidence, points[fit.arm])
        for fit in fits
        if fit.arm in curves
    ]


def kinds_over_load(curves: Sequence[ArmCurve]) -> list[KindCurve]:
    """No speculation, the best fixed length, the schedule and adaptive verification of each family; empty without the last.

    One fixed length stands for all: the length that loses least over the loads that any arm carries.
    """
    if not any(curve.arm.adaptive for curve in curves):
        return []
    rps = np.linspace(0.0, max(float(curve.rps[-1]) for curve in curves), _STEPS)
    latency_s = np.array(
        [np.where(rps <= one.rps[-1], np.interp(rps, one.rps, one.latency_s), np.inf) for one in curves]
    )
    fastest_s = latency_s.min(axis=0)
    fixed: dict[str, tuple[float, int]] = {}
    for at, curve in enumerate(curves):
        if curve.arm.k and not curve.arm.scheduled:
            pace = float(np.mean(fastest_s / latency_s[at]))
            fixed[curve.arm.family] = max(fixed.get(curve.arm.family, (0.0, at)), (pace, at))
    shown = {at for _, at in fixed.values()}
    return [
        KindCurve(curve.arm, rps, latency_s[at] / fastest_s - 1.0)
        for at, curve in enumerate(curves)
        if at in shown or curve.arm.k == 0 or curve.arm.scheduled
    ]


def which_kind(kinds: Sequence[KindCurve], load_range_rps: Span | None = None) -> str:
    """What each loses at light load and gains at heavy load, as two sentences; at the ends of the range if one is given."""
    rps = kinds[0].rps
    light, heavy = load_range_rps or (_LIGHT * float(rps[-1]), _HEAVY * float(rps[-1]))
    parts = []
    for name, load in (("light", light), ("heavy", heavy)):
        place = int(np.argmin(np.abs(rps - load)))
        ranked = sorted(kinds, key=lambda kind: float(kind.longer[place]))
        told = ", ".join(kind.sentence_at(place) for kind in ranked)
        parts.append(f"At {name} load ({figure(load, 2)} rps) {told}.")
    return " ".join(parts)


def measured_points(profile: Profile) -> list[Measured]:
    """Every used point beside its prediction, at the others in flight that it met."""
    found = []
    for fit in drawable(profile):
        curve = profile.measured_curve(fit)
        for row in fit.measurements:
            predicted_s = curve.loop_latency_s(row.others, closed=row.mode == "closed")
            found.append(Measured(fit.arm, row.inflight, row.latency_s, predicted_s))
    return found


def best_arm_map(
    profile: Profile, rows: int = 121, columns: int = 241, conditions: ConditionsOf = as_measured
) -> BestArmMap | None:
    """The fastest measured arm over load and acceptance of one draft token (i.i.d. alpha), at the lengths of the conditions.

    None if there is no speculative arm or none without speculation.
    """
    fits = drawable(profile)
    if not any(fit.k == 0 for fit in fits) or not any(fit.k > 0 for fit in fits):
        return None
    rps = np.linspace(0.0, _LAST_UTILISATION * max(fit.saturation_rps or 0.0 for fit in fits), columns)
    alpha = np.linspace(0.0, 1.0, rows)
    pace = np.array(
        [[_pace(profile, fit, conditions(fit.arm), float(one), rps) for one in alpha] for fit in fits]
    )
    best_other = np.array([np.max(np.delete(pace, number, axis=0), axis=0) for number in range(len(fits))])
    fixed = [fit.arm for fit, own in zip(fits, pace, strict=True) if not np.isfinite(own).any()]
    leads = dict(_leads_as_measured(profile, fits, conditions, rps)) if fixed else {}
    return BestArmMap(
        tuple(fit.arm for fit in fits),
        rps,
        alpha,
        # Of an arm without any figure the difference to another without one has no value.
        np.where(np.isfinite(pace), pace - best_other, -np.inf),
        _measured_alpha(fits),
        {arm: leads[arm] for arm in fixed if arm in leads},
    )


def _leads_as_measured(
    profile: Profile, fits: Sequence[ArmFit], conditions: ConditionsOf, rps: FloatArray
) -> Iterator[tuple[Arm, BoolArray]]:
    """Where each arm is the fastest at the acceptance of the conditions."""
    found: dict[Arm, FloatArray] = {}
    for fit in fits:
        with contextlib.suppress(BreakevenError):
            found[fit.arm] = profile.curve(fit.arm, conditions(fit.arm)).latencies_at_rps(rps)
    lowest = np.nanmin(np.array([*found.values(), np.full(len(rps), np.inf)]), axis=0)
    for arm, latency_s in found.items():
        yield arm, latency_s <= lowest


def _pace(profile: Profile, fit: ArmFit, conditions: Conditions, alpha: float, rps: FloatArray) -> FloatArray:
    """1/latency (1/s) at loads; beyond saturation below 0, and lowest for the arm with the lowest saturation."""
    tokens_per_step = None if fit.k == 0 else float(tokens_per_step_iid(alpha, fit.k))
    try:
        curve = profile.curve(fit.arm, replace(conditions, tokens_per_step=tokens_per_step))
    except BreakevenError:
        return np.full(len(rps), -np.inf)  # it has no curve at another acceptance than its own
    latency_s = curve.latencies_at_rps(rps)
    return np.where(np.isnan(latency_s), 1.0 - rps / curve.saturation_rps, 1.0 / latency_s)


def _measured_alpha(fits: Sequence[ArmFit]) -> float | None:
    """Alpha of the shortest measured draft: the nearest to "acceptance of one token"; longer ones mix positions."""
    speculative = [fit for fit in fits if fit.k > 0 and fit.tokens_per_step is not None]
    if not speculative:
        return None
    shortest = min(speculative, key=lambda fit: fit.k)
    return float(alpha_from_tokens_per_step(shortest.tokens_per_step or 1.0, shortest.k))


def _arm_curve(
    fit: ArmFit, own: Curve, plain: Curve | None, confidence: float, points: Sequence[Measurement]
) -> ArmCurve:
    rps = np.linspace(0.0, _LAST_UTILISATION * own.saturation_rps, _STEPS)
    t = t_quantile(confidence, own.dof)
    lower_s, upper_s = own.all_bounds_at_rps(rps, t)
    nothing = np.full(_STEPS, np.nan)
    speedups = Speedups(nothing, nothing, nothing)
    break_even_rps: float | None = None
    break_even_ci_rps: Bounds = (None, None)
    measured_rps = np.array([point.others / point.latency_s for point in points])
    measured_s = np.array([point.latency_s for point in points])
    measured_speedup = np.full(len(measured_s), np.nan)
    if plain is not None:
        measured_speedup = plain.latencies_at_rps(measured_rps) / measured_s
    if plain is not None and fit.k > 0:
        speedups = speedups_at_rps(own, plain, rps, confidence)
        comparison = compare_curves(own, plain, LoadPoint(rps=0.0), confidence)
        break_even_rps = comparison.break_even_rps
        break_even_ci_rps = comparison.break_even_ci_rps or break_even_ci_rps
    return ArmCurve(
        arm=fit.arm,
        rps=rps,
        latency_s=own.latencies_at_rps(rps),
        latency_lower_s=lower_s,
        latency_upper_s=np.where(np.isfinite(upper_s), upper_s, np.nan),
        speedup=speedups.speedup,
        speedup_lower=speedups.lower,
        speedup_upper=speedups.upper,
        measured_rps=measured_rps,
        measured_latency_s=measured_s,
        measured_speedup=measured_speedup,
        # A law may saturate slightly below the answered rate of the last point.
        saturation_rps=max(own.saturation_rps, float(np.max(measured_rps, initial=0.0))),
        break_even_rps=break_even_rps,
        break_even_ci_rps=break_even_ci_rps,
    )
