"""Whether speculation pays at the present load: by the profile, or by measured latency if the two differ significantly."""

from __future__ import annotations

import math

from breakeven.estimate import Estimate
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
    one = Estimate.of(comparison.speedup, comparison.speedup_ci)
    return True if one.above(1.0) else False if one.below(1.0) else None


def pays_now(verdict: Verdict) -> bool | None:
    """Whether speculation pays at this load: by the profile, or by measured latency if the two differ significantly."""
    by_profile, known = pays(verdict.against_none), verdict.speedup
    if known is None or not _contradicted(verdict):
        return by_profile
    return True if known.above(1.0) else False if known.below(1.0) else by_profile


def _contradicted(verdict: Verdict) -> bool:
    """Whether what is known of the arm in place lies outside of the bounds that the profile alone has for its speedup."""
    comparison, known = verdict.against_none, verdict.speedup
    if comparison is None or comparison.speedup_ci is None or known is None:
        return False
    if verdict.windows < _FEWEST_WINDOWS:
        return False
    lower, upper = comparison.speedup_ci
    return (upper is not None and known.above(upper)) or (lower is not None and known.below(lower))


def with_measured(message: str, verdict: Verdict) -> str:
    """The sentence, with the measured latency if the profile's figure does not hold."""
    known = verdict.speedup
    if known is None or not _contradicted(verdict):
        return message
    return f"{message}; by measured latency it is {known.value:.2f}x ({known.lower:.2f} to {known.upper:.2f})"


def with_overload(verdict: Verdict) -> str:
    """The sentence of a verdict, with a remark if the load is beyond what the running arm can carry."""
    message, running = verdict.message, verdict.running
    if running is None or running.utilisation <= 1:
        return message
    return (
        f"{message}; the load is {100 * running.utilisation:.0f} % of what {running.arm} can carry "
        f"({running.saturation_rps:.3g} rps per replica): requests queue"
    )
