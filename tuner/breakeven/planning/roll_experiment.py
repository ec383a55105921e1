"""A change of arm as an experiment: the speedup of the new arm, from measured times alone.

Pods of both arms are compared in blocks of time. Where both serve in a block, they meet the same requests at the same
time and are compared side by side. Blocks in which one arm serves alone are compared before against after.

The mean latency of finished requests is the wrong figure. A new pod finishes short requests first and a draining pod long
ones, so that with long requests any new arm looks faster. A block's latency is therefore the sum of two figures of the
requests under way, which do not depend on which requests have finished: the time to the first token of those that began, and
the time per token of all that decode. The second is multiplied by one length of answers for both arms. Clients that give up and answers that grow shorter cancel too.

Time per token depends on the number of requests in the pod. A young pod has few because it began with none, a draining
pod too, and a balancer sends more to an empty one. Rates of arrival do not show it. By Little's law a number in flight and a
latency give one steady rate: each block is at that rate, and is moved to one rate per replica by the ratio of the arm's *own*
predictions. A law contributes its slope and nothing else, so that its level, and a ratio of laws, never enters.

Three errors are kept separate, because they shrink in different ways:

- of time: few requests, and blocks that scatter. It shrinks with every block.
- of pods: two replicas of one arm differ (node, neighbours, clocks of the GPU). It shrinks with replicas only.
- of the change between: hour and texts differ before and after, and a slope has an error. It stays.

Few blocks and pods do not show their scatter, so a usual value counts as four observations.

Pods that have just begun may be slower for their empty prefix caches. That makes an arm look slower than it is, and never
faster: each arm has an allowance for it (`cold_pods`), which moves the far bound and not the estimate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from breakeven.laws.arrays import BoolArray, FloatArray
from breakeven.planning.arm_blocks import (
    FEWEST_REQUESTS,
    USUAL_BLOCK_SD,
    ArmBlocks,
    LatencyAt,
    ServedArm,
    both_served,
)
from breakeven.profile.student_t import t_quantile
from breakeven.reasons import Witness

_USUAL_POD_SD = 0.04
"""Usual standard deviation between pods of one arm: two runs of one engine scatter by 2 to 6 %."""
USUAL_COUNTS_AS = 4.0
"""Observations that a usual value counts as."""
_BETWEEN_SD = 0.04 * math.sqrt(2.0)
"""Standard deviation of before against after: each of both means errs by 4 % with its hour and texts (`learned_laws`)."""
_SLOPE_ERROR = 0.25
"""Share by which a law's slope may be wrong: the error of a latency grows with the distance that it was moved."""
_FORM_SD = 0.02
"""Standard deviation of any comparison: pods that fill or drain are at other numbers in flight, and a law is approximate."""
_EXPECTED_EFFECT = 0.2
"""Logarithm of the speedup for which the always-valid bound is tightest."""
_BATCHES = (1, 2, 4)
_MOST_COLD = 1.6
"""Largest factor by which a cold pod's work may take longer. An arm that loses more is shown to lose at once."""
_OTHER_TREND = 0.05
"""Logarithm by which blocks of one arm drift for other reasons while its pods fill: a wrong slope, the hour."""
_DISCOUNTED = 1
"""Place of the fading among `WARMING_BLOCKS` by which blocks of cold pods count less."""
_NO_CACHE = 0.02
"""Share of prompt tokens found in the prefix cache below which no pod counts as cold."""


class SpeedupBounds(NamedTuple):
    """Lower and upper end of a speedup (ratio of latencies, old arm over new one)."""

    lower: float
    upper: float


def always_valid_radius(sd: float, confidence: float) -> float:
    """Half the width of bounds on a mean that hold at all looks together, however many there are.

    The normal mixture's confidence sequence: with the information V = 1/sd^2 so far,
    |mean - truth| <= sqrt((V + r)/V^2 * ln((V + r)/(r*alpha^2))).
    """
    alpha, known = 1.0 - confidence, sd**-2
    r = _EXPECTED_EFFECT**-2
    return math.sqrt((known + r) / known**2 * math.log((known + r) / (r * alpha**2)))


@dataclass(frozen=True, slots=True)
class MeasuredSpeedup:
    """Latency of the old arm over latency of the new arm, at one rate per replica.

    Attributes:
        log: its natural logarithm.
        time_sd, pods_sd, between_sd: standard errors of `log`: of time, of pods, of the change between before and after.
        rps: rate per replica (1/s) that both arms were moved to: the mean of both.
        requests: behind it, by tokens of a mean answer.
        new_cold, old_cold: logarithm by which the new arm, and the old one, may become faster once its pods are warm.
    """

    log: float
    time_sd: float
    pods_sd: float
    pods_dof: int
    between_sd: float
    rps: float
    requests: float
    witness: Witness
    new_cold: float = 0.0
    old_cold: float = 0.0

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
        ends = self.log - self.old_cold - radius, self.log + self.new_cold + radius
        return SpeedupBounds(*(math.exp(max(min(end, 700.0), -700.0)) for end in ends))


@dataclass(frozen=True, slots=True)
class RollExperiment:
    """Result of comparing the blocks of a roll.

    Attributes:
        found: None if no two blocks can be compared.
        old_blocks, new_blocks: blocks in which the arm served requests.
        old_saturated, new_saturated: such blocks that are left out because the arm was saturated: requests waited at
            every pod throughout, or its own law has no latency for the rate.
        requests: in all blocks, of the arm that had fewer.
    """

    found: MeasuredSpeedup | None
    old_blocks: int
    new_blocks: int
    old_saturated: int
    new_saturated: int
    requests: float


class BlockMean(NamedTuple):
    """A weighted mean over blocks, its variance, its doubt because of cold pods, and the weights of the blocks."""

    mean: float
    variance: float
    doubt: float
    weights: FloatArray


class _Comparison(NamedTuple):
    """A way to compare two arms, and its result.

    Attributes:
        mean: logarithm of the speedup.
        variance: of `mean`; more blocks reduce it.
        stays: standard error of `mean` that no number of blocks reduces.
        doubt: by which cold pods may move it (log).
        weights: of the blocks of each arm, shape (blocks,) each.
    """

    witness: Witness
    mean: float
    variance: float
    stays: float
    doubt: float
    weights: tuple[FloatArray, FloatArray]


def experiment(old: ArmBlocks, new: ArmBlocks, old_law: LatencyAt, new_law: LatencyAt) -> RollExperiment:
    """Compare two arms over the same blocks of time; of their predicted latencies only the slope is used.

    Blocks in which an arm is saturated or serves hardly any requests are left out, and so is the first block of each pod.
    """
    (before, after), together = both_served((old, new), (old_law, new_law))
    found = None
    if before.usable.any() and after.usable.any():
        (before, old_cold), (after, new_cold) = with_coldness((old, new), (before, after))
        found = _compared((before, after), (old_law, new_law), together, (old_cold, new_cold))
    return RollExperiment(
        found,
        int(before.busy.sum()),
        int(after.busy.sum()),
        int(before.saturated.sum()),
        int(after.saturated.sum()),
        float(min(np.nansum(before.requests), np.nansum(after.requests))),
    )


def _compared(
    arms: tuple[ServedArm, ServedArm],
    laws: tuple[LatencyAt, LatencyAt],
    together: BoolArray,
    cold: tuple[bool, bool],
) -> MeasuredSpeedup | None:
    """The speedup at the mean rate per replica; None where an arm's law has no latency for it."""
    totals = [np.where(arm.usable, arm.requests, 0.0) for arm in arms]
    rates = [np.where(arm.usable, arm.rps, 0.0) for arm in arms]
    rps = float(np.average(np.concatenate(rates), weights=np.concatenate(totals)))
    at_rate = [float(law(np.array([rps]))[0]) for law in laws]
    if not all(math.isfinite(latency_s) and latency_s > 0.0 for latency_s in at_rate):
        return None
    moved = [_moved_to(latency_s, arm, law) for latency_s, arm, law in zip(at_rate, arms, laws, strict=True)]
    most = [slowest(at / float(law(np.zeros(1))[0])) for at, law in zip(at_rate, laws, strict=True)]
    # By so much less counts each block of cold pods.
    fading = [arm.young[min(_DISCOUNTED, len(arm.young) - 1)] for arm in arms]
    doubts = [may * cost * left for may, cost, left in zip(cold, most, fading, strict=True)]
    logs = [log for log, _ in moved]
    both = arms[0].usable & arms[1].usable & together
    ways = (_side_by_side(arms, logs, doubts, both), _before_after(arms, logs, doubts, both))
    found = [way for way in ways if way is not None]
    if not found:
        return None
    means, variances, between, of_cold = np.array([(w.mean, w.variance, w.stays, w.doubt) for w in found]).T
    shares = 1.0 / (variances + between**2 + of_cold**2)
    shares /= shares.sum()
    weights = [
        np.sum([share * one.weights[place] for share, one in zip(shares, found, strict=True)], axis=0)
        for place in range(len(arms))
    ]
    scatter, observations = _pod_scatter(arms, laws)
    of_pods = sum(_concentration(arm) for arm in arms)
    slopes = moved[0][1] - moved[1][1]
    old_cold, new_cold = (
        warming(arm, log, weight, cost, may)
        for arm, log, weight, cost, may in zip(arms, logs, weights, most, cold, strict=True)
    )
    return MeasuredSpeedup(
        log=float(shares @ means),
        time_sd=math.sqrt(float(shares**2 @ variances)),
        pods_sd=math.sqrt(scatter * of_pods),
        pods_dof=max(int(observations), 1),
        between_sd=math.hypot(float(shares @ between), _SLOPE_ERROR * slopes, _FORM_SD),
        rps=rps,
        requests=sum(
            float(arm.requests[weight > 0.0].sum()) for arm, weight in zip(arms, weights, strict=True)
        ),
        witness=Witness.BOTH if len(found) > 1 else found[0].witness,
        old_cold=old_cold,
        new_cold=new_cold,
    )


def _moved_to(latency_s: float, arm: ServedArm, law: LatencyAt) -> tuple[FloatArray, float]:
    """Logarithms of an arm's latencies, by block, at the rate at which its law has `latency_s`, and by how much (log) they were moved on average."""
    weight = np.where(arm.usable, arm.requests, 0.0)
    slope = np.log(latency_s / law(np.where(arm.usable, arm.rps, 0.0)))
    adjusted_s = np.where(arm.usable, arm.latency_s, 1.0) * np.exp(slope)
    mean_s = float(np.average(adjusted_s, weights=weight))
    # Linear in the latencies: the mean of logarithms of noisy means lies low, the more so the fewer requests.
    log = math.log(mean_s) + adjusted_s / mean_s - 1.0
    return log, float(np.average(slope, weights=weight))


def _side_by_side(
    arms: tuple[ServedArm, ServedArm],
    logs: Sequence[FloatArray],
    doubts: Sequence[FloatArray],
    both: BoolArray,
) -> _Comparison | None:
    """The arms compared in blocks in which both served; None without any."""
    found = mean_of_blocks(
        (logs[0] - logs[1])[both], (arms[0].variance + arms[1].variance)[both], (doubts[0] + doubts[1])[both]
    )
    if found is None:
        return None
    weights = _spread(found.weights, both)
    return _Comparison(Witness.SIDE_BY_SIDE, found.mean, found.variance, 0.0, found.doubt, (weights, weights))


def _before_after(
    arms: tuple[ServedArm, ServedArm],
    logs: Sequence[FloatArray],
    doubts: Sequence[FloatArray],
    both: BoolArray,
) -> _Comparison | None:
    """The arms compared in blocks in which one served alone; None without such blocks of each."""
    alone = arms[0].usable & ~both, arms[1].usable & ~both
    first, then = (
        mean_of_blocks(log[where], arm.variance[where], doubt[where])
        for log, arm, doubt, where in zip(logs, arms, doubts, alone, strict=True)
    )
    if first is None or then is None:
        return None
    longer = _longer_prompts(arms, alone)
    return _Comparison(
        Witness.BEFORE_AFTER,
        first.mean - then.mean + longer,
        first.variance + then.variance,
        math.hypot(_BETWEEN_SD, longer),
        first.doubt + then.doubt,
        (_spread(first.weights, alone[0]), _spread(then.weights, alone[1])),
    )


def _spread(weights: FloatArray, where: BoolArray) -> FloatArray:
    """Weights of some blocks as weights of all, 0 for the others."""
    of_all = np.zeros(where.size)
    of_all[where] = weights
    return of_all


def _longer_prompts(arms: tuple[ServedArm, ServedArm], alone: tuple[BoolArray, BoolArray]) -> float:
    """Logarithm by which the new arm's requests took longer because of longer prompts; 0 if prompts are not counted.

    The time to the first token grows with the prompt, at most in proportion. Prompts also delay the tokens of others. Both
    errors are of one size, so that the correction counts as doubt too.
    """
    means = [
        float(np.average(arm.prompt_tokens[where], weights=arm.requests[where]))
        for arm, where in zip(arms, alone, strict=True)
    ]
    if not all(0.0 < mean < math.inf for mean in means):
        return 0.0
    return 0.5 * (arms[0].first_share + arms[1].first_share) * math.log(means[1] / means[0])


def mean_of_blocks(values: FloatArray, variances: FloatArray, doubts: FloatArray) -> BlockMean | None:
    """The mean over blocks, weighted by their variances and by the squares of their common doubt; None without blocks."""
    if not values.size:
        return None
    scatter = max(_scatter(values, variances, length) for length in _BATCHES)
    weights = 1.0 / (variances + scatter + doubts**2)
    weights /= weights.sum()
    variance = float(weights**2 @ (variances + scatter))
    return BlockMean(float(weights @ values), variance, float(weights @ doubts), weights)


def _scatter(values: FloatArray, variances: FloatArray, length: int) -> float:
    """Variance per block beyond what requests explain, from the scatter of batches of so many neighbouring blocks.

    Neighbours that err in the same way make the means of longer batches scatter more than single blocks would; the caller
    takes the largest of all lengths.
    """
    usual = USUAL_BLOCK_SD**2 / length
    whole = len(values) // length * length
    if whole // length < 2:
        return USUAL_BLOCK_SD**2
    weights = 1.0 / (variances[:whole] + USUAL_BLOCK_SD**2).reshape(-1, length)
    means = (values[:whole].reshape(-1, length) * weights).sum(axis=1) / weights.sum(axis=1)
    sampling = (variances[:whole].reshape(-1, length) * weights**2).sum(axis=1) / weights.sum(axis=1) ** 2
    reliability = usual / (usual + sampling)
    count = len(means)
    strayed = (means - np.average(means, weights=weights.sum(axis=1))) ** 2 * count / (count - 1)
    excess = max(float(reliability @ (strayed - sampling)), 0.0)
    return length * (USUAL_COUNTS_AS * usual + excess) / (USUAL_COUNTS_AS + float(reliability.sum()))


def _pod_scatter(arms: tuple[ServedArm, ServedArm], laws: tuple[LatencyAt, LatencyAt]) -> tuple[float, float]:
    """Variance of the logarithm of a pod's latency, each against the other pods of its arm in the same blocks, and the observations behind it."""
    excess, observations, usual = 0.0, USUAL_COUNTS_AS, _USUAL_POD_SD**2
    for arm, law in zip(arms, laws, strict=True):
        counts = np.where(arm.usable, arm.served.requests, 0.0)
        several = (counts > 0.0).sum(axis=0) > 1
        counts = counts * several
        requests = counts.sum(axis=1)
        seen = requests >= FEWEST_REQUESTS
        if seen.sum() < 2:
            continue
        counts, part_s, inflight = (
            np.where(counts > 0.0, part, 0.0)[seen]
            for part in (counts, arm.served.spent_s, arm.served.inflight)
        )
        rates = inflight * counts / np.where(part_s > 0.0, part_s, 1.0)
        with np.errstate(invalid="ignore"):
            law_s, mean_law_s = law(rates), law(np.where(arm.usable, arm.rps, 0.0))
        # A pod at another rate than the others is compared with the arm's law at that rate. The mean of a law over rates
        # lies above the law at the mean rate. So the expected times are scaled to add up to the measured ones.
        relative = counts * np.where(np.isfinite(law_s), law_s, mean_law_s)
        expected_s = relative * (part_s.sum(axis=0) / np.maximum(relative.sum(axis=0), 1e-300))
        ratio = part_s.sum(axis=1) / np.maximum(expected_s.sum(axis=1), 1e-300)
        slowed = np.where(arm.usable, arm.variance * arm.requests, 0.0)
        sampling = (counts * slowed).sum(axis=1) / requests[seen] ** 2
        reliability = usual / (usual + sampling)
        pods = int(seen.sum())
        # Two pods show only one difference: observations are reduced for it, and the excess over the usual counts in full.
        excess += float(reliability @ ((ratio - 1.0) ** 2 * pods / (pods - 1) - sampling))
        observations += float(reliability.sum()) * (pods - 1) / pods
    return (USUAL_COUNTS_AS * usual + max(excess, 0.0)) / observations, observations


def _concentration(arm: ServedArm) -> float:
    """Sum of the squares of the pods' shares in an arm's requests: 1 over their number if they serve equally many."""
    requests = np.where(arm.usable, arm.served.requests, 0.0).sum(axis=1)
    return float((requests**2).sum() / requests.sum() ** 2)


# Pods whose prefix caches still fill: how much faster their arm may be than it was measured to be.
#
# A cold pod is slower and never faster, so that an allowance for it moves one bound and no estimate.


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

    Missing cache hits show it, if hits are counted and there are any. Otherwise the age of the pods is used. `warm` is the share
    of hits of the arm that has more; NaN if they are not counted.
    """
    if not warm > _NO_CACHE:
        return arm, math.isnan(warm)
    missing = np.clip(1.0 - np.nan_to_num(arm.hit_share, nan=warm) / warm, 0.0, 1.0)
    return replace(arm, young=missing[None]), True


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
    large as the trend in the blocks allows, and than `most`, the largest logarithm by which a cold pod may be slower. Its
    remainder in the mean of the blocks is the allowance. If the caches have nothing to fill, only a significant trend counts.
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
