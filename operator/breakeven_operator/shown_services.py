"""The services as /metrics and the board show them: each with the status that its last decision led to, written or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from breakeven_operator.actions import WriteStatus
from breakeven_operator.adapters.snapshot import Snapshot
from breakeven_operator.admission import Decided
from breakeven_operator.reconcile.action_plan import Failed
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.serve.telemetry import Telemetry
from breakeven_operator.writer import WriteResult

Show = Callable[[Snapshot, Sequence[SpeculativeService]], None]
"""Is given the world, and the services as a cycle leaves them."""


def show_nobody(_world: Snapshot, _services: Sequence[SpeculativeService]) -> None:
    """The `Show` of an operator without a board."""


class ShownServices:
    """Remembers each service as it is shown.

    Args:
        telemetry: the operator's metrics.
        show: is given them at the end of each cycle.
    """

    def __init__(self, telemetry: Telemetry, show: Show) -> None:
        self._telemetry = telemetry
        self._show = show
        # By uid; and the uids of those whose shown status is the one that the cluster holds.
        self._shown: dict[str, SpeculativeService] = {}
        self._written: set[str] = set()

    def rest(self) -> None:
        """Forget everything; another replica may decide meanwhile."""
        self._shown, self._written = {}, set()

    def keep(self, services: Sequence[SpeculativeService]) -> None:
        """Forget services that are gone, all but these; those that were written are shown as they were read."""
        valid = {service.metadata.uid for service in services}
        self._shown = {uid: service for uid, service in self._shown.items() if uid in valid}
        # A status of the cluster is in memory already: two of each would be a quarter of this process.
        self._shown |= {one.metadata.uid: one for one in services if one.metadata.uid in self._written}

    def decided(self, uid: str) -> None:
        """A decision was made: the status in the cluster is older than the one that will be shown."""
        self._written.discard(uid)

    def carried_out(self, uid: str, result: WriteResult) -> None:
        """A plan was carried out, which may have written that status."""
        if any(isinstance(action, WriteStatus) for action in result.done):
            self._written.add(uid)

    def publish(
        self, world: Snapshot, outcomes: Sequence[Decided], failures: Sequence[Failed], now: datetime
    ) -> None:
        """Show all services: as they were decided, or marked as failed, in this cycle or an earlier one."""
        self._written -= {failure.service.metadata.uid for failure in failures}
        # A service that was decided and then failed to be written counts as failed.
        self._shown |= {
            item.service.metadata.uid: item.service.with_status(item.outcome.status) for item in outcomes
        }
        self._shown |= {failure.service.metadata.uid: failure.service for failure in failures}
        for item in outcomes:
            for entry in item.outcome.status.history[: item.ended]:
                self._telemetry.fleet.count("breakeven_rollouts", item.service, str(entry.result))
        self._telemetry.fleet.publish(self._shown.values(), now)
        self._show(world, tuple(self._shown.values()))
