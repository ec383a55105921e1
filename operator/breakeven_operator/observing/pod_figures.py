"""Whether the figures of one pod may be used: the first thing that is wrong with its series, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from breakeven.serving.growths import EngineLimits, Growths, impossible, missing, not_a_number, stale
from breakeven_operator.case import PodReading
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.observing.fleet_query import FIRST_SEEN, LAST_SEEN, NEEDED, looked_back_s, series_name
from breakeven_operator.resources.metricssource import MetricsSource
from breakeven_operator.workloads.workload import PodState

# A Ready pod is scraped within a few intervals; younger ones may lack series without anything being wrong.
FIRST_SCRAPES_S = 90.0


@dataclass(frozen=True, slots=True)
class WatchedPods:
    """The pods of a service that count (Ready, of the newest template), and the labels of their series.

    `known` names all pods of the namespace. If pods keep names, a pod has its predecessor's, and with it the predecessor's series.
    """

    namespace: str
    model_name: str
    serving: Sequence[PodState]
    known: frozenset[str] = frozenset()
    keep_names: bool = False


class ReadPod(NamedTuple):
    """A pod that counts, and what Prometheus says of it."""

    pod: PodState
    reading: PodReading


class Fault(NamedTuple):
    """Why the figures of one pod may not be used."""

    reason: ClusterReason
    message: str


class UnsoundPod(NamedTuple):
    """A pod that serves and whose figures may not be used.

    Attributes:
        rank: place of the check that found the fault; the lowest one is shown where nothing can be decided.
        young: its counters, if it has been watched for too short a time and nothing else is wrong.
    """

    name: str
    rank: int
    fault: Fault
    young: Growths | None = None

    @property
    def waits(self) -> bool:
        """Whether time alone will make its figures usable."""
        return self.rank > len(_CHECKS)


@dataclass(frozen=True, slots=True)
class Look:
    """The measure of every pod of a service; see read_service for its parts."""

    watched: WatchedPods
    source: MetricsSource
    limits: EngineLimits
    evaluated_s: float | None
    now: datetime

    @property
    def window_s(self) -> float:
        """Time over which figures are taken."""
        return float(self.source.window_seconds)

    def counted(self, one: ReadPod) -> Growths:
        """Growth of a pod's counters, with the part of the window that they grew in.

        That part begins with the series: Prometheus finds a pod some time after it began to serve, and one that was installed a
        minute ago has looked for a minute. It does not begin when the pod became Ready, because a probe that misses moves that.
        """
        stats = one.reading.stats
        last_s = stats[LAST_SEEN] if self.evaluated_s is None else self.evaluated_s
        span_s = max(min(self.window_s, last_s - stats.get(FIRST_SEEN, last_s)), 0.0)
        return replace(one.reading.counters, span_s=span_s)

    def seen_for_long(self, one: ReadPod) -> bool:
        """Whether a pod has been watched for half of the window."""
        return self.counted(one).span_s >= 0.5 * self.window_s


def soundness(pod: PodState, readings: Sequence[PodReading], look: Look) -> ReadPod | UnsoundPod:
    """A pod with its reading, or the first thing that is wrong with it."""
    reading = next((one for one in readings if one.model_name == look.watched.model_name), None)
    if reading is None:
        if readings:
            return UnsoundPod(pod.name, 0, _mislabelled(pod, readings, look))
        return _absent(pod, look)
    one = ReadPod(pod, reading)
    for rank, check in enumerate(_CHECKS, 2):
        if (found := check(one, look)) is not None:
            young = look.counted(one) if check is _young else None
            return UnsoundPod(pod.name, rank, found, young)
    return one


def _mislabelled(pod: PodState, found: Iterable[PodReading], look: Look) -> Fault:
    names = ", ".join(sorted(reading.model_name or "(none)" for reading in found))
    return Fault(
        ClusterReason.METRICS_MISLABELLED,
        f"pod {pod.name} reports model_name {names}, not {look.watched.model_name}: set metricsSource.servedModelName",
    )


def _absent(pod: PodState, look: Look) -> UnsoundPod:
    """A pod without any series; one that became Ready just now is not scraped yet, or its probe missed."""
    if pod.ready_since is None or (look.now - pod.ready_since).total_seconds() <= FIRST_SCRAPES_S:
        fault = Fault(ClusterReason.TOO_FEW_REQUESTS, f"pod {pod.name} has no vLLM series yet")
        return UnsoundPod(pod.name, len(_CHECKS) + 2, fault)
    said = f"Ready pod {pod.name} has no vLLM series: its load is unknown"
    return UnsoundPod(pod.name, 1, Fault(ClusterReason.METRICS_PARTIAL, said))


def _not_numbers(one: ReadPod, _: Look) -> Fault | None:
    bad = not_a_number(one.reading.counters)
    if bad is None:
        return None
    return Fault(ClusterReason.METRICS_NAN, f"pod {one.pod.name}: {bad} is not a number")


def _uncounted(one: ReadPod, look: Look) -> Fault | None:
    """An engine of which there are counters, and never was the gauge that tells of fresh samples."""
    # Counters outlive the gauge by a window: if the window is longer than the lookback, the samples may be old.
    outlived = look.window_s > looked_back_s(look.source.staleness_seconds)
    return (
        None if outlived or {LAST_SEEN, "running"} & one.reading.stats.keys() else _partial(one, ["running"])
    )


def _partial(one: ReadPod, lacking: Iterable[str]) -> Fault:
    shown = listed(sorted({series_name(name) for name in lacking}))
    return Fault(
        ClusterReason.METRICS_PARTIAL,
        f"pod {one.pod.name}: Prometheus holds series of its engine, and not {shown}: does a relabelling drop them, or "
        "are they stored under other names?",
    )


def _stale(one: ReadPod, look: Look) -> Fault | None:
    # Counters may outlive the gauge's last sample by a window: one without a sample within the lookback is old.
    seen_s, allowed_s = one.reading.stats.get(LAST_SEEN), look.source.staleness_seconds
    said = stale(one.pod.name, seen_s, look.evaluated_s, look.now.timestamp(), allowed_s)
    return Fault(ClusterReason.METRICS_STALE, said) if said is not None else None


def _inherited(one: ReadPod, look: Look) -> Fault | None:
    """Series that began before the engine: within the window they are of its container's run before, or of the pod before."""
    seen_s, pod = one.reading.stats.get(FIRST_SEEN), one.pod
    began = pod.started if pod.crashes else pod.created if look.watched.keep_names else None
    if seen_s is None or began is None or seen_s >= began.timestamp():
        return None
    before = "engine that ended in it" if pod.crashes else "pod that it replaced under the same name"
    return Fault(
        ClusterReason.TOO_FEW_REQUESTS,
        f"the series of pod {pod.name} begin with those of the {before}, until its engine is {look.window_s:g} s old",
    )


def _ended(one: ReadPod, _: Look) -> Fault | None:
    """Statistics whose series ended while the others go on: they grew in a part of the window."""
    if not one.reading.ended:
        return None
    return Fault(
        ClusterReason.METRICS_STALE,
        f"pod {one.pod.name}: {listed(one.reading.ended)} ended within the window, and its engine's other series go on: does a "
        "relabelling drop them now, or are they stored under other names?",
    )


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _incomplete(one: ReadPod, look: Look) -> Fault | None:
    """Statistics that the other series of the same engine stand without: not counted is not zero."""
    # An increase takes two samples, a gauge one.
    lacking = missing(one.reading.counters, NEEDED) if look.seen_for_long(one) else ()
    return _partial(one, lacking) if lacking else None


def _mixed(one: ReadPod, _: Look) -> Fault | None:
    """Two engines whose series no label tells apart: neither of them, nor their sum, is known."""
    series = one.reading.mixed
    if not series:
        return None
    shown = sorted(
        {
            "{" + ", ".join(f'{name}="{each[name]}"' for name in _differing(series) if name in each) + "}"
            for each in series
        }
    )
    return Fault(
        ClusterReason.METRICS_IMPOSSIBLE,
        f"pod {one.pod.name}: the series {' and '.join(shown[:3])} look like copies of one engine, and count different things: "
        "give engines that share a pod a label engine, or choose one by metricsSource.prometheus.extraMatchers",
    )


def _differing(series: Sequence[Mapping[str, str]]) -> list[str]:
    names = sorted({name for one in series for name in one})
    return [name for name in names if len({one.get(name) for one in series}) > 1]


def _impossible(one: ReadPod, look: Look) -> Fault | None:
    said = impossible(one.reading.counters, look.limits, look.window_s)
    return (
        Fault(ClusterReason.METRICS_IMPOSSIBLE, f"pod {one.pod.name}: {said}") if said is not None else None
    )


def _young(one: ReadPod, look: Look) -> Fault | None:
    if look.seen_for_long(one):
        return None
    return Fault(
        ClusterReason.TOO_FEW_REQUESTS,
        f"pod {one.pod.name} has been watched for {look.counted(one).span_s:.0f} s only; half the window of {look.window_s:g} s "
        "is needed",
    )


# The first fault of a pod is the one that is said: a wrong count also makes everything derived from it wrong.
_CHECKS: tuple[Callable[[ReadPod, Look], Fault | None], ...] = (
    _not_numbers,
    _uncounted,
    _stale,
    _inherited,
    _ended,
    _incomplete,
    _mixed,
    _impossible,
    _young,
)
