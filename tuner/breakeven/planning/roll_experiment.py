"""A change of arm as an experiment: how much faster the new arm is, from measured latencies alone.

Pods of both arms are compared in blocks of time. Where both serve in a block, they meet the same requests at the same
time and are compared side by side. Blocks in which one arm serves alone are compared before against after. A law
contributes its slope and nothing else: each arm's latency is moved to one rate per replica by the ratio of *its own*
predictions, so that the level of a law, and a ratio of laws, never enters.

Three errors are kept apart, because they shrink in different ways:

- of time: few requests, and blocks that scatter. It shrinks with every block.
- of pods: two replicas of one arm differ (node, neighbours, clocks of the GPU). It shrinks with replicas only.
- of what came between: the hour and the texts of before are not those of after, and a slope has an error. It stays.

What the scatter of blocks and of pods is, few blocks and pods do not tell: a usual value counts as four observations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from breakeven.laws.arrays import BoolArray, FloatArray
from breakeven.laws.latency import mean_latency_error
from breakeven.profile.student_t import t_quantile

_USUAL_BLOCK_SD = 0.03
"""By which blocks of one arm usually differ beyond what their requests explain."""
_USUAL_POD_SD = 0.04
"""By which pods of one arm usually differ: two runs of one engine scatter by 2 to 6 %."""
_USUAL_COUNTS_AS = 4.0
"""Observations that a usual value counts as."""
_BETWEEN_SD = 0.04 * math.sqrt(2.0)
"""Of before against after: each of the two means errs by 4 % with its hour and its texts (as `learned_laws` has it)."""
_SLOPE_ERROR = 0.25
"""Share by which a law's slope may be wrong; what was moved far by it is known so much worse."""
_EXPECTED_EFFECT = 0.2
"""Logarithm of a speedup for which the always-valid bound is tightest."""
_BATCHES = (1, 2, 4)
_ENOUGH_REQUESTS = 20.0
"""Of an arm in a block, on average; blocks that hold fewer are joined with their neighbours."""
_FEWEST_REQUESTS = 5.0

LatencyAt = Callable[[FloatArray], FloatArray]
"""Predicted mean latency (s) of an arm at rates per replica (1/s), of the same shape; NaN beyond its saturation."""


class Witness(StrEnum):
    """What a measured speedup rests on."""

    SIDE_BY_SIDE = "SideBySide"
    BEFORE_AFTER = "BeforeAfter"
    BOTH = "Both"


@dataclass(frozen=True, slots=True, eq=False)
class ArmBlocks:
    """What each pod of one arm did in each block; all of shape (pods, blocks), NaN where a pod has no figures.

    Attributes:
        spent_s: latencies of the requests that finished, summed (s).
        finished: requests that finished.
        watched_s: time between the two samples that a block lies between (s).
        grown: requests in flight at the end of the block less those at its begin.
        queued: requests that waited at its begin and at its end, whichever is fewer.
    """

    spent_s: FloatArray
    finished: FloatArray
    watched_s: FloatArray
    grown: FloatArray
    queued: FloatArray


class SpeedupBounds(NamedTuple):
    """Lower and upper end of a speedup (ratio of latencies, old arm over new one)."""

    lower: float
    upper: float


def always_valid_radius(sd: float, confidence: float) -> float:
    """Half the width of bounds on a mean that hold at all looks together, however often one looks.

    The normal mixture's confidence sequence: with the information V = 1/sd^2 so far,
    |mean - truth| <= sqrt((V + r)/V^2 * ln((V + r)/(r*alpha^2))).
    """
    alpha, known = 1.0 - confidence, sd**-2
    r = _EXPECTED_EFFECT**-2
    return math.sqrt((known + r) / known**2 * math.log((known + r) / (r * alpha**2)))


@dataclass(frozen=True, slots=True)
class MeasuredSpeedup:
    """Latency of the old arm over that of the new one, at one rate per replica.

    Attributes:
        log: its natural logarithm.
        time_sd, pods_sd, between_sd: standard errors of `log`: of time, of pods, of what came between.
        pods_dof: degrees of freedom of the second.
        rps: rate per replica (1/s) that both arms were moved to: the mean of both.
        requests: behind it.
        witness: what it rests on.
    """

    log: float
    time_sd: float
    pods_sd: float
    pods_dof: int
    between_sd: float
    rps: float
    requests: float
    witness: Witness

    @property
    def speedup(self) -> float:
        """Best estimate."""
        return math.exp(self.log)

    def bounds(self, confidence: float) -> SpeedupBounds:
        """Two-sided bounds for one look at a time that was fixed before."""
        z = NormalDist().inv_cdf((1.0 + confidence) / 2.0)
        return self._within(z * self.time_sd, confidence)

    def always_valid(self, confidence: float) -> SpeedupBounds:
        """Two-sided bounds that hold at all looks together; only the error of time changes from look to look."""
        return self._within(always_valid_radius(self.time_sd, confidence), confidence)

    def _within(self, time_radius: float, confidence: float) -> SpeedupBounds:
        z = NormalDist().inv_cdf((1.0 + confidence) / 2.0)
        of_pods = t_quantile(confidence, self.pods_dof) * self.pods_sd
        radius = math.hypot(time_radius, of_pods, z * self.between_sd)
        return SpeedupBounds(
            *(math.exp(max(min(self.log + sign * radius, 700.0), -700.0)) for sign in (-1, 1))
        )


@dataclass(frozen=True, slots=True)
class RollExperiment:
    """What the blocks of a roll say.

    Attributes:
        found: None where no two blocks can be compared.
        old_blocks, new_blocks: blocks in which the arm finished requests.
        old_saturated, new_saturated: those of them that tell nothing because the arm was saturated: requests waited at
            every pod throughout, or its own law has no latency for the rate.
        requests: that finished in all blocks, of the arm that had fewer.
    """

    found: MeasuredSpeedup | None
    old_blocks: int
    new_blocks: int
    old_saturated: int
    new_saturated: int
    requests: float


@dataclass(frozen=True, slots=True, eq=False)
class _Arm:
    """Blocks of one arm, over all of its pods.

    Attributes:
        latency_s, finished, rps: of a block, shape (blocks,); rps per replica.
        variance: of the latency's logarithm, from the requests behind it and from what is in flight at a block's ends.
        usable: blocks that tell something.
        busy: blocks in which requests finished. saturated: those of them without a latency of their own.
        known: which pods count in which block, shape (pods, blocks).
    """

    latency_s: FloatArray
    finished: FloatArray
    rps: FloatArray
    variance: FloatArray
    usable: BoolArray
    busy: BoolArray
    saturated: BoolArray
    known: BoolArray


class _Stream(NamedTuple):
    """A weighted mean over blocks, and its variance."""

    mean: float
    variance: float


class _PodScatter(NamedTuple):
    """Variance of the logarithm of a pod's latency, and the observations behind it."""

    variance: float
    observations: float


def experiment(old: ArmBlocks, new: ArmBlocks, old_law: LatencyAt, new_law: LatencyAt) -> RollExperiment:
    """Compare two arms over the same blocks of time.

    Blocks say nothing in which an arm is saturated or finishes hardly any requests, and no pod counts in its first block.

    Args:
        old: what the pods of the old arm did.
        new: and those of the new one, in the same blocks.
        old_law: predicted latencies of the old arm, of which only the slope is used.
        new_law: and of the new one.
    """
    old, new, together = _joined(_without_first(old), _without_first(new))
    before, after = _arm(old, old_law), _arm(new, new_law)
    counted = [arm.usable for arm in (before, after)]
    total_s = sum(_watched_s(blocks, arm) for blocks, arm in ((old, before), (new, after)))
    requests = float(before.finished[counted[0]].sum() + after.finished[counted[1]].sum())
    found = None
    if total_s > 0.0 and all(usable.any() for usable in counted):
        found = _compared((old, new), (before, after), (old_law, new_law), together, requests / total_s)
    return RollExperiment(
        found,
        int(before.busy.sum()),
        int(after.busy.sum()),
        int(before.saturated.sum()),
        int(after.saturated.sum()),
        float(min(before.finished.sum(), after.finished.sum())),
    )


def _arm(blocks: ArmBlocks, law: LatencyAt) -> _Arm:
    known = np.isfinite(blocks.spent_s)
    spent_s, finished, watched_s, grown = (
        np.where(known, part, 0.0).sum(axis=0)
        for part in (blocks.spent_s, blocks.finished, blocks.watched_s, blocks.grown)
    )
    busy = (finished >= _FEWEST_REQUESTS) & (spent_s > 0.0)
    many = np.where(busy, finished, np.nan)
    # What piles up was offered too; an old pile that is worked off was not.
    rps = np.maximum(many + grown, 0.0) / np.where(busy, watched_s, np.nan)
    with np.errstate(invalid="ignore"):
        slowed = law(np.where(busy, rps, 0.0)) / float(law(np.zeros(1))[0])
        queued = np.where(known, blocks.queued > 0.0, True).all(axis=0) & known.any(axis=0)
        # Requests that share an engine wait together. Where more, or fewer, are in flight at a block's end than at its begin,
        # those that finished are not those that came: a pod fills, drains or falls behind.
        variance = mean_latency_error(1.0, slowed, many) ** 2 + (grown / many) ** 2
    saturated = busy & (queued | ~np.isfinite(slowed))
    usable = busy & ~saturated & np.isfinite(variance)
    return _Arm(spent_s / many, finished, rps, variance, usable, busy, saturated, known)


def _without_first(blocks: ArmBlocks) -> ArmBlocks:
    """Figures where all of a pod's are known, but for its first block: its caches and graphs are made in it."""
    parts = np.stack([blocks.spent_s, blocks.finished, blocks.watched_s, blocks.grown, blocks.queued])
    known = np.isfinite(parts).all(axis=0) & (blocks.watched_s > 0.0)
    return ArmBlocks(*np.where(known & (np.cumsum(known, axis=1) > 1), parts, np.nan))


def _joined(old: ArmBlocks, new: ArmBlocks) -> tuple[ArmBlocks, ArmBlocks, BoolArray]:
    """Both arms in blocks so long that each holds enough requests of either; and in which of them both served at a time.

    A rate per block is what a latency is moved by: of two requests a second there is none.
    """
    length = 1
    for blocks in (old, new):
        here = np.isfinite(blocks.finished)
        if here.any() and (total := float(np.where(here, blocks.finished, 0.0).sum())) > 0.0:
            length = max(length, math.ceil(_ENOUGH_REQUESTS * here.any(axis=0).sum() / total))
    served = [np.isfinite(blocks.finished).any(axis=0) for blocks in (old, new)]
    together = np.logical_or.reduceat(served[0] & served[1], np.arange(0, served[0].size, length))
    return _of_length(old, length), _of_length(new, length), together


def _of_length(blocks: ArmBlocks, length: int) -> ArmBlocks:
    """So many neighbouring blocks as one; the last one may be shorter."""
    count = blocks.spent_s.shape[1]
    if length == 1 or not count:
        return blocks
    begins = np.arange(0, count, length)
    known = np.isfinite(blocks.spent_s)
    any_known = np.logical_or.reduceat(known, begins, axis=1)

    def total(part: FloatArray) -> FloatArray:
        summed = np.add.reduceat(np.where(known, part, 0.0), begins, axis=1)
        return np.where(any_known, summed, np.nan)

    queued = np.minimum.reduceat(np.where(known, blocks.queued, np.inf), begins, axis=1)
    return ArmBlocks(
        total(blocks.spent_s),
        total(blocks.finished),
        total(blocks.watched_s),
        total(blocks.grown),
        np.where(any_known, queued, np.nan),
    )


def _watched_s(blocks: ArmBlocks, arm: _Arm) -> float:
    return float(np.where(arm.known & arm.usable, blocks.watched_s, 0.0).sum())


def _compared(
    blocks: tuple[ArmBlocks, ArmBlocks],
    arms: tuple[_Arm, _Arm],
    laws: tuple[LatencyAt, LatencyAt],
    together: BoolArray,
    rps: float,
) -> MeasuredSpeedup | None:
    """The speedup at one rate per replica (1/s); None where an arm's law has no latency for it."""
    at_rate = [float(law(np.array([rps]))[0]) for law in laws]
    if not all(math.isfinite(latency_s) and latency_s > 0.0 for latency_s in at_rate):
        return None
    logs, moved = [], []
    for arm, law, latency_s in zip(arms, laws, at_rate, strict=True):
        slope = np.log(latency_s / law(np.where(arm.usable, arm.rps, 0.0)))
        weight = np.where(arm.usable, arm.finished, 0.0)
        adjusted_s = np.where(arm.usable, arm.latency_s, 1.0) * np.exp(slope)
        mean_s = float(np.average(adjusted_s, weights=weight))
        # Linear in the latencies: the mean of logarithms of noisy means lies low, the more so the fewer requests.
        logs.append(math.log(mean_s) + adjusted_s / mean_s - 1.0)
        moved.append(float(np.average(slope, weights=weight)))
    (old, new), (old_log, new_log) = arms, logs
    both = old.usable & new.usable & together
    alone_old, alone_new = old.usable & ~both, new.usable & ~both
    beside = _stream((old_log - new_log)[both], (old.variance + new.variance)[both])
    first, then = (
        _stream(log[where], arm.variance[where])
        for log, arm, where in ((old_log, old, alone_old), (new_log, new, alone_new))
    )
    weights, means, variances = [], [], []
    if beside is not None:
        weights.append(1.0 / beside.variance)
        means.append(beside.mean)
        variances.append(beside.variance)
    apart = first is not None and then is not None
    if first is not None and then is not None:
        variance = first.variance + then.variance
        weights.append(1.0 / (variance + _BETWEEN_SD**2))
        means.append(first.mean - then.mean)
        variances.append(variance)
    if not weights:
        return None
    shares = np.array(weights) / sum(weights)
    scatter = _pod_scatter(blocks, arms, laws)
    of_pods = sum(_concentration(part, arm) for part, arm in zip(blocks, arms, strict=True))
    between = float(shares[-1]) * _BETWEEN_SD if apart else 0.0
    counted = (
        [both] if not apart else [both | alone_old, both | alone_new] if beside else [alone_old, alone_new]
    )
    requests = sum(
        float(arm.finished[where].sum()) for arm, where in zip(arms, (counted[0], counted[-1]), strict=True)
    )
    return MeasuredSpeedup(
        log=float(shares @ means),
        time_sd=math.sqrt(float(shares**2 @ variances)),
        pods_sd=math.sqrt(scatter.variance * of_pods),
        pods_dof=max(int(scatter.observations), 1),
        between_sd=math.hypot(between, _SLOPE_ERROR * (moved[0] - moved[1])),
        rps=rps,
        requests=requests,
        witness=Witness.BOTH
        if beside is not None and apart
        else Witness.BEFORE_AFTER
        if apart
        else Witness.SIDE_BY_SIDE,
    )


def _stream(values: FloatArray, variances: FloatArray) -> _Stream | None:
    """The mean over blocks, weighted by what each tells; None without any."""
    if not values.size:
        return None
    scatter = max(_scatter(values, variances, length) for length in _BATCHES)
    weights = 1.0 / (variances + scatter)
    return _Stream(float(np.average(values, weights=weights)), float(1.0 / weights.sum()))


def _scatter(values: FloatArray, variances: FloatArray, length: int) -> float:
    """Variance per block beyond what requests explain, from the scatter of batches of so many neighbouring blocks.

    Neighbours that err alike make the means of longer batches scatter more than those of single blocks say; the largest
    of all lengths counts.
    """
    usual = _USUAL_BLOCK_SD**2 / length
    whole = len(values) // length * length
    if whole // length < 2:
        return _USUAL_BLOCK_SD**2
    weights = 1.0 / (variances[:whole] + _USUAL_BLOCK_SD**2).reshape(-1, length)
    means = (values[:whole].reshape(-1, length) * weights).sum(axis=1) / weights.sum(axis=1)
    sampling = (variances[:whole].reshape(-1, length) * weights**2).sum(axis=1) / weights.sum(axis=1) ** 2
    told = usual / (usual + sampling)
    count = len(means)
    strayed = (means - np.average(means, weights=weights.sum(axis=1))) ** 2 * count / (count - 1)
    excess = max(float(told @ (strayed - sampling)), 0.0)
    return length * (_USUAL_COUNTS_AS * usual + excess) / (_USUAL_COUNTS_AS + float(told.sum()))


def _pod_scatter(
    blocks: tuple[ArmBlocks, ArmBlocks], arms: tuple[_Arm, _Arm], laws: tuple[LatencyAt, LatencyAt]
) -> _PodScatter:
    """How much pods of one arm differ: each against the other pods of its arm in the same blocks."""
    excess, observations, usual = 0.0, _USUAL_COUNTS_AS, _USUAL_POD_SD**2
    for part, arm, law in zip(blocks, arms, laws, strict=True):
        counts = np.where(arm.known & arm.usable, part.finished, 0.0)
        several = (counts > 0.0).sum(axis=0) > 1
        counts = counts * several
        requests = counts.sum(axis=1)
        seen = requests >= _FEWEST_REQUESTS
        if seen.sum() < 2:
            continue
        counts, part_s = counts[seen], np.where(counts > 0.0, part.spent_s, 0.0)[seen]
        rates = np.where(counts > 0.0, counts / np.where(counts > 0.0, part.watched_s[seen], 1.0), 0.0)
        with np.errstate(invalid="ignore"):
            law_s, mean_law_s = law(rates), law(np.where(arm.usable, arm.rps, 0.0))
        # A pod at another rate than the others is held against what the arm's law says of that rate. The mean of a law over
        # rates lies above the law at the mean rate: what is expected of the pods adds up to what they took together.
        relative = counts * np.where(np.isfinite(law_s), law_s, mean_law_s)
        expected_s = relative * (part_s.sum(axis=0) / np.maximum(relative.sum(axis=0), 1e-300))
        ratio = part_s.sum(axis=1) / np.maximum(expected_s.sum(axis=1), 1e-300)
        slowed = np.where(arm.usable, arm.variance * arm.finished, 0.0)
        sampling = (counts * slowed).sum(axis=1) / requests[seen] ** 2
        told = usual / (usual + sampling)
        pods = int(seen.sum())
        excess += float(told @ ((ratio - 1.0) ** 2 * pods / (pods - 1) - sampling))
        observations += float(told.sum()) * (pods - 1) / pods
    return _PodScatter((_USUAL_COUNTS_AS * usual + max(excess, 0.0)) / observations, observations)


def _concentration(blocks: ArmBlocks, arm: _Arm) -> float:
    """Sum of the squares of the pods' shares in an arm's requests: 1 over their number where they serve alike."""
    requests = np.where(arm.known & arm.usable, blocks.finished, 0.0).sum(axis=1)
    return float((requests**2).sum() / requests.sum() ** 2)
