"""Checks against published data: the split, the errors, the goal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from breakeven.arm import Arm
from breakeven.fitting import fit_points
from breakeven.points.point import Point
from breakeven.profile import Conditions, Profile
from validation import published
from validation.accepted import resampling, tokens_per_step_elsewhere
from validation.adaptive_sweeps import adaptive_outcomes
from validation.bought_design import bought_points
from validation.conversions import conversion_errors
from validation.outcomes import Goal, ValidationOutcome, error_outcome
from validation.simulated import (
    bounds_coverage,
    break_even_coverage,
    open_loop_coverage,
    verdicts_on_equal_arms,
)

TRUSTED = 0.75
"""Utilisation up to which unseen loads are judged."""


def all_checks(folder: Path | None) -> Iterator[ValidationOutcome]:
    """Run everything; without a folder only what needs no data."""
    if folder is not None:
        yield from unseen_loads(folder)
        yield from unseen_draft_lengths(folder)
        yield from unseen_loads_p95(folder)
        yield from tokens_per_step_elsewhere(folder)
        yield resampling(folder)
    yield from adaptive_outcomes()
    yield from break_even_coverage()
    yield from bounds_coverage()
    yield from open_loop_coverage()
    yield verdicts_on_equal_arms()
    yield from conversion_errors()
    yield from bought_points()


_LOAD_GOALS = {"mean": Goal(0.03, below=True), "p90": Goal(0.06, below=True), "worst": Goal(0.09, below=True)}


_BENT = (
    "every arm's latency rises faster up to 32 requests than beyond, which three loads cannot show: the law lies 3 % low "
    "between them; the in-flight of this table is itself borrowed from another workload's runs"
)


def unseen_loads(folder: Path) -> Iterator[ValidationOutcome]:
    """Fit some loads of all arms and predict the others, at their in-flight, up to utilisation 0.75."""
    check = "unseen loads"
    sets = {
        "Apertus 8B GH200": published.apertus_levels(folder),
        "Apertus summarization, dspark": published.apertus_grid(folder, "dspark"),
        "Apertus summarization, eagle": published.apertus_grid(folder, "eagle_e1"),
        "DeepSeek-V4 MI355X": published.dsv4_levels(folder),
    }
    inside: list[float] = []
    for name, points in sets.items():
        within, beyond = _load_errors(points, 3)
        inside += within
        note = _BENT if "dspark" in name else ""
        yield error_outcome(check, name, "3 loads, others between", within, _LOAD_GOALS, note)
        if beyond:
            yield error_outcome(check, name, "3 loads, others beyond (flagged)", beyond, {})
        five, _ = _load_errors(points, 5)
        if five:
            yield error_outcome(check, name, "5 loads, the one between", five, _LOAD_GOALS)
    note = "the summarization table with dspark, as above"
    yield error_outcome(check, "all four", "3 loads, others between", inside, _LOAD_GOALS, note)


def _load_errors(points: Sequence[Point], loads: int) -> tuple[list[float], list[float]]:
    """Errors between the chosen loads, and beyond them; every choice of as many of the loads that all arms have."""
    within: list[float] = []
    beyond: list[float] = []
    arms = {
        arm: {one.concurrency or 0.0: one for one in points if one.arm == arm} for arm in _arms_of(points)
    }
    shared = sorted(set.intersection(*(set(rows) for rows in arms.values())))
    if len(shared) <= loads:
        return [], []
    for chosen in itertools.combinations(shared, loads):
        profile = fit_points([rows[at] for rows in arms.values() for at in chosen])
        for arm, rows in arms.items():
            curve = profile.curve(arm)
            slope_s = float(profile.arm(arm).c2_s or 0.0)
            for at, row in rows.items():
                inflight = row.mean_inflight or row.concurrency or 1.0
                if at in chosen or inflight / row.mean_latency_s * slope_s > TRUSTED:
                    continue
                error = curve.loop_latency_s(inflight - 1.0, closed=True) / row.mean_latency_s - 1.0
                (within if chosen[0] < at < chosen[-1] else beyond).append(error)
    return within, beyond


def _arms_of(points: Sequence[Point]) -> list[Arm]:
    return list(dict.fromkeys(one.arm for one in points))


def unseen_loads_p95(folder: Path) -> Iterator[ValidationOutcome]:
    """Leave each inner load of an arm out and predict the 95th percentiles there."""
    figures = {"latency_s": "p95_latency_s", "tpot_s": "tpot_p95_s", "ttft_s": "ttft_p95_s"}
    errors: dict[str, list[float]] = {name: [] for name in figures}
    points = published.apertus_levels(folder)
    for arm in dict.fromkeys(one.arm for one in points):
        rows = sorted((one for one in points if one.arm == arm), key=lambda one: one.concurrency or 0.0)
        for left_out in rows[1:-1]:
            profile = fit_points([row for row in rows if row is not left_out])
            found = profile.predict(arm, concurrency=left_out.mean_inflight, quantile=0.95)
            for name, column in figures.items():
                errors[name].append(getattr(found, name) / getattr(left_out, column) - 1.0)
    split = "one load left out, between the others"
    goals = {"mean": Goal(0.10, below=True)}
    yield error_outcome("p95 at unseen loads: latency", "Apertus 8B GH200", split, errors["latency_s"], goals)
    yield error_outcome("p95 at unseen loads: TPOT", "Apertus 8B GH200", split, errors["tpot_s"], goals)
    note = "all clients began at once: the prompts of that moment are the tail"
    yield error_outcome("p95 at unseen loads: TTFT", "Apertus 8B GH200", split, errors["ttft_s"], {}, note)


_STEP_AT_4 = (
    "nothing at k = 1 and 7 shows that k = 3 is best: throughput falls by 4 to 7 % from k = 3 to 4 at concurrency 8 to "
    "128 and is level on either side; with k = 3 measured the goal is met"
)

_LENGTH_GOALS = {
    "mean": Goal(0.035, below=True),
    "worst": Goal(0.09, below=True),
    "regret": Goal(0.015, below=True),
}


def unseen_draft_lengths(folder: Path) -> Iterator[ValidationOutcome]:
    """Fit no speculation and two draft lengths; predict the others, with E given and with E derived."""
    sets = {
        "Apertus 8B GH200, eagle3": ("eagle3", published.apertus_levels(folder), ""),
        "Apertus summarization, dspark": (
            "dspark",
            published.apertus_grid(folder, "dspark"),
            _STEP_AT_4,
        ),
        "Apertus summarization, eagle": (
            "eagle_e1",
            published.apertus_grid(folder, "eagle_e1"),
            "",
        ),
    }
    check = "unseen draft length"
    for name, (method, points, note) in sets.items():
        yield _between_any_two(name, method, points)
        for trained in ((0, 1, 7), (0, 3, 7)):
            profile = fit_points([one for one in points if one.arm.k in trained])
            for derived in (False, True):
                errors, regret = _length_errors(profile, method, points, trained, derived=derived)
                outcome = error_outcome(
                    check,
                    name,
                    f"k = {','.join(map(str, trained))}; E {'derived' if derived else 'given'}",
                    errors,
                    _LENGTH_GOALS,
                    note,
                )
                outcome.figures["regret"] = regret
                yield outcome


def _between_any_two(name: str, method: str, points: Sequence[Point]) -> ValidationOutcome:
    """Every pair of measured draft lengths with others between them, E derived: no choice of the split."""
    lengths = sorted({one.arm.k for one in points} - {0})
    errors: list[float] = []
    for pair in itertools.combinations(lengths, 2):
        between = [one for one in points if pair[0] < one.arm.k < pair[1]]
        if between:
            profile = fit_points([one for one in points if one.arm.k in (0, *pair)])
            found, _ = _length_errors(profile, method, between, (0, *pair), derived=True)
            errors += found
    goals = {name: _LENGTH_GOALS[name] for name in ("mean", "worst")}
    return error_outcome("unseen draft length", name, "any two k, others between; E derived", errors, goals)


def _length_errors(
    profile: Profile, method: str, points: Sequence[Point], trained: Sequence[int], *, derived: bool
) -> tuple[list[float], float]:
    """Errors at unseen draft lengths, and the mean regret of choosing the draft length by prediction."""
    errors: list[float] = []
    regrets: list[float] = []
    by_load: dict[float, list[tuple[float, float]]] = {}
    for row in points:
        conditions = (
            Conditions() if derived or row.arm.k == 0 else Conditions(tokens_per_step=row.tokens_per_step)
        )
        others = (row.mean_inflight or 1.0) - 1.0
        if row.arm.k in trained:
            conditions = Conditions()
        predicted = profile.curve(
            Arm(method, row.arm.k) if row.arm.k else row.arm, conditions
        ).loop_latency_s(others, closed=True)
        if row.arm.k not in trained:
            errors.append(predicted / row.mean_latency_s - 1.0)
        by_load.setdefault(row.concurrency or 1.0, []).append((predicted, row.mean_latency_s))
    for pairs in by_load.values():
        chosen = min(pairs)[1]
        regrets.append(chosen / min(true for _, true in pairs) - 1.0)
    return errors, float(np.mean(regrets))
