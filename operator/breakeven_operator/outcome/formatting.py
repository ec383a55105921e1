"""Verdict of a cycle about a service, and its figures as people read them: three significant digits, the unit, bounds in brackets."""

from __future__ import annotations

import math

from breakeven.arm import Arm
from breakeven.estimate import Estimate
from breakeven.phrases import NOT_KNOWN, are_known, column, fixed, ratio_column, ratio_text, spoken
from breakeven.profile import Comparison
from breakeven.reasons import SIDES
from breakeven_operator.case import Verdict

PAST_MARK = " (past)"
"""End of PAYS while the figures are of a past."""
FORMER_MARK = " (old)"
"""End of PAYS while the figures are of a profile that is not in force any more."""


def speedup(comparison: Comparison | None, measured: Estimate | None) -> str:
    """The column SPEEDUP: the figure that PAYS goes by and how it is known, or that there is none because an arm is saturated.

    A `measured` speedup overrules the profile.
    """
    if measured is not None:
        return f"{ratio_column(measured.value, measured.bounds)} measured"
    if comparison is None:
        return "-"
    if comparison.speedup == 0 and comparison.speedup_ci is None:
        return "saturated"
    shown = ratio_column(comparison.speedup, comparison.speedup_ci)
    return shown if shown in {"-", NOT_KNOWN} else f"{shown} {comparison.how_known}"


def break_even(comparison: Comparison | None, *, bounded: bool = False, of: Arm | None = None) -> str:
    """The column BREAK-EVEN: a load, with bounds such as `8.7 [8.1,9.4] rps` if they are asked for, or why there is none.

    `of`: the arm, where a reader would take the load for the break-even of another one.
    """
    if comparison is None:
        return "-"
    verdict, shown = str(comparison.verdict).lower(), ""
    if comparison.break_even_rps is None and comparison.break_even_beyond_range:
        shown = "beyond measured"
    # Bounds beside it say themselves how uncertain it is.
    elif verdict in SIDES or (bounded and comparison.break_even_rps is not None):
        ends = comparison.break_even_ci_rps if bounded else None
        bounds = f" [{','.join(map(column, ends))}]" if ends not in {None, (None, None)} else ""
        shown = column(comparison.break_even_rps, f"{bounds} rps".strip())
        shown = f"above {shown}" if verdict == "above" and shown != "-" else shown
    shown = shown or verdict
    return f"{shown} ({of.name})" if of is not None and shown != "-" else shown


_FEWEST_WINDOWS = 3
"""Windows of the account without which measured latency overrules no profile: each of them has a cause beside the arm."""


def pays(comparison: Comparison | None) -> bool | None:
    """Whether speculation pays at this load; None if the bounds contain both."""
    if comparison is None or comparison.speedup is None:
        return None
    if comparison.speedup_ci is None:
        # One of the two is saturated at this load: there is no ratio to have bounds, and no doubt either.
        return {0.0: False, math.inf: True}.get(comparison.speedup)
    return _above_one(comparison.known)


def _above_one(known: Estimate) -> bool | None:
    """Whether a ratio is significantly above or below 1; None if its bounds hold 1."""
    return True if known.above(1.0) else False if known.below(1.0) else None


def pays_now(verdict: Verdict) -> bool | None:
    """Whether speculation pays at this load, by the figure that the column SPEEDUP shows."""
    known = overruling(verdict)
    return pays(verdict.against_none) if known is None else _above_one(known)


def overruling(verdict: Verdict) -> Estimate | None:
    """The speedup of the arm in place by live latency, if it overrules the profile; None if the profile's figure stands.

    It does where it lies outside the profile's bounds, or on the other side of 1: decisions go by it there.
    """
    comparison, known = verdict.against_none, verdict.speedup
    if comparison is None or comparison.speedup is None or comparison.speedup_ci is None or known is None:
        return None
    if verdict.windows < _FEWEST_WINDOWS:
        return None
    lower, upper = comparison.speedup_ci
    outside = (upper is not None and known.above(upper)) or (lower is not None and known.below(lower))
    turned = known.value is not None and (known.value > 1.0) is not (comparison.speedup > 1.0)
    overrules = (outside or turned) and are_known(known.value or 0.0, known.lower, known.upper)
    return known if overrules else None


def with_measured(message: str, verdict: Verdict) -> str:
    """The sentence, with the measured latency if the profile's figure does not hold."""
    known = overruling(verdict)
    return message if known is None else f"{message}; by measured latency it is {ratio_text(known)}"


def with_overload(verdict: Verdict) -> str:
    """The sentence of a verdict, with a remark if the load is beyond what the running arm can carry."""
    message, running = verdict.message, verdict.running
    if running is None or running.utilisation <= 1:
        return message
    return (
        f"{message}; the load is {fixed(100 * running.utilisation)} % of what {spoken(running.arm)} can carry "
        f"({column(running.saturation_rps)} rps per replica): requests queue"
    )
