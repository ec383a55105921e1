"""The board's socket: GET and HEAD, bounded in size, time and connections; pages are made in a thread, one at a time.

A page never stops the loop that decides: of a core it takes a quarter at most, and what was made is kept for two seconds.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

from aiohttp import web

from breakeven.phrases import bounded_text, column, spoken
from breakeven.printable import one_line, printable
from breakeven.profile import Profile
from breakeven.reporting.lines import ArmCurve, arm_curves
from breakeven.reporting.theme import DARK, LIGHT
from breakeven_operator.board import curve_drawing
from breakeven_operator.board.asked_receipts import AskedReceipts
from breakeven_operator.board.board_access import Access, AccessError, VisibleNamespaces
from breakeven_operator.board.board_list import (
    LONGEST_FILTER,
    ListFilter,
    ServiceList,
    list_json,
    service_list,
)
from breakeven_operator.board.board_service import (
    ServicePage,
    laws_of,
    service_json,
    service_page,
    with_receipts,
)
from breakeven_operator.board.load_trail import LoadTrail
from breakeven_operator.board.publication import Publication
from breakeven_operator.board.what_if import FIELDS
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.plugin.service_view import short_age
from breakeven_operator.ports import Clock

if TYPE_CHECKING:
    import jinja2
    import markupsafe

_LOG = logging.getLogger(__name__)
# aiohttp logs a traceback for each request that is none: a stranger could fill the operator's log.
_UNSAID = logging.getLogger(f"{__name__}.requests")
_UNSAID.setLevel(logging.CRITICAL)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "interest-cohort=()",
    "Cache-Control": "no-store",
    "Server": "breakeven",
}
STYLE = "style.css"
RENEWALS_S = (0, 15, 60)
"""Seconds between two renewals that a page offers; 0: none. A reader chooses, because a page that moves by itself disturbs."""

_LIST_FIELDS = ("namespace", "text", "show", "page")
_ONE = "/services/{namespace}/{name}"
_MOST_CONNECTIONS = 64
_LONGEST_CONNECTION_S = 60.0
_LONGEST_REQUEST_S = 20.0
_MOST_WAITING = 16
_KEPT_S = 2.0
# A page of a hundred services has 150 kB.
_MOST_KEPT = 16
_MOST_CURVES = 32
# The thread rests for three times as long as it worked.
_REST = 3.0
_LONGEST_REST_S = 2.0
# A word that is followed by a space: no arm, name or address.
_BEGINNING = re.compile(r"(^|[.!?] )([a-z])(?=[a-z']* )")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class BoardSettings:
    """Settings of the board.

    `path_prefix` begins every address, such as `/breakeven`. Without a price no money is shown. The page says of a last cycle
    that is older than `stale_after_s` that it is old. Pages link to `dashboard_url`, and to runbooks under `runbook_url_prefix`.
    """

    path_prefix: str = ""
    gpu_price_per_hour: float | None = None
    stale_after_s: float = 225.0
    dashboard_url: str = ""
    runbook_url_prefix: str = ""


@dataclass(frozen=True, slots=True)
class Frontispiece:
    """The parts that all pages share.

    Attributes:
        query: the page's own fields, without `renew`.
        renew_s: time between two renewals; 0: none.
        published: when the last cycle of this operator ended.
        stale: a sentence if that is too long ago; empty otherwise.
        json: address of the same facts as JSON.
    """

    settings: BoardSettings
    query: Mapping[str, str]
    renew_s: int
    published: datetime
    stale: str
    json: str
    now: datetime

    def dashboard(self, name: NamespacedName | None = None) -> str:
        """Address of the Grafana dashboard, of one service if it is named; empty without one."""
        url = self.settings.dashboard_url
        if not url or name is None:
            return url
        chosen = urlencode({"var-namespace": name.namespace, "var-service": name.name})
        return f"{url}{'&' if '?' in url else '?'}{chosen}"


class _Seen(NamedTuple):
    """The publication of a turn, and which namespaces of it a reader may see."""

    published: Publication
    turn: int
    sight: VisibleNamespaces


class Board:
    """The newest publication, and the pages made of it."""

    def __init__(self, clock: Clock, settings: BoardSettings, receipts: AskedReceipts | None = None) -> None:
        self._clock = clock
        self._receipts = receipts
        self._settings = settings
        self._published: Publication | None = None
        self._turn = 0
        self._trail = LoadTrail()
        self._curves: OrderedDict[int, tuple[Profile, Sequence[ArmCurve]]] = OrderedDict()
        self._made: OrderedDict[object, tuple[float, bytes]] = OrderedDict()
        self._one = asyncio.Lock()
        self._waiting = 0

    def publish(self, published: Publication) -> None:
        """Replace what the pages say; called at the end of each cycle."""
        self._published, self._turn = published, self._turn + 1
        self._trail.add(published.services.values())

    def application(self, access: Access) -> web.Application:
        """The pages under one rule of access."""
        prefix = self._settings.path_prefix

        async def style(_: web.Request) -> web.Response:
            return web.Response(text=style_css(), content_type="text/css", charset="utf-8")

        # Nobody sends anything: a body is refused before it is read.
        app = web.Application(middlewares=[self._guarded], client_max_size=1)
        app.add_routes(
            [
                *(
                    web.get(
                        f"{prefix}{path}", partial(page, access=access, as_json=path.startswith("/json/"))
                    )
                    for page, paths in (
                        (self._list, ("/", "/json/services")),
                        (self._service, (_ONE, f"/json{_ONE}")),
                    )
                    for path in paths
                ),
                web.get(f"{prefix}/{STYLE}", style),
            ]
        )
        return app

    @web.middleware
    async def _guarded(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Every answer has the headers, in time; a refusal is a page of its own."""
        try:
            async with asyncio.timeout(_LONGEST_REQUEST_S):
                response = await handler(request)
        except web.HTTPException as refused:
            response = self._said(refused.status, refused.reason)
            response.headers.update({"Allow": refused.headers["Allow"]} if "Allow" in refused.headers else {})
        except AccessError as refused:
            response = self._said(refused.status, str(refused))
            if refused.status == HTTPStatus.UNAUTHORIZED:
                response.headers["WWW-Authenticate"] = 'Bearer realm="breakeven"'
        except TimeoutError:
            response = self._said(HTTPStatus.SERVICE_UNAVAILABLE, "this page took too long: try again")
        except Exception:  # noqa: BLE001 - reported in full, and the next page is another one
            _LOG.exception("a page of the board failed")
            response = self._said(
                HTTPStatus.INTERNAL_SERVER_ERROR, "a defect of the board: the log of the operator has it"
            )
        response.headers.update(HEADERS)
        return response

    def _said(self, status: int, words: str) -> web.Response:
        title = f"{status} {HTTPStatus(status).phrase}"
        text = message_html(title, f"{words[:1].upper()}{words[1:]}.", self._settings.path_prefix)
        return web.Response(text=text, status=status, content_type="text/html", charset="utf-8")

    async def _list(self, request: web.Request, access: Access, *, as_json: bool) -> web.Response:
        given = _given(request, _LIST_FIELDS)
        asked = ListFilter.of(given)
        seen = await self._may_see(request, access, asked.namespace)
        published, sight = seen.published, seen.sight
        names = [name for name in published.names if sight.includes(name.namespace)]

        def make(now: datetime) -> str:
            page = service_list(published, names, asked, now, sight.left_out)
            front = self._front(request, given, published, now, "/json/services")
            return list_json(published, page, now) if as_json else list_html(page, front)

        return await self._page(request, seen, make, as_json=as_json)

    async def _service(self, request: web.Request, access: Access, *, as_json: bool) -> web.Response:
        name = NamespacedName(request.match_info["namespace"], request.match_info["name"])
        given = {key: text for key, text in _given(request, FIELDS).items() if text}
        seen = await self._may_see(request, access, name.namespace)
        published, sight = seen.published, seen.sight
        if not sight.includes(name.namespace) or name not in published.names:
            # The same words whether it does not exist or may not be seen.
            raise web.HTTPNotFound(reason="there is no such service, or it may not be seen")

        kept = await self._receipts.of(name) if self._receipts is not None else None

        def make(now: datetime) -> str:
            service = published.services.get(name)
            trail = self._trail.of(service.metadata.uid) if service is not None else ()
            laws = laws_of(published, name) if service is not None else None
            curves = self._curves_of(laws[1]) if laws is not None else ()
            page = service_page(published, name, trail, curves, given, now)
            if kept is not None:
                page = with_receipts(page, kept.receipts, kept.problem, self._settings.gpu_price_per_hour)
            front = self._front(
                request, given, published, now, f"/json/services/{quote(name.namespace)}/{quote(name.name)}"
            )
            return service_json(published, page, trail, now) if as_json else service_html(page, front)

        return await self._page(request, seen, make, as_json=as_json)

    async def _may_see(self, request: web.Request, access: Access, namespace: str) -> _Seen:
        """The publication, and which namespaces of it a request may see."""
        published, turn = self._published, self._turn
        names = sorted({name.namespace for name in published.names}) if published is not None else []
        asked = [namespace] if namespace else names
        sight = await access.sight(request.headers.get("Authorization", ""), request.host, asked)
        if published is None:
            raise AccessError(
                503,
                "no cycle has ended here yet: the operator has just started, or another replica leads "
                "(the Lease names it)",
            )
        return _Seen(published, turn, sight)

    def _front(
        self, request: web.Request, given: Mapping[str, str], published: Publication, now: datetime, json: str
    ) -> Frontispiece:
        renew = request.query.get("renew", "")
        old_s = (now - published.time).total_seconds()
        stale = (
            "This operator has decided nothing since then: another replica leads, or it cannot read the cluster. All below is as old."
            if old_s > self._settings.stale_after_s
            else ""
        )
        return Frontispiece(
            settings=self._settings,
            query=given,
            renew_s=next((one for one in RENEWALS_S if renew == str(one)), 0),
            published=published.time,
            stale=stale,
            json=f"{self._settings.path_prefix}{json}",
            now=now,
        )

    def _curves_of(self, profile: Profile) -> Sequence[ArmCurve]:
        """Curves of a profile; they never change. Only the one thread of pages is here."""
        key = id(profile)
        if key not in self._curves:
            self._curves[key] = (profile, arm_curves(profile))
        self._curves.move_to_end(key)
        while len(self._curves) > _MOST_CURVES:
            self._curves.popitem(last=False)
        return self._curves[key][1]

    async def _page(
        self, request: web.Request, seen: _Seen, make: Callable[[datetime], str], *, as_json: bool
    ) -> web.Response:
        text = await self._kept((seen.turn, seen.sight, request.path_qs), make)
        kind = "application/json" if as_json else "text/html"
        return web.Response(body=text, content_type=kind, charset="utf-8")

    async def _kept(self, key: object, make: Callable[[datetime], str]) -> bytes:
        """A page that was made just now, else a new one when it is its turn.

        Raises:
            AccessError: too many wait.
        """
        if (text := self._fresh(key)) is not None:
            return text
        if self._waiting >= _MOST_WAITING:
            raise AccessError(503, "too many pages are asked for at the same time: try again in a second")
        self._waiting += 1
        try:
            await self._one.acquire()
        finally:
            self._waiting -= 1
        if (text := self._fresh(key)) is not None:
            self._one.release()
            return text
        began_s = time.monotonic()
        work = asyncio.ensure_future(asyncio.to_thread(make, self._clock.now()))
        # A reader who goes away does not end the thread: until it has ended and rested, nobody has the next turn.
        work.add_done_callback(lambda _: self._rest(time.monotonic() - began_s))
        text = (await asyncio.shield(work)).encode()
        self._made[key] = (time.monotonic(), text)
        while len(self._made) > _MOST_KEPT:
            self._made.popitem(last=False)
        return text

    def _rest(self, spent_s: float) -> None:
        pause_s = min(_REST * spent_s, _LONGEST_REST_S)
        asyncio.get_running_loop().call_later(pause_s, self._one.release)

    def _fresh(self, key: object) -> bytes | None:
        found = self._made.get(key)
        return found[1] if found is not None and time.monotonic() - found[0] <= _KEPT_S else None


def _given(request: web.Request, fields: Sequence[str] | Mapping[str, object]) -> dict[str, str]:
    """Fields that are known, each short; the first of equal ones."""
    return {name: request.query[name][:LONGEST_FILTER] for name in fields if name in request.query}


class BoardSocket:
    """One socket of the board; pages are at `address`. Close it."""

    def __init__(self, runner: web.AppRunner, server: asyncio.Server, prefix: str) -> None:
        self._runner = runner
        self._server = server
        host, port = server.sockets[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{port}{prefix}/"

    async def close(self) -> None:
        """Stop listening; what is on its way ends."""
        self._server.close()
        await self._runner.cleanup()


async def listen(app: web.Application, host: str, port: int, prefix: str = "") -> BoardSocket:
    """Serve an application at an address to bind to; port 0 takes a free one.

    Raises:
        OSError: the address cannot be had.
    """
    runner = web.AppRunner(
        app, access_log=None, logger=_UNSAID, keepalive_timeout=15.0, lingering_time=1.0, max_headers=64
    )
    await runner.setup()
    try:
        server = await asyncio.get_running_loop().create_server(
            _Door(runner), str(ipaddress.ip_address(host)), port
        )
    except (OSError, ValueError):
        await runner.cleanup()
        raise
    return BoardSocket(runner, server, prefix)


class _Door:
    """Makes the protocol of each connection: so many at a time, each for so long, whatever is sent on it how slowly."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner

    def __call__(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        if server is None:
            raise RuntimeError("the runner is not set up")
        full = len(server.connections) >= _MOST_CONNECTIONS
        handler = server()
        # One too many is closed as soon as it is made, before anything is read of it.
        asyncio.get_running_loop().call_later(0.0 if full else _LONGEST_CONNECTION_S, handler.force_close)
        return handler


def list_html(page: ServiceList, front: Frontispiece) -> str:
    """The page of all services."""
    return _render("board.html.j2", front, list=page)


def service_html(page: ServicePage, front: Frontispiece) -> str:
    """The page of one service."""
    return _render(
        "service.html.j2", front, page=page, fields=FIELDS, width=curve_drawing.WIDTH, height=curve_drawing.HEIGHT,
        day_height=curve_drawing.DAY_HEIGHT,
    )  # fmt: skip


def message_html(title: str, text: str, prefix: str) -> str:
    """A page that says why there is no other one."""
    return _environment().get_template("message.html.j2").render(
        title=title, text=text, prefix=prefix, style=STYLE
    )  # fmt: skip


@cache
def style_css() -> str:
    """The style of the report's pages and the board's own, with the palettes of the pictures."""
    return _environment().get_template("board.css.j2").render(
        light=[LIGHT.ink, *LIGHT.palette], dark=[DARK.ink, *DARK.palette], styles=curve_drawing.STYLES, height=curve_drawing.HEIGHT,
        day_height=curve_drawing.DAY_HEIGHT,
    )  # fmt: skip


def _render(template: str, front: Frontispiece, **views: Any) -> str:
    return _environment().get_template(template).render(
        front=front, style=STYLE, renewals=RENEWALS_S, short_age=short_age, **views
    )  # fmt: skip


@cache
def _environment() -> jinja2.Environment:
    import jinja2  # noqa: PLC0415 - two megabytes that an operator without readers does without

    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader("breakeven_operator.board"), jinja2.PackageLoader("breakeven.reporting")]
        ),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        # A reader must see the name itself: no character in it turns the direction of the text around it.
        finalize=_shown,
    )
    environment.filters |= {
        "figure": column,
        "bounded": bounded_text,
        "spoken": spoken,
        "prose": _prose,
        "lines": _lines,
    }
    return environment


def _prose(text: str) -> markupsafe.Markup:
    """Sentences that a terminal shows too: commands as code in place of backticks, and each sentence with a capital letter."""
    import markupsafe  # noqa: PLC0415 - comes with jinja2

    capital = _BEGINNING.sub(lambda found: found[1] + found[2].upper(), text)
    parts = [markupsafe.escape(_shown(one)) for one in capital.split("`")]
    code = markupsafe.Markup("<code>{}</code>")
    return markupsafe.Markup("").join(
        code.format(one) if place % 2 else one for place, one in enumerate(parts)
    )


def _lines(text: str) -> markupsafe.Markup:
    """A text of several lines as it stands, whose other characters are printable."""
    import markupsafe  # noqa: PLC0415 - comes with jinja2

    return markupsafe.Markup("\n").join(map(printable, text.splitlines()))


def _shown(value: object) -> object:
    return one_line(value) if type(value) is str and not value.isprintable() else value
