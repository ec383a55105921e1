"""A load that the running arm answers now corrects a saturation that its profile puts below that load."""

from __future__ import annotations

import math
from dataclasses import replace

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.profile import Conditions
from breakeven.profile.credit import credited
from breakeven.serving.counted_window import Window
from breakeven_operator.reconcile.calibration_state import Calibrated
from breakeven_operator.reconcile.live_metrics import Live


def with_carried(state: Calibrated, running: Arm | None, live: Live) -> Calibrated:
    """Where the running arm is in a steady state at a rate beyond its profile's saturation, believe the measurement.

    Every figure of a cycle comes from the profile that is returned; the stored profile stays as it is.
    """
    figures, entry = live.figures, state.entry
    if running is None or entry is None or entry.profile is None or not live.usable or figures is None:
        return state
    if not carries(figures) or figures.latency_s is None:
        return state
    conditions = Conditions(
        # E of a schedule is a mix over its tiers: it converts nothing. No speculation has none, and so the decision's own curve.
        None
        if figures.tokens_per_step is None or running.scheduled or running == NO_SPECULATION
        else min(max(figures.tokens_per_step, 1.0), running.k + 1.0),
        figures.prompt_tokens,
        figures.output_tokens,
        dispersion=figures.arrivals.dispersion_or_poisson,
    )
    try:
        profile = credited(entry.profile, running, figures.rps, figures.latency_s, conditions)
    except BreakevenError:
        # The measurements do not cover this arm or these lengths; the decision says so.
        return state
    return replace(state, entry=replace(entry, profile=profile))


def carries(figures: Window) -> bool:
    """Whether what is asked for is answered: no standing queue, and in-flight does not grow by more than chance.

    What is in flight at the window's begin and at its end are two counts; two standard deviations of their difference
    are chance.
    """
    if figures.saturated or not figures.latency_s or not figures.rps > 0 or figures.inflight is None:
        return False
    grown = figures.rps * figures.replicas * figures.window_s - figures.requests
    return grown <= 2.0 * math.sqrt(2.0 * figures.inflight * figures.replicas)
