"""An arm: one engine configuration that can be measured, predicted and chosen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

SCHEDULE = "schedule"
"""The word in place of the draft length in the name of an arm whose draft length follows the batch size."""

ADAPTIVE = "adaptive"
"""The word in its place if the engine chooses in every step how many drafts it verifies (vLLM's adaptive verification)."""


@dataclass(frozen=True, order=True)
class Arm:
    """No speculation, a method at one draft length, or a method whose draft length follows the load.

    Attributes:
        method: `none`, or vLLM's method name (`eagle3`, `ngram`, ...).
        k: draft length in tokens per step, of a schedule the longest; 0 exactly for `none`.
        candidate: the user's own name for the drafter where one method is tried with several drafters; part of
            the identity. `None`: the method names it.
        scheduled: the draft length follows the batch size (`breakeven.tiers`); which one it takes is data of the points,
            not of the name: a family has one schedule at a time.
        adaptive: scheduled, by the engine itself: it drafts k tokens in every step and verifies as many as pay.
    """

    method: str
    k: int
    candidate: str | None = None
    scheduled: bool = False
    adaptive: bool = False

    def __post_init__(self) -> None:
        if (self.method == "none") != (self.k == 0):
            raise ValueError(f"arm {self.method}/{self.k}: k is 0 for method none and at least 1 otherwise")
        if self.k < 0:
            raise ValueError(f"arm {self.method}/{self.k}: k is negative")
        if self.scheduled and self.k == 0:
            raise ValueError("arm none has no schedule: nothing is ever drafted")
        if self.adaptive and not self.scheduled:
            raise ValueError(f"arm {self.method}/{self.k}: adaptive verification is a kind of schedule")

    @property
    def family(self) -> str:
        """The name under which arms that differ only in draft length are pooled."""
        return self.candidate or self.method

    @cached_property
    def name(self) -> str:
        """`none`, `<family>/<k>`, `<family>/schedule` or `<family>/adaptive`: what status, events, tables and plots print."""
        if self.k == 0:
            return "none"
        word = (ADAPTIVE if self.adaptive else SCHEDULE) if self.scheduled else self.k
        return f"{self.family}/{word}"

    def __str__(self) -> str:
        return self.name


NO_SPECULATION = Arm("none", 0)


@lru_cache(maxsize=4096)
def arm_drafting(method: str, k: int, candidate: str | None, schedule: str | None) -> Arm:
    """The arm of a method that drafts k tokens at most, by a table as text or the word for adaptive verification, or always k.

    Equal arms are one object: a thousand profiles name few.

    Raises:
        ValueError: such an arm cannot be.
    """
    return Arm(method, k, candidate, scheduled=schedule is not None, adaptive=schedule == ADAPTIVE)
