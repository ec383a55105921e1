"""Live acceptance at one draft length, carried to another one of the same drafter.

Not in proportion: long drafts lose most where text is hard, so (E - 1) falls less at a short draft length. Live survival per
position says what the text is; without it the calibrated text is taken to have changed its shares of easy and hard stretches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from breakeven.laws.acceptance_numbers import (
    AcceptanceModel,
    TokensPerStep,
    alpha_from_tokens_per_step,
    survival_per_step,
    tokens_per_step_iid,
)
from breakeven.laws.mixture import TwoPointMixture, default_decay

_FEWEST_POSITIONS = 2
_SAME_RATE = 1e-9


@dataclass(frozen=True, slots=True)
class SeenAt:
    """Acceptance at one draft length; the survival is unconditional, and empty if it is not known."""

    k: int
    tokens_per_step: float
    survival: tuple[float, ...] = ()


def carried(method: str, live: SeenAt, before: SeenAt, wanted: SeenAt) -> TokensPerStep:
    """E at another draft length, anchored at what was calibrated there.

    `live` is seen now, `before` was calibrated at the same draft length, `wanted` at the draft length that is asked for.
    """
    now = _at(method, live, before, wanted.k)
    then = _at(method, before, before, wanted.k).value
    scale = wanted.tokens_per_step / then
    value, lower, upper = (
        float(np.clip(e * scale, 1.0, wanted.k + 1.0)) for e in (now.value, now.lower, now.upper)
    )
    return TokensPerStep(value, lower, upper, now.basis, now.positions)


@lru_cache(maxsize=256)
def _at(method: str, seen: SeenAt, before: SeenAt, k: int) -> TokensPerStep:
    if len(seen.survival) >= _FEWEST_POSITIONS and sum(seen.survival) > 0:
        possible = min(seen.tokens_per_step, 1.0 + sum(seen.survival))
        per_step = tuple(float(share) for share in survival_per_step(np.asarray(seen.survival), possible))
        return AcceptanceModel(method, {seen.k: seen.tokens_per_step}, {seen.k: per_step}).at(k)
    if len(before.survival) >= _FEWEST_POSITIONS and sum(before.survival) > 0:
        shifted = _shifted(TwoPointMixture.fit(before.survival, default_decay(method)), seen)
        if shifted is not None:
            value = float(shifted.tokens_per_step(k))
            ends = sorted((value, _by_one_rate(seen, k)))
            return TokensPerStep(value, ends[0], ends[1], "mixture", len(before.survival))
    value = _by_one_rate(seen, k)
    return TokensPerStep(value, value, value, "one-rate", 0)


def _shifted(mixture: TwoPointMixture, seen: SeenAt) -> TwoPointMixture | None:
    """The mixture with other shares of its two kinds of text, so that it has this E; None where no shares have."""
    slow, fast = (
        1.0 / float(TwoPointMixture((rate, rate), (0.5, 0.5), mixture.decay).tokens_per_step(seen.k))
        for rate in mixture.rates
    )
    if abs(slow - fast) < _SAME_RATE:
        return None
    share = (1.0 / seen.tokens_per_step - fast) / (slow - fast)
    return (
        TwoPointMixture(mixture.rates, (share, 1.0 - share), mixture.decay) if 0.0 <= share <= 1.0 else None
    )


def _by_one_rate(seen: SeenAt, k: int) -> float:
    rate = float(alpha_from_tokens_per_step(min(max(seen.tokens_per_step, 1.0), seen.k + 1.0), seen.k))
    return float(tokens_per_step_iid(rate, k))
