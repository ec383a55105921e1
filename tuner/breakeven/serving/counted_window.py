"""Counters become figures here and nowhere else: for the operator, its agenda, `breakeven doctor` and the load driver."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from breakeven.serving.growths import EngineLimits, Growths

_SCATTER = 0.5
"""Share of the mean number in flight by which that may scatter beyond chance: a request then meets a quarter more than the mean."""
_CHANCE_SIGMAS = 3.0
_DECIDING = (
    "inflight", "latency_s", "tokens_per_step", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s", "dispersion",
)  # fmt: skip


@dataclass(frozen=True)
class Load:
    """Load of a service and what it met, over one span of time and all pods that count; None if not counted.

    Attributes:
        rps: offered load per replica, 1/s: see `Growths.offered`.
        window_s: time that the pods were really watched, s.
        requests: finished in it.
        inflight: mean number running or waiting per replica.
        latency_s, ttft_s, tpot_s: ratios of sums over requests, s; None without a finished request.
        total_rps: offered load of all replicas together, 1/s; pods that cannot be measured, and requests that were turned away, count.
        met_inflight: mean number among which the finished requests were, per replica: `inflight`, or rate times latency while a
            queue grows, because finished requests met fewer. None takes `inflight`.
        steady: no queue grew or drained, and the number in flight scattered no more than chance explains.
        drains: a queue drained, or came and went: no mean number in flight explains the mean latency.
        step_s: mean time between two outputs of a request, each of which carries E tokens.
        tokens_per_step: E per request-step, bonus token included, within what the arm can make; None without decode
            steps. Right for drafters that draft only sometimes, where 1 + accepted/drafts is not.
        drafted_per_step: drafted tokens per request-step.
        survival: unconditional survival per draft position; empty without drafts.
        accepted_per_draft: accepted tokens of a draft; 0 without drafts.
        drafts: number of drafts behind `survival`.
        prompt_tokens: mean per finished request. output_tokens: likewise, or of all that began where clients give up.
        saturated: a queue stood at every pod for the whole window.
        age_s: age of the oldest pod's newest sample, by the reader's clock; 0 if that clock is behind.
        given_up: share of the requests that began whose clients went away before the end; 0 where it is within what sampling
            explains. given_up_requests: their number, sampling included.
        prefix_hit_ratio: share of prompt tokens that cost no prefill.
        dispersion: variance over mean of the counts of arrivals at a replica, over a longer time than the window and in spans
            of `dispersion_span_s`; None if unknown (`dispersion_problem` says why), and arrivals count as Poisson.
        settled: whether the latency belongs to this load; while a queue from a roll is worked off, no law is learned from it.
        strain: bounds of the largest ratio of a measured quantile to the objective's limit, from figures that have lasted longer
            than a window; an upper one of None is open; None if not known.
    """

    rps: float = 0.0
    window_s: float = 0.0
    requests: float = 0.0
    inflight: float | None = None
    latency_s: float | None = None
    replicas: int = 1
    total_rps: float = 0.0
    met_inflight: float | None = None
    steady: bool = True
    drains: bool = False
    ttft_s: float | None = None
    tpot_s: float | None = None
    step_s: float | None = None
    tokens_per_step: float | None = None
    drafted_per_step: float | None = None
    survival: tuple[float, ...] = ()
    accepted_per_draft: float = 0.0
    drafts: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    saturated: bool = False
    age_s: float = 0.0
    given_up: float = 0.0
    given_up_requests: float = 0.0
    preemptions: float | None = None
    prefix_hit_ratio: float | None = None
    queue_s: float | None = None
    dispersion: float | None = None
    dispersion_span_s: float | None = None
    dispersion_problem: str = ""
    settled: bool = True
    strain: tuple[float | None, float | None] | None = None

    @cached_property
    def dispersion_or_poisson(self) -> float:
        """The dispersion; 1 if it is unknown."""
        return 1.0 if self.dispersion is None else self.dispersion

    @cached_property
    def idle(self) -> bool:
        """Whether there were no requests to decide on."""
        return self.rps == 0 or self.requests == 0

    def checked(self) -> Self:
        """The same load, if a decision may rest on it.

        Raises:
            ValueError: a figure that decides is no finite number of at least 0.
        """
        needed = {name: getattr(self, name) for name in ("rps", "window_s", "requests")}
        known = {name: value for name in _DECIDING if (value := getattr(self, name)) is not None}
        for name, value in {**needed, **known}.items():
            if value is None or not (math.isfinite(value) and value >= 0):
                raise ValueError(
                    f"{name}: {value!r} is not a finite number of at least 0; "
                    + ("missing data is not a load" if name in needed else "use None for unknown")
                )
        return self

    @classmethod
    def of(
        cls,
        counters: Sequence[Growths],
        limits: EngineLimits | None = None,
        *,
        replicas: int | None = None,
        age_s: float = 0.0,
    ) -> Load:
        """The figures of what the counters of each pod grew by; `growths` says what is wrong with them.

        With `replicas` one element is the sum over so many pods.
        """
        total = Growths.summed(counters)
        count = len(counters) if replicas is None else replicas
        # Summed over pods, each by its own span: requests given up at one pod are not in the queue of another one.
        total_rps = sum((one.offered or 0.0) / one.span_s for one in counters if one.span_s > 0)
        inflight, scattered = _inflight(total, count)
        grows = total.queue_moved and total.inflight_growth > 0.0
        e, drafted = total.tokens_per_step, total.per("drafted", "steps")
        return cls(
            window_s=total.span_s,
            replicas=count,
            rps=total_rps / max(count, 1),
            total_rps=total_rps,
            requests=total.stats.get("completed", 0.0),
            inflight=inflight,
            met_inflight=min(inflight, total.occupied / max(count, 1)) if inflight and grows else inflight,
            steady=not (total.queue_moved or scattered),
            drains=not grows and (total.queue_moved or scattered),
            latency_s=total.latency_s,
            ttft_s=total.ttft_s,
            tpot_s=total.tpot_s,
            step_s=total.per("step_s", "steps"),
            # A step makes one token at least. vLLM's front end merges outputs of consecutive steps under load and so counts
            # a step too few now and then (0.32: 3 in 10,000), which makes more than k + 1 of a full one.
            tokens_per_step=None if e is None else min(max(e, 1.0), _most(limits)),
            drafted_per_step=None if drafted is None else min(drafted, _most(limits) - 1.0),
            survival=total.survival,
            accepted_per_draft=total.accepted_per_draft,
            drafts=total.stats.get("drafts"),
            prompt_tokens=total.prompt_tokens,
            output_tokens=total.output_tokens,
            saturated=total.stats.get("waiting_min", 0.0) > 0,
            age_s=age_s,
            given_up=total.given_up_share,
            given_up_requests=max(total.given_up or 0.0, 0.0),
            preemptions=total.stats.get("preemptions"),
            prefix_hit_ratio=_hit_ratio(total),
            queue_s=total.queue_s,
        )


def _inflight(total: Growths, pods: int) -> tuple[float | None, bool]:
    """The mean number in flight of a pod, and whether it scattered by more than chance; it did not where that is not counted.

    Scatter of pods is added up, so that it is too large rather than too small.
    """
    running, waiting = total.stats.get("running"), total.stats.get("waiting")
    if running is None or waiting is None:
        return None, False
    mean = (running + waiting) / max(pods, 1)
    scatter = (total.stats.get("running_scatter", 0.0) + total.stats.get("waiting_scatter", 0.0)) / max(
        pods, 1
    )
    # Not by squares: what a server says may be as large as a number gets.
    return mean, scatter > math.hypot(_SCATTER * mean, _CHANCE_SIGMAS * math.sqrt(max(mean, 0.0)))


def _hit_ratio(total: Growths) -> float | None:
    """Tokens found over tokens looked up, or over tokens read where lookups were not asked for.

    Hits count when a request is admitted and its prompt when it was read, so that a short window may have more of them.
    """
    found = total.per("hits", "looked_up" if "looked_up" in total.stats else "prefilled")
    return None if found is None else min(found, 1.0)


def _most(limits: EngineLimits | None) -> float:
    return (limits.tokens_per_step if limits is not None else None) or math.inf
