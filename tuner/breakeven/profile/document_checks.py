"""Checks of a profile file beyond its types: a fault is refused with its JSON path."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from breakeven.arm import ADAPTIVE
from breakeven.errors import InputError
from breakeven.laws.arrays import FloatArray
from breakeven.laws.mixture import checked_survival
from breakeven.profile.fits import LARGEST_FIGURE, ArmFit, LineFit, drafters_of
from breakeven.profile.step_fit import StepLaw
from breakeven.profile.step_form import LARGEST_MISS, Gaps
from breakeven.tiers import Schedule

_LEAST = 1e-12
_ROUNDING = 1e-6
LARGEST_LOGARITHM = 40.0


def check_sizes(value: object, path: str, where: str) -> None:
    """Refuse numbers that no measurement has, whose squares would overflow, by their JSON path."""
    if isinstance(value, dict):
        for key, member in value.items():
            check_sizes(member, f"{path}.{key}", where)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            check_sizes(member, f"{path}[{index}]", where)
    elif isinstance(value, int | float) and not -LARGEST_FIGURE <= value <= LARGEST_FIGURE:
        raise InputError(
            f"{where}: {path.lstrip('.')}", "a number beyond all measure", "what `breakeven fit` writes"
        )


def check(confidence: float, arms: Sequence[ArmFit], steps: StepLaw | None, where: str) -> None:
    """Refuse impossible arms, coefficients, covariances and rows, by the JSON path of the first fault."""
    if not 0 < confidence < 1:
        raise InputError(f"{where}: confidence", f"{confidence:g}", "a share between 0 and 1")
    for index, fit in enumerate(arms):
        _check_arm(fit, f"{where}: arms[{index}]")
    for family in drafters_of(arms):
        try:
            _ = family.acceptance
            for survival in family.survival.values():
                checked_survival(survival)
        except ValueError as error:
            raise InputError(
                f"{where}: acceptance of {family.method}", str(error), "what was measured"
            ) from error
    if steps is not None:
        _check_steps(steps, f"{where}: steps")


def _check_arm(fit: ArmFit, place: str) -> None:
    try:
        _ = fit.arm
    except ValueError as error:
        raise InputError(place, str(error), "an arm") from error
    if (
        fit.schedule not in {None, ADAPTIVE}
        and Schedule.parse(fit.schedule, f"{place}.schedule").num_speculative_tokens > fit.k
    ):
        raise InputError(f"{place}.schedule", f"a draft length above k = {fit.k}", "none above it")
    _check_laws(fit, place)
    for number, row in enumerate(fit.measurements):
        if not (row.others >= 0 and row.latency_s >= _LEAST and row.rps >= _LEAST):
            found = f"{place}.measurements[{number}]"
            raise InputError(found, "an impossible row", "a load and a latency above 0")
    if fit.acceptance is not None and not 1.0 <= fit.acceptance.tokens_per_step <= fit.k + 1.0 + _ROUNDING:
        raise InputError(f"{place}.acceptance.tokens_per_step", "an impossible figure", "1 to k + 1")
    lengths = (fit.lengths.prompt_tokens, fit.lengths.output_tokens)
    if any(length is not None and length < 0 for length in lengths):
        raise InputError(f"{place}.lengths", "a negative length", "mean tokens per request")
    if fit.measured_saturation_rps is not None and fit.measured_saturation_rps < _LEAST:
        raise InputError(f"{place}.measured_saturation_rps", "0 or less", "a rate above 0")


def _check_laws(fit: ArmFit, place: str) -> None:
    for name, ratios in fit.over_law.items():
        if name not in {"ttft", "tpot"} or min(ratios) <= 0:
            raise InputError(f"{place}.over_law", repr(name)[:40], "ttft and tpot, each two ratios above 0")
    others = {"ttft": fit.ttft, "tpot": fit.tpot}
    for name in ("quantiles", "ttft_quantiles", "tpot_quantiles"):
        laws = getattr(fit, name)
        others |= {f"{name}.{share}": law for share, law in laws.items()}
        for share in laws:
            if share not in {"0.5", "0.95", "0.99"}:
                raise InputError(f"{place}.{name}", repr(share)[:40], "0.5, 0.95 and 0.99")
    for name, law in others.items():
        if law is not None:
            _check_line(law, f"{place}.{name}")


def _check_line(law: LineFit, place: str) -> None:
    (v1, v12), (v21, v2) = law.covariance
    if law.c1_s < _LEAST or law.c2_s < 0.0:
        raise InputError(place, "coefficients that no line has", "c1_s above 0, c2_s at least 0")
    common = np.sqrt(max(v1, 0.0) * max(v2, 0.0))
    symmetric = abs(v12 - v21) <= _ROUNDING * common + 1e-300
    if v1 < 0 or v2 < 0 or not symmetric or abs(v12) > (1.0 + _ROUNDING) * common or law.dof < 0:
        raise InputError(f"{place}.covariance", "no covariance", "a symmetric, positive matrix")


def _check_steps(law: StepLaw, place: str) -> None:
    size = law.size
    if len(law.figures) != size or max(map(abs, law.figures)) > LARGEST_LOGARITHM:
        raise InputError(
            f"{place}.figures", "not those of its arms", f"{size} of at most {LARGEST_LOGARITHM:g}"
        )
    square = law.covariance.shape == (size, size)
    if not square or law.dof < 1 or not 0.0 < law.noise < 10.0 or not _is_covariance(law.covariance):
        raise InputError(
            f"{place}.covariance", "no covariance", f"a symmetric, positive matrix of {size} by {size}"
        )
    if not (0.0 < law.form.sd < 1.0 and law.form.reach > 0.0):
        raise InputError(f"{place}.form", "no size and reach of departures", "both above 0")
    if not _beside(law.gaps, size):
        raise InputError(
            f"{place}.gaps", "not the rows of its arms", f"rows of four places and {size} slopes"
        )


def _beside(one: Gaps, size: int) -> bool:
    rows = len(one.gaps)
    places, slopes = one.places.shape == (4, rows), one.slopes.shape == (rows, size)
    stated = len(one.noises) == len(one.blocks) == rows > 0 and min(one.noises) > 0.0
    return places and slopes and stated and max(map(abs, one.gaps)) <= LARGEST_MISS


def _is_covariance(matrix: FloatArray) -> bool:
    """Whether a matrix has a Cholesky factor, which every curve of the law takes."""
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return bool(np.allclose(matrix, matrix.T, rtol=_ROUNDING))
