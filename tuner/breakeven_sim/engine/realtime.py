"""The engine in real time: its steps end when the event clock says so, and tokens reach their streams then.

The event clock never runs ahead of real time. It falls behind if this process gets too little CPU. The lag is measured
and reported, and never counted as engine time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.requests import Request, StepReport


@dataclass(slots=True)
class Stream:
    """Tokens of one request on their way to its client."""

    request: Request
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    tokens: int = 0
    finished: bool = False

    async def more(self) -> tuple[int, bool]:
        """Wait for the next tokens: how many (several steps' worth if the client is slow), and whether they are the last.

        A killed engine never answers.
        """
        await self.ready.wait()
        self.ready.clear()
        tokens, self.tokens = self.tokens, 0
        return tokens, self.finished


@dataclass(frozen=True, slots=True)
class ClockReport:
    """Differences between real time and the event clock (s)."""

    event_clock_s: float
    lag_s: float
    max_lag_s: float
    mean_lag_s: float
    steps: int
    busy_s: float
    cpu_s: float


class PacedEngine:
    """Runs an engine against the event loop's clock.

    Args:
        engine: fresh; its clock 0 is the moment `run` starts.
        on_step: is called for every step before its tokens go to the streams.
    """

    def __init__(self, engine: Engine, on_step: Callable[[StepReport], None]) -> None:
        self.engine = engine
        self.killed = False
        self._on_step = on_step
        self._streams: dict[Request, Stream] = {}
        self._woken = asyncio.Event()
        self._origin_s = 0.0
        self._lag_s = self._max_lag_s = self._total_lag_s = 0.0

    @property
    def in_flight(self) -> int:
        """Requests with an open stream."""
        return len(self._streams)

    def now_s(self) -> float:
        """Real time on the event clock's scale."""
        return asyncio.get_running_loop().time() - self._origin_s

    def submit(self, request: Request) -> Stream:
        """Hand a request, arrived now, to the engine."""
        request.arrival_s = self.now_s()
        stream = self._streams[request] = Stream(request)
        if not self.killed:
            self.engine.submit(request)
            self._woken.set()
        return stream

    def abort(self, request: Request) -> None:
        """Forget a request whose client went away."""
        if self._streams.pop(request, None) is not None and not self.killed:
            self.engine.abort(request)

    def kill(self) -> None:
        """Stop the engine where it stands: no stream ever moves again."""
        self.killed = True

    def _is_dead(self) -> bool:
        return self.killed

    async def run(self) -> None:
        """Do steps for ever, each at its time."""
        self._origin_s = asyncio.get_running_loop().time() - self.engine.clock_s
        while True:
            end_s = self.engine.next_end_s()
            if self._is_dead() or math.isinf(end_s):
                self._woken.clear()
                await self._woken.wait()
                continue
            # Sleeping 0 s still lets clients and scrapes in when the clock is behind.
            await asyncio.sleep(max(0.0, end_s - self.now_s()))
            if self._is_dead() or self.engine.next_end_s() != end_s:
                continue  # killed, or the batch was aborted meanwhile
            self._lag_s = max(0.0, self.now_s() - end_s)
            self._max_lag_s = max(self._max_lag_s, self._lag_s)
            self._total_lag_s += self._lag_s
            self._deliver(self.engine.step())

    def clock(self) -> ClockReport:
        """Lag of the event clock behind real time."""
        engine = self.engine
        mean = self._total_lag_s / engine.steps if engine.steps else 0.0
        return ClockReport(
            engine.clock_s,
            self._lag_s,
            self._max_lag_s,
            mean,
            engine.steps,
            engine.busy_s,
            time.process_time(),
        )

    def _deliver(self, report: StepReport) -> None:
        self._on_step(report)
        for gain in report.progress:
            request = gain.request
            request.last_token_s = report.end_s
            if (stream := self._streams.get(request)) is not None:
                stream.tokens += gain.tokens
                stream.ready.set()
        for request in report.finished:
            if (stream := self._streams.pop(request, None)) is not None:
                stream.finished = True
                stream.ready.set()
