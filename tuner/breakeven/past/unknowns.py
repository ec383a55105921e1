"""Things that the past cannot say, a word for each: judged from the arms' rows and the lines through them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from breakeven.fitting.observations import SAME_OUTPUT, SAME_PROMPT
from breakeven.laws.arrays import FloatArray
from breakeven.past.clustering import ArmPast
from breakeven.past.steady import MEANINGS
from breakeven.phrases import duration_text, figure, spoken
from breakeven.profile import Profile
from breakeven.profile.fits import ArmFit

_SAME_ACCEPTANCE = 0.10
"""Share by which tokens per step may differ and be the same."""

_TIED = 0.5
"""Share of a figure's variance between hours that the load, or time, explains from which it moved with it."""

_FEWEST_HOURS = 6
"""Hours below which nothing is said of what moved."""

_LONE_ERROR, _SLOPE_ERROR = 0.25, 0.5
"""Half-width of the bounds of C1 and of C2, relative to them, beyond which they are not known."""


_ALONE = 0.3
"""Number in flight below which a request is alone: its latency is C1 whatever the slope is."""


class PastWord(StrEnum):
    """Something that the past cannot say."""

    OTHER_ARM_NEVER_RAN = "OtherArmNeverRan"
    ONLY_LONE_LATENCY = "OnlyLoneLatency"
    ONLY_SLOPE = "OnlySlope"
    LOAD_RANGE_TOO_SMALL = "LoadRangeTooSmall"
    LENGTHS_MOVE_WITH_LOAD = "LengthsMoveWithLoad"
    ACCEPTANCE_MOVES_WITH_LOAD = "AcceptanceMovesWithLoad"
    LENGTHS_DRIFT = "LengthsDrift"
    ACCEPTANCE_DRIFTS = "AcceptanceDrifts"
    ARMS_MET_OTHER_LENGTHS = "ArmsMetOtherLengths"
    ARMS_MET_OTHER_LOADS = "ArmsMetOtherLoads"
    DAYS_DIFFER = "DaysDiffer"
    METHOD_UNKNOWN = "MethodUnknown"
    DRAFT_LENGTH_VARIES = "DraftLengthVaries"
    CHANGES_UNKNOWN = "ChangesUnknown"
    EARLIER_DIFFERS = "EarlierDiffers"


class PastDoubt(NamedTuple):
    """One thing that the past cannot say, and the figures that show it, without a full stop."""

    word: PastWord
    sentence: str


def doubts_about(arms: Sequence[ArmPast], profile: Profile | None) -> Iterator[PastDoubt]:
    """Everything that these arms of one fingerprint cannot say, the gravest first."""
    plain = [one for one in arms if not one.kind.k]
    if not plain or len(plain) == len(arms):
        ran = "no speculation" if plain else "speculation"
        yield doubt(PastWord.OTHER_ARM_NEVER_RAN, f"all windows are of {ran}")
    for one in arms:
        yield from _about_range(one, profile)
        yield from _about_mix(one)
        if one.scatter is not None and one.scatter.days_differ:
            yield doubt(
                PastWord.DAYS_DIFFER,
                f"{spoken(named(one))}: {one.scatter.days:.1%} between days, {one.scatter.hours:.1%} between hours",
            )
        yield from _about_drafts(one)
    yield from _between(arms)


def named(one: ArmPast) -> str:
    """Name of an arm."""
    return one.points[0].arm.name if one.points else "none" if not one.kind.k else f"drafts of {one.kind.k}"


def ran_text(one: ArmPast) -> str:
    """`50 min of no speculation`."""
    return f"{duration_text(3600 * one.hours)} of {spoken(named(one))}"


def doubt(word: PastWord, shown: str) -> PastDoubt:
    """A word with its meaning and the figures that show it."""
    return PastDoubt(word, f"{MEANINGS[word]} ({shown})")


def _about_range(one: ArmPast, profile: Profile | None) -> Iterator[PastDoubt]:
    fit = profile.arm(one.points[0].arm) if profile is not None and one.points else None
    met = [window.met_inflight for window in one.windows]
    low, high = np.quantile(met, (0.05, 0.95))
    lone, slope = _known(fit, "c1", _LONE_ERROR) or high < _ALONE, _known(fit, "c2", _SLOPE_ERROR)
    if lone and slope:
        return
    only = PastWord.ONLY_LONE_LATENCY if lone else PastWord.ONLY_SLOPE
    met_text = f"{figure(low)} to {figure(high)} requests in flight at a pod, {len(one.points)} rows"
    yield doubt(only if lone or slope else PastWord.LOAD_RANGE_TOO_SMALL, f"{spoken(named(one))}: {met_text}")


def _known(fit: ArmFit | None, figure: str, most: float) -> bool:
    value, interval = getattr(fit, f"{figure}_s", None), getattr(fit, f"{figure}_ci_s", None)
    if not value or interval is None or interval[0] is None or interval[1] is None:
        return False
    return bool(0.5 * (interval[1] - interval[0]) <= most * value)


class _Mix(NamedTuple):
    """A figure of the traffic: its place among an hour's covariates, and by how much it may differ and be the same."""

    name: str
    at: int
    same: float
    with_load: PastWord
    with_time: PastWord


_MIXES = (
    _Mix("output tokens", 1, SAME_OUTPUT, PastWord.LENGTHS_MOVE_WITH_LOAD, PastWord.LENGTHS_DRIFT),
    _Mix("prompt tokens", 0, SAME_PROMPT, PastWord.LENGTHS_MOVE_WITH_LOAD, PastWord.LENGTHS_DRIFT),
    _Mix(
        "tokens per step",
        2,
        _SAME_ACCEPTANCE,
        PastWord.ACCEPTANCE_MOVES_WITH_LOAD,
        PastWord.ACCEPTANCE_DRIFTS,
    ),
)


def _about_mix(one: ArmPast) -> Iterator[PastDoubt]:
    """Lengths and acceptance that moved with the load, or with time."""
    said: set[PastWord] = set()
    if len(one.hourly) < _FEWEST_HOURS:
        return
    weights = np.array([hour.requests for hour in one.hourly])
    load = np.log1p([hour.inflight for hour in one.hourly])
    begin_s = np.array([float(hour.begin_s) for hour in one.hourly])
    days = np.array([hour.day for hour in one.hourly])
    for mix in _MIXES:
        logs = np.array([hour.covariates[mix.at] for hour in one.hourly])
        low, high = np.exp(np.quantile(logs, (0.05, 0.95)))
        found = {
            mix.with_load: _explained_by(load, logs, weights),
            # A change within a day shows in two days' means only where midnight parts it.
            mix.with_time: max(_explained_by(begin_s, logs, weights), _explained_by_day(logs, days, weights)),
        }
        for word, explained in found.items():
            if word not in said and explained.share >= _TIED and explained.range > mix.same:
                said.add(word)
                yield doubt(word, f"{spoken(named(one))}: {figure(low)} to {figure(high)} {mix.name}")


class _Explained(NamedTuple):
    """Share of a figure's variance that something explains, and the range (ln) of what it explains."""

    share: float
    range: float


def _explained_by(axis: FloatArray, logs: FloatArray, weights: FloatArray) -> _Explained:
    """By a line along an axis: the load, or time."""
    x, y = axis - np.average(axis, weights=weights), logs - np.average(logs, weights=weights)
    spread, total = float(weights @ x**2), float(weights @ y**2)
    if spread <= 0.0 or total <= 0.0:
        return _Explained(0.0, 0.0)
    slope = float(weights @ (x * y)) / spread
    return _Explained(slope**2 * spread / total, abs(slope) * float(np.ptp(axis)))


def _explained_by_day(logs: FloatArray, days: NDArray[np.int64], weights: FloatArray) -> _Explained:
    """By the day."""
    names = np.unique(days)
    if names.size < 2:
        return _Explained(0.0, 0.0)
    means = np.array([np.average(logs[days == day], weights=weights[days == day]) for day in names])
    y = logs - np.average(logs, weights=weights)
    total = float(weights @ y**2)
    within = float(weights @ (logs - means[np.searchsorted(names, days)]) ** 2)
    return _Explained(1.0 - within / total if total > 0.0 else 0.0, float(np.ptp(means)))


def _about_drafts(one: ArmPast) -> Iterator[PastDoubt]:
    if not one.kind.k:
        return
    if one.kind.method is None:
        yield doubt(PastWord.METHOD_UNKNOWN, f"{spoken(named(one))}: name it with --method")
    drafted = one.seen.drafted_per_step
    if drafted is not None and drafted < one.kind.k - 0.5 and one.kind.schedule is None:
        yield doubt(
            PastWord.DRAFT_LENGTH_VARIES, f"{spoken(named(one))}: {figure(drafted)} drafted tokens per step"
        )


def _between(arms: Sequence[ArmPast]) -> Iterator[PastDoubt]:
    """Lengths and loads in which an arm differs from no speculation."""
    plain = next((one for one in arms if not one.kind.k and one.points), None)
    for one in arms:
        if plain is None or one is plain or not one.points:
            continue
        for name, same in (("prompt_tokens", SAME_PROMPT), ("output_tokens", SAME_OUTPUT)):
            own, other = getattr(one.seen, name), getattr(plain.seen, name)
            if own and other and abs(math.log(own / other)) > same:
                shown = f"{spoken(named(one))} {figure(own)}, no speculation {figure(other)} {name.replace('_', ' ')}"
                yield doubt(PastWord.ARMS_MET_OTHER_LENGTHS, shown)
                break
        rates = ([point.request_rate_rps or 0.0 for point in each.points] for each in (one, plain))
        ranges = [(min(of), max(of)) for of in rates]
        if ranges[0][0] > ranges[1][1] or ranges[1][0] > ranges[0][1]:
            shown = ", ".join(
                f"{spoken(named(each))} {figure(low)} to {figure(high)} rps"
                for each, (low, high) in zip((one, plain), ranges, strict=True)
            )
            yield doubt(PastWord.ARMS_MET_OTHER_LOADS, shown)
