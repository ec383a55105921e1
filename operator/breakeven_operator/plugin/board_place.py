"""Where the board is: the pod of the operator that decides now, its port and its path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from breakeven.errors import InputError
from breakeven_operator.plugin.service_view import Json, LeaseView

_PORT = "board"
_PREFIX = "BREAKEVEN_BOARD_PATH_PREFIX"


@dataclass(frozen=True, slots=True)
class BoardPlace:
    """A pod that serves the board.

    Attributes:
        release: whose it is.
        port: in the pod.
        prefix: path below which the pages are; empty: none.
    """

    namespace: str
    pod: str
    release: str
    port: int
    prefix: str

    def address(self, local_port: str) -> str:
        """The address of the board behind a forwarded port."""
        return f"http://127.0.0.1:{local_port}{self.prefix}/"


def board_place(pods: Iterable[Json], leases: Sequence[LeaseView], pod: str | None = None) -> BoardPlace:
    """The pod to forward a port to: of several replicas the one that holds the Lease.

    Args:
        pods: of operators.
        leases: as far as the user may list them; without any the first pod that runs is taken.
        pod: its name, if a person chose one; None: the Lease chooses.

    Raises:
        InputError: no pod serves a board, or pods of several releases do.
    """
    found = [place for one in pods for place in _places(one) if pod in {None, place.pod}]
    if not found:
        raise InputError(
            pod or "the operator's pods",
            "serve no board",
            "a running pod of a release with board.enabled, in a namespace that you may read (-n)",
        )
    if len({(place.namespace, place.release) for place in found}) > 1:
        names = ", ".join(f"{place.namespace}/{place.pod}" for place in found)
        raise InputError("board", "belongs to several releases", f"--pod, one of {names}")
    holders = {one.holder.rpartition("_")[0] for one in leases}
    return next((place for place in found if place.pod in holders), found[0])


def _places(pod: Json) -> Iterator[BoardPlace]:
    meta, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    if (pod.get("status") or {}).get("phase") != "Running" or meta.get("deletionTimestamp"):
        return
    for container in spec.get("containers") or ():
        prefix = next(
            (str(one.get("value") or "") for one in container.get("env") or () if one.get("name") == _PREFIX),
            "",
        )
        for port in container.get("ports") or ():
            if port.get("name") == _PORT:
                yield BoardPlace(
                    str(meta.get("namespace")),
                    str(meta.get("name")),
                    str((meta.get("labels") or {}).get("app.kubernetes.io/instance", "")),
                    int(port["containerPort"]),
                    prefix,
                )
