"""Work of the pods of both arms of a roll, block by block, from the counters that Prometheus has kept.

Everything is read again in each cycle: nothing is added up in memory, so a restart loses nothing, and no block is counted
twice. Counters of finished requests are left out: the requests that have finished are not those that came (`ArmBlocks`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from breakeven.laws.arrays import FloatArray
from breakeven.laws.latency import FEWEST_SPANS, dispersion_of_spans, scatter_of_spans
from breakeven.phrases import figure
from breakeven.planning.arm_blocks import ArmBlocks
from breakeven.readers.prometheus import Samples
from breakeven.serving.counted_window import Load
from breakeven.serving.growths import MOST_RPS
from breakeven_operator.case import (
    RollReading,
    SeriesOwner,
)
from breakeven_operator.observing.fleet_query import ARRIVAL_WINDOWS, ASKED, ROLLED, SAMPLED, STAT
from breakeven_operator.resources.targetstatus import Rollout
from breakeven_operator.workloads.workload import Workload

BoolArray: TypeAlias = NDArray[np.bool_]
# Kubernetes cuts the name of whatever makes a pod here, and adds five letters.
_NAME_KEPT = 58
# No latency of a request that anybody waited for; what is longer is a counter that is none.
_LONGEST_S = 1e7
# Nor an answer of any request.
_MOST_TOKENS = 1e7
WAITING_NOW = "waiting"
_COUNTERS = ROLLED[:4]
_PROMPTS = ROLLED[4:]


@dataclass(frozen=True, slots=True)
class RolledPods:
    """Whose figures count in a roll, by the labels of their series.

    Attributes:
        started: when the roll was decided; a ReplicaSet that is brought back had pods before, in another roll.
        namesakes: revision of the newest pod of each name, and when it was made (Unix time, s), if a pod leaves its name to its
            successor; None if names show which arm a pod runs.
    """

    namespace: str
    model_name: str
    from_replica_set: str
    to_replica_set: str
    started: datetime
    namesakes: Mapping[str, tuple[str, float]] | None = None

    @classmethod
    def of(cls, rollout: Rollout, workload: Workload, model_name: str) -> RolledPods | None:
        """Of a roll; None before its new pods are known."""
        if rollout.started_time is None or not rollout.from_replica_set or not rollout.to_replica_set:
            return None
        namesakes = {
            pod.name: (pod.revision, pod.created.timestamp())
            for pod in workload.pods
            if pod.created is not None and not pod.terminating
        }
        return cls(
            workload.ref.namespace,
            model_name,
            rollout.from_replica_set,
            rollout.to_replica_set,
            rollout.started_time,
            namesakes if workload.pods_kind.keeps_names else None,
        )

    def parts(
        self, pod: str, times_s: Sequence[float], stats: Mapping[str, FloatArray]
    ) -> tuple[BoolArray, BoolArray]:
        """The samples of a pod under the old arm, and under the new one."""
        times = np.array(times_s, dtype=float)
        began = times > self.started.timestamp()
        nothing = np.zeros(times.shape, dtype=bool)
        if self.namesakes is None:
            if made_by(pod, self.from_replica_set):
                return ~nothing, nothing
            # The sample before the roll is where the first block of it begins.
            since = began | np.append(began[1:], False)
            return nothing, since if made_by(pod, self.to_replica_set) else nothing
        newest = self.namesakes.get(pod)
        if newest is None:
            return nothing, nothing
        revision, created_s = newest
        own = stats.get(SAMPLED, times) > created_s
        old = own if revision == self.from_replica_set else nothing
        new = own & began if revision == self.to_replica_set else nothing
        if created_s > self.started.timestamp():
            # More than one pod may have had the name since: the old arm's pod served when the roll began.
            old = old | (_same_process(stats, began) & ~own)
        return old, new


@dataclass(frozen=True, slots=True)
class PairedPods:
    """Pods of two targets that serve at the same time; `old` and `new` have the begin (Unix time, s) from which a pod counts."""

    namespace: str
    model_name: str
    old: Mapping[str, float]
    new: Mapping[str, float]

    @property
    def begin_s(self) -> float:
        """Since when (Unix time, s) pods of both count."""
        return max(min(begins.values(), default=math.inf) for begins in (self.old, self.new))

    def parts(
        self, pod: str, times_s: Sequence[float], stats: Mapping[str, FloatArray]
    ) -> tuple[BoolArray, BoolArray]:
        """The samples of a pod under the control's arm, and under the target's arm."""
        sampled = stats.get(SAMPLED, np.array(times_s, dtype=float))
        old, new = (sampled > begins.get(pod, math.inf) for begins in (self.old, self.new))
        return old, new


def read_roll(samples: Iterable[Samples]) -> RollReading:
    """Sort the elements of a roll query's result by pod."""
    elements = [one for one in samples if one.labels.get("pod") and one.labels.get(STAT)]
    times_s = sorted({timed.time_s for one in elements for timed in one.values})
    place = {time_s: index for index, time_s in enumerate(times_s)}
    pods: dict[SeriesOwner, dict[str, FloatArray]] = defaultdict(dict)
    for one in elements:
        labels = one.labels
        owner = SeriesOwner.of(labels, "pod")
        values = np.full(len(times_s), np.nan)
        for timed in one.values:
            values[place[timed.time_s]] = timed.value
        pods[owner][labels[STAT]] = values
    return RollReading(tuple(times_s), dict(pods))


def both_arms(reading: RollReading, rolled: RolledPods | PairedPods) -> tuple[ArmBlocks, ArmBlocks]:
    """The blocks of the old arm's pods and of the new arm's, over the same times; arms without pods have none."""
    old: list[FloatArray] = []
    new: list[FloatArray] = []
    count = len(reading.times_s)
    for owner, stats in sorted(reading.pods.items()):
        if (owner.namespace, owner.model_name) != (rolled.namespace, rolled.model_name):
            continue
        parts = rolled.parts(owner.pod, reading.times_s, stats)
        for arm, part in zip((old, new), parts, strict=True):
            blocks = _blocks(masked(stats, part), count) if part.any() else None
            if blocks is not None:
                arm.append(blocks)
    return _arm(old, count), _arm(new, count)


def grown_blocks(
    reading: RollReading, rolled: RolledPods, names: Sequence[str], needed: Collection[str]
) -> tuple[FloatArray, FloatArray]:
    """Growth of counters of both arms' pods, summed over pods, each of shape (counters, blocks); NaN where nothing is known.

    A pod without one of the `needed` counters does not count. Any other has no series before the first of its kind.
    """
    arms = tuple(np.full((len(names), max(len(reading.times_s) - 1, 0)), np.nan) for _ in range(2))
    sure = [names.index(name) for name in needed]
    for owner, stats in reading.pods.items():
        if owner.namespace != rolled.namespace or not set(needed) <= stats.keys():
            continue
        nothing = stats[names[sure[0]]] * 0.0
        counters = np.stack([stats.get(name, nothing) for name in names])
        parts = rolled.parts(owner.pod, reading.times_s, stats)
        for found, part in zip(arms, parts, strict=True):
            if not part.any():
                continue
            rows = grown(np.where(part, counters, np.nan))
            known = np.isfinite(rows[sure]).all(axis=0)
            found[:, known] = np.nan_to_num(found[:, known]) + np.nan_to_num(rows[:, known])
    return arms[0], arms[1]


def made_by(pod: str, replica_set: str) -> bool:
    """Whether a pod is of a ReplicaSet, by its name."""
    return pod.startswith(f"{replica_set}-"[:_NAME_KEPT])


def masked(stats: Mapping[str, FloatArray], part: BoolArray) -> dict[str, FloatArray]:
    """The same statistics, NaN outside of a part of the samples."""
    return {name: np.where(part, values, np.nan) for name, values in stats.items()}


def grown(counters: FloatArray) -> FloatArray:
    """By how much counters grew in each block, on the last axis; one that fell belongs to a process that began again at 0.

    A value below 0 or without end is no count: the blocks on both sides of it are unknown.
    """
    counted = np.where((counters >= 0.0) & (counters < np.inf), counters, np.nan)
    steps = np.diff(counted)
    return np.where(steps < 0.0, counted[..., 1:], steps)


def _same_process(stats: Mapping[str, FloatArray], began: BoolArray) -> BoolArray:
    """The samples of the process that served when the roll began: next to them, and no counter falls or is missing between."""
    counters = np.stack([values for name, values in stats.items() if name not in {WAITING_NOW, SAMPLED}])
    before = np.flatnonzero(np.isfinite(counters).any(axis=0) & ~began)
    if not before.size:
        return np.zeros(began.shape, dtype=bool)
    fell = (np.diff(counters, axis=1, prepend=counters[:, :1]) < 0.0).any(axis=0)
    missing = ~np.isfinite(counters).any(axis=0)
    life = np.cumsum(fell | missing)
    same: BoolArray = (life == life[before[-1]]) & ~missing
    return same


def _arm(pods: list[FloatArray], count: int) -> ArmBlocks:
    """All pods of one arm; without any, one that was never seen."""
    parts = np.stack(pods, axis=1) if pods else np.full((len(fields(ArmBlocks)), 1, count), np.nan)
    return ArmBlocks(*parts)


def _blocks(stats: Mapping[str, FloatArray], count: int) -> FloatArray | None:
    """Work of one pod between each two samples: the rows of `ArmBlocks`.

    A time at which there is no new sample ends no block. A counter that has fallen belongs to a process that began again.
    """
    if any(name not in stats for name in (*_COUNTERS, WAITING_NOW, SAMPLED)):
        return None
    counters = np.stack([stats[name] for name in _COUNTERS])
    waiting, sampled_s = stats[WAITING_NOW], stats[SAMPLED]
    prompts = np.stack([stats.get(name, np.full(count, np.nan)) for name in _PROMPTS])
    at = np.flatnonzero(np.isfinite(np.vstack([counters, waiting, sampled_s])).all(axis=0))
    at = at[np.diff(np.maximum.accumulate(sampled_s[at]), prepend=-np.inf) > 0.0]
    # Counters of a page that says anything may be too large to be compared.
    with np.errstate(over="ignore", invalid="ignore"):
        waited_s, begun, stepped_s, generated = np.diff(counters[:, at])
        # The first token of a request comes in no step.
        tokens, watched_s = generated - begun, np.diff(sampled_s[at])
        queued, of_prompts = np.minimum(waiting[at][:-1], waiting[at][1:]), np.diff(prompts[:, at])
        most = MOST_RPS * watched_s
        possible = (
            ((begun >= 0.0) & (begun <= most))
            & ((waited_s >= 0.0) & (waited_s <= _LONGEST_S * begun))
            & ((tokens >= 0.0) & (tokens <= _MOST_TOKENS * most))
            & ((stepped_s >= 0.0) & (stepped_s <= _LONGEST_S * np.maximum(tokens, 1.0)))
            & (queued >= 0.0)
        )
    rows = (
        waited_s,
        begun,
        stepped_s,
        tokens,
        watched_s,
        queued,
        *np.where(of_prompts >= 0.0, of_prompts, np.nan),
    )
    found = np.full((len(fields(ArmBlocks)), count), np.nan)
    found[:, at[1:][possible]] = np.stack(rows)[:, possible]
    return found


# How bursty the arrivals of one service are, from counters at every scrape of the last windows; or why that is unknown.
#
# Everything is read again each time: nothing is added up in memory, so a restart loses nothing. A dispersion that is unknown is
# no reason to hold. It is not 1 either: the law then takes arrivals for Poisson arrivals, and the status says so.


_GAP = 3.0
"""A span so many times as long as usual holds scrapes that failed; what came in it is not known to belong together."""
_SIGMAS, _ANOTHER_RATE = 3.0, 1.25
"""Standard deviations, and a factor, by which the rate of an earlier window must differ from the present rate to be another one."""


def with_arrivals(
    figures: Load,
    reading: RollReading | None,
    namespace: str,
    pods: Collection[str],
    model_name: str,
    since_s: float | None = None,
) -> Load:
    """The load with the dispersion of the arrivals at the pods that count, at the rate of now.

    An overload, or a roll, that is over has bursts and steps that the load of now does not have. So counts from before
    `since_s`, the end of the last roll (Unix time, s), are left out. If the time that a request takes is not known, spans are as
    short as scrapes let them be.
    """
    if reading is None or reading.error is not None:
        problem = f"no counts ({reading.error if reading is not None else 'not asked'})"
        return replace(figures, dispersion_problem=problem)
    counted = [
        _since(_counted(stats[ASKED], stats[SAMPLED]), since_s or 0.0)
        for owner, stats in sorted(reading.pods.items())
        if (owner.namespace, owner.model_name) == (namespace, model_name)
        and owner.pod in pods
        and ASKED in stats
        and SAMPLED in stats
    ]
    begins_s = _rate_begins_s(counted, figures)
    if begins_s is None:
        return replace(figures, dispersion_problem="the rate is another one than that of the last counts")
    found = [_spans(_since(one, begins_s), figures.latency_s or 0.0) for one in counted]
    streams = [one for one in found if one is not None]
    if not streams:
        return replace(figures, dispersion_problem="no counts of these pods")
    if sum(float(np.nansum(counts)) for counts, _ in streams) < FEWEST_SPANS:
        return replace(figures, dispersion_problem=f"fewer than {FEWEST_SPANS} requests came")
    lengths_s = np.concatenate([lengths_s for _, lengths_s in streams])
    span_s = median(lengths_s[np.isfinite(lengths_s)].tolist())
    dispersion = dispersion_of_spans(streams)
    if dispersion is None:
        problem = f"fewer than {FEWEST_SPANS} spans of {figure(span_s)} s follow each other without a gap"
        return replace(figures, dispersion_problem=problem)
    return replace(figures, dispersion=dispersion, dispersion_span_s=span_s)


def _counted(asked: FloatArray, sampled_s: FloatArray) -> FloatArray:
    """Requests that had come to a pod by each scrape, and when that was (Unix time, s), as two rows."""
    both = np.stack([asked, sampled_s])
    both = both[:, np.isfinite(both).all(axis=0)]
    # A step without a new scrape ends no span.
    return both[:, np.diff(both[1], prepend=-np.inf) > 0.0]


def _since(counted: FloatArray, begins_s: float, ends_s: float = math.inf) -> FloatArray:
    """Counts from a time on, until another."""
    return counted[:, (counted[1] >= begins_s) & (counted[1] <= ends_s)]


def _spans(counted: FloatArray, request_s: float) -> tuple[FloatArray, FloatArray] | None:
    """Counts and lengths (s) of the spans between scrapes; NaN if a counter fell or scrapes failed; None without any."""
    scrapes = counted.shape[1]
    if scrapes < 2:
        return None
    scrape_s = median(np.diff(counted[1]).tolist())
    each = max(1, min(int(request_s // scrape_s), scrapes // (FEWEST_SPANS + 1)))
    counts, lengths_s = np.diff(counted[:, ::each])
    whole = (counts >= 0.0) & (lengths_s < _GAP * each * scrape_s)
    return np.where(whole, counts, np.nan), np.where(whole, lengths_s, np.nan)


def _grown_between(counted: FloatArray, ends_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Requests and counted time (s) between successive times; NaN if a counter fell, and before its first sample."""
    if counted.shape[1] < 2:
        return np.full(ends_s.size - 1, np.nan), np.full(ends_s.size - 1, np.nan)
    asked, sampled_s = counted
    # The oldest part is compared although only some of it was counted: a spike in it would pass for bursts of the present load.
    counted_s = np.maximum(ends_s, sampled_s[0])
    growth, lengths_s = np.diff(np.interp(counted_s, sampled_s, asked)), np.diff(counted_s)
    known = (growth >= 0.0) & (lengths_s > 0.0)
    return np.where(known, growth, np.nan), np.where(known, lengths_s, np.nan)


def _rate_begins_s(counted: Sequence[FloatArray], figures: Load) -> float | None:
    """Since when (Unix time, s) requests come at the rate of now, by halves of windows; None if they did not come at it last."""
    half_s = figures.window_s / 2.0
    if not half_s > 0.0 or not any(one.size for one in counted):
        return 0.0
    newest_s = max(float(one[1, -1]) for one in counted if one.size)
    ends_s = np.asarray(newest_s - half_s * np.arange(2 * ARRIVAL_WINDOWS, -1, -1), dtype=np.float64)
    grown, lengths_s = np.array([_grown_between(one, ends_s) for one in counted]).transpose(1, 2, 0)[:, ::-1]
    halves = list(enumerate(zip(np.nansum(grown, 1).tolist(), np.nansum(lengths_s, 1).tolist(), strict=True)))

    def differing(dispersion: float) -> int | None:
        return next(
            (
                back
                for back, (requests, time_s) in halves
                if time_s > 0.0 and _differs(requests / time_s, figures.rps, time_s / dispersion)
            ),
            None,
        )

    # Rates that differ for bursts differ for Poisson arrivals too, and mostly none does.
    if differing(1.0) is None:
        return 0.0
    if dispersion_of_spans(found for one in counted if (found := _spans(one, 0.0)) is not None) is None:
        # Too few counts to tell rates apart, and too few for a dispersion.
        return 0.0
    if (back := differing(max(_usual_dispersion(counted, ends_s), 1.0))) is None:
        return 0.0
    # The rate may have changed within the half window behind it.
    return newest_s - half_s * (back - 1) if back > 1 else None


def _usual_dispersion(counted: Sequence[FloatArray], ends_s: FloatArray) -> float:
    """The median of the dispersions between successive times; the dispersion of all spans would hide the spikes that raise it."""
    within = [
        [spans for one in counted if (spans := _spans(_since(one, begins_s, until_s), 0.0)) is not None]
        for begins_s, until_s in pairwise(ends_s)
    ]
    found = [scatter_of_spans(streams) for streams in within]
    return median([scatter / expected for scatter, expected, _ in found if expected > 0.0] or [0.0])


def _differs(before_rps: float, now_rps: float, time_s: float) -> bool:
    """Whether two rates differ by more than Poisson arrivals explain that are counted for so long (s)."""
    apart = abs(before_rps - now_rps)
    chance = _SIGMAS * math.sqrt(1.5 * max(before_rps, now_rps, 1.0 / time_s) / time_s)
    return apart > chance and max(before_rps, now_rps) > _ANOTHER_RATE * min(before_rps, now_rps)
