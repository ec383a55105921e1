"""Scatter of one configuration from one start of its engine to the next, and drift of the machine within a start.

Starts of the same configuration differ, whatever their windows say: by memory layout, autotuned kernels, clocks and the host.
A profile that measured each arm on one start takes that for a difference of arms. Every curve therefore carries a standard
deviation between starts. It begins at a stated prior, and is learned where an arm was measured on several starts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from breakeven.fitting.arms import ArmRows, of_one_length
from breakeven.fitting.observations import Observation
from breakeven.fitting.one_law import fit_step_law
from breakeven.laws.acceptance_numbers import AcceptanceModel
from breakeven.laws.arrays import FloatArray
from breakeven.points.point import LIVE_TRAFFIC, multiplied
from breakeven.profile.step_fit import ArmStarts, EngineStarts, StepLaw

PRIOR_SD, PRIOR_DOF = 0.015, 2
"""Standard deviation (ln) between starts before any were compared, and the number of differences that it is worth.

One L4 showed 1 % with vLLM 0.30 and 3.7 to 13.9 % with 0.29 (spec-fp8-study, 2026, which repeated each start)."""


class _Compared(NamedTuple):
    """Starts of one arm beside each other.

    Attributes:
        offsets: ln(latency over the mean of the arm's starts), by start.
        errors: standard error of each difference to the start with most rows.
        drift: of the machine within a start.
    """

    offsets: Mapping[str | None, float]
    errors: Sequence[float]
    drift: LoadDrift

    @property
    def squares(self) -> float:
        """Sum of squares of the offsets, less what errors of measurement add to it."""
        number = len(self.offsets)
        of_errors = sum(error**2 for error in self.errors) * (number - 1) / number
        return max(sum(one**2 for one in self.offsets.values()) - of_errors, 0.0)

    @property
    def kept(self) -> ArmStarts:
        """The arm's starts as a profile keeps them."""
        offsets = self.offsets.values()
        return ArmStarts(
            len(offsets), max(offsets) - min(offsets), max(self.errors, default=0.0), *self.drift
        )


class LoadDrift(NamedTuple):
    """A load that was measured at the beginning and at the end of one start.

    Attributes:
        change: ln(last over first latency); 0 if no load was repeated.
        error: its standard error.
    """

    change: float
    error: float


def fit_law_of_starts(arms: Sequence[ArmRows], acceptance: Mapping[str, AcceptanceModel]) -> StepLaw | None:
    """The law of all arms with the scatter between starts; each arm's level is the mean over its starts.

    Args:
        arms: rows of each arm, at least one that the law uses.
        acceptance: by family, as `fit_step_law` takes it.

    Returns:
        None without rows.
    """
    law = fit_step_law(arms, acceptance)
    if law is None:
        return None
    ends = np.cumsum([len(one.rows) for one in arms])[:-1]
    gaps, noises = np.split(np.array(law.gaps.gaps), ends), np.split(np.array(law.gaps.noises), ends)
    compared = [
        _compared(arm.rows, gaps[i], noises[i], _drift(arm.measured, law.noise)) for i, arm in enumerate(arms)
    ]
    differences = sum(len(one.errors) for one in compared)
    square = PRIOR_DOF * PRIOR_SD**2 + sum(one.squares for one in compared)
    starts = EngineStarts(
        math.sqrt(square / (PRIOR_DOF + differences)),
        differences,
        tuple(_of_live_traffic(arm) or one.kept for arm, one in zip(arms, compared, strict=True)),
    )
    if differences:
        evened = [
            arm._replace(rows=[_at_mean_start(row, one.offsets) for row in arm.rows])
            for arm, one in zip(arms, compared, strict=True)
        ]
        law = fit_step_law(evened, acceptance, law) or law
    return replace(law, starts=starts)


def _of_live_traffic(arm: ArmRows) -> ArmStarts | None:
    """Pods of a fleet served the rows, as they will again: their mean is what is predicted. None if a load driver sent them."""
    if all(row.point.text_source == LIVE_TRAFFIC for row in arm.rows):
        return ArmStarts(0)
    return None


def _at_mean_start(row: Observation, offsets: Mapping[str | None, float]) -> Observation:
    """A row as if its start had been the mean of the arm's; among as many others every part of a request takes as much longer."""
    factor = math.exp(-offsets[row.point.start])
    return replace(row, point=multiplied(row.point, {"mean_latency_s": factor, "ttft_mean_s": factor}))


def _compared(
    rows: Sequence[Observation], gaps: FloatArray, noises: FloatArray, drift: LoadDrift
) -> _Compared:
    """Compare the starts of an arm by how far their rows lie off the law.

    Args:
        rows: of one arm.
        gaps: ln(measured over law) of each row, shape (rows,).
        noises: standard deviation (ln) of each row, shape (rows,).
        drift: of the machine within a start.
    """
    # At other lengths the law may err by more than starts differ.
    alike = {id(row.point) for row in of_one_length(rows)}
    places: dict[str | None, list[int]] = {}
    for at, row in enumerate(rows):
        starts = places.setdefault(row.point.start, [])
        if id(row.point) in alike:
            starts.append(at)
    loads = np.log1p([row.others for row in rows])
    most = max(places, key=lambda start: len(places[start]))
    known = sorted(places[most], key=lambda at: float(loads[at]))
    offsets, errors = {most: 0.0}, []
    for start, own in places.items():
        if start == most or not own:
            continue
        # Beside the other start at the same loads: what the law misses there is no difference of starts.
        offsets[start] = float(np.mean(gaps[own] - np.interp(loads[own], loads[known], gaps[known])))
        errors.append(math.sqrt(2.0 * float(np.mean(noises[own] ** 2)) / len(own)))
    middle = sum(offsets.values()) / len(offsets)
    around = {start: offsets.get(start, middle) - middle for start in places}
    return _Compared(around, errors, drift)


def _drift(rows: Sequence[Observation], noise: float) -> LoadDrift:
    """The largest change of a load that one start measured twice or more, in the order in which a sweep measured it."""
    found = [LoadDrift(0.0, 0.0)]
    first: dict[object, Observation] = {}
    # A lone request at other lengths takes another time on the steadiest machine.
    for row in of_one_length(rows):
        point = row.point
        # Rows of other tools have no order in time.
        if point.sweep is None:
            continue
        begun = first.setdefault((point.start, point.sweep, point.load, point.text_source), row)
        if begun is not row:
            # A drift is in the noise of the rows: their own errors say whether it is one.
            error = math.hypot(*(one.point.relative_error or noise for one in (begun, row)))
            found.append(LoadDrift(math.log(row.latency_s / begun.latency_s), error))
    return max(found, key=lambda one: abs(one.change))
