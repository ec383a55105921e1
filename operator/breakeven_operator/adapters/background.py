"""Tasks that a cycle starts and waits for briefly; a task that takes longer goes on, and its result serves a later cycle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Generic, TypeVar

K = TypeVar("K")
SETTLE_S = 2.0


class Background(Generic[K]):
    """At most one task per key; the tasks run side by side and outlive the cycle that began them.

    A key whose last task took longer than `settle_s` is not waited for again until a task of it is quick: a server that
    hangs costs the cycles `settle_s` once, and nothing after that. Every task must end by itself. `close` it.

    Args:
        settle_s: longest wait for the tasks of one `run`.
        first_s: how much longer to wait for the first task of all.
    """

    def __init__(self, settle_s: float = SETTLE_S, *, first_s: float = 0.0) -> None:
        self.settle_s = settle_s
        self._first_s = first_s
        self._any_ended = False
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self._slow: set[K] = set()
        # The event loop itself holds tasks weakly: one that is on its way out is held here.
        self._leaving: set[asyncio.Task[None]] = set()

    async def run(
        self, wanted: Collection[K], due: Mapping[K, Callable[[], Coroutine[Any, Any, None]]]
    ) -> None:
        """Begin the tasks that are due and not under way, and wait for them briefly; tasks without a wanted key are cancelled.

        Raises:
            Exception: what a task raised.
        """
        self._end(self._tasks.keys() - set(wanted))
        self._slow &= set(wanted)
        self._reap()
        begun = {
            key: asyncio.create_task(self._timed(key, work), name="background")
            for key, work in due.items()
            if key not in self._tasks
        }
        self._tasks |= begun
        quick = {key: task for key, task in begun.items() if key not in self._slow}
        if quick:
            await asyncio.wait(quick.values(), timeout=self.settle_s)
            if not self._any_ended:
                await asyncio.wait(quick.values(), timeout=self._first_s, return_when=asyncio.FIRST_COMPLETED)
            self._slow |= {key for key, task in quick.items() if not task.done()}
        self._reap()

    async def close(self) -> None:
        """Cancel all tasks and see them end."""
        self._end(set(self._tasks))
        await asyncio.gather(*self._leaving, return_exceptions=True)

    async def _timed(self, key: K, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await work()
        self._any_ended = True
        (self._slow.discard if loop.time() - began_s <= self.settle_s else self._slow.add)(key)

    def _end(self, keys: Collection[K]) -> None:
        for key in keys:
            task = self._tasks.pop(key)
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
            task.cancel()

    def _reap(self) -> None:
        for key, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[key]
                if not task.cancelled():
                    task.result()
