"""vLLM's series as PromQL: each engine of each pod once, however often it is scraped.

Two scrape jobs, two Prometheus replicas or a federation store one engine several times, under labels that say who scraped it.
A sum over such copies is a multiple of the load. So copies become one before anything is added up, and the engines of a pod
(data parallelism) are added up afterwards. Increases are taken per copy: a sum of counters that begin at different times has
none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from breakeven.serving.promql import Matcher, any_of, selector

PREFIX = "vllm:"
PREFIXES = (PREFIX, "kserve_vllm:", "ray_vllm:", "ray_vllm_", "vllm_")
"""The prefixes of names where KServe, Ray or a pipeline that allows no colons has been."""
POD = ("namespace", "pod", "model_name")
"""Labels of a pod's series by which figures are grouped."""
NAMESPACES = ("exported_namespace", "kubernetes_namespace", "k8s_namespace_name")
PODS = ("exported_pod", "kubernetes_pod_name", "k8s_pod_name", "pod_name")
"""Labels under which a federation, an older scrape job or a collector leaves the names of a pod and its namespace."""
ENGINE = ("engine", "exported_engine", "WorkerId")
"""Labels that tell the engines of one pod apart.

A scrape whose target has a label `engine` of its own, such as a pod's label, renames vLLM's to `exported_engine`. Ray adds
the third one.
"""
STATISTIC = "stat"
"""Label that names the statistic in a query's answer."""
REPLICA = "replica"
"""Label that `by_replica` adds."""
RUNNING = "num_requests_running"
WAITING = "num_requests_waiting"
_OF_NATIVE = {"_count": "histogram_count", "_sum": "histogram_sum"}
"""The functions that read a counter of a native histogram, by the suffix of the classic series."""
# Text of users stands in string literals alone, each of which is one word.
_WORD = re.compile(rf'"(?:\\.|[^"\\])*"| or (?:{"|".join(_OF_NATIVE.values())})\(|[^"() ]+|.', re.DOTALL)


class Counted(NamedTuple):
    """A counter, or one of the two counters of a histogram, which Prometheus stores as series of their own or in a native one.

    The family is its name without prefix and suffix. `labels` are the labels of its series beside the labels of pod and engine.
    """

    family: str
    suffix: str = "_total"
    labels: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The series without its prefix."""
        return f"{self.family}{self.suffix}"

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that it may have, without the prefix."""
        return (self.name, self.family) if self.suffix in _OF_NATIVE else (self.name,)


COUNTED: Mapping[str, Counted] = {
    # Requests that ended by themselves or by their limit. One whose client gives up is in none of the per-request series, and
    # is in `started`, `generated` and `steps`.
    "completed": Counted("request_success", labels=("finished_reason",)),
    "started": Counted("time_to_first_token_seconds", "_count"),
    "ttft_s": Counted("time_to_first_token_seconds", "_sum"),
    "e2e_s": Counted("e2e_request_latency_seconds", "_sum"),
    "e2e_n": Counted("e2e_request_latency_seconds", "_count"),
    "generated": Counted("generation_tokens"),
    "steps": Counted("inter_token_latency_seconds", "_count"),
    "step_s": Counted("inter_token_latency_seconds", "_sum"),
    "prompt_tokens": Counted("request_prompt_tokens", "_sum"),
    "prompt_n": Counted("request_prompt_tokens", "_count"),
    # Prompts of requests that begin, and what the prefix cache held of them.
    "prefilled": Counted("prompt_tokens"),
    "hits": Counted("prefix_cache_hits"),
    "output_tokens": Counted("request_generation_tokens", "_sum"),
    "output_n": Counted("request_generation_tokens", "_count"),
    "drafts": Counted("spec_decode_num_drafts"),
    "accepted": Counted("spec_decode_num_accepted_tokens_per_pos", labels=("position",)),
    "preemptions": Counted("num_preemptions"),
}

DRAFTED = Counted("spec_decode_num_draft_tokens")
"""Drafted tokens; whether drafts are shorter than the longest one."""


@dataclass(frozen=True, slots=True)
class EngineSeries:
    """The series of some pods' engines, with matchers on each, and the labels that name a pod.

    `labelled` gives series those labels where Prometheus has them under other names.
    """

    matchers: tuple[Matcher, ...] = ()
    prefix: str = PREFIX
    pod: tuple[str, ...] = POD
    labelled: Callable[[str], str] = str

    def only(self, *matchers: Matcher) -> EngineSeries:
        """The series that other matchers allow too."""
        return replace(self, matchers=(*matchers, *self.matchers))

    def named(self, name: str, *more: Matcher) -> str:
        """A selector; raises ValueError if a matcher is invalid."""
        return f"{self.prefix}{name}{selector((*self.matchers, *more))}"

    def once(self, how: str, expression: str, *labels: str) -> str:
        """One element per engine of an expression that has one per copy; `labels` come beside the labels of pod and engine."""
        return f"{how} by({','.join((*self.pod, *ENGINE, *labels))})({self.labelled(expression)})"

    def by_pod(self, how: str, expression: str, *labels: str) -> str:
        """Figures of the engines of each pod, put together."""
        return f"{how} by({','.join((*self.pod, *labels))})({expression})"

    def counter(self, stat: str) -> str:
        """A counter, of each copy."""
        return self._any(stat, self.named)

    def increase(self, stat: str, window_s: int) -> str:
        """Growth of a counter, of each copy."""
        return self._any(stat, lambda name: f"increase({self.named(name)}[{int(window_s)}s])")

    def ended(self, stats: Iterable[str], window_s: int) -> str:
        """Series, by pod and name, that were there when the window began and are not there now, while their engine's others are.

        Their growth is not the growth over the window: a relabelling begins to drop names, or histograms are stored in another
        form from now on.
        """
        names = {name for stat in stats for name in COUNTED[stat].names} | {WAITING}
        wanted = Matcher("__name__", "=~", f"{self.prefix}({any_of(names)})")
        seen, engine = selector((wanted, *self.matchers)), ",".join((*self.pod, *ENGINE))
        before, now = (self.labelled(one) for one in (f"{seen} offset {int(window_s)}s", seen))
        gone = f"{before} unless on(__name__,{engine}) {now}"
        return self.by_pod(
            "group", f"{gone} and on({engine}) {self.labelled(self.named(RUNNING))}", "__name__"
        )

    def gauge(self, function: str, name: str, window_s: int) -> str:
        """A function over time of a gauge, of each copy."""
        return f"{function}({self.named(name)}[{int(window_s)}s])"

    def counted_once(self, how: str, parts: Mapping[str, str]) -> str:
        """Counters of several statistics, of each engine once: the copy that is highest.

        It has the newest sample, and the growth of the copy that was scraped for longest.
        """
        own = sorted({label for stat in parts if stat in COUNTED for label in COUNTED[stat].labels})
        return self.once(how, joined(parts), STATISTIC, *own)

    def _any(self, stat: str, made: Callable[[str], str]) -> str:
        counted = COUNTED[stat]
        function = _OF_NATIVE.get(counted.suffix)
        classic = made(counted.name)
        # `or` keeps one of the two where a scrape stores both.
        return classic if function is None else f"{classic} or {function}({made(counted.family)})"


def by_replica(expression: str) -> str:
    """Series with a name of their server: the name of the pod, or outside of Kubernetes the scraped address."""
    by_address = f'label_replace({expression},"{REPLICA}","$1","instance","(.+)")'
    return f'label_replace({by_address},"{REPLICA}","$1","pod","(.+)")'


def joined(parts: Mapping[str, str]) -> str:
    """Expressions in one, each named by the label `stat`."""
    return "\nor ".join(f'label_replace({one},"{STATISTIC}","{stat}","","")' for stat, one in parts.items())


def classic_only(promql: str) -> str:
    """A question of this module without what it asks of native histograms: a server without such functions refuses it whole."""
    kept, depth = [], 0
    for word in _WORD.findall(promql):
        if depth:
            depth += (word == "(") - (word == ")")
        elif word.startswith(" or "):
            depth = 1
        else:
            kept.append(word)
    return "".join(kept)
