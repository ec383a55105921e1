"""Tree drafts (Medusa style): head i proposes several candidates for position i, and all paths are verified at once.

A depth is passed when one of its candidates is accepted. Independent candidates and candidates that exclude each other
(greedy top-k of one head) pass it at different rates; from there on a tree is like a chain, E = 1 + sum of survival.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from breakeven.laws.arrays import FloatArray, at_least, probability


def tree_rates_independent(rates: ArrayLike, widths: ArrayLike) -> FloatArray:
    """Rate at which a depth of a tree is passed, `widths` independent candidates of rate `rates`: 1 - (1 - a)^width.

    Both of shape (depths,). (SmartSpec's eq. 10 prints 1 - a where its width-th power is meant.)

    Raises:
        ValueError: a rate is outside [0, 1] or a width below 1.
    """
    return np.asarray(1.0 - (1.0 - probability("rates", rates)) ** at_least("widths", widths, 1.0))


def tree_rates_exclusive(candidate_rates: Sequence[ArrayLike]) -> FloatArray:
    """Rate at which each depth is passed when candidates exclude each other (greedy top-k): their sum, at most 1.

    Args:
        candidate_rates: per depth the rates of its candidates.

    Returns:
        Shape (depths,).

    Raises:
        ValueError: a rate is outside [0, 1].
    """
    return np.array([min(float(np.sum(probability("candidate_rates", c))), 1.0) for c in candidate_rates])


def tree_survival(depth_rates: ArrayLike) -> FloatArray:
    """Survival of each depth of a tree, shape (depths,): the product of the depth rates so far; E = 1 + its sum."""
    return np.asarray(np.cumprod(probability("depth_rates", depth_rates), axis=-1), dtype=float)


def tree_verified_tokens(widths: ArrayLike) -> FloatArray:
    """Tokens verified per request-step: all nodes of the tree, sum_h prod_{i<=h} width_i, plus 1 for the root.

    Raises:
        ValueError: a width is below 1.
    """
    return np.asarray(1.0 + np.cumprod(at_least("widths", widths, 1.0), axis=-1).sum(axis=-1))
