"""Latencies of users: vLLM's own histograms of the pods that count, or the one reason why there are none.

Latencies have a query of their own: 65 buckets per pod are more than everything else that is asked about a fleet. An answer
that grows too large must not take the load away from the decisions. So the query is about services with objectives only.
Prometheus adds the buckets up over sibling pods (`fleet_query.siblings_of`): the answer
grows with services, not with pods, and still leaves out pods of an arm that is being replaced.

Of vLLM's times between tokens only the one per request is a time per output token. `inter_token_latency_seconds` counts steps,
which speculation makes longer while it makes requests faster.

A histogram that Prometheus stores as one series (a native one) answers with its own buckets. If an engine's histogram is
stored in both forms, the query takes the classic form.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from breakeven import phrases
from breakeven.planning.objective import Histogram, added_up
from breakeven.planning.prompt_lengths import PromptPart, counted_parts
from breakeven.readers.prometheus import InstantSample
from breakeven.serving.promql import ENGINE, POD, PREFIX, EngineSeries, Matcher, any_of, joined
from breakeven_operator.case import Latencies, LatencyReading, Live, SeriesOwner
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import SIBLINGS, STAT, siblings_of, with_siblings
from breakeven_operator.observing.live_metrics import WatchedPods

E2E, TTFT, TPOT, PROMPT = "e2e", "ttft", "tpot", "prompt"
_LATENCIES = {
    E2E: "e2e_request_latency_seconds",
    TTFT: "time_to_first_token_seconds",
    TPOT: "request_time_per_output_token_seconds",
}
_LENGTHS = {PROMPT: "request_prompt_tokens"}
_HISTOGRAMS = {**_LATENCIES, **_LENGTHS}
_ENGINES = ",".join((*POD, *ENGINE))
_ByFigure: TypeAlias = Mapping[str, Mapping[float, float]]
# Prometheus extrapolates each bucket by itself: by so much one may come out below the one before it.
_SLACK_SHARE, _SLACK_REQUESTS = 0.05, 5.0


def latency_query(targets: Iterable[NamespacedName], engines: EngineSeries, window_s: int) -> str:
    """Requests by latency over the window, of all pods of some workloads.

    Returns:
        An instant query whose result has the labels namespace, siblings, model_name, le and `stat` (e2e, ttft or tpot). An
        element without le is a native histogram.

    Raises:
        ValueError: a matcher that is none.
    """
    return _histogram_query(targets, engines, window_s, _LATENCIES)


def prompts_query(targets: Iterable[NamespacedName], engines: EngineSeries, window_s: int) -> str:
    """Finished requests by the length of their prompt, in the same form; `stat` is prompt."""
    return _histogram_query(targets, engines, window_s, _LENGTHS)


def _histogram_query(
    targets: Iterable[NamespacedName], engines: EngineSeries, window_s: int, families: Mapping[str, str]
) -> str:
    wanted = list(targets)
    chosen = engines.only(
        Matcher("namespace", "=~", any_of({target.namespace for target in wanted})),
        Matcher("pod", "=~", f"({any_of({target.name for target in wanted})})-.+"),
    )
    within = f"[{int(window_s)}s]"
    all_of = Matcher("le", "=", "+Inf")
    buckets, whole = {}, {}
    for figure, family in families.items():
        buckets[figure] = f"increase({chosen.named(f'{family}_bucket')}{within})"
        classic = f"increase({chosen.named(f'{family}_bucket', all_of)}{within})"
        whole[figure] = f"increase({chosen.named(family)}{within}) unless on({_ENGINES}) {classic}"
    by = f"namespace,{SIBLINGS},model_name,{STAT}"
    copies = chosen.once("max", joined(buckets), STAT, "le")
    # There is no highest one of native histograms: the mean of copies has the shape that they have.
    natives = chosen.once("avg", joined(whole), STAT)
    return f"sum by({by},le)({with_siblings(copies)})\nor sum by({by})({with_siblings(natives)})"


def read_latencies(series: Iterable[InstantSample]) -> LatencyReading:
    """Sort the elements of a latency query's result by owner; an edge that is no number is left out."""
    parts: dict[tuple[SeriesOwner, str, bool], dict[float, float]] = defaultdict(dict)
    for element in series:
        labels = element.labels
        figure, text = labels.get(STAT), labels.get("le")
        if figure not in _HISTOGRAMS:
            continue
        key = SeriesOwner.of(labels, SIBLINGS), figure, text is None
        if text is None:
            parts[key] = _up_to_edges(element)
        elif (edge_s := _edge_s(text)) is not None:
            parts[key][edge_s] = element.value
    # Of an owner some pods may have classic and some native histograms.
    of_owner: dict[SeriesOwner, list[_ByFigure]] = defaultdict(list)
    for (owner, figure, _), counts in parts.items():
        of_owner[owner].append({figure: counts})
    return LatencyReading({owner: _sums(found) for owner, found in of_owner.items()})


def _sums(found: Sequence[_ByFigure]) -> _ByFigure:
    return {
        figure: added_up([one[figure] for one in found if figure in one])
        for figure in dict.fromkeys(figure for one in found for figure in one)
    }


def _up_to_edges(element: InstantSample) -> dict[float, float]:
    """Counts of a native histogram by upper edge (s); the lower end of a bucket is one too, of what lies before it."""
    found: dict[float, float] = {}
    before = 0.0
    for bucket in sorted(element.buckets):
        if bucket.lower > 0.0:
            found.setdefault(bucket.lower, before)
        before += bucket.values
        if bucket.upper > 0.0:
            found[bucket.upper] = before
    # A sum of buckets differs from the count in the last digits, and an edge between the two would then be unknown.
    return {**found, math.inf: before if math.isclose(before, element.value) else element.value}


def latencies_of(reading: LatencyReading | None, watched: WatchedPods, live: Live) -> Latencies | None:
    """The latencies of one service's requests; None if nobody asked for them.

    A fault of its live figures is one here, too, but for few requests, which widen the bounds by themselves.
    """
    if reading is None:
        return None
    if not live.usable and live.reason is not ClusterReason.TOO_FEW_REQUESTS:
        return Latencies(live.reason, live.message)
    if reading.error is not None:
        return Latencies(ClusterReason.METRICS_MISSING, f"Prometheus gives no latencies: {reading.error}")
    found: list[_ByFigure] = []
    for siblings in sorted({siblings_of(pod.name) for pod in watched.serving}):
        of_siblings = reading.counts.get(SeriesOwner(watched.namespace, siblings, watched.model_name), {})
        for figure, counts in of_siblings.items():
            wrong = _wrong(counts)
            if wrong is not None:
                reason, said = wrong
                return Latencies(reason, f"{PREFIX}{_HISTOGRAMS[figure]} of the pods {siblings}...: {said}")
        found.append(of_siblings)
    histograms = {
        figure: histogram
        for figure, counts in _sums(found).items()
        if (histogram := Histogram.of(counts)) is not None
    }
    if not histograms:
        names = ", ".join(f"{PREFIX}{name}_bucket" for name in _LATENCIES.values())
        return Latencies(
            ClusterReason.METRICS_EMPTY,
            f"Prometheus holds no histogram of the target's pods: does a relabelling drop {names}?",
        )
    return Latencies(ClusterReason.METRICS_AVAILABLE, "latencies measured", histograms)


def prompts_of(reading: LatencyReading, watched: WatchedPods, live: Live) -> tuple[PromptPart, ...]:
    """Quarters of one service's requests by prompt; nothing if they were not counted, or may not be used."""
    if live.figures is None or not live.usable:
        return ()
    owners = (
        SeriesOwner(watched.namespace, siblings, watched.model_name)
        for siblings in sorted({siblings_of(pod.name) for pod in watched.serving})
    )
    found = [counts for owner in owners if (counts := reading.counts.get(owner, {}).get(PROMPT))]
    if not found or any(_wrong(counts) is not None for counts in found):
        return ()
    return counted_parts(added_up(found), live.figures.prompt_tokens)


def _wrong(counts: Mapping[float, float]) -> tuple[ClusterReason, str] | None:
    before_s, before = 0.0, 0.0
    for edge_s, count in sorted(counts.items()):
        if not math.isfinite(count):
            return ClusterReason.METRICS_NAN, f"the count up to {edge_s:g} s is not a number"
        slack = _SLACK_SHARE * abs(before) + _SLACK_REQUESTS
        if count < before - slack:
            return (
                ClusterReason.METRICS_IMPOSSIBLE,
                f"{phrases.figure(before)} requests took at most {before_s:g} s, and {phrases.figure(count)} at most {edge_s:g} s",
            )
        before_s, before = edge_s, max(before, count)
    return None


def _edge_s(text: str) -> float | None:
    try:
        edge_s = float(text)
    except ValueError:
        return None
    return edge_s if edge_s > 0.0 else None
