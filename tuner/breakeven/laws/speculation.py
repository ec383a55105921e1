"""The base law's coefficients as functions of draft length and acceptance: one form for all arms of a drafter.

    C1 = c1p + (g/E) * (c1v + kd*c1d + c1s*[k>0])
    C2 = c2p + (g/E) * (c2v + kd*c2d + c2s*[k>0])

E tokens per request-step (bonus included), kd drafted tokens per request-step (k for model drafters, fewer for
lookup), g output tokens per request; g/E is a request's number of steps. Terms: `p` prefill, `v` verification, `d`
each drafted token, `s` drafting at all. Kong et al. (arXiv 2605.15051) have p, v and d; a block drafter makes all k in
one forward, and without its flat cost `s` a fit on k = {0, 3} mispredicted other k by 9.6 %.

The form is linear in its eight coefficients: `design` gives the row of a point, and what a set of points determines is
the row space of their design. A prediction outside it is not a bad prediction, it is none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from breakeven.laws.arrays import BoolArray, FloatArray, at_least, nonnegative, positive

COEFFICIENTS = ("c1p", "c1v", "c1d", "c1s", "c2p", "c2v", "c2d", "c2s")
"""Names in the order of the columns of `latency_design`; all in seconds."""


@dataclass(frozen=True, slots=True)
class PooledLaw:
    """The eight coefficients (s, each at least 0).

    Attributes:
        c1p: prefill and everything once per request, alone.
        c1v: one verification step, alone.
        c1d: each drafted token of a step, alone.
        c1s: drafting at all, per step, alone.
        c2p: prefill of one other request.
        c2v: one verification step of another.
        c2d: each drafted token of another.
        c2s: drafting at all of another.
    """

    c1p: float
    c1v: float
    c1d: float
    c1s: float
    c2p: float
    c2v: float
    c2d: float
    c2s: float

    def __post_init__(self) -> None:
        nonnegative("coefficients", self.vector)

    @property
    def vector(self) -> FloatArray:
        """The coefficients in the order of COEFFICIENTS, shape (8,)."""
        return np.array([getattr(self, name) for name in COEFFICIENTS])

    def c1_s(self, rows: FloatArray) -> FloatArray:
        """C1 (s) of rows of `design`, shape (...,)."""
        return np.asarray(rows @ self.vector[:4])

    def c2_s(self, rows: FloatArray) -> FloatArray:
        """C2 (s per other request) of rows of `design`, shape (...,)."""
        return np.asarray(rows @ self.vector[4:])

    def step_s(self, batch: ArrayLike, k: ArrayLike, drafted_per_step: ArrayLike | None = None) -> FloatArray:
        """Duration (s) of one engine step with `batch` requests at draft length k: the law seen per step.

        Decoding takes g/E steps, so a step is c1v + kd*c1d + c1s*[k>0] alone, and (batch - 1) times the same of C2 more.

        Raises:
            ValueError: batch is below 1 or k negative.
        """
        others = at_least("batch", batch, 1.0) - 1.0
        length = nonnegative("k", k)
        drafted = length if drafted_per_step is None else nonnegative("drafted_per_step", drafted_per_step)
        flat = length > 0
        alone = self.c1v + drafted * self.c1d + flat * self.c1s
        return np.asarray(alone + others * (self.c2v + drafted * self.c2d + flat * self.c2s))


def design(
    tokens_per_step: ArrayLike,
    drafted_per_step: ArrayLike,
    output_tokens: ArrayLike,
    *,
    prompt_ratio: ArrayLike = 1.0,
    kv_ratio: ArrayLike = 1.0,
) -> FloatArray:
    """Rows (1, g/E, (g/E)*kd, (g/E)*[kd>0]) that the coefficients p, v, d, s are multiplied by, shape (..., 4).

    The ratios carry C2 to other lengths than the measured ones: c2p is linear in prompt length, c2v in the
    time-averaged KV length. Leave both at 1 for C1.

    Args:
        tokens_per_step: E, at least 1.
        drafted_per_step: kd, at least 0; 0 is the arm without speculation.
        output_tokens: g, above 0.
        prompt_ratio: prompt tokens over those of the measured points.
        kv_ratio: `mean_kv_tokens` over that of the measured points.

    Raises:
        ValueError: an argument is outside its range.
    """
    steps = positive("output_tokens", output_tokens) / at_least("tokens_per_step", tokens_per_step, 1.0)
    drafted = nonnegative("drafted_per_step", drafted_per_step)
    columns = (
        positive("prompt_ratio", prompt_ratio),
        steps * positive("kv_ratio", kv_ratio),
        steps * drafted,
        steps * (drafted > 0),
    )
    return np.stack(np.broadcast_arrays(*columns), axis=-1)


def latency_design(c1_rows: FloatArray, c2_rows: FloatArray, others: ArrayLike) -> FloatArray:
    """Rows of L = C1 + n*C2 in all eight coefficients, shape (..., 8).

    Args:
        c1_rows: `design` of C1, shape (..., 4).
        c2_rows: `design` of C2, shape (..., 4).
        others: n, shape (...).

    Raises:
        ValueError: others is negative.
    """
    n = nonnegative("others", others)
    return np.concatenate(np.broadcast_arrays(c1_rows, n[..., None] * c2_rows), axis=-1)


def mean_kv_tokens(
    prompt_tokens: ArrayLike, output_tokens: ArrayLike, output_tokens_sq: ArrayLike | None = None
) -> FloatArray:
    """Time-averaged KV length of a running request (tokens): p + E[g^2] / (2 E[g]).

    A request is longest in the cache while it is long, so spread of g counts. Where p and g are correlated, give p
    weighted by g.

    Args:
        prompt_tokens: mean p.
        output_tokens: mean g, above 0.
        output_tokens_sq: mean of g squared; without it g is taken as constant.

    Raises:
        ValueError: an argument is outside its range, or the mean square is below the squared mean.
    """
    g = positive("output_tokens", output_tokens)
    square = g * g if output_tokens_sq is None else positive("output_tokens_sq", output_tokens_sq)
    if np.any(square < g * g * (1.0 - 1e-9)):
        raise ValueError(f"output_tokens_sq: {output_tokens_sq!r} is below the square of output_tokens")
    return np.asarray(nonnegative("prompt_tokens", prompt_tokens) + square / (2.0 * g))


def outside_row_space(measured: ArrayLike, rows: ArrayLike, tolerance: float = 1e-6) -> FloatArray:
    """Distance of rows from the measured ones: 0 (determined) to 1 (orthogonal to all of them).

    Columns are scaled by the measured ones first, so that tokens and ones have the same weight; a column that was never measured
    counts fully.

    Args:
        measured: design of the measured points, shape (m, c), at least one row.
        rows: rows to be predicted, shape (..., c).
        tolerance: singular values below this share of the largest count as zero.

    Raises:
        ValueError: the shapes do not fit.
    """
    x, asked = np.asarray(measured, dtype=float), np.asarray(rows, dtype=float)
    if x.ndim != 2 or x.shape[0] == 0 or asked.shape[-1:] != x.shape[1:]:
        raise ValueError(f"rows of shape {asked.shape} do not fit a design of shape {x.shape}")
    size = np.sqrt((x * x).mean(axis=0))
    scale = np.where(size > 0, size, 1.0)
    _, singular, basis = np.linalg.svd(x / scale, full_matrices=False)
    basis = basis[singular > tolerance * singular[0]]
    asked = asked / scale
    length = np.linalg.norm(asked, axis=-1)
    rest = np.linalg.norm(asked - (asked @ basis.T) @ basis, axis=-1)
    return np.asarray(rest / np.where(length > 0, length, 1.0))


def estimable(measured: ArrayLike, rows: ArrayLike, tolerance: float = 1e-6) -> BoolArray:
    """Whether the measured points determine what is asked (arguments as `outside_row_space`), shape (...,)."""
    # The projection loses about half the digits of the smallest singular value that is kept.
    return np.asarray(outside_row_space(measured, rows, tolerance) < np.sqrt(tolerance))


def unidentified(measured: ArrayLike, tolerance: float = 1e-6) -> tuple[str, ...]:
    """Names of the coefficients that points with this `latency_design` (shape (m, 8)) leave open by themselves.

    A prediction can be estimable although no coefficient in it is.
    """
    names = np.array(COEFFICIENTS)
    return tuple(str(name) for name in names[~estimable(measured, np.eye(len(names)), tolerance)])
