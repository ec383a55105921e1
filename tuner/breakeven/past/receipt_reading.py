"""Questions to a Prometheus behind receipts, and their answers as receipts. Pure: whoever drives the generator asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final

from breakeven.errors import BreakevenError
from breakeven.past.courses import TimeGrid
from breakeven.past.receipts import BEFORE_ROLL_S, BEFORE_S, METRICS, PREFIX, Receipt, added, receipts
from breakeven.readers.prometheus import Samples
from breakeven.serving.promql import Matcher, RangeQuestion

STEP_S: Final = 300
"""Length of a window: a sample is looked for as far back, so that a gap is no longer than it is."""
_HOUR_S = 3600
# An answer about a week of a service with twenty arms has 4 MiB.
_WINDOWS = 7 * 86_400 // STEP_S
# Whoever is scraped can show another roll at each time; a service rolls once in a cool-down.
_MOST_ROLLS = 12
_OF_SERVICE = ("cluster", "specsvc_namespace", "specsvc")

Reading = Generator[RangeQuestion, Sequence[Samples], tuple[Receipt, ...]]
"""Yields questions, takes their answers, and returns receipts."""


def reading(matchers: Sequence[Matcher], now_s: float, past_s: float, say: Callable[[str], None]) -> Reading:
    """Receipts of the services that the matchers choose, over a past (s) that ends now; `say` gets a line of each that is left out.

    Raises:
        BreakevenError: Prometheus has no series of such services, or no usable answer about any of them.
    """
    grid = TimeGrid.of_past(now_s, past_s, STEP_S)
    chosen = ",".join(one.render() for one in matchers)
    service_info = f"last_over_time({PREFIX}service_info{{{chosen}}}[{_HOUR_S}s])"
    first_s, last_s = grid.first_s // _HOUR_S * _HOUR_S, -(-grid.last_s // _HOUR_S) * _HOUR_S
    found = yield RangeQuestion(
        f"group by ({','.join(_OF_SERVICE)}) ({service_info})", first_s, last_s, _HOUR_S
    )
    if not found:
        raise BreakevenError(
            f"no series {PREFIX}service_info{{{chosen}}}; expected a Prometheus that scrapes the operator's /metrics"
        )
    every: list[Receipt] = []
    refused: list[str] = []
    for one in found:
        of_one = [Matcher(label, "=", one.labels.get(label, "")) for label in _OF_SERVICE]
        own = ",".join(each.render() for each in (*of_one, *matchers))
        known = len(every)
        try:
            for part in grid.chunks(_WINDOWS):
                every += yield from _of_part(own, part)
        except BreakevenError as error:
            # Whoever is scraped can make one service's answer as large as he likes.
            del every[known:]
            refused.append(f"{'/'.join(label.value for label in of_one[1:])}: {error}")
            if len(refused) == len(found):
                raise BreakevenError(refused[0]) from error
    for line in refused:
        say(f"{line}; the service is left out")
    return added(every)


def answered(asking: Reading, ask: Callable[[RangeQuestion], Sequence[Samples]]) -> tuple[Receipt, ...]:
    """Receipts by a function that asks."""
    try:
        question = next(asking)
        while True:
            try:
                answer = ask(question)
            except BreakevenError as error:
                question = asking.throw(error)
            else:
                question = asking.send(answer)
    except StopIteration as done:
        found: tuple[Receipt, ...] = done.value
        return found


def _of_part(chosen: str, grid: TimeGrid) -> Reading:
    """Receipts of one service over a part of the past."""
    promql = f'{{__name__=~"{PREFIX}({"|".join(METRICS)})",{chosen}}}'
    early_s = grid.first_s - BEFORE_S
    samples = list((yield RangeQuestion(promql, early_s, grid.last_s, STEP_S)))
    replicas = f'{{__name__=~"{PREFIX}(ready_replicas|rollout_in_progress)",{chosen}}}'
    early = sorted(one for one in _rolls(samples) if one < early_s + BEFORE_ROLL_S)
    for rolled_s in early[-_MOST_ROLLS:]:
        last_s = min(rolled_s // STEP_S * STEP_S, early_s - STEP_S)
        samples += yield RangeQuestion(replicas, last_s - BEFORE_ROLL_S, last_s, STEP_S)
    return receipts(samples, grid)


def _rolls(samples: Iterable[Samples]) -> set[int]:
    """Unix times (s) at which measured rolls ended."""
    name = f"{PREFIX}roll_timestamp_seconds"
    return {
        int(one.value)
        for series in samples
        if series.labels.get("__name__") == name
        for one in series.values
        if 0.0 < one.value < math.inf
    }
