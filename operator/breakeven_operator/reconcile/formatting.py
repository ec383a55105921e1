"""Figures as people read them: three significant digits, the unit, bounds in brackets."""

from __future__ import annotations

import math

from breakeven.planning.wording import break_even_text
from breakeven.profile import Comparison
from breakeven.profile.fits import Bounds
from breakeven.reasons import PAYS

PAST_MARK = " (past)"
"""End of PAYS while the figures are those of a past."""

FORMER_MARK = " (old)"
"""The same while they are those of a profile that is not in force any more."""


def figure(value: float | None, unit: str = "") -> str:
    """`8.9 rps`; `-` if there is none."""
    if value is None or not math.isfinite(value):
        return "-"
    digits = f"{value:.3g}"
    if "e" in digits:
        digits = f"{value:.0f}"
    return f"{digits} {unit}".strip()


def ratio(value: float | None, bounds: Bounds | None) -> str:
    """`1.82 [1.74,1.90]`; an open end shows as `-`."""
    if value is None or not math.isfinite(value):
        return "-"
    if bounds is None:
        return f"{value:.2f}"
    ends = ["-" if end is None or not math.isfinite(end) else f"{end:.2f}" for end in bounds]
    return f"{value:.2f} [{ends[0]},{ends[1]}]"


def speedup(comparison: Comparison | None) -> str:
    """The column SPEEDUP: with bounds, or that there is no ratio because one of the two is saturated."""
    if comparison is None:
        return "-"
    if comparison.speedup == 0 and comparison.speedup_ci is None:
        return "saturated"
    return ratio(comparison.speedup, comparison.speedup_ci)


def break_even(comparison: Comparison | None) -> str:
    """The column BREAK-EVEN: a load, or why there is none."""
    if comparison is None:
        return "-"
    if comparison.break_even_rps is None and comparison.break_even_beyond_range:
        return "beyond measured"
    verdict = str(comparison.verdict).lower()
    if verdict in {"below", "above"}:
        shown = figure(comparison.break_even_rps, "rps")
        return f"above {shown}" if verdict == "above" and shown != "-" else shown
    return verdict


def pays_until(comparison: Comparison) -> str:
    """Until which load an arm pays (its break-even: speedup 1), or why there is no such load; a verb phrase."""
    verdict = str(comparison.verdict).lower()
    if comparison.break_even_rps is not None:
        return break_even_text(comparison)
    if verdict in PAYS:
        return PAYS[verdict]
    return f"{'pays until' if verdict == 'below' else 'pays from'} a load beyond the measured range"
