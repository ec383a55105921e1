"""Cost of the board at a thousand services: of publishing to it, of its pages, and what a crowd of readers does to the loop.

A service of a played world stands in a thousand times, each with a profile of its own name; nothing is asked of a cluster.
CPU is the process's own. A stall is how late a task that sleeps a hundredth of a second wakes up.

    .venv/bin/python tests/bench/bench_board.py
"""

from __future__ import annotations

import asyncio
import functools
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from breakeven_operator.board.board_access import LoopbackAccess
from breakeven_operator.board.board_server import Board, BoardSettings, listen
from breakeven_operator.board.load_trail import LoadTrail
from breakeven_operator.board.publication import Publication
from breakeven_operator.kinds import NamespacedName
from fakes.manual_clock import FakeClock
from fakes.played_worlds import after_a_measured_roll
from fakes.published_board import CHAT, published_of

SERVICES = 1000
READERS = 8
CROWD_S = 15.0


def many(count: int, minute: int) -> Publication:
    """So many services of one status, each window a minute later than the one before."""
    played = published_of(after_a_measured_roll())
    chat = played.services[CHAT]
    decision = chat.status.decision
    assert decision is not None
    assert decision.evidence_time is not None
    moved = decision.model_copy(
        update={"evidence_time": decision.evidence_time + timedelta(minutes=minute), "time": played.time}
    )
    status = chat.status.model_copy(update={"decision": moved})
    names = [NamespacedName(f"ns-{number % 50}", f"chat-{number:04}") for number in range(count)]
    services = {
        name: chat.model_copy(
            update={
                "metadata": chat.metadata.replace(namespace=name.namespace, name=name.name, uid=name.name),
                "status": status,
            }
        )
        for name in names
    }
    return replace(played, services=services, profiles=dict.fromkeys(names, played.profiles[CHAT]))


def say(what: str, figure: str) -> None:
    sys.stdout.write(f"{what:<72} {figure}\n")
    sys.stdout.flush()


async def cpu_s(work: Callable[[], Awaitable[object]]) -> float:
    began = time.process_time()
    await work()
    return time.process_time() - began


async def longest_stall_s(work: Callable[[], Awaitable[object]]) -> float:
    """How late the loop was at worst while something else went on."""
    worst, done = 0.0, asyncio.Event()

    async def watch() -> None:
        nonlocal worst
        while not done.is_set():
            began = time.monotonic()
            await asyncio.sleep(0.01)
            worst = max(worst, time.monotonic() - began - 0.01)

    watching = asyncio.create_task(watch())
    await work()
    done.set()
    await watching
    return worst


def memory_of_trails() -> float:
    """MB that full trails of all services take."""
    filled = LoadTrail()
    windows = [many(1, 4 * number).services for number in range(200)]
    names = [f"chat-{number:04}" for number in range(SERVICES)]
    tracemalloc.start()
    for services in windows:
        (one,) = services.values()
        filled.add(
            one.model_copy(update={"metadata": one.metadata.model_copy(update={"uid": uid})}) for uid in names
        )
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / 2**20


async def bench() -> None:
    clock = FakeClock()
    played = published_of(after_a_measured_roll())
    clock.advance((played.time - clock.now()).total_seconds())
    board = Board(clock, BoardSettings())
    for minute in range(20):
        board.publish(many(SERVICES, minute))
    last = many(SERVICES, 20)
    began = time.process_time()
    board.publish(last)
    say(
        f"publishing {SERVICES} services, in the loop, once per cycle",
        f"{1000 * (time.process_time() - began):.1f} ms",
    )
    socket = await listen(board.application(LoopbackAccess()), "127.0.0.1", 0)
    async with aiohttp.ClientSession() as session:

        async def get(path: str) -> int:
            async with session.get(socket.address + path) as answer:
                await answer.read()
                return answer.status

        await get("?text=warm")
        await get("services/ns-1/chat-0001")
        pages = {
            "a page of 100 services": "?page=2",
            "the same within two seconds": "?page=2",
            "all services looked through for attention": "?show=attention",
            "a service, with curves that were computed before": "services/ns-2/chat-0002",
            "a what-if that was not asked before": "services/ns-2/chat-0002?rps=7.123&acceptance=61",
        }
        for what, path in pages.items():
            say(f"{what}: CPU", f"{1000 * await cpu_s(functools.partial(get, path)):.0f} ms")

        async def crowd() -> None:
            end, numbers, answers = time.monotonic() + CROWD_S, iter(range(10**9)), dict[int, int]()

            async def reader() -> None:
                while time.monotonic() < end:
                    number = next(numbers)
                    status = await get(
                        f"services/ns-{number % 50}/chat-{number % SERVICES:04}?rps={1 + number * 0.01:.2f}"
                    )
                    answers[status] = answers.get(status, 0) + 1
                    await asyncio.sleep(0.0 if status == 200 else 0.05)

            await asyncio.gather(*(reader() for _ in range(READERS)))
            counted = ", ".join(f"{number} x {status}" for status, number in sorted(answers.items()))
            say(
                f"{READERS} readers that ask for another what-if each time, {CROWD_S:.0f} s: answers", counted
            )

        began, wall = time.process_time(), time.monotonic()
        stall = await longest_stall_s(crowd)
        share = (time.process_time() - began) / (time.monotonic() - wall)
        say("the loop's longest stall meanwhile", f"{1000 * stall:.0f} ms")
        say("share of a core, these readers among it", f"{100 * share:.0f} %")
    await socket.close()
    say(f"memory of twelve hours of loads of {SERVICES} services", f"{memory_of_trails():.1f} MB")


if __name__ == "__main__":
    # Played before the loop begins; it has one of its own.
    published_of(after_a_measured_roll())
    asyncio.run(bench())
