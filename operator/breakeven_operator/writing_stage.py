"""The stage of a cycle that writes: the plans of all services are carried out, a few at a time."""

from __future__ import annotations

import asyncio
from datetime import datetime
from functools import partial

from breakeven_operator.actions import ActionPlan, EmitEvent, WriteStatus
from breakeven_operator.adapters.snapshot import Snapshot
from breakeven_operator.admission import Decided
from breakeven_operator.cycle_log import CycleLog
from breakeven_operator.cycle_report import CycleReport
from breakeven_operator.noted_writer import NotedWriter
from breakeven_operator.ports import Clock
from breakeven_operator.reconcile.action_plan import reference
from breakeven_operator.reconcile.annotation_conflict import conflicted
from breakeven_operator.reconcile.failed import Failed, failed
from breakeven_operator.refused_writes import RefusedWrite
from breakeven_operator.service_decisions import ServiceDecisions
from breakeven_operator.shown_services import ShownServices
from breakeven_operator.upkeep import Upkeep

_WRITERS = 8


class WritingStage:
    """Carries out what was decided about services, and decides again where the API server refuses it.

    Args:
        clock: port.
        writer: carries plans out.
        decisions: about one service each.
        upkeep: of objects around a service.
        log: is given every decision and surprise.
        shown: is given what was written.
    """

    def __init__(
        self,
        clock: Clock,
        writer: NotedWriter,
        decisions: ServiceDecisions,
        upkeep: Upkeep,
        log: CycleLog,
        shown: ShownServices,
    ) -> None:
        self._clock = clock
        self._writer = writer
        self._decisions = decisions
        self._upkeep = upkeep
        self._log = log
        self._shown = shown

    async def carry_out(
        self, world: Snapshot, outcomes: list[Decided], now: datetime, report: CycleReport
    ) -> list[Failed]:
        """Carry all plans out; outcomes become the last ones, and the services that met a surprise are returned.

        Args:
            world: as it was observed.
            outcomes: of the deciding stage.
            now: time of the observation.
            report: is given what failed.
        """
        gate = asyncio.Semaphore(_WRITERS)
        failures: list[Failed] = []

        async def handle(place: int) -> None:
            item = outcomes[place]
            async with gate:
                try:
                    outcomes[place] = await self._handle(world, item, report)
                except Exception as error:  # noqa: BLE001 - reported in full, and the other services go on
                    # The status of this cycle may be written already: what comes after it starts from it.
                    announced = item.service.with_status(item.outcome.status)
                    document = item.outcome.status.to_json_object()
                    mark = partial(failed, announced, document, error, now)
                    failures.extend(self._log.undecided(announced, error, report, mark))

        await asyncio.gather(*map(handle, range(len(outcomes))))
        return failures

    async def _handle(self, world: Snapshot, item: Decided, report: CycleReport) -> Decided:
        """Carry out what was decided about a service; the last decision, if a write was refused."""
        service, outcome, workload = item.service, item.outcome, item.observation.workload
        uid = service.metadata.uid
        started = self._clock.monotonic()
        self._shown.decided(uid)
        result = await self._writer.carry_out(outcome.plan, report)
        self._shown.carried_out(uid, result)
        if result.conflict and workload is not None:
            yielding = conflicted(service, outcome, workload, result.conflict, self._clock.now())
            await self._writer.carry_out(yielding, report)
        if result.failed is not None and result.failed.refused:
            item = await self._go_without(item, result.failed, report)
        self._log.decided(item, result, self._clock.monotonic() - started)
        await self._upkeep.schedule(world, service, report)
        if result.error is None and not self._writer.dry:
            await self._upkeep.afterwards(item, report)
        return item

    async def _go_without(self, item: Decided, refused: RefusedWrite, report: CycleReport) -> Decided:
        """The decision that does without a refused write, carried out; one that cannot be written is only said."""
        if isinstance(refused.action, WriteStatus):
            ref = reference(item.service)
            said = EmitEvent(ref, str(refused.reason), refused.sentence, warning=True, throttled=True)
            await self._writer.carry_out(ActionPlan(ref, (said,)), report)
            return item
        item = self._decisions.without(item, refused, self._clock.now())
        result = await self._writer.carry_out(item.outcome.plan, report)
        self._shown.carried_out(item.service.metadata.uid, result)
        return item
