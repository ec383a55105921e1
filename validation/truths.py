"""Figures of the second engine from long runs, kept in `validation/truths/`; `python -m validation.truths` makes them.

A figure is the mean over runs of some thousand requests each. Runs with other seeds are added until its standard error is
below six tenths of a percent, at most 192. The file of an engine holds its parameters: figures of another engine are refused.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from breakeven.points.point import ImposedLoad, LoadMode, significant
from breakeven.tiers import Schedule
from validation.judged_engines import JudgedEngine
from validation.second_engine import Asking, arrivals, drawn, served

FOLDER = Path(__file__).parent / "truths"

LARGEST_ERROR = 0.006
"""Standard error of a mean latency, relative to it, at which no further run is made."""

_BURSTY_ERROR = 0.02
"""Standard error likewise, for arrivals in bursts, whose means take very long."""

_REQUESTS = 3000
_RUNS = range(4, 193)
_WARM, _COLD = 0.2, 0.9
"""Shares of a run between which requests count, because it begins and ends empty."""

_PAIRS = 3
_HALVINGS = 7
_CARRIED = 0.8
"""Share of saturation up to which a break-even counts: beyond, no run of this length is steady."""


def open_loop(rate_rps: float) -> ImposedLoad:
    """Poisson arrivals, at a rate as the files name it."""
    return ImposedLoad(LoadMode.POISSON, float(f"{rate_rps:.5g}"))


def closed_loop(clients: int) -> ImposedLoad:
    """A closed loop of a number of clients."""
    return ImposedLoad(LoadMode.CLOSED, clients)


@dataclass(frozen=True, slots=True)
class LongRun:
    """Figures of long runs of one arm at one load.

    Attributes:
        latency_s, ttft_s: means over requests; infinite where the load is beyond saturation.
        rps: requests per second that were answered.
        tokens_per_step: E.
        survival: share of steps whose first i drafts were accepted; empty without drafts or with a schedule.
        error: standard error of the latency, relative to it.
    """

    latency_s: float
    ttft_s: float
    rps: float
    tokens_per_step: float
    survival: tuple[float, ...]
    error: float

    def figures(self) -> tuple[float, ...]:
        """All but the error, in order."""
        return (self.latency_s, self.ttft_s, self.rps, self.tokens_per_step, *self.survival)

    @classmethod
    def of(cls, figures: Sequence[float], error: float) -> LongRun:
        """From its figures, in the digits that a file keeps."""
        latency_s, ttft_s, rps, e, *survival = map(significant, figures)
        return cls(latency_s, ttft_s, rps, e, tuple(survival), round(error, 5))


def long_run(
    engine: JudgedEngine, drafts: int | Schedule, load: ImposedLoad, asking: Asking, cv: float = 1.0
) -> LongRun:
    """Run until the mean is known; `cv` is that of the gaps of arrivals."""
    runs: list[LongRun] = []
    error, limit = math.inf, LARGEST_ERROR if cv == 1.0 else _BURSTY_ERROR
    while len(runs) < _RUNS.start or (error > limit and len(runs) < _RUNS.stop - 1):
        runs.append(_run(engine, drafts, load, asking, cv, len(runs)))
        latencies = np.array([one.latency_s for one in runs])
        if latencies.size > 1:
            error = float(latencies.std(ddof=1) / latencies.mean() / math.sqrt(latencies.size))
    return LongRun.of(
        [float(np.mean(figures)) for figures in zip(*map(LongRun.figures, runs), strict=True)], error
    )


def _run(
    engine: JudgedEngine, drafts: int | Schedule, load: ImposedLoad, asking: Asking, cv: float, seed: int
) -> LongRun:
    clients = load.clients
    count = _REQUESTS if clients is None else max(_REQUESTS // 2, 30 * clients)
    asked = drawn(asking, count, seed)
    if clients is None:
        course = served(engine.machine, drafts, asked, arrivals(load.value, count, seed, cv))
        counted = slice(int(_WARM * count), int(_COLD * count))
        latency_s, rps = float((course.done_s - course.arrival_s)[counted].mean()), load.value
    else:
        course = served(engine.machine, drafts, asked, clients)
        # Until the last request is sent every client has one in flight, so that Little's law is exact.
        counted = slice(int(_WARM * count), count - 2 * clients)
        answers = np.sort(course.done_s)[counted]
        rps = (answers.size - 1) / float(answers[-1] - answers[0])
        latency_s = clients / rps
    mask = np.zeros(count, dtype=bool)
    mask[counted] = True
    fixed = isinstance(drafts, int) and drafts
    return LongRun(
        latency_s,
        float((course.first_s - course.arrival_s)[counted].mean()),
        rps,
        float((asked.outputs - 1)[counted].sum() / course.steps[counted].sum()),
        tuple(asked.survival(fixed, course.steps, mask)) if fixed else (),
        math.inf,
    )


def break_even_rps(engine: JudgedEngine, k: int, highest_rps: float) -> float:
    """The rate at which drafts of this length stop or begin to pay, by halving; 0 where that is below no rate.

    Both arms serve the same requests at the same moments, so that what chance does to one it does to the other.
    """

    def gain(rate_rps: float) -> float:
        sums = np.zeros(2)
        for seed in range(_PAIRS):
            asked, moments = drawn(engine.asking, _REQUESTS, seed), arrivals(rate_rps, _REQUESTS, seed)
            counted = slice(int(_WARM * _REQUESTS), int(_COLD * _REQUESTS))
            for i, drafts in enumerate((0, k)):
                course = served(engine.machine, drafts, asked, moments)
                sums[i] += (course.done_s - course.arrival_s)[counted].sum()
        return math.log(sums[0] / sums[1])

    low, high = 0.02 * highest_rps, highest_rps
    at_low, at_high = gain(low), gain(high)
    if at_low * at_high > 0.0:
        return 0.0
    for _ in range(_HALVINGS):
        # The crossing of a line through both ends, kept away from them: latencies diverge at the upper one.
        share = min(max(at_low / (at_low - at_high), 0.2), 0.8)
        middle = low + share * (high - low)
        found = gain(middle)
        if abs(found) < 0.003:
            return significant(middle)
        if found * at_low > 0.0:
            low, at_low = middle, found
        else:
            high, at_high = middle, found
    return significant(low + at_low / (at_low - at_high) * (high - low))


@dataclass(slots=True)
class Truths:
    """Figures of one engine; made where they are asked for and not in its file, if that is allowed.

    Attributes:
        engine: whose.
        making: whether to make what is missing; else that is refused.
        known: by arm, load and lengths.
        crossings: break-evens by draft length (1/s); 0 where there is none.
    """

    engine: JudgedEngine
    making: bool = False
    known: dict[str, LongRun] = field(default_factory=dict)
    crossings: dict[int, float] = field(default_factory=dict)

    @classmethod
    def read(cls, engine: JudgedEngine, *, making: bool = False) -> Truths:
        """Those of an engine's file.

        Raises:
            SystemExit: the file is missing, or is that of another engine, and nothing may be made.
        """
        file = _file(engine)
        stored = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if stored.get("engine") != repr(engine):
            if not making:
                sys.exit(f"{file}: no figures of this engine; expected those that `{_command(engine)}` makes")
            return cls(engine, making)
        known = {key: LongRun.of(figures[:-1], figures[-1]) for key, figures in stored["figures"].items()}
        crossings = {int(k): rps for k, rps in stored["break_even_rps"].items()}
        return cls(engine, making, known, crossings)

    def write(self) -> None:
        """Keep all in the engine's file, a figure a line."""
        FOLDER.mkdir(exist_ok=True)
        lines = ",\n".join(
            f"  {json.dumps(key)}: {json.dumps([*run.figures(), run.error])}"
            for key, run in sorted(self.known.items())
        )
        made = f'"made": {json.dumps(_command(self.engine))},\n "engine": {json.dumps(repr(self.engine))}'
        order = (
            '"order": ["latency_s", "ttft_s", "rps", "tokens_per_step", "accepted up to each draft", "error"]'
        )
        crossings = f'"break_even_rps": {json.dumps(self.crossings)}'
        _file(self.engine).write_text(
            f'{{{made},\n {crossings},\n {order},\n "figures": {{\n{lines}\n }}\n}}\n', encoding="utf-8"
        )

    def at(
        self, drafts: int | Schedule, load: ImposedLoad, asking: Asking | None = None, cv: float = 1.0
    ) -> LongRun:
        """The figures of an arm at a load; `cv` is that of the gaps of arrivals, 1 for Poisson's.

        Raises:
            SystemExit: they are missing, and nothing may be made.
        """
        asks = asking or self.engine.asking
        text = f"{load.value:.5g} {'rps' if load.clients is None else 'clients'}"
        key = f"k={drafts} {text} p={asks.prompt_tokens:g} g={asks.output_tokens:g} a={asks.acceptance:.4g}"
        key += "" if cv == 1.0 else f" cv={cv:g}"
        if key not in self.known:
            if not self.making:
                sys.exit(f"{_file(self.engine)}: no {key}; make it with `{_command(self.engine)}`")
            self.known[key] = long_run(self.engine, drafts, load, asks, cv)
            self.write()
        return self.known[key]

    def break_even_rps(self, k: int) -> float | None:
        """The true break-even (1/s) below what both arms carry; None where there is none.

        Raises:
            SystemExit: it is missing, and nothing may be made.
        """
        if k not in self.crossings:
            if not self.making:
                sys.exit(
                    f"{_file(self.engine)}: no break-even of k={k}; make it with `{_command(self.engine)}`"
                )
            highest = _CARRIED * min(self.saturation_rps(0), self.saturation_rps(k))
            self.crossings[k] = break_even_rps(self.engine, k, highest)
            self.write()
        return self.crossings[k] or None

    def saturation_rps(self, drafts: int | Schedule, asking: Asking | None = None) -> float:
        """Requests per second that a full batch of clients gets answered."""
        return self.at(drafts, closed_loop(self.engine.machine.seats), asking).rps


def _file(engine: JudgedEngine) -> Path:
    return FOLDER / f"{engine.kind}, {engine.half}.json".replace(" ", "-").replace(",", "")


def _command(engine: JudgedEngine) -> str:
    return f"python -m validation.law_table --make --engine {engine.kind!r} --half {engine.half.value!r}"
