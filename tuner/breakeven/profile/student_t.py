"""Student's t without scipy: the long-lived operator predicts with intervals and must not carry 40 MB for a quantile.

For whole degrees of freedom the distribution has a closed form (Abramowitz and Stegun, 26.7.3 and 26.7.4).
"""

from __future__ import annotations

import math
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


@lru_cache(maxsize=256)
def t_quantile(confidence: float, dof: int) -> float:
    """Return the t with P(|T| <= t) = confidence; infinite without degrees of freedom.

    Args:
        confidence: two-sided level, between 0 and 1 (both excluded).
        dof: degrees of freedom.

    Raises:
        ValueError: confidence is not between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence!r} is not between 0 and 1")
    if dof < 1:
        return math.inf
    low, high = 0.0, 1.0
    while two_sided_probability(high, dof) < confidence:
        high *= 2.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if two_sided_probability(middle, dof) < confidence else (low, middle)
    return 0.5 * (low + high)


def band_quantile(confidence: float, dof: int) -> float:
    """Return the multiple of the standard deviation that holds a whole straight line, not one point of it.

    Working and Hotelling's sqrt(2*F) with 2 and `dof` degrees of freedom, for which F has a closed form. A claim about
    some load of a range needs it: of two equal arms the pointwise bounds miss 1 somewhere in a quarter of all data sets.

    Args:
        confidence: level, between 0 and 1 (both excluded).
        dof: degrees of freedom; infinite without any.

    Raises:
        ValueError: confidence is not between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence!r} is not between 0 and 1")
    return math.sqrt(dof * ((1.0 - confidence) ** (-2.0 / dof) - 1.0)) if dof > 0 else math.inf
