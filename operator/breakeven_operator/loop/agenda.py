"""Which services a cycle decides about.

A decision takes some 6 to 20 ms of CPU: a thousand decisions in every cycle would fill half a core or more, and most would
repeat the last ones. So a cycle decides about services that have something under way, or of which an object changed. It
decides about the others the sooner, the further their figures have moved. All that is remembered is a cache: a new process
decides about every service.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, product

from breakeven.reasons import Reason
from breakeven.serving.counted_window import Load
from breakeven.serving.growths import AHEAD_S, Growths
from breakeven_operator import calibration
from breakeven_operator.case import HOLD, SWITCH, FleetReading, LatencyReading, SeriesOwner
from breakeven_operator.cluster.observer import grouped
from breakeven_operator.cluster.prometheus_questions import (
    FLEET,
    GUARDS,
    LATENCIES,
    LATER,
    PASTS,
    SUMS,
    ServiceQueries,
    Watch,
)
from breakeven_operator.cluster.snapshot import Snapshot
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.judging.doubts import Account
from breakeven_operator.kinds import NamespacedName, service_of
from breakeven_operator.observing.fleet_query import LAST_SEEN, REPORTING, siblings_of
from breakeven_operator.observing.live_metrics import FIRST_SCRAPES_S
from breakeven_operator.outcome.action_plan import ServiceOutcome
from breakeven_operator.ports import Manifest
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.servicestatus import ObjectiveFinding
from breakeven_operator.rolls.barred_arms import exceeded
from breakeven_operator.workloads.known import target_of

# So small a change counts after a window, twice as much after half of one.
_SMALL = 0.02
# Ages and back-offs end without any figure.
_LONGEST_REST_S = 300.0
# A dwell ends by time; figures that cannot be may become such as can by a small step.
_UNTIL_OVER = frozenset({Reason.DWELLING, ClusterReason.METRICS_IMPOSSIBLE})


@dataclass(frozen=True, slots=True)
class Grounds:
    """Grounds of a decision about one service, cheap enough to be made for every service in every cycle.

    Attributes:
        state: versions of the objects, and what has no size: which pods report, how fresh they are, what went wrong.
        figures: loads, latencies, tokens per step, lengths, acceptance, of all pods together; finite, 0 if there is none.
        window_s: time that the figures are means of.
    """

    state: Hashable
    figures: tuple[float, ...]
    window_s: float

    def rest_s(self, now: Grounds) -> float:
        """How long a decision on these grounds stands if the grounds are others now, s; 0: no longer."""
        if self.state != now.state:
            return 0.0
        return _rest_s(self.window_s, max(map(_change, self.figures, now.figures), default=0.0))


def _rest_s(window_s: float, moved: float) -> float:
    """How long a decision stands if a figure has moved by such a part since, s."""
    return min(_LONGEST_REST_S, window_s * _SMALL / moved) if moved > 0.0 else _LONGEST_REST_S


def _change(before: float, after: float) -> float:
    """Part of the larger one by which two figures differ: 0 to 2."""
    largest = max(abs(before), abs(after))
    return abs(after - before) / largest if largest > 0.0 else 0.0


class Agenda:
    """Remembers of each service what its last decision was made on."""

    def __init__(self) -> None:
        # By uid: the grounds, when it was decided (monotonic, s), and how long the decision stands at most.
        self._standing: dict[str, tuple[Grounds, float, float]] = {}

    def rest(self) -> None:
        """Forget everything; another replica may decide meanwhile."""
        self._standing = {}

    def due(self, present: Mapping[str, Grounds], now_s: float) -> list[str]:
        """Services to decide about, by uid, those first that have waited longest; the others stay as they were decided.

        What is remembered of services that are not present is forgotten.
        """
        self._standing = {uid: standing for uid, standing in self._standing.items() if uid in present}
        due = [uid for uid, now in present.items() if self._is_due(uid, now, now_s)]
        return sorted(due, key=lambda uid: self._standing[uid][1] if uid in self._standing else -math.inf)

    def decided(self, uid: str, on: Grounds, now_s: float, stands_s: float) -> None:
        """A decision was made on these grounds; it stands no longer than so many seconds."""
        self._standing[uid] = on, now_s, stands_s

    def reopen(self, uid: str, now_s: float = 0.0, in_s: float = 0.0) -> None:
        """Decides again in the next cycle, or in the first one after so many seconds, because the decision was not carried out."""
        if uid in self._standing:
            on, decided_s, longest_s = self._standing[uid]
            stands_s = now_s + in_s - decided_s if in_s > 0.0 else 0.0
            self._standing[uid] = on, decided_s, min(stands_s, longest_s)

    def _is_due(self, uid: str, now: Grounds, now_s: float) -> bool:
        if uid not in self._standing:
            return True
        on, decided_s, stands_s = self._standing[uid]
        return now_s - decided_s >= min(stands_s, on.rest_s(now))


def stands_s(item: ServiceOutcome, status_refresh_s: float, now: datetime) -> float:
    """How long a decision stands if nothing around its service changes, s.

    `status_refresh_s`: figures of a status are renewed at most this often.
    """
    if _is_under_way(item, now):
        return 0.0
    ends_s = [_until_its_moment_s(item.service.metadata.uid, now)]
    decision = item.service.status.decision
    if item.unwritten and decision is not None and decision.time is not None:
        ends_s.append(status_refresh_s - (now - decision.time).total_seconds())
    # Where acceptance has moved, decisions follow it over several windows, and the figures stand still meanwhile.
    ends_s.append(_rest_s(item.service.spec.metrics_source.window_seconds, _disbelieved(item)))
    memory = item.status.memory
    if memory is not None and memory.account is not None and memory.account.windows:
        since_s = (now - memory.account.windows[-1].time).total_seconds()
        account = Account.of(item.service.spec, item.observation.timing)
        wait_s = replace(account, windows=memory.account.windows).wait_s(now) - since_s
        # One that was due, and that this decision did not take, cannot be measured at present.
        ends_s.extend([wait_s] if wait_s > 0.0 else [])
    return max(min(ends_s), 0.0)


def _until_its_moment_s(uid: str, now: datetime) -> float:
    """Time (s) to the moment of a service in each five minutes, by its uid.

    With one moment for all, each start would be followed by decisions about all services at once, every five minutes.
    """
    moment_s = zlib.crc32(uid.encode()) / 2.0**32 * _LONGEST_REST_S
    return _LONGEST_REST_S - (now.timestamp() - moment_s) % _LONGEST_REST_S


def _disbelieved(item: ServiceOutcome) -> float:
    """Part by which the tokens per step that were seen differ from those that the decision believes in by now."""
    status = item.status
    if status.decision is None or status.memory is None or status.current is None:
        return 0.0
    believed = [one.tokens_per_step for one in status.memory.seen if one.arm == status.current.arm]
    seen = status.decision.tokens_per_step
    return _change(believed[0], seen) if believed and seen is not None else 0.0


def _is_under_way(item: ServiceOutcome, now: datetime) -> bool:
    """Whether time alone, or what the fleet's other services do, may bring on what this service waits for."""
    status, verdict, service = item.status, item.verdict, item.service
    workload = item.observation.workload
    running = status.current.arm if status.current is not None else None
    young_s = 2 * service.spec.metrics_source.window_seconds + FIRST_SCRAPES_S
    held_back = verdict.action == HOLD and verdict.arm is not None and str(verdict.arm) != running
    return (
        status.rollout is not None
        or verdict.action == SWITCH
        or (held_back and verdict.reason != ClusterReason.PAUSED)
        or bool(item.observation.runs)
        or verdict.reason in _UNTIL_OVER
        or any(objective.finding is ObjectiveFinding.MISSED for objective in status.objectives)
        or any(
            pod.ready_since is not None and (now - pod.ready_since).total_seconds() < young_s
            for pod in (workload.serving if workload is not None else ())
        )
    )


def survey(world: Snapshot, queries: ServiceQueries, gpu_label: str, now: datetime) -> dict[str, Grounds]:
    """Grounds of each service's decision now, by uid, in the order of the services' names.

    `gpu_label` is the node label that names the GPU class.
    """
    runs = grouped(world.runs, lambda run: NamespacedName(run["metadata"]["namespace"], service_of(run)))
    found = {}
    for service in sorted(world.services, key=lambda s: (s.metadata.namespace, s.metadata.name)):
        pods, name = (
            world.target_pods(service),
            NamespacedName(service.metadata.namespace, service.metadata.name),
        )
        versions = chain(_versions(world, service, pods, gpu_label), map(_version, runs.get(name, ())))
        found[service.metadata.uid] = _grounds(
            world, queries, service, pods, tuple(versions), now.timestamp()
        )
    return found


def _grounds(
    world: Snapshot,
    queries: ServiceQueries,
    service: SpeculativeService,
    pods: Sequence[Manifest],
    versions: tuple[Hashable, ...],
    now_s: float,
) -> Grounds:
    source = service.spec.metrics_source
    namespace = service.metadata.namespace
    watch = queries.watch_of(service)
    # Of a large fleet sums tell whether anything has moved.
    sums = world.answer(SUMS, watch)
    fleet = world.answer(FLEET, watch) if sums is None else sums
    latencies = world.answer(LATENCIES, watch)
    guards = world.answer(GUARDS, queries.guards_of(service))
    past = world.answer(PASTS, queries.past_of(service))
    first = world.firsts.get(service.metadata.uid)
    names = [pod["metadata"]["name"] for pod in pods]
    if sums is not None:
        names = sorted({siblings_of(name) for name in names})
    found = fleet.pods if fleet is not None else {}
    readings = [one for name in names for one in found.get(NamespacedName(namespace, name), {}).items()]
    counted = [replace(reading, span_s=float(source.window_seconds)) for _, reading in readings]
    window, total = Load.of(counted), Growths.summed(counted).stats
    state = (
        versions,
        tuple(world.claims.get(target_of(service), ())),
        fleet.error if fleet is not None else "not asked",
        latencies.error if latencies is not None else "not asked",
        # A mean hides a tail: whoever has objectives is decided about when any bucket has moved.
        tuple(_buckets(latencies, namespace, pods, {model for model, _ in readings}))
        if latencies is not None
        else (),
        (past.error, namespace in past.awaited) if past is not None else None,
        first.sentence if first is not None else None,
        tuple(
            (model, len(reading.stats), reading.stats.get(REPORTING), bool(reading.mixed))
            for model, reading in readings
        ),
        tuple(name for name, value in total.items() if not math.isfinite(value)),
        _fresh(counted, fleet, source.staleness_seconds, now_s),
        window.saturated,
        exceeded(service.spec.update_policy.guards, guards or {}) is None,
        frozenset(guards or {}),
    )
    figures = (*_figures(window), _finished(world, watch, namespace, pods))
    finite = tuple(figure if math.isfinite(figure) else 0.0 for figure in figures)
    return Grounds(state, finite, float(source.window_seconds))


def _finished(world: Snapshot, watch: Watch, namespace: str, pods: Sequence[Manifest]) -> float:
    """Part of the HTTP requests since the last roll that an engine finished; 0 if that is not counted."""
    later = world.answer(LATER, watch)
    if later is None:
        return 0.0
    found = later.requests
    owners = {NamespacedName(namespace, siblings_of(pod["metadata"]["name"])) for pod in pods}
    counted = [found[owner] for owner in sorted(owners) if owner in found]
    posts = math.fsum(one.posts for one in counted)
    return math.fsum(one.served for one in counted) / posts if posts > 0.0 else 0.0


def _versions(
    world: Snapshot, service: SpeculativeService, pods: Sequence[Manifest], gpu_label: str
) -> Iterator[Hashable]:
    meta = service.metadata
    name = NamespacedName(meta.namespace, meta.name)
    sets = world.makers_of(service)
    # Not its resourceVersion: what this operator wrote into its status is no news to it.
    yield meta.generation, meta.deletion_timestamp, tuple(sorted(meta.annotations.items()))
    there = world.target_objects(service)
    yield from map(_version, chain(there, sets, pods))
    # A pod does not change while events say why it does not come.
    awaited = chain(there, sets, pods)
    yield from (world.warnings.get(one["metadata"]["uid"], "") for one in awaited)
    for node in sorted({(pod.get("spec") or {}).get("nodeName") or "" for pod in pods}):
        yield world.node_labels.get(node, {}).get(gpu_label, ""), node in world.lost_nodes
    for entry in world.profiles.get(name, ()):
        yield entry.uid, entry.in_force, entry.problem
    schedule = world.cron_jobs.get(
        NamespacedName(meta.namespace, calibration.made_name(service.metadata.name))
    )
    yield _version(schedule) if schedule is not None else None


def _fresh(
    readings: Collection[Growths], fleet: FleetReading | None, staleness_s: float, now_s: float
) -> tuple[bool, ...]:
    """Of each reading whether its newest sample, and of the answer whether it, is younger than what counts as stale."""
    evaluated_s = fleet.evaluated_s if fleet is not None else None
    times_s = [evaluated_s, *(reading.stats.get(LAST_SEEN) for reading in readings)]
    return tuple(
        time_s is not None and -min(staleness_s, AHEAD_S) <= now_s - time_s <= staleness_s
        for time_s in times_s
    )


def _version(manifest: Manifest) -> tuple[str, str]:
    meta = manifest["metadata"]
    return meta["uid"], meta["resourceVersion"]


def _buckets(
    latencies: LatencyReading, namespace: str, pods: Sequence[Manifest], models: Collection[str]
) -> Iterator[Hashable]:
    names = {siblings_of(pod["metadata"]["name"]) for pod in pods}
    for siblings, model in sorted(product(names, models)):
        counts = latencies.counts.get(SeriesOwner(namespace, siblings, model), {})
        for figure, edges in counts.items():
            yield figure, tuple(edges.items())


def _figures(window: Load) -> tuple[float, ...]:
    """See Grounds.figures; of sums over pods, in which a missing count is 0."""
    figures = (
        window.requests,
        window.total_rps,
        window.latency_s,
        window.ttft_s,
        window.tokens_per_step,
        window.prompt_tokens,
        window.output_tokens,
        window.given_up,
        window.accepted_per_draft,
    )
    return tuple(figure or 0.0 for figure in figures)
