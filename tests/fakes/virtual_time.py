"""An event loop on a clock of its own: waiting costs nothing, and a busy machine makes nothing later.

A driver's measurement of an engine in the same loop is then exact, and the same in every run. Real time would add
other activity of the machine.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec
from unittest import mock

P = ParamSpec("P")
# The kernel hands loopback's bytes over at once, unless it is behind: it gets this much real time before the clock moves.
_DELIVERY_S = 0.0003
_TURN_S = 1e-9


class _Impatient(selectors.DefaultSelector):
    """Where others sleep until the next timer, it moves the clock there; with nothing to do at all it waits."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Or a loop that waits for the last rounding error of its time to pass would wait for ever.
        self.now_s += _TURN_S
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        ready = super().select(None if timeout is None else _DELIVERY_S)
        if not ready and timeout is not None:
            self.now_s += timeout
        return ready


class VirtualTime(asyncio.SelectorEventLoop):
    """Time all but stands still while anything happens and jumps to the next timer when nothing does; begins at 0 s."""

    def __init__(self) -> None:
        self._selecting = _Impatient()
        super().__init__(self._selecting)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._selecting.now_s


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test, with everything it awaits, on such a loop; `time.monotonic` tells the loop's time meanwhile."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        loop = VirtualTime()
        with (
            mock.patch.object(time, "monotonic", loop.time),
            asyncio.Runner(loop_factory=lambda: loop) as runner,
        ):
            runner.run(test(*arguments, **named))

    return run
