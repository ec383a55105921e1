"""Calibrations in a cycle: each unfinished run has its turn, and so much time and memory as one cycle has for all.

The ConfigMaps that a run reads before it starts are read for one run at a time, and none is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from http import HTTPStatus
from typing import NamedTuple

from breakeven.errors import InputError
from breakeven_operator import calibration
from breakeven_operator.actions import Action, ActionPlan, Create, DoneFit
from breakeven_operator.calibration.transition import RunView
from breakeven_operator.cluster.snapshot import Snapshot
from breakeven_operator.kinds import CONFIG_MAPS, JOBS, RUNS, Ref
from breakeven_operator.loop import housekeeping
from breakeven_operator.loop.admission import kept_pods, run_views
from breakeven_operator.loop.cycle_log import CycleLog, NotedWriter
from breakeven_operator.outcome.action_plan import ServiceOutcome
from breakeven_operator.ports import Clock, ClusterError, ClusterReader, Manifest
from breakeven_operator.refused_writes import RefusedWrite
from breakeven_operator.settings import Settings

# A single non-Latin character makes Python store a text with four bytes per character: 64 MiB at most.
LARGEST_MIB = 16


class RunFiles(NamedTuple):
    """The files that were read.

    Attributes:
        config_maps: by name, with the keys that are asked for; None if there is no such one. What the operator may not read is
            left out.
        size: bytes that were read, kept or not.
    """

    config_maps: Mapping[str, Manifest | None]
    problem: str | None
    size: int


async def read_run_files(
    cluster: ClusterReader, namespace: str, wanted: Mapping[str, Collection[str]]
) -> RunFiles:
    """Read the keys of ConfigMaps (`wanted`, by name), up to 16 MiB of them.

    Raises:
        ClusterError: the API server does not answer.
    """
    found: dict[str, Manifest | None] = {}
    size = 0
    for name in sorted(wanted):
        try:
            manifest = await cluster.get(CONFIG_MAPS, namespace, name)
        except ClusterError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            continue
        if manifest is None:
            found[name] = None
            continue
        # The other keys count by their names alone.
        data = {
            key: text if key in wanted[name] else "" for key, text in (manifest.get("data") or {}).items()
        }
        size += sum(len(text.encode(errors="replace")) for text in data.values())
        if size > LARGEST_MIB << 20:
            problem = f"its files have more than {LARGEST_MIB} MiB in all; expected fewer or smaller ones"
            return RunFiles({}, problem, size)
        found[name] = {
            "metadata": {"name": name, "namespace": namespace},
            "data": data,
            "binaryData": dict.fromkeys(manifest.get("binaryData") or {}, ""),
        }
    return RunFiles(found, None, size)


# With them one run reads its files, however large; the next run waits for the next cycle.
_FILES_PER_CYCLE = 4 << 20


class RunTurns:
    """The turns of runs, cycle by cycle."""

    def __init__(
        self,
        cluster: ClusterReader,
        clock: Clock,
        writer: NotedWriter,
        log: CycleLog,
        settings: Settings,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._writer = writer
        self._log = log
        self._settings = settings
        # Bytes of files that the present cycle has room for.
        self._bytes_left = 0

    async def take(self, world: Snapshot, decided: Sequence[ServiceOutcome], now: datetime) -> None:
        """Advance all unfinished runs, in their order; `run_views` says which may go on."""
        self._bytes_left = _FILES_PER_CYCLE
        places = self._settings.max_parallel_calibrations
        for view in run_views(world, decided, places, self._settings, now):
            await self._turn(view, now)
        for plan in kept_pods(world, decided, now):
            await self._writer.carry_out(plan)

    async def _turn(self, view: RunView, now: datetime) -> None:
        """Advance one run; a surprise in it stops neither the others nor the publishing of metrics."""
        meta = view.run["metadata"]
        try:
            await self._advance(view, now)
        except InputError as error:
            self._log.warn_once(meta["uid"], str(error))
        except ClusterError as error:
            self._writer.errors.append(str(error))
        except Exception:  # noqa: BLE001 - as for services
            self._log.defect("advancing run %s/%s failed", meta["namespace"], meta["name"])

    async def _advance(self, view: RunView, now: datetime, fitted: DoneFit | None = None) -> None:
        """Do what a run's state asks for; a fit's outcome is used at once, so that it never has to be stored."""
        ref = _ref_of(view)
        if any(now < one.until for one in self._writer.failures.about(ref.uid, now)):
            # Fitted or started again, it would come to the write that waits.
            return
        actions = await self._next_of(view, now, fitted)
        if view.service is not None and any(isinstance(a, Create) and a.resource == JOBS for a in actions):
            actions = (*housekeeping.access(view.service, view.settings), *actions)
        if not actions:
            return
        result = await self._writer.carry_out(ActionPlan(ref, actions))
        if result.failed is not None and result.failed.refused:
            await self._say_refused(view, result.failed, now)
        for done in result.fits:
            # The run is read again, because the end of its last arm was written before the fit.
            run = await self._cluster.get(RUNS, ref.namespace, ref.name)
            if run is None or run["metadata"].get("uid") != ref.uid:
                return
            written = replace(view, run=run)
            if done.fit.settles:
                await self._advance(written, self._clock.now(), done)
            else:
                await self._conclude(written, done)

    async def _next_of(self, view: RunView, now: datetime, fitted: DoneFit | None) -> tuple[Action, ...]:
        """The actions that a run's state asks for; its files are read for them, and dropped at once."""
        files = calibration.files_read(view)
        if not files:
            return calibration.advance(view, now, fitted)
        if self._bytes_left <= 0:
            return ()
        read = await read_run_files(self._cluster, view.run["metadata"]["namespace"], files)
        self._bytes_left -= read.size
        view = replace(view, config_maps=read.config_maps, files_problem=read.problem)
        # Megabytes of results take seconds; the Lease is renewed meanwhile.
        return await asyncio.to_thread(calibration.advance, view, now, fitted)

    async def _say_refused(self, view: RunView, refused: RefusedWrite, now: datetime) -> None:
        """A run whose writes are refused says so and stays where it was, until the next attempt or its deadline."""
        said = calibration.refused(view, refused, now)
        await self._writer.carry_out(ActionPlan(_ref_of(view), said))

    async def _conclude(self, view: RunView, done: DoneFit) -> None:
        try:
            actions = calibration.conclude(view, done.outcome, self._clock.now())
        except InputError as error:
            self._writer.errors.append(str(error))
            return
        except Exception:  # noqa: BLE001 - as for services
            self._log.defect("concluding run %s failed", done.fit.run)
            actions = calibration.not_concluded(view, self._clock.now())
        result = await self._writer.carry_out(ActionPlan(done.fit.run, actions))
        if result.failed is not None and result.failed.refused:
            await self._say_refused(view, result.failed, self._clock.now())


def _ref_of(view: RunView) -> Ref:
    meta = view.run["metadata"]
    return Ref(RUNS, meta["namespace"], meta["name"], meta["uid"])
