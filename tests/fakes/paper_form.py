"""The paper's form of C1 and C2 over draft lengths (Kong et al., arXiv 2605.15051), as a truth that the law of steps is held against."""

from __future__ import annotations

from typing import NamedTuple


class PaperForm(NamedTuple):
    """C = cp + (g/E) * (cv + k*cd + cs*[k > 0]), in seconds, of a lone request (c1) and of another one in flight (c2)."""

    c1p: float
    c1v: float
    c1d: float
    c1s: float
    c2p: float
    c2v: float
    c2d: float
    c2s: float

    def line(self, tokens_per_step: float, k: int, output_tokens: float) -> tuple[float, float]:
        """C1 and C2 (s)."""
        steps, flat = output_tokens / tokens_per_step, k > 0
        c1_s = self.c1p + steps * (self.c1v + k * self.c1d + flat * self.c1s)
        return c1_s, self.c2p + steps * (self.c2v + k * self.c2d + flat * self.c2s)

    def step_s(self, batch: float, k: int) -> float:
        """Duration (s) of a step."""
        alone = self.c1v + k * self.c1d + (k > 0) * self.c1s
        return alone + (batch - 1.0) * (self.c2v + k * self.c2d + (k > 0) * self.c2s)
