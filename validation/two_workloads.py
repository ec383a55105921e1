"""Two workloads' files, as users have them, and predictions for lengths and texts in neither of them.

Measured are no speculation and k = 3 and 5: prompts of 512 and answers of 256 tokens at five loads, prompts of 2048 and answers
of 64 at two. Asked are other lengths and acceptance at a quarter and at .6 of what no speculation carries there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from breakeven.errors import BreakevenError
from breakeven.points.point import ImposedLoad, Point
from breakeven.profile import Conditions, LoadPoint
from validation.law_door import AskedLaw, LawUnderTest
from validation.law_trials import TRUSTED, JudgedAnswer, judged, measured_point
from validation.second_engine import Asking
from validation.truths import Truths, closed_loop, open_loop

LENGTHS = (0, 3, 5)
_SECOND = (2048, 64)
_FIRST_RATES = (0.2, 0.35, 0.5, 0.65)
_SECOND_RATE = 0.4
_PLACES = ((128, 256), (128, 1024), (512, 64), (1024, 512), (2048, 64), (2048, 512))
_ACCEPTANCES = (0.75, 0.6, 0.4)
_LOADS = (0.25, 0.6)
_CLEAR = 0.05


@dataclass(frozen=True, slots=True)
class FilesTrial:
    """A law that was fitted to the files of two workloads.

    Attributes:
        latencies: its answers.
        wrong: for each speedup whose truth is clear of 1 by 5 %, whether the law puts it on the other side.
    """

    latencies: tuple[JudgedAnswer, ...]
    wrong: tuple[bool, ...]


def files(truths: Truths, noise: float, seed: int) -> list[Point]:
    """The points of both files."""
    random = np.random.default_rng([seed, 2])
    engine = truths.engine
    points: list[Point] = []
    first = engine.asking
    second = replace(first, prompt_tokens=float(_SECOND[0]), output_tokens=float(_SECOND[1]))
    for asking, shares in ((first, _FIRST_RATES), (second, (_SECOND_RATE,))):
        for k in LENGTHS:
            loads: list[ImposedLoad] = [closed_loop(1)]
            loads += [open_loop(share * truths.saturation_rps(k, asking)) for share in shares]
            for load in loads:
                true = truths.at(k, load, asking)
                number = len(points) + 1
                points.append(measured_point(engine.arm(k), load, asking, true, noise, random, number))
    return points


def files_trial(law: LawUnderTest, truths: Truths, noise: float, seed: int) -> FilesTrial:
    """Fit the files, and ask for everything."""
    fitted = law.fit(files(truths, noise, seed))
    answers: list[JudgedAnswer] = []
    wrong: list[bool] = []
    for prompt, output in _PLACES:
        for acceptance in _ACCEPTANCES:
            asking = replace(
                truths.engine.asking,
                prompt_tokens=float(prompt),
                output_tokens=float(output),
                acceptance=acceptance,
            )
            for share in _LOADS:
                found = list(_place(fitted, truths, asking, share))
                answers += [answer for answer, _, _ in found]
                wrong += list(_wrong_sides(found))
    return FilesTrial(tuple(answers), tuple(wrong))


_Found = tuple[JudgedAnswer, float, float]
"""An answer, the latency (s) that was predicted (NaN without an answer), and the true one."""


def _place(fitted: AskedLaw, truths: Truths, asking: Asking, share: float) -> Iterator[_Found]:
    plain = replace(asking, acceptance=truths.engine.asking.acceptance)
    rate = share * truths.saturation_rps(0, plain)
    for k in LENGTHS:
        drawn = asking if k else plain
        if k and rate > TRUSTED * truths.saturation_rps(k, drawn):
            continue
        true = truths.at(k, open_loop(rate), drawn)
        conditions = Conditions(
            true.tokens_per_step if k else None, asking.prompt_tokens, asking.output_tokens
        )
        try:
            found = fitted.latency(truths.engine.arm(k), LoadPoint(rps=rate), conditions)
        except BreakevenError:
            yield JudgedAnswer("two files", None, None), float("nan"), true.latency_s
        else:
            yield judged("two files", found, true.latency_s), found.value, true.latency_s


def _wrong_sides(found: list[_Found]) -> Iterator[bool]:
    (_, none_s, true_none_s), *rest = found
    for _, predicted_s, true_s in rest:
        if abs(true_none_s / true_s - 1.0) > _CLEAR:
            yield (none_s > predicted_s) != (true_none_s > true_s)
