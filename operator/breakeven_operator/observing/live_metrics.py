"""Present figures of one service's pods from the fleet's query, or the one reason why there are none; each pod by itself first."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from breakeven.phrases import counted, listed
from breakeven.readers.prometheus import InstantSample
from breakeven.serving.counted_window import Load
from breakeven.serving.growths import EngineLimits, Growths, impossible, missing, not_a_number, stale
from breakeven.serving.promql import NAMESPACES, PODS
from breakeven_operator.case import FleetReading, Live, SeriesOwner
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import (
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
    TURNED_AWAY,
    looked_back_s,
    series_name,
    siblings_of,
)
from breakeven_operator.resources.metricssource import MetricsSource
from breakeven_operator.workloads.target import Refusal
from breakeven_operator.workloads.workload import PodState

# A Ready pod is scraped within a few intervals; younger ones may lack series without anything being wrong.
FIRST_SCRAPES_S = 90.0


@dataclass(frozen=True, slots=True)
class WatchedPods:
    """The pods of a service that count (Ready, of the newest template), the labels of their series, and the measure of each pod.

    `known` names all pods of the namespace. If pods keep names, a pod has the name and the series of its predecessor. An answer of
    Prometheus was made at `evaluated_s`, by its own clock.
    """

    namespace: str
    model_name: str
    serving: Sequence[PodState]
    source: MetricsSource
    limits: EngineLimits
    now: datetime
    known: frozenset[str] = frozenset()
    keep_names: bool = False
    evaluated_s: float | None = None

    @property
    def window_s(self) -> float:
        """Time over which figures are taken."""
        return float(self.source.window_seconds)

    def counted(self, one: Growths) -> Growths:
        """Growth of a pod's counters, with the part of the window that they grew in."""
        return replace(one, span_s=self.span_s(one))

    def span_s(self, one: Growths) -> float:
        """The part of the window (s) in which a pod's counters grew.

        It begins with the series: Prometheus finds a pod some time after it began to serve, and one that was installed a
        minute ago has looked for a minute. It does not begin when the pod became Ready, because a probe that misses moves that.
        """
        stats = one.stats
        last_s = stats[LAST_SEEN] if self.evaluated_s is None else self.evaluated_s
        return max(min(self.window_s, last_s - stats.get(FIRST_SEEN, last_s)), 0.0)

    def seen_for_long(self, one: Growths) -> bool:
        """Whether a pod has been watched for half of the window."""
        return self.span_s(one) >= 0.5 * self.window_s


class UnsoundPod(NamedTuple):
    """A pod that serves and whose figures may not be used.

    Attributes:
        rank: place of the check that found the fault; the lowest one is shown where nothing can be decided.
        young: its counters, if it has been watched for too short a time and nothing else is wrong.
    """

    name: str
    rank: int
    fault: Refusal
    young: Growths | None = None

    @property
    def waits(self) -> bool:
        """Whether time alone will make its figures usable."""
        return self.rank > len(_CHECKS)


def soundness(pod: PodState, readings: Mapping[str, Growths], look: WatchedPods) -> Growths | UnsoundPod:
    """The counters of a pod, or the first thing that is wrong with them."""
    one = readings.get(look.model_name)
    if one is None:
        if readings:
            return UnsoundPod(pod.name, 0, _mislabelled(pod, readings, look))
        return _absent(pod, look)
    for rank, check in enumerate(_CHECKS, 2):
        if (found := check(pod, one, look)) is not None:
            young = look.counted(one) if check is _young else None
            return UnsoundPod(pod.name, rank, found, young)
    return one


def _mislabelled(pod: PodState, found: Iterable[str], look: WatchedPods) -> Refusal:
    names = ", ".join(sorted(name or "(none)" for name in found))
    return Refusal(
        ClusterReason.METRICS_MISLABELLED,
        f"pod {pod.name} reports model_name {names}, not {look.model_name}: set metricsSource.servedModelName",
    )


def _absent(pod: PodState, look: WatchedPods) -> UnsoundPod:
    """A pod without any series; one that became Ready just now is not scraped yet, or its probe missed."""
    if pod.ready_since is None or (look.now - pod.ready_since).total_seconds() <= FIRST_SCRAPES_S:
        fault = Refusal(ClusterReason.TOO_FEW_REQUESTS, f"pod {pod.name} has no vLLM series yet")
        return UnsoundPod(pod.name, len(_CHECKS) + 2, fault)
    said = f"Ready pod {pod.name} has no vLLM series: its load is unknown"
    return UnsoundPod(pod.name, 1, Refusal(ClusterReason.METRICS_PARTIAL, said))


def _not_numbers(pod: PodState, one: Growths, _: WatchedPods) -> Refusal | None:
    bad = not_a_number(one)
    if bad is None:
        return None
    return Refusal(ClusterReason.METRICS_NAN, f"pod {pod.name}: {bad} is not a number")


def _uncounted(pod: PodState, one: Growths, look: WatchedPods) -> Refusal | None:
    """An engine of which there are counters, and never was the gauge that shows fresh samples."""
    # Counters outlive the gauge by a window: if the window is longer than the lookback, the samples may be old.
    outlived = look.window_s > looked_back_s(look.source.staleness_seconds)
    return None if outlived or {LAST_SEEN, "running"} & one.stats.keys() else _partial(pod, ["running"])


def _partial(pod: PodState, lacking: Iterable[str]) -> Refusal:
    shown = listed(sorted({series_name(name) for name in lacking}))
    return Refusal(
        ClusterReason.METRICS_PARTIAL,
        f"pod {pod.name}: Prometheus holds series of its engine, and not {shown}: does a relabelling drop them, or "
        "are they stored under other names?",
    )


def _stale(pod: PodState, one: Growths, look: WatchedPods) -> Refusal | None:
    # Counters may outlive the gauge's last sample by a window: one without a sample within the lookback is old.
    seen_s, allowed_s = one.stats.get(LAST_SEEN), look.source.staleness_seconds
    said = stale(pod.name, seen_s, look.evaluated_s, look.now.timestamp(), allowed_s)
    return Refusal(ClusterReason.METRICS_STALE, said) if said is not None else None


def _inherited(pod: PodState, one: Growths, look: WatchedPods) -> Refusal | None:
    """Series that began before the engine: within the window they are of its container's run before, or of the pod before."""
    seen_s = one.stats.get(FIRST_SEEN)
    began = pod.started if pod.crashes else pod.created if look.keep_names else None
    if seen_s is None or began is None or seen_s >= began.timestamp():
        return None
    before = "engine that ended in it" if pod.crashes else "pod that it replaced under the same name"
    return Refusal(
        ClusterReason.TOO_FEW_REQUESTS,
        f"the series of pod {pod.name} begin with those of the {before}, until its engine is {look.window_s:g} s old",
    )


def _ended(pod: PodState, one: Growths, _: WatchedPods) -> Refusal | None:
    """Statistics whose series ended while the others go on: they grew in a part of the window."""
    if not one.ended:
        return None
    return Refusal(
        ClusterReason.METRICS_STALE,
        f"pod {pod.name}: {listed(one.ended)} ended within the window, and its engine's other series go on: does a "
        "relabelling drop them now, or are they stored under other names?",
    )


def _incomplete(pod: PodState, one: Growths, look: WatchedPods) -> Refusal | None:
    """Statistics that the other series of the same engine stand without: not counted is not zero."""
    # An increase takes two samples, a gauge one.
    lacking = missing(one, NEEDED) if look.seen_for_long(one) else ()
    return _partial(pod, lacking) if lacking else None


def _mixed(pod: PodState, one: Growths, _: WatchedPods) -> Refusal | None:
    """Two engines whose series no label tells apart: neither of them, nor their sum, is known."""
    series = one.mixed
    if not series:
        return None
    shown = sorted(
        {
            "{" + ", ".join(f'{name}="{each[name]}"' for name in _differing(series) if name in each) + "}"
            for each in series
        }
    )
    return Refusal(
        ClusterReason.METRICS_IMPOSSIBLE,
        f"pod {pod.name}: the series {' and '.join(shown[:3])} look like copies of one engine, and count different things: "
        "give engines that share a pod a label engine, or choose one by metricsSource.prometheus.extraMatchers",
    )


def _differing(series: Sequence[Mapping[str, str]]) -> list[str]:
    names = sorted({name for one in series for name in one})
    return [name for name in names if len({one.get(name) for one in series}) > 1]


def _impossible(pod: PodState, one: Growths, look: WatchedPods) -> Refusal | None:
    said = impossible(one, look.limits, look.window_s)
    return Refusal(ClusterReason.METRICS_IMPOSSIBLE, f"pod {pod.name}: {said}") if said is not None else None


def _young(pod: PodState, one: Growths, look: WatchedPods) -> Refusal | None:
    if look.seen_for_long(one):
        return None
    return Refusal(
        ClusterReason.TOO_FEW_REQUESTS,
        f"pod {pod.name} has been watched for {look.span_s(one):.0f} s only; half the window of {look.window_s:g} s "
        "is needed",
    )


# The first fault of a pod is reported: a wrong count also makes everything derived from it wrong.
_CHECKS: tuple[Callable[[PodState, Growths, WatchedPods], Refusal | None], ...] = (
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
# Parts of the serving pods that must be measured: the others, with nothing or twice as much, would move the mean by a third.
_DECIDING = 2, 3
# Fewer requests that were turned away are no news.
_TOLD_SHARE, _TOLD_REQUESTS = 0.01, 5.0


def read_fleet(series: Iterable[InstantSample]) -> FleetReading:
    """Sort the elements of a fleet query's result by pod, and elements of sums by ReplicaSet."""
    found: dict[str, list[tuple[SeriesOwner, InstantSample]]] = defaultdict(list)
    for element in series:
        labels = element.labels
        key = SeriesOwner.of(labels, "pod" if labels.get("pod") else SIBLINGS)
        found[labels.get(STAT, "")].append((key, element))
    present, silent = found.pop(PRESENT, []), found.pop(SILENT, [])
    turned_away = {key.named: one.value for key, one in found.pop(TURNED_AWAY, [])}
    evaluated_s = next((one.value for _, one in reversed(found.pop(EVALUATED, []))), None)
    return FleetReading(
        _of_pods(found),
        frozenset(key for key, _ in present),
        evaluated_s=evaluated_s,
        silent=frozenset(key.named for key, one in silent if one.value),
        down=frozenset(key.named for key, one in silent if not one.value),
        renamed={pod: said for key, one in present for pod, said in _renamed(key, one.labels).items()},
        turned_away=turned_away,
    )


def _of_pods(
    found: Mapping[str, Sequence[tuple[SeriesOwner, InstantSample]]],
) -> dict[NamespacedName, dict[str, Growths]]:
    stats: dict[SeriesOwner, dict[str, float]] = defaultdict(dict)
    accepted: dict[SeriesOwner, dict[int, float]] = defaultdict(dict)
    mixed: dict[SeriesOwner, list[Mapping[str, str]]] = defaultdict(list)
    ended: dict[SeriesOwner, list[str]] = defaultdict(list)
    for stat, elements in found.items():
        for key, element in elements:
            labels = element.labels
            if stat == ENDED:
                ended[key].append(labels.get("__name__", ""))
            elif stat == MIXED:
                mixed[key].append(labels)
            elif stat == POSITION_STAT and SIBLINGS not in labels:
                if labels.get("position", "").isdigit():
                    accepted[key][int(labels["position"])] = element.value
            else:
                stats[key][stat] = element.value
    pods: dict[NamespacedName, dict[str, Growths]] = defaultdict(dict)
    for owner, values in stats.items():
        pods[owner.named][owner.model_name] = Growths(
            values,
            accepted.get(owner, {}),
            mixed=tuple(mixed.get(owner, ())),
            ended=tuple(sorted(ended.get(owner, ()))),
        )
    return dict(pods)


def _renamed(owner: SeriesOwner, labels: Mapping[str, str]) -> dict[NamespacedName, str]:
    """The pod that other labels of a series name, with these; nothing if there are none."""
    namespace = next((name for name in NAMESPACES if labels.get(name)), None)
    pod = next((name for name in PODS if labels.get(name)), None)
    found = [name for name in (namespace, pod) if name is not None]
    key = NamespacedName(
        labels[namespace] if namespace else owner.namespace, labels[pod] if pod else owner.pod
    )
    return {key: " and ".join(f"{name}={labels[name]!r}" for name in found)} if found else {}


def read_service(fleet: FleetReading, watched: WatchedPods) -> Live:
    """The figures of one service, or the reason why a decision must wait.

    The age of a sample is what the operator's clock says less the time that Prometheus' clock gave it. A server whose
    clock is ahead seems fresh for so much longer, and one that is behind old so much sooner; a difference beyond
    `watched.source.staleness_seconds`, or a minute ahead, leaves nothing to be trusted.
    """
    if fleet.error is not None:
        return Live(ClusterReason.METRICS_MISSING, f"Prometheus gives no answer: {fleet.error}")
    if not watched.serving:
        message = "no pod of the newest template is Ready, so none can be measured"
        return Live(ClusterReason.REPLICAS_UNREADY, message)
    found = [fleet.pods.get(NamespacedName(watched.namespace, pod.name), {}) for pod in watched.serving]
    if not any(found):
        return _nothing(fleet, watched)
    look = replace(watched, evaluated_s=fleet.evaluated_s)
    sound: list[Growths] = []
    unsound: list[UnsoundPod] = []
    for pod, readings in zip(watched.serving, found, strict=True):
        one = soundness(pod, readings, look)
        if isinstance(one, UnsoundPod):
            unsound.append(one)
        else:
            sound.append(one)
    turned_away = {
        pod.name: fleet.turned_away.get(NamespacedName(watched.namespace, pod.name), 0.0)
        for pod in watched.serving
    }
    return _with_turned_away(_measured(sound, unsound, look), sum(turned_away.values()), look.window_s)


def _with_turned_away(live: Live, requests: float, window_s: float) -> Live:
    """The figures with requests that pods turned away: demand of the whole fleet, and no load of any engine."""
    figures = live.figures
    if figures is None or not (math.isfinite(requests) and requests > 0.0):
        return live
    total_rps = figures.total_rps + requests / window_s
    share = requests / window_s / total_rps
    said = (
        f"; {share:.0%} of the requests were turned away (HTTP 5xx or 429): they count in the load of the fleet, and in that of no replica"
        if share > _TOLD_SHARE and requests > _TOLD_REQUESTS
        else ""
    )
    return replace(live, message=f"{live.message}{said}", figures=replace(figures, total_rps=total_rps))


def _nothing(fleet: FleetReading, watched: WatchedPods) -> Live:
    """No series under the pods' names: is the model seen under labels that cannot be matched?"""
    namespace, model_name = watched.namespace, watched.model_name
    names = {NamespacedName(namespace, pod.name): pod.name for pod in watched.serving}
    for key in sorted(names.keys() & fleet.renamed.keys()):
        return Live(
            ClusterReason.METRICS_MISLABELLED,
            f"the series of pod {names[key]} name it by {fleet.renamed[key]}, not by namespace and pod: name these labels in "
            "metricsSource.prometheus.labelNames, or set honorLabels in the job that scrapes or federates them",
        )
    others = sorted(one for one in fleet.present if one.model_name == model_name)
    for one in others:
        here = one.namespace == namespace
        elsewhere = one.pod in names.values() and not here
        if not all(one.named) or elsewhere or (here and one.pod not in watched.known):
            return Live(
                ClusterReason.METRICS_MISLABELLED,
                f"series of model {model_name} carry {_place(one)}, which is no pod "
                f"of {namespace}: check the relabelling (honorLabels) of the PodMonitor or scrape job, and metricsSource.prometheus.labelNames",
            )
    siblings = {pod.name: NamespacedName(namespace, siblings_of(pod.name)) for pod in watched.serving}
    failing = sorted(name for name, of in siblings.items() if of in fleet.down)
    if failing:
        return Live(
            ClusterReason.METRICS_EMPTY,
            f"Prometheus cannot scrape pods such as {failing[0]} (up is 0: their target is down): look at the error on its target page; port, "
            "path, TLS or a NetworkPolicy",
        )
    silent = sorted(name for name, of in siblings.items() if of in fleet.silent)
    if silent:
        return Live(
            ClusterReason.METRICS_EMPTY,
            f"Prometheus scrapes pod {silent[0]}, and its page has no vLLM series: does its engine run with --disable-log-stats, or do "
            "their names not begin with metricsSource.metricPrefix?",
        )
    seen = f"; it holds some of model {model_name} under {_place(others[0])}" if others else ""
    return Live(
        ClusterReason.METRICS_EMPTY,
        f"Prometheus answers, but holds no vLLM series of the pods in {namespace}{seen}: is a PodMonitor scraping them, and do their names "
        "begin with metricsSource.metricPrefix?",
    )


def _place(owner: SeriesOwner) -> str:
    return f"namespace={owner.namespace!r} pod={owner.pod!r}"


def _measured(sound: Sequence[Growths], unsound: Sequence[UnsoundPod], look: WatchedPods) -> Live:
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
    measured = f"{counts[0]} of {counts[1]} pods" if unsound else counted(counts[0], "pod")
    others = f", not {names}" if unsound else ""
    return Live(
        ClusterReason.METRICS_AVAILABLE,
        f"{measured} measured over {figures.window_s:.0f} s{others}{_given_up(figures)}",
        figures,
    )


def _figures(
    sound: Sequence[Growths], unsound: Sequence[UnsoundPod], look: WatchedPods, *, all_of_them: bool
) -> Load:
    """Figures of the sound pods, and of young ones too if there are too few others; the whole load is of all pods.

    A young pod took in the window what it counted. Any other pod that cannot be measured is taken to carry the mean of the
    measured ones, because the load is shared out among replicas; its requests are no evidence, so the bounds are wider.
    """
    counted = [look.counted(one) for one in sound]
    young = [one.young for one in unsound if one.young is not None]
    seen_s = [one.stats[LAST_SEEN] for one in sound]
    seen_s += [one.stats[LAST_SEEN] for one in young]
    age_s = max(look.now.timestamp() - min(seen_s), 0.0)
    if all_of_them:
        return Load.of([*counted, *young], look.limits, age_s=age_s)
    figures = Load.of(counted, look.limits, age_s=age_s)
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


def _given_up(figures: Load) -> str:
    if not figures.given_up:
        return ""
    return (
        f"; clients gave up {figures.given_up:.0%} of the requests that began before their end: they count in the load, and "
        "latencies are those of the others"
    )
