"""Counters of engines over a window, and the figures that follow: one place for the operator and `breakeven doctor`.

A statistic that is missing is None here, and so is every figure that needs it; a count of zero is zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_FEW = 5.0
"""Requests up to this number are explained by scrapes in the middle of a request."""
_GAP = 0.05
"""Prometheus' sampling explains a difference between begun and finished requests up to this share."""


@dataclass(frozen=True, slots=True)
class CountedWindow:
    """Growths of counters and means of gauges over one window, by the names of `engine_series.COUNTED`.

    Attributes:
        stats: of one pod, or summed over pods; the growths of the gauges are `running_growth` and `waiting_growth`.
        accepted: drafts accepted, by position.
    """

    stats: Mapping[str, float]
    accepted: Mapping[int, float]

    @property
    def offered(self) -> float | None:
        """Requests that were asked for.

        Requests that began and what the queue grew by, or requests that finished and what was added to those in the engine:
        the larger of the two. The first one counts clients that give up later, the second one requests whose first token is
        not there yet. Whoever gives up in the queue is in neither. A queue that shrinks is old demand.
        """
        begun, finished = self.stats.get("started"), self.stats.get("completed")
        if finished is not None:
            finished += self.stats.get("running_growth", 0.0)
        counts = [count for count in (begun, finished) if count is not None]
        return max(max(counts) + self.stats.get("waiting_growth", 0.0), 0.0) if counts else None

    @property
    def given_up(self) -> float | None:
        """Requests whose clients went away after the first token: begun, not finished, and not in the engine any more."""
        begun, finished = self.stats.get("started"), self.stats.get("completed")
        if begun is None or finished is None:
            return None
        return begun - finished - self.stats.get("running_growth", 0.0)

    @property
    def clients_give_up(self) -> bool:
        """Whether so many clients gave up that finished requests do not represent all."""
        return (self.given_up or 0.0) > _GAP * self.stats.get("started", 0.0) + _FEW

    @property
    def given_up_share(self) -> float:
        """The same as a share of those that began; 0 within what sampling explains."""
        return min((self.given_up or 0.0) / self.stats["started"], 1.0) if self.clients_give_up else 0.0

    @property
    def latency_s(self) -> float | None:
        """Mean time from request to answer, of finished requests."""
        return self._per("e2e_s", "e2e_n")

    @property
    def ttft_s(self) -> float | None:
        """Mean time to the first token, of requests that began."""
        return self._per("ttft_s", "started")

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first, of finished requests.

        A ratio of means, as in E2E = TTFT + (g - 1) * TPOT; vLLM's own histogram per request is a mean of ratios.
        """
        ttft_s, finished = self.ttft_s, self.stats.get("e2e_n", 0.0)
        tokens, requests = self.stats.get("output_tokens"), self.stats.get("output_n")
        if ttft_s is None or tokens is None or requests is None or not tokens > requests or finished <= 0:
            return None
        return (self.stats.get("e2e_s", 0.0) - ttft_s * finished) / (tokens - requests)

    @property
    def step_s(self) -> float | None:
        """Mean time between two outputs of a request."""
        return self._per("step_s", "steps")

    @property
    def prompt_tokens(self) -> float | None:
        """Mean prompt of finished requests."""
        return self._per("prompt_tokens", "prompt_n" if "prompt_n" in self.stats else "output_n")

    @property
    def output_tokens(self) -> float | None:
        """Mean answer: of all requests where clients give up, whose answers are shorter; else of those that finished."""
        return self._per("generated", "started") if self.clients_give_up else self.finished_tokens

    @property
    def finished_tokens(self) -> float | None:
        """Mean answer of finished requests."""
        return self._per("output_tokens", "output_n")

    @property
    def decoded(self) -> float | None:
        """Tokens that steps made: all but the first of each request."""
        made, begun = self.stats.get("generated"), self.stats.get("started")
        return made - begun if made is not None and begun is not None else None

    @property
    def tokens_per_step(self) -> float | None:
        """E per request-step, bonus token included; None without steps."""
        steps = self.stats.get("steps", 0.0)
        return max(self.decoded, 0.0) / steps if self.decoded is not None and steps > 0 else None

    @property
    def survival(self) -> tuple[float, ...]:
        """Share of drafts whose tokens up to each position were accepted; empty without drafts."""
        drafts = self.stats.get("drafts", 0.0)
        return tuple(self.accepted[place] / drafts for place in sorted(self.accepted)) if drafts > 0 else ()

    def _per(self, part: str, whole: str) -> float | None:
        over = self.stats.get(whole, 0.0)
        return self.stats[part] / over if part in self.stats and over > 0 else None
