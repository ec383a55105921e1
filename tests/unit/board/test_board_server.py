"""The board's socket: real HTTP on the loopback, with real headers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from urllib.parse import urlsplit

import aiohttp
import pytest

from breakeven_operator.board import board_server
from breakeven_operator.board.board_access import LoopbackAccess, ReviewedAccess
from breakeven_operator.board.board_server import HEADERS, Board, BoardSettings, listen
from breakeven_operator.kinds import NamespacedName
from fakes.manual_clock import FakeClock
from fakes.published_board import CHAT

from .markup import StrictPage
from .test_board_access import Reviews


@asynccontextmanager
async def served(published=None, access=None, **settings):
    clock = FakeClock()
    board = Board(clock, BoardSettings(**settings))
    prefix = settings.get("path_prefix", "")
    socket = await listen(board.application(access or LoopbackAccess()), "127.0.0.1", 0, prefix)
    if published is not None:
        # The clock is the operator's: pages are read when they are asked for.
        clock.advance((published.time - clock.now()).total_seconds())
        board.publish(published)
    try:
        async with aiohttp.ClientSession() as session:
            yield Visitor(socket.address, session, board, clock)
    finally:
        await socket.close()


class Visitor:
    def __init__(self, address, session, board, clock):
        self.address, self.session, self.board, self.clock = address, session, board, clock

    async def get(self, path="", method="GET", **options):
        async with self.session.request(method, self.address + path, **options) as answer:
            return answer.status, answer.headers, await answer.text()


async def test_every_answer_has_the_headers_and_only_get_and_head_are_answered(settled):
    async with served(settled) as visitor:
        for path, expected in (
            ("", 200),
            ("services/llm/chat", 200),
            ("json/services", 200),
            ("json/services/llm/chat", 200),
            ("json/services/llm/other", 404),
            ("style.css", 200),
            ("nothing", 404),
            ("services/llm/other", 404),
        ):
            status, headers, _ = await visitor.get(path)
            assert status == expected
            assert HEADERS.items() <= dict(headers).items()
        status, _, text = await visitor.get(method="HEAD")
        assert (status, text) == (200, "")
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            status, headers, _ = await visitor.get(method=method, data=b"x" * 100_000)
            assert (status, headers["Allow"]) == (405, "GET,HEAD")
            assert HEADERS.items() <= dict(headers).items()


def test_the_policy_lets_nothing_but_its_own_style_in():
    policy = dict(part.strip().split(" ", 1) for part in HEADERS["Content-Security-Policy"].split(";"))
    assert policy == {
        "default-src": "'none'", "style-src": "'self'", "form-action": "'self'", "base-uri": "'none'",
        "frame-ancestors": "'none'",
    }  # fmt: skip
    assert HEADERS["Cache-Control"] == "no-store"
    assert HEADERS["X-Content-Type-Options"] == "nosniff"
    assert HEADERS["Referrer-Policy"] == "no-referrer"


async def test_under_a_prefix_all_links_lead_below_it(settled):
    async with served(settled, path_prefix="/breakeven/board") as visitor:
        assert visitor.address.endswith("/breakeven/board/")
        _, _, text = await visitor.get()
        page = StrictPage(text)
        links = [
            one["href"]
            for one in (*page.all("a"), *page.all("link"))
            if not one["href"].startswith(("#", "?"))
        ]
        origin = visitor.address.removesuffix("/breakeven/board/")
        for link in links:
            async with visitor.session.get(origin + link) as answer:
                assert answer.status == 200, link


async def test_before_the_first_cycle_it_says_so():
    async with served() as visitor:
        status, _, text = await visitor.get()
        assert status == 503
        assert "no cycle has ended here yet" in text.lower()


async def test_an_operator_that_has_stopped_deciding_says_how_old_all_is(settled):
    async with served(settled, stale_after_s=225.0) as visitor:
        visitor.clock.advance(600.0)
        _, _, text = await visitor.get()
        assert "decided nothing since then" in text
        assert "last cycle ended 10m ago" in text


async def test_the_newest_publication_is_shown(settled):
    async with served(settled) as visitor:
        await visitor.get()
        visitor.board.publish(replace(settled, time=settled.time + timedelta(15), services={}))
        _, _, text = await visitor.get()
        assert "/services/llm/chat" not in text
        assert (await visitor.get("services/llm/chat"))[0] == 404


async def test_a_name_that_was_rebound_to_the_loopback_gets_nothing(settled):
    async with served(settled) as visitor:
        status, _, text = await visitor.get(headers={"Host": "evil.example"})
        assert status == 421
        assert "chat" not in text


async def test_by_the_network_a_reader_sees_his_namespaces_alone(settled):
    chat = settled.services[CHAT]
    other = chat.model_copy(update={"metadata": chat.metadata.replace(namespace="secret", name="concealed")})
    both = replace(settled, services={CHAT: chat, NamespacedName("secret", "concealed"): other})
    reviews = Reviews()
    async with served(both, ReviewedAccess(reviews, lambda: 1.0)) as visitor:
        status, headers, text = await visitor.get()
        assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="breakeven"')
        assert "chat" not in text
        ann = {"Authorization": "Bearer ann-token"}
        status, _, text = await visitor.get(headers=ann)
        assert status == 200
        assert "/services/llm/chat" in text
        assert "concealed" not in text
        assert "<strong>1</strong> service" in text
        unseen = await visitor.get("services/secret/concealed", headers=ann)
        absent = await visitor.get("services/secret/nothing", headers=ann)
        assert unseen[0] == absent[0] == 404
        assert unseen[2] == absent[2]
        assert (await visitor.get("json/services/secret/concealed", headers=ann))[0] == 404
        status, headers, text = await visitor.get("json/services", headers=ann)
        assert headers["Content-Type"].startswith("application/json")
        assert [one["namespace"] for one in json.loads(text)["services"]] == ["llm"]
        # A page that was made for one reader is not shown to another.
        _, _, text = await visitor.get(headers={"Authorization": "Bearer root-token"})
        assert "concealed" in text


async def test_pages_cost_the_cluster_no_question_on_the_loopback(settled):
    reviews = Reviews()
    async with served(settled) as visitor:
        await visitor.get()
        await visitor.get("services/llm/chat?rps=6")
    assert reviews.asked == []


async def test_while_a_page_is_made_the_loop_goes_on_and_no_second_one_is_begun(settled, monkeypatch):
    inside, go_on = threading.Semaphore(0), threading.Event()
    most, now = [0], [0]

    def slow(page, front):
        now[0] += 1
        most[0] = max(most[0], now[0])
        inside.release()
        assert go_on.wait(60)
        now[0] -= 1
        return "made"

    monkeypatch.setattr(board_server, "list_html", slow)
    async with served(settled) as visitor:
        asked = [asyncio.create_task(visitor.get(f"?text=a{number}")) for number in range(3)]
        # The loop runs, or this would never be reached.
        await asyncio.to_thread(inside.acquire)
        go_on.set()
        answers = await asyncio.gather(*asked)
    assert [status for status, _, _ in answers] == [200] * 3
    assert most == [1]


async def test_too_many_readers_at_once_are_sent_away(settled, monkeypatch):
    go_on = threading.Event()

    def slow(page, front):
        assert go_on.wait(60)
        return "made"

    monkeypatch.setattr(board_server, "list_html", slow)
    async with served(settled) as visitor:
        asked = [asyncio.create_task(visitor.get(f"?text=a{number}")) for number in range(30)]
        sent_away = 0
        for done in asyncio.as_completed(asked):
            status, _, text = await done
            if status == 503:
                assert "too many pages" in text.lower()
                sent_away += 1
            if sent_away == 13:
                go_on.set()
                break
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def test_a_defect_of_a_page_is_a_sentence_and_the_next_page_is_made(settled, monkeypatch, caplog):
    def broken(page, front):
        raise ZeroDivisionError("secret detail")

    async with served(settled) as visitor:
        with monkeypatch.context() as patch:
            patch.setattr(board_server, "list_html", broken)
            status, headers, text = await visitor.get()
        assert status == 500
        assert "secret detail" not in text
        assert HEADERS.items() <= dict(headers).items()
        assert "a page of the board failed" in caplog.text
        assert (await visitor.get("?text=c"))[0] == 200


async def test_connections_beyond_the_bound_are_closed_unread(settled):
    async with served(settled) as visitor:
        place = urlsplit(visitor.address)
        held = [await asyncio.open_connection(place.hostname, place.port) for _ in range(64)]
        # They are counted once the loop has made them.
        held[-1][1].write(b"GET /style.css HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await held[-1][0].readuntil(b"\r\n\r\n")
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(b"GET /style.css HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answered = b""
        # It is closed with or without a reset, as the request comes before or after.
        with contextlib.suppress(ConnectionError):
            answered = await reader.read()
        assert answered == b""
        for _, one in (*held, (reader, writer)):
            one.close()
            with contextlib.suppress(ConnectionError):
                await one.wait_closed()


@pytest.mark.parametrize(
    "request_text",
    [
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X%d: a\r\n" % n for n in range(500)) + b"\r\n",
        b"\x00\x01\x02 not http\r\n\r\n",
    ],
)
async def test_requests_that_are_too_large_or_none_are_refused(settled, request_text, caplog):
    async with served(settled) as visitor:
        place = urlsplit(visitor.address)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(request_text)
        assert b" 400 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
    # Such requests fill no log.
    assert caplog.records == []


@pytest.mark.parametrize(
    "path", ["services/..%2f..%2fetc/passwd", "services/llm/%3Cscript%3E", "services/llm/chat/x", "%00"]
)
async def test_odd_addresses_are_not_found(settled, path):
    async with served(settled) as visitor:
        status, _, text = await visitor.get(path)
        assert status == 404
        assert "<script>" not in text
