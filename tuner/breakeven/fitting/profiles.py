"""Fit a set of points into a profile: every arm, every method, and what a reader must be warned of."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError
from breakeven.estimate import Estimate
from breakeven.fitting.arms import carried, fit_arm, over_starts
from breakeven.fitting.engine_starts import fit_law_of_starts
from breakeven.fitting.observations import RAMP_SHARE, Observation, observe, ramp_share_of
from breakeven.fitting.one_law import ArmRows, latency_factors
from breakeven.fitting.pooled import MemberLine, coefficients, family_of
from breakeven.points.point import LoadMode, Origin, Point
from breakeven.profile.curves import Curve
from breakeven.profile.document import Profile
from breakeven.profile.fits import ArmFit, Lengths, PooledFit
from breakeven.profile.operating_conditions import Conditions
from breakeven.profile.step_fit import StepLaw
from breakeven.profile.step_form import LARGEST_MISS
from breakeven.profile.student_t import t_quantile
from breakeven.readers.reading import one_setting
from breakeven.reasons import Reason

_MEANING = {reason.value: reason.meaning for reason in Reason}

_DECIDES_NOTHING = 4.0
"""Upper over lower bound of a measured latency from which arms cannot be distinguished."""

_UNLIKE = frozenset({Reason.RESIDUAL_TOO_LARGE.value, Reason.TOO_NOISY.value})
"""Arms whose rows obey no law: they would be taken for the noise of all."""

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
    steps = _steps(points, fits, families, share)
    if steps is not None:
        fits = tuple(_at_mean_acceptance(fit, points, steps, share, confidence) for fit in fits)
    profile = _over_starts(_judged(Profile(confidence, fits, families, steps)), arms)
    of_starts = steps.start_findings if steps is not None else ()
    warnings = [
        *_warnings(profile.arms, profile.pooled, points, share),
        *(f"{one.sentence} ({one.reason})" for one in of_starts),
    ]
    return replace(
        profile, warnings=tuple(warnings), provenance={**_provenance(points), **(provenance or {})}
    )


def _steps(
    points: Sequence[Point], fits: Sequence[ArmFit], pooled: Sequence[PooledFit], share: float
) -> StepLaw | None:
    """The law of steps, of every usable row at whatever lengths."""
    rows, measured = [], []
    for fit in fits:
        if fit.reason in _UNLIKE:
            continue
        left_out = {(row.source, row.row) for row in fit.excluded if row.reason == Reason.OUTLIER}
        used, _ = observe([one for one in points if one.arm == fit.arm], share)
        kept = [row for row in used if (row.point.origin.source, row.point.origin.row) not in left_out]
        if kept:
            rows.append(ArmRows(fit.arm, kept))
            measured.append(used)
    acceptance = {one.method: model for one in pooled if (model := one.acceptance) is not None}
    law = fit_law_of_starts(rows, measured, acceptance)
    if law is not None:
        _refuse_misses(law, [row for one in rows for row in one.rows])
    return law


def _refuse_misses(law: StepLaw, rows: Sequence[Observation]) -> None:
    """Refuse rows of which one is so far off the law of all that no engine gave both.

    Raises:
        InputError: the row that is farthest off.
    """
    miss, row = max(zip(law.gaps.gaps, rows, strict=True), key=lambda pair: abs(pair[0]))
    if abs(miss) > LARGEST_MISS:
        raise InputError(
            row.point.origin.of("mean_latency_s"),
            f"{row.latency_s:g} is {math.exp(abs(miss)):.2g} times {'above' if miss > 0 else 'below'} the law of all rows",
            "rows of one engine, times in seconds, lengths in tokens per request",
        )


def _at_mean_acceptance(
    fit: ArmFit, points: Sequence[Point], steps: StepLaw, share: float, confidence: float
) -> ArmFit:
    """The line of an arm through rows of one acceptance.

    A few lone requests may accept a tenth less than their arm does on average. They take that many more steps, and are no
    evidence of what a lone request takes: one such row put C1 3 % too high.
    """
    own = [one for one in points if one.arm == fit.arm]
    mean = fit.tokens_per_step
    if not fit.k or mean is None or not any(one.tokens_per_step for one in own):
        return fit
    rows, _ = observe(own, share)
    factors = latency_factors(steps, ArmRows(fit.arm, rows), mean)
    # Rows of several files may have one number: the key is the object's identity.
    moved = {
        id(row.point): carried(row.point, factor) for row, factor in zip(rows, factors.tolist(), strict=True)
    }
    even = [moved.get(id(one), one) for one in own]
    return fit_arm(fit.arm, even, share, confidence)


def _judged(profile: Profile) -> Profile:
    """The profile with what only the law of steps says: arms that decide nothing, parts of a latency, the paper's form."""
    if profile.steps is None:
        return profile
    curves = {fit.arm: profile.curve(fit.arm) for fit in profile.arms if fit.measurements}
    arms = tuple(
        _beside_the_law(fit, curves[fit.arm], profile.confidence) if fit.arm in curves else fit
        for fit in profile.arms
    )
    found = replace(profile, arms=arms)
    return replace(found, pooled=tuple(_as_paper(one, found, curves) for one in profile.pooled))


def _over_starts(profile: Profile, arms: Sequence[Arm]) -> Profile:
    """The profile with bounds of some arms' lines that hold over starts of their engine, as those of their curves do."""
    steps = profile.steps
    if steps is None:
        return profile
    found = (
        over_starts(fit, steps.starts_of(fit.arm), profile.confidence) if fit.arm in arms else fit
        for fit in profile.arms
    )
    return replace(profile, arms=tuple(found))


def _beside_the_law(fit: ArmFit, curve: Curve, confidence: float) -> ArmFit:
    """The fit with the ratios of TTFT and TPOT to the law; not believable if its bounds are too wide for any decision."""
    over = {}
    for name in ("ttft", "tpot"):
        measured, by_law = getattr(fit, name), getattr(curve, name)
        if measured is not None and by_law is not None:
            alone, most = (measured.among(n) / by_law.among(n) for n in curve.line_ends.tolist())
            over[name] = (alone, most)
    low, high = curve.others_range
    t = t_quantile(confidence, curve.dof)
    seen = [Estimate.of(None, curve.bounds_among(n, t)) for n in (low, 0.5 * (low + high), high)]
    widest = max(one.upper / one.lower if one.lower and one.upper else math.inf for one in seen)
    if fit.believable and fit.bend is None and widest > _DECIDES_NOTHING:
        return replace(fit, over_law=over, believable=False, reason=Reason.TOO_NOISY.value)
    return replace(fit, over_law=over)


def _as_paper(one: PooledFit, profile: Profile, curves: Mapping[Arm, Curve]) -> PooledFit:
    """The family with its eight coefficients, and by how much the law misses its rows."""
    members, missed = [], []
    for fit in profile.arms:
        of_another = fit.k not in one.draft_lengths or bool(fit.k and fit.arm.family != one.method)
        if fit.arm not in curves or fit.arm.scheduled or of_another:
            continue
        own, line = (
            curves[fit.arm],
            profile.curve(fit.arm, _as_far_as_measured(one.lengths, fit.lengths)).line,
        )
        members.append(MemberLine(one.drafts(fit.k), fit.tokens_per_step or 1.0, line.c1_s, line.c2_s))
        for row in fit.measurements:
            predicted_s = own.loop_latency_s(row.others, closed=row.mode == "closed")
            missed.append(abs(predicted_s / row.latency_s - 1.0))
    found = coefficients(members, one.lengths.output_tokens or 1.0)
    return replace(one, coefficients=found, mape=float(np.mean(missed)))


def _as_far_as_measured(wanted: Lengths, measured: Lengths) -> Conditions:
    """The lengths of a family, where those of the arm were measured and something decodes."""
    return Conditions(
        prompt_tokens=wanted.prompt_tokens if measured.prompt_tokens else None,
        output_tokens=wanted.output_tokens if (measured.output_tokens or 0.0) > 1.0 else None,
    )


def with_law(profile: Profile) -> Profile:
    """The profile with a law of steps: that of an older version is fitted again, to the rows it holds.

    Raises:
        InputError: the rows do not determine a law.
    """
    if profile.steps is not None:
        return profile
    points = points_of(profile)
    share = ramp_share_of(points)
    steps = _steps(points, profile.arms, profile.pooled, share)
    if steps is None:
        raise InputError(
            "profile", "of an older version, without usable rows", "one fitted again to its points"
        )
    found = _judged(replace(profile, steps=steps, warnings=(*profile.warnings, _FITTED_AGAIN)))
    return _over_starts(found, [fit.arm for fit in found.arms])


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
    found = _judged(replace(profile, arms=fits, steps=_steps(rows, fits, profile.pooled, share)))
    found = _over_starts(found, [arm])
    warnings = (*profile.warnings, *_arm_warnings(found.arm(arm), share))
    return replace(found, warnings=warnings)


def points_of(profile: Profile) -> list[Point]:
    """The rows that a profile holds, as points; what a row does not say is that of its arm."""
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
            mean_inflight=row.inflight,
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
    """Warnings about rows that may come from two engines; clear cases are refused (`reading.one_setting`)."""
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


def _arm_warnings(fit: ArmFit, share: float) -> Iterator[str]:
    if not fit.believable:
        yield f"{fit.arm}: not to be believed ({fit.reason}): {_MEANING[fit.reason]}"
    if fit.bend is not None and fit.schedule is None:
        yield (
            f"{fit.arm}: the line through its rows bends at {fit.bend.others:.3g} others in flight (residual {fit.bend.residual:+.1%}): "
            "predictions follow the law of steps and the rows"
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
