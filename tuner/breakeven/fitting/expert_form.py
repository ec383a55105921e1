"""Whether an arm that bends follows the law of a mixture of experts, and that law.

A step with few tokens touches few experts, so a nearly idle engine is faster than a straight line through busier loads
says (`breakeven.laws.experts`). How many experts there are is in no points file: their share per token is scanned, and
taken where it predicts loads that were left out best. The law is believed where it predicts them better than straight
pieces between the neighbouring points do: between points it knows the shape, and beyond them where latency goes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from breakeven.fitting.diagnostics import by_load, latencies
from breakeven.fitting.observations import Observation
from breakeven.fitting.solve import Solution, solve
from breakeven.laws.arrays import FloatArray
from breakeven.laws.experts import touched_share
from breakeven.profile.fits import Bend, ExpertFit

FEWEST_LOADS = 6
"""Four coefficients and the share of the experts leave one to check them by."""

_SHARES = np.geomspace(1.0 / 512.0, 0.5, 24)
"""Published models route a token to between 1 of 384 experts and 2 of 8."""


def expert_form(observations: Sequence[Observation], verified: float, bend: Bend) -> ExpertFit | None:
    """The law of a mixture of experts; None where points alone predict a left-out load as well.

    Args:
        observations: rows of one arm that bends.
        verified: tokens verified per request-step.
        bend: what the straight law and the points miss.
    """
    groups = by_load(observations)
    if len(groups) < FEWEST_LOADS:
        return None
    tried = [(_left_out_error(groups, verified, share), share) for share in _SHARES.tolist()]
    error, share = min(tried)
    if error >= bend.points_error:
        return None
    solution = _solved(observations, verified, share)
    c1u_s, c1s_s, c2u_s, c2s_s = solution.coefficients.tolist()
    # Whoever reads experts reads some for a lone request: without that it is some other curve, a knee for one.
    if c1s_s == 0.0:
        return None
    return ExpertFit(c1u_s, c1s_s, c2u_s, c2s_s, share, verified, error)


def _design(observations: Sequence[Observation], verified: float, share: float) -> FloatArray:
    """Rows (1, phi, n, n*phi), shape (rows, 4): a request and the n that it meets share its steps."""
    others = np.array([one.others for one in observations])
    touched = touched_share((others + 1.0) * verified, 1.0, 1.0 / share)
    return np.stack([np.ones_like(others), touched, others, others * touched], axis=-1)


def _solved(observations: Sequence[Observation], verified: float, share: float) -> Solution:
    return solve(_design(observations, verified, share), latencies(observations))


def _left_out_error(groups: Sequence[Sequence[Observation]], verified: float, share: float) -> float:
    """Mean relative error at inner loads that were left out, as `diagnostics.interpolated` has it of points."""
    errors = []
    for left_out in groups[1:-1]:
        rest = [one for group in groups if group is not left_out for one in group]
        expected = _design(left_out, verified, share) @ _solved(rest, verified, share).coefficients
        errors.append(float(np.mean(np.abs(expected / latencies(left_out) - 1.0))))
    return float(np.mean(errors))
