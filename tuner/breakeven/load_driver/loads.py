"""Send times of a load's requests, and lengths of its first ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from breakeven.points.point import ImposedLoad, LoadMode


def send_offsets(load: ImposedLoad, seed: int, over_s: float) -> Iterator[float]:
    """Seconds after the start at which an open loop sends; endless, increasing.

    Poisson arrivals are drawn given their number: the first `over_s` seconds hold as many as the rate says. Left to
    chance, 4 s at 12 rps hold 48 give or take 7. A planned utilisation of 80 % then becomes 65 or 95. The same seed
    and number give the same arrivals stretched in time (common random numbers). The difference of two arms is then
    less noisy than either of them.

    Args:
        load: an open loop.
        seed: of the arrivals.
        over_s: how long the load is planned to last (s).

    Raises:
        ValueError: the load is a closed loop, which sends when answers arrive.
    """
    rate = load.rps
    if rate is None:
        raise ValueError("a closed loop has no send times of its own")
    if load.mode is LoadMode.CONSTANT:
        return (index / rate for index in itertools.count())
    return _poisson(rate, np.random.default_rng(seed), over_s)


def _poisson(
    rate_rps: float, random: np.random.Generator, over_s: float, block: int = 256
) -> Iterator[float]:
    count = round(rate_rps * over_s)
    # Sums of exponential gaps over their whole sum lie as the arrivals of a Poisson process lie, given their number.
    sums = np.cumsum(random.standard_exponential(count + 1))
    yield from (sums[:-1] * (over_s / sums[-1])).tolist()
    elapsed_s = over_s
    while True:
        for gap in random.standard_exponential(block):
            elapsed_s += float(gap) / rate_rps
            yield elapsed_s


def residual_lengths(count: int, output_tokens: Sequence[int]) -> list[int]:
    """Output lengths that make `count` requests sent together look like a population met in mid-flight.

    A request seen at a random instant is a long one more often than a short one. A uniformly distributed part of it is
    left. The share of rests up to r is sum(min(r, g)) / sum(g) over the lengths g. Evenly spaced quantiles of it (longest
    first) start a window near its steady state. They also keep closed-loop clients from finishing in lockstep, which would
    alternate bursts of prefill with pure decoding.

    Args:
        count: how many requests.
        output_tokens: lengths of the requests, each as often as it occurs.
    """
    lengths = np.sort(np.asarray(output_tokens, dtype=float))
    # Between two lengths the share rises linearly: these are its corners.
    shorter = np.concatenate([[0.0], np.cumsum(lengths)[:-1]])
    corners = np.concatenate([[0.0], shorter + lengths * np.arange(len(lengths), 0, -1)])
    shares = (count - np.arange(count) - 0.5) / count
    rests = np.interp(shares * corners[-1], corners, np.concatenate([[0.0], lengths]))
    return [max(1, round(rest)) for rest in rests.tolist()]
