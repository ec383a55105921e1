"""Figures as people read them: three significant digits, the unit, bounds in brackets."""

from __future__ import annotations

import math

from breakeven import phrases
from breakeven.estimate import Estimate
from breakeven.planning.wording import break_even_text
from breakeven.profile import Comparison
from breakeven.profile.fits import Bounds
from breakeven.reasons import PAYS

PAST_MARK = " (past)"
"""End of PAYS while the figures are of a past."""

FORMER_MARK = " (old)"
"""End of PAYS while the figures are of a profile that is not in force any more."""


def figure(value: float | None, unit: str = "") -> str:
    """`8.9 rps`; `-` if there is none."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{phrases.figure(value)} {unit}".strip()


def ratio(value: float | None, bounds: Bounds | None) -> str:
    """`1.82 [1.74,1.90]`; an open end shows as `-`, and bounds that say nothing as `not known yet`."""
    if value is None or not math.isfinite(value):
        return "-"
    if bounds is None:
        return phrases.fixed(value, 2)
    low, high = (None if end is None or not math.isfinite(end) else end for end in bounds)
    if not phrases.are_known(value, low, high):
        return phrases.NOT_KNOWN
    ends = ("-" if end is None else phrases.fixed(end, 2) for end in (low, high))
    return f"{phrases.fixed(value, 2)} [{','.join(ends)}]"


def speedup(comparison: Comparison | None, measured: Estimate | None) -> str:
    """The column SPEEDUP: the figure that PAYS goes by and how it is known, or that there is none because an arm is saturated.

    A `measured` speedup overrules the profile's.
    """
    if measured is not None:
        return f"{ratio(measured.value, measured.bounds)} measured"
    if comparison is None:
        return "-"
    if comparison.speedup == 0 and comparison.speedup_ci is None:
        return "saturated"
    shown = ratio(comparison.speedup, comparison.speedup_ci)
    return shown if shown in {"-", phrases.NOT_KNOWN} else f"{shown} {comparison.how_known}"


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
