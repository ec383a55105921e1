"""An informer holds what the API server holds, whatever the wire between them does."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakeven_operator.cluster.informer import Informer, WatchScope
from breakeven_operator.kinds import PODS
from breakeven_operator.loop.assembly import SystemClock
from breakeven_operator.ports import ClusterError, EventKind
from fakes.virtual_time import in_virtual_time
from fakes.watched_server import WatchedServer

RELIST_S = 3600.0


def whole(manifest):
    return manifest


@contextlib.asynccontextmanager
async def following(server: WatchedServer, trim=whole, relist_s: float = RELIST_S) -> AsyncIterator[Informer]:
    informer = Informer(server, SystemClock(), WatchScope(PODS, None), trim=trim, relist_s=relist_s)
    task = asyncio.create_task(informer.run())
    await informer.settled(10.0)
    try:
        yield informer
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def held(informer: Informer) -> dict[str, str]:
    """Resource versions by name."""
    return {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in informer.objects()}


def present(server: WatchedServer) -> dict[str, str]:
    return {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in server.objects.values()}


@in_virtual_time
async def test_objects_are_listed_once_and_then_followed():
    server = WatchedServer()
    server.put("a")
    server.put("b")
    async with following(server) as informer:
        assert held(informer) == present(server)
        server.put("a")
        server.delete("b")
        server.put("c")
        await asyncio.sleep(0.1)
        assert held(informer) == present(server)
        assert set(held(informer)) == {"a", "c"}
        await asyncio.sleep(RELIST_S - 10)
    assert server.requests == {"list and watch": 1}


@in_virtual_time
async def test_a_connection_that_ends_is_taken_up_where_it_ended():
    server = WatchedServer()
    server.put("a")
    async with following(server) as informer:
        server.put("b")
        await asyncio.sleep(0.1)
        server.cut()
        server.put("c")
        server.delete("a")
        await asyncio.sleep(1.0)
        assert held(informer) == present(server)
    assert server.requests == {"list and watch": 1, "watch": 1}


@in_virtual_time
async def test_a_place_that_the_server_has_forgotten_means_reading_all_anew_and_what_was_known_stays_meanwhile():
    server = WatchedServer()
    server.put("a")
    async with following(server) as informer:
        server.cut()
        server.put("b")
        server.delete("a")
        server.compact()
        server.refuse = [ClusterError("gone", 410), ClusterError("busy", 500), ClusterError("busy", 500)]
        await asyncio.sleep(0.3)
        assert set(held(informer)) == {"a"}
        await asyncio.sleep(10.0)
        assert held(informer) == present(server)


@in_virtual_time
async def test_an_expired_place_is_told_by_an_event_too():
    server = WatchedServer()
    server.put("a")
    async with following(server) as informer:
        server.put("b")
        await asyncio.sleep(0.1)
        server.compact()
        server.put("c")
        server.cut()
        server.refuse = [ClusterError("WATCH: 410 expired", 410)]
        await asyncio.sleep(2.0)
        assert held(informer) == present(server)
    assert server.requests["list and watch"] == 2


@in_virtual_time
async def test_all_is_read_anew_after_a_while_though_nothing_seems_wrong():
    server = WatchedServer()
    server.put("a")
    async with following(server, relist_s=600.0) as informer:
        lost = server.wire
        server.wire = lambda _events: ()
        server.put("b")
        await asyncio.sleep(1.0)
        server.wire = lost
        assert set(held(informer)) == {"a"}
        await asyncio.sleep(600.0)
        server.bookmark()
        await asyncio.sleep(1.0)
        assert held(informer) == present(server)


@in_virtual_time
async def test_who_is_refused_asks_seldom_and_says_why():
    server = WatchedServer()
    server.refuse = [ClusterError("WATCH /pods: 403 no", 403)] * 1000
    async with following(server) as informer:
        with pytest.raises(ClusterError, match="403 no"):
            informer.objects()
        await asyncio.sleep(3600.0)
        assert 10 < server.requests["list and watch"] < 35
        server.refuse = []
        await asyncio.sleep(300.0)
        assert held(informer) == {}


@in_virtual_time
async def test_its_age_is_the_time_since_the_server_was_heard_of():
    server = WatchedServer()
    server.put("a")
    async with following(server) as informer:
        await asyncio.sleep(50.0)
        assert informer.age_s() == pytest.approx(50.0, abs=0.5)
        server.bookmark()
        await asyncio.sleep(1.0)
        assert informer.age_s() == pytest.approx(1.0, abs=0.1)
        server.put("a")
        await asyncio.sleep(2.0)
        assert informer.age_s() == pytest.approx(2.0, abs=0.1)
        # A watch that resumes at its old place missed nothing; a watch that is refused learns nothing.
        server.silent = True
        await asyncio.sleep(50.0)
        server.cut()
        await asyncio.sleep(1.0)
        assert informer.age_s() < 1.0
        server.refuse = [ClusterError("busy", 500)] * 100
        server.cut()
        await asyncio.sleep(100.0)
        assert informer.age_s() > 100.0


@in_virtual_time
async def test_a_list_is_as_old_as_its_request():
    server = WatchedServer()
    server.put("a")
    began_s = time.monotonic()
    original = server.watch

    async def late(*arguments, **named):
        await asyncio.sleep(20.0)
        async for event in original(*arguments, **named):
            yield event

    server.watch = late
    async with following(server) as informer:
        await informer.settled(60.0)
        assert informer.age_s() == pytest.approx(time.monotonic() - began_s, abs=0.1)
        assert informer.age_s() > 19.0


@in_virtual_time
async def test_what_concerns_nobody_is_not_kept_and_may_stop_or_begin_to_concern():
    server = WatchedServer()
    server.put("a", labels={"keep": "yes"})
    server.put("b")
    async with following(server, trim=lambda o: o if o["metadata"]["labels"] else None) as informer:
        assert set(held(informer)) == {"a"}
        server.put("b", labels={"keep": "yes"})
        await asyncio.sleep(0.1)
        assert set(held(informer)) == {"a", "b"}
        server.put("a")
        await asyncio.sleep(0.1)
        assert set(held(informer)) == {"b"}
        informer.drop(lambda _object: False)
        assert held(informer) == {}


@in_virtual_time
async def test_an_answer_to_a_write_counts_at_once_and_older_news_do_not_undo_it():
    server = WatchedServer()
    server.put("a")
    async with following(server) as informer:
        server.put("a", size=1)
        between = server.objects["llm/a"]
        server.put("a", size=2)
        answer = server.objects["llm/a"]
        informer.adopt([answer])
        assert held(informer) == present(server)
        await asyncio.sleep(0.1)
        assert held(informer) == present(server)
        informer.adopt([between])
        assert held(informer) == present(server)
        server.put("a", size=3)
        informer.forget(answer["metadata"]["uid"])
        assert held(informer) == {}
        # The watch's event now is older than its deletion.
        await asyncio.sleep(0.1)
        assert held(informer) == {}
        server.delete("a")
        await asyncio.sleep(0.1)
        assert held(informer) == {}
        # Another object of that name is another object.
        server.put("a")
        await asyncio.sleep(0.1)
        assert held(informer) == present(server)


@in_virtual_time
async def test_a_version_that_is_no_number_is_refused_with_what_was_expected():
    server = WatchedServer()
    server.put("a")
    server.objects["llm/a"]["metadata"]["resourceVersion"] = "x"
    async with following(server) as informer:
        with pytest.raises(ClusterError, match="resourceVersion is 'x', expected a number"):
            informer.objects()


@pytest.mark.parametrize("late", ["object", "bookmark"])
@in_virtual_time
async def test_a_wire_that_loses_the_order_makes_it_read_everything_anew(late):
    server = WatchedServer()
    server.put("a")
    async with following(server) as informer:
        server.wire = reversed
        if late == "object":
            server.put("b")
            server.delete("b")
        else:
            server.bookmark()
            server.put("a")
        await asyncio.sleep(5.0)
        assert held(informer) == present(server)
    assert server.requests == {"list and watch": 2}


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abcd")),
        st.tuples(st.just("delete"), st.sampled_from("abcd")),
        st.tuples(st.sampled_from(["bookmark", "cut", "compact", "wait"])),
    ),
    max_size=30,
)


@given(operations=OPERATIONS, faults=st.randoms(use_true_random=False))
@settings(deadline=None)
def test_on_a_wire_that_repeats_reorders_and_breaks_it_ends_with_what_the_server_has(operations, faults):
    """Everything but a silent loss, which no reader of a watch can notice before it lists again."""

    def bad(events):
        sent = [event for event in events for _ in range(faults.choice((1, 1, 1, 2, 3)))]
        if faults.random() < 0.4:
            faults.shuffle(sent)
        return sent

    @in_virtual_time
    async def run():
        server = WatchedServer()
        server.put("a")
        server.wire = bad
        async with following(server) as informer:
            for verb, *names in operations:
                if verb == "wait":
                    await asyncio.sleep(faults.choice((0.0, 0.05, 40.0)))
                else:
                    getattr(server, verb)(*names)
            await asyncio.sleep(60.0)
            server.wire = lambda events: events
            server.put("last")
            await asyncio.sleep(60.0)
            assert held(informer) == present(server)

    run()


@given(first=st.sampled_from([EventKind.ADDED, EventKind.MODIFIED]))
def test_an_event_that_came_twice_does_not_make_it_read_everything_anew(first):
    @in_virtual_time
    async def run():
        server = WatchedServer()
        if first is EventKind.MODIFIED:
            server.put("a")
        async with following(server):
            server.wire = lambda events: [event for event in events for _ in range(2)]
            server.put("a")
            server.put("b")
            await asyncio.sleep(1.0)
            server.delete("b")
            await asyncio.sleep(1.0)
        assert server.requests == {"list and watch": 1}

    run()
