"""The stages of a cycle that decide: which services are due, and what is decided about each within the fleet's limits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial

from breakeven_operator.actions import WriteAnnotation
from breakeven_operator.adapters.service_queries import ServiceQueries
from breakeven_operator.adapters.snapshot import Legible, Snapshot
from breakeven_operator.admission import Decided
from breakeven_operator.agenda import Agenda, Grounds, stands_s
from breakeven_operator.cycle_log import CycleLog
from breakeven_operator.cycle_report import CycleReport
from breakeven_operator.cycle_settings import CycleSettings
from breakeven_operator.ports import Clock
from breakeven_operator.reconcile.failed import Failed, failed
from breakeven_operator.refused_writes import RefusedWrites
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.roll_places import takes_a_place
from breakeven_operator.service_decisions import ServiceDecisions
from breakeven_operator.survey import survey


class DecidingStage:
    """Decides about the services that ask for it, within the fleet's budgets of time and rolls.

    Args:
        clock: port.
        queries: by which services are watched.
        agenda: remembers what decisions were made on.
        decisions: about one service each.
        log: is given what stands, and defects.
        settings: see CycleSettings.
    """

    def __init__(
        self,
        clock: Clock,
        queries: ServiceQueries,
        agenda: Agenda,
        decisions: ServiceDecisions,
        log: CycleLog,
        settings: CycleSettings,
    ) -> None:
        self._clock = clock
        self._queries = queries
        self._agenda = agenda
        self._decisions = decisions
        self._log = log
        self._settings = settings

    def due(self, world: Snapshot, now: datetime) -> tuple[list[SpeculativeService], Mapping[str, Grounds]]:
        """The services to decide about, those first that have waited longest, and what decisions would rest on, by uid.

        Nothing is remembered about objects that are gone.
        """
        self._decisions.keep(world)
        self._log.keep(world)
        services = {service.metadata.uid: service for service in world.services}
        grounds = self._grounds(world, now)
        due = self._agenda.due(grounds, self._clock.monotonic())
        for uid in grounds.keys() - set(due):
            self._log.stands(services[uid])
        return [services[uid] for uid in due], grounds

    def decide(
        self,
        legible: Legible,
        grounds: Mapping[str, Grounds],
        failures: RefusedWrites,
        now: datetime,
        report: CycleReport,
    ) -> tuple[list[Decided], list[Failed]]:
        """Pure part of a cycle: the services that are due, in turn, with the fleet's budget of rolls.

        One service's surprise must not stop the others, nor hide that service: see `failed`.

        Args:
            legible: the world, and the services whose readings are there.
            grounds: of each service's decision.
            failures: writes that failed.
            now: time of the observation.
            report: is given the number of services left, and surprises.
        """
        world = legible.world
        moving = sum(1 for one in world.services if takes_a_place(one, failures, now))
        services = {service.metadata.uid: service for service in world.services}
        began_s = self._clock.monotonic()
        decided: list[Decided] = []
        undecided: list[Failed] = []
        for place, uid in enumerate(legible.ready):
            if self._clock.monotonic() - began_s > self._settings.deciding_s:
                report.left = len(legible.ready) - place
                break
            may_roll = moving < self._settings.max_parallel_rolls
            try:
                item = self._decisions.decide(world, services[uid], now, may_roll=may_roll)
            except Exception as error:  # noqa: BLE001 - reported in full, and the other services go on
                mark = partial(self._marked, world, services[uid], error, now)
                undecided += self._log.undecided(services[uid], error, report, mark)
                continue
            moving += any(isinstance(action, WriteAnnotation) for action in item.outcome.plan.actions)
            decided.append(item)
            # On older readings than what made it due: it is due until they are as new.
            lasts_s = 0.0 if uid in legible.late else stands_s(item, self._settings.status_refresh_s, now)
            self._agenda.decided(uid, grounds[uid], began_s, lasts_s)
        return decided, undecided

    def _marked(
        self, world: Snapshot, service: SpeculativeService, error: Exception, now: datetime
    ) -> Failed:
        written = world.manifests[service.metadata.uid].get("status") or {}
        remembered, version = self._decisions.remembered(service), service.metadata.resource_version
        return failed(remembered, written, error, now, version)

    def _grounds(self, world: Snapshot, now: datetime) -> Mapping[str, Grounds]:
        """Grounds of decisions, by uid; if a defect hides them, each service has new grounds and is decided about."""
        try:
            return survey(world, self._queries, self._settings.trial.gpu_label, now)
        except Exception:  # noqa: BLE001 - reported in full, and every service is decided about
            self._log.defect("comparing what decisions rest on failed")
            return {service.metadata.uid: Grounds(object(), (), 0.0) for service in world.services}
