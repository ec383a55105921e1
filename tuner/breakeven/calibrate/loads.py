"""What is imposed on an engine: a number of clients (closed loop) or a rate (open loop), and when requests are sent."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from breakeven.evidence.points import LoadMode


@dataclass(frozen=True, slots=True)
class Load:
    """One imposed load.

    Attributes:
        mode: closed loop, or open loop with Poisson or constant arrivals.
        value: clients that each wait for their answer before asking again, or requests per second.
    """

    mode: LoadMode
    value: float

    def __post_init__(self) -> None:
        if not self.value > 0:
            raise ValueError(f"a load is positive, not {self.value}")
        if self.mode is LoadMode.CLOSED and self.value != int(self.value):
            raise ValueError(f"a closed loop has a whole number of clients, not {self.value}")

    @property
    def clients(self) -> int | None:
        """Imposed concurrency of a closed loop; None in an open loop."""
        return int(self.value) if self.mode is LoadMode.CLOSED else None

    @property
    def rps(self) -> float | None:
        """Offered rate of an open loop; None in a closed loop."""
        return None if self.mode is LoadMode.CLOSED else self.value

    def __str__(self) -> str:
        if self.clients is not None:
            return "1 client" if self.clients == 1 else f"{self.clients} clients"
        return f"{self.value:.3g} rps"


def send_offsets(load: Load, seed: int) -> Iterator[float]:
    """Seconds after the start at which an open loop sends; endless, increasing.

    The same seed gives the same sequence of exponential variates at every rate: arms measured with one seed meet
    the same arrival pattern stretched in time (common random numbers), so that their difference is less noisy than
    either of them.

    Raises:
        ValueError: the load is a closed loop, which sends when answers arrive.
    """
    rate = load.rps
    if rate is None:
        raise ValueError("a closed loop has no send times of its own")
    if load.mode is LoadMode.CONSTANT:
        return (index / rate for index in itertools.count())
    return _poisson(rate, np.random.default_rng(seed))


def _poisson(rate_rps: float, random: np.random.Generator, block: int = 256) -> Iterator[float]:
    elapsed_s = 0.0
    while True:
        for gap in random.standard_exponential(block):
            elapsed_s += float(gap) / rate_rps
            yield elapsed_s


def residual_lengths(count: int, output_tokens: int) -> list[int]:
    """Output lengths that make `count` requests sent together look like a population met in mid-flight.

    A request of fixed length seen at a random instant has a uniformly distributed rest; evenly spaced quantiles of
    it (longest first) start a window near its steady state and keep closed-loop clients from finishing in lockstep,
    which would alternate bursts of prefill with pure decoding.
    """
    return [max(1, round(output_tokens * (count - index - 0.5) / count)) for index in range(count)]
