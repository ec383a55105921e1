"""The pods of one arm in blocks of time: their counts, and the latency and the rate per replica that follow.

The latency counts the requests under way (`roll_experiment` says why), at the steady rate that keeps their number in flight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple, TypeAlias

import numpy as np

from breakeven.laws.arrays import BoolArray, FloatArray

USUAL_BLOCK_SD = 0.03
"""Usual standard deviation (log) between blocks of one arm, beyond what their requests explain."""
_REQUEST_SD = 0.5
"""Standard deviation (log) of one request's times per token and to the first one, at a given number in flight."""
WARMING_BLOCKS = (5.0, 10.0, 20.0, 30.0)
"""Ages (blocks) by which a cold start may have faded to 1/e: one to six windows. Few blocks do not show which it is."""
_ENOUGH_REQUESTS = 20.0
"""Mean requests of an arm in a block; blocks that hold fewer are joined with their neighbours."""
FEWEST_REQUESTS = 5.0

LatencyAt = Callable[[FloatArray], FloatArray]
"""Predicted mean latency (s) of an arm at rates per replica (1/s), of the same shape; NaN beyond its saturation."""


@dataclass(frozen=True, slots=True, eq=False)
class ArmBlocks:
    """Counts and times of each pod of one arm in each block; all of shape (pods, blocks), NaN if a pod has no figures.

    Attributes:
        waited_s: times to the first token, summed over the requests that began (s).
        begun: requests whose first token came.
        stepped_s: times between tokens, summed over the requests under way (s).
        tokens: tokens generated in these times: all but the first of each request.
        watched_s: time between the two samples that a block lies between (s).
        queued: requests that waited at its begin and at its end, whichever is fewer.
        prompt_tokens: of the requests that began; NaN also if they are not counted.
        hits: prompt tokens of these that the prefix cache held; NaN also if they are not counted.
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


@dataclass(frozen=True, slots=True, eq=False)
class ServedArm:
    """Blocks of one arm, over all of its pods, each figure of shape (blocks,).

    Attributes:
        latency_s, requests, rps: `rps` is the rate per replica (1/s) that keeps the number in flight.
        variance: of the latency's logarithm, from the requests behind it.
        usable: blocks that can be compared: busy, and not saturated.
        busy: blocks in which requests were served.
        saturated: busy blocks without a latency of their own.
        young: what may be left of a cold start in each block: for each of `WARMING_BLOCKS`, or as the hits show (`with_coldness`);
            shape (ways, blocks).
        first_share: of the latency, until the first token.
        prompt_tokens: of a request; NaN if they are not counted.
        hit_share: share of them in the prefix cache.
    """

    served: PodsServed
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


class PodsServed(NamedTuple):
    """Requests of each pod and block by their tokens, the time spent on them (s), and how many were in flight; 0 where unknown."""

    requests: FloatArray
    spent_s: FloatArray
    inflight: FloatArray


def both_served(
    arms: tuple[ArmBlocks, ArmBlocks], laws: tuple[LatencyAt, LatencyAt]
) -> tuple[tuple[ServedArm, ServedArm], BoolArray]:
    """Both arms' latencies at their rates in blocks that hold enough requests, and in which blocks both served.

    Blocks in which an arm is saturated or serves hardly any requests are left out, and so is the first block of each pod.
    """
    (old, new), together = _joined(*map(_without_first, arms))
    begun, tokens = (
        sum(float(np.nansum(part)) for part in parts)
        for parts in zip(*((blocks.begun, blocks.tokens) for blocks, _ in (old, new)), strict=True)
    )
    # One length for both arms and all blocks, so that answers that grow shorter make no arm faster.
    answer = tokens / begun if begun > 0.0 else 0.0
    return (_arm(*old, laws[0], answer), _arm(*new, laws[1], answer)), together


def _arm(blocks: ArmBlocks, young: FloatArray, law: LatencyAt, answer: float) -> ServedArm:
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
    served = PodsServed(each, first_s + stepped_s, (waited_s + stepped_s) / np.where(known, watched_s, 1.0))
    requests, spent_s = each.sum(axis=0), served.spent_s.sum(axis=0)
    busy = (np.minimum(requests, begun.sum(axis=0)) >= FEWEST_REQUESTS) & (spent_s > 0.0)
    many = np.where(busy, requests, np.nan)
    latency_s = spent_s / many
    # Weighted by tokens, so that a pod that is nearly empty counts by the few tokens that it makes.
    rps = (each * served.inflight).sum(axis=0) / many / np.where(busy, latency_s, 1.0)
    with np.errstate(invalid="ignore"):
        slowed = law(np.where(busy, rps, 0.0)) / float(law(np.zeros(1))[0])
        queued = np.where(known, blocks.queued > 0.0, True).all(axis=0) & known.any(axis=0)
        # Requests that wait together add no variance: the number in flight that made them wait is known.
        variance = _REQUEST_SD**2 / np.where(busy, np.minimum(requests, begun.sum(axis=0)), np.nan)
        prompts = np.where(known, blocks.prompt_tokens, 0.0).sum(axis=0)
        prompt_tokens = prompts / np.where(busy, begun.sum(axis=0), np.nan)
        hit_share = np.where(known, blocks.hits, 0.0).sum(axis=0) / np.where(prompts > 0.0, prompts, np.nan)
    saturated = busy & (queued | ~np.isfinite(slowed))
    usable = busy & ~saturated & np.isfinite(variance)
    left = np.where(known, young, 0.0).sum(axis=1) / np.where(busy, tokens.sum(axis=0), 1.0)
    share = float(first_s[:, usable].sum() / spent_s[usable].sum()) if usable.any() else 0.0
    return ServedArm(
        served, latency_s, many, rps, variance, usable, busy, saturated, left, share, prompt_tokens, hit_share
    )


def _without_first(blocks: ArmBlocks) -> tuple[ArmBlocks, FloatArray]:
    """Figures of blocks in which all of a pod's are known, without its first block: the engine captures its graphs in it.

    With them the tokens of each that are made by young pods: shape (times, pods, blocks), by `WARMING_BLOCKS`. A pod that
    serves from the begin on is not young.
    """
    needed = np.stack([getattr(blocks, name) for name in _NEEDED])
    known = np.isfinite(needed).all(axis=0) & (blocks.watched_s > 0.0)
    # The first block has no sample before it.
    old = known[:, :2].any(axis=1, keepdims=True)
    age = np.where(old, np.inf, np.cumsum(known, axis=1))
    known &= np.cumsum(known, axis=1) > 1
    kept = ArmBlocks(*(np.where(known, getattr(blocks, part.name), np.nan) for part in fields(ArmBlocks)))
    young = np.stack([np.exp(-age / time) for time in WARMING_BLOCKS]) * np.where(
        known, blocks.tokens, np.nan
    )
    return kept, young


def _joined(old: _Pods, new: _Pods) -> tuple[tuple[_Pods, _Pods], BoolArray]:
    """Both arms in blocks so long that each holds enough requests of either; and in which of them both served at a time.

    A latency is moved by the number in flight of its block, which a block of a few requests does not show.
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
    """The blocks joined in groups of `length` neighbours; the last group may be shorter."""
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
