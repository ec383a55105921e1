"""Results of a policy on the requests of a trace, in the same terms for both kinds of replay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from breakeven.arm import Arm
from breakeven.planning.objective import Slo
from breakeven_sim.engine.requests import Request
from breakeven_sim.replay.stepping import ReplayedWindow
from breakeven_sim.replay.traces import RateTrace

_Floats = NDArray[np.float64]
_Z95 = NormalDist().inv_cdf(0.95)
_TIE = 1e-3
"""Relative difference below which two window means are the same: an equal arm met by requests a step apart."""


@dataclass(frozen=True, slots=True)
class ReplayedParts:
    """Parts of the latency of answered requests.

    Attributes:
        ttft_mean_s, ttft_p95_s: time to first token over requests.
        tpot_mean_s: decode time of all requests over all decoded tokens; `None` if every answer was one token.
        tpot_p95_s: 95th percentile of time per token over requests; `None` likewise.
        tokens_per_step: E, decoded tokens over request-steps; `None` likewise.
    """

    ttft_mean_s: float
    ttft_p95_s: float
    tpot_mean_s: float | None
    tpot_p95_s: float | None
    tokens_per_step: float | None

    @classmethod
    def of(cls, finished: Sequence[Request]) -> ReplayedParts | None:
        """The parts of requests that an engine answered; `None` without any."""
        if not finished:
            return None
        ttft_s = np.array([r.first_token_s - r.arrival_s for r in finished])
        decode_s = np.array([r.finished_s - r.first_token_s for r in finished])
        tokens = np.array([r.output_tokens - 1 for r in finished])
        steps, several = sum(r.steps for r in finished), tokens > 0
        decoded = int(tokens.sum())
        return cls(
            float(ttft_s.mean()),
            float(np.quantile(ttft_s, 0.95)),
            float(decode_s.sum()) / decoded if decoded else None,
            float(np.quantile(decode_s[several] / tokens[several], 0.95)) if decoded else None,
            decoded / steps if decoded and steps else None,
        )


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """One policy's result.

    Attributes:
        policy: its name.
        requests: how many were answered.
        mean_latency_s: over all requests; `None` without any.
        p95_latency_s: likewise.
        switches: rolls begun.
        slo_attainment: share of requests that kept every limit; `None` without limits.
        window_latency_s: mean per window of the trace, NaN without arrivals; shape (windows,).
        window_length_s: shape (windows,).
        parts: of requests on a simulated engine what their latency consists of; `None` where laws were replayed.
        mean_inflight: mean number in flight of the whole fleet; `None` without any time.
        window_arms: what ran, or was being rolled out, in each window of a stepped replay; empty on the event clock.
    """

    policy: str
    requests: float
    mean_latency_s: float | None
    p95_latency_s: float | None
    switches: int
    slo_attainment: float | None
    window_latency_s: _Floats
    window_length_s: _Floats
    parts: ReplayedParts | None = None
    mean_inflight: float | None = None
    window_arms: tuple[Arm, ...] = ()

    def seconds_below_one(self, none: PolicyOutcome) -> float:
        """Time in whose windows requests were slower than without speculation."""
        with np.errstate(invalid="ignore"):
            slower = self.window_latency_s > none.window_latency_s * (1.0 + _TIE)
        return float(self.window_length_s[slower].sum())


def of_requests(
    policy: str,
    finished: Sequence[Request],
    switches: int,
    slo: Slo,
    windows: RateTrace,
    *,
    engine: bool = True,
) -> PolicyOutcome:
    """The outcome of a replay on the event clock; requests belong to the window of their arrival.

    Args:
        policy: its name.
        finished: the requests.
        switches: rolls begun.
        slo: the limits.
        windows: that are compared.
        engine: whether an engine answered, rather than a law without a first token.
    """
    arrival = np.array([r.arrival_s for r in finished])
    latency = np.array([r.finished_s for r in finished]) - arrival
    place = np.clip(np.searchsorted(windows.start_s, arrival, side="right") - 1, 0, len(windows) - 1)
    counts = np.bincount(place, minlength=len(windows))
    with np.errstate(invalid="ignore"):
        means = np.bincount(place, latency, minlength=len(windows)) / counts
    return PolicyOutcome(
        policy,
        len(finished),
        float(latency.mean()) if len(finished) else None,
        float(np.quantile(latency, 0.95)) if len(finished) else None,
        switches,
        _kept_share(finished, latency, slo) if slo.is_set and len(finished) else None,
        means,
        windows.length_s,
        ReplayedParts.of(finished) if engine else None,
        float(latency.sum() / windows.length_s.sum()) if windows.length_s.sum() > 0 else None,
    )


def of_windows(
    policy: str,
    windows: Sequence[ReplayedWindow],
    switches: int,
    slo: Slo,
    fleet_rps: _Floats,
    length_s: _Floats,
) -> PolicyOutcome:
    """The outcome of stepping: within a window latencies are taken as lognormal through their mean and 95th percentile."""
    mean = np.array([w.latency_s for w in windows])
    spread = _lognormal_sigma(mean, np.array([w.p95_s for w in windows]))
    weight = fleet_rps * length_s
    total = float(weight.sum())
    if total == 0.0:
        return PolicyOutcome(policy, 0.0, None, None, switches, None, np.full(len(windows), np.nan), length_s)
    share = weight / total
    kept = None
    if slo.e2e_s is not None:
        kept = float(share @ _below(slo.e2e_s, mean, spread))
    means = np.where(weight > 0, mean, np.nan)
    return PolicyOutcome(
        policy,
        total,
        float(share @ mean),
        _quantile(0.95, share, mean, spread),
        switches,
        kept,
        means,
        length_s,
        None,
        # Little's law: every request is in flight for its latency.
        float((weight * mean).sum() / length_s.sum()),
        tuple(w.arm for w in windows),
    )


def _kept_share(finished: Sequence[Request], latency: _Floats, slo: Slo) -> float:
    kept = np.ones(len(finished), np.bool_)
    ttft = np.array([r.first_token_s - r.arrival_s for r in finished])
    if slo.e2e_s is not None:
        kept &= latency <= slo.e2e_s
    if slo.ttft_s is not None:
        kept &= ttft <= slo.ttft_s
    if slo.tpot_s is not None:
        tokens = np.array([max(1, r.output_tokens - 1) for r in finished])
        kept &= (latency - ttft) / tokens <= slo.tpot_s
    return float(kept.mean())


def _lognormal_sigma(mean: _Floats, p95: _Floats) -> _Floats:
    """Sigma of the lognormal with this mean and 95th percentile: ln(p95/mean) = z*sigma - sigma^2/2, its smaller root."""
    ratio = np.log(np.maximum(p95 / mean, 1.0))
    # Beyond exp(z^2/2) = 3.9 times the mean no lognormal has such a percentile; the widest possible one is taken.
    return np.asarray(_Z95 - np.sqrt(np.maximum(_Z95**2 - 2.0 * ratio, 0.0)))


def _below(limit: float, mean: _Floats, sigma: _Floats) -> _Floats:
    """P(latency <= limit) per window."""
    certain = (mean <= limit).astype(np.float64)
    location = np.log(mean) - sigma**2 / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        z = (math.log(limit) - location) / sigma
    return np.where(sigma > 1e-9, 0.5 * (1.0 + _erf(z / math.sqrt(2.0))), certain)


def _erf(x: _Floats) -> _Floats:
    return np.array(
        [math.erf(value) if math.isfinite(value) else math.copysign(1.0, value) for value in x.tolist()]
    )


def _quantile(q: float, share: _Floats, mean: _Floats, sigma: _Floats) -> float:
    """Quantile of the mixture of all windows, by bisection to 1e-6 relative."""
    low, high = float(mean[share > 0].min()) * 1e-2, float(mean.max()) * 50.0
    while high > low * (1.0 + 1e-6):
        middle = math.sqrt(low * high)
        if float(share @ _below(middle, mean, sigma)) < q:
            low = middle
        else:
            high = middle
    return high
