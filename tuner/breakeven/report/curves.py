"""The lines that pictures draw, computed from a profile; arrays out, nothing is drawn here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from breakeven.acceptance import alpha_from_tokens_per_step, tokens_per_step_iid
from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.profile import ArmFit, Bounds, Profile

Array = npt.NDArray[np.float64]

# Beyond this share of an arm's saturation the law's error grows without bound; lines end here.
_LAST_UTILISATION = 0.97
_STEPS = 160


@dataclass(frozen=True, slots=True)
class ArmCurve:
    """One arm over load; every array has one element per element of `rps`, NaN where there is no figure.

    Attributes:
        rps: load per replica, 1/s, up to just below the arm's own saturation.
        latency_s, latency_lower_s, latency_upper_s: mean request latency and its bounds.
        speedup, speedup_lower, speedup_upper: over no speculation at equal rate.
        measured_rps, measured_latency_s, measured_speedup: the measured points; the speedup is taken against the
            prediction without speculation at the same rate. Their rate is the open-loop one at which a request would
            meet as many others as it did (Little's law): a closed loop's own rate belongs to another kind of load.
        saturation_rps: of this arm.
        break_even_rps, break_even_ci_rps: where the speedup is 1; None where there is none inside the measured range.
    """

    arm: Arm
    rps: Array
    latency_s: Array
    latency_lower_s: Array
    latency_upper_s: Array
    speedup: Array
    speedup_lower: Array
    speedup_upper: Array
    measured_rps: Array
    measured_latency_s: Array
    measured_speedup: Array
    saturation_rps: float
    break_even_rps: float | None
    break_even_ci_rps: tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Measured:
    """One used point with what the profile predicts for it."""

    arm: Arm
    inflight: float
    measured_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True)
class BestArmMap:
    """The best arm for every acceptance (rows) and load (columns).

    Attributes:
        arms: by index. rps, alpha: axes. index: shape (len(alpha), len(rps)).
        measured_alpha: where the profile was measured, if it says so.
    """

    arms: tuple[Arm, ...]
    rps: Array
    alpha: Array
    index: npt.NDArray[np.int64]
    measured_alpha: float | None


def drawable(profile: Profile) -> list[ArmFit]:
    """Arms with a law, no speculation first, then by family and draft length."""
    fits = [fit for fit in profile.arms if fit.fit is not None and fit.saturation_rps is not None]
    return sorted(fits, key=lambda fit: (fit.k > 0, fit.arm.family, fit.k))


def arm_curves(profile: Profile) -> list[ArmCurve]:
    """The curve of every arm that has a law."""
    fits = drawable(profile)
    return [_curve(profile, fit, compared=any(f.k == 0 for f in fits)) for fit in fits]


def measured_points(profile: Profile) -> list[Measured]:
    """Every used point beside the law's prediction at the others in flight that it met."""
    return [
        Measured(fit.arm, point.inflight, point.latency_s, fit.fit.c1_s + fit.fit.c2_s * point.others)
        for fit in drawable(profile)
        if fit.fit is not None
        for point in fit.measurements
    ]


def best_arm_map(profile: Profile, rows: int = 40, columns: int = 60) -> BestArmMap | None:
    """The fastest measured arm over load and acceptance of one draft token (i.i.d. alpha).

    None where fewer than two arms or no speculative arm can be predicted at another acceptance.
    """
    fits = drawable(profile)
    if not any(fit.k == 0 for fit in fits) or not any(fit.k > 0 for fit in fits):
        return None
    # `believable` is not asked here: the page's warnings say which fits not to believe.
    top_rps = _LAST_UTILISATION * max(fit.saturation_rps or 0.0 for fit in fits)
    rps = np.linspace(top_rps / columns, top_rps, columns)
    alpha = np.linspace(0.05, 0.95, rows)
    latency = np.full((len(fits), rows, columns), np.inf)
    for number, fit in enumerate(fits):
        for row, acceptance in enumerate(alpha):
            tokens = None if fit.k == 0 else float(tokens_per_step_iid(acceptance, fit.k))
            for column, load in enumerate(rps):
                latency[number, row, column] = _latency_s(profile, fit.arm, float(load), tokens)
            if fit.k == 0:
                latency[number] = latency[number, 0]
                break
    # A tie, or both saturated, goes to no speculation, which stands first.
    return BestArmMap(
        tuple(fit.arm for fit in fits), rps, alpha, np.argmin(latency, axis=0), _measured_alpha(fits)
    )


def _latency_s(profile: Profile, arm: Arm, rps: float, tokens_per_step: float | None) -> float:
    try:
        latency_s = profile.predict(arm, rps=rps, tokens_per_step=tokens_per_step).latency_s
    except BreakevenError:
        return float("inf")
    return float("inf") if latency_s is None else latency_s


def _measured_alpha(fits: Sequence[ArmFit]) -> float | None:
    """Alpha of the shortest measured draft: the nearest to "acceptance of one token"; longer ones mix positions."""
    speculative = [fit for fit in fits if fit.k > 0 and fit.tokens_per_step is not None]
    if not speculative:
        return None
    shortest = min(speculative, key=lambda fit: fit.k)
    return float(alpha_from_tokens_per_step(shortest.tokens_per_step or 1.0, shortest.k))


def _curve(profile: Profile, fit: ArmFit, *, compared: bool) -> ArmCurve:
    saturation_rps = fit.saturation_rps or 0.0
    rps = np.linspace(0.0, _LAST_UTILISATION * saturation_rps, _STEPS)
    rps[0] = saturation_rps * 1e-6
    latency = np.array([_interval(profile, fit.arm, load) for load in rps])
    speedup = np.full((_STEPS, 3), np.nan)
    break_even: float | None = None
    bounds: Bounds = (None, None)
    if compared and fit.k > 0:
        speedup = np.array([_speedup(profile, fit.arm, load) for load in rps])
        low = profile.compare(fit.arm, NO_SPECULATION, rps=float(rps[0]))
        break_even, bounds = low.break_even_rps, low.break_even_ci_rps or (None, None)
    measured_rps = np.array([point.others / point.latency_s for point in fit.measurements])
    measured_s = np.array([point.latency_s for point in fit.measurements])
    plain_s = np.array(
        [
            _latency_s(profile, NO_SPECULATION, max(load, 1e-9), None) if compared else np.nan
            for load in measured_rps
        ]
    )
    with np.errstate(invalid="ignore"):
        measured_speedup = np.where(np.isfinite(plain_s), plain_s / measured_s, np.nan)
    return ArmCurve(
        fit.arm,
        rps,
        latency[:, 0],
        latency[:, 1],
        latency[:, 2],
        speedup[:, 0],
        speedup[:, 1],
        speedup[:, 2],
        measured_rps,
        measured_s,
        measured_speedup,
        saturation_rps,
        break_even,
        bounds,
    )


def _interval(profile: Profile, arm: Arm, rps: float) -> tuple[float, float, float]:
    predicted = profile.predict(arm, rps=float(rps))
    lower, upper = predicted.latency_ci_s or (None, None)
    return _number(predicted.latency_s), _number(lower), _number(upper)


def _speedup(profile: Profile, arm: Arm, rps: float) -> tuple[float, float, float]:
    compared = profile.compare(arm, NO_SPECULATION, rps=float(rps))
    lower, upper = compared.speedup_ci or (None, None)
    return _number(compared.speedup), _number(lower), _number(upper)


def _number(value: float | None) -> float:
    return np.nan if value is None else value
