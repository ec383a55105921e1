"""The client of Prometheus' query API, for operator and command line: prometheus-api-client over a session of ours.

Every query ends in time, reads a bounded answer, follows no redirect and reports an error in one line. Requests' own limits do not
do that: its timeout is one per read, so that a server that sends a byte per second is waited for without end.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Generic, NamedTuple, TypeVar, cast
from urllib.parse import SplitResult, urlencode, urlsplit

import msgspec
import requests
from prometheus_api_client.prometheus_connect import PrometheusConnect

from breakeven.errors import BreakevenError
from breakeven.printable import one_line
from breakeven.readers.prometheus import Bucket, InstantSample, Samples, TimedValue
from breakeven.serving.promql import SAME_LABELS, WHOLE_ANSWERS, LabelNames, RangeQuestion, classic_only

LARGEST_MIB = 16
# Answers up to this size need no turn.
_SMALL = 256 << 10
_PIECE = 64 << 10
# A proxy in front of Prometheus takes addresses of 8 KiB, which the names of twenty namespaces fill. Shorter questions
# use GET, because a proxy may allow nothing else; longer ones are posted.
_LONGEST_ADDRESS = 7500
_LOOK_S = 0.05
_PROBE = "histogram_count(vector(0))"
_REFUSALS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})
_PROBED_AGAIN_S = 3600.0
# VictoriaMetrics takes younger samples for incomplete (-search.latencyOffset).
_LATE_S = 30.0
_LONGEST_SAID = 200
# Error types of the API itself. Any other error text comes from a stranger.
_ERROR_TYPES = frozenset(
    {"timeout", "canceled", "execution", "bad_data", "internal", "unavailable", "not_found", "not_acceptable"}
)
# RecursionError: no genuine answer is nested so deep.
_UNREADABLE = (ValueError, RecursionError)


class PrometheusError(BreakevenError):
    """A Prometheus gave no usable answer; the text begins with a verb, because the caller names the server.

    HTTP's status is 0 without an answer. The server's own words are one printable line without credentials; they belong into no status.
    """

    def __init__(self, problem: str, status: int = 0, said: str = "") -> None:
        super().__init__(problem)
        self.status = status
        self.said = said


# An answer about ten thousand pods has a quarter of a million rows. As dicts and lists they would make the garbage
# collector look through the whole heap. It ignores these structs (gc=False), because they refer to no container.
class _Value(msgspec.Struct, array_like=True, gc=False):
    """Unix time (s) and number; the number is a text, because JSON has no NaN."""

    time_s: float
    text: str


class _Buckets(msgspec.Struct):
    """A native histogram; of each bucket: which ends belong to it, both ends, and its count."""

    count: str
    buckets: list[tuple[int, str, str, str]] = []


class _VectorRow(msgspec.Struct, gc=False):
    """A number, or a native histogram in its place."""

    metric: dict[str, str]
    value: _Value | None = None
    histogram: tuple[float, _Buckets] | None = None

    def sample(self) -> InstantSample:
        """The element; raises ValueError if a number that is due is missing."""
        if self.value is not None:
            return InstantSample(self.metric, float(self.value.text))
        if self.histogram is None:
            raise ValueError("neither a number nor a histogram")
        _, found = self.histogram
        buckets = tuple(Bucket(*map(float, one[1:])) for one in found.buckets)
        return InstantSample(self.metric, float(found.count), buckets)


class _MatrixRow(msgspec.Struct, gc=False):
    metric: dict[str, str]
    values: list[_Value]

    def sample(self) -> Samples:
        """The element; raises ValueError if a value is no number."""
        return Samples(self.metric, tuple(TimedValue(one.time_s, float(one.text)) for one in self.values))


_Row = TypeVar("_Row", _VectorRow, _MatrixRow)


class _Result(msgspec.Struct, Generic[_Row], rename="camel"):
    result_type: str
    result: list[_Row]


class _Document(msgspec.Struct, rename="camel"):
    """The envelope that every answer of this API has around its data."""

    status: str = ""
    error_type: str = ""
    error: str = ""
    is_partial: bool = False
    data: msgspec.Raw = msgspec.Raw()


class _Kind(NamedTuple):
    """A kind of result: the API's word for it, its name in sentences, and its reader."""

    word: str
    name: str
    reader: msgspec.json.Decoder[Any]

    def refusal(self) -> PrometheusError:
        """The error of an answer that is of no such kind."""
        return PrometheusError(f"answered with something that is no {self.name}", HTTPStatus.OK)


_DOCUMENT = msgspec.json.Decoder(_Document)
_VECTOR = _Kind("vector", "instant vector", msgspec.json.Decoder(_Result[_VectorRow]))
_MATRIX = _Kind("matrix", "range vector", msgspec.json.Decoder(_Result[_MatrixRow]))


@dataclass(slots=True)
class Dialect:
    """Language of a server, which is known for an hour, because another may answer at its address later.

    VictoriaMetrics refuses whole questions that name functions of native histograms. It also means other times by a subquery than
    Prometheus, and never says so.
    """

    metricsql: bool = False
    until_s: float = float("-inf")


def plain_socket(found: tuple[Any, ...]) -> socket.socket:
    """A socket for one address that a server's name resolved to."""
    return socket.socket(*found[:3])


@dataclass(slots=True)
class Prometheus:
    """One server, and how it is asked; one thread at a time may ask. Each question raises `PrometheusError` without a usable answer.

    Attributes:
        url: without credentials.
        headers: with credentials; they live in memory alone.
        timeout_s: of each answer, from the first packet to its last byte, whatever the server sends meanwhile.
        tls: None for the system's authorities, without a certificate of the client.
        labels: what the server calls the labels that name a pod.
        largest_mib: of an answer as it is read, decompressed.
        turns: of large answers, each held from its first large piece until its rows are samples; unread bytes stay with the
            sender. None if nobody else waits.
        socket_for: makes the socket for one of the addresses of the server's name, or raises a refusal.
        dialect: what is known of its language.
        now: Unix time (s).
    """

    url: str
    headers: Mapping[str, str] = field(repr=False)
    timeout_s: float
    tls: ssl.SSLContext | None = None
    labels: LabelNames = SAME_LABELS
    largest_mib: int = LARGEST_MIB
    turns: threading.Semaphore | None = None
    socket_for: Callable[[tuple[Any, ...]], socket.socket] = plain_socket
    dialect: Dialect = field(default_factory=Dialect)
    now: Callable[[], float] = time.time
    _ended: bool = False
    _session: _Session | None = None

    def instant(self, promql: str, time_s: int | None = None) -> list[InstantSample]:
        """The elements of an instant query's result, now or as of a Unix time (s)."""
        return self._understood(_VECTOR, promql, {} if time_s is None else {"time": str(time_s)})

    def past(self, promql: str) -> list[Samples]:
        """The elements of an instant query whose result is a range vector, such as a subquery."""
        over = RangeQuestion.of_subquery(promql, self.now() - _LATE_S)
        if over is None or not self._speaks_metricsql():
            return self._understood(_MATRIX, promql, {})
        return self.over(over)

    def over(self, question: RangeQuestion) -> list[Samples]:
        """The elements of a range query's result."""
        # Without the offset VictoriaMetrics' counters stand still in the newest half minute.
        return self._understood(_MATRIX, question.promql, {"latency_offset": "1ms"}, question)

    def end(self) -> None:
        """Ends the query that is under way, in whichever thread, and all later ones."""
        self._ended = True
        if self._session is not None:
            self._session.end()

    def _understood(
        self, kind: _Kind, promql: str, more: Mapping[str, str], over: RangeQuestion | None = None
    ) -> list[Any]:
        """The answer to a question, without what is asked of native histograms if the server has no functions of theirs."""
        classic = classic_only(promql)
        if classic == promql or not (self.dialect.metricsql and time.monotonic() < self.dialect.until_s):
            try:
                return self._asked(kind, promql, more, over)
            except PrometheusError as error:
                refused = classic != promql and error.status in _REFUSALS
                if not refused or not self._speaks_metricsql():
                    raise
        return self._asked(kind, classic, more, over)

    def _speaks_metricsql(self) -> bool:
        if time.monotonic() < self.dialect.until_s:
            return self.dialect.metricsql
        status: int = HTTPStatus.OK
        try:
            self._asked(_VECTOR, _PROBE, {})
        except PrometheusError as error:
            status = error.status
            if not status:
                raise
        metricsql = status in _REFUSALS
        # The answer of a proxy, or of a server that starts, tells nothing about the language.
        if metricsql or status == HTTPStatus.OK:
            self.dialect.metricsql, self.dialect.until_s = metricsql, time.monotonic() + _PROBED_AGAIN_S
        return metricsql

    def _asked(
        self, kind: _Kind, promql: str, more: Mapping[str, str], over: RangeQuestion | None = None
    ) -> list[Any]:
        with _Session(self, kind) as session:
            self._session = session
            try:
                if self._ended:
                    raise session.late()
                asked = self.labels.asked(promql)
                rows = session.rows(asked, {**more, **WHOLE_ANSWERS}, over)
                if asked != promql:
                    for row in rows:
                        row.metric = self.labels.given(row.metric)
                return [row.sample() for row in rows]
            except ValueError as error:
                raise kind.refusal() from error
            finally:
                # No circle keeps the credentials until the garbage collector comes.
                self._session = None


class _RowsAnswer(requests.Response):
    """An answer as PrometheusConnect reads it, whose rows a fast parser has read."""

    def __init__(self, rows: list[Any]) -> None:
        super().__init__()
        self.status_code = HTTPStatus.OK
        self._rows = rows

    def json(self, **_: Any) -> Any:
        return {"data": {"result": self._rows}}


class _Session(requests.Session):
    """The session of one question. Its connection serves nobody else, because it may have been opened with a certificate."""

    def __init__(self, server: Prometheus, kind: _Kind) -> None:
        super().__init__()
        # Neither the machine's .netrc nor the proxies of its environment are configuration of ours.
        self.trust_env = False
        self.headers.update({"Accept-Encoding": "gzip", "Connection": "close", "User-Agent": "breakeven"})
        self._server = server
        self._kind = kind
        self._until_s = time.monotonic() + server.timeout_s
        self._ended = self._large = False
        self._socket: socket.socket | None = None

    def rows(self, promql: str, form: dict[str, str], over: RangeQuestion | None) -> list[Any]:
        """The rows of an answer."""
        try:
            server = PrometheusConnect(self._server.url, headers=dict(self._server.headers), session=self)
            if over is None:
                return list(server.custom_query(promql, params=form))
            first, last = (datetime.fromtimestamp(end_s, UTC) for end_s in (over.first_s, over.last_s))
            return list(server.custom_query_range(promql, first, last, f"{over.step_s}s", params=form))
        except (requests.RequestException, ValueError) as error:
            raise PrometheusError("is no address that can be asked") from error

    def request(self, method: str, url: str, **given: Any) -> requests.Response:  # type: ignore[override]
        """Sends a question, whose length chooses the method."""
        form = given.pop("params")
        if len(urlencode(form)) > _LONGEST_ADDRESS:
            return super().request("POST", url, data=form, **given)
        return super().request(method, url, params=form, **given)

    def send(self, request: requests.PreparedRequest, **_: Any) -> requests.Response:
        """The exchange of one question; no redirect is followed, because its target would be sent the credential."""
        # A limit per read, or per phase, does not stop a server that sends a byte per second. This one ends whatever is waited for.
        timer = threading.Timer(self._server.timeout_s, self.end)
        timer.daemon = True
        timer.start()
        try:
            where = urlsplit(str(request.url))
            self._connect(where)
            connection = http.client.HTTPConnection(where.netloc)
            connection.sock = self._socket
            form = cast("str | None", request.body)
            connection.request(
                str(request.method), request.path_url, form, {**request.headers, "Host": where.netloc}
            )
            with contextlib.closing(connection.getresponse()) as answer:
                return self._answer(answer, self._body(answer))
        except (OSError, http.client.HTTPException, zlib.error) as error:
            if self._ended or isinstance(error, TimeoutError):
                raise self.late() from error
            raise PrometheusError(f"broke its answer off ({type(error).__name__})") from error
        finally:
            timer.cancel()

    def late(self) -> PrometheusError:
        """The error of an answer that took too long."""
        return PrometheusError(f"gave no whole answer within {self._server.timeout_s:g} s")

    def end(self) -> None:
        """Ends the exchange; callable from any thread."""
        self._ended = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Not the method of a socket with TLS, which would take its state from under the reader.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connection, and lets the next large answer have its turn."""
        super().close()
        if self._socket is not None:
            self._socket.close()
        if self._large and self._server.turns is not None:
            self._server.turns.release()
            self._large = False

    def _connect(self, where: SplitResult) -> None:
        """Opens the connection, at the first address of the name that answers."""
        port = where.port or {"http": 80, "https": 443}[where.scheme]
        try:
            addresses = socket.getaddrinfo(where.hostname, port, type=socket.SOCK_STREAM)
            # Each address has a share of the time: the first one may lead nowhere.
            for left, found in zip(range(len(addresses), 0, -1), addresses, strict=True):
                sock = self._socket = self._server.socket_for(found)
                sock.settimeout(self._left_s() / left)
                try:
                    sock.connect(found[4])
                    break
                except OSError:
                    sock.close()
                    if left == 1:
                        raise
            sock.settimeout(self._left_s())
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if where.scheme == "https":
                context = self._server.tls or _system_trust()
                self._socket = context.wrap_socket(sock, server_hostname=where.hostname)
            # It may have been ended while there was no socket to shut down.
            self._left_s()
        except ssl.SSLCertVerificationError as error:
            raise PrometheusError(f"is not trusted ({error.verify_message})") from error
        except TimeoutError:
            raise
        except OSError as error:
            # The texts of all other kinds repeat addresses, or the whole query.
            cause = error.strerror if isinstance(error, (socket.gaierror, ssl.SSLError)) else None
            raise PrometheusError(f"is not reached ({cause or type(error).__name__})") from error

    def _left_s(self) -> float:
        if self._ended:
            raise TimeoutError
        return max(self._until_s - time.monotonic(), _LOOK_S)

    def _body(self, answer: http.client.HTTPResponse) -> bytearray:
        encoding = answer.getheader("Content-Encoding", "identity")
        if encoding not in {"identity", "gzip"}:
            raise PrometheusError("answered in an encoding that was not asked for", answer.status)
        inflating = zlib.decompressobj(zlib.MAX_WBITS | 16) if encoding == "gzip" else None
        body = bytearray()
        while piece := answer.read(_PIECE):
            while piece:
                more, piece = piece, b""
                if inflating is not None:
                    more, piece = inflating.decompress(more, _PIECE), inflating.unconsumed_tail
                    if inflating.unused_data:
                        raise zlib.error("bytes behind the end")
                self._hold(len(body) + len(more))
                body += more
        # Where the end of the connection is the end of the body, no read fails at the deadline.
        self._left_s()
        if answer.length or (inflating is not None and not inflating.eof):
            raise ConnectionError
        return body

    def _hold(self, size: int) -> None:
        if size > self._server.largest_mib << 20:
            raise PrometheusError(f"answered with more than {self._server.largest_mib} MiB")
        if size > _SMALL and not self._large and self._server.turns is not None:
            while not self._server.turns.acquire(timeout=_LOOK_S):
                self._left_s()
            self._large = True

    def _answer(self, answer: http.client.HTTPResponse, body: bytearray) -> _RowsAnswer:
        """The rows of an answer; the API's own errors, and whatever is not of this API, are errors."""
        status = answer.status
        if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
            where = _origin(answer.getheader("Location", ""))
            raise PrometheusError(
                "redirects, which is not followed: name the address that answers",
                status,
                f"redirects to {self._hidden(where)}",
            )
        try:
            document = _DOCUMENT.decode(body)
        except _UNREADABLE:
            document = _Document()
        if status != HTTPStatus.OK or document.status == "error":
            said = self._hidden(f"{document.error_type} {document.error}") if document.error else ""
            raise PrometheusError(f"refused the query: {_refusal(status, document)}", status, said)
        if document.is_partial:
            raise PrometheusError(
                "answered in part: a store behind it is down, so the load is unknown", status
            )
        if bytes(memoryview(document.data)[:1]) != b"{":
            raise PrometheusError("answered with something that is not Prometheus' JSON", status)
        try:
            found = self._kind.reader.decode(document.data)
        except _UNREADABLE as error:
            raise self._kind.refusal() from error
        if found.result_type != self._kind.word:
            raise self._kind.refusal()
        return _RowsAnswer(found.result)

    def _hidden(self, text: str) -> str:
        """The text on one printable line, without the credentials: a proxy may repeat what it was sent."""
        for word in {word for value in self._server.headers.values() for word in value.split()}:
            text = text.replace(word, "...")
        return one_line(text)[:_LONGEST_SAID]


def tls_context(
    authority: bytes | None, certificate: bytes | None, key: bytes | None
) -> ssl.SSLContext | None:
    """The TLS settings for a server: whom we trust and the certificate we show, in PEM. None for the system's authorities alone.

    Raises:
        OSError, ValueError: one of them is not usable.
    """
    if authority is None and not (certificate and key):
        return None
    context = ssl.create_default_context(cadata=authority.decode("ascii") if authority is not None else None)
    if certificate and key:
        # OpenSSL takes nothing but paths. This one leads to memory.
        with os.fdopen(os.memfd_create("breakeven-tls"), "wb") as pair:
            pair.write(certificate + b"\n" + key)
            pair.flush()
            # Unless a password is passed, OpenSSL asks the terminal for the password of an encrypted key.
            context.load_cert_chain(f"/proc/self/fd/{pair.fileno()}", password="")
    return context


@functools.cache
def _system_trust() -> ssl.SSLContext:
    return ssl.create_default_context()


def _refusal(status: int, document: _Document) -> str:
    """Why a query was refused, in words of ours."""
    code = "" if status == HTTPStatus.OK else f"HTTP {status}"
    word = document.error_type if document.error_type in _ERROR_TYPES else ""
    why = " ".join(filter(None, (code, word))) or "no reason that this API knows"
    if "maxQueryLen" in document.error:
        why += ": VictoriaMetrics' flag -search.maxQueryLen is below the question's length; set it to 1MB"
    if status in {HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}:
        why += ": a question about one service is longer than an address may be, so POST must be allowed"
    return why


def _origin(location: str) -> str:
    """Scheme, host and port of a redirect's target; its path and query may repeat what was sent."""
    scheme, found, rest = location.partition("//")
    host = rest.partition("?")[0].partition("/")[0].rpartition("@")[2]
    return f"{scheme}//{host}" if found else "another path"
