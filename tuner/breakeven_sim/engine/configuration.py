"""The settings of an engine, and the duration of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from breakeven.methods import PROFILED_CONTEXT_TOKENS
from breakeven_sim.engine.costs import DefaultLimits, EngineCosts, Text
from breakeven_sim.engine.drafting import mean_tokens_per_step


@dataclass(frozen=True, slots=True)
class DraftLengths:
    """The draft length by batch size.

    Attributes:
        longest: `num_speculative_tokens`; 0 without speculation.
        tiers: ascending (first batch size, k), the first at 1; a tier holds until the next one begins, as in vLLM.
        adaptive: the longest draft is made and counted in every step, and as much of it is verified as the tiers say.
        profiled_context: tokens of context of each request in the steps that an adaptive engine times once, at its start. Its table of
            costs is right while requests hold as many, and stale otherwise: it then verifies more or less than pays.
    """

    longest: int
    tiers: tuple[tuple[int, int], ...] = ()
    adaptive: bool = False
    profiled_context: int = PROFILED_CONTEXT_TOKENS

    @property
    def counted(self) -> int | None:
        """Drafts per request and step that are counted as drafted whatever is verified; None if only verified drafts count."""
        return self.longest if self.adaptive else None

    def at(self, batch: int) -> int:
        """Drafts per request of a step that schedules `batch` requests, prompts included (as vLLM counts)."""
        k = self.longest
        for first, tier in self.tiers:
            if batch < first:
                break
            k = tier
        return min(k, self.longest)


_MEMORY_SHARE = 0.92
"""Default of vLLM's --gpu-memory-utilization."""


class StepTimes(Protocol):
    """Durations of steps (s)."""

    @property
    def per_kv_token_s(self) -> float:
        """Time that each token of context adds to a step (s)."""

    def drafts_s(self, requests: int, drafted: NDArray[np.int64]) -> NDArray[np.float64]:
        """Time (s) that drafted tokens add to steps of `requests` decoding requests without prompts; shape of `drafted`."""

    def factor(self, k: int) -> float:
        """The factor on a whole step at draft length k."""

    def seconds(self, k: int, requests: int, drafted: int, context: int, prompt_tokens: int) -> float:
        """One step of `requests` decoding requests that attend to `context` tokens."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits and step times of one engine.

    Attributes:
        times: how long steps take.
        drafts: draft length by batch size.
        max_num_seqs: requests in one step.
        max_num_batched_tokens: tokens in one step.
        kv_pool_tokens: tokens of context held at once.
        method: vLLM's method name, or `None` without speculation.
    """

    times: StepTimes
    drafts: DraftLengths
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_pool_tokens: int
    method: str | None = None

    @property
    def max_batch(self) -> int:
        """Requests that may run at once: each may ask for 1 + k tokens of a step, so k bounds the batch as well."""
        return max(1, min(self.max_num_seqs, self.max_num_batched_tokens // (self.drafts.longest + 1)))


class StepClock:
    """Step times from engine costs, for one method and its draft lengths.

    step = base + per_token*(B + drafted) + per_kv_token*context + per_prefill_token*prompt tokens
         + beside, with prompt tokens beside decoding requests
         + flat + per_position*k + per_draft_token*drafted
         + experts * (1 - (1 - share)^(B + drafted + prompt tokens))
    A speculating engine at draft length 0 saves the drafter's time, and pays `zero_drafts_overhead` on the whole step.
    With adaptive verification drafting costs as much in every step as the longest draft does.
    """

    def __init__(
        self,
        costs: EngineCosts,
        method: str | None,
        longest: int,
        drafter: str | None = None,
        *,
        adaptive: bool = False,
    ) -> None:
        scale, step = costs.time_scale, costs.step
        draft = costs.method(method, drafter).draft if method else None
        self.per_kv_token_s = step.per_kv_token_s * scale
        per_draft_s = draft.per_draft_token_s if draft else 0.0
        self._per_drafted_s = (step.per_token_s + (0.0 if adaptive else per_draft_s)) * scale
        self._per_prefill_token_s = step.per_prefill_token_s * scale
        self._beside_s = step.beside_s * scale
        self._per_request_s = (step.per_token_s + (per_draft_s * longest if adaptive else 0.0)) * scale
        made = [longest if adaptive else k for k in range(longest + 1)]
        self._by_k_s = [
            (step.base_s + (draft.flat_s + draft.per_position_s * k if draft and k else 0.0)) * scale
            for k in made
        ]
        self._idle_drafter = 1.0 + (costs.zero_drafts_overhead if draft and not adaptive else 0.0)
        self._experts_s = step.experts.all_s * scale if step.experts else 0.0
        self._missed_share = 1.0 - step.experts.share_per_token if step.experts else 0.0

    def drafts_s(self, requests: int, drafted: NDArray[np.int64]) -> NDArray[np.float64]:
        """Time (s) that drafted tokens add to steps: for themselves, and for experts that no other token touches."""
        own_s = np.multiply(drafted, self._per_drafted_s, dtype=np.float64)
        if self._experts_s:
            fresh = self._missed_share**requests * (1.0 - np.power(self._missed_share, drafted))
            own_s += self._experts_s * fresh
        return own_s

    def factor(self, k: int) -> float:
        """Factor on a step's duration at draft length k: 1, or more for a speculating engine at draft length 0."""
        return 1.0 if k else self._idle_drafter

    def seconds(self, k: int, requests: int, drafted: int, context: int, prompt_tokens: int) -> float:
        """One step of `requests` decoding requests that attend to `context` tokens."""
        return self.factor(k) * (
            self._by_k_s[k]
            + self._per_request_s * requests
            + self._per_drafted_s * drafted
            + self.per_kv_token_s * context
            + self._per_prefill_token_s * prompt_tokens
            + (self._beside_s if prompt_tokens and requests else 0.0)
            + self._experts_s * (1.0 - self._missed_share ** (requests + drafted + prompt_tokens))
        )


class LawClock:
    """Step times of an engine that follows the latency law exactly, by whatever method its tokens are made.

    A request of `tokens` output tokens takes as many steps of (c1 - c2 + c2*B) / tokens, B requests in the step: alone
    c1, and c2 more for each other request.

    Args:
        laws: (c1_s, c2_s) by draft length; an engine without a schedule has one.
        tokens: output tokens per request for which the law was fitted.
    """

    per_kv_token_s = 0.0

    def __init__(self, laws: Mapping[int, tuple[float, float]], tokens: float) -> None:
        # A law with C2 above C1 would need negative steps; it is no law of a batching engine.
        self._by_k = {
            k: (max(c1_s - c2_s, 1e-3 * c1_s) / tokens, c2_s / tokens) for k, (c1_s, c2_s) in laws.items()
        }

    def drafts_s(self, requests: int, drafted: NDArray[np.int64]) -> NDArray[np.float64]:  # noqa: ARG002  # the protocol's
        """Nothing: the measured law includes them."""
        return np.zeros(drafted.shape)

    def factor(self, k: int) -> float:  # noqa: ARG002  # the protocol's
        """Always 1: the measured law includes every factor."""
        return 1.0

    def seconds(self, k: int, requests: int, drafted: int, context: int, prompt_tokens: int) -> float:  # noqa: ARG002
        """One step; prompts are part of C1."""
        alone_s, each_s = self._by_k[k]
        return alone_s + each_s * max(1, requests + (prompt_tokens > 0))


def engine_config(
    costs: EngineCosts,
    method: str | None = None,
    drafts: DraftLengths = DraftLengths(0),
    *,
    drafter: str | None = None,
    kv_pool_tokens: int | None = None,
    limits: DefaultLimits | None = None,
) -> EngineConfig:
    """The engine that vLLM would start with these costs; an argument that is not given comes from the costs."""
    limits = limits or costs.limits
    times = StepClock(costs, method, drafts.longest, drafter, adaptive=drafts.adaptive)
    if drafts.adaptive and method is not None:
        text = costs.method(method, drafter).text
        drafts = replace(drafts, tiers=_verified(times, text, drafts, limits.max_num_seqs))
    pool = kv_pool_tokens
    if pool is None:
        pool = costs.kv_pool_tokens(_MEMORY_SHARE, costs.method(method, drafter) if method else None)
    return EngineConfig(
        times=times,
        drafts=drafts,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        kv_pool_tokens=pool,
        method=method,
    )


def _verified(times: StepTimes, text: Text, drafts: DraftLengths, most: int) -> tuple[tuple[int, int], ...]:
    """Drafts per request that adaptive verification verifies, by batch size.

    As vLLM 0.33 does it, as many as give the most tokens for the time that its own steps took at the start. Simplified: every
    request of a batch has as many, and the drafter has the mean chances of the text.
    """
    lengths = range(drafts.longest + 1)
    tokens = [mean_tokens_per_step(text, k) for k in lengths]
    found: list[tuple[int, int]] = []
    for batch in range(1, most + 1):
        taking_s = [times.seconds(k, batch, batch * k, batch * drafts.profiled_context, 0) for k in lengths]
        best = max(lengths, key=lambda k: tokens[k] / taking_s[k])
        if not found or found[-1][1] != best:
            found.append((batch, best))
    return tuple(found)
