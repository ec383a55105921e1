"""A request on its way through the engine, and its progress in a step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from breakeven_sim.engine.drafting import DecodePlan, DraftedText


@dataclass(slots=True, eq=False)
class Request:
    """One request; times are on the engine's clock, NaN until they happen.

    Attributes:
        number: identifies it; its place in the order of arrival.
        text: what drafts it accepts; `None` when nothing is ever drafted.
        generated: output tokens, as of the last time its plan was settled.
        steps, drafts, drafted, accepted: decode steps, those that drafted, drafted and accepted tokens, likewise.
        plan: its coming decode steps, the first at `plan_start` of the engine's count; `None` while not decoding.
        prefill_left: tokens still to compute before it decodes (again).
        cached_tokens: tokens of its prompt that the prefix cache held when it came; at least one is always computed.
    """

    number: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    text: DraftedText | None = None
    generated: int = 0
    admitted_s: float = math.nan
    first_token_s: float = math.nan
    last_token_s: float = math.nan
    finished_s: float = math.nan
    preemptions: int = 0
    steps: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    plan: DecodePlan | None = field(default=None, repr=False)
    plan_start: int = 0
    prefill_left: int = 0
    cached_tokens: int = 0

    @property
    def context(self) -> int:
        """Tokens it holds in the KV pool."""
        return self.prompt_tokens + self.generated

    @property
    def plan_end(self) -> int:
        """The engine's count of steps when its plan is done."""
        return self.plan_start + (len(self.plan) if self.plan is not None else 0)


@dataclass(slots=True)
class RequestProgress:
    """One request's gain in one step."""

    request: Request
    tokens: int
    drafted: int
    accepted: int
    first: bool


@dataclass(slots=True)
class StepReport:
    """One step, as a server needs it."""

    start_s: float
    end_s: float
    progress: list[RequestProgress]
    finished: list[Request]
