"""An event loop on a clock of its own: waiting costs nothing, and a busy machine makes nothing later.

A driver's measurement of an engine in the same loop is then exact, and the same in every run. Real time would add
other activity of the machine. The clock stands still while a thread of the loop works or bytes are under way, however long the
machine takes for them. looptime, which kopf's tests use, lets the clock run with real time meanwhile, or after 42 looks.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec
from unittest import mock

P = ParamSpec("P")
_TURN_S = 1e-9
# A handshake is three packets, each sent when the one before has come.
_PACKETS = 4


class _Impatient(selectors.DefaultSelector):
    """Where others sleep until the next timer, it moves the clock there; with nothing to do at all it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.working: set[asyncio.Future[Any]] = set()
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._sender = socket.create_connection(server.getsockname())
            self._receiver, _ = server.accept()
        self._sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Or a loop that waits for the last rounding error of its time to pass would wait for ever.
        self.now_s += _TURN_S
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None or self.working:
            return super().select(None)
        self._let_bytes_arrive()
        ready = super().select(0)
        if not ready:
            self.now_s += timeout
        return ready

    def _let_bytes_arrive(self) -> None:
        """Send bytes behind all that was sent, and wait for them: loopback hands packets over in their order."""
        for _ in range(_PACKETS):
            self._sender.send(b".")
            self._receiver.recv(1)

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()
        super().close()


class VirtualTime(asyncio.SelectorEventLoop):
    """Time all but stands still while anything happens and jumps to the next timer when nothing does; begins at 0 s."""

    def __init__(self) -> None:
        self._selecting = _Impatient()
        self._made_s = time.time()
        super().__init__(self._selecting)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._selecting.now_s

    def unix_s(self) -> float:
        """The same as Unix time, from the moment at which the loop was made."""
        return self._made_s + self.time()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Until its thread has answered, or nobody waits for it any more, no timer fires."""
        answer = super().run_in_executor(executor, func, *args)
        self._selecting.working.add(answer)
        answer.add_done_callback(self._selecting.working.discard)
        return answer

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # asyncio's own
        """Wait for the threads: a limit of virtual time would be over at once."""
        await super().shutdown_default_executor()


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test, with everything it awaits, on such a loop; `time.monotonic` and `time.time` give the loop's time meanwhile."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        loop = VirtualTime()
        with (
            mock.patch.object(time, "monotonic", loop.time),
            # Points are ordered by the Unix time of their begin: in real time a busy machine would order them.
            mock.patch.object(time, "time", loop.unix_s),
            asyncio.Runner(loop_factory=lambda: loop) as runner,
        ):
            runner.run(test(*arguments, **named))

    return run
