"""Pods whose prefix caches still fill: how much faster their arm may be than it was measured to be.

A cold pod is slower and never faster, so that an allowance for it moves one bound and no estimate.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from breakeven.laws.arrays import FloatArray
from breakeven.planning.arm_blocks import USUAL_BLOCK_SD, ArmBlocks, ServedArm

_MOST_COLD = 1.6
"""Largest factor by which a cold pod's work may take longer. An arm that loses more is shown to lose at once."""
_OTHER_TREND = 0.05
"""Logarithm by which blocks of one arm drift for other reasons while its pods fill: a wrong slope, the hour."""
_DISCOUNTED = 1
"""Place of the fading among `WARMING_BLOCKS` by which blocks of cold pods count less."""
_NO_CACHE = 0.02
"""Share of prompt tokens found in the prefix cache below which no pod counts as cold."""


def _hit_share(blocks: ArmBlocks) -> float:
    """The share of prompt tokens that the prefix caches of an arm held; NaN if they are not counted."""
    prompts = float(np.nansum(np.where(np.isfinite(blocks.hits), blocks.prompt_tokens, np.nan)))
    return float(np.nansum(blocks.hits)) / prompts if prompts > 0.0 else math.nan


def with_coldness(
    blocks: tuple[ArmBlocks, ArmBlocks], arms: tuple[ServedArm, ServedArm]
) -> tuple[tuple[ServedArm, bool], tuple[ServedArm, bool]]:
    """Each arm with how cold its pods were in each block, and whether that may have made them slower."""
    # NaN where either is not counted.
    of_old, of_new = map(_hit_share, blocks)
    warm = float(np.maximum(of_old, of_new))
    return _coldness(arms[0], warm), _coldness(arms[1], warm)


def _coldness(arm: ServedArm, warm: float) -> tuple[ServedArm, bool]:
    """The arm with how cold its pods were in each block, and whether that may have made them slower.

    Missing cache hits show it, if hits are counted and there are any. Otherwise the age of the pods is used.

    Args:
        arm: whose pods.
        warm: share of hits of the arm that has more; NaN if they are not counted.
    """
    if not warm > _NO_CACHE:
        return arm, math.isnan(warm)
    missing = np.clip(1.0 - np.nan_to_num(arm.hit_share, nan=warm) / warm, 0.0, 1.0)
    return replace(arm, young=missing[None]), True


def discount(arm: ServedArm) -> FloatArray:
    """Share of the cost of a cold start by which each block counts less; shape (blocks,)."""
    doubt: FloatArray = arm.young[min(_DISCOUNTED, len(arm.young) - 1)]
    return doubt


def slowest(slowed: float) -> float:
    """Logarithm by which a request may take longer in cold pods, at the rate at which it takes `slowed` times its lone time.

    Work that takes longer leaves more requests in flight, so that they wait for each other longer too: with all of it s times
    as long, C1/(1 - C2*rate) becomes s*C1/(1 - s*C2*rate).
    """
    used = min(max(1.0 - 1.0 / slowed, 0.0), 0.9 / _MOST_COLD)
    return math.log(_MOST_COLD * (1.0 - used) / (1.0 - _MOST_COLD * used))


def warming(arm: ServedArm, log: FloatArray, weights: FloatArray, most: float, may_be_cold: bool) -> float:
    """Logarithm by which an arm may be faster than it was measured to be, once its pods are as warm as others.

    A cold start fades within a time that is not known, and one that fades slowly looks like a slower arm. So it is at most as
    large as the trend in the blocks allows. Its remainder in the mean of the blocks is the allowance. If the caches
    have nothing to fill, only a significant trend counts.

    Args:
        arm: whose pods.
        log: logarithm of its latencies, by block.
        weights: of the blocks in the measured speedup.
        most: largest logarithm by which a cold pod may be slower.
        may_be_cold: whether its caches may still fill.
    """
    use = arm.usable
    precision = 1.0 / (arm.variance[use] + USUAL_BLOCK_SD**2)
    allowance = 0.0
    for young in arm.young:
        left = float(weights @ young)
        if left <= 0.0:
            continue
        x = young[use]
        apart = x - np.average(x, weights=precision)
        known, spread = float(precision @ apart**2), float(x.max() - x.min())
        if known <= 0.0 or spread <= 0.0:
            slower, sd = 0.0, math.inf
        else:
            slower = float(precision * apart @ log[use]) / known
            # No cold pod gets slower with age. Pods that do show another drift, which may be as large in the other direction.
            sd = math.hypot(known**-0.5, _OTHER_TREND / spread, min(slower, 0.0))
        likely = slower + 2.0 * sd if may_be_cold else slower if slower > 3.0 * sd else 0.0
        allowance = max(allowance, left * min(max(likely, 0.0), most))
    return allowance
