"""Whether speculation pays at the present load: by the profile, or by measured latency if the two differ significantly."""

from __future__ import annotations

import math

from breakeven.estimate import Estimate
from breakeven.phrases import are_known, figure, fixed, ratio_text, spoken
from breakeven.profile import Comparison
from breakeven_operator.reconcile.verdict import Verdict

_FEWEST_WINDOWS = 3
"""Windows of the account without which measured latency overrules no profile: each of them has a cause beside the arm."""


def pays(comparison: Comparison | None) -> bool | None:
    """Whether speculation pays at this load; None if the bounds contain both."""
    if comparison is None or comparison.speedup is None:
        return None
    if comparison.speedup_ci is None:
        # One of the two is saturated at this load: there is no ratio to have bounds, and no doubt either.
        return {0.0: False, math.inf: True}.get(comparison.speedup)
    return _above_one(Estimate.of(comparison.speedup, comparison.speedup_ci))


def _above_one(known: Estimate) -> bool | None:
    """Whether a ratio is significantly above or below 1; None if its bounds hold 1."""
    return True if known.above(1.0) else False if known.below(1.0) else None


def pays_now(verdict: Verdict) -> bool | None:
    """Whether speculation pays at this load, by the figure that the column SPEEDUP shows."""
    known = overruling(verdict)
    return pays(verdict.against_none) if known is None else _above_one(known)


def overruling(verdict: Verdict) -> Estimate | None:
    """The speedup of the arm in place by live latency, if it overrules the profile's; None: the profile's figure stands.

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
        f"({figure(running.saturation_rps)} rps per replica): requests queue"
    )
