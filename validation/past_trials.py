"""Trials of `breakeven history`: made-up pasts of engines that no rule was chosen on, and what it says of them against truth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from breakeven.arm import Arm
from breakeven.past.courses import NOW, RESETS, SAMPLES, PodCourse, PodName, TimeGrid
from breakeven.past.past_reading import AskedPast, KnownPast, PastWord, known_past
from breakeven.past.pod_facts import PodFacts, PodKind, kind_of
from breakeven.past.steady import cut
from breakeven.serving.promql import COUNTED, DRAFTED
from validation.judged_engines import ENGINES, Half, JudgedEngine
from validation.law_door import CONFIDENCE
from validation.pasts import MODEL, NAMESPACE, MadePast, PastOf, ScrapedPod, made_past
from validation.second_engine import Floats, arrivals, drawn, served
from validation.truths import Truths

WINDOW_S = 600
END_S = 1_760_000_400
"""A whole hour."""

_LOOKBACK_S = 300.0
_SAMPLE, _RUNS, _HALVINGS, _NEAR = 40_000, 8, 3, 0.03
"""Requests of a run, runs beside the break-even, steps towards it, and how far beside it these runs are."""

_NAMES = {**{stat: counted.name for stat, counted in COUNTED.items()}, "drafted": DRAFTED.name}


class Crossing(NamedTuple):
    """A break-even that was found by long runs.

    Attributes:
        rps: its rate; NaN: none.
        error_rps: standard error of it.
    """

    rps: float
    error_rps: float


class PastTrial(NamedTuple):
    """One past and what was said of it.

    Attributes:
        engine, kind, k: whose past, of which kind, with which other arm.
        words: what the past cannot say.
        true: the break-even at the lengths and acceptance of the rows; NaN: none was asked for.
        found_rps, bounds_rps: what is said of it; None: nothing, or an open end.
    """

    engine: str
    kind: PastOf
    k: int
    words: tuple[str, ...]
    true: Crossing = Crossing(math.nan, math.nan)
    found_rps: float | None = None
    bounds_rps: tuple[float | None, float | None] = (None, None)

    @property
    def held(self) -> bool | None:
        """Whether the bounds hold the truth, which has an error itself; None if nothing is claimed."""
        true_rps, error_rps = self.true
        if self.found_rps is None or math.isnan(true_rps):
            return None
        doubt_rps = float(ndtri(0.5 + 0.5 * CONFIDENCE)) * error_rps
        low, high = (
            None if end is None else math.hypot(end - self.found_rps, doubt_rps) for end in self.bounds_rps
        )
        off_rps = true_rps - self.found_rps
        return (low is None or -off_rps <= low) and (high is None or off_rps <= high)


def courses_of(past: MadePast, grid: TimeGrid) -> tuple[PodCourse, ...]:
    """The answers that a Prometheus would give about a made-up past."""
    return tuple(_course(pod, grid) for pod in past.pods)


def _course(pod: ScrapedPod, grid: TimeGrid) -> PodCourse:
    ends = grid.first_s + grid.step_s * np.arange(grid.times, dtype=float)
    last = np.searchsorted(pod.times_s, ends, side="right")
    first = np.searchsorted(pod.times_s, ends - grid.step_s, side="right")
    ages = ends - pod.times_s[np.maximum(last - 1, 0)]
    there = (last > 0) & (ages <= _LOOKBACK_S)

    def now(values: Floats) -> Floats:
        return np.where(there, values[np.maximum(last - 1, 0)], math.nan)

    def mean(values: Floats) -> Floats:
        sums = np.concatenate([[0.0], values.cumsum()])
        return np.where(last > first, (sums[last] - sums[first]) / np.maximum(last - first, 1), math.nan)

    least = np.array(
        [
            pod.values["num_requests_waiting"][a:b].min(initial=math.inf)
            for a, b in zip(first, last, strict=True)
        ]
    )
    stats = {stat: now(pod.values[name]) for stat, name in _NAMES.items() if name in pod.values}
    for stat in ("running", "waiting"):
        values = pod.values[f"num_requests_{stat}"]
        stats |= {stat: mean(values), f"{stat}{NOW}": now(values)}
    samples = np.where(last > first, last - first, math.nan)
    stats |= {
        "waiting_min": np.where(last > first, least, math.nan),
        SAMPLES: samples,
        RESETS: np.where(last > first, 0.0, math.nan),
    }
    accepted = {at: now(values) for at, values in pod.accepted.items()}
    return PodCourse(PodName(NAMESPACE, pod.name, MODEL), stats, accepted)


def read_made(past: MadePast, method: str | None) -> KnownPast:
    """The answer of `breakeven history` about a made-up past, without a Prometheus between."""
    grid = TimeGrid.of_past(past.end_s, past.days * 86_400, WINDOW_S)
    pods = courses_of(past, grid)
    kinds = {one.name: _kind(one, method) for one in pods}
    found = cut(grid, pods, lambda one: kinds[one.name])
    names = [(one.name.namespace, one.name.replica) for one in pods]
    return known_past(AskedPast((), None, grid, method), found, names, tuple(kinds.values()))


def _kind(one: PodCourse, method: str | None) -> PodKind:
    return kind_of(one.name.model, one.values("drafts") is not None, one.longest_draft, PodFacts(), method)


def judged_past(engine: JudgedEngine, kind: PastOf, k: int, crossing_rps: float, seed: int) -> PastTrial:
    """Make a past around a break-even, read it and hold it against the truth."""
    past = made_past(engine, kind, k, 1.4 * crossing_rps, END_S, seed=seed)
    known = read_made(past, engine.method)
    words = tuple(str(one.word) for one in known.doubts)
    found = PastTrial(engine.kind, kind, k, words)
    arm = Arm(engine.method, k)
    seen = known.against_none(arm, CONFIDENCE)
    if kind is PastOf.ONE_ARM or seen is None:
        return found
    true = steady_crossing(_as_read(engine, kind, known, arm), k, crossing_rps)
    return found._replace(
        true=true, found_rps=seen.break_even_rps, bounds_rps=seen.break_even_ci_rps or (None, None)
    )


def _as_read(engine: JudgedEngine, kind: PastOf, known: KnownPast, arm: Arm) -> JudgedEngine:
    """The engine at the lengths and the acceptance for which the fit compares, where these moved."""
    asking = engine.asking
    if known.profile is None or kind not in {PastOf.DRIFT, PastOf.HOURS}:
        return engine
    fit = known.profile.arm(arm)
    if kind is PastOf.HOURS:
        tokens = known.lengths().output_tokens or fit.lengths.output_tokens or asking.output_tokens
        return replace(engine, asking=replace(asking, output_tokens=tokens))
    low, high = 0.3 * asking.acceptance, min(1.6 * asking.acceptance, 0.97)
    for _ in range(12):
        middle = 0.5 * (low + high)
        sample = drawn(replace(asking, acceptance=middle), _SAMPLE, 0)
        e = float((sample.outputs - 1).sum() / sample.steps(arm.k).sum())
        low, high = (middle, high) if e < (fit.tokens_per_step or e) else (low, middle)
    return replace(engine, asking=replace(asking, acceptance=0.5 * (low + high)))


@cache
def steady_crossing(engine: JudgedEngine, k: int, about_rps: float) -> Crossing:
    """The rate at which both arms take equally long, from runs that are long beside the swings of a loaded engine's queue.

    Runs of some thousand requests begin empty and end before such a queue is what it is on average: their crossings are 1 to
    5 % higher (`truths.break_even_rps`). A gain of a tenth of a percent moves a break-even by as much as a bound is wide, so one
    run after another gives a crossing of its own, and their scatter the error.
    """
    low, high = 0.7 * about_rps, 1.15 * about_rps
    at_low, at_high = (_gain(engine, k, rate, 0) for rate in (low, high))
    if at_low * at_high > 0.0:
        return Crossing(math.nan, math.nan)
    for _ in range(_HALVINGS):
        middle = low + (high - low) * min(max(at_low / (at_low - at_high), 0.15), 0.85)
        found = _gain(engine, k, middle, 0)
        if found * at_low > 0.0:
            low, at_low = middle, found
        else:
            high, at_high = middle, found
    near = low + (high - low) * at_low / (at_low - at_high)
    low, high = (1.0 - _NEAR) * near, (1.0 + _NEAR) * near
    found_rps = []
    for seed in range(1, _RUNS + 1):
        at_low, at_high = (_gain(engine, k, rate, seed) for rate in (low, high))
        found_rps.append(low + (high - low) * at_low / (at_low - at_high))
    return Crossing(float(np.mean(found_rps)), float(np.std(found_rps, ddof=1)) / math.sqrt(_RUNS))


def _gain(engine: JudgedEngine, k: int, rate_rps: float, seed: int) -> float:
    """Latency without speculation over that with it (ln), of the same requests at the same moments."""
    asked, moments = drawn(engine.asking, _SAMPLE, 100 + seed), arrivals(rate_rps, _SAMPLE, 100 + seed)
    counted = slice(_SAMPLE // 10, int(0.97 * _SAMPLE))
    # So many arrivals come half a percent too soon or too late by chance, which is more than the error of the whole.
    seen = moments[counted]
    moments *= (seen.size - 1) / rate_rps / (seen[-1] - seen[0])
    latency_s = []
    for drafts in (0, k):
        course = served(engine.machine, drafts, asked, moments)
        latency_s.append(float((course.done_s - course.arrival_s)[counted].mean()))
    return math.log(latency_s[0] / latency_s[1])


def past_trials(
    kinds: Sequence[PastOf] = tuple(PastOf), engines: Sequence[str] = (), seeds: Sequence[int] = (0,)
) -> Iterator[PastTrial]:
    """Every kind of past, of each engine kept apart that has a break-even.

    Args:
        kinds: of pasts.
        engines: kinds of engines; empty: all.
        seeds: of the pasts.
    """
    for engine in ENGINES:
        if engine.half is not Half.APART or (engines and engine.kind not in engines):
            continue
        for k, crossing_rps in Truths.read(engine).crossings.items():
            if crossing_rps > 0.0:
                for kind in kinds:
                    for seed in seeds:
                        yield judged_past(engine, kind, k, crossing_rps, seed)


def past_row(one: PastTrial) -> tuple[str, ...]:
    """A trial as a row of a table."""
    ends = ["..." if end is None else f"{end:.4g}" for end in one.bounds_rps]
    true = "" if math.isnan(one.true.rps) else f"{one.true.rps:.4g}"
    bounds = ends if one.found_rps is not None else ["", ""]
    verdict = "" if one.held is None else "yes" if one.held else "NO"
    words = " ".join(dict.fromkeys(word for word in one.words if word != PastWord.CHANGES_UNKNOWN))
    return (one.engine, str(one.k), str(one.kind), true, *bounds, verdict, words)
