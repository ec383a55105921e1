"""The rows of one arm, all brought to the acceptance that they have together.

Texts differ from row to row. A row of few requests may accept a tenth less than its arm does on average; its requests then take a
tenth more steps, and its latency is no evidence of what a step costs. The law of an arm belongs to its mean E, so each row
is carried there from its own E by the costs of the arm's steps (`breakeven.laws.conversion`). How far the mean itself may be
from the E of the text remains, and is in the law's covariance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from breakeven.fitting.diagnostics import design, fit_law
from breakeven.fitting.observations import Observation
from breakeven.fitting.solve import solve
from breakeven.laws.arrays import FloatArray
from breakeven.laws.conversion import latency_parts
from breakeven.points.point import Point
from breakeven.profile.fits import LawFit, Lengths
from breakeven.profile.operating_conditions import Anchor, work_of

_ROUNDS = 2
"""A law through rows as they came is near enough to carry them; one through carried rows leaves a thousandth."""

_FEWEST_ROWS = 3
_SAME = 1e-9
_LEAST_S = 1e-9

_OF_LATENCY = ("mean_latency_s", "p50_latency_s", "p95_latency_s", "p99_latency_s")
_OF_DECODING = ("tpot_mean_s", "tpot_p50_s", "tpot_p95_s", "tpot_p99_s")


@dataclass(frozen=True, slots=True)
class MeanAcceptance:
    """E of several rows.

    Attributes:
        tokens_per_step: their mean, weighted by requests.
        relative_error: its standard error from the scatter between rows; None with fewer than three.
        request_scatter: relative standard deviation over requests; None where a row does not say how many it had.
        dof: degrees of freedom of both.
    """

    tokens_per_step: float
    relative_error: float | None
    request_scatter: float | None
    dof: int


def mean_acceptance(points: Sequence[Point]) -> MeanAcceptance | None:
    """E over rows; None where none says.

    Rows are blocks of time, which is what the uncertainty must come from: tokens of one request are alike, and
    counts of drafts promise ten times too much.
    """
    told = [(one.tokens_per_step, one.requests) for one in points if one.tokens_per_step is not None]
    if not told:
        return None
    values = np.array([e for e, _ in told])
    weights = np.array([requests or 1.0 for _, requests in told])
    e, dof = float(np.average(values, weights=weights)), len(told) - 1
    if len(told) < _FEWEST_ROWS:
        return MeanAcceptance(e, None, None, dof)
    if not all(requests for _, requests in told):
        return MeanAcceptance(e, float(np.std(values, ddof=1)) / len(told) ** 0.5 / e, None, dof)
    # Each row is a mean over its requests: what is left over, times their number, is one request's.
    scatter = float(np.sqrt(np.sum(weights * (values / e - 1.0) ** 2) / dof))
    return MeanAcceptance(e, scatter / float(weights.sum()) ** 0.5, scatter, dof)


@dataclass(frozen=True, slots=True)
class EvenRows:
    """Rows at one acceptance.

    Attributes:
        rows: as given, their latencies and times per token carried; others in flight stay as they were met.
        doubt: relative change of C1 and of C2 by one standard error of the mean E, shape (2,).
    """

    rows: list[Observation]
    doubt: FloatArray

    def in_doubt(self, law: LawFit) -> LawFit:
        """A law of these rows, its covariance with that of the mean E in it."""
        change = self.doubt * np.array([law.c1_s, law.c2_s])
        (v1, v12), (_, v2) = (np.asarray(law.covariance) + np.outer(change, change)).tolist()
        return replace(law, covariance=((v1, v12), (v12, v2)))


def even_rows(rows: Sequence[Observation], lengths: Lengths, prefill_token_s: float | None) -> EvenRows:
    """Carry the rows of one arm to their mean E; as they are where they have no E, or no law.

    Args:
        rows: of one draft length and of one mix of lengths.
        lengths: of their requests.
        prefill_token_s: u; None: not measured.
    """
    found = EvenRows(list(rows), np.zeros(2))
    mean = mean_acceptance([one.point for one in rows])
    if mean is None:
        return found
    e, error = mean.tokens_per_step, mean.relative_error or 0.0
    for _ in range(_ROUNDS):
        anchor = _anchor(found.rows, lengths, e)
        if anchor is None:
            return found
        own = np.array([one.point.tokens_per_step or e for one in rows])
        there = _coefficients(anchor, prefill_token_s, [*own, e, e * (1.0 + error)])
        loads = np.array([[1.0, one.others] for one in rows])
        factors = loads @ there[-2] / (loads * there[:-2]).sum(axis=1)
        carried = [_carried(one, factor) for one, factor in zip(rows, factors.tolist(), strict=True)]
        found = EvenRows(carried, there[-1] / there[-2] - 1.0)
    return found


def _anchor(rows: Sequence[Observation], lengths: Lengths, tokens_per_step: float) -> Anchor | None:
    """The law of rows with that of their first tokens; None where they determine none."""
    solution = fit_law(rows)
    if solution is None or not solution.free.all():
        return None
    c1_s, c2_s = solution.coefficients.tolist()
    told = [(one, ttft_s) for one in rows if (ttft_s := one.point.ttft_mean_s) is not None]
    first_s = None
    if len({round(one.others, 9) for one, _ in told}) > 1:
        solution = solve(design([one for one, _ in told]), np.array([ttft_s for _, ttft_s in told]))
        first_s = min(float(solution.coefficients[0]), c1_s) or None
    return Anchor(c1_s, c2_s, first_s, work_of(lengths, tokens_per_step))


def _coefficients(
    anchor: Anchor, prefill_token_s: float | None, tokens_per_step: Sequence[float]
) -> FloatArray:
    """C1 and C2 (s) at each E, shape (n, 2)."""
    costs = anchor.costs(prefill_token_s, None)
    works = [anchor.work, *(replace(anchor.work, tokens_per_step=e) for e in tokens_per_step)]
    parts = np.array([latency_parts(costs, work)[:2] for work in works])
    found: FloatArray = np.array([anchor.alone_s, anchor.company_s]) * parts[1:] / parts[0].clip(_LEAST_S)
    return found


def _carried(one: Observation, factor: float) -> Observation:
    """A row whose latency is multiplied; what changes is decoding."""
    if abs(factor - 1.0) < _SAME:
        return one
    point = one.point
    first_s = min(point.ttft_mean_s or 0.0, point.mean_latency_s)
    latency_s = max(point.mean_latency_s * factor, first_s + _LEAST_S)
    decoding = (latency_s - first_s) / max(point.mean_latency_s - first_s, _LEAST_S)
    factors = dict.fromkeys(_OF_LATENCY, factor) | dict.fromkeys(_OF_DECODING, decoding)
    figures = {name: getattr(point, name) for name in factors}
    moved = {name: value * factors[name] for name, value in figures.items() if value is not None}
    return replace(one, point=replace(point, **moved))
