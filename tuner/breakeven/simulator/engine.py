"""The engine: continuous batching with speculation on an event clock; no sockets, no real time.

One core serves two masters. The server asks for one step at a time (`next_end_s`, `step`) and paces the steps
against real time; a fleet replay asks for everything up to a moment (`advance`), and then runs of steps between
two changes of the batch are computed at once with numpy. Both walk through the same states.

Scheduling follows vLLM: requests that decode go first and each takes 1 + k tokens of the step; what is left of the
batched-token limit goes to prompts, first come first served, in chunks; a request that fits neither
`max_num_seqs` nor the KV pool waits; when the pool overflows, the request admitted last is preempted and recomputed.
The first output token comes with the end of the prompt. A step is decided at its start from what has arrived by then.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from breakeven.simulator.costs import EngineCosts
from breakeven.simulator.drafting import DraftedText, Plan, plain_steps, plan_steps

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_CAPACITY = 1 << 14
"""Steps of look-ahead that the engine books at first; it grows with the longest request."""


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
    """What an engine was started with.

    Attributes:
        costs: of its GPU and model.
        method: vLLM's method name, or `None` without speculation.
        drafts: draft length by batch size.
        drafter: the drafter model, where the costs tell drafters apart.
        max_num_seqs: requests in one step.
        max_num_batched_tokens: tokens in one step.
        kv_pool_tokens: tokens of context held at once.
    """

    costs: EngineCosts
    method: str | None
    drafts: DraftLengths
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_pool_tokens: int
    drafter: str | None = None


@dataclass(slots=True, eq=False)
class Request:
    """One request on its way; times are on the engine's clock, NaN until they happen."""

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
    plan: Plan | None = field(default=None, repr=False)
    plan_start: int = 0
    prefill_left: int = 0

    @property
    def context(self) -> int:
        """Tokens it holds in the KV pool."""
        return self.prompt_tokens + self.generated


@dataclass(slots=True)
class Progress:
    """What one request gained in one step."""

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
    progress: list[Progress]
    finished: list[Request]
    prefill_tokens: int
    scheduled_tokens: int


@dataclass(slots=True)
class _Step:
    """A step that is decided and under way."""

    end_s: float
    chunks: list[tuple[Request, int]]
    prefill_tokens: int


class Engine:
    """One replica.

    Args:
        config: limits and costs.
        clock_s: the moment at which it begins.

    Attributes:
        clock_s: end of the last finished step (or the last moment it was told of while idle).
        steps: engine steps done.
        request_steps: decode steps summed over requests.
        busy_s: time spent in steps.
        preemptions: requests thrown out of the pool so far.
    """

    def __init__(self, config: EngineConfig, clock_s: float = 0.0) -> None:
        self.config = config
        self.clock_s = clock_s
        self.steps = 0
        self.request_steps = 0
        self.busy_s = 0.0
        self.preemptions = 0
        self.on_finish: Callable[[Request], None] | None = None
        scale = config.costs.time_scale
        step = config.costs.step
        self._base_s = step.base_s * scale
        self._per_token_s = step.per_token_s * scale
        self._per_kv_s = step.per_kv_token_s * scale
        self._per_prefill_s = step.per_prefill_token_s * scale
        draft = config.costs.method(config.method, config.drafter).draft if config.method else None
        self._draft_flat_s = draft.flat_s * scale if draft else 0.0
        self._draft_position_s = draft.per_position_s * scale if draft else 0.0
        self._draft_token_s = draft.per_draft_token_s * scale if draft else 0.0
        self._speculating = config.method is not None
        # Every running request may ask for 1 + k tokens of a step, so k bounds the batch as well.
        self._max_batch = max(
            1, min(config.max_num_seqs, config.max_num_batched_tokens // (config.drafts.longest + 1))
        )
        self._k = config.drafts.at(1)

        self._waiting: deque[Request] = deque()
        self._running: dict[Request, None] = {}  # in order of admission
        self._prefilling: list[Request] = []
        self._decoding = 0
        self._kv_decoding = 0  # tokens that decode steps attend to
        self._kv_held = 0  # these and the pool reserved for prompts under way

        self._at = 0  # index of the next step in the books below
        self._gain: _Ints = np.zeros(_CAPACITY, np.int64)  # tokens all requests gain per coming step
        self._drafted: _Ints = np.zeros(_CAPACITY, np.int64)
        self._endings: list[tuple[int, int, Request]] = []
        self._step: _Step | None = None
        self._ends: _Floats | None = None  # ends of the coming steps of an unchanged batch
        self._ends_from = 0

    # What is going on -------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Requests admitted and not finished."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests not admitted (again) yet."""
        return len(self._waiting)

    @property
    def outstanding(self) -> int:
        """Requests that have arrived and are not finished, up to the engine's clock."""
        return len(self._running) + len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV pool in use, 0 to 1."""
        return self._kv_held / self.config.kv_pool_tokens

    # Entry points -----------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request; its arrival must not lie before an earlier one's.

        Raises:
            ValueError: it could never fit into the pool, or has nothing to generate.
        """
        if request.output_tokens < 1 or request.prompt_tokens < 1:
            raise ValueError(f"request {request.number}: needs at least one prompt and one output token")
        if request.prompt_tokens + request.output_tokens > self.config.kv_pool_tokens:
            raise ValueError(f"request {request.number}: longer than the KV pool")
        self._waiting.append(request)

    def abort(self, request: Request) -> None:
        """Forget a request wherever it stands; the step under way keeps its duration."""
        if request in self._running:
            self._leave(request)
            if self._step is not None:
                self._step.chunks = [c for c in self._step.chunks if c[0] is not request]
        elif request in self._waiting:
            self._waiting.remove(request)

    def next_end_s(self) -> float:
        """When the step under way ends (deciding it if none is); infinity when there is nothing to do."""
        if self._step is None and not self._decide():
            return math.inf
        assert self._step is not None  # noqa: S101  # decided above
        return self._step.end_s

    def step(self) -> StepReport:
        """Do exactly one step.

        Raises:
            RuntimeError: there is nothing to do.
        """
        if math.isinf(self.next_end_s()):
            raise RuntimeError("an idle engine has no step")
        step, self._step = self._step, None
        assert step is not None  # noqa: S101  # next_end_s decided it
        start_s = self.clock_s
        at, progress, scheduled = self._at, [], step.prefill_tokens
        for request in self._running:
            if (plan := request.plan) is not None:
                i = at - request.plan_start
                drafted = int(plan.drafted[i])
                scheduled += 1 + drafted
                progress.append(
                    Progress(request, int(plan.advance[i]), drafted, int(plan.accepted[i]), first=False)
                )
        begun = [r for r, chunk in step.chunks if chunk == r.prefill_left]
        progress += [Progress(r, 1, 0, 0, first=math.isnan(r.first_token_s)) for r in begun]
        finished = self._carry_out(step)
        return StepReport(start_s, self.clock_s, progress, finished, step.prefill_tokens, scheduled)

    def advance(self, until_s: float) -> list[Request]:
        """Do every step that ends by `until_s`; return the requests finished, in order.

        An idle engine's clock moves on to `until_s`, so that a later request does not start in the past.
        """
        finished: list[Request] = []
        while self.clock_s < until_s:
            if self._step is None and self._is_steady():
                done = self._run(until_s, finished)
                if not done:
                    break
                continue
            if self._step is None and not self._decide(until_s):
                break
            step = self._step
            assert step is not None  # noqa: S101  # decided above
            if step.end_s > until_s:
                break
            self._step = None
            finished += self._carry_out(step)
        if not self._running and not self._waiting:
            self.clock_s = max(self.clock_s, until_s) if math.isfinite(until_s) else self.clock_s
        return finished

    def next_finish_s(self) -> float:
        """A lower bound on the moment of the next finish; infinity when nothing runs. For load balancers."""
        if self._step is None and self._is_steady():
            ends = self._steady_ends()
            return float(ends[-1])
        if self._step is not None:
            return self._step.end_s
        return self.clock_s if self._running or self._waiting else math.inf

    # Deciding a step --------------------------------------------------------------------------------------

    def _decide(self, until_s: float = math.inf) -> bool:
        """Decide the step that starts now, or after the idle time until the next arrival; False: nothing to do."""
        if not self._running:
            if not self._waiting:
                return False
            arrival_s = self._waiting[0].arrival_s
            if arrival_s >= until_s and arrival_s > self.clock_s:
                return False
            self.clock_s = max(self.clock_s, arrival_s)
        self._make_room()
        chunks = self._take_prompts()
        prefill = sum(chunk for _, chunk in chunks)
        duration_s = self._duration(int(self._drafted[self._at]), self._kv_decoding, prefill)
        self._step = _Step(self.clock_s + duration_s, chunks, prefill)
        return True

    def _duration(self, drafted: float, kv_tokens: float, prefill_tokens: int) -> float:
        """Seconds of one step; also works on arrays of steps."""
        seconds = (
            self._base_s
            + self._draft_flat_s
            + self._draft_position_s * self._k
            + self._per_token_s * self._decoding
            + self._per_prefill_s * prefill_tokens
            + (self._per_token_s + self._draft_token_s) * drafted
            + self._per_kv_s * kv_tokens
        )
        if self._speculating and self._k == 0:
            return (seconds - self._draft_flat_s) * (1.0 + self.config.costs.zero_drafts_overhead)
        return seconds

    def _make_room(self) -> None:
        """Preempt until the coming step's tokens fit the pool."""
        while (
            self._kv_held + int(self._gain[self._at]) > self.config.kv_pool_tokens and len(self._running) > 1
        ):
            victim = next(reversed(self._running))
            self._leave(victim)
            victim.preemptions += 1
            self.preemptions += 1
            self._waiting.appendleft(victim)

    def _take_prompts(self) -> list[tuple[Request, int]]:
        """Fill what decoding leaves of the step with prompts: those under way, then new ones in order of arrival."""
        budget = self.config.max_num_batched_tokens - self._decoding - int(self._drafted[self._at])
        chunks: list[tuple[Request, int]] = []
        for request in self._prefilling:
            if budget <= 0:
                break
            chunk = min(request.prefill_left, budget)
            chunks.append((request, chunk))
            budget -= chunk
        while self._waiting and budget > 0 and self._fits(self._waiting[0]):
            request = self._waiting.popleft()
            self._running[request] = None
            self._prefilling.append(request)
            request.prefill_left = request.context
            self._kv_held += request.context
            if math.isnan(request.admitted_s):
                request.admitted_s = self.clock_s
            chunk = min(request.prefill_left, budget)
            chunks.append((request, chunk))
            budget -= chunk
        self._retier(self._decoding + len(chunks))
        self._ends = None
        return chunks

    def _fits(self, request: Request) -> bool:
        """Whether the head of the queue has arrived and may join the batch now."""
        if request.arrival_s > self.clock_s or len(self._running) >= self._max_batch:
            return False
        # One token more than its context: a request that could not even take its next token would be preempted at once.
        coming = int(self._gain[self._at]) if self._decoding else 0
        return self._kv_held + coming + request.context + 1 <= self.config.kv_pool_tokens

    def _retier(self, batch: int) -> None:
        """Change k when the batch size asks for it: every running request gets a new plan from where it stands."""
        k = self.config.drafts.at(max(batch, 1))
        if k == self._k:
            return
        self._k = k
        if not self.config.drafts.tiers:
            return
        for request in [r for r in self._running if r.plan is not None]:
            self._unbook(request)
            self._book(request)

    # Carrying it out --------------------------------------------------------------------------------------

    def _carry_out(self, step: _Step) -> list[Request]:
        """Apply a decided step: decode gains, prompts, first tokens, endings."""
        self.busy_s += step.end_s - self.clock_s
        self.clock_s = step.end_s
        self._pass(1)
        finished = self._end()
        for request, chunk in step.chunks:
            request.prefill_left -= chunk
            if request.prefill_left == 0:
                self._prefilling.remove(request)
                request.generated += 1
                self._kv_held += 1
                if math.isnan(request.first_token_s):
                    request.first_token_s = self.clock_s
                if request.generated >= request.output_tokens:
                    self._finish(request, finished)
                else:
                    self._decoding += 1
                    self._kv_decoding += request.context
                    self._book(request)
        self._ends = None
        return finished

    def _pass(self, steps: int) -> None:
        """Let `steps` steps of the books go by."""
        gained = (
            int(self._gain[self._at]) if steps == 1 else int(self._gain[self._at : self._at + steps].sum())
        )
        self._kv_decoding += gained
        self._kv_held += gained
        self._at += steps
        self.steps += steps
        self.request_steps += steps * self._decoding

    def _end(self) -> list[Request]:
        """Finish what the books say has ended."""
        finished: list[Request] = []
        while self._endings and self._endings[0][0] <= self._at:
            end, _, request = heappop(self._endings)
            # A preempted, aborted or replanned request leaves its old entry behind.
            if request.plan is not None and request.plan_start + len(request.plan) == end:
                self._settle(request)
                self._decoding -= 1
                self._kv_decoding -= request.context
                self._finish(request, finished)
        return finished

    def _finish(self, request: Request, finished: list[Request]) -> None:
        self._kv_held -= request.context
        del self._running[request]
        request.finished_s = self.clock_s
        finished.append(request)
        if self.on_finish is not None:
            self.on_finish(request)

    def _leave(self, request: Request) -> None:
        """Take an unfinished request out of the batch and give back what it holds."""
        if request.plan is not None:
            self._unbook(request)
            self._decoding -= 1
            self._kv_decoding -= request.context
        else:
            self._prefilling.remove(request)
        self._kv_held -= request.context
        del self._running[request]
        self._ends = None

    # The books: what every coming step will gain and draft ------------------------------------------------

    def _book(self, request: Request) -> None:
        """Plan a request's decode steps at the present k and add them to the books."""
        if self._k == 0 or request.text is None:
            plan = plain_steps(request.generated, request.output_tokens)
        else:
            plan = plan_steps(request.text, request.generated, request.output_tokens, self._k)
        request.plan, request.plan_start = plan, self._at
        end = self._at + len(plan)
        if end >= len(self._gain):
            self._rebase(len(plan))
            request.plan_start, end = self._at, self._at + len(plan)
        self._gain[self._at : end] += plan.advance
        if self._k:
            self._drafted[self._at : end] += plan.drafted
        heappush(self._endings, (end, request.number, request))

    def _unbook(self, request: Request) -> None:
        """Take the coming part of a request's plan out of the books and settle the past part."""
        plan = request.plan
        assert plan is not None  # noqa: S101  # callers hold decoding requests
        left = slice(self._at - request.plan_start, None)
        end = request.plan_start + len(plan)
        self._gain[self._at : end] -= plan.advance[left]
        self._drafted[self._at : end] -= plan.drafted[left]
        self._settle(request)

    def _settle(self, request: Request) -> None:
        """Credit the steps of a plan that have gone by, and drop the plan."""
        plan = request.plan
        assert plan is not None  # noqa: S101  # callers hold decoding requests
        done = min(self._at - request.plan_start, len(plan))
        request.steps += done
        request.generated += int(plan.advance[:done].sum())
        if self._speculating:
            request.drafts += int(np.count_nonzero(plan.drafted[:done]))
            request.drafted += int(plan.drafted[:done].sum())
            request.accepted += int(plan.accepted[:done].sum())
        request.plan = None

    def _rebase(self, needed: int) -> None:
        """Start the books at step 0 again, long enough for a plan of `needed` steps."""
        left = len(self._gain) - self._at
        size = max(_CAPACITY, 2 * (max(left, 0) + needed + 1))
        for name in ("_gain", "_drafted"):
            fresh = np.zeros(size, np.int64)
            fresh[:left] = getattr(self, name)[self._at :]
            setattr(self, name, fresh)
        moved = self._at
        for request in self._running:
            if request.plan is not None:
                request.plan_start -= moved
        self._endings = [(end - moved, number, request) for end, number, request in self._endings]
        self._at = 0
        self._ends = None

    # Runs of steps without a change of the batch ----------------------------------------------------------

    def _is_steady(self) -> bool:
        """Whether the coming steps only decode: no prompt under way and none that may join now."""
        if self._decoding == 0 or self._prefilling:
            return False
        if self._waiting and self._fits(self._waiting[0]):
            return False
        if self._kv_held + int(self._gain[self._at]) > self.config.kv_pool_tokens:
            return False
        return self.config.drafts.at(self._decoding) == self._k

    def _steady_ends(self) -> _Floats:
        """Ends of the coming steps up to the next ending or overflow of the pool (seconds, ascending)."""
        if self._ends is not None:
            return self._ends[self._at - self._ends_from :]
        while self._endings[0][2].plan is None or (
            self._endings[0][2].plan_start + len(self._endings[0][2].plan) != self._endings[0][0]
        ):
            heappop(self._endings)
        last = self._endings[0][0]
        gain = self._gain[self._at : last]
        held = np.cumsum(gain)
        if self._kv_held + held[-1] > self.config.kv_pool_tokens:
            fitting = int(np.searchsorted(held, self.config.kv_pool_tokens - self._kv_held, side="right"))
            gain, held = gain[:fitting], held[:fitting]
        # Within a run only drafts and context change from step to step.
        durations: _Floats = np.asarray((held - gain) * self._per_kv_s, np.float64)
        if self._speculating and self._k:
            durations += self._drafted[self._at : self._at + len(gain)] * (
                self._per_token_s + self._draft_token_s
            )
            durations += self._duration(0, self._kv_decoding, 0)
        elif self._speculating:
            durations *= 1.0 + self.config.costs.zero_drafts_overhead
            durations += self._duration(0, self._kv_decoding, 0)
        else:
            durations += self._duration(0, self._kv_decoding, 0)
        np.cumsum(durations, out=durations)
        durations += self.clock_s
        self._ends, self._ends_from = durations, self._at
        return durations

    def _run(self, until_s: float, finished: list[Request]) -> bool:
        """Do the steady steps that end by `until_s` and start before the next arrival; False if there is none."""
        ends = self._steady_ends()
        steps = len(ends) if ends[-1] <= until_s else int(ends.searchsorted(until_s, side="right"))
        if self._waiting and self._waiting[0].arrival_s > self.clock_s:
            # The step under way at an arrival is the last before the newcomer is looked at.
            steps = min(steps, int(ends.searchsorted(self._waiting[0].arrival_s)) + 1)
        if steps == 0:
            return False
        end_s = float(ends[steps - 1])
        self.busy_s += end_s - self.clock_s
        self.clock_s = end_s
        self._pass(steps)
        ended = self._end()
        if ended:
            finished += ended
            self._ends = None
        return True
