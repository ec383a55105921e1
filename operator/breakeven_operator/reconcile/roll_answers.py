"""Answers of a roll's new pods against those of its old ones: how they end, how long they are, and how many are none.

Live requests differ from pod to pod, so that only answers of the same blocks of time are compared. Nothing is undone for them:
what users ask may have moved. The finding is said with the roll's last word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from breakeven.laws.arrays import FloatArray
from breakeven.phrases import percent
from breakeven.serving.promql import Matcher, selector
from breakeven_operator.reconcile.roll_metrics import RolledPods, RollReading, grown_blocks

FINISHED, CUT, ABORTED, BRIEF, TOKENS = "served", "cut", "aborted", "brief", "answer_tokens"
_STATS = (FINISHED, CUT, ABORTED, BRIEF, TOKENS)

# One client's requests come together: they count as so many fewer that are independent.
_BURST = 4.0
_FEWEST_ANSWERS = 100.0
_FEWEST_BLOCKS = 5
# Three shares and the length are looked at once, at the roll's last word: about one false alarm in a thousand rolls.
_SIGNIFICANT = 3.6
_SHARE = 0.01
_LENGTH = 0.1
_SIGNIFICANT_LENGTH = 6.0


class AnswerCounts(NamedTuple):
    """Answers of one arm: finished, cut off at their longest, aborted by clients, of one token at most, and tokens of all."""

    finished: float
    cut: float
    aborted: float
    brief: float
    tokens: float

    @property
    def said(self) -> str:
        """The figures in words."""
        shares = (count / self.finished for count in (self.cut, self.aborted, self.brief))
        cut, aborted, brief = map(percent, shares)
        return f"{self.tokens / self.finished:.0f} tokens, {cut} ended at max_tokens, {aborted} aborted, {brief} of one token at most"


@dataclass(frozen=True, slots=True)
class AnswerShift:
    """How answers of the new arm differ from those of the old one in the same time.

    Attributes:
        old, new: counts of both arms.
        differing: names of what differs significantly; empty: nothing does.
    """

    old: AnswerCounts
    new: AnswerCounts
    differing: tuple[str, ...]

    @property
    def said(self) -> str:
        """Both arms' figures, and what of them differs, as a sentence."""
        what = f" ({', '.join(self.differing)} differ significantly)" if self.differing else ""
        return f"answers: {self.new.said}, against {self.old.said}{what}"


def answer_counters(matchers: Sequence[Matcher], prefix: str, once: Callable[[str], str]) -> dict[str, str]:
    """Counters of answers, by statistic.

    Args:
        matchers: of the pods.
        prefix: of vLLM's metrics.
        once: makes each series of a counter count once.
    """

    def finished(reason: str) -> str:
        chosen = selector([*matchers, Matcher("finished_reason", "=", reason)])
        return once(f"{prefix}request_success_total{chosen}")

    brief = selector([*matchers, Matcher("le", "=~", "1(\\.0)?")])
    return {
        CUT: finished("length"),
        ABORTED: finished("abort"),
        BRIEF: once(f"{prefix}request_generation_tokens_bucket{brief}"),
        TOKENS: once(f"{prefix}request_generation_tokens_sum{selector(matchers)}"),
    }


def find_answers(reading: RollReading | None, rolled: RolledPods | None) -> AnswerShift | None:
    """The answers of both arms in the blocks in which both served; None if too few were seen."""
    if reading is None or reading.error is not None or rolled is None:
        return None
    old, new = grown_blocks(reading, rolled, _STATS, (FINISHED, TOKENS))
    together = (np.nan_to_num(old[0]) > 0) & (np.nan_to_num(new[0]) > 0)
    old, new = old[:, together], new[:, together]
    counts = [AnswerCounts(*(float(total) for total in np.nansum(blocks, axis=1))) for blocks in (old, new)]
    if min(one.finished for one in counts) < _FEWEST_ANSWERS or min(one.tokens for one in counts) <= 0.0:
        return None
    differing = [
        name
        for name, both_ways in (("cut", True), ("aborted", False), ("brief", False))
        if _differs(
            getattr(counts[0], name), getattr(counts[1], name), counts[0], counts[1], both_ways=both_ways
        )
    ]
    if _lengths_differ(old, new):
        differing.append("tokens")
    return AnswerShift(counts[0], counts[1], tuple(differing))


def _differs(old: float, new: float, of_old: AnswerCounts, of_new: AnswerCounts, *, both_ways: bool) -> bool:
    """Whether two shares of answers differ significantly, and by at least one percent of all answers."""
    change = new / of_new.finished - old / of_old.finished
    pooled = (old + new + 1.0) / (of_old.finished + of_new.finished + 2.0)
    sd = math.sqrt(_BURST * pooled * (1.0 - pooled) * (1.0 / of_old.finished + 1.0 / of_new.finished))
    size = abs(change) if both_ways else change
    return size > _SHARE and size > _SIGNIFICANT * sd


def _lengths_differ(old: FloatArray, new: FloatArray) -> bool:
    """Whether mean lengths differ significantly, by how their ratio scatters from block to block."""
    known = (old[4] > 0) & (new[4] > 0)
    if np.count_nonzero(known) < _FEWEST_BLOCKS:
        return False
    ratios = np.log((new[4] / new[0])[known]) - np.log((old[4] / old[0])[known])
    mean, error = float(ratios.mean()), float(ratios.std(ddof=1)) / math.sqrt(ratios.size)
    return abs(mean) > math.log1p(_LENGTH) and abs(mean) > _SIGNIFICANT_LENGTH * error
