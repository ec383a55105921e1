"""Fit a set of points into a profile: every arm by one law of steps, and what a reader must be warned of."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError
from breakeven.fitting.arms import (
    ArmRows,
    carried,
    fit_arm,
    hides_prompts,
    of_one_length,
    rows_of,
    with_lines,
)
from breakeven.fitting.fit_warnings import arm_warnings, warnings_of
from breakeven.fitting.observations import Observation, ramp_share_of
from breakeven.fitting.one_law import fit_step_law, latency_factors
from breakeven.laws.acceptance_numbers import AcceptanceModel
from breakeven.laws.arrays import FloatArray
from breakeven.phrases import figure
from breakeven.points.point import LIVE_TRAFFIC, LoadMode, Origin, Point, multiplied
from breakeven.profile.document import HIDDEN_PROMPTS, Profile
from breakeven.profile.fits import ArmFit, drafters_of
from breakeven.profile.step_fit import ArmStarts, EngineStarts, StepLaw
from breakeven.profile.step_form import LARGEST_MISS
from breakeven.profile.student_t import t_quantile
from breakeven.readers.reading import one_setting
from breakeven.serving.vllm_versions import acceptance_differs

_PROVENANCE = ("model", "gpu", "workload", "engine_version")

_MOSTLY = 0.5
"""Share of an arm's windows from which it was measured beside others."""

PRIOR_SD, PRIOR_MINUTES_SD, PRIOR_DOF = 0.015, 0.06, 2
"""Standard deviations (ln) between starts, and between the minutes of their windows, before any were compared, and the number of
differences that each is worth.

One L4 showed 1 % with vLLM 0.30 and 3.7 to 13.9 % with 0.29 (spec-fp8-study, 2026, which repeated each start). On one H200 the
same two arms differed by 1.97x in a sweep of one after the other, and by 1.26x three minutes later side by side."""


def fit_points(
    points: Sequence[Point], confidence: float = 0.9, provenance: Mapping[str, str] | None = None
) -> Profile:
    """Fit all points of one workload, GPU and model.

    `provenance` is added to what the points name themselves (model, gpu, workload, engine version, files, time).

    Raises:
        InputError: no point, or points of more than one setting.
    """
    if not points:
        raise InputError("points", "none", "at least one measured operating point")
    one_setting(points)
    _one_acceptance(points)
    share = ramp_share_of(points)
    arms = sorted({one.arm for one in points if one.schedule is None} | set(schedules_of(points)), key=_place)
    rows = [rows_of(arm, [one for one in points if one.arm == arm], share) for arm in arms]
    profile = _fitted(Profile(confidence, tuple(fit_arm(one, share, confidence) for one in rows)), rows, arms)
    of_starts = profile.steps.start_findings if profile.steps is not None else ()
    warnings = [
        *warnings_of(profile.arms, points, share),
        *(f"{one.sentence} ({one.reason})" for one in of_starts),
    ]
    if profile.steps is not None and hides_prompts(rows):
        warnings.append(HIDDEN_PROMPTS)
    return replace(
        profile, warnings=tuple(warnings), provenance={**_provenance(points), **(provenance or {})}
    )


def _one_acceptance(points: Sequence[Point]) -> None:
    """Refuse looked-up drafts of engines that count them differently; a version is a warning otherwise."""
    for method in dict.fromkeys(one.method for one in points if one.k):
        versions = sorted(
            {one.engine_version for one in points if one.method == method and one.engine_version}
        )
        for other in versions[1:]:
            if (why := acceptance_differs(method, versions[0], other)) is not None:
                raise InputError(
                    "column engine_version", why, "rows of one side, or --group-by engine_version"
                )


def with_schedule(profile: Profile, points: Sequence[Point]) -> Profile:
    """The profile with one schedule more, which was measured after the arms in it; it replaces a schedule of the same family.

    Raises:
        InputError: no point, points of another arm, or of more than one setting.
    """
    scheduled = schedules_of(points)
    if len(scheduled) != 1 or any(one.arm != scheduled[0] for one in points):
        raise InputError("points", "not those of one schedule", "at least one, all of one arm")
    one_setting(points)
    arm, share = scheduled[0], ramp_share_of(points)
    before = points_of(profile)
    own = rows_of(arm, points, share)
    kept = [one for one in profile.arms if one.arm.name != arm.name]
    rows = [
        rows_of(fit.arm, [one for one in before if one.arm == fit.arm], share)
        for fit in kept
        if fit.measurements
    ]
    fits = sorted([*kept, fit_arm(own, share, profile.confidence)], key=lambda fit: _place(fit.arm))
    found = _fitted(replace(profile, arms=tuple(fits)), [*rows, own], [arm])
    return replace(found, warnings=(*profile.warnings, *arm_warnings(found.arm(arm), share)))


def points_of(profile: Profile) -> list[Point]:
    """The rows that a profile holds, as points; a figure that a row lacks comes from its arm.

    They count as rows of a window: they were judged when they were measured, and their latency may have been moved since. So a row
    of an open loop has no answered rate beside the imposed one.
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
            request_rate_rps=None if row.mode == "closed" else row.request_rate_rps or row.rps,
            mean_inflight=row.others if row.mode == "constant" else row.inflight,
            window_s=row.window_s or 0.0,
            achieved_rps=row.rps if row.mode == "closed" else None,
            prompt_tokens=row.prompt_tokens or fit.lengths.prompt_tokens,
            output_tokens=row.output_tokens or fit.lengths.output_tokens,
            output_tokens_sq=fit.lengths.output_tokens_sq,
            tokens_per_step=row.tokens_per_step or (fit.tokens_per_step if fit.k else None),
            drafted_per_step=fit.acceptance.drafted_per_step if fit.acceptance else None,
            ttft_mean_s=None if fit.ttft is None else fit.ttft.among(row.others),
            begun_s=row.begun_s,
            start=row.start,
            max_num_seqs=profile.steps.max_num_seqs if profile.steps is not None else None,
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
    return sorted(found, key=_place)


def _place(arm: Arm) -> tuple[bool, str, bool, bool, int]:
    """No speculation first, then by family and draft length, each family's schedule and adaptive verification last."""
    return arm != NO_SPECULATION, arm.family, arm.scheduled, arm.adaptive, arm.k


def _fitted(profile: Profile, rows: Sequence[ArmRows], new: Sequence[Arm]) -> Profile:
    """The profile with the law of steps of all rows; the profile does not hold the rows of `new` arms yet."""
    model = {one.method: one.acceptance for one in drafters_of(profile.arms)}
    rows = [one for one in rows if one.rows]
    steps = fit_law_of_starts(rows, model)
    if steps is None:
        return profile
    _refuse_misses(steps, [row for one in rows for row in one.rows])
    missed, of_arm = _left_out_errors(steps, rows), {one.arm: one for one in rows}
    measured = replace(
        profile,
        arms=tuple(
            _with_rows(fit, of_arm[fit.arm], steps) if fit.arm in new and fit.arm in of_arm else fit
            for fit in profile.arms
        ),
        steps=steps,
    )
    found = replace(
        measured,
        arms=tuple(_beside_the_law(measured, fit) if fit.measurements else fit for fit in measured.arms),
    )
    return replace(
        found,
        arms=tuple(_read_off(found, fit, missed[fit.arm]) if fit.measurements else fit for fit in found.arms),
    )


def _refuse_misses(law: StepLaw, rows: Sequence[Observation]) -> None:
    """Refuse rows of which one is so far off the law of all that no engine gave both."""
    miss, row = max(zip(law.gaps.gaps, rows, strict=True), key=lambda pair: abs(pair[0]))
    if abs(miss) > LARGEST_MISS:
        raise InputError(
            row.point.origin.of("mean_latency_s"),
            f"{row.latency_s:g} is {figure(math.exp(abs(miss)), 2)} times {'above' if miss > 0 else 'below'} the law of all rows",
            "rows of one engine, times in seconds, lengths in tokens per request",
        )


def _left_out_errors(law: StepLaw, rows: Sequence[ArmRows]) -> dict[Arm, float]:
    """Mean relative error at an arm's rows, each predicted from all other rows of all arms."""
    # A factor of more than e to the tenth is as far off as any.
    errors: FloatArray = np.abs(np.expm1(np.clip(-law.gaps.left_out(law.form, law.covariance), -10.0, 10.0)))
    parts = np.split(errors, np.cumsum([len(one.rows) for one in rows])[:-1])
    return {one.arm: float(np.mean(part)) for one, part in zip(rows, parts, strict=True)}


def _with_rows(fit: ArmFit, rows: ArmRows, law: StepLaw) -> ArmFit:
    """The fit with its rows as if all had accepted as many drafts as on average.

    A few lone requests may accept a tenth less than their arm does on average. They take that many more steps, and are no
    evidence of what a lone request takes.
    """
    own, mean = list(rows.own), fit.tokens_per_step
    if own and fit.k and mean is not None and any(one.point.tokens_per_step for one in own):
        factors = latency_factors(law, rows._replace(rows=own), mean)
        own = [carried(row, factor) for row, factor in zip(own, factors.tolist(), strict=True)]
    return with_lines(fit, own, rows.elsewhere, law.starts_of(fit.arm))


def _beside_the_law(profile: Profile, fit: ArmFit) -> ArmFit:
    """The fit with the ratios of TTFT and TPOT to the law, at the lengths at which they were measured."""
    curve = profile.measured_curve(fit)
    over = {}
    for name in ("ttft", "tpot"):
        measured, by_law = getattr(fit, name), getattr(curve, name)
        if measured is not None and by_law is not None:
            alone, most = (measured.among(n) / by_law.among(n) for n in curve.line_ends.tolist())
            over[name] = (alone, most)
    return replace(fit, over_law=over)


def _read_off(profile: Profile, fit: ArmFit, missed: float) -> ArmFit:
    """The fit with C1, C2 and saturation by the law at the profile's lengths, and the errors of the law at its rows."""
    curve, own = profile.curve(fit.arm), profile.measured_curve(fit)
    t = t_quantile(profile.confidence, curve.dof)
    c1_ci_s, c2_ci_s = curve.line_bounds(t)
    worst = (
        abs(own.loop_latency_s(row.others, closed=row.mode == "closed") / row.latency_s - 1.0)
        for row in fit.measurements
    )
    return replace(
        fit,
        c1_s=curve.line.c1_s,
        c1_ci_s=c1_ci_s,
        c2_s=curve.line.c2_s,
        c2_ci_s=c2_ci_s,
        saturation_rps=curve.saturation_rps,
        saturation_ci_rps=curve.saturation_bounds(t),
        max_relative_error=max(worst),
        loo_error=missed,
    )


def _provenance(points: Sequence[Point]) -> dict[str, str]:
    found = {"created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds")}
    found["files"] = " ".join(dict.fromkeys(one.origin.source for one in points))
    for column in _PROVENANCE:
        values = list(dict.fromkeys(value for one in points if (value := one.text(column)) is not None))
        if values:
            found[column] = ", ".join(values)
    return found


# Scatter of one configuration from one start of its engine to the next, and drift of the machine within a start.
#
# Starts of the same configuration differ, however precise their windows are: by memory layout, autotuned kernels, clocks and the host.
# A profile that measured each arm on one start takes that for a difference of arms. Every curve therefore carries a standard
# deviation between starts. It begins at a stated prior, and is learned where an arm was measured on several starts.


class _Compared(NamedTuple):
    """Starts of one arm beside each other.

    Attributes:
        offsets: ln(latency over the mean of the arm's starts), by start.
        errors: standard error of each difference to the start with most rows.
        drift: of a load that was measured twice in one start: ln(last over first latency), 0 if none was, and its standard error.
        beside: as in `ArmStarts`.
    """

    offsets: Mapping[str | None, float]
    errors: Sequence[float]
    drift: tuple[float, float]
    beside: tuple[float, ...]

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
            len(offsets), max(offsets) - min(offsets), max(self.errors, default=0.0), *self.drift, self.beside
        )


def fit_law_of_starts(arms: Sequence[ArmRows], acceptance: Mapping[str, AcceptanceModel]) -> StepLaw | None:
    """The law of all arms with the scatter between starts; each arm's level is the mean over its starts. None without rows."""
    law = fit_step_law(arms, acceptance)
    if law is None:
        return None
    ends = np.cumsum([len(one.rows) for one in arms])[:-1]
    gaps, noises = np.split(np.array(law.gaps.gaps), ends), np.split(np.array(law.gaps.noises), ends)
    blocks = np.split(np.array(law.gaps.blocks), ends)
    compared = [
        _compared(arm.rows, gaps[i], noises[i], _drift(arm.measured, law.noise), _beside(arms, blocks, i))
        for i, arm in enumerate(arms)
    ]
    differences = sum(len(one.errors) for one in compared)
    starts = EngineStarts(
        _sd_of_starts(math.hypot(PRIOR_SD, PRIOR_MINUTES_SD), [one for one in compared if not one.beside]),
        differences,
        tuple(
            # Pods of a fleet served the rows, as they will again: their mean is what is predicted.
            ArmStarts(0) if all(row.point.text_source == LIVE_TRAFFIC for row in arm.rows) else one.kept
            for arm, one in zip(arms, compared, strict=True)
        ),
        _sd_of_starts(PRIOR_SD, [one for one in compared if one.beside]),
    )
    if differences:
        evened = [
            arm._replace(rows=[_at_mean_start(row, one.offsets) for row in arm.rows])
            for arm, one in zip(arms, compared, strict=True)
        ]
        law = fit_step_law(evened, acceptance, law) or law
    return replace(law, starts=starts)


def _beside(arms: Sequence[ArmRows], blocks: Sequence[FloatArray], at: int) -> tuple[float, ...]:
    """Others in flight of an arm's windows in whose stretch of time no speculation was measured, or another arm if it is that.

    None unless most windows stood so. A rate beyond all rates of the other arms does not count: they cannot carry it.
    """
    one = arms[at]
    wanted = [i for i, arm in enumerate(arms) if i != at and (not arm.arm.k or not one.arm.k)]
    rates = [row.point.request_rate_rps or 0.0 for i in wanted for row in arms[i].rows]
    most_rps = max(rates, default=0.0) or math.inf
    there = np.isin(blocks[at], np.concatenate([[], *(blocks[i] for i in wanted)]))
    could = np.array([(row.point.request_rate_rps or 0.0) <= most_rps for row in one.rows])
    if not there.any() or np.mean(there[could]) <= _MOSTLY:
        return ()
    return tuple(row.others for row, stands in zip(one.rows, there, strict=True) if stands and row in one.own)


def _sd_of_starts(prior: float, compared: Sequence[_Compared]) -> float:
    square = PRIOR_DOF * prior**2 + sum(one.squares for one in compared)
    return math.sqrt(square / (PRIOR_DOF + sum(len(one.errors) for one in compared)))


def _at_mean_start(row: Observation, offsets: Mapping[str | None, float]) -> Observation:
    """A row as if its start had been the mean start; among as many others every part of a request takes as much longer."""
    factor = math.exp(-offsets[row.point.start])
    return replace(row, point=multiplied(row.point, {"mean_latency_s": factor, "ttft_mean_s": factor}))


def _compared(
    rows: Sequence[Observation],
    gaps: FloatArray,
    noises: FloatArray,
    drift: tuple[float, float],
    beside: tuple[float, ...],
) -> _Compared:
    """Compare the starts of an arm by how far (ln) its rows lie off the law, beside their noises (ln)."""
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
    return _Compared(around, errors, drift, beside)


def _drift(rows: Sequence[Observation], noise: float) -> tuple[float, float]:
    """The largest change of a load that one start measured twice or more, in the order in which a sweep measured it."""
    found = [(0.0, 0.0)]
    first: dict[object, Observation] = {}
    # A lone request at other lengths takes another time on the steadiest machine.
    for row in of_one_length(rows):
        point = row.point
        # Rows of other tools have no order in time.
        if point.sweep is None:
            continue
        begun = first.setdefault((point.start, point.sweep, point.load, point.text_source), row)
        if begun is not row:
            # A drift is in the noise of the rows: their own errors show whether it is one.
            error = math.hypot(*(one.point.relative_error or noise for one in (begun, row)))
            found.append((math.log(row.latency_s / begun.latency_s), error))
    return max(found, key=lambda one: abs(one[0]))
