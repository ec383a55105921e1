"""The PromQL that watches a fleet: one instant query per Prometheus, window and set of extra matchers; one for the past.

Every statistic is summed by (namespace, pod, model_name) and named by the label `stat`, and all are joined by `or`:
the number of queries does not grow with services or statistics, and all values belong to one evaluation time. Which
pods count is decided afterwards, in memory, from the pods' names. A large fleet is watched by sums over the pods of each
ReplicaSet, and looked at pod by pod only where something has to be decided. Text of users reaches a query only through
`quoted` (values) or not at all (label names are checked).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from breakeven.serving.promql import Matcher, any_of, selector

STAT = "stat"
_BY = "namespace,pod,model_name"

# Increases over the window. `request_success` counts finished requests whatever ended them.
_INCREASES = {
    "completed": "vllm:request_success_total",
    "started": "vllm:time_to_first_token_seconds_count",
    "ttft_s": "vllm:time_to_first_token_seconds_sum",
    "e2e_s": "vllm:e2e_request_latency_seconds_sum",
    "e2e_n": "vllm:e2e_request_latency_seconds_count",
    "generated": "vllm:generation_tokens_total",
    "steps": "vllm:inter_token_latency_seconds_count",
    "prompt_tokens": "vllm:request_prompt_tokens_sum",
    "output_tokens": "vllm:request_generation_tokens_sum",
    "output_n": "vllm:request_generation_tokens_count",
    "drafts": "vllm:spec_decode_num_drafts_total",
}
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_per_pos_total"

# A Deployment's pod is <deployment>-<hash of its ReplicaSet>-<five letters>, in an alphabet without vowels and digits that
# look like letters: `chat` is not `chat-large`, and a calibration's pod (<run>-<arm>-<five letters>) is neither. From 47
# letters on the name is cut before the five, and with it the second dash.
_LETTERS = "[bcdfghjklmnpqrstvwxz2456789]"
_POD_OF_DEPLOYMENT = f"(.+)-{_LETTERS}{{1,10}}-{_LETTERS}{{5}}|(.{{47,57}})-{_LETTERS}{{5,15}}"
WORKLOAD = "workload"
_PAST_STEPS = 288

GROWTHS = ("running_growth", "waiting_growth")
POSITION_STAT = "accepted"
FIRST_SEEN = "first_seen_s"
LAST_SEEN = "last_seen_s"
PRESENT = "present"
EVALUATED = "evaluated_s"
SAMPLED = "sampled_s"
REPORTING = "reporting"
SIBLINGS = "siblings"
# A Pod's name is that of its ReplicaSet, cut where it would be too long, and five letters.
_LETTERS_OF_POD = 5
_BLOCKS_PER_WINDOW = 5
# A name is cut where it grows too long for a pod's; what is left of it still begins alike.
_KEPT_OF_NAME = 40


class _Statistic(NamedTuple):
    """How a statistic is made of a pod's series, and of its pods' where it is of a ReplicaSet."""

    expression: str
    of_pod: str = "sum"
    of_siblings: str = "sum"


def fleet_query(
    namespaces: Sequence[str],
    extra: Sequence[Matcher],
    window_s: int,
    staleness_s: int,
    *,
    deployments: Iterable[str] = (),
    anywhere: bool = True,
) -> str:
    """Everything the operator watches, for all pods of some namespaces.

    Args:
        namespaces: of the services.
        extra: further matchers on every series.
        window_s: over which increases and means are taken.
        staleness_s: the age that counts as stale; a series is looked for over at least twice this long, so that
            "old" and "none" stay different.
        deployments: names; with any, pods of others are left out, but for those whose names begin alike.
        anywhere: ask also whose series there are outside of these namespaces.

    Returns:
        An instant query whose result has the labels namespace, pod, model_name, `stat` and, for `accepted`, position;
        `evaluated_s` has `stat` alone. Times are Unix times, s.

    Raises:
        ValueError: a matcher that is none.
    """
    own = [Matcher("namespace", "=~", any_of(namespaces)), *_of_names(deployments), *extra]
    chosen = selector(own)
    everybodys = selector(extra)
    statistics = _statistics(chosen, window_s, staleness_s)
    parts = {
        **{stat: f"{one.of_pod} by ({_BY}) ({one.expression})" for stat, one in statistics.items()},
        POSITION_STAT: f"sum by ({_BY},position) ({statistics[POSITION_STAT].expression})",
        # Without the namespace's matcher: series that lack the labels to be found by tell of a wrong relabelling.
        PRESENT: f"count by ({_BY}) ({_RUNNING}{everybodys if anywhere else chosen})",
        # Tells an old answer from an answer about old samples.
        EVALUATED: "vector(time())",
    }
    return _joined(parts)


def sums_query(namespaces: Sequence[str], extra: Sequence[Matcher], window_s: int, staleness_s: int) -> str:
    """What the operator watches, summed over the pods of each ReplicaSet, whose names differ in their last five letters.

    The answer grows with services, not with pods. It tells whether anything has moved, not what a decision rests on.

    Args: see fleet_query.

    Returns:
        An instant query whose result has the labels namespace, siblings, model_name and `stat`; `evaluated_s` has `stat`
        alone. `last_seen_s` and `waiting_min` are those of the pod that has the least; `reporting` is the number of pods.

    Raises:
        ValueError: a matcher that is none.
    """
    own = [Matcher("namespace", "=~", any_of(namespaces)), *extra]
    chosen = selector(own)
    statistics = _statistics(chosen, window_s, staleness_s) | {
        REPORTING: _Statistic(f"{_RUNNING}{chosen}", "group", "sum")
    }
    by = f"namespace,{SIBLINGS},model_name"
    parts = {
        stat: f"{one.of_siblings} by ({by}) ({with_siblings(_of_pods(one))})"
        for stat, one in statistics.items()
        # Nothing of a young pod stands for long enough to be compared.
        if stat != FIRST_SEEN
    }
    return _joined({**parts, EVALUATED: "vector(time())"})


def siblings_of(pod_name: str) -> str:
    """What the names of a ReplicaSet's pods have in common."""
    return pod_name[:-_LETTERS_OF_POD]


def with_siblings(expression: str) -> str:
    """The same series, with what their pods' names share as the label `siblings`."""
    return f'label_replace({expression}, "{SIBLINGS}", "$1", "pod", "(.+).{{{_LETTERS_OF_POD}}}")'


def _of_pods(one: _Statistic) -> str:
    """By pod only where a sum over series is not what it would be over pods."""
    if one.of_pod == one.of_siblings:
        return one.expression
    return f"{one.of_pod} by ({_BY}) ({one.expression})"


def _statistics(chosen: str, window_s: int, staleness_s: int) -> dict[str, _Statistic]:
    """Of the series that a selector chooses."""
    window = f"[{int(window_s)}s]"
    lookback_s = max(600, 2 * int(staleness_s))
    step_s = max(1, min(15, int(staleness_s) // 4))
    within = f"[{int(window_s)}s:{max(1, int(window_s) // 60)}s]"
    return {
        **{stat: _Statistic(f"increase({name}{chosen}{window})") for stat, name in _INCREASES.items()},
        POSITION_STAT: _Statistic(f"increase({_ACCEPTED}{chosen}{window})"),
        "running": _Statistic(f"avg_over_time({_RUNNING}{chosen}{window})"),
        "waiting": _Statistic(f"avg_over_time({_WAITING}{chosen}{window})"),
        # A queue that never emptied is demand beyond capacity; its mean alone could be one short burst.
        "waiting_min": _Statistic(f"min_over_time({_WAITING}{chosen}{window})", "sum", "min"),
        "running_growth": _Statistic(f"delta({_RUNNING}{chosen}{window})"),
        "waiting_growth": _Statistic(f"delta({_WAITING}{chosen}{window})"),
        # A pod serves before Prometheus has found it: by its age the first windows of a new pod would show half of its load.
        FIRST_SEEN: _Statistic(f"min_over_time(timestamp({_RUNNING}{chosen}){within})", "min", "min"),
        # Staleness markers hide a series as soon as its target is gone; a subquery still sees its last sample. Times of
        # samples, not their age: an age grows no older in an answer that is given again.
        LAST_SEEN: _Statistic(
            f"max_over_time(timestamp({_RUNNING}{chosen})[{lookback_s}s:{step_s}s])", "max", "min"
        ),
    }


def _of_names(deployments: Iterable[str]) -> tuple[Matcher, ...]:
    """Pods of these Deployments, and others whose names begin alike; of all where there is no name."""
    names = {name[:_KEPT_OF_NAME] for name in deployments}
    return (Matcher("pod", "=~", f"({any_of(names)}).*"),) if names else ()


def _joined(parts: Mapping[str, str]) -> str:
    return "\nor ".join(
        f'label_replace({expression}, "{STAT}", "{stat}", "", "")' for stat, expression in parts.items()
    )


def past_step_s(lookback_s: int, window_s: int) -> int:
    """Distance of past loads (s): a day has one every five minutes; never shorter than the window that scrapes fill."""
    return max(-(-lookback_s // _PAST_STEPS), window_s)


def past_query(namespaces: Sequence[str], extra: Sequence[Matcher], lookback_s: int, step_s: int) -> str:
    """Request rates per replica of all Deployments of some namespaces, one for each step of the past.

    The rate is the one that is decided on: completions plus growth of what is in flight or queued. Of completions alone
    the hour that saturated would show what the arm of that time carried. Pods of the past are gone from the cluster, so
    their names say which Deployment they belong to; and what all of them served is divided by the replicas there were, for a
    mean over pods would count a replica twice while a roll replaces it.

    Args:
        namespaces: of the services.
        extra: further matchers on every series.
        lookback_s: how far back.
        step_s: distance of the rates; each is a mean over so long.

    Returns:
        An instant query whose result is a range vector with the labels namespace, workload (empty: pods of no Deployment)
        and model_name.

    Raises:
        ValueError: a matcher that is none.
    """
    own = [Matcher("namespace", "=~", any_of(namespaces)), *extra]
    chosen = selector(own)
    window = f"[{int(step_s)}s]"
    grown = " + ".join(f"sum by ({_BY}) (delta({gauge}{chosen}{window}))" for gauge in (_RUNNING, _WAITING))
    offered = f"clamp_min(sum by ({_BY}) (increase({_INCREASES['completed']}{chosen}{window})) + {grown}, 0) / {int(step_s)}"
    rates = f"sum by (namespace,{WORKLOAD},model_name) ({_of_deployment(offered)})"
    present = f"sum by ({_BY}) ({_RUNNING}{chosen})"
    replicas = f"count by (namespace,{WORKLOAD},model_name) ({_of_deployment(present)})"
    return f"({rates} / {replicas})[{int(lookback_s)}s:{int(step_s)}s]"


def block_s(window_s: int) -> int:
    """Length (s) of the blocks that a roll is measured in: a fifth of the window.

    Blocks must be many for their scatter to be known, and a window after a roll is one at most. A block may be shorter
    than two scrapes: it lies between two samples of a counter, not in a range that must hold two.
    """
    return max(1, window_s // _BLOCKS_PER_WINDOW)


def roll_query(
    deployments: Iterable[tuple[str, str]], extra: Sequence[Matcher], span_s: int, step_s: int
) -> str:
    """Counters of the pods of some Deployments, once per block of the past, for the blocks in which they were rolled.

    Counters, not increases: what grew between two samples is exact, whereas `increase` extrapolates to the ends of its
    range and wants two samples in it. The times of a subquery are whole multiples of its step, so that every cycle reads
    the same blocks, however often it asks.

    Args:
        deployments: namespace and name of those that are rolled; pods of others whose names begin alike come along.
        extra: further matchers on every series.
        span_s: how far back.
        step_s: length of a block.

    Returns:
        An instant query whose result is a range vector with the labels namespace, pod, model_name and `stat`.

    Raises:
        ValueError: a matcher that is none.
    """
    wanted = sorted(set(deployments))
    own = [
        Matcher("namespace", "=~", any_of({namespace for namespace, _ in wanted})),
        *_of_names(name for _, name in wanted),
        *extra,
    ]
    chosen = selector(own)
    parts = {
        **{stat: f"sum by ({_BY}) ({_INCREASES[stat]}{chosen})" for stat in ("e2e_s", "e2e_n")},
        "running": f"sum by ({_BY}) ({_RUNNING}{chosen})",
        "waiting": f"sum by ({_BY}) ({_WAITING}{chosen})",
        SAMPLED: f"max by ({_BY}) (timestamp({_RUNNING}{chosen}))",
    }
    return f"({_joined(parts)})[{int(span_s)}s:{int(step_s)}s]"


def _of_deployment(expression: str) -> str:
    return f'label_replace({expression}, "{WORKLOAD}", "$1$2", "pod", "{_POD_OF_DEPLOYMENT}")'
