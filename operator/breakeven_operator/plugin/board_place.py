"""The port of the operator's board, among its pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from breakeven.errors import InputError
from breakeven_operator.plugin.kubectl_process import ForwardedPort
from breakeven_operator.plugin.service_view import Json, LeaseView, variable_of

_PORT, _PREFIX = "board", "BREAKEVEN_BOARD_PATH_PREFIX"


class _Board(NamedTuple):
    release: str
    pod: str
    at: ForwardedPort


def board_place(pods: Iterable[Json], leases: Sequence[LeaseView], pod: str | None = None) -> ForwardedPort:
    """The port of the board: of several replicas the holder of the Lease; without any Lease the first pod that runs.

    `pod` is its name if a person chose one.

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
