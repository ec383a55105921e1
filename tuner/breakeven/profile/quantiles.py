"""Quantiles of latency, TTFT and TPOT: each has a law of its own, read at the mean's load.

    L_q = C1q + C2q * n

n is the mean number of others in flight, as for the mean: there is no Little's law of a quantile. Left out of the fit, a
p95 is missed by about twice as much as a mean.
"""

from __future__ import annotations

from collections.abc import Mapping

from breakeven.profile.fits import LineFit


def quantile_law(laws: Mapping[str, LineFit], quantile: float, others: float) -> LineFit | None:
    """The law of a quantile among `others`; None if the quantile was not measured.

    Laws that were fitted one by one may cross: the highest of this quantile and of all lower ones counts.
    """
    measured = {float(share): fit for share, fit in laws.items()}
    if quantile not in measured:
        return None
    below = (fit for share, fit in measured.items() if share <= quantile)
    return max(below, key=lambda fit: fit.among(others))
