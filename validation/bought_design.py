"""Worth of the points that calibration buys: a family of engines on the event clock.

Every engine has no speculation and draft lengths 1 to 10. The truth at eleven loads comes from long runs of all of them. A
calibration may spend a tenth of what the full grid costs (k = 1 to 10 at nine loads of 60 s; starts are counted apart); its
points go through the library's own fit, which names the fastest measured arm at each expected load.

Per kind: GPU time, starts, regret (mean over the expected loads of what the named arm is slower than the best, and
the worst engine), and how often the 90 % bounds of an arm's speedup hold 1 at the true break-even, which is to say that
the break-even's interval holds it. Nothing was set on the seeds that judge.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.load_driver.design import Finished, SweepSettings
from breakeven.load_driver.next_point import next_point
from breakeven.load_driver.question import EXPECTED_SHARES, Question
from breakeven.planning.evaluation import LoadQuestion, best_arm, evaluate
from breakeven.planning.objective import Slo
from breakeven.points.point import Point
from breakeven.profile import LoadPoint, Profile
from breakeven.profile.comparisons import speedups_at_rps
from validation.design_engines import DRAFT_LENGTHS, Kind, Machine
from validation.outcomes import Goal, ValidationOutcome

JUDGING = (101, 102)
CONFIDENCE = 0.9
"""Nominal rate of the bounds, and so the goal for how often they hold the truth."""
GRID_S = len(DRAFT_LENGTHS) * 9 * 60.0
BUDGET_S = 0.1 * GRID_S
START_UP_S = 120.0
LARGEST_REGRET, LEAST_HELD = 0.01, CONFIDENCE
SETTINGS = SweepSettings(loads=12, warmup_seconds=2.0)
_OTHER_SHARES = (0.05, 0.22, 0.37, 0.52, 0.67, 0.85)
_TRUTH_REQUESTS = 500
_SATURATED_REGRET = 3.0


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one calibration of one engine.

    Attributes:
        kind, seed: the engine.
        gpu_s: GPU time of all points.
        starts: engines started.
        points: points bought.
        regret: mean over the expected loads.
        worst: at the worst of them.
        held: per arm with a law and a true break-even that its points reach, whether its interval holds it.
        crossings: arms with points and a true break-even in the range, with or without a law.
    """

    kind: Kind
    seed: int
    gpu_s: float
    starts: int
    points: int
    regret: float
    worst: float
    held: tuple[bool, ...]
    crossings: int


@dataclass(frozen=True, slots=True)
class Truth:
    """Brute force: mean latency (s) by arm at rates (1/s), infinite where saturated."""

    rates: tuple[float, ...]
    expected: tuple[int, ...]
    latency_s: dict[Arm, tuple[float, ...]]

    def break_even_rps(self, arm: Arm) -> float | None:
        """Where the arm stops or begins to be faster; None unless it changes exactly once."""
        none, own = (np.array(self.latency_s[one]) for one in (NO_SPECULATION, arm))
        both = np.isfinite(none) & np.isfinite(own)
        gain = np.log(none[both] / own[both])
        rates = np.array(self.rates)[both]
        changes = np.flatnonzero(np.diff(np.sign(gain)))
        if len(changes) != 1:
            return None
        at = int(changes[0])
        return float(rates[at] + (rates[at + 1] - rates[at]) * gain[at] / (gain[at] - gain[at + 1]))

    def latency_at(self, arm: Arm, rps: float) -> float:
        """Latency (s) between the loads that were measured."""
        latency_s = np.array(self.latency_s[arm])
        steady = np.isfinite(latency_s)
        return float(np.interp(rps, np.array(self.rates)[steady], latency_s[steady]))


def truth_of(machine: Machine) -> Truth:
    """Measure everything, which nobody would pay for."""
    shares = sorted({*EXPECTED_SHARES, *_OTHER_SHARES})
    capacity_rps = machine.capacity_rps()
    rates = tuple(share * capacity_rps for share in shares)
    found: dict[Arm, tuple[float, ...]] = {}
    for arm in machine.arms:
        found[arm] = tuple(
            machine.truth_s(arm, rate, _TRUTH_REQUESTS, 900 + index) for index, rate in enumerate(rates)
        )
    return Truth(rates, tuple(shares.index(share) for share in EXPECTED_SHARES), found)


def calibrate(machine: Machine, seed: int) -> tuple[list[Point], float, int]:
    """Buy points until the target or the budget; the points, their GPU time (s) and the starts."""
    question = Question(machine.arms, SETTINGS, running=NO_SPECULATION, startup_s=START_UP_S)
    points, spent_s, starts = list[Point](), 0.0, 1
    while True:
        step = next_point(question, points, BUDGET_S - spent_s)
        if isinstance(step, Finished):
            return points, spent_s, starts
        starts += step.arm != question.running
        point, took_s = machine.measure(step, 100 * seed + len(points))
        points.append(point)
        spent_s += took_s
        question = replace(question, running=step.arm)


def judged(truth: Truth, points: Sequence[Point]) -> tuple[float, float, tuple[bool, ...], int]:
    """Regret at the expected loads, mean and worst, whether break-evens are held, and how many there are to hold."""
    profile = fit_points(points, CONFIDENCE)
    regrets = []
    for at in truth.expected:
        named = named_arm(profile, truth.rates[at])
        best_s = min(latency[at] for latency in truth.latency_s.values())
        chosen_s = truth.latency_s[named][at]
        regrets.append(min(chosen_s / best_s - 1.0, _SATURATED_REGRET) if math.isfinite(best_s) else 0.0)
    measured = [fit.arm for fit in profile.arms if fit.measurements]
    found = [_holds(profile, truth, arm) for arm in measured if arm.k and NO_SPECULATION in measured]
    held = tuple(one for one in found if one is not None)
    bought = {point.arm for point in points if point.arm.k}
    crossings = sum(truth.break_even_rps(arm) is not None for arm in bought)
    return float(np.mean(regrets)), max(regrets), held, crossings


def named_arm(profile: Profile, rps: float) -> Arm:
    """The arm that `plan` names at a rate; where it needs an extrapolation, the one that needs none."""
    arms = [fit.arm for fit in profile.arms if fit.measurements]
    found = evaluate(profile, arms, LoadQuestion(LoadPoint(rps), derived=True))
    best = best_arm(found, Slo())
    return best.kept or best.arm


def _holds(profile: Profile, truth: Truth, arm: Arm) -> bool | None:
    """Whether the break-even's bounds hold the true one; None without one, and where the points of an arm do not reach it.

    Beyond its points a comparison gives no break-even. Whether it is reached is asked of the truth, not of a law that may
    be wrong.
    """
    rate = truth.break_even_rps(arm)
    if rate is None:
        return None
    curves = profile.curve(arm), profile.curve(NO_SPECULATION)
    true_s = truth.latency_at(arm, rate), truth.latency_at(NO_SPECULATION, rate)
    if any(curve.outside_measured(rate * latency_s) for curve, latency_s in zip(curves, true_s, strict=True)):
        return None
    found = speedups_at_rps(*curves, np.array([rate]), CONFIDENCE)
    speedup, lower, upper = (float(part[0]) for part in (found.speedup, found.lower, found.upper))
    # A law that has one of the two saturated there has no bounds, and is wrong: both carry the rate.
    if not 0.0 < speedup < math.inf:
        return False
    # An open end is NaN.
    return not lower > 1.0 and not upper < 1.0


def run(kind: Kind, seed: int, repeats: int) -> list[Result]:
    """Calibrate one engine several times, with other arrivals and texts each."""
    machine = Machine(kind, seed)
    truth = truth_of(machine)
    results = []
    for repeat in range(1, repeats + 1):
        points, gpu_s, starts = calibrate(machine, repeat)
        results.append(Result(kind, seed, gpu_s, starts, len(points), *judged(truth, points)))
    return results


@cache
def results_of(seeds: tuple[int, ...], repeats: int) -> tuple[Result, ...]:
    """All engines of the family with these seeds, on every core there is."""
    cases = [(kind, seed, repeats) for kind in Kind for seed in seeds]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return tuple(one for found in pool.map(run, *zip(*cases, strict=True)) for one in found)


def coverage(results: Sequence[Result]) -> float:
    """Share of the given intervals that hold their break-even; 0 where there are break-evens but no interval, 1 where neither."""
    held = [hit for one in results for hit in one.held]
    return _mean(held) if held else float(not any(one.crossings for one in results))


def _mean(values: object) -> float:
    return float(np.mean(list(values)))  # type: ignore[call-overload]


def bought_points() -> Iterator[ValidationOutcome]:
    """Regret and held break-evens of calibrations at a tenth of the full grid's price, per kind of engine and over all."""
    results = results_of(JUDGING, 1)
    for name, group in [
        *((str(kind), [one for one in results if one.kind is kind]) for kind in Kind),
        ("all", list(results)),
    ]:
        price = float(np.mean([one.gpu_s for one in group])) / GRID_S
        figures = {
            "worst": max(one.regret for one in group),
            "regret": float(np.mean([one.regret for one in group])),
        }
        goals = {"regret": Goal(LARGEST_REGRET, below=True)}
        if any(one.crossings for one in group):
            figures["coverage"] = coverage(group)
            goals["coverage"] = Goal(LEAST_HELD, below=False)
        yield ValidationOutcome(
            "points that are bought",
            f"event clock, {name}",
            f"{price:.1%} of the full grid's GPU time",
            figures,
            goals,
            len(group),
            _bought(group),
        )


def _bought(group: Sequence[Result]) -> str:
    """Points and engines that were bought, as measured; the cause of a missed goal is not known."""
    starts = float(np.mean([one.starts for one in group]))
    points = float(np.mean([one.points for one in group]))
    return f"a calibration bought {points:.0f} points on {starts:.1f} engines of 11"
