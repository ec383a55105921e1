"""Interfaces to the outside, as protocols; `adapters/` holds the real ones, `tests/fakes` the others."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeAlias

from breakeven.printable import one_line
from breakeven.readers.prometheus import InstantSample, Samples
from breakeven.serving.promql import SAME_LABELS, LabelNames
from breakeven_operator.actions import FitOutcome
from breakeven_operator.kinds import Ref, Resource

Manifest = Mapping[str, Any]
"""One Kubernetes object as JSON."""

_LONGEST_TEXT = 4096
# Not 401 (a token that has expired), 404 and 410 (it is gone), 408 and 429 (later), 409 (somebody was first). 412 is of UnkeptError.
_REFUSALS = frozenset({400, 403, 405, 406, 412, 413, 415, 422})
_ADMISSION = re.compile(
    r"denied (?:the )?request|failed calling (?:admission )?webhook|failed to call webhook"
)


class ClusterError(Exception):
    """The API server did not do what was asked; the text is one line fit for a status.

    `status` is of HTTP, 0 if there was no answer; `said` is the server's own sentence, the whole text if there is none.
    """

    def __init__(self, message: str, status: int = 0, said: str = "") -> None:
        super().__init__(one_line(message[:_LONGEST_TEXT]))
        self.status = status
        self.said = one_line((said or message)[:_LONGEST_TEXT])

    @property
    def refused(self) -> bool:
        """Whether the server answered no: nothing was written, and the same request gets the same answer for a while.

        A webhook chooses its status freely, and one that times out is answered for with 500, so its sentence counts.
        """
        return self.status in _REFUSALS or (self.status >= 400 and admission_spoke(self.said))


def admission_spoke(text: str) -> bool:
    """Whether an admission webhook or policy denied a request, or could not be asked about it."""
    return _ADMISSION.search(text) is not None


class FieldConflictError(ClusterError):
    """A field belongs to other field managers (HTTP 409 of server-side apply)."""

    def __init__(self, message: str, managers: tuple[str, ...]) -> None:
        super().__init__(message, status=409)
        self.managers = managers


class UnkeptError(ClusterError):
    """The server took a write and kept what stood there before: a mutating webhook has changed the write on its way."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=412)


class StaleObjectError(ClusterError):
    """The object has changed since it was read (HTTP 409 on resourceVersion or uid)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=409)


class MetricsError(Exception):
    """Prometheus gave no usable answer; the text is one line, without addresses' credentials."""


class EventKind(StrEnum):
    """Kind of one line of a watch; SYNCED is the bookmark that ends the objects that were there before it."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    SYNCED = "SYNCED"


class WatchEvent(NamedTuple):
    """One line of a watch; of a bookmark the manifest holds nothing but a resourceVersion."""

    kind: EventKind
    manifest: Manifest


class ClusterReader(Protocol):
    """Answers of the Kubernetes API to questions. Every method raises ClusterError."""

    async def list_all(
        self,
        resource: Resource,
        namespace: str | None = None,
        labels: str = "",
        trim: Callable[[Manifest], Manifest | None] | None = None,
        fields: str = "",
    ) -> list[Manifest]:
        """All objects of a kind, cluster-wide if `namespace` is None, by a label and a field selector.

        `trim` is applied to every object as its page arrives, so that what is not needed is never held all at once; None drops
        the object.
        """

    async def get(self, resource: Resource, namespace: str, name: str) -> Manifest | None:
        """One object, None if there is none."""


class WatchedCluster(ClusterReader, Protocol):
    """The Kubernetes API where it says by itself what happens."""

    def watch(
        self, resource: Resource, namespace: str | None = None, labels: str = "", version: str = ""
    ) -> AsyncGenerator[WatchEvent]:
        """Everything that happens to the objects of a kind, until the server ends the connection.

        `version` is the resourceVersion after which to begin; a BOOKMARK of it says that the server has begun. Empty: every object
        that there is comes first, as ADDED, and a SYNCED after them.

        Raises:
            ClusterError: with status 410 if `version` is too old to begin at; with 0 if the connection broke, or
                nothing was heard for longer than bookmarks take.
        """


class Cluster(ClusterReader, Protocol):
    """The Kubernetes API, as far as the operator uses it. Every method raises ClusterError."""

    async def create(self, resource: Resource, body: Manifest) -> Manifest:
        """Create, with status 409 when the name is taken; the answer of a review is an object too."""

    async def apply(
        self,
        resource: Resource,
        body: Manifest,
        *,
        force: bool = False,
        subresource: str | None = None,
        manager: str = ...,
    ) -> Manifest:
        """Server-side apply; raises FieldConflictError when another manager owns a field and `force` is False."""

    async def replace(self, resource: Resource, body: Manifest) -> Manifest:
        """PUT; the body's resourceVersion must be current, or StaleObjectError."""

    async def delete(self, ref: Ref, resource_version: str | None = None) -> Manifest | None:
        """Delete with dependents in the background; an absent object is fine.

        With a resource version, an object that has changed since stays (StaleObjectError).

        Returns:
            The object, if finalizers still hold it; None if it is gone.
        """


SecretKey: TypeAlias = tuple[str, str]
"""Name of a Secret, in the namespace of whoever names it, and one of its keys."""


@dataclass(frozen=True, slots=True)
class PrometheusAccess:
    """One Prometheus with everything needed to ask it; equal sources share their queries.

    Secrets of the namespace are read when asked and never kept in a status; a header has a value, or a key of a Secret that holds
    it. `labels` names the labels that name a pod.
    """

    address: str
    namespace: str = ""
    bearer_secret: SecretKey | None = None
    ca_secret: SecretKey | None = None
    cert_secret: SecretKey | None = None
    key_secret: SecretKey | None = None
    headers: tuple[tuple[str, str], ...] = ()
    secret_headers: tuple[tuple[str, SecretKey], ...] = ()
    labels: LabelNames = SAME_LABELS

    @property
    def name(self) -> str:
        """The server as messages call it, without path and without credentials; also of an address that is none."""
        return f"Prometheus at {self.address.partition('//')[2].partition('/')[0].rpartition('@')[2]}"


class Metrics(Protocol):
    """Prometheus. Every query ends within a deadline, whatever the server does."""

    async def query(self, source: PrometheusAccess, promql: str) -> Sequence[InstantSample]:
        """One instant query whose result is a vector; raises MetricsError."""

    async def query_past(self, source: PrometheusAccess, promql: str) -> Sequence[Samples]:
        """One instant query whose result is a range vector, such as a subquery; raises MetricsError."""


class Fitter(Protocol):
    """The library's fit, outside this process."""

    async def fit(self, points_csv: str, arguments: Sequence[str]) -> FitOutcome:
        """Fit a points file; never raises for a bad fit, see FitOutcome.error."""


class Clock(Protocol):
    """Time, so that tests own it."""

    def now(self) -> datetime:
        """Wall clock, timezone-aware UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
