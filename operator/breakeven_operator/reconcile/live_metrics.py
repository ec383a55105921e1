"""Present figures of one service's pods from the fleet's query, or the one reason why there are none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from breakeven import phrases
from breakeven.profile import Conditions
from breakeven.serving.counted_window import Window
from breakeven.serving.growths import Growths
from breakeven.serving.plausibility import EngineLimits, impossible, missing, not_a_number, stale
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import InstantSample, MeanLengths
from breakeven_operator.reconcile.fleet_query import (
    ENDED,
    EVALUATED,
    FIRST_SEEN,
    LAST_SEEN,
    MIXED,
    NEEDED,
    POSITION_STAT,
    PRESENT,
    SIBLINGS,
    SILENT,
    STAT,
    looked_back_s,
    series_name,
    siblings_of,
)
from breakeven_operator.reconcile.past_metrics import PastLoads
from breakeven_operator.resources.metricssource import MetricsSource
from breakeven_operator.workloads.workload import PodState

# A Ready pod is scraped within a few intervals; younger ones may lack series without anything being wrong.
FIRST_SCRAPES_S = 90.0


@dataclass(frozen=True, slots=True)
class WatchedPods:
    """The pods of a service that count, and the labels of their series.

    Attributes:
        namespace: of the service.
        model_name: vLLM's `model_name` of this service.
        serving: Ready pods of the newest template.
        known: names of all pods of the namespace.
        keep_names: whether a pod has the name of the one that it replaced, and with it that one's series.
    """

    namespace: str
    model_name: str
    serving: Sequence[PodState]
    known: frozenset[str] = frozenset()
    keep_names: bool = False


@dataclass(frozen=True, slots=True)
class PodReading:
    """All statistics of one pod under one model name.

    Attributes:
        model_name: as the series say.
        stats: by name. accepted: drafts, by position.
        mixed: labels of series that look like copies of one engine and count different things.
        ended: names of series that ended within the window.
    """

    model_name: str
    stats: Mapping[str, float]
    accepted: Mapping[int, float]
    mixed: tuple[Mapping[str, str], ...] = ()
    ended: tuple[str, ...] = ()

    @property
    def counters(self) -> Growths:
        """The statistics alone."""
        return Growths(self.stats, self.accepted)


class SeriesOwner(NamedTuple):
    """Whose series it is, by its labels; empty if a label is missing."""

    namespace: str
    pod: str
    model_name: str


class ReadPod(NamedTuple):
    """A pod that counts, and what Prometheus says of it."""

    pod: PodState
    reading: PodReading


@dataclass(frozen=True, slots=True)
class FleetReading:
    """The answer to one query about a fleet, by pod or by ReplicaSet; or why there is none.

    Attributes:
        pods: readings by pod; of sums by what the names of a ReplicaSet's pods have in common.
        present: whose vLLM series there are, anywhere in this Prometheus.
        silent: what the names of pods have in common whose page is scraped and has no vLLM series.
        error: one line when Prometheus gave no usable answer.
        evaluated_s: Unix time at which Prometheus made the answer, by its own clock; None: it does not say.
    """

    pods: Mapping[NamespacedName, tuple[PodReading, ...]]
    present: frozenset[SeriesOwner]
    error: str | None = None
    evaluated_s: float | None = None
    silent: frozenset[NamespacedName] = frozenset()


@dataclass(frozen=True, slots=True)
class Live:
    """Figures, or a reason to hold.

    Attributes:
        reason: MetricsAvailable, or why the figures may not be used.
        message: a whole sentence.
        figures: set with MetricsAvailable; to be shown, not to decide on, with TooFewRequests or while the past is awaited.
        past: loads before now, which are expected again.
    """

    reason: ClusterReason
    message: str
    figures: Window | None = None
    past: PastLoads = field(default_factory=PastLoads)

    @property
    def usable(self) -> bool:
        """Whether a decision may rest on the figures."""
        return self.reason is ClusterReason.METRICS_AVAILABLE

    @property
    def lengths(self) -> MeanLengths | None:
        """Mean lengths of the requests, if enough were seen; a calibration without a workload of its own sends these."""
        figures = self.figures if self.usable else None
        if figures is None or figures.prompt_tokens is None or figures.output_tokens is None:
            return None
        return MeanLengths(figures.prompt_tokens, figures.output_tokens, figures.prefix_hit_ratio)

    @property
    def conditions(self) -> Conditions:
        """Lengths and dispersion of present requests, as far as they are known.

        The dispersion counts even if the window is of no use: it is of a longer time, and says itself when it is unknown.
        """
        lengths, figures = self.lengths, self.figures
        return Conditions(
            prompt_tokens=lengths.prompt_tokens if lengths is not None else None,
            output_tokens=lengths.output_tokens if lengths is not None else None,
            dispersion=figures.arrivals.dispersion_or_poisson if figures is not None else 1.0,
        )


def read_fleet(series: Iterable[InstantSample]) -> FleetReading:
    """Sort the elements of a fleet query's result by pod, and those of sums by ReplicaSet."""
    stats: dict[SeriesOwner, dict[str, float]] = defaultdict(dict)
    accepted: dict[SeriesOwner, dict[int, float]] = defaultdict(dict)
    mixed: dict[SeriesOwner, list[Mapping[str, str]]] = defaultdict(list)
    ended: dict[SeriesOwner, list[str]] = defaultdict(list)
    present, silent = set(), set()
    evaluated_s = None
    for element in series:
        labels = element.labels
        name = labels.get("pod") or labels.get(SIBLINGS, "")
        key = SeriesOwner(labels.get("namespace", ""), name, labels.get("model_name", ""))
        stat = labels.get(STAT, "")
        if stat == PRESENT:
            present.add(key)
        elif stat == SILENT:
            silent.add(NamespacedName(key.namespace, key.pod))
        elif stat == ENDED:
            ended[key].append(labels.get("__name__", ""))
        elif stat == EVALUATED:
            evaluated_s = element.value
        elif stat == MIXED:
            mixed[key].append(labels)
        elif stat == POSITION_STAT and SIBLINGS not in labels:
            if labels.get("position", "").isdigit():
                accepted[key][int(labels["position"])] = element.value
        else:
            stats[key][stat] = element.value
    pods: dict[NamespacedName, list[PodReading]] = defaultdict(list)
    for owner, values in stats.items():
        reading = PodReading(
            owner.model_name,
            values,
            accepted.get(owner, {}),
            tuple(mixed.get(owner, ())),
            tuple(sorted(ended.get(owner, ()))),
        )
        pods[NamespacedName(owner.namespace, owner.pod)].append(reading)
    return FleetReading(
        {key: tuple(readings) for key, readings in pods.items()},
        frozenset(present),
        evaluated_s=evaluated_s,
        silent=frozenset(silent),
    )


def read_service(
    fleet: FleetReading, watched: WatchedPods, source: MetricsSource, limits: EngineLimits, now: datetime
) -> Live:
    """The figures of one service, or the reason why a decision must wait.

    The age of a sample is what the operator's clock says less the time that Prometheus' clock gave it. A server whose
    clock is ahead seems fresh for so much longer, and one that is behind old so much sooner; a difference beyond
    `source.staleness_seconds` leaves nothing to be trusted either way.

    Args:
        fleet: the fleet query's answer.
        watched: the pods that count.
        source: window, age of samples and number of requests that the service asks for.
        limits: what one pod's engine can do at most.
        now: of the observation.
    """
    if fleet.error is not None:
        return Live(ClusterReason.METRICS_MISSING, f"Prometheus gives no answer: {fleet.error}")
    if not watched.serving:
        return Live(
            ClusterReason.REPLICAS_UNREADY,
            "no pod of the newest template is Ready, so none can be measured",
        )
    readings: list[ReadPod] = []
    for pod in watched.serving:
        found = fleet.pods.get(NamespacedName(watched.namespace, pod.name), ())
        match = next((reading for reading in found if reading.model_name == watched.model_name), None)
        if match is not None:
            readings.append(ReadPod(pod, match))
        elif found:
            return _mislabelled(pod, found, watched.model_name)
    window_s, staleness_s = source.window_seconds, source.staleness_seconds
    return (
        _absent(fleet, watched, readings, now)
        or _not_numbers(readings)
        or _uncounted(readings, window_s, staleness_s)
        or _stale(readings, fleet.evaluated_s, staleness_s, now)
        or (_inherited(readings, window_s) if watched.keep_names else None)
        or _ended(readings)
        or _incomplete(readings, window_s, fleet.evaluated_s, now)
        or _mixed(readings)
        or _impossible(readings, limits, window_s)
        or _measured(readings, limits, source, fleet.evaluated_s, now)
    )


def _mislabelled(pod: PodState, found: Iterable[PodReading], model_name: str) -> Live:
    names = ", ".join(sorted(reading.model_name or "(none)" for reading in found))
    return Live(
        ClusterReason.METRICS_MISLABELLED,
        f"pod {pod.name} reports model_name {names}, not {model_name}: set metricsSource.servedModelName",
    )


def _absent(
    fleet: FleetReading, watched: WatchedPods, readings: Sequence[ReadPod], now: datetime
) -> Live | None:
    """Pods without any series; a young one is not scraped yet."""
    if not readings:
        return _nothing(fleet, watched)
    pods = watched.serving
    without = sorted(
        {pod.name for pod in pods if _age(pod, now) > FIRST_SCRAPES_S} - {pod.name for pod, _ in readings}
    )
    if not without:
        return None
    return Live(
        ClusterReason.METRICS_PARTIAL,
        f"{len(without)} of {len(pods)} Ready pods have no vLLM series ({without[0]}): their load is unknown",
    )


def _nothing(fleet: FleetReading, watched: WatchedPods) -> Live:
    """No series under the pods' names: is the model seen under labels that cannot be matched?"""
    namespace, model_name = watched.namespace, watched.model_name
    for found_namespace, found_pod, found_model in sorted(fleet.present):
        if found_model != model_name:
            continue
        nameless = not found_namespace or not found_pod
        if nameless or (found_namespace == namespace and found_pod not in watched.known):
            return Live(
                ClusterReason.METRICS_MISLABELLED,
                f"series of model {model_name} carry namespace={found_namespace!r} pod={found_pod!r}, which is no pod "
                f"of {namespace}: check the relabelling (honorLabels) of the PodMonitor or scrape job",
            )
    silent = sorted(
        pod.name
        for pod in watched.serving
        if NamespacedName(namespace, siblings_of(pod.name)) in fleet.silent
    )
    if silent:
        return Live(
            ClusterReason.METRICS_EMPTY,
            f"Prometheus scrapes pod {silent[0]}, and its page has no vLLM series: does its engine run with --disable-log-stats, or do "
            "their names not begin with metricsSource.metricPrefix?",
        )
    return Live(
        ClusterReason.METRICS_EMPTY,
        f"Prometheus answers, but holds no vLLM series of the pods in {namespace}: is a PodMonitor scraping them, and do their names "
        "begin with metricsSource.metricPrefix?",
    )


def _not_numbers(readings: Sequence[ReadPod]) -> Live | None:
    for pod, reading in readings:
        bad = not_a_number(reading.counters)
        if bad is not None:
            return Live(ClusterReason.METRICS_NAN, f"pod {pod.name}: {bad} is not a number")
    return None


def _uncounted(readings: Sequence[ReadPod], window_s: float, staleness_s: float) -> Live | None:
    """Engines of which there are counters, and never was the gauge that tells of fresh samples."""
    for pod, reading in readings:
        # Counters outlive the gauge by a window: if the window is longer than the lookback, the samples may be old.
        if {LAST_SEEN, "running"} & reading.stats.keys() or window_s > looked_back_s(staleness_s):
            continue
        return _partial(pod, ["running"])
    return None


def _partial(pod: PodState, lacking: Iterable[str]) -> Live:
    shown = _listed(sorted({series_name(name) for name in lacking}))
    return Live(
        ClusterReason.METRICS_PARTIAL,
        f"pod {pod.name}: Prometheus holds series of its engine, and not {shown}: does a relabelling drop them, or "
        "are they stored under other names?",
    )


def _stale(
    readings: Sequence[ReadPod],
    evaluated_s: float | None,
    staleness_s: float,
    now: datetime,
) -> Live | None:
    for pod, reading in readings:
        # Counters may outlive the gauge's last sample by a window: one without a sample within the lookback is old.
        seen_s = reading.stats.get(LAST_SEEN)
        said = stale(pod.name, seen_s, evaluated_s, now.timestamp(), staleness_s)
        if said is not None:
            return Live(ClusterReason.METRICS_STALE, said)
    return None


def _inherited(readings: Sequence[ReadPod], window_s: float) -> Live | None:
    """Pods whose series began before themselves: within the window they are those of the pod that had the name before."""
    for pod, reading in readings:
        seen_s = reading.stats.get(FIRST_SEEN)
        if seen_s is not None and pod.created is not None and seen_s < pod.created.timestamp():
            return Live(
                ClusterReason.TOO_FEW_REQUESTS,
                f"the series of pod {pod.name} begin with those of the pod that it replaced under the same name, until it is "
                f"{window_s:g} s old",
            )
    return None


def _ended(readings: Sequence[ReadPod]) -> Live | None:
    """Statistics whose series ended while the others go on: their growth is that of a part of the window."""
    for pod, reading in readings:
        if reading.ended:
            return Live(
                ClusterReason.METRICS_STALE,
                f"pod {pod.name}: {_listed(reading.ended)} ended within the window, and its engine's other series go on: does a "
                "relabelling drop them now, or are they stored under other names?",
            )
    return None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _incomplete(
    readings: Sequence[ReadPod], window_s: float, evaluated_s: float | None, now: datetime
) -> Live | None:
    """Statistics that the other series of the same engine stand without: not counted is not zero."""
    for one in readings:
        # An increase takes two samples, a gauge one.
        if _watched_s(one, window_s, evaluated_s, now) < 0.5 * window_s:
            continue
        lacking = missing(one.reading.counters, NEEDED)
        if lacking:
            return _partial(one.pod, lacking)
    return None


def _mixed(readings: Sequence[ReadPod]) -> Live | None:
    """Two engines whose series no label tells apart: neither of them, nor their sum, is known."""
    for pod, reading in readings:
        if not reading.mixed:
            continue
        shown = sorted(
            {
                "{"
                + ", ".join(f'{name}="{one[name]}"' for name in _differing(reading.mixed) if name in one)
                + "}"
                for one in reading.mixed
            }
        )
        return Live(
            ClusterReason.METRICS_IMPOSSIBLE,
            f"pod {pod.name}: the series {' and '.join(shown[:3])} look like copies of one engine, and count different things: "
            "give engines that share a pod a label engine, or choose one by metricsSource.prometheus.extraMatchers",
        )
    return None


def _differing(series: Sequence[Mapping[str, str]]) -> list[str]:
    """Labels in which they are not all the same."""
    names = sorted({name for one in series for name in one})
    return [name for name in names if len({one.get(name) for one in series}) > 1]


def _impossible(readings: Sequence[ReadPod], limits: EngineLimits, window_s: float) -> Live | None:
    for pod, reading in readings:
        said = impossible(reading.counters, limits, window_s)
        if said is not None:
            return Live(ClusterReason.METRICS_IMPOSSIBLE, f"pod {pod.name}: {said}")
    return None


def _measured(
    readings: Sequence[ReadPod],
    limits: EngineLimits,
    source: MetricsSource,
    evaluated_s: float | None,
    now: datetime,
) -> Live:
    window_s, min_requests = source.window_seconds, source.min_requests
    spans = [_watched_s(one, window_s, evaluated_s, now) for one in readings]
    age_s = max(now.timestamp() - min(reading.stats[LAST_SEEN] for _, reading in readings), 0.0)
    counted = [
        replace(one.reading.counters, span_s=span_s) for one, span_s in zip(readings, spans, strict=True)
    ]
    figures = Window.of(counted, limits, age_s=age_s)
    if figures.requests < min_requests:
        return Live(
            ClusterReason.TOO_FEW_REQUESTS,
            f"{figures.requests:.0f} requests finished within {figures.window_s:.0f} s (needed: {min_requests})",
            figures,
        )
    if min(spans) < 0.5 * window_s:
        return Live(
            ClusterReason.TOO_FEW_REQUESTS,
            f"a pod has been watched for {min(spans):.0f} s only; half the window of {window_s:g} s is needed",
            figures,
        )
    return Live(
        ClusterReason.METRICS_AVAILABLE,
        f"{phrases.counted(len(readings), 'pod')} measured over {figures.window_s:.0f} s{_given_up(figures)}",
        figures,
    )


def _given_up(figures: Window) -> str:
    if not figures.given_up:
        return ""
    return (
        f"; clients gave up {figures.given_up:.0%} of the requests that began before their end: they count in the load, and "
        "latencies are those of the others"
    )


def _watched_s(one: ReadPod, window_s: float, evaluated_s: float | None, now: datetime) -> float:
    """The part of the window (s) in which a pod served and Prometheus looked: what its counters grew in.

    Prometheus finds a pod some time after it became Ready, and one that was installed a minute ago has looked for a minute.
    """
    stats = one.reading.stats
    last_s = stats[LAST_SEEN] if evaluated_s is None else evaluated_s
    looked_s = last_s - stats.get(FIRST_SEEN, last_s)
    return max(min(window_s, _age(one.pod, now), looked_s), 0.0)


def _age(pod: PodState, now: datetime) -> float:
    return (now - pod.ready_since).total_seconds() if pod.ready_since else 0.0
