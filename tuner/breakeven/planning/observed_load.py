"""Load of a service as observed over one window, and the conditions that follow from it for each arm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.laws.acceptance_numbers import TokensPerStep
from breakeven.laws.moved_acceptance import SeenAt, carried
from breakeven.planning.decision_memory import LiveAcceptance
from breakeven.profile import ArmFit, Bounds, Conditions, Profile

AVERAGED_S = 900.0
"""Time (s) over which live acceptance is averaged, with weights of e^(-age/A): three windows of five minutes."""

_ENDS = 2.0 * 1.645
"""Standard deviations between both ends of a range that 90 % bounds hold."""


@dataclass(frozen=True)
class Load:
    """Load of a service as observed over one window, per replica.

    Attributes:
        rps: offered request rate per replica (1/s).
        requests: requests finished in it.
        inflight: mean number in flight per replica; None if not observed.
        latency_s: measured mean end-to-end latency (s); None if not observed.
        tokens_per_step: E of the running arm; None if not observed, or without speculation.
        prompt_tokens, output_tokens: mean per request; None as calibrated.
        saturated: measured, not modelled: the queue grows, requests are preempted.
        ttft_s, tpot_s: measured means of time to first token and time per output token (s); None if not observed.
        survival: share of drafts whose first tokens up to each position were all accepted; empty if not observed.
        strain: bounds of the largest ratio of a measured quantile to the objective's limit, from figures that have lasted longer
            than a window; an upper one of None is open; None if not known.
        dispersion: variance over mean of the counts of arrivals; None if unknown, and arrivals count as Poisson.
        met_inflight: mean number in flight among which finished requests were; None takes `inflight`.
        drains: a queue drained, or came and went: no mean number in flight explains the latency.
        settled: whether the latency belongs to this load; while a queue from a roll is worked off, no law is learned
            from it.
    """

    rps: float
    window_s: float
    requests: float
    inflight: float | None = None
    latency_s: float | None = None
    tokens_per_step: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    saturated: bool = False
    ttft_s: float | None = None
    tpot_s: float | None = None
    survival: tuple[float, ...] = ()
    met_inflight: float | None = None
    drains: bool = False
    settled: bool = True
    strain: Bounds | None = None
    dispersion: float | None = None

    def __post_init__(self) -> None:
        for name in ("rps", "window_s", "requests"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(
                    f"{name}: {value!r} is not a finite number of at least 0; missing data is not a load"
                )
        optional = ("inflight", "latency_s", "tokens_per_step", "prompt_tokens", "output_tokens")
        for name in (*optional, "ttft_s", "tpot_s", "dispersion"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(
                    f"{name}: {value!r} is not a finite number of at least 0; use None for unknown"
                )

    @cached_property
    def idle(self) -> bool:
        """Whether there were no requests to decide on."""
        return self.rps == 0 or self.requests == 0


def live_conditions(
    profile: Profile, load: Load, live: Sequence[LiveAcceptance]
) -> Callable[[Arm], Conditions]:
    """Conditions under which the load is to be predicted for each arm: its lengths, and the newest live acceptance of its drafter."""
    calibrated = {fit.arm: fit for fit in profile.arms}

    def conditions(arm: Arm) -> Conditions:
        e = _tokens_per_step(arm, calibrated, live)
        bursts = 1.0 if load.dispersion is None else load.dispersion
        if e is None:
            return Conditions(None, load.prompt_tokens, load.output_tokens, dispersion=bursts)
        error = math.hypot(
            sampling_error(calibrated.get(arm), load, live), (e.upper - e.lower) / (_ENDS * e.value)
        )
        return Conditions(e.value, load.prompt_tokens, load.output_tokens, error, bursts)

    return conditions


def _tokens_per_step(
    arm: Arm, calibrated: dict[Arm, ArmFit], live: Sequence[LiveAcceptance]
) -> TokensPerStep | None:
    """Live E of the arm, or the E of another draft length of its drafter carried over; None as calibrated."""
    # E of a schedule is a mixture over its draft lengths that changes with the load.
    if arm == NO_SPECULATION or arm.scheduled:
        return None
    for seen in live:
        if seen.arm == arm:
            e = min(max(seen.tokens_per_step, 1.0), arm.k + 1.0)
            return TokensPerStep(e, e, e, "measured", len(seen.survival))
        if seen.arm.family != arm.family:
            continue
        here, there = _calibrated_at(calibrated.get(arm)), _calibrated_at(calibrated.get(seen.arm))
        if here is not None and there is not None:
            now = SeenAt(there.k, min(max(seen.tokens_per_step, 1.0), there.k + 1.0), seen.survival)
            return carried(arm.method, now, there, here)
    return None


def _calibrated_at(fit: ArmFit | None) -> SeenAt | None:
    if fit is None or fit.acceptance is None or fit.tokens_per_step is None:
        return None
    return SeenAt(fit.k, fit.tokens_per_step, fit.acceptance.survival)


def sampling_error(fit: ArmFit | None, load: Load, live: Sequence[LiveAcceptance]) -> float:
    """Relative standard error of a live E.

    It is the scatter between windows of live traffic, over the windows that are averaged: tokens of one request are similar,
    and so are requests of one hour. It is at least the scatter of requests when the arm was calibrated, over the requests of now,
    because a single window shows no scatter.
    """
    scatter = fit.acceptance.request_scatter if fit is not None and fit.acceptance is not None else None
    calibrated = scatter / math.sqrt(load.requests) if scatter and load.requests else 0.0
    # Weights of e^(-age/A) count 2A/window windows: their squares sum to window/(2A).
    share = math.sqrt(min(load.window_s / (2.0 * AVERAGED_S), 1.0))
    known = [seen for seen in live if fit is not None and seen.arm.family == fit.arm.family]
    return max([calibrated, *(share * seen.relative_scatter for seen in known)])
