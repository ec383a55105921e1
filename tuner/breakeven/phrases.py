"""Arms, figures, bounds and counts as words of a sentence, for every text that people read.

Format specifications alone write `1e+02 %`, `-0` and `1 pods`, and bounds of 0 and 57,000 as if they were known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.estimate import Estimate

NOT_KNOWN = "not known yet"
"""In place of bounds that say nothing."""
MANY_TIMES = 10.0
"""Factor from which more request time is a multiple and no percentage."""
_KNOWN_WITHIN = 4.0


def spoken(arm: Arm | str | None) -> str:
    """An arm or its name in a sentence: `none` would say the opposite of no speculation."""
    name = str(arm or "?")
    return "no speculation" if name == NO_SPECULATION.name else name


def change_text(from_arm: Arm | str | None, to_arm: Arm | str | None) -> str:
    """`no speculation -> eagle/3`."""
    return f"{spoken(from_arm)} -> {spoken(to_arm)}"


def counted(count: int, noun: str) -> str:
    """`1 pod`, `2 pods`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(names: Sequence[str], most: int = 4) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def fixed(value: float, places: int = 0) -> str:
    """A number with so many decimals, and zero without a sign."""
    text = f"{value:.{places}f}"
    return text if float(text) else f"{0.0:.{places}f}"


def figure(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, or all of its integer part; without an exponent."""
    text = f"{value:.{digits}g}"
    if "e" in text:
        text = fixed(value, 0 if abs(value) >= 1.0 else digits - 1 - math.floor(math.log10(abs(value))))
    return text if float(text) else "0"


def column(value: float | None, unit: str = "") -> str:
    """A figure in a column: `8.9 rps`; `-` if there is none."""
    return "-" if value is None or not math.isfinite(value) else f"{figure(value)} {unit}".strip()


def bounded_text(known: Estimate, unit: str = "") -> str:
    """`3 GPUs [1,4]`: a figure and its bounds, however far they are; an open end is `-`."""
    return f"{column(known.value, unit)} [{column(known.lower)},{column(known.upper)}]"


def percent(share: float | None) -> str:
    """A share as `0.42 %`, `12 %`, `100 %`; `-` if there is none."""
    return "-" if share is None else f"{figure(100.0 * share, 2)} %"


def are_known(value: float, lower: float | None, upper: float | None) -> bool:
    """Whether bounds say something: no end is beyond a factor of 4 of the figure, which is above 0."""
    return (lower is None or lower * _KNOWN_WITHIN >= value) and (
        upper is None or upper <= value * _KNOWN_WITHIN
    )


def between(lower: float | None, upper: float | None, show: Callable[[float], str] = figure) -> str:
    """Bounds: `1.74 to 1.90`, `10.6 or more`, `at most 12`, `not known yet`."""
    low, high = (None if end is None else show(end) for end in (lower, upper))
    if high is None:
        return NOT_KNOWN if low is None else f"{low} or more"
    return f"at most {high}" if low is None else f"{low} to {high}"


def through(value: float, lower: float | None, upper: float | None, places: int | None = None) -> str:
    """Bounds of a figure above 0, as `between` has them, or that they say nothing; places None: three significant digits."""
    show = figure if places is None else partial(fixed, places=places)
    return between(lower, upper, show) if are_known(value, lower, upper) else NOT_KNOWN


def ratio_text(known: Estimate, level: str = "") -> str:
    """A speedup with its bounds: `1.82x (1.74 to 1.90)`, at a level `1.82x (90 %: 1.74 to 1.90)`; without bounds it stands alone."""
    value = known.value if known.value is not None else math.nan
    ends = f" ({level}{through(value, *known.bounds, places=2)})" if known.bounds is not None else ""
    return f"{fixed(value, 2)}x{ends}"


def level_text(confidence: float) -> str:
    """What stands before bounds at a level: `90 %: `."""
    return f"{fixed(100.0 * confidence)} %: "


def bounded(
    value: float | None,
    bounds: tuple[float | None, float | None] | None,
    show: Callable[[float], str] = figure,
) -> str:
    """A figure and its bounds in a column: `8.9 [8.4,9.3]`; an open end is `-`, and bounds that say nothing are `not known yet`."""
    if value is None or bounds is None:
        return "-" if value is None else show(value)
    low, high = (None if end is None or not math.isfinite(end) else end for end in bounds)
    if value > 0.0 and not are_known(value, low, high):
        return NOT_KNOWN
    ends = ("-" if end is None else show(end) for end in (low, high))
    return f"{show(value)} [{','.join(ends)}]"


def ratio_column(value: float | None, bounds: tuple[float | None, float | None] | None) -> str:
    """A speedup in a column: `1.82 [1.74,1.90]`, as `bounded`; `-` if it is not finite. A ratio of 0 with bounds is none."""
    known = value if value is not None and math.isfinite(value) else None
    return NOT_KNOWN if known == 0.0 and bounds else bounded(known, bounds, partial(fixed, places=2))


_NUMBER = r"(\d+(?:\.\d+)?)"
_RATIO = re.compile(rf"{_NUMBER}(?: \[(?:{_NUMBER}|-),(?:{_NUMBER}|-)\])?", re.ASCII)


def ratio_read(text: str) -> Estimate | None:
    """The figure and the bounds that a column of `ratio_column` shows, whatever word follows them; None if it shows none."""
    found = _RATIO.match(text)
    if found is None:
        return None
    return Estimate(*(None if end is None else float(end) for end in found.groups()))


def pays_text(
    side: str, edge_rps: float, bounds: tuple[float | None, float | None] | None, unit: str = "rps"
) -> str:
    """`pays until 8.9 rps (8.4 to 9.3)`: an arm and its break-even; `side` is until or from."""
    known = f" ({through(edge_rps, *bounds)})" if bounds is not None else ""
    return f"pays {side} {figure(edge_rps)} {unit}{known}"


def ranges_text(ranges_rps: Iterable[tuple[float, float]]) -> str:
    """`from 0.4 to 3.8 and from 8.5 to 45.8`: where an arm pays that crosses no speculation more than once."""
    return " and ".join(f"from {figure(low)} to {figure(high)}" for low, high in ranges_rps)


def saved_text(share: float) -> str:
    """`saves 30 % of request time`, `takes 40 % more of request time`, `takes 12 times the request time`."""
    if share >= 0.0:
        return f"saves {fixed(100.0 * share)} % of request time"
    if share >= 1.0 - MANY_TIMES:
        return f"takes {fixed(-100.0 * share)} % more of request time"
    return f"takes {figure(1.0 - share)} times the request time"


def duration_text(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{math.ceil(seconds)} s"
    if seconds < 7200:
        return f"{math.ceil(seconds / 60)} min"
    return f"{figure(seconds / 3600)} h"


def latency_text(seconds: float) -> str:
    """`1.25 s`, `40 ms`."""
    return f"{figure(seconds)} s" if seconds >= 1 else f"{figure(1000 * seconds)} ms"
