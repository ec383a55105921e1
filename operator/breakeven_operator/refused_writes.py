"""Writes that the API server refuses: who is refused what, in the server's words, and when the next attempt is due.

An admission policy, a webhook or RBAC answers the same until somebody changes it. A cycle that asks again every two seconds
loads the API server, and a webhook that times out would hold up every other service each time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from breakeven_operator.actions import (
    Action,
    Apply,
    Create,
    Delete,
    EmitEvent,
    Fit,
    WriteAnnotation,
    WriteProposal,
    WriteStatus,
)
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import EVENTS, Resource
from breakeven_operator.ports import ClusterError, UnkeptError

_LONGEST_SAYING = 500
_MOST_DOUBLINGS = 16
# A write that nobody has asked for again by then is not wanted any more.
_FORGOTTEN_S = 600.0
# A write that does not stay is made once and repeated twice, as one that somebody else reverts.
_MOST_UNKEPT = 3
_FOR_EVER = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class RefusedWrite:
    """A write that failed and is to be tried again.

    Attributes:
        subject: uid of the service or run that it was for.
        refused: whether the server answered no; else it did not answer, or failed.
        words: words of the server, printable and bounded.
        attempts: in a row; `since` is the time of the first one.
        until: no attempt before this.
        given_up: no attempt before a person or another writer changes something: the server took it, and did not keep it.
    """

    subject: str
    action: Action
    refused: bool
    words: str
    attempts: int
    since: datetime
    until: datetime
    given_up: bool = False

    @property
    def reason(self) -> ClusterReason:
        """The reason word."""
        if self.given_up:
            return ClusterReason.REVERTED_TWICE
        return ClusterReason.WRITE_REFUSED if self.refused else ClusterReason.API_ERROR

    @property
    def sentence(self) -> str:
        """Who was asked for what, the answer, and when it is asked again."""
        times = f"{self.attempts} times in a row" if self.attempts > 1 else "once"
        verb = "refuses to" if self.refused else "did not"
        then = f"next attempt at {self.until:%Y-%m-%d %H:%M:%S} UTC"
        if self.given_up:
            then = "it is tried again once the target changes, or the annotation breakeven.dev/resume gets a new value"
        return f"the API server {verb} {asked(self.action)} ({times}; {then}): {self.words}"


class _Wait(NamedTuple):
    """How long a failed write waits: after the first failure and at most, s."""

    first_s: float
    longest_s: float


_REFUSED = _Wait(15.0, 300.0)
# A hook that answers later than a request may take is one that does not answer at all.
_UNANSWERED = _Wait(2.0, 60.0)
_FAILED = _Wait(2.0, 10.0)


class RefusedWrites:
    """The writes that failed and have not succeeded since."""

    def __init__(self) -> None:
        self._failed: dict[Hashable, RefusedWrite] = {}

    def failed(self, subject: str, action: Action, error: ClusterError, now: datetime) -> RefusedWrite:
        """Remember one more failure; each in a row doubles the wait."""
        key = _place(action)
        before = self._failed.get(key)
        attempts = before.attempts + 1 if before is not None else 1
        wait = _REFUSED if error.refused else _UNANSWERED if error.status == 0 else _FAILED
        wait_s = min(wait.first_s * 2.0 ** min(attempts - 1, _MOST_DOUBLINGS), wait.longest_s)
        given_up = isinstance(error, UnkeptError) and attempts >= _MOST_UNKEPT
        found = RefusedWrite(
            subject,
            action,
            error.refused,
            error.said[:_LONGEST_SAYING],
            attempts,
            before.since if before is not None else now,
            now + (_FOR_EVER if given_up else timedelta(seconds=wait_s)),
            given_up,
        )
        self._failed[key] = found
        return found

    def succeeded(self, action: Action) -> None:
        """The server took it: nothing is held against the next one."""
        self._failed.pop(_place(action), None)

    def waiting(self, action: Action, now: datetime) -> RefusedWrite | None:
        """The failure that keeps a write waiting; None if it may be tried. Another content of it is tried at once."""
        found = self._failed.get(_place(action))
        if found is None or now >= found.until or _content(found.action) != _content(action):
            return None
        return found

    def about(self, subject: str, now: datetime) -> tuple[RefusedWrite, ...]:
        """The failures that a service or run has now, except of Events, which nothing depends upon."""
        forgotten = timedelta(seconds=_FORGOTTEN_S)
        self._failed = {key: one for key, one in self._failed.items() if now < one.until + forgotten}
        return tuple(
            one
            for one in self._failed.values()
            if one.subject == subject and not isinstance(one.action, EmitEvent)
        )

    def hurry(self, subject: str, now: datetime) -> None:
        """Let every write for a service or run be tried at once: a person changed it."""
        for key, one in self._failed.items():
            if one.subject == subject:
                self._failed[key] = replace(one, until=min(one.until, now))


def of_annotation(
    failures: Iterable[RefusedWrite], now: datetime, write: WriteAnnotation | None = None
) -> RefusedWrite | None:
    """The refusal that keeps the target's annotation from being written now; None if it may be tried.

    `write`: another value, or into another generation of the target, may be tried. None for any.
    """
    for one in failures:
        waits = isinstance(one.action, WriteAnnotation) and one.refused and now < one.until
        if waits and (write is None or _content(one.action) == _content(write)):
            return one
    return None


def of_creation(failures: Iterable[RefusedWrite], resource: Resource, now: datetime) -> RefusedWrite | None:
    """The refusal that keeps objects of a kind from being created now; None if it may be tried."""
    found = (one for one in failures if isinstance(one.action, Create) and one.action.resource == resource)
    return next((one for one in found if one.refused and now < one.until), None)


def asked(action: Action) -> str:
    """The write as the end of `refuses to`."""
    match action:
        case WriteAnnotation(ref) | WriteProposal(ref):
            return f"patch {ref}"
        case WriteStatus(ref):
            return f"patch the status of {ref}"
        case Create(resource, body) | Apply(resource, body):
            return f"{type(action).__name__.lower()} {named(resource, body)}"
        case EmitEvent(ref):
            return f"record an Event on {ref}"
        case Delete(ref) | Fit(ref):
            return f"{type(action).__name__.lower()} {ref}"


def named(resource: Resource, body: Mapping[str, Any]) -> str:
    """Kind, namespace and name of an object that is to be made."""
    meta = body["metadata"]
    return f"{resource.kind}/{meta.get('namespace', '')}/{meta.get('name', '')}"


def _place(action: Action) -> Hashable:
    """The place of a write; names of Events are generated, so that one refused Event stands for its namespace."""
    match action:
        case EmitEvent(ref):
            return EVENTS.plural, ref.namespace
        case WriteAnnotation(target) | WriteProposal(target):
            return type(action).__name__, target
        case WriteStatus(ref, manager=manager):
            return "status", ref, manager
        case Create(resource, body) | Apply(resource, body):
            return type(action).__name__, named(resource, body)
        case Delete(ref):
            return "delete", ref
        case Fit(run):
            return "fit", run


def _content(action: Action) -> Hashable:
    """The part of a write that may change the server's answer; a status differs in each cycle."""
    match action:
        case WriteAnnotation(value=value, generation=generation):
            return value, generation
        case WriteProposal(text=text):
            return text
        case Apply(body=body):
            return repr(body["metadata"].get("annotations"))
        case _:
            return None
