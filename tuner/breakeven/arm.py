"""An arm: one engine configuration that can be measured, predicted and chosen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Arm:
    """No speculation, or a method at one draft length.

    Attributes:
        method: `none`, or vLLM's method name (`eagle3`, `ngram`, ...).
        k: draft length in tokens per step; 0 exactly for `none`.
        candidate: the user's own name for the drafter where one method is tried with several drafters; part of
            the identity. `None`: the method names it.
    """

    method: str
    k: int
    candidate: str | None = None

    def __post_init__(self) -> None:
        if (self.method == "none") != (self.k == 0):
            raise ValueError(f"arm {self.method}/{self.k}: k is 0 for method none and at least 1 otherwise")
        if self.k < 0:
            raise ValueError(f"arm {self.method}/{self.k}: k is negative")

    @property
    def family(self) -> str:
        """The name under which arms that differ only in draft length are pooled."""
        return self.candidate or self.method

    @property
    def name(self) -> str:
        """`none` or `<family>/<k>`: what status, events, tables and plots print."""
        return "none" if self.k == 0 else f"{self.family}/{self.k}"

    def __str__(self) -> str:
        return self.name


NO_SPECULATION = Arm("none", 0)
