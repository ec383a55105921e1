"""What one request costs in engine steps, so that a measured arm can be carried to other acceptance and lengths.

A lone request waits for its first token while its prompt of p tokens is computed, and then takes D = (g - 1)/E steps:

    C1 = t0 + u*p + D*s1
    C2 = u*p + D*s2 + W/n        (s per other request in flight)

with s1 the duration of a lone step, s2 what one more request adds to it, u the seconds of prefill per prompt token.
Every other request is prefilled once while ours is in the engine, whatever E is: u*p does not scale with 1/E. s1 and s2
grow by w per token of context that a request holds, p + E[g^2]/(2 E[g]). Others cost alike before and after the first
token, so TTFT has the share TTFT1/C1 of u*p + D*s2, and all of W.

W is what a newcomer waits for beyond its fair share of the work that comes after it: half a step, the prompts of the step
under way, and those that came before it in the same step, less those that come while its last step is under way. Steps
with prompts have a closed form: with q = rate*u*p the share of time spent on prompts and T the duration of a step without
any, steps last T/(1 - q) on average, and one into which an arrival falls M = T/(1 - q) + u*p*q/(1 - q^2), so that
W = s1/2 + (M*(1 + q) - T)/2 - q*T/(1 - q).
Where prompts are nearly all of the work (p/g of 70 and more) TTFT stays right, but after the first token more is waited for than W
says: above half of saturation W is a fifth to a third too small, C2 2 to 3 % too low, and latency 6 to 10 % at 0.7 of saturation,
with and without speculation alike, so that speedups keep within 3 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

_FROM_UTILISATION, _TO_UTILISATION = 0.15, 0.7
"""Loads between which W counts as linear: half a step is waited for as soon as there is company, and is part of t0."""

_SHORTEST = 1e-3
"""A step keeps at least this share of its measured duration, however short the context."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one request asks for.

    Attributes:
        tokens_per_step: E, at least 1.
        prompt_tokens: p.
        output_tokens: g, at least 1.
        context_tokens: tokens that it holds on average while it decodes.
    """

    tokens_per_step: float
    prompt_tokens: float
    output_tokens: float
    context_tokens: float

    @property
    def steps(self) -> float:
        """Steps after the first token."""
        return (self.output_tokens - 1.0) / self.tokens_per_step


@dataclass(frozen=True, slots=True)
class RequestCosts:
    """Durations of the steps of one arm.

    Attributes:
        first_s: t0, time to first token of a lone request beside its prefill.
        lone_step_s: s1.
        other_step_s: s2.
        prefill_token_s: u.
        kv_token_s: w.
        context_tokens: context at which s1 and s2 hold.
    """

    first_s: float
    lone_step_s: float
    other_step_s: float
    prefill_token_s: float
    kv_token_s: float
    context_tokens: float

    def lone_step_at(self, context_tokens: float) -> float:
        """s1 at another context (s)."""
        return self._at(self.lone_step_s, context_tokens)

    def other_step_at(self, context_tokens: float) -> float:
        """s2 at another context (s)."""
        return self._at(self.other_step_s, context_tokens)

    def _at(self, step_s: float, context_tokens: float) -> float:
        return max(step_s + self.kv_token_s * (context_tokens - self.context_tokens), _SHORTEST * step_s)


class LatencyParts(NamedTuple):
    """C1 and C2 (s), how much of each is before the first token, and C2 without W."""

    alone_s: float
    company_s: float
    first_s: float
    first_company_s: float
    each_s: float


def latency_parts(costs: RequestCosts, work: Work) -> LatencyParts:
    """What a request of this work takes, alone and for each other request of the same work in flight."""
    lone_s, other_s = costs.lone_step_at(work.context_tokens), costs.other_step_at(work.context_tokens)
    prefill_s = costs.prefill_token_s * work.prompt_tokens
    first_s, decode_s = costs.first_s + prefill_s, work.steps * lone_s
    each_s = prefill_s + work.steps * other_s
    wait_s = wait_per_other_s(first_s, decode_s, lone_s, other_s, prefill_s, each_s)
    before = first_s / (first_s + decode_s) if first_s + decode_s > 0 else 0.0
    return LatencyParts(first_s + decode_s, each_s + wait_s, first_s, before * each_s + wait_s, each_s)


def wait_per_other_s(
    first_s: float, decode_s: float, lone_s: float, other_s: float, prefill_s: float, each_s: float
) -> float:
    """What each other request adds to W, as a law fitted over loads sees it; 0 where company costs nothing.

    Args:
        first_s: TTFT of a lone request.
        decode_s: decode time of a lone request.
        lone_s: s1.
        other_s: s2.
        prefill_s: u*p.
        each_s: u*p + D*s2.
    """
    if not each_s > 0:
        return 0.0

    def met(utilisation: float) -> tuple[float, float]:
        """Others in flight and W (s)."""
        rate, idle = utilisation / each_s, 1.0 - utilisation
        prompts = rate * prefill_s
        others = rate * (first_s + decode_s) / idle
        step_s = lone_s + max(rate * decode_s / idle - 1.0, 0.0) * other_s
        length_s = step_s / (1.0 - prompts) + prefill_s * prompts / (1.0 - prompts**2)
        behind_s = (length_s * (1.0 + prompts) - step_s) / 2.0 - prompts * step_s / (1.0 - prompts)
        wait_s = -math.expm1(-others) * (lone_s / 2.0 + behind_s)
        # Whoever waits longer meets more others.
        return others + rate * wait_s / idle, wait_s

    (few, low_s), (many, high_s) = met(_FROM_UTILISATION), met(_TO_UTILISATION)
    return max(high_s - low_s, 0.0) / (many - few)
