"""Prometheus' query API over HTTP. Every query ends in time, reads a bounded answer, and reports an error in one line."""

from __future__ import annotations

import asyncio
import base64
import functools
import logging
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Generic, NamedTuple, Self, TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec

from breakeven.serving.promql import WHOLE_ANSWERS
from breakeven_operator.adapters.query_dialects import ApiQuestion, QueryDialects
from breakeven_operator.adapters.tenant_servers import TenantServers
from breakeven_operator.kinds import SECRETS
from breakeven_operator.ports import (
    Bucket,
    Cluster,
    ClusterError,
    Header,
    InstantSample,
    MetricsError,
    PrometheusAccess,
    Samples,
    SecretKey,
    TimedValue,
)
from breakeven_operator.printable import one_line

_LOG = logging.getLogger(__name__)
# A series takes about 200 bytes, and five hundred pods are asked about at a time: 12,500 series, 3 MiB.
# Read, a row takes ten times as much. A server that somebody names in a service gets the smaller share.
_LARGEST_MIB, _LARGEST_OF_OTHERS_MIB = 16, 4
# Answers up to this size need no turn; of larger ones so many are held at a time, the operator's own Prometheus apart.
_SMALL = 256 << 10
_LARGE_AT_A_TIME = 2
_LONGEST_ADDRESS = 7500
_ALLOWED = "breakeven.dev/prometheus-address"
# Error types of the API itself. Any other text of an error is a stranger's: it goes to the log and into no status.
_ERROR_TYPES = frozenset(
    {"timeout", "canceled", "execution", "bad_data", "internal", "unavailable", "not_found", "not_acceptable"}
)
# RecursionError: no genuine answer is nested so deep.
_UNREADABLE = (ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class _Access:
    """Secrets of one source, kept for one query only."""

    headers: tuple[Header, ...]
    secrets: tuple[str, ...]
    tls: ssl.SSLContext | bool

    def hidden_in(self, text: str) -> str:
        """The printable text on one line, without the secrets: a proxy may repeat what it was sent."""
        for secret in filter(None, self.secrets):
            text = text.replace(secret, "...")
        return one_line(text)[:200]


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    location: str
    body: bytes


# An answer about ten thousand pods has a quarter of a million rows. As dicts and lists they would make the garbage
# collector look through the whole heap. It ignores these structs (gc=False), because they refer to no container.
class _Value(msgspec.Struct, array_like=True, gc=False):
    """Unix time (s) and number; the number is a text, because JSON has no NaN."""

    time_s: float
    text: str


class _Bucket(msgspec.Struct, array_like=True, gc=False):
    """Which ends belong to the bucket, both ends, and its count."""

    ends: int
    lower: str
    upper: str
    count: str


class _Buckets(msgspec.Struct, gc=False):
    count: str
    buckets: list[_Bucket] = []


class _HistogramValue(msgspec.Struct, array_like=True, gc=False):
    time_s: float
    found: _Buckets


class _VectorRow(msgspec.Struct, gc=False):
    """A number, or a native histogram in its place."""

    metric: dict[str, str]
    value: _Value | None = None
    histogram: _HistogramValue | None = None

    def sample(self) -> InstantSample:
        """The element as the port has it.

        Raises:
            ValueError: a number that is due is missing.
        """
        if self.value is not None:
            return InstantSample(self.metric, float(self.value.text))
        if self.histogram is None:
            raise ValueError("neither a number nor a histogram")
        found = self.histogram.found
        buckets = [Bucket(float(one.lower), float(one.upper), float(one.count)) for one in found.buckets]
        return InstantSample(self.metric, float(found.count), tuple(buckets))


class _MatrixRow(msgspec.Struct, gc=False):
    metric: dict[str, str]
    values: list[_Value]


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


@dataclass(frozen=True, slots=True)
class _Kind(Generic[_Row]):
    """A kind of result: the API's word for it, its name in sentences, and its reader."""

    word: str
    name: str
    reader: msgspec.json.Decoder[_Result[_Row]]


_DOCUMENT = msgspec.json.Decoder(_Document)
_VECTOR = _Kind("vector", "instant vector", msgspec.json.Decoder(_Result[_VectorRow]))
_MATRIX = _Kind("matrix", "range vector", msgspec.json.Decoder(_Result[_MatrixRow]))


class _AnswerRoom:
    """The memory of one answer, from its first byte until its rows are samples.

    A large answer waits for its turn in the socket: unread bytes stay with the sender.

    Args:
        turns: of the large answers.
        largest_mib: of an answer.
    """

    def __init__(self, turns: asyncio.Semaphore, largest_mib: int) -> None:
        self._turns = turns
        self._large = False
        self.largest_mib = largest_mib

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._large:
            self._turns.release()

    async def hold(self, size: int) -> bool:
        """Make room for so many bytes; False: no answer may have as many."""
        if size > self.largest_mib << 20:
            return False
        if size > _SMALL and not self._large:
            await self._turns.acquire()
            self._large = True
        return True


class OwnPrometheus(NamedTuple):
    """The operator's own Prometheus.

    Attributes:
        access: how it is asked.
        bearer_file, ca_file: token and certificate authority, for it and nobody else; empty: none.
    """

    access: PrometheusAccess
    bearer_file: str = ""
    ca_file: str = ""


class PrometheusClient:
    """The `Metrics` port. One instance per process and event loop; `close` it.

    A query ends after `timeout_s`, the reading of its Secrets included, whatever the server sends meanwhile. It follows
    no redirect (credentials would go along) and reads no more than 16 MiB from the operator's own Prometheus, 4 from others.
    Two large answers of all others are held at a time. Secrets are read at every query (they rotate), live no longer than it
    and never touch a disk.

    Args:
        cluster: holds the Secrets.
        timeout_s: from the beginning of a query to the last byte of its answer.
        own: the operator's own Prometheus; None: there is none.
        allowed: servers that are asked although they are loopback or link-local, see `TenantServers`.
        now: Unix time (s).
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        timeout_s: float = 10.0,
        own: OwnPrometheus | None = None,
        allowed: Sequence[str] = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._own = own
        self._servers = TenantServers(allowed, None if own is None else own.access)
        # Keyed by whether the installation names the server.
        self._clients: dict[bool, aiohttp.ClientSession] = {}
        self._dialects = QueryDialects(now)
        self._turns = {own: asyncio.Semaphore(_LARGE_AT_A_TIME) for own in (True, False)}

    async def query(self, source: PrometheusAccess, promql: str) -> Sequence[InstantSample]:
        """See `Metrics.query`."""
        async with self._room(source) as room:
            rows = await self._rows(source, promql, _VECTOR, room)
            try:
                return [row.sample() for row in rows]
            except ValueError as error:
                raise _no(_VECTOR, source) from error

    async def query_past(self, source: PrometheusAccess, promql: str) -> Sequence[Samples]:
        """See `Metrics.query_past`."""
        async with self._room(source) as room:
            rows = await self._rows(source, promql, _MATRIX, room)
            try:
                return [
                    Samples(row.metric, tuple(TimedValue(one.time_s, float(one.text)) for one in row.values))
                    for row in rows
                ]
            except ValueError as error:
                raise _no(_MATRIX, source) from error

    def _room(self, source: PrometheusAccess) -> _AnswerRoom:
        own = self._own_of(source) is not None
        return _AnswerRoom(self._turns[own], _LARGEST_MIB if own else _LARGEST_OF_OTHERS_MIB)

    def _own_of(self, source: PrometheusAccess) -> OwnPrometheus | None:
        """The operator's own Prometheus if this is it."""
        return self._own if self._own is not None and source == self._own.access else None

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.close()

    async def _rows(
        self, source: PrometheusAccess, promql: str, kind: _Kind[_Row], room: _AnswerRoom
    ) -> list[_Row]:
        trusted = self._servers.trusts(source)
        try:
            # One limit around everything: a limit per read, or per phase, does not stop a server that sends a byte per second.
            async with asyncio.timeout(self._timeout_s):
                access = await self._access(source)
                get = functools.partial(self._get, source, access, room, trusted=trusted)

                async def status_of(question: ApiQuestion) -> int:
                    return (await get(question)).status

                answer = await get(
                    await self._dialects.question(source, promql, status_of, past=kind is _MATRIX)
                )
        except TimeoutError as error:
            raise MetricsError(f"{source.name} gave no whole answer within {self._timeout_s:g} s") from error
        return _result(source, kind, answer, access)

    async def _get(
        self,
        source: PrometheusAccess,
        access: _Access,
        room: _AnswerRoom,
        question: ApiQuestion,
        *,
        trusted: bool,
    ) -> _Reply:
        try:
            form = {**question.form, **WHOLE_ANSWERS}
            # A proxy in front of Prometheus takes addresses of 8 KiB, which the names of twenty namespaces fill. Shorter questions
            # use GET, because a proxy may allow nothing else; longer ones are posted.
            long = len(urlencode(form)) > _LONGEST_ADDRESS
            async with self._session(trusted=trusted).request(
                "POST" if long else "GET",
                f"{source.address.rstrip('/')}/api/v1/{question.path}",
                params=None if long else form,
                data=form if long else None,
                headers=access.headers,
                ssl=access.tls,
                allow_redirects=False,
            ) as response:
                location = response.headers.get("Location", "")
                return _Reply(response.status, location, await _body(source, response, room))
        except aiohttp.ClientConnectorCertificateError as error:
            refused = error.certificate_error
            why = refused.verify_message if isinstance(refused, ssl.SSLCertVerificationError) else refused
            raise MetricsError(f"{source.name} is not trusted ({why})") from error
        except aiohttp.ClientConnectorError as error:
            # The texts of all other kinds repeat addresses, or the whole query.
            reason = error.os_error
            cause = reason.strerror if isinstance(reason, (socket.gaierror, ssl.SSLError)) else None
            raise MetricsError(f"{source.name} is not reached ({cause or type(reason).__name__})") from error
        except ValueError as error:
            raise MetricsError(f"{source.name} is no address that can be asked") from error
        except (aiohttp.ClientError, OSError) as error:
            raise MetricsError(f"{source.name} broke its answer off ({type(error).__name__})") from error

    def _session(self, *, trusted: bool) -> aiohttp.ClientSession:
        if trusted not in self._clients:
            self._clients[trusted] = aiohttp.ClientSession(
                # Every query has a connection of its own: one that was opened with a certificate serves nobody else.
                # No limit over all: the connections of a server that hangs must not be those the others wait for.
                connector=aiohttp.TCPConnector(
                    limit=0, force_close=True, socket_factory=None if trusted else self._servers.socket_for
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                # Neither the machine's .netrc nor the proxies of its environment are configuration of the operator.
                trust_env=False,
            )
        return self._clients[trusted]

    async def _access(self, source: PrometheusAccess) -> _Access:
        own = self._own_of(source)
        bearer = await self._secret(source, source.bearer_secret, sent=True)
        if bearer is None and own is not None and own.bearer_file:
            bearer = _content(own.bearer_file)
        headers, secrets = list(source.headers), []
        if bearer:
            secrets.append(_header(bearer, "Authorization"))
            headers.append(Header("Authorization", f"Bearer {secrets[0]}"))
        for name, reference in source.secret_headers:
            secrets.append(_header(await self._secret(source, reference, sent=True) or b"", name))
            headers.append(Header(name, secrets[-1]))
        authority = await self._secret(source, source.ca_secret)
        if authority is None and own is not None and own.ca_file:
            authority = _content(own.ca_file)
        certificate = await self._secret(source, source.cert_secret)
        key = await self._secret(source, source.key_secret)
        try:
            return _Access(tuple(headers), tuple(secrets), _tls(authority, certificate, key))
        except (OSError, ValueError) as error:
            raise MetricsError(
                f"{source.name}: its certificate authority, or our certificate or key for it, is not usable"
            ) from error

    async def _secret(
        self, source: PrometheusAccess, reference: SecretKey | None, *, sent: bool = False
    ) -> bytes | None:
        """A key of a Secret; one whose content is sent says itself to whom."""
        if reference is None:
            return None
        name, key = reference
        try:
            secret = await self._cluster.get(SECRETS, source.namespace, name)
        except ClusterError as error:
            raise MetricsError(f"Secret {name} cannot be read ({error.status})") from error
        allowed = str((((secret or {}).get("metadata") or {}).get("annotations") or {}).get(_ALLOWED) or "")
        addresses = {address.rstrip("/") for address in re.split(r"[\s,]+", allowed)}
        if secret is not None and sent and source.address.rstrip("/") not in addresses:
            raise MetricsError(
                f"Secret {name} is not sent to {source.name}: annotate it with {_ALLOWED}={source.address}"
            )
        data = ((secret or {}).get("data") or {}).get(key)
        if data is None:
            raise MetricsError(f"there is no Secret {name} with key {key}")
        return base64.b64decode(data)


async def _body(source: PrometheusAccess, response: aiohttp.ClientResponse, room: _AnswerRoom) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        if not await room.hold(len(body) + len(chunk)):
            raise MetricsError(f"{source.name} answered with more than {room.largest_mib} MiB")
        body += chunk
    return bytes(body)


def _result(source: PrometheusAccess, kind: _Kind[_Row], answer: _Reply, access: _Access) -> list[_Row]:
    """The elements of a query's result; the API's own errors, and whatever is not of this API, raise MetricsError."""
    if HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST:
        _LOG.warning("%s redirects to %s", source.name, access.hidden_in(_origin(answer.location)))
        raise MetricsError(
            f"{source.name} redirects, which is not followed: name the address that answers (the operator's log has it)"
        )
    try:
        document = _DOCUMENT.decode(answer.body)
    except _UNREADABLE:
        document = _Document()
    if answer.status != HTTPStatus.OK or document.status == "error":
        raise MetricsError(f"{source.name} refused the query: {_refusal(source, answer, document, access)}")
    if document.is_partial:
        raise MetricsError(
            f"{source.name} answered in part: a store behind it is down, so the load is unknown"
        )
    if memoryview(document.data)[:1] != b"{":
        raise MetricsError(f"{source.name} answered with something that is not Prometheus' JSON")
    try:
        found = kind.reader.decode(document.data)
    except _UNREADABLE as error:
        raise _no(kind, source) from error
    if found.result_type != kind.word:
        raise _no(kind, source)
    return found.result


def _refusal(source: PrometheusAccess, answer: _Reply, document: _Document, access: _Access) -> str:
    """Why a query was refused, in words of ours; the server's own go to the log."""
    if document.error:
        said = access.hidden_in(f"{document.error_type}: {document.error}")
        _LOG.warning("%s refused the query: %s", source.name, said)
    code = "" if answer.status == HTTPStatus.OK else f"HTTP {answer.status}"
    word = document.error_type if document.error_type in _ERROR_TYPES else ""
    why = " ".join(filter(None, (code, word))) or "no reason that this API knows"
    if "maxQueryLen" in document.error:
        why += ": VictoriaMetrics' flag -search.maxQueryLen is below the question's length; set it to 1MB"
    if answer.status in {HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}:
        why += ": a question about one service is longer than an address may be, so POST must be allowed"
    return why


def _no(kind: _Kind[_Row], source: PrometheusAccess) -> MetricsError:
    return MetricsError(f"{source.name} answered with something that is no {kind.name}")


def _origin(location: str) -> str:
    """Scheme, host and port of a redirect's target; its path and query may repeat what was sent."""
    scheme, found, rest = location.partition("//")
    host = rest.partition("?")[0].partition("/")[0].rpartition("@")[2]
    return f"{scheme}//{host}" if found else "another path"


def _header(value: bytes, name: str) -> str:
    """A credential as a header's value; the error of a bad one names the header, never the value."""
    try:
        text = value.decode("ascii").strip()
    except UnicodeDecodeError:
        text = "\n"
    if not text.isprintable():
        raise MetricsError(f"the credential for header {name} is not plain ASCII of one line")
    return text


def _content(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise MetricsError(f"{file} cannot be read ({error.strerror})") from error


def _tls(authority: bytes | None, certificate: bytes | None, key: bytes | None) -> ssl.SSLContext | bool:
    """The TLS settings for a server: whom we trust and the certificate we show. True: the system's authorities, no certificate.

    Raises:
        OSError, ValueError: one of them is not usable.
    """
    if authority is None and not (certificate and key):
        return True
    context = ssl.create_default_context(cadata=authority.decode("ascii") if authority is not None else None)
    if certificate and key:
        # OpenSSL takes nothing but paths. This one leads to memory.
        with os.fdopen(os.memfd_create("breakeven-tls"), "wb") as pair:
            pair.write(certificate + b"\n" + key)
            pair.flush()
            # Without a password of ours OpenSSL would ask the terminal for that of an encrypted key.
            context.load_cert_chain(f"/proc/self/fd/{pair.fileno()}", password="")
    return context
