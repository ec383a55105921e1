"""What an engine was started with."""

from __future__ import annotations

from dataclasses import dataclass

from breakeven.simulator.costs import EngineCosts


@dataclass(frozen=True, slots=True)
class DraftLengths:
    """The draft length by batch size.

    Attributes:
        longest: `num_speculative_tokens`; 0 without speculation.
        tiers: ascending (first batch size, k), the first at 1; a tier holds until the next one begins, as in vLLM.
    """

    longest: int
    tiers: tuple[tuple[int, int], ...] = ()

    def at(self, batch: int) -> int:
        """Drafts per request of a step that schedules `batch` requests, prompts included (as vLLM counts)."""
        k = self.longest
        for first, tier in self.tiers:
            if batch < first:
                break
            k = tier
        return min(k, self.longest)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Costs and limits of one engine.

    Attributes:
        costs: of its GPU and model.
        method: vLLM's method name, or `None` without speculation.
        drafts: draft length by batch size.
        max_num_seqs: requests in one step.
        max_num_batched_tokens: tokens in one step.
        kv_pool_tokens: tokens of context held at once.
        drafter: the drafter model, where the costs tell drafters apart.
    """

    costs: EngineCosts
    method: str | None
    drafts: DraftLengths
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_pool_tokens: int
    drafter: str | None = None

    @property
    def max_batch(self) -> int:
        """Requests that may run at once: each may ask for 1 + k tokens of a step, so k bounds the batch as well."""
        return max(1, min(self.max_num_seqs, self.max_num_batched_tokens // (self.drafts.longest + 1)))


class StepClock:
    """Seconds of a step as a function of its contents, for one configuration.

    step = base + per_token*(B + drafted) + per_kv_token*context + per_prefill_token*prompt tokens
         + flat + per_position*k + per_draft_token*drafted
    A speculating engine told to draft nothing (k = 0) saves the drafter but pays `zero_drafts_overhead` on all.
    """

    def __init__(self, config: EngineConfig) -> None:
        scale, step = config.costs.time_scale, config.costs.step
        draft = config.costs.method(config.method, config.drafter).draft if config.method else None
        self.per_kv_token_s = step.per_kv_token_s * scale
        self.per_drafted_s = (step.per_token_s + (draft.per_draft_token_s if draft else 0.0)) * scale
        self._per_prefill_token_s = step.per_prefill_token_s * scale
        self._per_request_s = step.per_token_s * scale
        self._by_k_s = [
            (step.base_s + (draft.flat_s + draft.per_position_s * k if draft and k else 0.0)) * scale
            for k in range(config.drafts.longest + 1)
        ]
        # Without drafts in a step nothing else changes, so the overhead can be one factor.
        self._idle_drafter = 1.0 + (config.costs.zero_drafts_overhead if draft else 0.0)

    def factor(self, k: int) -> float:
        """What multiplies a step at draft length k."""
        return 1.0 if k else self._idle_drafter

    def seconds(self, k: int, requests: int, drafted: int, context: int, prompt_tokens: int) -> float:
        """One step of `requests` decoding requests that attend to `context` tokens."""
        return self.factor(k) * (
            self._by_k_s[k]
            + self._per_request_s * requests
            + self.per_drafted_s * drafted
            + self.per_kv_token_s * context
            + self._per_prefill_token_s * prompt_tokens
        )
