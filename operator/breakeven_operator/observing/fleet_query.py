"""The PromQL that watches a fleet: one instant query per Prometheus, window and set of extra matchers; one for the past.

Every statistic is summed by (namespace, pod, model_name) over engines, each of which counts once (`promql`), and is
named by the label `stat`. All are joined by `or`: the number of queries does not grow with services or statistics, and all
values belong to one evaluation time. Which pods count is decided afterwards, in memory, from the pods' names. A large fleet
is watched by sums over the pods of each ReplicaSet, and looked at pod by pod only where something has to be decided. Text of
users reaches a query only through `quoted` (values) or not at all (label names are checked).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

from breakeven.serving.growths import ENGINES, NEEDED_COUNTERS
from breakeven.serving.promql import (
    COUNTED,
    ENGINE,
    GENERATES,
    HTTP_REQUESTS,
    NAMESPACES,
    POD,
    PODS,
    PREFIX,
    RUNNING,
    STATISTIC,
    WAITING,
    EngineSeries,
    Matcher,
    any_of,
    joined,
)
from breakeven_operator.workloads.known import NAMING

STAT = STATISTIC
# Prometheus' own series of every target: 1 after a scrape that succeeded.
_SCRAPED = "up"
_ENGINES = ",".join((*POD, *ENGINE))

_INCREASES = (*NEEDED_COUNTERS, "drafts")
_OF_CACHE = ("prefilled", "hits")

NEEDED = (*NEEDED_COUNTERS, "running", "waiting")
"""Statistics without which nothing is decided. The others are of an engine that speculates."""

WORKLOAD = "workload"
ROLLED = ("ttft_s", "started", "step_s", "generated", "prefilled", "hits")
"""Counters by which the pods of a roll are compared: of requests under way. The last two may be missing."""
FIGURE, REPLICAS = "figure", "replicas"
"""Label of past numbers of replicas; past rates have none."""
_PAST_STEPS = 288

POSITION_STAT = "accepted"
MIXED = "mixed"
FIRST_SEEN = "first_seen_s"
LAST_SEEN = "last_seen_s"
PRESENT = "present"
EVALUATED = "evaluated_s"
SAMPLED = "sampled_s"
SILENT = "silent"
"""Pods that are scrape targets and have no series of an engine: 1 if their pages are read, 0 if a scrape fails."""
TURNED_AWAY = "turned_away"
"""Requests that a pod answered with an error of its own: its queue is full, or its engine failed. No other series has them."""
ENDED = "ended"
"""Series of an engine that ended within the window, while others of the same engine go on."""
ASKED = "asked"
"""Requests that began and those that wait: the count of those that came."""
ARRIVAL_WINDOWS = 6
"""Windows over which arrivals are counted: four scrapes in each are the fewest, and twenty spans between them."""
CONTROL_WINDOWS = 12
"""Windows over which a standing control is compared: an hour of the default window."""
_STEPS_PER_WINDOW = 20
REPORTING = "reporting"
SIBLINGS = "siblings"
_BLOCKS_PER_WINDOW = 5
# A name too long for a pod's is cut; its beginning still tells whose it is.
_KEPT_OF_NAME = 40


# Statistics of engines, and how they become statistics of their pod, and of a ReplicaSet.
_Group: TypeAlias = tuple[str, str, str]


def fleet_query(
    namespaces: Sequence[str],
    engines: EngineSeries,
    window_s: int,
    staleness_s: int,
    *,
    workloads: Iterable[str] = (),
    anywhere: bool = True,
) -> str:
    """Everything the operator watches, for all pods of some namespaces.

    Args:
        namespaces: of the services.
        engines: those that count, by further matchers and the prefix of their names.
        window_s: over which increases and means are taken.
        staleness_s: the age that counts as stale; a series is looked for over at least twice this long, so that
            "old" and "none" stay different.
        workloads: names; with any, pods of others are left out, but for those whose names begin in the same way.
        anywhere: ask also whose series there are outside of these namespaces.

    Returns:
        An instant query whose result has the labels namespace, pod, model_name, `stat` and, for `accepted`, position;
        `evaluated_s` has `stat` alone. `mixed` has all labels of series that look like copies and are none. `silent` has
        namespace, siblings and `stat`, `ended` the name of the series beside the pod's labels, `turned_away` no model_name.
        `present` has other labels that name a pod. Times are Unix times, s.

    Raises:
        ValueError: a matcher that is none.
    """
    chosen = engines.only(Matcher("namespace", "=~", any_of(namespaces)), *_of_names(workloads))
    present = engines if anywhere else chosen
    parts = {
        ENGINES: chosen.by_pod("count", chosen.once("group", chosen.named(RUNNING))),
        MIXED: _mixed(chosen, window_s, staleness_s),
        # Without the namespace's matcher: series that lack the labels to be found by tell of a wrong relabelling.
        PRESENT: present.by_pod("count", present.named(RUNNING), *NAMESPACES, *PODS),
        SILENT: _silent(chosen),
        TURNED_AWAY: _turned_away(chosen, window_s),
        ENDED: chosen.ended((*_INCREASES, POSITION_STAT), window_s),
        # Tells an old answer from an answer about old samples.
        EVALUATED: "vector(time())",
    }
    groups = (
        chosen.by_pod(of_pod, engines_, STAT, "position")
        for engines_, of_pod, _ in _groups(chosen, window_s, staleness_s)
    )
    return "\nor ".join((*groups, joined(parts)))


def sums_query(
    namespaces: Sequence[str],
    engines: EngineSeries,
    window_s: int,
    staleness_s: int,
) -> str:
    """Everything the operator watches, summed over siblings: the pods of each ReplicaSet, or of a target whose pods keep their names.

    The answer grows with services, not with pods, and shows only whether anything has moved. Arguments and errors are as for
    `fleet_query`.

    Returns:
        An instant query whose result has the labels namespace, siblings, model_name and `stat`; `evaluated_s` has `stat`
        alone. `last_seen_s` and `waiting_min` are of the pod that has the least; `reporting` is the number of pods.
    """
    chosen = engines.only(Matcher("namespace", "=~", any_of(namespaces)))
    by = f"namespace,{SIBLINGS},model_name,{STAT}"
    reporting = joined({REPORTING: chosen.by_pod("group", chosen.named(RUNNING))}), "group", "sum"
    groups = (
        # By pod only if a sum over engines differs from a sum over pods.
        f"{of_siblings} by({by})({with_siblings(found if of_pod == of_siblings else chosen.by_pod(of_pod, found, STAT))})"
        for found, of_pod, of_siblings in (*_groups(chosen, window_s, staleness_s, young=False), reporting)
    )
    return "\nor ".join((*groups, joined({EVALUATED: "vector(time())"})))


def looked_back_s(staleness_s: float) -> int:
    """How far back (s) the newest sample of an engine is looked for."""
    return max(600, 2 * int(staleness_s))


def series_name(stat: str) -> str:
    """The series of vLLM that a statistic is made of."""
    gauges = {"running": RUNNING, "waiting": WAITING}
    return f"{PREFIX}{gauges[stat] if stat in gauges else COUNTED[stat].name}"


# Each cycle asks about the same ten thousand names.
@lru_cache(maxsize=1 << 14)
def siblings_of(pod_name: str) -> str:
    """Common beginning of the names of a pod and its siblings, by the grammar of its kind; empty if it is of no kind."""
    found = (re.fullmatch(kind.siblings, pod_name) for kind in reversed(NAMING))
    return next((match[1] for match in found if match is not None), "")


def workload_of(pod_name: str) -> str:
    """Kind and name of the workload that a pod's name says it is of; empty if it has the grammar of no kind.

    The same as the label that `past_query` gives to its series.
    """
    found = ((kind, re.fullmatch(kind.pod_name, pod_name)) for kind in NAMING)
    named = [
        f"{kind.resource.kind} {''.join(filter(None, match.groups()))}" for kind, match in found if match
    ]
    return named[-1] if named else ""


def with_siblings(expression: str) -> str:
    """The same series, with `siblings_of` their pods' names as the label `siblings`."""
    for kind in NAMING:
        expression = f'label_replace({expression},"{SIBLINGS}","$1","pod","{kind.siblings}")'
    return expression


def _groups(chosen: EngineSeries, window_s: int, staleness_s: int, *, young: bool = True) -> Iterator[_Group]:
    """Of the engines whose series are chosen; of a young pod's alone what no sum needs."""
    lookback_s = looked_back_s(staleness_s)
    step_s = max(1, min(15, int(staleness_s) // 4))
    within = f"[{int(window_s)}s:{max(1, int(window_s) // 60)}s]"
    sampled = f"timestamp({chosen.named(RUNNING)})"
    counters = {stat: chosen.increase(stat, window_s) for stat in (*_INCREASES, *_OF_CACHE, POSITION_STAT)}
    yield chosen.counted_once("max", counters), "sum", "sum"
    gauges = {
        "running": chosen.gauge("avg_over_time", RUNNING, window_s),
        "waiting": chosen.gauge("avg_over_time", WAITING, window_s),
        "running_growth": chosen.gauge("delta", RUNNING, window_s),
        "waiting_growth": chosen.gauge("delta", WAITING, window_s),
        # A queue that came and went within the window leaves no growth.
        "running_scatter": chosen.gauge("stddev_over_time", RUNNING, window_s),
        "waiting_scatter": chosen.gauge("stddev_over_time", WAITING, window_s),
    }
    # Copies of a gauge are looks at it at other moments.
    yield chosen.counted_once("avg", gauges), "sum", "sum"
    # A queue that never emptied is demand beyond capacity; its mean alone could be one short burst.
    least = {"waiting_min": chosen.gauge("min_over_time", WAITING, window_s)}
    yield chosen.counted_once("min", least), "sum", "min"
    if young:
        # A pod serves before Prometheus has found it: by its age the first windows of a new pod would show half of its load.
        yield joined({FIRST_SEEN: f"min_over_time({sampled}{within}) or {sampled}"}), "min", "min"
    # Staleness markers hide a series as soon as its target is gone; a subquery still sees its last sample. Times of
    # samples, not their age: an age grows no older in an answer that is given again. Its steps miss a first sample of just now.
    last = {LAST_SEEN: f"max_over_time({sampled}[{lookback_s}s:{step_s}s]) or {sampled}"}
    yield joined(last), "max", "min"


def _mixed(chosen: EngineSeries, window_s: int, staleness_s: int) -> str:
    """Series that differ in no label of pod or engine, and count different things.

    Copies of a counter show the same counter at other times. What one of them showed before the oldest sample of another was
    taken, that one has reached. Two processes break this as soon as their counts are further apart than one of them counts
    in that time. If the page says when counters began, theirs began at different times.
    """
    name, began = "generation_tokens_total", "generation_tokens_created"
    counter, alive = chosen.named(name), f"(timestamp({chosen.named(name)}) > time() - {int(staleness_s)})"
    # Of a process that began again, copies show both lives for a scrape.
    steady = f"({counter} and {alive} and (resets({counter}[{int(window_s)}s]) == 0))"
    before = chosen.once("max", f"{counter} offset {int(staleness_s)}s")
    apart = f"({before} > {chosen.once('min', steady)})"
    since = chosen.named(began)
    differ = f"({chosen.once('max', since)} != {chosen.once('min', since)})"
    return f"{counter} and on ({_ENGINES}) ({apart} or {differ})"


def _silent(chosen: EngineSeries) -> str:
    """One element per ReplicaSet whose pods are scrape targets, and have no series of an engine: others share the namespace."""
    scraped = replace(chosen, prefix="").named(_SCRAPED)
    return f"min by(namespace,{SIBLINGS})({with_siblings(f'{scraped} unless on(namespace,pod) {chosen.named(RUNNING)}')})"


def _turned_away(chosen: EngineSeries, window_s: int) -> str:
    """Growth by pod, each server's series once; its labels have no model, and its status is a class of codes by default."""
    status = Matcher("status", "=~", "5..|429")
    posts = (Matcher("method", "=", "POST"), Matcher("handler", "=~", GENERATES), status)
    grown = f"increase({replace(chosen, prefix='').named(HTTP_REQUESTS, *posts)}[{int(window_s)}s])"
    return f"sum by(namespace,pod)(max by(namespace,pod,handler,status)({grown}))"


def of_workloads(workloads: Iterable[tuple[str, str]]) -> tuple[Matcher, ...]:
    """The pods of workloads, given by namespace and name; others whose names begin in the same way come along."""
    wanted = set(workloads)
    namespaces = Matcher("namespace", "=~", any_of({namespace for namespace, _ in wanted}))
    return (namespaces, *_of_names(name for _, name in wanted))


def _of_names(workloads: Iterable[str]) -> tuple[Matcher, ...]:
    """Matches pods of these workloads, and others whose names begin in the same way; all pods if there is no name."""
    names = {name[:_KEPT_OF_NAME] for name in workloads}
    return (Matcher("pod", "=~", f"({any_of(names)}).*"),) if names else ()


def past_step_s(lookback_s: int, window_s: int) -> int:
    """Distance of past loads (s): a day has one every five minutes; never shorter than the window that scrapes fill."""
    return max(-(-lookback_s // _PAST_STEPS), window_s)


def past_query(
    namespaces: Sequence[str],
    engines: EngineSeries,
    lookback_s: int,
    step_s: int,
) -> str:
    """Request rates per replica of all workloads of some namespaces, and their replicas, one for each step of the past.

    Decisions go by the same rate (`Growths.offered`): requests that began, and what the queue grew by. By
    completions alone an hour of saturation would show the capacity of the arm of that time. Pods of the past are gone from the
    cluster, so that their names show to which workload they belong. The rate of all pods is divided by the replicas of that
    time, because a mean over pods would count a replica twice while a roll replaces it.

    Returns:
        An instant query whose result is a range vector with the labels namespace, workload (kind and name; empty: pods of no
        known kind) and model_name; numbers of replicas have the label figure. Each rate is a mean over a step.

    Raises:
        ValueError: a matcher that is none.
    """
    chosen = engines.only(Matcher("namespace", "=~", any_of(namespaces)))

    def grown(gauge: str) -> str:
        return chosen.by_pod("sum", chosen.once("avg", chosen.gauge("delta", gauge, step_s)))

    counts = {stat: chosen.increase(stat, step_s) for stat in ("started", "completed")}
    begun, finished = (
        chosen.by_pod("sum", chosen.counted_once("max", {stat: count})) for stat, count in counts.items()
    )
    # Either may be missing: `or` keeps the other, where a comparison would lose the pod.
    larger = chosen.by_pod("max", joined({"begun": begun, "finished": f"{finished} + {grown(RUNNING)}"}))
    offered = f"clamp_min({larger} + {grown(WAITING)}, 0) / {int(step_s)}"
    rates = f"sum by(namespace,{WORKLOAD},model_name)({_of_workload(offered)})"
    present = chosen.by_pod("group", chosen.named(RUNNING))
    replicas = f"count by(namespace,{WORKLOAD},model_name)({_of_workload(present)})"
    beside = f'label_replace({replicas}, "{FIGURE}", "{REPLICAS}", "", "")'
    return f"({rates} / {replicas} or {beside})[{int(lookback_s)}s:{int(step_s)}s]"


def block_s(window_s: int) -> int:
    """Length (s) of the blocks that a roll is measured in: a fifth of the window.

    Blocks must be many for their scatter to be known, and a window after a roll is one at most. A block may be shorter
    than two scrapes: it lies between two samples of a counter, not in a range that must hold two.
    """
    return max(1, window_s // _BLOCKS_PER_WINDOW)


def roll_query(
    workloads: Iterable[tuple[str, str]],
    engines: EngineSeries,
    span_s: int,
    step_s: int,
) -> str:
    """Counters of the pods of some workloads, once per block of the past, for the blocks in which they were rolled.

    Counters, not increases: what grew between two samples is exact, whereas `increase` extrapolates to the ends of its
    range and wants two samples in it. The times of a subquery are whole multiples of its step, so that every cycle reads
    the same blocks, however often it asks.

    Args:
        workloads: namespace and name of those that are rolled; pods of others whose names begin in the same way come along.
        engines: those that count, by further matchers and the prefix of their names.
        span_s: how far back.
        step_s: length of a block.

    Returns:
        An instant query whose result is a range vector with the labels namespace, pod, model_name and `stat`.

    Raises:
        ValueError: a matcher that is none.
    """
    chosen = engines.only(*of_workloads(workloads))
    counters = {stat: chosen.counter(stat) for stat in ROLLED}
    gauges = {"waiting": chosen.named(WAITING)}
    sampled = joined({SAMPLED: f"timestamp({chosen.named(RUNNING)})"})
    parts = (
        chosen.by_pod("sum", chosen.counted_once("max", counters), STAT),
        chosen.by_pod("sum", chosen.counted_once("avg", gauges), STAT),
        chosen.by_pod("max", sampled, STAT),
    )
    return "({})[{}s:{}s]".format("\nor ".join(parts), int(span_s), int(step_s))


def arrivals_query(
    workloads: Iterable[tuple[str, str]],
    engines: EngineSeries,
    window_s: int,
) -> str:
    """Requests that were asked for so far, of each pod of some workloads, at short steps over the last windows.

    Counters, not increases: an increase extrapolates to the ends of its range, which makes Poisson arrivals look like bursts.
    Beside them stands the time of the newest scrape, because a step may see none or two. Workloads and errors are as for
    `roll_query`; six windows are asked for, in steps of a twentieth.

    Returns:
        An instant query whose result is a range vector with the labels namespace, pod, model_name and `stat`: two series of
        120 values for each pod.
    """
    chosen = engines.only(*of_workloads(workloads))
    begun = chosen.by_pod("sum", chosen.counted_once("max", {"started": chosen.counter("started")}))
    waiting = chosen.by_pod("sum", chosen.once("avg", chosen.named(WAITING)))
    asked = joined({ASKED: f"({begun} + {waiting})"})
    sampled = chosen.by_pod("max", joined({SAMPLED: f"timestamp({chosen.named(RUNNING)})"}), STAT)
    step_s = max(1, int(window_s) // _STEPS_PER_WINDOW)
    return f"({asked}\nor {sampled})[{ARRIVAL_WINDOWS * int(window_s)}s:{step_s}s]"


def _of_workload(expression: str) -> str:
    for kind in NAMING:
        named = f"{kind.resource.kind} $1$2"
        expression = f'label_replace({expression}, "{WORKLOAD}", "{named}", "pod", "{kind.pod_name}")'
    return expression
