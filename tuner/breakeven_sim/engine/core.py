"""The engine: continuous batching with speculation on an event clock; no sockets, no real time.

One core has two users. The server asks for one step at a time (`next_end_s`, `step`) and paces the steps against real
time. A fleet replay asks for everything up to a moment (`advance`). Runs of steps between two changes of the batch
are then computed at once. Both walk through the same states.

Scheduling follows vLLM:

- Requests that decode go first and each takes 1 + k tokens of the step. The rest of the batched-token limit goes to
  prompts, first come first served, in chunks.
- A request that fits neither `max_num_seqs` nor the KV pool waits.
- When the pool overflows, the request admitted last is preempted and recomputed, and no request is admitted in that step.
- The first output token comes with the end of the prompt.
- A step is decided at its start from the requests that have arrived by then.

Simplified: the pool counts tokens, not blocks, and a prefix that is cached is not computed but held like any other. A new k of a per-batch-size schedule holds from
the step that is scheduled with it, in vLLM from the one after.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from breakeven_sim.engine.configuration import EngineConfig
from breakeven_sim.engine.drafting import DraftedText
from breakeven_sim.engine.requests import Request, RequestProgress, StepReport
from breakeven_sim.engine.step_ledger import Books


@dataclass(slots=True)
class _Step:
    """A step that is decided and under way: its end, and the prompts' shares in it."""

    end_s: float
    chunks: list[tuple[Request, int]]


class Engine:
    """One replica.

    Args:
        config: limits and costs.
        clock_s: the moment at which it begins.

    Attributes:
        config: as given.
        clock_s: end of the last finished step (while idle: the latest time passed to the engine).
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
        self._time = config.times
        self._max_batch = config.max_batch
        self._pool = config.kv_pool_tokens
        self._k = config.drafts.at(1)

        self._waiting: deque[Request] = deque()
        self._running: dict[Request, None] = {}  # in order of admission
        self._prefilling: list[Request] = []
        self._decoding = 0
        self._context = 0  # tokens that decode steps attend to
        self._held = 0  # these, and the pool reserved for prompts under way

        self._books = Books(config.drafts.counted)
        self._step: _Step | None = None
        self._ends: NDArray[np.float64] | None = None  # of the coming steps while the batch stays as it is
        self._ends_from = 0

    # State ------------------------------------------------------------------------------------------------

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
        """Requests submitted and not finished, by the engine's clock."""
        return len(self._running) + len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV pool in use, 0 to 1."""
        return self._held / self._pool

    # Entry points -----------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request; it must not arrive before an earlier request.

        Raises:
            ValueError: it could never fit into the pool, or has nothing to read or to generate.
        """
        if request.output_tokens < 1 or request.prompt_tokens < 1:
            raise ValueError(f"request {request.number}: needs at least one prompt and one output token")
        if request.prompt_tokens + request.output_tokens > self._pool:
            raise ValueError(f"request {request.number}: longer than the KV pool")
        self._waiting.append(request)

    def abort(self, request: Request) -> None:
        """Forget a request wherever it stands; the step under way keeps its duration."""
        if request in self._running:
            self._leave(request)
            if self._step is not None:
                self._step.chunks = [share for share in self._step.chunks if share[0] is not request]
        elif request in self._waiting:
            self._waiting.remove(request)

    def reconfigure(self, config: EngineConfig, text_of: Callable[[Request], DraftedText | None]) -> None:
        """Go on with another configuration from the next step on, which no real engine can: a bound for rolls.

        Args:
            config: the new one; its pool must hold what runs.
            text_of: the text of a request under the new method.
        """
        decoding = [request for request in self._running if request.plan is not None]
        for request in decoding:
            self._books.withdraw(request)
        self.config, self._time = config, config.times
        self._max_batch, self._pool = config.max_batch, config.kv_pool_tokens
        self._k, self._books.scheduled = config.drafts.at(max(1, self._decoding)), config.drafts.counted
        for request in (*self._running, *self._waiting):
            request.text = text_of(request)
        for request in decoding:
            self._books.enter(request, self._k)
        self._ends = None

    def next_end_s(self) -> float:
        """End of the step under way (s), which is decided if there is none; infinity without work."""
        step = self._step or self._decide()
        return step.end_s if step is not None else math.inf

    def step(self) -> StepReport:
        """Do exactly one step.

        Raises:
            RuntimeError: there is nothing to do.
        """
        step = self._step or self._decide()
        if step is None:
            raise RuntimeError("an idle engine has no step")
        self._step = None
        start_s, at, progress = self.clock_s, self._books.at, []
        for request in self._running:
            if (plan := request.plan) is not None:
                i = at - request.plan_start
                gained, accepted = int(plan.advance[i]), int(plan.accepted[i])
                drafted = int(plan.drafted[i]) if plan.scheduled is None else plan.scheduled
                progress.append(RequestProgress(request, gained, drafted, accepted, first=False))
        for request, chunk in step.chunks:
            if chunk == request.prefill_left:
                progress.append(RequestProgress(request, 1, 0, 0, first=math.isnan(request.first_token_s)))
        finished = self._carry_out(step)
        return StepReport(start_s, self.clock_s, progress, finished)

    def advance(self, until_s: float) -> list[Request]:
        """Do every step that ends by `until_s`; return the requests finished, in order.

        The clock of an engine left idle moves on to `until_s` if that is finite.
        """
        finished: list[Request] = []
        while self.clock_s < until_s:
            if self._step is None and self._is_steady():
                if not self._run(until_s, finished):
                    return finished
                continue
            step = self._step or self._decide(until_s)
            if step is None or step.end_s > until_s:
                break
            self._step = None
            finished += self._carry_out(step)
        if not self.outstanding and math.isfinite(until_s):
            self.clock_s = max(self.clock_s, until_s)
        return finished

    def quiet_until_s(self) -> float:
        """End of the next step that may finish a request; infinity when there is nothing to do."""
        if self._step is None and self._is_steady():
            return float(self._steady_ends()[-1])
        return self.next_end_s()

    # Deciding a step --------------------------------------------------------------------------------------

    def _decide(self, until_s: float = math.inf) -> _Step | None:
        """Decide the step that starts now, or with the next arrival before `until_s`; None if there is nothing to do."""
        if not self._running:
            if not self._waiting or self._waiting[0].arrival_s > max(self.clock_s, until_s):
                return None
            self.clock_s = max(self.clock_s, self._waiting[0].arrival_s)
        # No request joins the step in which another was preempted: the freed room is not room for it.
        chunks = self._take_prompts(admitting=not self._make_room())
        self._retier(self._decoding + len(chunks))
        self._ends = None
        seconds = self._time.seconds(
            self._k,
            self._decoding,
            int(self._books.drafted[self._books.at]),
            self._context,
            sum(chunk for _, chunk in chunks),
        )
        self._step = _Step(self.clock_s + seconds, chunks)
        return self._step

    def _make_room(self) -> bool:
        """Preempt until the coming step's tokens fit the pool; returns whether a request was preempted."""
        before = self.preemptions
        while self._held + int(self._books.gain[self._books.at]) > self._pool and len(self._running) > 1:
            victim = next(reversed(self._running))
            self._leave(victim)
            victim.preemptions += 1
            self.preemptions += 1
            self._waiting.appendleft(victim)
        return self.preemptions > before

    def _take_prompts(self, *, admitting: bool) -> list[tuple[Request, int]]:
        """Fill what decoding leaves of the step with prompts: those under way, then new ones in order of arrival."""
        budget = (
            self.config.max_num_batched_tokens - self._decoding - int(self._books.drafted[self._books.at])
        )
        chunks: list[tuple[Request, int]] = []
        for request in self._prefilling:
            if budget <= 0:
                return chunks
            chunks.append((request, min(request.prefill_left, budget)))
            budget -= chunks[-1][1]
        while admitting and budget > 0 and self._waiting and self._fits(self._waiting[0]):
            request = self._waiting.popleft()
            self._running[request] = None
            self._prefilling.append(request)
            self._held += request.context
            request.prefill_left = request.context - request.cached_tokens
            if math.isnan(request.admitted_s):
                request.admitted_s = self.clock_s
            chunks.append((request, min(request.prefill_left, budget)))
            budget -= chunks[-1][1]
        return chunks

    def _fits(self, request: Request) -> bool:
        """Whether the head of the queue has arrived and may join the batch now."""
        if request.arrival_s > self.clock_s or len(self._running) >= self._max_batch:
            return False
        # Room for the tokens of the coming step and for its own first one, or it would be thrown out at once.
        return self._held + int(self._books.gain[self._books.at]) + request.context + 1 <= self._pool

    def _retier(self, batch: int) -> None:
        """Change k when the batch size asks for it: every running request gets a new plan from where it stands."""
        k = self.config.drafts.at(max(batch, 1))
        if k == self._k:
            return
        self._k = k
        for request in self._running:
            if request.plan is not None:
                self._books.withdraw(request)
                self._books.enter(request, k)

    # Carrying it out --------------------------------------------------------------------------------------

    def _carry_out(self, step: _Step) -> list[Request]:
        """Apply a decided step: decode gains, endings, prompts, first tokens."""
        finished = self._turn(step.end_s, 1)
        for request, chunk in step.chunks:
            request.prefill_left -= chunk
            if request.prefill_left:
                continue
            self._prefilling.remove(request)
            request.generated += 1
            self._held += 1
            if math.isnan(request.first_token_s):
                request.first_token_s = self.clock_s
            if request.generated >= request.output_tokens:
                finished.append(self._finish(request))
            else:
                self._decoding += 1
                self._context += request.context
                self._books.enter(request, self._k)
        self._ends = None
        return finished

    def _turn(self, end_s: float, steps: int) -> list[Request]:
        """Let decode steps go by, the last of them ending at `end_s`; the requests they finish."""
        self.busy_s += end_s - self.clock_s
        self.clock_s = end_s
        gained = self._books.turn(steps)
        self._context += gained
        self._held += gained
        self.steps += steps
        self.request_steps += steps * self._decoding
        ended = self._books.ended()
        if ended:
            self._ends = None
            for request in ended:
                self._decoding -= 1
                self._context -= request.context
                self._finish(request)
        return ended

    def _finish(self, request: Request) -> Request:
        self._held -= request.context
        del self._running[request]
        request.finished_s = self.clock_s
        return request

    def _leave(self, request: Request) -> None:
        """Take an unfinished request out of the batch and give back what it holds."""
        if request.plan is not None:
            self._books.withdraw(request)
            self._decoding -= 1
            self._context -= request.context
        else:
            self._prefilling.remove(request)
        self._held -= request.context
        del self._running[request]
        self._ends = None

    # Runs of steps without a change of the batch ----------------------------------------------------------

    def _is_steady(self) -> bool:
        """Whether the coming steps only decode: no prompt under way, none that may join, room for the next tokens."""
        if self._decoding == 0 or self._prefilling or (self._waiting and self._fits(self._waiting[0])):
            return False
        if self._held + int(self._books.gain[self._books.at]) > self._pool:
            return False
        return self.config.drafts.at(self._decoding) == self._k

    def _steady_ends(self) -> NDArray[np.float64]:
        """Ends of the coming steps up to the next ending, or until the pool is full (seconds, ascending)."""
        books = self._books
        if self._ends is not None:
            return self._ends[books.at - self._ends_from :]
        steps = books.steps_to_next_end()
        gain = books.gain[books.at : books.at + steps]
        held = gain.cumsum()
        if self._held + held[-1] > self._pool:
            steps = int(held.searchsorted(self._pool - self._held, side="right"))
            gain, held = gain[:steps], held[:steps]
        # Within a run only context and drafts change from step to step.
        per_kv_token_s = self._time.per_kv_token_s * self._time.factor(self._k)
        seconds = np.multiply(held - gain, per_kv_token_s, dtype=np.float64)
        if self._k:
            seconds += self._time.drafts_s(self._decoding, books.drafted[books.at : books.at + steps])
        seconds += self._time.seconds(self._k, self._decoding, 0, self._context, 0)
        seconds.cumsum(out=seconds)
        seconds += self.clock_s
        self._ends, self._ends_from = seconds, books.at
        return seconds

    def _run(self, until_s: float, finished: list[Request]) -> bool:
        """Do the steady steps that end by `until_s`; False if the first one ends later."""
        ends = self._steady_ends()
        steps = len(ends) if ends[-1] <= until_s else int(ends.searchsorted(until_s, side="right"))
        if self._waiting and self._waiting[0].arrival_s > self.clock_s:
            # The step under way at an arrival is the last one before the newcomer is looked at.
            steps = min(steps, int(ends.searchsorted(self._waiting[0].arrival_s)) + 1)
        if steps:
            finished += self._turn(float(ends[steps - 1]), steps)
        return steps > 0
