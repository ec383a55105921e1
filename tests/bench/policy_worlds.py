"""Fleets that a policy is replayed on: laws that engines follow exactly, and the profile that is fitted to points of them."""

from __future__ import annotations

from collections.abc import Mapping

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting.profiles import fit_points
from breakeven.points.point import LoadMode, Point
from breakeven.profile import Profile

TOKENS = 256.0
LOADS = (0.05, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8)
"""Shares of an arm's saturation at which it was measured."""

Laws = Mapping[Arm, tuple[float, float]]
"""C1 and C2 (s) of every arm."""

EAGLE_2, EAGLE_3, EAGLE_5 = (Arm("eagle3", k) for k in (2, 3, 5))
FLEETS: Mapping[str, Laws] = {
    "mild": {NO_SPECULATION: (1.20, 0.070), EAGLE_3: (0.78, 0.085), EAGLE_5: (0.92, 0.072)},
    "slow": {NO_SPECULATION: (4.1, 0.24), EAGLE_2: (2.6, 0.262), EAGLE_5: (2.1, 0.33)},
    "steep": {NO_SPECULATION: (2.0, 0.05), EAGLE_3: (1.1, 0.075)},
    "block": {NO_SPECULATION: (3.0, 0.10), EAGLE_3: (1.5, 0.104), EAGLE_5: (1.3, 0.135)},
}
"""Speculation with the saturation of none (mild), with a little less (slow, block), and with a third less (steep)."""


def profile_of(laws: Laws) -> Profile:
    """The fit of points that lie on laws."""
    points = [
        Point(
            method=arm.method,
            k=arm.k,
            load_mode=LoadMode.POISSON,
            request_rate_rps=share / c2_s,
            mean_latency_s=c1_s / (1.0 - share),
            output_tokens=TOKENS,
            requests=400.0,
        )
        for arm, (c1_s, c2_s) in laws.items()
        for share in LOADS
    ]
    return fit_points(points, 0.9, {"workload": "bench"})
