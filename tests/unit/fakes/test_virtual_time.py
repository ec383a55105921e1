"""Timers of the loop on a clock of its own wait for threads and for bytes under way."""

from __future__ import annotations

import asyncio
import threading

from fakes.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_timer_waits_for_a_thread_however_long_it_works():
    loop, begun = asyncio.get_running_loop(), threading.Event()

    def work():
        begun.wait()
        threading.Event().wait(0.05)
        return "done"

    loop.call_soon(begun.set)
    async with asyncio.timeout(1e-3):
        assert await asyncio.to_thread(work) == "done"
    assert loop.time() < 1e-3


@in_virtual_time
async def test_a_thread_that_nobody_waits_for_stops_no_clock():
    leave = threading.Event()
    work = asyncio.get_running_loop().run_in_executor(None, leave.wait)
    work.cancel()
    await asyncio.sleep(3600.0)
    leave.set()


@in_virtual_time
async def test_a_timer_waits_for_connections_and_bytes():
    async def answer(reader, writer):
        writer.write(await reader.readexactly(1))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    for _ in range(200):
        async with asyncio.timeout(1e-3):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"x")
            assert await reader.read() == b"x"
            writer.close()
            await writer.wait_closed()
    server.close()
    await server.wait_closed()
