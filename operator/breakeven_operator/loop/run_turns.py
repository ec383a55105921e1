"""Calibrations in a cycle: which runs may go on, what each may look at, and so much time and memory as one cycle has for all.

The ConfigMaps that a run reads before it starts are read for one run at a time, and none is kept.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import NamedTuple

from breakeven.errors import InputError
from breakeven_operator import calibration
from breakeven_operator.actions import Action, ActionPlan, Create, DoneFit, EmitEvent
from breakeven_operator.calibration.transition import RunView
from breakeven_operator.calibration.trial_state import kept_words
from breakeven_operator.cluster.snapshot import Snapshot
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import (
    CLAIMS,
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    RUN_LABEL,
    RUNS,
    SERVICE_LABEL,
    NamespacedName,
    Ref,
    service_of,
)
from breakeven_operator.loop import housekeeping
from breakeven_operator.loop.cycle_log import CycleLog, NotedWriter
from breakeven_operator.outcome.action_plan import ServiceOutcome
from breakeven_operator.ports import Clock, ClusterError, ClusterReader, Manifest
from breakeven_operator.refused_writes import RefusedWrite
from breakeven_operator.resources.calibrationrun import FINAL_PHASES, RunPhase
from breakeven_operator.settings import Settings
from breakeven_operator.workloads.object_facts import parse_time

# A single non-Latin character makes Python store a text with four bytes per character: 64 MiB at most.
LARGEST_MIB = 16
_WAITING = frozenset({"", "Pending"})
# From the end of a run's budget to the end of its last pod.
_ENDING = timedelta(minutes=5)


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


def run_views(
    world: Snapshot,
    decided: Iterable[ServiceOutcome],
    places: int,
    settings: Settings,
    now: datetime | None = None,
) -> list[RunView]:
    """Views of all unfinished runs: those under way first, then by age; `places` runs may be under way at a time.

    A run whose service is there and was not decided (its spec breaks a rule, or a defect met it), or whose target cannot be
    read, has no view and waits: taken for a run without a service, it would lose its Jobs. Without a time no run is taken to
    have outlived its budget.
    """
    owners = {
        NamespacedName(item.service.metadata.namespace, item.service.metadata.name): item for item in decided
    }
    undecided = {NamespacedName.of(manifest) for manifest in world.manifests.values()} - owners.keys()
    # Taken for gone, a target that cannot be read for a while would end its calibration.
    undecided |= {name for name, item in owners.items() if item.observation.target_problem is not None}
    unfinished, taken = _in_turn(world, owners.keys() | undecided, now)
    places -= taken
    first: dict[NamespacedName, Manifest] = {}
    views = []
    for run in unfinished:
        meta = run["metadata"]
        owner = NamespacedName(meta["namespace"], service_of(run))
        if owner in undecided:
            continue
        before = first.get(owner)
        first.setdefault(owner, run)
        # An import measures nothing, and a gate no other arms: beside these the younger run waits.
        waiting, item = phase_of(run) in _WAITING, owners.get(owner)
        same = before is not None and calibrates(run) and calibrates(before)
        duplicate_of = before["metadata"]["name"] if before is not None and same else None
        paused = item is not None and item.service.spec.paused
        may_start = not paused and (not waiting or (places > 0 and before is None))
        view = _view(world, run, item, settings, may_start=may_start, duplicate_of=duplicate_of)
        if waiting and may_start and view.target is not None and view.target.identifiable:
            # A run that waits for its own target must not keep the others waiting. What no other run waits for it may take, too.
            others = sum(phase_of(one) in _WAITING for one in unfinished) - 1
            view = replace(view, places=max(_pods_of(run), places - others))
            places -= view.places
        views.append(view)
    return views


def _in_turn(
    world: Snapshot, services: Collection[NamespacedName], now: datetime | None
) -> tuple[list[Manifest], int]:
    """Unfinished runs in the order in which they get places, and the number of places that are taken.

    A younger run that already holds a GPU is not the duplicate of an older one that waits. Of those that wait, the namespaces
    come first that hold the fewest places.
    """
    unfinished = [run for run in world.runs if phase_of(run) not in FINAL_PHASES]
    holders = [
        run for run in unfinished if _holds_a_place(world, run, services) and not _is_overdue(run, now)
    ]
    held = Counter[str]()
    for run in holders:
        held[str(run["metadata"]["namespace"])] += _pods_of(run)
    unfinished.sort(
        key=lambda run: (phase_of(run) in _WAITING, held[run["metadata"]["namespace"]], _age(run))
    )
    return unfinished, sum(map(_pods_of, holders))


def _pods_of(run: Manifest) -> int:
    """Pods that a run under way has at a time; a gate compares two."""
    if (run.get("spec") or {}).get("gate"):
        return 2
    return int(((run.get("status") or {}).get("plan") or {}).get("podsAtOnce") or 1)


def _holds_a_place(world: Snapshot, run: Manifest, services: Collection[NamespacedName]) -> bool:
    """Whether a run is under way, and so in the way of others.

    A run without a service, or that is being deleted, is about to end: whoever keeps it by a finalizer keeps no place. A run
    whose pods no node takes holds no GPU, and may wait for a day. A fit needs no GPU either.
    """
    meta = run["metadata"]
    if meta.get("deletionTimestamp") is not None or phase_of(run) in _WAITING:
        return False
    if NamespacedName(meta["namespace"], service_of(run)) not in services:
        return False
    pods = _labelled(world.of(PODS, meta["namespace"]), meta["name"])
    if not pods:
        return phase_of(run) != RunPhase.FITTING
    return any((pod.get("spec") or {}).get("nodeName") or not _refused(pod) for pod in pods)


def _is_overdue(run: Manifest, now: datetime | None) -> bool:
    """Whether a run has had all the time of its plan, after which no pod of it runs any more.

    A run that is advanced ends by itself then. A run whose service cannot be read is not advanced, for as long as its author likes.
    """
    status = run.get("status") or {}
    budget = (status.get("plan") or {}).get("budget") or {}
    longest_s, started = budget.get("maxDurationSeconds"), parse_time(status.get("startedTime"))
    if now is None or longest_s is None or started is None:
        return False
    return now - started > timedelta(seconds=longest_s) + _ENDING


def _refused(pod: Manifest) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(
        one.get("type") == "PodScheduled" and one.get("reason") == "Unschedulable" for one in conditions
    )


def calibrates(run: Manifest) -> bool:
    """Whether it measures arms: it takes over no measurements of another tool, and is no gate."""
    spec = run.get("spec") or {}
    return not spec.get("importFrom") and not spec.get("gate")


def phase_of(run: Manifest) -> str:
    """The phase; empty before the first cycle that saw the run."""
    return str((run.get("status") or {}).get("phase") or "")


def _view(
    world: Snapshot,
    run: Manifest,
    item: ServiceOutcome | None,
    settings: Settings,
    *,
    may_start: bool,
    duplicate_of: str | None,
) -> RunView:
    meta = run["metadata"]
    namespace = meta["namespace"]
    in_force = item.in_force if item is not None else None
    return RunView(
        run=run,
        service=world.manifests.get(item.service.metadata.uid) if item is not None else None,
        target=item.observation.workload if item is not None else None,
        jobs=_labelled(world.of(JOBS, namespace), meta["name"]),
        pods=_labelled(world.of(PODS, namespace), meta["name"]),
        selectors=tuple(world.selectors.get(namespace, ())),
        network_policies=tuple(world.of(NETWORK_POLICIES, namespace)),
        may_start=may_start,
        duplicate_of=duplicate_of,
        settings=settings,
        events=tuple(world.of(EVENTS, namespace)),
        warnings=world.warnings,
        claims=tuple(world.of(CLAIMS, namespace)),
        seen_lengths=item.lengths if item is not None else None,
        in_force=in_force.profile if in_force is not None else None,
        profiles=item.observation.profiles if item is not None else (),
        lost_nodes=world.lost_nodes,
    )


def kept_pods(world: Snapshot, decided: Iterable[ServiceOutcome], now: datetime) -> list[ActionPlan]:
    """Events of services about calibration pods that were deleted and that a finalizer keeps: a run that has ended says no more."""
    held: dict[NamespacedName, list[Manifest]] = defaultdict(list)
    for namespace, pods in world.objects.get(PODS, {}).items():
        for pod in pods:
            labels = pod["metadata"].get("labels") or {}
            if RUN_LABEL in labels and pod["metadata"].get("finalizers"):
                held[NamespacedName(namespace, labels.get(SERVICE_LABEL, ""))].append(pod)
    plans, reason = [], str(ClusterReason.POD_KEPT)
    for item in decided if held else ():
        ref = item.service.ref
        if words := kept_words(held.get(NamespacedName(ref.namespace, ref.name), ()), now):
            event = EmitEvent(ref, reason, words[:1024], warning=True, throttled=True)
            plans.append(ActionPlan(ref, (event,)))
    return plans


def _labelled(manifests: Sequence[Manifest], run: str) -> tuple[Manifest, ...]:
    return tuple(m for m in manifests if (m["metadata"].get("labels") or {}).get(RUN_LABEL) == run)


def _age(run: Manifest) -> tuple[str, str]:
    return str(run["metadata"].get("creationTimestamp", "")), run["metadata"]["name"]
