"""Who may see which namespaces: readers whom the API server lets get their SpeculativeServices.

A token is reviewed by the API server, and so is each namespace; both answers are kept for seconds. What this costs the API
server is bounded, whoever asks how often.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from breakeven_operator.kinds import SERVICES, SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Resource
from breakeven_operator.ports import Cluster, ClusterError

MOST_NAMESPACES = 100
"""Namespaces that one page asks about; a reader with rights in the whole cluster needs one question."""

LONGEST_TOKEN = 8000
_KEPT_S = 20.0
_MOST_KEPT = 4096
_ABREAST = 8
_MOST_A_SECOND = 40
_T = TypeVar("_T")


class AccessError(Exception):
    """No page for this reader; `status` is of HTTP."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


@dataclass(frozen=True, slots=True)
class VisibleNamespaces:
    """The namespaces that a reader may see; None for all of the cluster.

    `left_out` is a sentence if not all could be asked about; empty otherwise.
    """

    namespaces: frozenset[str] | None
    left_out: str = ""

    def includes(self, namespace: str) -> bool:
        """Whether services of a namespace are shown."""
        return self.namespaces is None or namespace in self.namespaces


class Access(Protocol):
    """The rule of one listener."""

    async def sight(self, authorization: str, host: str, namespaces: Sequence[str]) -> VisibleNamespaces:
        """The namespaces that a request may see, of those with services; by its headers Authorization and Host.

        Raises:
            AccessError: none at all.
        """


class LoopbackAccess:
    """Everything, to readers who reach the loopback: the pod itself, and users who may forward a port to it.

    The Host header must be of the loopback too, or a page of elsewhere, whose name was rebound to 127.0.0.1, could read ours.
    """

    async def sight(self, authorization: str, host: str, namespaces: Sequence[str]) -> VisibleNamespaces:
        """See `Access.sight`."""
        del authorization, namespaces
        name = host.removeprefix("[").partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if name.lower() not in {"localhost", "::1"} and not _is_loopback(name):
            raise AccessError(421, "this page answers to localhost and 127.0.0.1 alone")
        return VisibleNamespaces(None)


def _is_loopback(name: str) -> bool:
    parts = name.split(".")
    return len(parts) == 4 and parts[0] == "127" and all(one.isascii() and one.isdigit() for one in parts)


@dataclass(frozen=True, slots=True)
class _ReviewedUser:
    user: str
    uid: str
    groups: tuple[str, ...]
    # A part of who he is: on some platforms it holds the scopes of the token.
    extra: tuple[tuple[str, tuple[str, ...]], ...]


class ReviewedAccess:
    """Namespaces by TokenReview and SubjectAccessReview of the cluster."""

    def __init__(self, cluster: Cluster, monotonic: Callable[[], float]) -> None:
        self._cluster = cluster
        self._monotonic = monotonic
        self._readers: _Kept[_ReviewedUser | None] = _Kept(monotonic)
        self._allowed: _Kept[bool] = _Kept(monotonic)
        self._gate = asyncio.Semaphore(_ABREAST)
        self._second = (0, 0)

    async def sight(self, authorization: str, host: str, namespaces: Sequence[str]) -> VisibleNamespaces:
        """See `Access.sight`."""
        del host
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > LONGEST_TOKEN:
            raise AccessError(401, "a bearer token of the cluster is needed")
        try:
            reader = await self._reader(token)
            if reader is None:
                raise AccessError(401, "the API server does not know this token")
            if await self._may_get(reader, ""):
                return VisibleNamespaces(None)
            return await self._some(reader, namespaces)
        except ClusterError as error:
            raise AccessError(503, f"the API server does not say who may see what: {error}") from error

    async def _some(self, reader: _ReviewedUser, namespaces: Sequence[str]) -> VisibleNamespaces:
        asked = namespaces[:MOST_NAMESPACES]
        allowed = await asyncio.gather(*(self._may_get(reader, name) for name in asked))
        seen = frozenset(name for name, may in zip(asked, allowed, strict=True) if may)
        left_out = ""
        if len(namespaces) > len(asked):
            left_out = (
                f"your rights in {len(namespaces) - len(asked)} more namespaces were not looked up: "
                "ask for one of them by its name"
            )
        return VisibleNamespaces(seen, left_out)

    async def _reader(self, token: str) -> _ReviewedUser | None:
        # The token itself is kept nowhere.
        key = hashlib.sha256(token.encode()).digest()
        known = self._readers.get(key)
        if known is not None:
            return known[0]
        answer = await self._review(TOKEN_REVIEWS, {"token": token})
        return self._readers.put(key, _reader_of(answer))

    async def _may_get(self, reader: _ReviewedUser, namespace: str) -> bool:
        key = (reader, namespace)
        known = self._allowed.get(key)
        if known is not None:
            return known[0]
        asked = {"group": SERVICES.group, "resource": SERVICES.plural, "verb": "get"}
        answer = await self._review(
            SUBJECT_ACCESS_REVIEWS,
            {
                "user": reader.user,
                "uid": reader.uid,
                "groups": [*reader.groups],
                "extra": {name: [*values] for name, values in reader.extra},
                "resourceAttributes": asked | ({"namespace": namespace} if namespace else {}),
            },
        )
        return self._allowed.put(key, answer.get("allowed") is True)

    async def _review(self, resource: Resource, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        second = int(self._monotonic())
        asked = self._second[1] + 1 if self._second[0] == second else 1
        self._second = (second, asked)
        # A page of a reader with rights in some namespaces asks for up to MOST_NAMESPACES + 2.
        if asked > _MOST_A_SECOND + MOST_NAMESPACES:
            raise AccessError(429, "too many readers ask at the same time: try again in a second")
        async with self._gate:
            found = await self._cluster.create(
                resource,
                {
                    "apiVersion": resource.api_version,
                    "kind": resource.kind,
                    "metadata": {},
                    "spec": spec,
                },
            )
        status = found.get("status")
        return status if isinstance(status, Mapping) else {}


def _reader_of(answer: Mapping[str, Any]) -> _ReviewedUser | None:
    """The user of a TokenReview; None if the token is not authentic."""
    user = answer.get("user")
    if answer.get("authenticated") is not True or not isinstance(user, Mapping) or not user.get("username"):
        return None
    return _ReviewedUser(
        str(user["username"]),
        str(user.get("uid") or ""),
        tuple(map(str, user.get("groups") or ())),
        tuple(
            (str(name), tuple(map(str, values or ())))
            for name, values in sorted((user.get("extra") or {}).items())
        ),
    )


class _Kept(Generic[_T]):
    """Answers for some seconds; the oldest go if there are too many."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._answers: dict[object, tuple[float, _T]] = {}

    def get(self, key: object) -> tuple[_T] | None:
        """The answer in a tuple; None if there is none, or it is too old."""
        found = self._answers.get(key)
        if found is None or self._monotonic() - found[0] > _KEPT_S:
            return None
        return (found[1],)

    def put(self, key: object, answer: _T) -> _T:
        self._answers.pop(key, None)
        self._answers[key] = (self._monotonic(), answer)
        while len(self._answers) > _MOST_KEPT:
            del self._answers[next(iter(self._answers))]
        return answer
