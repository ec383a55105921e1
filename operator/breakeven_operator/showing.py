"""The board beside the loop: it is given each cycle's services, and never keeps the operator from deciding."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from breakeven_operator.adapters.snapshot import Snapshot
from breakeven_operator.board.board_access import Access, LoopbackAccess, ReviewedAccess, ReviewingCluster
from breakeven_operator.board.board_server import Board, BoardSettings, BoardSocket, listen
from breakeven_operator.board.publication import Publication
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import Clock
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.settings import Settings

_LOG = logging.getLogger(__name__)
# `kubectl port-forward` reaches it there, and nobody else does.
_LOOPBACK = "127.0.0.1"


class Showing:
    """The board of a process and its sockets.

    Args:
        settings: of the operator; with port 0 there is no board.
        cluster: reviews the tokens of readers who come by the network.
        clock: of the operator.
        late_after_s: a cycle that is older is said to be.
    """

    def __init__(
        self, settings: Settings, cluster: ReviewingCluster, clock: Clock, late_after_s: float
    ) -> None:
        self._port, self._prefix = settings.board_port, settings.board_path_prefix
        self._clock = clock
        self._rules: list[tuple[str, Access]] = [(_LOOPBACK, LoopbackAccess())]
        if settings.board_address:
            self._rules.append((settings.board_address, ReviewedAccess(cluster, time.monotonic)))
        self._board = Board(clock, BoardSettings(self._prefix, settings.gpu_price_per_hour, late_after_s))
        self._sockets: list[BoardSocket] = []

    def show(self, world: Snapshot, services: Sequence[SpeculativeService]) -> None:
        """Replace what the pages say; called at the end of each cycle."""
        if not self._port:
            return
        published = Publication(
            time=self._clock.now(),
            services={NamespacedName(one.metadata.namespace, one.metadata.name): one for one in services},
            invalid={NamespacedName.of(one.manifest): one.problem for one in world.invalid},
            profiles=world.profiles,
            firsts=world.firsts,
        )
        try:
            self._board.publish(published)
        except Exception:  # noqa: BLE001 - reported in full; no decision rests on the board
            _LOG.exception("publishing to the board failed")

    async def open(self) -> None:
        """Listen; an address that cannot be had is reported, and the operator decides without it."""
        for host, access in self._rules if self._port else ():
            try:
                app = self._board.application(access)
                self._sockets.append(await listen(app, host, self._port, self._prefix))
            except OSError as error:
                _LOG.warning("the board cannot listen on %s:%d: %s", host, self._port, error.strerror)
            else:
                _LOG.info("the board is at %s", self._sockets[-1].address)

    async def close(self) -> None:
        """Stop listening."""
        while self._sockets:
            await self._sockets.pop().close()
