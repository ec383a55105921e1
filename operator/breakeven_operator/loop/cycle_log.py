"""The log of cycles, and what they count in /metrics: decisions, defects, failed writes, and warnings about single objects.

A cycle that found everything as it was says nothing new; so this module remembers what was last said.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from breakeven_operator.actions import ActionPlan
from breakeven_operator.cluster.snapshot import Snapshot
from breakeven_operator.cluster.writer import DryRun, Writer, WriteResult
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.loop.agenda import Agenda
from breakeven_operator.outcome.action_plan import Failed, ServiceOutcome
from breakeven_operator.ports import Clock
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.serve.logs import CYCLE
from breakeven_operator.serve.telemetry import Telemetry

_LOG = logging.getLogger(__name__)
_CYCLE_LOG = logging.getLogger(CYCLE)


class CycleLog:
    """Says what came of decisions, and each warning once; a service that met a defect goes back onto the agenda."""

    def __init__(self, telemetry: Telemetry, agenda: Agenda, errors: list[str]) -> None:
        self._telemetry = telemetry
        self._errors = errors
        self._agenda = agenda
        # By uid: the verdict of the service that was last logged; the last warning about an object.
        self._verdicts: dict[str, tuple[str, ...]] = {}
        self._warned: dict[str, str] = {}

    def keep(self, world: Snapshot) -> None:
        """Forget everything about services and runs that are gone."""
        present = {*world.manifests, *(run["metadata"]["uid"] for run in world.runs)}
        self._verdicts = {uid: words for uid, words in self._verdicts.items() if uid in present}
        self._warned = {uid: text for uid, text in self._warned.items() if uid in present}

    def warn_once(self, uid: str, text: str) -> None:
        """A warning about an object that stays as it is would otherwise come with every cycle."""
        if self._warned.get(uid) != text:
            self._warned[uid] = text
            _LOG.warning("%s", text)

    def stands(self, service: SpeculativeService) -> None:
        """Count a decision that stands as if it were made again."""
        action, _, reason = self._verdicts[service.metadata.uid]
        self._telemetry.decided(service, action, reason)

    def decided(self, item: ServiceOutcome, result: WriteResult, took_s: float) -> None:
        """Count a decision, and log one line per change or renewed status.

        `item` is the last decision about its service in this cycle; `result` and `took_s` are of the first one's plan.
        """
        service, uid = item.service, item.service.metadata.uid
        self._telemetry.decided(service, item.verdict.action, item.verdict.reason)
        line = {
            "specsvc": f"{service.metadata.namespace}/{service.metadata.name}",
            **item.plan.facts,
            "did": [type(action).__name__ for action in result.done],
            **({"error": str(result.error)} if result.error is not None else {}),
            "took_s": round(took_s, 4),
        }
        news = bool(result.plan.actions) or self._verdicts.get(uid) != item.verdict.words
        self._verdicts[uid] = item.verdict.words
        _CYCLE_LOG.log(logging.INFO if news else logging.DEBUG, "%(specsvc)s %(action)s %(reason)s", line)

    def undecided(
        self,
        service: SpeculativeService,
        error: Exception,
        mark: Callable[[], Failed],
    ) -> list[Failed]:
        """A service that met a defect, as marked; empty if it cannot even be marked, which must not end the cycle of all."""
        self._surprise(service, error)
        try:
            return [mark()]
        except Exception:  # noqa: BLE001 - the first one was reported in full, and the other services go on
            self.defect("marking %s failed", service.ref)
            return []

    def _surprise(self, service: SpeculativeService, error: Exception) -> None:
        """A defect of the operator met one service: log it in full, count it, and decide again in the next cycle."""
        _LOG.error("deciding about %s failed", service.ref, exc_info=error)
        self._errors.append(f"{service.ref}: {ClusterReason.INTERNAL_ERROR}: {error!r}")
        self._count_defect()
        self._verdicts.pop(service.metadata.uid, None)
        self._agenda.reopen(service.metadata.uid)

    def defect(self, message: str, *names: object) -> None:
        """Log the exception that is being handled in full, and count it; the message has a `%s` for each name."""
        _LOG.exception(message, *names)
        self._count_defect()

    def _count_defect(self) -> None:
        self._telemetry.errors.labels(str(ClusterReason.INTERNAL_ERROR)).inc()


class NotedWriter:
    """Carries plans out, and leaves no failure unsaid; `errors` are plans of a cycle that were not carried out to their end."""

    def __init__(self, writer: Writer | DryRun, agenda: Agenda, clock: Clock, telemetry: Telemetry) -> None:
        self._writer = writer
        self.dry = writer.dry
        self.failures = writer.failures
        self.errors: list[str] = []
        self._agenda = agenda
        self._clock = clock
        self._telemetry = telemetry

    async def carry_out(self, plan: ActionPlan) -> WriteResult:
        """Do what a plan says, in order, until the first failure."""
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
            self.errors.append(f"{plan.subject}: {failed.reason}: {error}")
            _LOG.warning("%s: %s: %s", plan.subject, failed.reason, error)
        return result
