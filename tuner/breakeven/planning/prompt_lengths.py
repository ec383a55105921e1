"""For which prompts an arm's answer holds: its speedup by quarter of the requests, shortest prompts first.

The law is asked for requests of one length, as many in flight as now: the speedup that a pool of such requests alone would have. Within
one batch all requests share their steps, so that a service with both lengths gains what lies between. Acceptance is taken to be
the same at every length, because vLLM counts it by no length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from breakeven.errors import BreakevenError
from breakeven.phrases import figure, percent
from breakeven.planning.evaluation import ArmEvaluation
from breakeven.profile import LoadPoint
from breakeven.reasons import Reason

LOSS = 0.05
"""Loss of speed at some length up to which it is not worth a word."""
QUARTERS = 4


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A share of the requests, of neighbouring prompt lengths, with its longest if a histogram has an edge there."""

    share: float
    mean_tokens: float
    up_to_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class PartSpeedup:
    """Speedup over no speculation at one length; None if the law cannot be asked. `extrapolated`: the length was not measured."""

    part: PromptPart
    speedup: float | None
    extrapolated: bool

    @property
    def loses(self) -> bool:
        """Whether the arm loses so much here that it is worth a word."""
        return self.speedup is not None and self.speedup < 1.0 - LOSS


def given_parts(means: Sequence[float]) -> tuple[PromptPart, ...]:
    """Equal shares of the requests with these mean prompts."""
    return tuple(PromptPart(1.0 / len(means), mean) for mean in sorted(means))


def counted_parts(counts: Mapping[float, float], mean_tokens: float | None) -> tuple[PromptPart, ...]:
    """Quarters of the requests as far as a histogram's buckets tell them apart, by upper edge (tokens); none without requests.

    A bucket belongs to the quarter in which its middle lies, so that shares are exact, and a bucket that holds half of the
    requests is one part. Within a bucket lengths are not known: its middle counts, moved so that all parts have the measured mean.
    """
    total = max(counts.values(), default=0.0)
    if not (math.isfinite(total) and total > 0.0):
        return ()
    parts: list[list[tuple[float, float, float]]] = [[] for _ in range(QUARTERS)]
    low, before = 0.0, 0.0
    for edge in sorted(counts):
        # Prometheus extrapolates each bucket by itself, so that one may come out a little below the one before it.
        upto = max(before, counts[edge])
        if upto > before:
            quarter = min(int(QUARTERS * (before + upto) / (2.0 * total)), QUARTERS - 1)
            parts[quarter].append((low, edge, upto - before))
        low, before = edge, upto
    buckets = [one for part in parts for one in part]
    middles = sum(number * _middle(start, end) for start, end, number in buckets) / total
    factor = mean_tokens / middles if mean_tokens and mean_tokens > 0.0 else 1.0
    return tuple(_part(part, factor, total) for part in parts if part)


def _part(buckets: Sequence[tuple[float, float, float]], factor: float, total: float) -> PromptPart:
    number = sum(one[2] for one in buckets)
    tokens = sum(one * min(max(factor * _middle(low, high), low), high) for low, high, one in buckets)
    longest = buckets[-1][1]
    return PromptPart(number / total, max(tokens / number, 1.0), longest if math.isfinite(longest) else None)


def _middle(low: float, high: float) -> float:
    """The geometric middle of a bucket: edges are 1, 2, 5, 10, ... tokens."""
    return low if math.isinf(high) else math.sqrt(max(low, 1.0) * high)


def by_prompt(
    arm: ArmEvaluation | None, none: ArmEvaluation | None, parts: Iterable[PromptPart]
) -> tuple[PartSpeedup, ...]:
    """The speedup of an arm over no speculation at each part's length, at the number in flight that it has now.

    Nothing without one of the two, and if the arm is saturated: the number in flight is then not known.
    """
    inflight = arm.prediction.inflight if arm is not None else None
    if arm is None or none is None or inflight is None:
        return ()
    load = LoadPoint(concurrency=max(inflight, 1.0))
    return tuple(_speedup(arm, none, load, part) for part in parts)


def _speedup(arm: ArmEvaluation, none: ArmEvaluation, load: LoadPoint, part: PromptPart) -> PartSpeedup:
    try:
        curves = [one.at_prompts(part.mean_tokens) for one in (arm, none)]
        latencies_s = [load.on(curve)[0] for curve in curves]
    except BreakevenError:
        return PartSpeedup(part, None, extrapolated=True)
    ratio = latencies_s[1] / latencies_s[0]
    return PartSpeedup(
        part, ratio if math.isfinite(ratio) else None, extrapolated=any(curve.strayed for curve in curves)
    )


def prompts_text(found: Sequence[PartSpeedup]) -> str:
    """The speedups in words, with a reason word if a part loses; empty without any."""
    known = [one for one in found if one.speedup is not None]
    if not known:
        return ""
    lost = sum(one.part.share for one in known if one.loses)
    word = f"{Reason.LOSES_AT_LENGTHS}: {percent(lost)} of requests; " if lost else ""
    return word + ", ".join(_part_text(one) for one in known)


def _part_text(one: PartSpeedup) -> str:
    longest, mean = one.part.up_to_tokens, one.part.mean_tokens
    length = f"prompts of {mean:.0f} tokens" if longest is None else f"prompts up to {longest:.0f} tokens"
    mark = ", extrapolated" if one.extrapolated else ""
    return f"{length} ({percent(one.part.share)}) {figure(one.speedup or 0.0)}x{mark}"
