"""One cycle of the operator: read the world, decide about the services that ask for it, carry the plans out.

The stages are modules of their own, and so is what each remembers between cycles. A cycle that fails is reported and the next
one begins with a new reading.
"""

from __future__ import annotations

from breakeven_operator.adapters.observer import Observer
from breakeven_operator.agenda import Agenda
from breakeven_operator.cycle_log import CycleLog
from breakeven_operator.cycle_report import CycleReport
from breakeven_operator.cycle_settings import CycleSettings
from breakeven_operator.deciding_stage import DecidingStage
from breakeven_operator.noted_writer import NotedWriter, PlanWriter
from breakeven_operator.ports import Clock
from breakeven_operator.reporting_stage import ReportingStage
from breakeven_operator.run_turns import RunTurns
from breakeven_operator.serve.telemetry import CycleStage, Telemetry
from breakeven_operator.service_decisions import ServiceDecisions
from breakeven_operator.shown_services import Show, ShownServices, show_nobody
from breakeven_operator.upkeep import Upkeep
from breakeven_operator.writing_stage import WritingStage


class Reconciler:
    """Runs cycles; `cycle` may be called again after any failure.

    Args:
        clock: port.
        observer: reads. writer: writes.
        telemetry: the operator's metrics.
        settings: see CycleSettings.
        show: is given the world and the services as each cycle leaves them.
    """

    def __init__(
        self,
        clock: Clock,
        observer: Observer,
        writer: PlanWriter,
        telemetry: Telemetry,
        settings: CycleSettings,
        show: Show = show_nobody,
    ) -> None:
        self._clock = clock
        self._observer = observer
        self._telemetry = telemetry
        self._failures = writer.failures
        self._agenda = Agenda()
        self._log = CycleLog(telemetry, self._agenda)
        self._decisions = ServiceDecisions(observer.queries, writer.failures, settings, self._log.warn_once)
        self._deciding = DecidingStage(
            clock, observer.queries, self._agenda, self._decisions, self._log, settings
        )
        noted = NotedWriter(writer, self._agenda, clock, telemetry)
        self._shown = ShownServices(telemetry, show)
        upkeep = Upkeep(observer.cluster, clock, noted, telemetry, settings.trial)
        self._writing = WritingStage(clock, noted, self._decisions, upkeep, self._log, self._shown)
        self._reporting = ReportingStage(noted, self._log, telemetry, settings.watching)
        self._turns = RunTurns(observer.cluster, clock, noted, self._log, settings)
        # Services that the last cycle left to the next one.
        self._left = 0

    def age_s(self) -> float:
        """How old the oldest part of the next observation would be."""
        return self._observer.age_s()

    async def rest(self) -> None:
        """There are no cycles for a while; another replica may decide meanwhile."""
        self._agenda.rest()
        self._decisions.rest()
        self._shown.rest()
        await self._observer.rest()

    async def cycle(self) -> CycleReport:
        """One pass over all services.

        Raises:
            ClusterError: the world could not be read; nothing was done.
        """
        passed = self._telemetry.stages(self._clock.monotonic)
        world = await self._observer.observe(soon=self._left > 0)
        passed(CycleStage.READING)
        now = self._clock.now()
        report = CycleReport(services=len(world.services) + len(world.invalid))
        self._shown.keep(world.services)
        due, grounds = self._deciding.due(world, now)
        passed(CycleStage.COMPARING)
        legible = await self._observer.legible(world, due)
        passed(CycleStage.AWAITING)
        world, now = legible.world, self._clock.now()
        outcomes, failures = self._deciding.decide(legible, grounds, self._failures, now, report)
        passed(CycleStage.DECIDING)
        report.left += len(due) - len(legible.ready) - len(legible.awaited)
        failures += await self._writing.carry_out(world, outcomes, now, report)
        passed(CycleStage.WRITING)
        await self._reporting.say_undecided(world, failures, now, report)
        await self._reporting.serve_annotated(world, report)
        passed(CycleStage.REPORTING)
        await self._turns.take(world, outcomes, now, report)
        passed(CycleStage.CALIBRATING)
        self._shown.publish(world, outcomes, failures, now)
        self._telemetry.services.set(len(world.services))
        self._telemetry.services_left.set(report.left + len(legible.awaited))
        self._left = report.left
        passed(CycleStage.PUBLISHING)
        return report
