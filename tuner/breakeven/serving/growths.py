"""Growths of engines' counters over one span, and what follows from them: `counted_window` makes figures of these.

A statistic that is missing is None here, and so is every figure that needs it; a count of zero is zero.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NEEDED_COUNTERS = (
    "completed",
    "started",
    "ttft_s",
    "e2e_s",
    "e2e_n",
    "generated",
    "steps",
    "prompt_tokens",
    "output_tokens",
    "output_n",
)
"""Without these nothing is said about an engine; only an engine that speculates has the others."""
GROWTHS = ("running_growth", "waiting_growth")
"""Statistics that may be below zero: what a gauge grew by."""

_FEW = 5.0
"""Requests that are no pattern, nor more than what a scrape in the middle of a request leaves over."""
_GAP = 0.05
"""Share of requests up to which begun and finished ones are the same within what Prometheus' sampling explains."""
_MOVED_SIGMAS = 3.0
"""Standard deviations of a Poisson number by which the number in flight may differ between a window's ends."""
_MOVED_SHARE = 0.1
"""Share of finished requests by which it may differ at most: among many that are in flight chance explains far more."""


@dataclass(frozen=True, slots=True)
class Growths:
    """Growths of counters and means of gauges over one span, by the names of `engine_series.COUNTED`; of accepted drafts by position."""

    stats: Mapping[str, float]
    accepted: Mapping[int, float] = field(default_factory=dict)
    span_s: float = 0.0

    @classmethod
    def summed(cls, parts: Sequence[Growths]) -> Growths:
        """Sums over pods, with their mean span and the shortest queue of any pod."""
        stats: dict[str, float] = defaultdict(float)
        accepted: dict[int, float] = defaultdict(float)
        for part in parts:
            for name, value in part.stats.items():
                stats[name] += value
            for position, value in part.accepted.items():
                accepted[position] += value
        # A pod of which the least is unknown may have no queue at all.
        stats["waiting_min"] = min((part.stats.get("waiting_min", 0.0) for part in parts), default=0.0)
        return cls(dict(stats), dict(accepted), sum(part.span_s for part in parts) / max(len(parts), 1))

    def over(self, pods: int) -> Growths:
        """The mean of so many pods whose sums these are."""
        return Growths(
            {name: value / pods for name, value in self.stats.items()},
            {position: value / pods for position, value in self.accepted.items()},
            self.span_s,
        )

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
    def inflight_growth(self) -> float:
        """Requests that were added to those running or waiting."""
        return sum(self.stats.get(name, 0.0) for name in GROWTHS)

    @property
    def queue_moved(self) -> bool:
        """Whether requests in flight became more or fewer by more than chance, or than a tenth of those that finished."""
        inflight = self.stats.get("running", 0.0) + self.stats.get("waiting", 0.0)
        chance = _MOVED_SIGMAS * math.sqrt(2.0 * max(inflight, 1.0))
        return abs(self.inflight_growth) > min(
            chance, max(_MOVED_SHARE * self.stats.get("completed", 0.0), _FEW)
        )

    @property
    def occupied(self) -> float:
        """Mean number in flight by Little's law: time that finished requests took, over the span."""
        return self.stats.get("e2e_s", 0.0) / self.span_s if self.span_s > 0 else 0.0

    @property
    def given_up(self) -> float | None:
        """Requests whose clients went away after the first token: begun, not finished, and not in the engine any more.

        The running ones are counted from admission, the begun ones from their first token, and a preempted request runs no
        longer. So a fall of the running ones is no sign of anybody who left: only their growth is taken off.
        """
        begun, finished = self.stats.get("started"), self.stats.get("completed")
        if begun is None or finished is None:
            return None
        return begun - finished - max(self.stats.get("running_growth", 0.0), 0.0)

    @property
    def before_first_token(self) -> float:
        """Mean number of requests between admission and first token, by Little's law; at most all that run.

        Those that wait in the queue are taken off. While a queue drains their earlier waiting is left over: too many, not too few.
        """
        if not self.span_s > 0.0:
            return 0.0
        unanswered = self.stats.get("ttft_s", 0.0) / self.span_s - self.stats.get("waiting", 0.0)
        return min(max(unanswered, 0.0), self.stats.get("running", 0.0))

    @property
    def clients_give_up(self) -> bool:
        """Whether so many clients gave up that finished requests do not represent all.

        A queue that moves changes how many requests in the engine have begun, by as many as it moved at most.
        """
        begun = self.stats.get("started", 0.0)
        moved = sum(abs(self.stats.get(name, 0.0)) for name in GROWTHS)
        explained = _GAP * begun + _FEW + self.before_first_token + moved
        return begun > 0 and (self.given_up or 0.0) > explained

    @property
    def given_up_share(self) -> float:
        """Share of begun requests that clients gave up; 0 within what sampling explains."""
        return min((self.given_up or 0.0) / self.stats["started"], 1.0) if self.clients_give_up else 0.0

    @property
    def latency_s(self) -> float | None:
        """Mean time from request to answer, of finished requests."""
        return self.per("e2e_s", "e2e_n")

    @property
    def ttft_s(self) -> float | None:
        """Mean time to the first token, of requests that began."""
        return self.per("ttft_s", "started")

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first, of finished requests.

        A ratio of means, as in E2E = TTFT + (g - 1) * TPOT; vLLM's own histogram per request is a mean of ratios.
        """
        ttft_s, finished = self.ttft_s, self.stats.get("e2e_n", 0.0)
        tokens, requests = self.stats.get("output_tokens"), self.stats.get("output_n")
        if ttft_s is None or tokens is None or requests is None or not tokens > requests or finished <= 0:
            return None
        tpot_s = (self.stats.get("e2e_s", 0.0) - ttft_s * finished) / (tokens - requests)
        # Those that began wait longer than those that finished: nothing is known of either's tokens.
        return tpot_s if tpot_s >= 0.0 else None

    @property
    def prompt_tokens(self) -> float | None:
        """Mean prompt of finished requests."""
        return self.per("prompt_tokens", "prompt_n" if "prompt_n" in self.stats else "output_n")

    @property
    def output_tokens(self) -> float | None:
        """Mean answer: of all requests where clients give up, whose answers are shorter; else of those that finished.

        While a queue moves, tokens belong to other requests than those that begin, and finished ones alone tell.
        """
        of_all = self.clients_give_up and not self.queue_moved
        return self.per("generated", "started") if of_all else self.finished_tokens

    @property
    def finished_tokens(self) -> float | None:
        """Mean answer of finished requests."""
        return self.per("output_tokens", "output_n")

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
        """Share of drafts whose tokens up to each position were accepted; empty without drafts.

        It ends before a position that was not counted: the next one's share would stand in its place.
        """
        drafts = self.stats.get("drafts", 0.0)
        found: list[float] = []
        while drafts > 0 and len(found) in self.accepted:
            found.append(self.accepted[len(found)] / drafts)
        return tuple(found)

    @property
    def accepted_per_draft(self) -> float:
        """Tokens of a draft that were accepted, of counts by position or of one over all positions; 0 without drafts."""
        accepted = sum(self.accepted.values()) if self.accepted else self.stats.get("accepted", 0.0)
        drafts = self.stats.get("drafts", 0.0)
        return accepted / drafts if drafts > 0 else 0.0

    @property
    def queue_s(self) -> float | None:
        """Mean wait for a place in the batch beyond the rest of a step.

        A request that comes while a step is under way waits for its end on an idle engine too: up to a whole step, which is
        a seventh of the latency where an answer takes six.
        """
        waited_s, step_s = self.per("queued_s", "admitted"), self.per("step_s", "steps")
        return None if waited_s is None or step_s is None else max(0.0, waited_s - step_s)

    def per(self, part: str, whole: str) -> float | None:
        """One statistic over another; None if either is missing, or nothing was counted."""
        over = self.stats.get(whole, 0.0)
        return self.stats[part] / over if part in self.stats and over > 0 else None
