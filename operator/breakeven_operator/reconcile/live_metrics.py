"""Present figures of one service's pods from the fleet's query, or the one reason why there are none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from breakeven.profile import Conditions
from breakeven.serving.counted_window import Window
from breakeven.serving.plausibility import EngineLimits
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import InstantSample, MeanLengths
from breakeven_operator.reconcile.fleet_query import (
    ENDED,
    EVALUATED,
    LAST_SEEN,
    MIXED,
    POSITION_STAT,
    PRESENT,
    SIBLINGS,
    SILENT,
    STAT,
    siblings_of,
)
from breakeven_operator.reconcile.past_metrics import PastLoads
from breakeven_operator.reconcile.pod_figures import (
    Look,
    PodReading,
    ReadPod,
    UnsoundPod,
    WatchedPods,
    listed,
    soundness,
)
from breakeven_operator.resources.metricssource import MetricsSource

# Parts of the serving pods that must be measured: the others, with nothing or twice as much, would move the mean by a third.
_DECIDING = 2, 3


class SeriesOwner(NamedTuple):
    """Whose series it is, by its labels; empty if a label is missing."""

    namespace: str
    pod: str
    model_name: str


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
    found = [fleet.pods.get(NamespacedName(watched.namespace, pod.name), ()) for pod in watched.serving]
    if not any(found):
        return _nothing(fleet, watched)
    look = Look(watched, source, limits, fleet.evaluated_s, now)
    sound: list[ReadPod] = []
    unsound: list[UnsoundPod] = []
    for pod, readings in zip(watched.serving, found, strict=True):
        one = soundness(pod, readings, look)
        if isinstance(one, UnsoundPod):
            unsound.append(one)
        else:
            sound.append(one)
    return _measured(sound, unsound, look)


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


def _measured(sound: Sequence[ReadPod], unsound: Sequence[UnsoundPod], look: Look) -> Live:
    """Figures of the pods that can be measured, if they are two thirds of those that serve; else the worst fault.

    One pod of many must not hold up the decision about all: a large fleet always has one that is new, restarted or not scraped.
    """
    counts = len(sound), len(sound) + len(unsound)
    few = _DECIDING[1] * counts[0] < _DECIDING[0] * counts[1]
    worst = min(unsound, key=lambda one: one.rank, default=None)
    if few and worst is not None and not worst.waits:
        return Live(worst.fault.reason, f"{worst.fault.message}{_outnumbered(counts)}")
    figures = _figures(sound, unsound, look, all_of_them=few)
    needed = look.source.min_requests
    if figures.requests < needed:
        said = f"{figures.requests:.0f} requests finished within {figures.window_s:.0f} s (needed: {needed})"
        return Live(ClusterReason.TOO_FEW_REQUESTS, said, figures)
    if few and worst is not None:
        return Live(worst.fault.reason, f"{worst.fault.message}{_outnumbered(counts)}", figures)
    names = listed([f"{one.name} ({one.fault.reason})" for one in unsound])
    measured = f"{counts[0]} of {counts[1]}" if unsound else f"{counts[0]}"
    others = f", not {names}" if unsound else ""
    return Live(
        ClusterReason.METRICS_AVAILABLE,
        f"{measured} pods measured over {figures.window_s:.0f} s{others}{_given_up(figures)}",
        figures,
    )


def _figures(
    sound: Sequence[ReadPod], unsound: Sequence[UnsoundPod], look: Look, *, all_of_them: bool
) -> Window:
    """Figures of the sound pods, and of young ones too if there are too few others; the whole load is that of all pods.

    A young pod took in the window what it counted. Any other pod that cannot be measured is taken to carry the mean of the
    measured ones, because the load is shared out among replicas; its requests are no evidence, so the bounds are wider.
    """
    counted = [look.counted(one) for one in sound]
    young = [one.young for one in unsound if one.young is not None]
    seen_s = [one.reading.stats[LAST_SEEN] for one in sound]
    seen_s += [one.stats[LAST_SEEN] for one in young]
    age_s = max(look.now.timestamp() - min(seen_s), 0.0)
    if all_of_them:
        return Window.of([*counted, *young], look.limits, age_s=age_s)
    figures = Window.of(counted, look.limits, age_s=age_s)
    came_rps = sum((one.offered or 0.0) / look.window_s for one in young)
    alike = sum(not one.waits for one in unsound)
    return replace(figures, total_rps=figures.total_rps + came_rps + alike * figures.rps)


def _outnumbered(counts: tuple[int, int]) -> str:
    """How many pods can be measured, as the end of a sentence; empty for a pod that is alone."""
    return (
        f"; {counts[0]} of {counts[1]} pods can be measured, and two thirds are needed"
        if counts[1] > 1
        else ""
    )


def _given_up(figures: Window) -> str:
    if not figures.given_up:
        return ""
    return (
        f"; clients gave up {figures.given_up:.0%} of the requests that began before their end: they count in the load, and "
        "latencies are those of the others"
    )
