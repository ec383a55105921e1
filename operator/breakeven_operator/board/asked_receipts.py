"""Receipts of a service for its page, asked of Prometheus beside the loop: one service at a time, each at most four times an hour."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from breakeven.errors import BreakevenError
from breakeven.past.receipt_reading import Reading, reading
from breakeven.past.receipts import Receipt
from breakeven.readers.prometheus import Samples
from breakeven.serving.promql import Matcher, RangeQuestion
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import Clock, Metrics, MetricsError, PrometheusAccess

_LOG = logging.getLogger(__name__)
# Every page holds this month and, for its first weeks, most of the last one.
_PAST_S = 31 * 86_400
_KEPT_S, _REFUSED_S = 900.0, 60.0
_MOST_KEPT = 64
# A page is not kept waiting for longer; the answer is there when it is opened again.
_PATIENCE_S = 3.0


class FoundReceipts(NamedTuple):
    """Receipts, or in their place a sentence that says why there are none."""

    receipts: Sequence[Receipt] = ()
    problem: str = ""


_ASKED = FoundReceipts(problem="Prometheus is being asked: open this page again in a minute.")


# Who may see a namespace here may see no namespace of another cluster.
_SEVERAL = "services of several clusters have this name; ask with `breakeven savings --match cluster=NAME`."


class AskedReceipts:
    """Receipts by service. `source` is the operator's Prometheus, if it scrapes the operator."""

    def __init__(self, metrics: Metrics, source: PrometheusAccess, clock: Clock) -> None:
        self._metrics = metrics
        self._source = source
        self._clock = clock
        self._turn = asyncio.Lock()
        self._kept: OrderedDict[NamespacedName, tuple[float, FoundReceipts]] = OrderedDict()
        self._tasks: dict[NamespacedName, asyncio.Task[None]] = {}

    async def of(self, name: NamespacedName) -> FoundReceipts:
        """The newest answer about a service; begins to ask again if it is old, and waits for seconds if there are no receipts."""
        at, found = self._kept.get(name, (float("-inf"), _ASKED))
        if self._clock.monotonic() - at < (_REFUSED_S if found.problem else _KEPT_S):
            return found
        if name not in self._tasks and len(self._tasks) < _MOST_KEPT:
            self._tasks[name] = asyncio.create_task(self._ask(name))
        if name in self._tasks and found.problem:
            await asyncio.wait({self._tasks[name]}, timeout=_PATIENCE_S)
        return self._kept.get(name, (at, found))[1]

    async def close(self) -> None:
        """Ends what is on its way."""
        tasks = list(self._tasks.values())
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, name: NamespacedName) -> None:
        try:
            async with self._turn:
                found = await self._answer(name)
            self._kept[name] = (self._clock.monotonic(), found)
            self._kept.move_to_end(name)
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        finally:
            del self._tasks[name]

    async def _answer(self, name: NamespacedName) -> FoundReceipts:
        matchers = [Matcher("specsvc_namespace", "=", name.namespace), Matcher("specsvc", "=", name.name)]
        asking = reading(matchers, self._clock.now().timestamp(), _PAST_S, _LOG.warning)
        try:
            step = await asyncio.to_thread(_next, asking, None)
            while isinstance(step, RangeQuestion):
                answer = await self._metrics.query_past(self._source, step.as_subquery())
                step = await asyncio.to_thread(_next, asking, answer)
        except (BreakevenError, MetricsError) as error:
            return FoundReceipts(problem=f"{self._source.name}: {error}.")
        except Exception:  # noqa: BLE001 - reported in full; no decision rests on a receipt
            _LOG.exception("receipts of %s failed", name)
            return FoundReceipts(problem="A defect of the board: the log of the operator has it.")
        if len({one.service for one in step}) > 1:
            return FoundReceipts(problem=f"{self._source.name}: {_SEVERAL}")
        return FoundReceipts(step)


def _next(asking: Reading, answer: Sequence[Samples] | None) -> RangeQuestion | tuple[Receipt, ...]:
    """The next question, or in the end the receipts."""
    try:
        return next(asking) if answer is None else asking.send(answer)
    except StopIteration as done:
        found: tuple[Receipt, ...] = done.value
        return found
