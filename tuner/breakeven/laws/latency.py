"""The paper's law: latency grows linearly with the number of other requests in flight.

    L = C1 + n*C2

C1 (s) is the latency of a lone request. n is the mean number of *other* requests in flight that a request meets. C2 (s
per other request) is the latency that each of them adds. Kong et al., arXiv 2605.15051, write the same law with the rate; the
form with n is the one in which closed-loop and open-loop measurements agree:

- closed loop with C clients: n = (mean in flight) - 1, which is C - 1 in a long run;
- open loop, Poisson: an arrival meets the time average (PASTA), so n = RPS*L and L = C1/(1 - RPS*C2) below
  saturation, RPS*C2 < 1. This is exact for a processor-sharing queue, whatever the distribution of lengths.

Using imposed concurrency for n in an open loop is an error of one C2. All arguments broadcast; one outside its range raises
a ValueError that names it. Where a value does not exist (saturation) the result is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from breakeven.laws.arrays import FloatArray, at_least, nonnegative, positive, probability

FEWEST_SPANS = 20
"""Fewest spans behind a dispersion: its standard error is then a third of it."""

BURSTY = 2.0
"""Dispersion from which arrivals count as bursty: Poisson's reach it in 2 % of cases of `FEWEST_SPANS` spans."""

_RARE = 1e-3
"""Chances below this are added up term by term."""


def open_loop_latency(c1_s: ArrayLike, c2_s: ArrayLike, rps: ArrayLike) -> FloatArray:
    """Mean latency (s) under Poisson arrivals at `rps` (1/s): C1 / (1 - RPS*C2); NaN at and beyond saturation.

    Arrivals at a constant rate meet up to one other less; the law is an upper estimate for them.
    """
    idle = 1.0 - nonnegative("rps", rps) * nonnegative("c2_s", c2_s)
    return nonnegative("c1_s", c1_s) / np.where(idle > 0, idle, np.nan)


def others_met_at_constant_rate(mean_inflight: ArrayLike, length_cv: ArrayLike) -> FloatArray:
    """Turn a mean in-flight B (requests) under equally spaced arrivals into n, the law's load: B - E[min(S, S')]/E[S].

    Seen from a request, the others were sent whole intervals before and after it. A request sent at its own moment
    would fill the pattern up to the time average B. So the difference to B is the time for which two independent lengths S,
    S' overlap: all of it for equal lengths (n = B - 1, as in a closed loop), half for exponential ones. In general it is 1
    less Gini's coefficient of the lognormal with this spread. Below one in flight there are no others.
    Simulated with eight kinds of lengths (docs/model.md): latency within 5 % where C1 >= 5*C2, against 16 % for n = B.

    `length_cv` is the standard deviation over the mean of the requests' lengths.
    """
    spread = np.sqrt(np.log1p(nonnegative("length_cv", length_cv) ** 2))
    alone = 1.0 - np.vectorize(math.erf, otypes=[float])(spread / 2.0)
    return np.asarray(np.maximum(nonnegative("mean_inflight", mean_inflight) - alone, 0.0))


def mean_inflight_closed(concurrency: ArrayLike, requests: ArrayLike, rho: ArrayLike = 0.5) -> FloatArray:
    """Mean in-flight (requests) of a closed-loop run of finite length, ramp and drain included: C/F.

    F = 1 + rho*(C - 1)/requests. With few requests per client much of the run is ramp and drain. The imposed
    concurrency C in place of the mean would bend the law by 7-10 % at middle loads. rho is the share of ramp and drain that is
    lost: 0.2 to 0.8 on published sweeps.
    """
    clients = at_least("concurrency", concurrency, 1.0)
    lost = probability("rho", rho) * (clients - 1.0) / at_least("requests", requests, 1.0)
    return np.asarray(clients / (1.0 + lost))


def littles_law_gap(mean_inflight: ArrayLike, rps: ArrayLike, latency_s: ArrayLike) -> FloatArray:
    """Relative disagreement |in-flight - RPS*L| / in-flight (1); above 0.1 a point was not in a steady state."""
    inflight = positive("mean_inflight", mean_inflight)
    return np.asarray(
        np.abs(inflight - nonnegative("rps", rps) * nonnegative("latency_s", latency_s)) / inflight
    )


def mean_latency_error(c1_s: ArrayLike, latency_s: ArrayLike, requests: ArrayLike) -> FloatArray:
    """Relative standard error (1) of the mean latency of N requests of a Poisson open loop: L/C1 * sqrt(2/N).

    Requests that share the engine wait together, so N of them determine a mean far worse than N independent ones. The number
    in flight returns to its mean within L^2/C1 seconds, and its variance is 1/(RPS*C1) of the mean's square. Replicas
    count together. A window shorter than that time varies less than this; lengths that spread more than exponentially
    vary more, where the law is not taken at their mean. Without a request the error is infinite.
    (Simulated: tests/property/test_latency_laws.py.)
    """
    slowed = nonnegative("latency_s", latency_s) / positive("c1_s", c1_s)
    with np.errstate(divide="ignore"):
        return np.asarray(slowed * np.sqrt(2.0 / nonnegative("requests", requests)))


@dataclass(frozen=True, slots=True)
class InflightDistribution:
    """Number in flight of the open loop: negative binomial, insensitive to the distribution of lengths.

    Processor sharing with a base delay is a birth-death chain: births at rate RPS, and with j in flight deaths at
    rate j/(C1 + (j-1)*C2), so p_{j+1}/p_j = RPS*(C1 + j*C2)/(j + 1): r = C1/C2 and rho = RPS*C2.

    Attributes:
        mean: n = r*rho/(1 - rho) (requests); NaN at and beyond saturation, as everything else.
        rho: utilisation RPS*C2; 0 where C2 is 0, which is the Poisson limit (M/G/infinity).
    """

    mean: float
    rho: float

    def exceedance(self, count: float) -> float:
        """P(more than `count` in flight), at least 0.

        With `count` = max_num_seqs this is the chance that a request waits in the engine's queue; with what the KV pool
        holds, that the pool overflows and somebody is preempted.
        """
        if self.mean == 0:
            return 0.0
        if math.isnan(self.mean):
            return math.nan
        j = math.floor(count)
        rest = 1.0 - float(np.exp(self._logarithms(j)).sum())
        later = max(float(self._ratio(j + 1)), self.rho)
        if rest > _RARE or later >= 1.0:
            return max(rest, 0.0)
        # The difference to 1 has lost its digits; the terms beyond fall by at least this ratio each.
        last = j + 2 + math.ceil(math.log(np.finfo(float).eps) / math.log(max(later, np.finfo(float).eps)))
        return float(np.exp(self._logarithms(last)[j + 1 :]).sum())

    def _ratio(self, j: ArrayLike) -> FloatArray:
        """P(j + 1) over P(j): a birth at rate RPS against a death at rate (j + 1)/(C1 + j*C2)."""
        j = np.asarray(j, dtype=float)
        return np.asarray((self.mean * (1.0 - self.rho) + self.rho * j) / (j + 1.0))

    def _logarithms(self, last: int) -> FloatArray:
        """Logarithms of P(0) to P(`last`)."""
        alone = self.mean * (1.0 - self.rho)
        nobody = alone / self.rho * math.log1p(-self.rho) if self.rho > 0 else -alone
        # At rate 0 no request is in flight, and every ratio is 0.
        with np.errstate(divide="ignore"):
            steps = np.log(self._ratio(np.arange(last)))
        return np.asarray(nobody + np.concatenate([[0.0], np.cumsum(steps)]))


def dispersion(arrival_s: FloatArray, span_s: float) -> float | None:
    """The index of dispersion of arrivals: variance over mean of their counts in spans of this length.

    1 is Poisson, 0 a clock, 16 gamma gaps of coefficient of variation 4 in long spans. Spans as long as a request show who is
    in flight together. Neighbouring spans are compared, so that the course of a day is no burst. None if the arrivals (s,
    ascending) fill fewer than `FEWEST_SPANS` spans.
    """
    if arrival_s.size < 2:
        return None
    spans = np.floor((arrival_s - arrival_s[0]) / span_s).astype(np.int64)
    # The last span is cut off by the last arrival.
    counts = np.bincount(spans)[:-1].astype(np.float64)
    return dispersion_of_spans([(counts, np.ones(counts.shape))])


def dispersion_of_spans(streams: Iterable[tuple[FloatArray, FloatArray]]) -> float | None:
    """The index of dispersion of several streams together, each counted in spans that follow each other.

    Rates of neighbouring spans are compared, so that spans may differ in length. A stream has the counts and lengths (s) of its
    spans, NaN for a span of which nothing is known. None with fewer than `FEWEST_SPANS` spans, or without arrivals.
    """
    scatter, expected, compared = scatter_of_spans(streams)
    # N spans have N - 1 pairs of neighbours.
    return scatter / expected if compared >= FEWEST_SPANS - 1 and expected > 0.0 else None


def scatter_of_spans(streams: Iterable[tuple[FloatArray, FloatArray]]) -> tuple[float, float, int]:
    """Scatter of spans, the scatter that Poisson arrivals would have, and the number of compared pairs; see `dispersion_of_spans`."""
    scatter = expected = 0.0
    compared = 0
    for counts, lengths_s in streams:
        both_s = lengths_s[1:] + lengths_s[:-1]
        rates = counts / lengths_s
        apart = np.square(rates[1:] - rates[:-1]) * lengths_s[1:] * lengths_s[:-1] / both_s
        known = np.isfinite(apart)
        scatter += float(apart[known].sum())
        expected += float(((counts[1:] + counts[:-1]) / both_s)[known].sum())
        compared += int(known.sum())
    return scatter, expected, compared


def mean_kv_tokens(
    prompt_tokens: ArrayLike, output_tokens: ArrayLike, output_tokens_sq: ArrayLike | None = None
) -> FloatArray:
    """Time-averaged KV length of a running request (tokens): p + E[g^2] / (2 E[g]).

    A request is longest in the cache while it is long, so spread of g counts. Without a mean square g is taken as constant.
    Where p and g are correlated, give p weighted by g.
    """
    g = positive("output_tokens", output_tokens)
    square = g * g if output_tokens_sq is None else positive("output_tokens_sq", output_tokens_sq)
    if np.any(square < g * g * (1.0 - 1e-9)):
        raise ValueError(f"output_tokens_sq: {output_tokens_sq!r} is below the square of output_tokens")
    return np.asarray(nonnegative("prompt_tokens", prompt_tokens) + square / (2.0 * g))
