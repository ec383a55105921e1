"""Plans carried out in a cycle: each failure is logged, counted, and brings its service back onto the agenda."""

from __future__ import annotations

import logging
from typing import Protocol

from breakeven_operator.actions import ActionPlan
from breakeven_operator.agenda import Agenda
from breakeven_operator.cycle_report import CycleReport
from breakeven_operator.ports import Clock
from breakeven_operator.refused_writes import RefusedWrites
from breakeven_operator.serve.telemetry import Telemetry
from breakeven_operator.writer import WriteResult

_LOG = logging.getLogger(__name__)


class PlanWriter(Protocol):
    """Carries plans out, or shows them."""

    @property
    def dry(self) -> bool:
        """Whether nothing is done."""

    @property
    def failures(self) -> RefusedWrites:
        """The writes that failed and have not succeeded since."""

    async def carry_out(self, plan: ActionPlan) -> WriteResult:
        """Do what a plan says, in order, until the first failure."""


class NotedWriter:
    """Carries plans out, and leaves no failure unsaid.

    Args:
        writer: does it.
        agenda: puts a service whose plan failed into the next cycle, or into the one that may try again.
        clock: port.
        telemetry: the operator's metrics.
    """

    def __init__(self, writer: PlanWriter, agenda: Agenda, clock: Clock, telemetry: Telemetry) -> None:
        self._writer = writer
        self._agenda = agenda
        self._clock = clock
        self._telemetry = telemetry

    @property
    def dry(self) -> bool:
        """Whether nothing is done."""
        return self._writer.dry

    @property
    def failures(self) -> RefusedWrites:
        """The writes that failed and have not succeeded since."""
        return self._writer.failures

    async def carry_out(self, plan: ActionPlan, report: CycleReport) -> WriteResult:
        """Do what a plan says, in order, until the first failure, which the report gets."""
        result = await self._writer.carry_out(plan)
        for unsaid in result.unsaid:
            self._telemetry.errors.labels(str(unsaid.reason)).inc()
            _LOG.warning("%s: %s: %s", plan.subject, unsaid.reason, unsaid.sentence)
        error, failed = result.error, result.failed
        if error is None:
            return result
        uid, late = plan.subject.uid, failed or result.waiting
        if late is not None and late.refused:
            in_s = (late.until - self._clock.now()).total_seconds()
            self._agenda.reopen(uid, self._clock.monotonic(), in_s)
        else:
            self._agenda.reopen(uid)
        if failed is not None:
            self._telemetry.errors.labels(str(failed.reason)).inc()
            report.errors.append(f"{plan.subject}: {failed.reason}: {error}")
            _LOG.warning("%s: %s: %s", plan.subject, failed.reason, error)
        return result
