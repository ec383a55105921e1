"""Curves of known shape: a straight line, or pieces between given knots, with doubts of their own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from breakeven.profile.curves import Curve

_KNOTS = 160


class Law(NamedTuple):
    """C1 and C2 (s) of a straight line, with their covariance."""

    c1_s: float
    c2_s: float
    covariance: Any = ((0.0, 0.0), (0.0, 0.0))


def straight_curve(
    law: Law, dof: int = 5, noise: float = 0.01, *, own: int = 0, sources: int = 2, **fields: Any
) -> Curve:
    """The curve of a line C1 + C2*n.

    Args:
        law: the line; its covariance is this curve's own, unless another one uses the same two sources.
        own: first of its two sources of doubt.
        sources: how many there are of all curves that are compared.
    """
    c1_s, c2_s = law.c1_s, law.c2_s
    others = np.concatenate([[0.0], np.geomspace(1e-4, 1e7, _KNOTS) * c1_s / c2_s])
    latency_s = c1_s + c2_s * others
    values, vectors = np.linalg.eigh(np.asarray(law.covariance, dtype=float))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    loadings = np.zeros((others.size, sources))
    loadings[:, own : own + 2] = np.column_stack([np.ones_like(others), others]) @ root / latency_s[:, None]
    ceiling = fields.get("ceiling_rps")
    saturation_rps = 1.0 / c2_s if ceiling is None else min(1.0 / c2_s, ceiling)
    return Curve(
        **{
            "knots": np.column_stack([others, latency_s]),
            "saturation_rps": saturation_rps,
            "dof": dof,
            "noise": noise,
            "basis": "arm",
            "others_range": (0.0, 1e6),
            "loadings": loadings,
            "own_sds": np.zeros(others.size),
            **fields,
        }
    )


def bent_curve(
    knots: Any, own_sd: float = 0.0, dof: int = 5, noise: float = 0.01, *, sources: int = 2, **fields: Any
) -> Curve:
    """The curve through knots of (others, latency), which goes on as its last piece does, with one doubt at every load."""
    placed = np.asarray(knots, dtype=float)
    (before_n, before_s), (last_n, last_s) = placed[-2:]
    slope = (last_s - before_s) / (last_n - before_n)
    saturation_rps = max(
        1.0 / slope if slope > 0 else 0.0, 1.001 * float(np.max(placed[:, 0] / placed[:, 1]))
    )
    ceiling = fields.get("ceiling_rps")
    return Curve(
        **{
            "knots": placed,
            "saturation_rps": saturation_rps if ceiling is None else min(ceiling, saturation_rps),
            "dof": dof,
            "noise": noise,
            "basis": "arm",
            "others_range": (float(placed[0, 0]), float(last_n)),
            "loadings": np.zeros((len(placed), sources)),
            "own_sds": np.full(len(placed), own_sd),
            **fields,
        }
    )
