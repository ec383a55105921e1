"""Traces of load: requests with their lengths, or rates per window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """Requests in order of arrival.

    Attributes:
        arrival_s: seconds after the first one, shape (n,), ascending.
        prompt_tokens: shape (n,), >= 1.
        output_tokens: shape (n,), >= 1.
        notes: what the reader left out or filled in.
    """

    arrival_s: _Floats
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last."""
        return float(self.arrival_s[-1])

    def faster(self, factor: float) -> RequestTrace:
        """The same requests at `factor` times the rate."""
        return RequestTrace(self.arrival_s / factor, self.prompt_tokens, self.output_tokens, self.notes)

    def only(self, kept: NDArray[np.bool_]) -> RequestTrace:
        """The requests where `kept` is true."""
        return RequestTrace(
            self.arrival_s[kept], self.prompt_tokens[kept], self.output_tokens[kept], self.notes
        )

    def rates(self, window_s: float) -> RateTrace:
        """Its rate per window; the last window, cut short by the trace's end, counts with its own length."""
        edges = np.arange(0.0, self.duration_s, window_s)
        ends = np.append(edges[1:], max(self.duration_s, edges[-1] + 1e-9))
        counts = np.diff(np.searchsorted(self.arrival_s, np.append(edges, np.inf)))
        return RateTrace(edges, ends - edges, counts / (ends - edges), ())


@dataclass(frozen=True, slots=True)
class RateTrace:
    """Rates of the whole fleet per window.

    Attributes:
        start_s: seconds after the first window's start, shape (n,), ascending.
        length_s: of each window, shape (n,).
        rate_rps: requests per second, shape (n,), >= 0.
        notes: what the reader left out or filled in.
    """

    start_s: _Floats
    length_s: _Floats
    rate_rps: _Floats
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.start_s)

    @property
    def requests(self) -> float:
        """Expected number of requests."""
        return float(self.rate_rps @ self.length_s)

    def faster(self, factor: float) -> RateTrace:
        """The same windows at `factor` times the rate."""
        return RateTrace(self.start_s, self.length_s, self.rate_rps * factor, self.notes)

    def finer(self, longest_s: float) -> RateTrace:
        """The same rates in windows of at most `longest_s`."""
        parts = np.maximum(1, np.ceil(self.length_s / longest_s - 1e-9)).astype(np.int64)
        lengths = np.repeat(self.length_s / parts, parts)
        place = np.arange(len(lengths)) - np.repeat(np.cumsum(parts) - parts, parts)
        return RateTrace(
            np.repeat(self.start_s, parts) + place * lengths,
            lengths,
            np.repeat(self.rate_rps, parts),
            self.notes,
        )


Trace = RequestTrace | RateTrace
