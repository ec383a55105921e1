"""Where the board is: the pod of the operator that decides now, its port and its path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from breakeven.errors import InputError
from breakeven_operator.plugin.kubectl_process import ForwardedPort
from breakeven_operator.plugin.service_view import Json, LeaseView, variable_of

_PORT = "board"
_PREFIX = "BREAKEVEN_BOARD_PATH_PREFIX"


class _Board(NamedTuple):
    """A board of a release."""

    release: str
    pod: str
    at: ForwardedPort


def board_place(pods: Iterable[Json], leases: Sequence[LeaseView], pod: str | None = None) -> ForwardedPort:
    """The port of the board: of several replicas the one that holds the Lease.

    Args:
        pods: of operators.
        leases: as far as the user may list them; without any the first pod that runs is taken.
        pod: its name, if a person chose one; None: the Lease chooses.

    Raises:
        InputError: no pod serves a board, or pods of several releases do.
    """
    found = [one for each in pods for one in _boards(each) if pod in {None, one.pod}]
    if not found:
        raise InputError(
            pod or "the operator's pods",
            "serve no board",
            "a running pod of a release with board.enabled, in a namespace that you may read (-n)",
        )
    if len({(one.at.namespace, one.release) for one in found}) > 1:
        names = ", ".join(f"{one.at.namespace}/{one.pod}" for one in found)
        raise InputError("board", "belongs to several releases", f"--pod, one of {names}")
    holders = {one.holder.rpartition("_")[0] for one in leases}
    return next((one for one in found if one.pod in holders), found[0]).at


def _boards(pod: Json) -> Iterator[_Board]:
    meta, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    if (pod.get("status") or {}).get("phase") != "Running" or meta.get("deletionTimestamp"):
        return
    release, name = (meta.get("labels") or {}).get("app.kubernetes.io/instance", ""), str(meta.get("name"))
    for container in spec.get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == _PORT:
                path = f"{variable_of(container, _PREFIX)}/"
                at = ForwardedPort(
                    str(meta.get("namespace")), f"pod/{name}", int(port["containerPort"]), path
                )
                yield _Board(str(release), name, at)
