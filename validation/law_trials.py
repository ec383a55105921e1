"""Trials of a law: calibrated as a user would, asked what it was not shown, held against the second engine.

A point's latency is that of long runs times a random factor, so that noise has the size that was asked for. E and the
acceptance of each draft keep a sampling error of half a percent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from breakeven.arm import Arm
from breakeven.errors import BreakevenError
from breakeven.laws.latency import dispersion
from breakeven.points.point import ImposedLoad, Origin, Point
from breakeven.points.row import point
from breakeven.profile import Conditions, LoadPoint
from validation.judged_engines import JudgedEngine
from validation.law_door import AskedLaw, BoundedFigure, LawUnderTest
from validation.second_engine import Asking, arrivals
from validation.truths import LongRun, Truths, closed_loop, open_loop

MEASURED = (0, 2, 7)
UNSEEN = (1, 3, 4, 5)

_ACCEPTANCE_NOISE = 0.005
_TTFT_NOISE = 0.5
"""Scatter of a TTFT of its own, over that of the latency."""

DESIGNS: dict[str, tuple[tuple[int, ...], tuple[float, ...]]] = {
    "closed": ((0, 1, 2, 3, 4, 5), ()),
    "open": ((0,), (0.1, 0.2, 0.4, 0.5, 0.6)),
    "mixed": ((0, 2, 4), (0.2, 0.4, 0.6)),
}
"""Six loads of every arm: which of the engine's closed loops, and which shares of the arm's saturation."""

RATES = (0.25, 0.45, 0.68)
"""Loads that are asked for, as shares of the saturation of no speculation."""

TRUSTED = 0.7
"""Share of an arm's own saturation up to which its latency is judged."""

SATURATED = 0.95
"""Share of saturation from which a true latency is taken for infinite."""

_ELSEWHERE = (0.25, 0.6)
_BURSTY_LOADS = (0.25, 0.45)
_BURSTY_CV = 3.0
_SEEN = 20_000
"""Requests whose times the law is shown as a dispersion; their seed, too."""


class JudgedAnswer(NamedTuple):
    """One answer of a law, held against the truth.

    Attributes:
        column: the question.
        error: relative; 1 where the law takes a load for saturated that is not; None where there is no answer.
        held: whether the bounds hold the truth; None without an answer.
    """

    column: str
    error: float | None
    held: bool | None


@dataclass(frozen=True, slots=True)
class LawTrial:
    """A law on one engine, calibrated once.

    Attributes:
        engine: which.
        design: which loads were measured.
        noise: relative standard deviation of a measured latency.
        answers: to all questions.
        regrets: of the draft length that the law calls fastest, by load; None where it names none.
        fit_s, decision_s: seconds of the fit, and of asking for seven arms at one load once their tables are made.
    """

    engine: JudgedEngine
    design: str
    noise: float
    answers: tuple[JudgedAnswer, ...]
    regrets: tuple[float | None, ...]
    fit_s: float
    decision_s: float


class OtherConditions(NamedTuple):
    """Other conditions than those measured: what changes, and what requests then ask for."""

    column: str
    asking: Asking
    moves_acceptance: bool


def elsewhere(asking: Asking) -> tuple[OtherConditions, ...]:
    """Longer prompts, longer and shorter answers, text that is harder and easier to draft."""
    return (
        OtherConditions("prompts x4", replace(asking, prompt_tokens=4.0 * asking.prompt_tokens), False),
        OtherConditions("answers x2", replace(asking, output_tokens=2.0 * asking.output_tokens), False),
        OtherConditions("answers /2", replace(asking, output_tokens=0.5 * asking.output_tokens), False),
        OtherConditions("E x0.6", replace(asking, acceptance=_acceptance(asking, 0.6)), True),
        OtherConditions("E x1.3", replace(asking, acceptance=_acceptance(asking, 1.3)), True),
    )


def _acceptance(asking: Asking, factor: float, k: int = 7) -> float:
    """The acceptance at which E of independent drafts is that many times what it is; at most .95."""
    wanted = factor * sum(asking.acceptance**i for i in range(k + 1))
    grid = np.linspace(0.02, 0.95, 931)
    e = sum(grid**i for i in range(k + 1))
    return round(float(grid[np.argmin(np.abs(e - wanted))]), 4)


def rates_of(truths: Truths, k: int) -> Iterator[float]:
    """Rates (1/s) at which an arm is judged: the common ones as far as it carries them, and its own last trusted one."""
    own = truths.saturation_rps(k)
    for share in RATES:
        if share * truths.saturation_rps(0) <= TRUSTED * own:
            yield share * truths.saturation_rps(0)
    yield TRUSTED * own


def measured(truths: Truths, design: str, noise: float, seed: int) -> list[Point]:
    """The points of a calibration of the three measured arms."""
    random = np.random.default_rng([seed, *design.encode()])
    closed, open_loops = DESIGNS[design]
    loads: list[tuple[int, ImposedLoad]] = []
    for k in MEASURED:
        loads += [(k, closed_loop(truths.engine.clients[i])) for i in closed]
        loads += [(k, open_loop(share * truths.saturation_rps(k))) for share in open_loops]
    engine = truths.engine
    return [
        measured_point(engine.arm(k), load, engine.asking, truths.at(k, load), noise, random, number)
        for number, (k, load) in enumerate(loads, start=1)
    ]


def measured_point(
    arm: Arm,
    load: ImposedLoad,
    asking: Asking,
    true: LongRun,
    noise: float,
    random: np.random.Generator,
    number: int,
) -> Point:
    """A point as a benchmark's file gives it, with noise."""
    latency_s = true.latency_s * math.exp(noise * random.standard_normal())
    ttft_s = (
        true.ttft_s * latency_s / true.latency_s * math.exp(_TTFT_NOISE * noise * random.standard_normal())
    )
    ttft_s = min(ttft_s, 0.9 * latency_s)
    squares = asking.output_tokens**2 * (1.0 + asking.output_cv**2)
    fields: dict[str, str | float] = {
        "method": arm.method,
        "k": float(arm.k),
        "mean_latency_s": latency_s,
        "ttft_mean_s": ttft_s,
        "tpot_mean_s": (latency_s - ttft_s) / (asking.output_tokens - 1.0),
        "prompt_tokens": asking.prompt_tokens,
        "output_tokens": asking.output_tokens,
        "output_tokens_sq": squares,
        "requests": 2000.0,
    }
    if load.clients is None:
        rate = load.value
        fields |= {"request_rate_rps": rate, "achieved_rps": rate, "mean_inflight": rate * latency_s}
    else:
        clients = float(load.clients)
        fields |= {"concurrency": clients, "achieved_rps": clients / latency_s, "mean_inflight": clients}
    if arm.k:
        factor = math.exp(_ACCEPTANCE_NOISE * random.standard_normal())
        fields["tokens_per_step"] = 1.0 + (true.tokens_per_step - 1.0) * factor
        fields["drafted_per_step"] = float(arm.k)
        fields |= {f"accept_{i}": min(share * factor, 1.0) for i, share in enumerate(true.survival, start=1)}
    return point(fields, Origin("second engine", number))


def trial(law: LawUnderTest, truths: Truths, design: str, noise: float, seed: int) -> LawTrial:
    """Calibrate, fit, ask everything."""
    points = measured(truths, design, noise, seed)
    started = time.perf_counter()
    fitted = law.fit(points)
    fit_s = time.perf_counter() - started
    answers = [
        *_at_loads(fitted, truths),
        *_elsewhere(fitted, truths),
        *_in_bursts(fitted, truths),
        *_break_evens(fitted, truths),
    ]
    regrets = tuple(_regrets(fitted, truths))
    started = time.perf_counter()
    for _ in _predicted(fitted, truths.engine, RATES[0] * truths.saturation_rps(0)):
        pass
    decision_s = time.perf_counter() - started
    return LawTrial(truths.engine, design, noise, tuple(answers), regrets, fit_s, decision_s)


def judged(column: str, answer: BoundedFigure, true: float) -> JudgedAnswer:
    """An answer held against the truth."""
    error = answer.value / true - 1.0 if math.isfinite(answer.value) else 1.0
    return JudgedAnswer(column, error, answer.holds(true))


def _at_loads(fitted: AskedLaw, truths: Truths) -> Iterator[JudgedAnswer]:
    engine = truths.engine
    for k in (*MEASURED, *UNSEEN):
        column = "unseen load" if k in MEASURED else "unseen k"
        for rate in rates_of(truths, k):
            yield _asked(fitted, column, engine.arm(k), rate, Conditions(), truths.at(k, open_loop(rate)))
    for rate in (share * truths.saturation_rps(0) for share in RATES):
        if rate <= TRUSTED * truths.saturation_rps(engine.schedule):
            true = truths.at(engine.schedule, open_loop(rate)).latency_s
            try:
                found = fitted.scheduled_latency(engine.method, engine.schedule, LoadPoint(rps=rate))
            except BreakevenError:
                yield JudgedAnswer("schedule", None, None)
            else:
                yield judged("schedule", found, true)


def _asked(
    fitted: AskedLaw, column: str, arm: Arm, rate: float, conditions: Conditions, true: LongRun
) -> JudgedAnswer:
    try:
        return judged(column, fitted.latency(arm, LoadPoint(rps=rate), conditions), true.latency_s)
    except BreakevenError:
        return JudgedAnswer(column, None, None)


def _elsewhere(fitted: AskedLaw, truths: Truths) -> Iterator[JudgedAnswer]:
    engine = truths.engine
    for one in elsewhere(engine.asking):
        for k in MEASURED:
            if one.moves_acceptance and not k:
                continue
            for share in _ELSEWHERE:
                rate = share * truths.saturation_rps(k, one.asking)
                true = truths.at(k, open_loop(rate), one.asking)
                conditions = Conditions(
                    true.tokens_per_step if k else None, one.asking.prompt_tokens, one.asking.output_tokens
                )
                yield _asked(fitted, one.column, engine.arm(k), rate, conditions, true)


def _in_bursts(fitted: AskedLaw, truths: Truths) -> Iterator[JudgedAnswer]:
    engine = truths.engine
    span_s = truths.at(0, closed_loop(1)).latency_s
    for k in MEASURED:
        for share in _BURSTY_LOADS:
            rate = share * truths.saturation_rps(k)
            true = truths.at(k, open_loop(rate), cv=_BURSTY_CV)
            seen = dispersion(arrivals(rate, _SEEN, _SEEN, _BURSTY_CV), span_s)
            conditions = Conditions(dispersion=seen or 1.0)
            yield _asked(fitted, "bursts", engine.arm(k), rate, conditions, true)


def _break_evens(fitted: AskedLaw, truths: Truths) -> Iterator[JudgedAnswer]:
    for k in MEASURED[1:]:
        true = truths.break_even_rps(k)
        if true is None:
            continue
        try:
            found = fitted.break_even_rps(truths.engine.arm(k))
        except BreakevenError:
            found = None
        yield JudgedAnswer("break-even", None, None) if found is None else judged("break-even", found, true)


def _predicted(fitted: AskedLaw, engine: JudgedEngine, rate_rps: float) -> Iterator[tuple[int, float]]:
    """Draft lengths and their latencies (s) at a rate, as far as the law has them."""
    for k in sorted((*MEASURED, *UNSEEN)):
        with suppress(BreakevenError):
            yield k, fitted.latency(engine.arm(k), LoadPoint(rps=rate_rps), Conditions()).value


def _regrets(fitted: AskedLaw, truths: Truths) -> Iterator[float | None]:
    """Share by which the law's fastest draft length is slower than the true fastest, at most 1, at each load."""
    for share in RATES:
        rate = share * truths.saturation_rps(0)
        true = {
            k: truths.at(k, open_loop(rate)).latency_s
            if rate < SATURATED * truths.saturation_rps(k)
            else math.inf
            for k in (*MEASURED, *UNSEEN)
        }
        predicted = dict(_predicted(fitted, truths.engine, rate))
        if predicted:
            chosen = min(predicted, key=lambda k: predicted[k])
            yield min(true[chosen] / min(true.values()) - 1.0, 1.0)
        else:
            yield None


def trials(
    law: LawUnderTest, engine: JudgedEngine, noise: float, seeds: Sequence[int], designs: Sequence[str]
) -> Iterator[LawTrial]:
    """Every design and seed of an engine."""
    truths = Truths.read(engine)
    for design in designs:
        for seed in seeds:
            yield trial(law, truths, design, noise, seed)
