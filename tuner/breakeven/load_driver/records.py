"""Times and counts of one request."""

from __future__ import annotations

from dataclasses import dataclass

CUT_OFF = "cut off by the driver"


@dataclass(slots=True)
class RequestRecord:
    """One request as its client saw it; filled in while the answer streams, read when it is over.

    All times are seconds of one monotonic clock.

    Attributes:
        scheduled_s: when the load asked for it.
        sent_s: when the client began to send it; `sent_s - scheduled_s` is the driver's own lag.
        first_token_s: arrival of the first piece of output.
        done_s: arrival of the end of the answer, or the time of the error; None while in flight.
        steps: output events received: one per decode step that the request took part in.
        others_met: sum over those steps of the other requests in flight, each the time average over its step.
        error: what went wrong, in a few words without any prompt text; None for a complete answer.
    """

    scheduled_s: float
    sent_s: float
    first_token_s: float | None = None
    done_s: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    others_met: float = 0.0
    error: str | None = None

    @property
    def complete(self) -> bool:
        """The whole answer arrived and was counted."""
        return self.done_s is not None and self.error is None and self.first_token_s is not None

    @property
    def others(self) -> float | None:
        """Mean number of other requests in flight over the request's own steps; None without any.

        Each step takes C1/steps + others * C2/steps. So this number obeys L = C1 + others * C2 for every single request, in a
        steady state or out of it. The time average over its life does not: a request spends more time in crowded steps, which
        overstates it by a few percent.
        """
        return self.others_met / self.steps if self.steps else None

    @property
    def latency_s(self) -> float:
        """End-to-end latency; only of a request that is over."""
        if self.done_s is None:
            raise ValueError("the request is still in flight")
        return self.done_s - self.sent_s
