"""A change of arm as an experiment: how much faster the new arm is, from measured times alone.

Pods of both arms are compared in blocks of time. Where both serve in a block, they meet the same requests at the same
time and are compared side by side. Blocks in which one arm serves alone are compared before against after.

The mean latency of finished requests is the wrong figure. A new pod finishes short requests first and a draining pod long
ones, so that with long requests any new arm looks faster. A block's latency is therefore made of two figures of the requests
under way, which do not depend on who has finished: the time to the first token of those that began, and the time per token of
all that decode, times one length of answers for both arms. Clients that give up and answers that grow shorter cancel too.

Time per token depends on the number of requests in the pod. A young pod has few because it began with none, a draining
pod too, and a balancer sends more to an empty one. Rates of arrival do not say it. By Little's law a number in flight and a
latency have one steady rate: each block is at that rate, and is moved to one rate per replica by the ratio of the arm's *own*
predictions. A law contributes its slope and nothing else, so that its level, and a ratio of laws, never enters.

Three errors are kept apart, because they shrink in different ways:

- of time: few requests, and blocks that scatter. It shrinks with every block.
- of pods: two replicas of one arm differ (node, neighbours, clocks of the GPU). It shrinks with replicas only.
- of what came between: the hour and the texts of before are not those of after, and a slope has an error. It stays.

Few blocks and pods do not show their scatter: a usual value counts as four observations.

Pods that have just begun may be slower for their empty prefix caches. That makes an arm look slower than it is, and never
faster: each arm has an allowance for it (`_warming`), which moves the far bound and not the estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from statistics import NormalDist
from typing import NamedTuple, TypeAlias

import numpy as np

from breakeven.laws.arrays import BoolArray, FloatArray
from breakeven.profile.student_t import t_quantile

_USUAL_BLOCK_SD = 0.03
"""By which blocks of one arm usually differ beyond what their requests explain."""
_REQUEST_SD = 0.5
"""By which one request's times per token and to the first one scatter (log) at a given number in flight: its text, its prompt."""
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
_WARMING_BLOCKS = (5.0, 10.0, 20.0, 30.0)
"""Ages by which a cold start may have faded to 1/e: one to six windows. Which one it is, few blocks do not show."""
_MOST_COLD = 1.6
"""So many times as long a cold pod's work may take. An arm that loses more is shown to lose at once."""
_OTHER_TREND = 0.05
"""Logarithm by which blocks of one arm drift for other reasons while its pods fill: a slope that is wrong there, the hour."""
_DISCOUNTED = 1
"""Place of the fading among `_WARMING_BLOCKS` by which blocks of cold pods count less."""
_NO_CACHE = 0.02
"""Share of prompt tokens found in the prefix cache below which there is nothing to be cold of."""
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
        waited_s: times to the first token, summed over the requests that began (s).
        begun: requests whose first token came.
        stepped_s: times between tokens, summed over the requests under way (s).
        tokens: that came in these times: all but the first of each request.
        watched_s: time between the two samples that a block lies between (s).
        queued: requests that waited at its begin and at its end, whichever is fewer.
        prompt_tokens: of the requests that began; NaN also where nobody counts them.
        hits: those of them that the prefix cache held; NaN also where nobody counts them.
    """

    waited_s: FloatArray
    begun: FloatArray
    stepped_s: FloatArray
    tokens: FloatArray
    watched_s: FloatArray
    queued: FloatArray
    prompt_tokens: FloatArray
    hits: FloatArray


_NEEDED = tuple(part.name for part in fields(ArmBlocks) if part.name not in {"prompt_tokens", "hits"})
_Pods: TypeAlias = tuple[ArmBlocks, FloatArray]
"""An arm's blocks, and the tokens of its young pods in each (`_without_first`)."""


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
        requests: behind it, by tokens of a mean answer.
        witness: what it rests on.
        new_cold: by how much more (log) the new arm may gain once its pods are warm. old_cold: the old arm, likewise.
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
    """What the blocks of a roll say.

    Attributes:
        found: None where no two blocks can be compared.
        old_blocks, new_blocks: blocks in which the arm served requests.
        old_saturated, new_saturated: those of them that tell nothing because the arm was saturated: requests waited at
            every pod throughout, or its own law has no latency for the rate.
        requests: in all blocks, of the arm that had fewer.
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
        served: what its pods did, shape (pods, blocks).
        latency_s, requests, rps: of a block, shape (blocks,); the rate per replica that keeps the number in flight.
        variance: of the latency's logarithm, from the requests behind it.
        usable: blocks that tell something.
        busy: blocks in which requests were served. saturated: those of them without a latency of their own.
        young: what may be left of a cold start in each block: for each of `_WARMING_BLOCKS`, or as the hits say (`_coldness`);
            shape (ways, blocks).
        first_share: of the latency, until the first token.
        prompt_tokens: of a request, by block; NaN where nobody counts them. hit_share: of them in the prefix cache.
    """

    served: _Served
    latency_s: FloatArray
    requests: FloatArray
    rps: FloatArray
    variance: FloatArray
    usable: BoolArray
    busy: BoolArray
    saturated: BoolArray
    young: FloatArray
    first_share: float
    prompt_tokens: FloatArray
    hit_share: FloatArray


class _Served(NamedTuple):
    """Requests of each pod and block by their tokens, the time spent on them (s), and how many were in flight; 0 where unknown."""

    requests: FloatArray
    spent_s: FloatArray
    inflight: FloatArray


class _Stream(NamedTuple):
    """A weighted mean over blocks, its variance, what cold pods may add to it, and the weights of the blocks."""

    mean: float
    variance: float
    doubt: float
    weights: FloatArray


class _PodScatter(NamedTuple):
    """Variance of the logarithm of a pod's latency, and the observations behind it."""

    variance: float
    observations: float


def experiment(old: ArmBlocks, new: ArmBlocks, old_law: LatencyAt, new_law: LatencyAt) -> RollExperiment:
    """Compare two arms over the same blocks of time.

    Blocks say nothing in which an arm is saturated or serves hardly any requests, and no pod counts in its first block.

    Args:
        old: what the pods of the old arm did.
        new: and those of the new one, in the same blocks.
        old_law: predicted latencies of the old arm, of which only the slope is used.
        new_law: and of the new one.
    """
    pods, together = _joined(*(_without_first(blocks) for blocks in (old, new)))
    begun, tokens = (
        sum(float(np.nansum(part)) for part in parts)
        for parts in zip(*((one.begun, one.tokens) for one, _ in pods), strict=True)
    )
    # One length for both arms and all blocks: answers that grow shorter make no arm faster.
    answer = tokens / begun if begun > 0.0 else 0.0
    before, after = (
        _arm(*of_pods, law, answer) for of_pods, law in zip(pods, (old_law, new_law), strict=True)
    )
    found = None
    if before.usable.any() and after.usable.any():
        # NaN where either is not counted.
        warm = float(np.maximum(_hit_share(old), _hit_share(new)))
        (before, old_cold), (after, new_cold) = (_coldness(arm, warm) for arm in (before, after))
        found = _compared((before, after), (old_law, new_law), together, (old_cold, new_cold))
    return RollExperiment(
        found,
        int(before.busy.sum()),
        int(after.busy.sum()),
        int(before.saturated.sum()),
        int(after.saturated.sum()),
        float(min(np.nansum(before.requests), np.nansum(after.requests))),
    )


def _arm(blocks: ArmBlocks, young: FloatArray, law: LatencyAt, answer: float) -> _Arm:
    """One arm, for answers of so many tokens after the first.

    A pod in which nothing begins only drains: it holds long requests alone, whose contexts are long too.
    """
    known = np.isfinite(blocks.stepped_s) & (blocks.begun > 0.0)
    waited_s, begun, stepped_s, tokens, watched_s = (
        np.where(known, part, 0.0)
        for part in (blocks.waited_s, blocks.begun, blocks.stepped_s, blocks.tokens, blocks.watched_s)
    )
    each = tokens / answer if answer > 0.0 else begun
    first_s = each * waited_s / np.where(known, begun, 1.0)
    served = _Served(each, first_s + stepped_s, (waited_s + stepped_s) / np.where(known, watched_s, 1.0))
    requests, spent_s = each.sum(axis=0), served.spent_s.sum(axis=0)
    busy = (np.minimum(requests, begun.sum(axis=0)) >= _FEWEST_REQUESTS) & (spent_s > 0.0)
    many = np.where(busy, requests, np.nan)
    latency_s = spent_s / many
    # Each token meets the company of its own pod: a pod that is nearly empty counts by the few tokens that it makes.
    rps = (each * served.inflight).sum(axis=0) / many / np.where(busy, latency_s, 1.0)
    with np.errstate(invalid="ignore"):
        slowed = law(np.where(busy, rps, 0.0)) / float(law(np.zeros(1))[0])
        queued = np.where(known, blocks.queued > 0.0, True).all(axis=0) & known.any(axis=0)
        # That requests wait together is no error here: the number in flight that made them wait is known.
        variance = _REQUEST_SD**2 / np.where(busy, np.minimum(requests, begun.sum(axis=0)), np.nan)
        prompts = np.where(known, blocks.prompt_tokens, 0.0).sum(axis=0)
        prompt_tokens = prompts / np.where(busy, begun.sum(axis=0), np.nan)
        hit_share = np.where(known, blocks.hits, 0.0).sum(axis=0) / np.where(prompts > 0.0, prompts, np.nan)
    saturated = busy & (queued | ~np.isfinite(slowed))
    usable = busy & ~saturated & np.isfinite(variance)
    left = np.where(known, young, 0.0).sum(axis=1) / np.where(busy, tokens.sum(axis=0), 1.0)
    share = float(first_s[:, usable].sum() / spent_s[usable].sum()) if usable.any() else 0.0
    return _Arm(
        served, latency_s, many, rps, variance, usable, busy, saturated, left, share, prompt_tokens, hit_share
    )


def _without_first(blocks: ArmBlocks) -> tuple[ArmBlocks, FloatArray]:
    """Figures where all of a pod's are known, but for its first block: its graphs are made in it.

    Returns:
        The blocks, and the tokens of each that are made by young pods: shape (times, pods, blocks), by `_WARMING_BLOCKS`. A
        pod that serves from the begin on is not young.
    """
    needed = np.stack([getattr(blocks, name) for name in _NEEDED])
    known = np.isfinite(needed).all(axis=0) & (blocks.watched_s > 0.0)
    # There is no sample before the first block's.
    old = known[:, :2].any(axis=1, keepdims=True)
    age = np.where(old, np.inf, np.cumsum(known, axis=1))
    known &= np.cumsum(known, axis=1) > 1
    kept = ArmBlocks(*(np.where(known, getattr(blocks, part.name), np.nan) for part in fields(ArmBlocks)))
    young = np.stack([np.exp(-age / time) for time in _WARMING_BLOCKS]) * np.where(
        known, blocks.tokens, np.nan
    )
    return kept, young


def _joined(old: _Pods, new: _Pods) -> tuple[tuple[_Pods, _Pods], BoolArray]:
    """Both arms in blocks so long that each holds enough requests of either; and in which of them both served at a time.

    A number in flight per block is what a latency is moved by: of two requests a second there is none.
    """
    length = 1
    for blocks, _ in (old, new):
        here = np.isfinite(blocks.begun)
        if here.any() and (total := float(np.where(here, blocks.begun, 0.0).sum())) > 0.0:
            length = max(length, math.ceil(_ENOUGH_REQUESTS * here.any(axis=0).sum() / total))
    served = [np.isfinite(blocks.begun).any(axis=0) for blocks, _ in (old, new)]
    together = np.logical_or.reduceat(served[0] & served[1], np.arange(0, served[0].size, length))
    return (_of_length(*old, length), _of_length(*new, length)), together


def _of_length(blocks: ArmBlocks, young: FloatArray, length: int) -> _Pods:
    """So many neighbouring blocks as one; the last one may be shorter."""
    count = blocks.begun.shape[1]
    if length == 1 or not count:
        return blocks, young
    begins = np.arange(0, count, length)

    def total(part: FloatArray) -> FloatArray:
        known = np.isfinite(part)
        summed = np.add.reduceat(np.where(known, part, 0.0), begins, axis=-1)
        return np.where(np.logical_or.reduceat(known, begins, axis=-1), summed, np.nan)

    queued = np.minimum.reduceat(np.where(np.isfinite(blocks.queued), blocks.queued, np.inf), begins, axis=1)
    totals = {part.name: total(getattr(blocks, part.name)) for part in fields(ArmBlocks)}
    totals["queued"] = np.where(np.isfinite(totals["queued"]), queued, np.nan)
    return ArmBlocks(**totals), total(young)


def _hit_share(blocks: ArmBlocks) -> float:
    """The share of prompt tokens that the prefix caches of an arm held; NaN if nobody counts them."""
    prompts = float(np.nansum(np.where(np.isfinite(blocks.hits), blocks.prompt_tokens, np.nan)))
    return float(np.nansum(blocks.hits)) / prompts if prompts > 0.0 else math.nan


def _coldness(arm: _Arm, warm: float) -> tuple[_Arm, bool]:
    """The arm with how cold its pods were in each block, and whether that may have made them slower.

    Hits that are missing say it, where any are to be had and somebody counts them. Otherwise the age of the pods must do.

    Args:
        arm: whose pods.
        warm: share of hits of the arm that has more; NaN if they are not counted.
    """
    if not warm > _NO_CACHE:
        return arm, math.isnan(warm)
    missing = np.clip(1.0 - np.nan_to_num(arm.hit_share, nan=warm) / warm, 0.0, 1.0)
    return replace(arm, young=missing[None]), True


def _compared(
    arms: tuple[_Arm, _Arm], laws: tuple[LatencyAt, LatencyAt], together: BoolArray, cold: tuple[bool, bool]
) -> MeasuredSpeedup | None:
    """The speedup at the mean rate per replica; None where an arm's law has no latency for it."""
    totals = [np.where(arm.usable, arm.requests, 0.0) for arm in arms]
    rates = [np.where(arm.usable, arm.rps, 0.0) for arm in arms]
    rps = float(np.average(np.concatenate(rates), weights=np.concatenate(totals)))
    at_rate = [float(law(np.array([rps]))[0]) for law in laws]
    if not all(math.isfinite(latency_s) and latency_s > 0.0 for latency_s in at_rate):
        return None
    logs, moved = [], []
    for arm, law, latency_s, rate, weight in zip(arms, laws, at_rate, rates, totals, strict=True):
        slope = np.log(latency_s / law(rate))
        adjusted_s = np.where(arm.usable, arm.latency_s, 1.0) * np.exp(slope)
        mean_s = float(np.average(adjusted_s, weights=weight))
        # Linear in the latencies: the mean of logarithms of noisy means lies low, the more so the fewer requests.
        logs.append(math.log(mean_s) + adjusted_s / mean_s - 1.0)
        moved.append(float(np.average(slope, weights=weight)))
    (old, new), (old_log, new_log) = arms, logs
    both = old.usable & new.usable & together
    alone = old.usable & ~both, new.usable & ~both
    most = [_slowest(at / float(law(np.zeros(1))[0])) for at, law in zip(at_rate, laws, strict=True)]
    doubts = [
        may * cost * arm.young[min(_DISCOUNTED, len(arm.young) - 1)]
        for may, cost, arm in zip(cold, most, arms, strict=True)
    ]
    beside = _stream(
        (old_log - new_log)[both], (old.variance + new.variance)[both], (doubts[0] + doubts[1])[both]
    )
    first, then = (
        _stream(log[where], arm.variance[where], doubt[where])
        for log, arm, doubt, where in zip(logs, arms, doubts, alone, strict=True)
    )
    # What each stream says, its variance, the error that no number of blocks takes away, and what cold pods may add.
    streams: list[tuple[float, float, float, float]] = []
    if beside is not None:
        streams.append((beside.mean, beside.variance, 0.0, beside.doubt))
    if first is not None and then is not None:
        longer = _longer_prompts(arms, alone)
        between_sd = math.hypot(_BETWEEN_SD, longer)
        streams.append(
            (
                first.mean - then.mean + longer,
                first.variance + then.variance,
                between_sd,
                first.doubt + then.doubt,
            )
        )
    if not streams:
        return None
    means, variances, between, of_cold = np.array(streams).T
    shares = 1.0 / (variances + between**2 + of_cold**2)
    shares /= shares.sum()
    scatter = _pod_scatter(arms, laws)
    of_pods = sum(_concentration(arm) for arm in arms)
    apart = first is not None and then is not None
    coldness, requests = [], 0.0
    for arm, log, where, stream, cost, may in zip(arms, logs, alone, (first, then), most, cold, strict=True):
        weights = np.zeros(log.size)
        if beside is not None:
            weights[both] = shares[0] * beside.weights
        if apart and stream is not None:
            weights[where] = shares[-1] * stream.weights
        coldness.append(_warming(arm, log, weights, cost, may))
        requests += float(arm.requests[weights > 0.0].sum())
    return MeasuredSpeedup(
        log=float(shares @ means),
        time_sd=math.sqrt(float(shares**2 @ variances)),
        pods_sd=math.sqrt(scatter.variance * of_pods),
        pods_dof=max(int(scatter.observations), 1),
        between_sd=math.hypot(float(shares @ between), _SLOPE_ERROR * (moved[0] - moved[1])),
        rps=rps,
        requests=requests,
        witness=Witness.BOTH
        if beside is not None and apart
        else Witness.BEFORE_AFTER
        if apart
        else Witness.SIDE_BY_SIDE,
        old_cold=coldness[0],
        new_cold=coldness[1],
    )


def _longer_prompts(arms: tuple[_Arm, _Arm], alone: tuple[BoolArray, BoolArray]) -> float:
    """By how much (log) the new arm's requests took longer because their prompts were longer; 0 where nobody counts them.

    The time to the first token grows with the prompt, at most in proportion. Prompts also delay the tokens of others, and
    these two errors are of one size: the correction counts as doubt too.
    """
    means = [
        float(np.average(arm.prompt_tokens[where], weights=arm.requests[where]))
        for arm, where in zip(arms, alone, strict=True)
    ]
    if not all(0.0 < mean < math.inf for mean in means):
        return 0.0
    return 0.5 * (arms[0].first_share + arms[1].first_share) * math.log(means[1] / means[0])


def _slowest(slowed: float) -> float:
    """By how much (log) a request may take longer in cold pods, at the rate at which it takes `slowed` times what it takes alone.

    Work that takes longer leaves more requests in flight, so that they wait for each other longer too: with all of it s times
    as long, C1/(1 - C2*rate) becomes s*C1/(1 - s*C2*rate).
    """
    used = min(max(1.0 - 1.0 / slowed, 0.0), 0.9 / _MOST_COLD)
    return math.log(_MOST_COLD * (1.0 - used) / (1.0 - _MOST_COLD * used))


def _warming(arm: _Arm, log: FloatArray, weights: FloatArray, most: float, may_be_cold: bool) -> float:
    """By how much (log) an arm may be faster than it was measured to be, once its pods are as warm as others.

    A cold start fades by a time that is not known, and one that fades slowly looks like a slower arm. So it is at most as large
    as the trend in the blocks allows, and what is left of it in the mean of the blocks is allowed for. Where the caches
    have nothing to fill, only a significant trend counts.

    Args:
        arm: whose pods.
        log: logarithm of its latencies, by block.
        weights: of the blocks in the measured speedup.
        most: that a cold pod may be slower by.
        may_be_cold: whether its caches may still fill.
    """
    use = arm.usable
    precision = 1.0 / (arm.variance[use] + _USUAL_BLOCK_SD**2)
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
            # No cold pod gets slower with age. Pods that do show another drift, which may be as large the other way.
            sd = math.hypot(known**-0.5, _OTHER_TREND / spread, min(slower, 0.0))
        likely = slower + 2.0 * sd if may_be_cold else slower if slower > 3.0 * sd else 0.0
        allowance = max(allowance, left * min(max(likely, 0.0), most))
    return allowance


def _stream(values: FloatArray, variances: FloatArray, doubts: FloatArray) -> _Stream | None:
    """The mean over blocks, weighted by their variances and by the squares of what they may err by together; None without any."""
    if not values.size:
        return None
    scatter = max(_scatter(values, variances, length) for length in _BATCHES)
    weights = 1.0 / (variances + scatter + doubts**2)
    weights /= weights.sum()
    variance = float(weights**2 @ (variances + scatter))
    return _Stream(float(weights @ values), variance, float(weights @ doubts), weights)


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


def _pod_scatter(arms: tuple[_Arm, _Arm], laws: tuple[LatencyAt, LatencyAt]) -> _PodScatter:
    """How much pods of one arm differ: each against the other pods of its arm in the same blocks."""
    excess, observations, usual = 0.0, _USUAL_COUNTS_AS, _USUAL_POD_SD**2
    for arm, law in zip(arms, laws, strict=True):
        counts = np.where(arm.usable, arm.served.requests, 0.0)
        several = (counts > 0.0).sum(axis=0) > 1
        counts = counts * several
        requests = counts.sum(axis=1)
        seen = requests >= _FEWEST_REQUESTS
        if seen.sum() < 2:
            continue
        counts, part_s, inflight = (
            np.where(counts > 0.0, part, 0.0)[seen]
            for part in (counts, arm.served.spent_s, arm.served.inflight)
        )
        rates = inflight * counts / np.where(part_s > 0.0, part_s, 1.0)
        with np.errstate(invalid="ignore"):
            law_s, mean_law_s = law(rates), law(np.where(arm.usable, arm.rps, 0.0))
        # A pod at another rate than the others is held against what the arm's law says of that rate. The mean of a law over
        # rates lies above the law at the mean rate: what is expected of the pods adds up to what they took together.
        relative = counts * np.where(np.isfinite(law_s), law_s, mean_law_s)
        expected_s = relative * (part_s.sum(axis=0) / np.maximum(relative.sum(axis=0), 1e-300))
        ratio = part_s.sum(axis=1) / np.maximum(expected_s.sum(axis=1), 1e-300)
        slowed = np.where(arm.usable, arm.variance * arm.requests, 0.0)
        sampling = (counts * slowed).sum(axis=1) / requests[seen] ** 2
        told = usual / (usual + sampling)
        pods = int(seen.sum())
        # So many of them are free to differ from their mean.
        free = (pods - 1) / pods
        excess += float(told @ ((ratio - 1.0) ** 2 - free * sampling))
        observations += float(told.sum()) * free
    return _PodScatter((_USUAL_COUNTS_AS * usual + max(excess, 0.0)) / observations, observations)


def _concentration(arm: _Arm) -> float:
    """Sum of the squares of the pods' shares in an arm's requests: 1 over their number where they serve alike."""
    requests = np.where(arm.usable, arm.served.requests, 0.0).sum(axis=1)
    return float((requests**2).sum() / requests.sum() ** 2)
