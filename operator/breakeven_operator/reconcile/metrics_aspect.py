"""The condition about the figures: whether there are some to decide on, and what must be known about them."""

from __future__ import annotations

from breakeven.laws.latency import BURSTY
from breakeven.serving.counted_window import Arrivals
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.conditions import METRICS, Aspect
from breakeven_operator.reconcile.formatting import figure
from breakeven_operator.reconcile.live_metrics import Live


def metrics_aspect(live: Live) -> Aspect:
    """Whether there are figures to decide on; that clients give up is said here too, because no decision waits for it."""
    gone = live.usable and live.figures is not None and live.figures.given_up > 0.0
    reason = ClusterReason.CLIENTS_GIVE_UP if gone else live.reason
    return Aspect(METRICS, live.usable, str(reason), _metrics_message(live))


def _metrics_message(live: Live) -> str:
    """The message about the figures, with notes on arrivals that are not Poisson's and on a past that could not be read."""
    if not live.usable or live.figures is None:
        return live.message
    return "; ".join(filter(None, (live.message, _arrivals_note(live.figures.arrivals), live.past.problem)))


def _arrivals_note(seen: Arrivals) -> str:
    if seen.dispersion is None:
        return f"arrivals are taken for Poisson's, because their dispersion is unknown: {seen.problem}"
    if seen.dispersion < BURSTY:
        return ""
    return f"predictions hold for arrivals of dispersion {figure(seen.dispersion)} in spans of {figure(seen.span_s)} s"
