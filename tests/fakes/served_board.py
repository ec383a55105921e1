"""A board with the fleet of `published_board` after twelve hours, on the loopback."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from breakeven_operator.board.board_access import LoopbackAccess
from breakeven_operator.board.board_server import Board, BoardSettings, listen
from fakes.manual_clock import FakeClock
from fakes.played_worlds import after_a_measured_roll
from fakes.published_board import a_day_on, fleet_of, published_of


@contextlib.contextmanager
def served_fleet() -> Iterator[str]:
    """Serve it while the context lasts; yields the address, with a slash at its end."""
    fleet = fleet_of(published_of(after_a_measured_roll()))
    clock = FakeClock()
    clock.advance((fleet.time - clock.now()).total_seconds() + 9.0)
    settings = BoardSettings(
        gpu_price_per_hour=2.5,
        dashboard_url="https://grafana.example.org/d/breakeven",
        runbook_url_prefix="https://example.org/",
    )
    board = Board(clock, settings)
    a_day_on(board, fleet)
    loop = asyncio.new_event_loop()
    serving = threading.Thread(target=loop.run_forever)
    serving.start()

    socket = asyncio.run_coroutine_threadsafe(
        listen(board.application(LoopbackAccess()), "127.0.0.1", 0), loop
    ).result(60)
    try:
        yield socket.address
    finally:
        asyncio.run_coroutine_threadsafe(socket.close(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        serving.join()
        loop.close()
