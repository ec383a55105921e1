"""Results of a fit for one arm, or for all draft lengths of one method: values and bounds.

Plain frozen data with the names and units of the command line's JSON; no figure is NaN, a missing one is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated

import numpy as np
from pydantic import Field

from breakeven.arm import Arm, arm_drafting
from breakeven.laws.acceptance_numbers import AcceptanceModel
from breakeven.laws.arrays import Span
from breakeven.laws.latency import mean_kv_tokens
from breakeven.methods import LOOKUP_METHODS

Bounds = tuple[float | None, float | None]
"""Lower and upper bound at the document's confidence; None is an open end."""

LARGEST_FIGURE = 1e15
"""No measurement lies beyond it: its square would overflow."""

_Seldom = Field(exclude_if=lambda value: value is None)
"""A field that a document leaves out if it is None: few arms are schedules."""

Matrix2 = tuple[tuple[float, float], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class LineFit:
    """A fitted line a + b*n of TTFT, TPOT or a quantile against the others in flight: the law of steps gives mean latencies.

    Attributes:
        c1_s: a (s), above 0.
        c2_s: b (s per other request).
        covariance: of (c1_s, c2_s) in s^2.
        dof: degrees of freedom of the covariance; 0 if it is not known (and written as 0).
    """

    c1_s: float
    c2_s: float
    covariance: Matrix2
    dof: int

    def among(self, others: float) -> float:
        """The figure (s) among `others`."""
        return self.c1_s + others * self.c2_s

    def raised(self, sd: float) -> LineFit:
        """The line if the whole of it is also off by a factor with this standard deviation (ln)."""
        (v1, v12), (v21, v2) = self.covariance
        of_both = sd**2 * self.c1_s * self.c2_s
        first = (v1 + (sd * self.c1_s) ** 2, v12 + of_both)
        return replace(self, covariance=(first, (v21 + of_both, v2 + (sd * self.c2_s) ** 2)))

    def relative_sd(self, others: float) -> float:
        """Standard deviation of the figure among `others`, over the figure."""
        (v1, v12), (_, v2) = self.covariance
        return math.sqrt(max(v1 + 2.0 * others * v12 + others**2 * v2, 0.0)) / self.among(others)


@dataclass(frozen=True, slots=True)
class Excluded:
    """A row that was not used, by a word of `breakeven.reasons`; operating points of a file count from 1.

    The line of a CSV file is as an editor counts; None for JSON.
    """

    row: int
    reason: str
    source: str = ""
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """A row that was used, reduced to the figures that the law, plots and interpolation use.

    Attributes:
        mode: closed, poisson or constant.
        others: mean number of other requests in flight that a request met.
        inflight: mean number in flight.
        latency_s: mean end-to-end latency, converted to the arm's mean E if the row has its own E.
        tokens_per_step, prompt_tokens, output_tokens: of a row at other lengths, whose latency is as it was measured; the first
            also of every row of an arm with adaptive verification.
        concurrency, request_rate_rps: the imposed load, of a closed loop or of an open one.
        inflight_assumed: whether the mean in-flight of a short closed-loop run had to be assumed.
        begun_s, window_s: Unix time (s) at which its window began, and its length.
        start: of the engine, where the arm was measured on several.
    """

    row: int
    source: str
    mode: str
    others: float
    inflight: float
    rps: float
    latency_s: float
    concurrency: float | None = None
    inflight_assumed: bool = False
    tokens_per_step: Annotated[float | None, _Seldom] = None
    prompt_tokens: Annotated[float | None, _Seldom] = None
    output_tokens: Annotated[float | None, _Seldom] = None
    request_rate_rps: Annotated[float | None, _Seldom] = None
    begun_s: Annotated[float | None, _Seldom] = None
    window_s: Annotated[float | None, _Seldom] = None
    start: Annotated[str | None, _Seldom] = None


@dataclass(frozen=True, slots=True)
class MeasuredRange:
    """Range of loads of the used rows; the lower and upper ends of answered rate and of mean in-flight."""

    rps: Span
    inflight: Span


NOMINAL_OUTPUT_TOKENS = 256.0
"""Length of an answer if no row has one: at the measured lengths it has no effect."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean tokens per request at which an arm was measured; None if not in the files."""

    prompt_tokens: float | None = None
    output_tokens: float | None = None
    output_tokens_sq: float | None = None

    def or_those_of(self, others: Sequence[Lengths]) -> Lengths:
        """These lengths, with the median of the others' for unknown ones: a law needs lengths, and all arms the same."""
        prompts = [one.prompt_tokens for one in others if one.prompt_tokens]
        outputs = [one.output_tokens for one in others if one.output_tokens]
        return Lengths(
            self.prompt_tokens or (float(np.median(prompts)) if prompts else None),
            self.output_tokens or (float(np.median(outputs)) if outputs else None),
            self.output_tokens_sq,
        )

    @property
    def context_tokens(self) -> float:
        """Mean tokens of context while a request decodes; unknown lengths count as one token and a nominal answer."""
        output = self.output_tokens or NOMINAL_OUTPUT_TOKENS
        square = max(self.output_tokens_sq or 0.0, output**2)
        return float(mean_kv_tokens(self.prompt_tokens or 1.0, output, square))


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance while the arm was measured.

    Attributes:
        tokens_per_step: E per request-step, bonus token included.
        tokens_per_step_ci: its bounds from the scatter between points; None with fewer than three.
        survival: per request-step and position; empty where unknown.
        drafted_per_step: drafted tokens per request-step.
        text: on which text, in a few words; None if the points do not name it.
        request_scatter: relative standard deviation of E over requests, from the scatter between points; None with fewer
            than three, or if they do not count their requests.
    """

    tokens_per_step: float
    tokens_per_step_ci: Bounds | None = None
    survival: tuple[float, ...] = ()
    drafted_per_step: float = 0.0
    text: Annotated[str | None, _Seldom] = None
    request_scatter: Annotated[float | None, _Seldom] = None


@dataclass(frozen=True)
class ArmFit:
    """One arm: its rows, its C1 and C2 by the law of steps of all arms, and the errors of that law at its rows.

    Attributes:
        c1_s, c2_s: C1 and C2 (s) by the law of steps, at the lengths at which the profile compares arms; None without a usable row.
        saturation_rps: by that law, or the measured ceiling if that is lower.
        points: number of rows used.
        max_relative_error, loo_error: largest distance of a row from the prediction, and mean distance of rows that the law
            predicts from all others; None if not known.
        ttft, tpot: lines of the means of TTFT and TPOT if measured.
        quantiles: lines of the end-to-end latency's quantiles, keys "0.5", "0.95", "0.99", as far as measured.
        ttft_quantiles, tpot_quantiles: likewise of TTFT and TPOT over requests.
        prefix_hit_ratio: share of prompt tokens that the prefix cache held, on average over the rows; None if not counted.
        answers: the word about its answers beside the answers of no speculation, such as AnswersAgree; None if not compared.
        over_law: of "ttft" and "tpot", as far as measured, the measured line over the law of steps: of a lone request, and at
            the highest load.
        measured_saturation_rps: highest rate that a saturated point carried; None if none was measured.
        other_lengths: rows at other lengths, which the law of steps uses and C1 and C2 do not.
        kv_requests: requests in flight that fill the KV pool, with these lengths and this arm's drafter in it; None if
            its use was not measured.
        schedule: draft length per batch size as text (`breakeven.tiers`), or the word for adaptive verification; None if k
            holds at every batch size. Its c1_s and c2_s are the line nearest to its points.
    """

    method: str
    k: int
    candidate: str | None = None
    c1_s: float | None = None
    c1_ci_s: Bounds | None = None
    c2_s: float | None = None
    c2_ci_s: Bounds | None = None
    saturation_rps: float | None = None
    saturation_ci_rps: Bounds | None = None
    points: int = 0
    excluded: tuple[Excluded, ...] = ()
    max_relative_error: float | None = None
    loo_error: float | None = None
    measured_range: MeasuredRange | None = None
    ttft: LineFit | None = None
    tpot: LineFit | None = None
    quantiles: Mapping[str, LineFit] = field(default_factory=dict)
    ttft_quantiles: Mapping[str, LineFit] = field(default_factory=dict)
    tpot_quantiles: Mapping[str, LineFit] = field(default_factory=dict)
    acceptance: Acceptance | None = None
    lengths: Lengths = field(default_factory=Lengths)
    measured_saturation_rps: float | None = None
    measurements: tuple[Measurement, ...] = ()
    other_lengths: tuple[Measurement, ...] = ()
    kv_requests: float | None = None
    schedule: Annotated[str | None, _Seldom] = None
    over_law: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    answers: Annotated[str | None, _Seldom] = None
    prefix_hit_ratio: Annotated[float | None, _Seldom] = None

    @cached_property
    def arm(self) -> Arm:
        """The arm's identity."""
        return arm_drafting(self.method, self.k, self.candidate, self.schedule)

    @property
    def survival_per_draft(self) -> tuple[float, ...]:
        """Share of drafts whose first tokens up to each position were accepted, as the engine counts it; empty where unknown.

        The acceptance is per request-step, and some steps of a lookup method draft nothing.
        """
        found = self.acceptance
        if found is None or not self.k:
            return ()
        drafting = min(found.drafted_per_step / self.k, 1.0) if found.drafted_per_step else 1.0
        return tuple(min(share / drafting, 1.0) for share in found.survival)

    @property
    def tokens_per_step(self) -> float | None:
        """E while the arm was measured; 1 without speculation, None where not measured.

        None of a schedule too: its E is a mix over its tiers, another one at every load.
        """
        if self.k == 0:
            return 1.0
        return self.acceptance.tokens_per_step if self.acceptance and self.schedule is None else None


@dataclass(frozen=True, slots=True)
class MeasuredDrafter:
    """The acceptance of one method's draft lengths together, from which others are derived; figures are per request-step.

    Attributes:
        method: the family's name (candidate or method).
        vllm_method: vLLM's own name of the method.
        draft_lengths: the measured ones, 0 included if measured.
    """

    method: str
    vllm_method: str
    draft_lengths: tuple[int, ...]
    tokens_per_step: Mapping[int, float]
    survival: Mapping[int, tuple[float, ...]]
    drafted_per_step: Mapping[int, float]

    @property
    def acceptance(self) -> AcceptanceModel:
        """E at any draft length."""
        return AcceptanceModel(self.vllm_method, self.tokens_per_step, self.survival)

    def drafts(self, k: int) -> float:
        """Tokens drafted per request-step: k of a model drafter; of a lookup method the share of it that was measured."""
        if self.vllm_method not in LOOKUP_METHODS or not self.drafted_per_step:
            return float(k)
        shares = [drafted / length for length, drafted in self.drafted_per_step.items() if length]
        return k * sum(shares) / len(shares)


def drafters_of(arms: Sequence[ArmFit]) -> tuple[MeasuredDrafter, ...]:
    """The drafters of measured arms; without those whose acceptance or length of answers is not known."""
    plain = any(not fit.k and fit.points for fit in arms)
    families: dict[str, list[ArmFit]] = {}
    for fit in arms:
        # The acceptance of a schedule is a mixture over its tiers.
        if fit.k and fit.points and fit.acceptance and fit.lengths.output_tokens and fit.schedule is None:
            families.setdefault(fit.arm.family, []).append(fit)
    found = []
    for family, fits in families.items():
        accepted = {fit.k: fit.acceptance for fit in fits if fit.acceptance}
        found.append(
            MeasuredDrafter(
                family,
                fits[0].method,
                tuple(sorted({*accepted, *([0] if plain else [])})),
                {k: one.tokens_per_step for k, one in accepted.items()},
                {k: one.survival for k, one in accepted.items() if one.survival},
                {k: one.drafted_per_step for k, one in accepted.items()},
            )
        )
    return tuple(found)
