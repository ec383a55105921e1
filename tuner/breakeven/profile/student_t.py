"""Student's t without scipy: the long-lived operator predicts with intervals and must not carry 40 MB for a quantile.

For whole degrees of freedom the distribution has a closed form (Abramowitz and Stegun, 26.7.3 and 26.7.4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache


def two_sided_probability(t: float, dof: int) -> float:
    """P(|T| <= t) for `dof` (whole, at least 1) degrees of freedom and t of at least 0."""
    angle = math.atan(t / math.sqrt(dof))
    cos_square = math.cos(angle) ** 2
    # Both sums run over cos^0, cos^2, ...; each term is the one before times a ratio of neighbouring numbers.
    odd = dof % 2 == 1
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for step in range((dof - 1) // 2 if odd else dof // 2):
        total += term
        index = 2 * step + (2 if odd else 1)
        term *= cos_square * index / (index + 1)
    if odd:
        return 2.0 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


def _curve_probability(width: float, dof: int) -> float:
    """P(sqrt(3 * F) <= width) for F with 3 and `dof` degrees of freedom.

    F with 3 is F with 1, which is t squared, less one term (Abramowitz and Stegun, 26.5.16).
    """
    share = width**2 / (width**2 + dof)
    log_beta = math.lgamma(0.5) + math.lgamma(0.5 * dof) - math.lgamma(0.5 * (dof + 1))
    return two_sided_probability(width, dof) - 2.0 * math.sqrt(share) * math.exp(
        0.5 * dof * math.log1p(-share) - log_beta
    )


@lru_cache(maxsize=256)
def t_quantile(confidence: float, dof: int) -> float:
    """The t with P(|T| <= t) = confidence (two-sided, between 0 and 1); infinite without degrees of freedom."""
    return _quantile(two_sided_probability, confidence, dof)


@lru_cache(maxsize=256)
def band_quantile(confidence: float, dof: int) -> float:
    """The multiple of the standard deviation that holds a whole curve, not one point of it; infinite without degrees of freedom.

    Scheffe's sqrt(3*F): two curves may differ in level, slope and bend. A claim about some load of a range needs it: of two
    equal arms the pointwise bounds miss 1 somewhere in two of five data sets, bounds of a straight line in one of five.
    """
    return _quantile(_curve_probability, confidence, dof)


def _quantile(probability: Callable[[float, int], float], confidence: float, dof: int) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence!r} is not between 0 and 1")
    if dof < 1:
        return math.inf
    low, high = 0.0, 1.0
    while probability(high, dof) < confidence:
        high *= 2.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if probability(middle, dof) < confidence else (low, middle)
    return 0.5 * (low + high)
