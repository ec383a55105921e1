"""PromQL built from users' text without letting the text become PromQL, and vLLM's series in it.

Each engine of each pod counts once, however often it is scraped. Two scrape jobs, two Prometheus replicas or a federation store one
engine several times, under labels that say who scraped it. A sum over such copies is a multiple of the load. So copies become one
before anything is added up, and the engines of a pod (data parallelism) are added up afterwards. Increases are taken per copy: a
sum of counters that begin at different times has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OPERATORS = frozenset({"=", "!=", "=~", "!~"})
WHOLE_ANSWERS: Final[Mapping[str, str]] = {
    "partial_response": "false",
    "deny_partial_response": "1",
    "max_source_resolution": "0s",
}
"""Parameters beside every query: an answer without the share of a store that is down must be an error, never a low load.

Thanos knows the first, a cluster of VictoriaMetrics the second. The third keeps Thanos from answering with means of several
samples in place of counters. Prometheus ignores all of them.
"""
# A label's name as an argument of label_replace, any other text (a matcher's value comes behind = or ~), or a name.
_WORD = re.compile(r'(?<![=~])"(namespace|pod)"|"(?:\\.|[^"\\])*"|[a-zA-Z_:][a-zA-Z0-9_:]*', re.DOTALL)
_OTHER_EXPORTERS = ("kube_", "DCGM_")
_SUBQUERY = re.compile(r"\((.*)\)\[(\d+)s:(\d+)s\](?: @ (\d+))?", re.DOTALL)
_ESCAPES = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F)},
    **str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}),
}


class Matcher(NamedTuple):
    """One label matcher; `value` is raw text."""

    label: str
    operator: str
    value: str

    def render(self) -> str:
        """PromQL text; raises ValueError if the label is no label name, or PromQL has no such operator."""
        if not _LABEL_NAME.fullmatch(self.label):
            raise ValueError(f"{self.label!r} is not a Prometheus label name")
        if self.operator not in _OPERATORS:
            raise ValueError(f"{self.operator!r} is not a PromQL matching operator")
        return f"{self.label}{self.operator}{quoted(self.value)}"


def quoted(text: str) -> str:
    r"""A PromQL string literal of any text: what is between the quotes can end neither the string nor the query.

    PromQL reads Go's escapes; \ and " are escaped, line ends and other control characters become \n or \xNN.
    """
    return f'"{text.translate(_ESCAPES)}"'


def any_of(values: Iterable[str]) -> str:
    """A regular expression that matches exactly these texts (RE2, anchored by Prometheus)."""
    return "|".join(re.escape(value).replace("\\-", "-") for value in sorted(values))


def selector(matchers: Iterable[Matcher]) -> str:
    """`{a="b",...}`, or nothing for no matchers."""
    rendered = ",".join(matcher.render() for matcher in matchers)
    return "{" + rendered + "}" if rendered else ""


class LabelNames(NamedTuple):
    """Names that a Prometheus has for the labels of a pod, if a federation or relabelling has renamed them in engines' series.

    Questions are written, and answers are read, with `namespace` and `pod`. Only the client of a server translates.
    """

    namespace: str = "namespace"
    pod: str = "pod"

    @classmethod
    def of(cls, pairs: Iterable[str]) -> LabelNames:
        """The names that texts such as `pod=exported_pod` give.

        Raises:
            ValueError: one gives none, or both names are the same.
        """
        given = dict(pair.partition("=")[::2] for pair in pairs)
        names = cls(**given) if given.keys() <= set(cls._fields) else None
        if names is None or not all(map(_LABEL_NAME.fullmatch, names)) or names.namespace == names.pod:
            raise ValueError("namespace=LABEL or pod=LABEL, two names of letters, digits and _")
        return names

    def asked(self, promql: str) -> str:
        """A question in the server's names; questions about series of other exporters stay as they are."""
        if self == SAME_LABELS or any(
            found[0].startswith(_OTHER_EXPORTERS) for found in _WORD.finditer(promql)
        ):
            return promql
        names = self._asdict()
        return _WORD.sub(
            lambda found: f'"{names[found[1]]}"' if found[1] else names.get(found[0], found[0]), promql
        )

    def given(self, labels: Mapping[str, str]) -> dict[str, str]:
        """The labels of an answer in our names."""
        ours = {our: labels[name] for our, name in self._asdict().items() if name in labels}
        return {name: labels[name] for name in labels if name not in {*self, *self._fields}} | ours


SAME_LABELS: Final = LabelNames()
"""Of servers that keep the labels as scrapes give them."""


class RangeQuestion(NamedTuple):
    """A range query: the expression at `first_s` (Unix time, s), and each `step_s` until `last_s`."""

    promql: str
    first_s: int
    last_s: int
    step_s: int

    @classmethod
    def of_subquery(cls, promql: str, now_s: float) -> RangeQuestion | None:
        """The times and values of a subquery, by which servers mean different times; None if it is no subquery.

        Args:
            promql: `(EXPRESSION)[SPANs:STEPs]`, or the same with `@ TIME` behind it.
            now_s: Unix time at which the span ends if no time is given.
        """
        found = _SUBQUERY.fullmatch(promql)
        if found is None:
            return None
        expression, span_s, step_s, at_s = found[1], int(found[2]), int(found[3]), found[4]
        end_s = now_s if at_s is None else int(at_s)
        # Times of a subquery are multiples of its step; the beginning of the span is not in it.
        steps_before, steps = (int(time_s // step_s) for time_s in (end_s - span_s, end_s))
        return cls(expression, (steps_before + 1) * step_s, steps * step_s, step_s)

    def as_subquery(self) -> str:
        """The same as an instant query; both times are multiples of the step."""
        span_s = self.last_s - self.first_s + self.step_s
        return f"({self.promql})[{span_s}s:{self.step_s}s] @ {self.last_s}"


HTTP_REQUESTS = "http_requests_total"
"""Of prometheus-fastapi-instrumentator, on vLLM's own page: labels handler, method and status (`2xx`, `4xx`, ...)."""
GENERATES = "/v1/(chat/)?completions|/v1/responses|/v1/messages|/inference/v1/generate|/invocations"
"""The handlers of vLLM's API that generate tokens; a probe or a tokenizer's request is no user's request."""
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
_PROMQL_WORD = re.compile(
    rf'"(?:\\.|[^"\\])*"| or (?:{"|".join(_OF_NATIVE.values())})\(|[^"() ]+|.', re.DOTALL
)


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
    for word in _PROMQL_WORD.findall(promql):
        if depth:
            depth += (word == "(") - (word == ")")
        elif word.startswith(" or "):
            depth = 1
        else:
            kept.append(word)
    return "".join(kept)
