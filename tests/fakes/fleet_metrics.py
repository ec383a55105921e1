"""Prometheus in memory: it holds the series of pods under a given load, and answers the operator's queries about them.

The query of now is evaluated over series, once for all pods in one state: a fleet of hundreds is asked about in every cycle.
Sums, latencies and the past are put together here; `unit/fakes` holds them to the same evaluation.
"""

from __future__ import annotations

import asyncio
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from breakeven.readers.prometheus import InstantSample, Samples, TimedValue
from breakeven.serving.growths import ENGINES
from breakeven.serving.promql import HTTP_REQUESTS, EngineSeries
from breakeven_operator.kinds import PODS
from breakeven_operator.observing.fleet_query import (
    ASKED,
    ENDED,
    EVALUATED,
    FIRST_SEEN,
    LAST_SEEN,
    MIXED,
    PRESENT,
    REPORTING,
    ROLLED,
    SAMPLED,
    SIBLINGS,
    SILENT,
    STAT,
    TURNED_AWAY,
    WORKLOAD,
    fleet_query,
    siblings_of,
)
from breakeven_operator.ports import MetricsError, PrometheusAccess
from breakeven_operator.rolls.roll_failures import BEGUN, BROKEN, FAULTS, POSTS, REFUSALS, SERVED, WAITED
from fakes.api_server import FakeCluster
from fakes.engine_pages import SCRAPE_S, Grown, Scrapes, SteadyPage
from fakes.held_series import NativeHistogram, SeriesStore
from fakes.load_course import LoadCourse
from fakes.manual_clock import FakeClock
from fakes.promql_evaluation import evaluate
from fakes.vllm_buckets import vllm_buckets

DEADLINE_S = 10.0
"""Of one query."""
_PODS = re.compile(r'pod=~"([^"]*)"')
_SPAN = re.compile(r"\[(\d+)s:(\d+)s\]$")
_RANGE = re.compile(r"\[(\d+)s\]")


@dataclass
class PodTraffic:
    """Load and latency of every Ready pod."""

    rps: float = 3.0
    answered_share: float = 1.0
    given_up: float = 0.0
    """Share of the requests that begin whose clients leave just before the end: in no series of finished requests, and a POST with 2xx."""
    left_waiting: float = 0.0
    """Share of the requests whose clients leave before the first token: a POST with 2xx, and in no series of the engine's."""
    broken_share: float = 0.0
    """Share of the requests that begin and end by an error of the engine: a POST with 5xx, or with 2xx if it streams."""
    latency_s: float = 1.0
    ttft_s: float = 0.1
    output_tokens: float = 100.0
    prompt_tokens: float = 200.0
    hit_share: float | None = None
    """Share of the prompts that the prefix cache holds; None: nothing of it is counted."""
    tokens_per_step: float = 1.0
    acceptance: tuple[float, ...] = ()
    waiting: float = 0.0
    window_s: float = 300.0
    age_s: float = 1.0
    model_name: str = "chat"
    min_p_share: float = 0.0
    """Share of the users' requests with `min_p`, which an engine refuses while it speculates."""
    invalid_share: float = 0.0
    """Share that no engine answers."""
    streamed_share: float = 0.0
    """Share that streams: what is refused of it is answered with 200 and an error in the stream."""
    scrapes: Scrapes = field(default_factory=Scrapes)
    came_at_s: np.ndarray | None = None
    """Moments (Unix time, s) at which requests came, ascending; None: at an even rate."""
    scrape_s: float = 15.0
    latencies: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Request times (s) by figure: e2e, ttft, tpot; tokens of prompt."""

    @property
    def begun_share(self) -> float:
        """Share of the requests that reach the engine and get a first token."""
        return self.answered_share * (1.0 - self.left_waiting)


# Figures that are read pod by pod, and never summed.
_OF_PODS_ALONE = frozenset({FIRST_SEEN, ENGINES, MIXED, SILENT, ENDED, TURNED_AWAY})
_STEPS = re.compile(r":(\d+)s\]")
_A_MINUTE_S = 1_700_000_040.0
_MOST_ANSWERS = 5000
_ANSWERS: dict[Any, tuple[str, list[NumberOf]]] = {}


class NumberOf(NamedTuple):
    """An element of an answer."""

    labels: dict[str, str]
    value: float


def _held(promql: str, page: SteadyPage, labels: Mapping[str, str], now_s: float) -> list[NumberOf]:
    """The value of a PromQL query over the series of one pod's page."""
    store = SeriesStore()
    page.scraped(store, labels, now_s)
    found = evaluate(store, promql, now_s)
    return [NumberOf(dict(e.labels), e.value) for e in found if not isinstance(e.value, NativeHistogram)]


def _of_pod(labels: dict[str, str], before: str, name: str) -> dict[str, str]:
    """The same element of another pod."""
    if SIBLINGS in labels:
        return {**labels, SIBLINGS: siblings_of(name)}
    return {**labels, "pod": name} if labels.get("pod") == before else labels


class Counters(NamedTuple):
    """A pod's counts by a time, and its requests in flight."""

    time_s: float
    e2e_s: float
    e2e_n: float
    running: float
    waiting: float
    http_posts: float = 0.0
    http_refusals: float = 0.0
    http_faults: float = 0.0
    unbegun: float = 0.0
    broken: float = 0.0
    ttft_s: float = 0.0
    started: float = 0.0
    step_s: float = 0.0
    generated: float = 0.0
    prefilled: float = 0.0
    hits: float = 0.0


@dataclass
class FakePrometheus:
    """The `Metrics` port.

    Attributes:
        traffic: of every pod; `by_pod` overrides it.
        down: no answer. empty: an answer without series. nan: a gauge that is no number.
        frozen: the answer that a cache repeats from now on; an empty list: the next one. ahead_s: of its clock.
        wrong: statistics of every pod in place of the true ones.
        relabel: what a wrong relabelling makes of the labels.
        past: rates per replica every 300 s, the newest now, by namespace and Deployment. past_down: no answer.
        queries: texts that were asked, of now. past_queries: and of the past.
        delay_s: how long an answer takes, by address; past_delay_s: of the past, everywhere.
        asked: (address, loop's time in s) of every query of now, but those of prompts.
        latency_queries: texts that were asked of latencies; prompt_queries, of lengths of prompts. latencies_down: no answer to these alone.
        wrong_buckets: counts in place of the true ones, by upper edge.
        roll_queries: texts that were asked about rolls. roll_error: what such a query gets.
        latency_of: mean latency (s) of a pod's requests; None: that of its traffic.
        tokens_of: tokens per step of a pod's arm; None: those of its traffic.
        counted: what each pod has counted, over time; from the moment it became Ready. A pod of the same name begins again.
        began_s: when each pod of a name became Ready (Unix time, s), by uid.
        http_pages: whether pods show http_requests_total; failures_down: no answer to a question about it. arrivals_down: nor to one about arrivals.
        arrival_queries: texts that were asked about arrivals.
        asking: the query of now that is answered; empty: of one pod.
        course: what every pod's engine counts in place of a steady page; None: the page of its traffic.
        unscraped: names of pods that Prometheus does not look at. scrapes_fail: it looks at all, and reads no page (`up` is 0).
        full_at_rps: what an engine takes beyond this is answered with 503.
    """

    cluster: FakeCluster
    clock: FakeClock
    traffic: PodTraffic = field(default_factory=PodTraffic)
    by_pod: dict[str, PodTraffic] = field(default_factory=dict)
    down: bool = False
    guarded: dict[str, list[float]] = field(default_factory=dict)
    empty: bool = False
    nan: bool = False
    frozen: list[InstantSample] | None = None
    ahead_s: float = 0.0
    wrong: dict[str, float] = field(default_factory=dict)
    relabel: Callable[[dict[str, str]], dict[str, str]] = field(default=lambda labels: labels)
    past: dict[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)
    past_down: bool = False
    queries: list[str] = field(default_factory=list)
    past_queries: list[str] = field(default_factory=list)
    delay_s: dict[str, float] = field(default_factory=dict)
    past_delay_s: float = 0.0
    asked: list[tuple[str, float]] = field(default_factory=list)
    latency_queries: list[str] = field(default_factory=list)
    prompt_queries: list[str] = field(default_factory=list)
    latencies_down: bool = False
    wrong_buckets: dict[str, float] = field(default_factory=dict)
    roll_queries: list[str] = field(default_factory=list)
    roll_error: str = ""
    arrival_queries: list[str] = field(default_factory=list)
    latency_of: Callable[[dict[str, Any]], float | None] = field(default=lambda _pod: None)
    counted: dict[tuple[str, str], list[Counters]] = field(default_factory=dict)
    began_s: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    tokens_of: Callable[[dict[str, Any]], float | None] = field(default=lambda _pod: None)
    http_pages: bool = True
    failures_down: bool = False
    arrivals_down: bool = False
    asking: str = ""
    course: LoadCourse | None = None
    unscraped: set[str] = field(default_factory=set)
    scrapes_fail: bool = False
    full_at_rps: float = math.inf

    async def query(self, source: PrometheusAccess, promql: str) -> Sequence[InstantSample]:
        latencies, prompts = "_bucket" in promql, "request_prompt_tokens_bucket" in promql
        asked = self.latency_queries if latencies else self.queries
        (self.prompt_queries if prompts else asked).append(promql)
        self.count()
        if not prompts:
            self.asked.append((source.address, asyncio.get_running_loop().time()))
        if latencies and self.latencies_down:
            raise MetricsError("Prometheus at prometheus:9090 refused the query: too many samples")
        await _answered(source, self.delay_s.get(source.address, 0.0))
        if self.down:
            raise MetricsError("Prometheus at prometheus:9090 is not reached (ConnectionError)")
        if self.empty or promql in self.guarded:
            return [InstantSample({}, value) for value in self.guarded.get(promql, ())]
        if latencies:
            return self._latencies(lambda figure: (figure == "prompt") is prompts)
        if HTTP_REQUESTS in promql and TURNED_AWAY not in promql:
            return self._later(promql)
        if REPORTING in promql:
            return summed(self._answer())
        if self.frozen is None:
            return self._answer(promql)
        self.frozen = self.frozen or self._answer()
        return self.frozen

    @property
    def _now_s(self) -> float:
        return self.clock.now().timestamp() + self.ahead_s

    def _answer(self, promql: str = "") -> list[InstantSample]:
        asked_about = pods_of(promql)
        self.asking = promql
        pods = [
            series
            for pod in self.cluster.of(PODS)
            if _runs(pod) and asked_about(name := pod["metadata"]["name"]) and name not in self.unscraped
            for series in self.series_of(pod)
        ]
        return [*pods, InstantSample({STAT: EVALUATED}, self._now_s)]

    def _latencies(self, asked: Callable[[str], bool]) -> list[InstantSample]:
        counts: dict[tuple[str, str, str, str], list[float]] = {}
        for pod in filter(_runs, self.cluster.of(PODS)):
            meta = pod["metadata"]
            load = self.by_pod.get(meta["name"], self.traffic)
            for figure, took_s in load.latencies.items():
                key = meta["namespace"], siblings_of(meta["name"]), load.model_name, figure
                if asked(figure):
                    counts[key] = [*counts.get(key, ()), *took_s]
        return [
            InstantSample(
                {"namespace": namespace, SIBLINGS: siblings, "model_name": model, STAT: figure, "le": edge},
                self.wrong_buckets.get(edge, count),
            )
            for (namespace, siblings, model, figure), took_s in counts.items()
            for edge, count in vllm_buckets(figure, took_s).items()
        ]

    def count(self) -> None:
        """Let every Ready pod count what it did since it was last looked at."""
        now_s = self.clock.now().timestamp()
        for pod in filter(_runs, self.cluster.of(PODS)):
            key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
            load = self.by_pod.get(key[1], self.traffic)
            latency_s = self.latency_of(pod) or load.latency_s
            reached_rps = self.reached_rps(pod)
            state = (reached_rps * latency_s, load.waiting)
            seen, lives = self.counted.setdefault(key, []), self.began_s.setdefault(key, {})
            if pod["metadata"]["uid"] not in lives:
                lives[pod["metadata"]["uid"]] = _ready_s(pod)
                seen.append(Counters(_ready_s(pod), 0.0, 0.0, *state))
            last = seen[-1]
            span_s, plain = now_s - last.time_s, 1.0 - load.streamed_share
            if span_s > 0.0:
                refused = load.rps * self.refused_share(pod) * span_s
                # An engine that takes fewer than the others has a full queue, and answers with 503.
                turned_away = (load.rps - reached_rps) * span_s - refused
                begun = load.begun_share * reached_rps * span_s
                broken = begun * load.broken_share
                done = (1.0 - load.given_up) * begun - broken
                finished = (now_s, last.e2e_s + done * latency_s, last.e2e_n + done)
                left = load.left_waiting * load.answered_share * reached_rps * span_s
                unbegun = last.unbegun + refused + turned_away + left
                # A POST is counted at its end, whether or not its client is still there.
                http = (
                    last.started + begun + unbegun,
                    last.http_refusals + refused * plain,
                    last.http_faults + turned_away + broken * plain,
                    unbegun,
                    last.broken + broken,
                )
                under_way = (
                    last.ttft_s + begun * load.ttft_s,
                    last.started + begun,
                    last.step_s + begun * max(latency_s - load.ttft_s, 0.0),
                    last.generated + begun * load.output_tokens,
                    last.prefilled + begun * load.prompt_tokens,
                )
                seen.append(Counters(*finished, *state, *http, *under_way))

    def reached_rps(self, pod: dict[str, Any]) -> float:
        """The rate of requests that a pod's engine takes: what it refuses never reaches it."""
        load = self.by_pod.get(pod["metadata"]["name"], self.traffic)
        return min(load.rps * (1.0 - self.refused_share(pod)), self.full_at_rps)

    def refused_share(self, pod: dict[str, Any]) -> float:
        """Share of a pod's requests that its engine answers with 400, or with an error in a stream."""
        load = self.by_pod.get(pod["metadata"]["name"], self.traffic)
        value = (pod["metadata"].get("annotations") or {}).get("breakeven.dev/speculative-config")
        speculates = value not in {None, "", "null"}
        return load.invalid_share + (load.min_p_share if speculates else 0.0)

    def _blocks(self, promql: str, names: Mapping[str, str]) -> list[Samples]:
        span_s, step_s = map(int, _SPAN.search(promql).groups())  # type: ignore[union-attr]
        last_s = self._now_s // step_s * step_s
        found = []
        for (namespace, name), seen in self.counted.items():
            counted = {
                name: np.array([getattr(one, name) for one in seen]) for name in {"time_s", *names.values()}
            }
            times_s = counted["time_s"]
            ends_s = np.arange(last_s - span_s // step_s * step_s, last_s + step_s, step_s, dtype=float)
            ends_s = ends_s[(ends_s >= times_s[0]) & (ends_s <= times_s[-1])]
            # A pod that is gone shows nothing, until the next one of its name does.
            for began_s in [*self.began_s[namespace, name].values()][1:]:
                ended_s = max(times_s[times_s < began_s], default=began_s)
                ends_s = ends_s[(ends_s <= ended_s) | (ends_s >= began_s)]
            if not ends_s.size:
                continue
            stats = {stat: np.interp(ends_s, times_s, counted[field]) for stat, field in names.items()}
            labels = {"namespace": namespace, "pod": name}
            if SAMPLED in promql:
                stats[SAMPLED] = ends_s
                labels["model_name"] = self.traffic.model_name
            for stat, values in stats.items():
                shown = np.full(ends_s.shape, self.wrong[stat]) if stat in self.wrong else values
                timed = tuple(TimedValue(*pair) for pair in zip(ends_s.tolist(), shown.tolist(), strict=True))
                found.append(Samples(self.relabel({**labels, STAT: stat}), timed))
        return found

    def _later(self, promql: str) -> list[InstantSample]:
        """The growth of HTTP requests and of finished ones, by ReplicaSet."""
        if self.failures_down:
            raise MetricsError("Prometheus at prometheus:9090 refused the query: too many samples")
        span_s = int(_RANGE.search(promql)[1])  # type: ignore[index]
        totals: dict[tuple[str, str, str], float] = defaultdict(float)
        for (namespace, name), seen in self.counted.items():
            if seen[-1].time_s < self._now_s - span_s:
                continue
            for stat, field_name in self._of_requests.items():
                # Pods of one name are so many series, of which the one that grew most counts.
                grown = [
                    _grown(life, field_name, self._now_s - span_s) for life in self._lives(namespace, name)
                ]
                totals[namespace, siblings_of(name), stat] += max(grown)
        return [
            InstantSample({"namespace": namespace, SIBLINGS: siblings, STAT: stat}, grown)
            for (namespace, siblings, stat), grown in totals.items()
        ]

    @property
    def _of_requests(self) -> dict[str, str]:
        """Fields of the counts, by statistic of a question about requests that fail. No engine of vLLM's counts aborted ones."""
        http = {POSTS: "http_posts", REFUSALS: "http_refusals", FAULTS: "http_faults"}
        engine = {SERVED: "e2e_n", BEGUN: "started", WAITED: "ttft_s", BROKEN: "broken"}
        return {**(http if self.http_pages else {}), **engine}

    def _lives(self, namespace: str, name: str) -> list[list[Counters]]:
        """The counts of each pod of a name."""
        seen, starts_s = self.counted[namespace, name], sorted(self.began_s[namespace, name].values())
        ends_s = [*starts_s[1:], math.inf]
        return [
            [one for one in seen if start_s <= one.time_s < end_s]
            for start_s, end_s in zip(starts_s, ends_s, strict=True)
        ]

    def _arrivals(self, promql: str) -> list[Samples]:
        """Requests that have come by each scrape, at the steps of a query, and when that scrape was."""
        span_s, step_s = map(int, _SPAN.search(promql).groups())  # type: ignore[union-attr]
        last_s = self._now_s // step_s * step_s
        found = []
        for pod in filter(_runs, self.cluster.of(PODS)):
            meta = pod["metadata"]
            load = self.by_pod.get(meta["name"], self.traffic)
            ends_s = np.arange(last_s - span_s, last_s + step_s, step_s)[1:]
            # Each pod is scraped at a moment of its own.
            phase_s = zlib.crc32(meta["name"].encode()) % 1000 / 1000 * load.scrape_s
            scraped_s = (ends_s - phase_s) // load.scrape_s * load.scrape_s + phase_s
            if load.came_at_s is None:
                came = load.rps * (scraped_s - last_s + span_s + 60.0)
            else:
                came = np.searchsorted(load.came_at_s, scraped_s).astype(float)
            labels = {"namespace": meta["namespace"], "pod": meta["name"], "model_name": load.model_name}
            for stat, values in ((ASKED, came), (SAMPLED, scraped_s)):
                timed = map(TimedValue, ends_s.tolist(), values.tolist())
                found.append(Samples(self.relabel({**labels, STAT: stat}), tuple(timed)))
        return found

    async def query_past(self, source: PrometheusAccess, promql: str) -> Sequence[Samples]:
        if ASKED in promql:
            self.arrival_queries.append(promql)
            if self.down or self.arrivals_down:
                raise MetricsError("Prometheus at prometheus:9090 refused the query: too many samples")
            return self._arrivals(promql)
        if SAMPLED in promql:
            self.roll_queries.append(promql)
            if self.down or self.roll_error:
                raise MetricsError(f"Prometheus at prometheus:9090 refused the query: {self.roll_error}")
            self.count()
            return self._blocks(promql, {stat: stat for stat in (*ROLLED, "waiting")})
        if HTTP_REQUESTS in promql:
            self.queries.append(promql)
            if self.down or self.failures_down:
                raise MetricsError("Prometheus at prometheus:9090 refused the query: too many samples")
            self.count()
            return self._blocks(promql, self._of_requests)
        self.past_queries.append(promql)
        await _answered(source, self.past_delay_s)
        if self.down or self.past_down:
            raise MetricsError("Prometheus at prometheus:9090 refused the query: query timed out")
        now_s = self.clock.now().timestamp()
        return [
            Samples(
                {
                    "namespace": namespace,
                    WORKLOAD: f"Deployment {workload}",
                    "model_name": self.traffic.model_name,
                },
                tuple(TimedValue(now_s - 300.0 * (len(rates) - 1 - i), rate) for i, rate in enumerate(rates)),
            )
            for (namespace, workload), rates in self.past.items()
        ]

    def series_of(self, pod: dict[str, Any]) -> list[InstantSample]:
        """The value of the query in hand over a pod's series."""
        meta = pod["metadata"]
        load = self.by_pod.get(meta["name"], self.traffic)
        labels = {"namespace": meta["namespace"], "pod": meta["name"], "model_name": load.model_name}
        promql = self.asking or fleet_query([meta["namespace"]], EngineSeries(), int(load.window_s), 120)
        if self.course is None:
            found = self._evaluated(promql, self.page_of(pod), labels)
        else:
            store = SeriesStore()
            self.course.scraped(store, labels, self._now_s, 2.0 * load.window_s)
            answer = evaluate(store, promql, self._now_s)
            found = [
                InstantSample(dict(e.labels), e.value)
                for e in answer
                if not isinstance(e.value, NativeHistogram)
            ]
        seen = {element.labels[STAT] for element in found}
        return [
            *(
                InstantSample(one.labels, self.wrong.get(one.labels[STAT], one.value))
                for one in found
                if one.labels[STAT] != EVALUATED
            ),
            *(
                InstantSample({**self.relabel(labels), STAT: stat}, value)
                for stat, value in self.wrong.items()
                if stat not in seen
            ),
        ]

    def page_of(self, pod: dict[str, Any]) -> SteadyPage:
        """The counters of a pod's engines."""
        load = self.by_pod.get(pod["metadata"]["name"], self.traffic)
        reached = self.reached_rps(pod)
        begun = load.begun_share * reached
        finished = begun * (1.0 - load.given_up - load.broken_share)
        steps = begun * (load.output_tokens - 1) / (self.tokens_of(pod) or load.tokens_per_step)
        rates = {
            "completed": finished,
            "started": begun,
            "ttft_s": begun * load.ttft_s,
            "e2e_s": finished * load.latency_s,
            "e2e_n": finished,
            "generated": begun * load.output_tokens,
            "steps": steps,
            "step_s": begun * max(load.latency_s - load.ttft_s, 0.0),
            "prompt_tokens": finished * load.prompt_tokens,
            "prompt_n": finished,
            "output_tokens": finished * load.output_tokens,
            "output_n": finished,
        }
        if load.hit_share is not None:
            read = begun * load.prompt_tokens
            rates |= {"prefilled": read, "hits": read * load.hit_share}
        counters = [Grown(stat, per_s) for stat, per_s in rates.items()]
        if load.acceptance:
            counters.append(Grown("drafts", steps))
            counters += [
                Grown("accepted", steps * share, (("position", str(place)),))
                for place, share in enumerate(load.acceptance)
            ]
        served_s, away_s = self._life(pod, load)
        return SteadyPage(
            tuple(counters),
            running=math.nan if self.nan else reached * load.latency_s,
            waiting=load.waiting,
            running_per_s=reached * (1.0 - load.left_waiting) - begun,
            window_s=load.window_s,
            age_s=load.age_s,
            served_s=served_s,
            away_s=away_s,
            posts=self._posts(load, reached) if self.http_pages else (),
            up=not self.scrapes_fail,
            scrapes=load.scrapes,
        )

    def _posts(self, load: PodTraffic, reached_rps: float) -> tuple[tuple[str, float], ...]:
        """Rates by class of status: what no arm answers is the client's fault (4xx), and what a full queue refuses the server's."""
        faulty_rps = min(load.rps - reached_rps, load.rps * (load.invalid_share + load.min_p_share))
        return (("2xx", reached_rps), ("4xx", faulty_rps), ("5xx", load.rps - reached_rps - faulty_rps))

    def _life(self, pod: dict[str, Any], load: PodTraffic) -> tuple[float, tuple[float, float] | None]:
        """For how long a pod's page has been there (s), and how long ago it was away while its engine began again.

        The page comes with the pod's first Ready, and knows nothing of a probe that misses later.
        """
        now_s, meta = self.clock.now().timestamp(), pod["metadata"]
        # A bench names pods that no cluster has.
        statuses = pod.get("status", {}).get("containerStatuses") or [{}]
        status, shown_s = statuses[0], load.window_s + 3.0 * SCRAPE_S
        lives = self.began_s.get((meta["namespace"], meta["name"]), {})
        # A pod shows the series of the one whose name it has, too.
        served_s = now_s - min(lives.values(), default=-math.inf)
        ended = (status.get("lastState") or {}).get("terminated") or {}
        away_s = None
        if "finishedAt" in ended:
            times = ended["finishedAt"], status["state"]["running"]["startedAt"]
            away_s = tuple(now_s - datetime.fromisoformat(text).timestamp() for text in times)
        elif len(lives) > 1:
            away_s = (now_s - lives.get(meta["uid"], now_s),) * 2
        if away_s is not None and away_s[0] >= shown_s:
            away_s = None
        # A page that is older than the part of it that is shown might as well have no age.
        return (served_s if served_s < shown_s else math.inf), away_s  # type: ignore[return-value]

    def _evaluated(self, promql: str, page: SteadyPage, labels: dict[str, str]) -> list[InstantSample]:
        """The answer about one pod: evaluated once for all pods in the same state, at times that differ by whole minutes."""
        own, now_s = self.relabel(labels), self._now_s
        if own != labels or any(60 % int(step) for step in _STEPS.findall(promql)):
            return [InstantSample(e.labels, e.value) for e in _held(promql, page, own, now_s)]
        phase_s = now_s % 60.0
        key = promql, page, labels["namespace"], labels["model_name"], phase_s
        if key not in _ANSWERS:
            if len(_ANSWERS) > _MOST_ANSWERS:
                _ANSWERS.clear()
            _ANSWERS[key] = labels["pod"], _held(promql, page, labels, _A_MINUTE_S + phase_s)
        pod, found = _ANSWERS[key]
        later_s = now_s - phase_s - _A_MINUTE_S
        return [
            InstantSample(
                _of_pod(e.labels, pod, labels["pod"]),
                e.value + (later_s if e.labels[STAT] in {FIRST_SEEN, LAST_SEEN} else 0.0),
            )
            for e in found
        ]


def _grown(life: Sequence[Counters], field_name: str, since_s: float) -> float:
    counts = [getattr(one, field_name) for one in life]
    return float(counts[-1] - np.interp(since_s, [one.time_s for one in life], counts))


def pods_of(promql: str) -> Callable[[str], bool]:
    """Whether a query asks about a pod of that name."""
    found = _PODS.search(promql)
    if found is None:
        return lambda _name: True
    # In the query's text backslashes are written twice.
    wanted = re.compile(found[1].replace("\\\\", "\\"))
    return lambda name: wanted.fullmatch(name) is not None


def summed(series: Iterable[InstantSample]) -> list[InstantSample]:
    """Pods' series summed by ReplicaSet, as Prometheus does it."""
    groups: dict[tuple[str, str, str, str], list[float]] = {}
    others = []
    for one in series:
        labels = one.labels
        if labels[STAT] in _OF_PODS_ALONE:
            continue
        if "pod" not in labels:
            others.append(one)
            continue
        stat = REPORTING if labels[STAT] == PRESENT else labels[STAT]
        key = labels["namespace"], siblings_of(labels["pod"]), labels["model_name"], stat
        groups.setdefault(key, []).append(one.value)
    return others + [
        InstantSample(
            {"namespace": namespace, SIBLINGS: siblings, "model_name": model, STAT: stat},
            (min if stat in {LAST_SEEN, "waiting_min"} else sum)(values),
        )
        for (namespace, siblings, model, stat), values in groups.items()
    ]


async def _answered(source: PrometheusAccess, delay_s: float) -> None:
    """The port's promise: whatever the server does, a query ends at its deadline."""
    await asyncio.sleep(min(delay_s, DEADLINE_S))
    if delay_s > DEADLINE_S:
        raise MetricsError(f"{source.name} gave no whole answer within {DEADLINE_S:g} s")


def _runs(pod: dict[str, Any]) -> bool:
    found = pod.get("status", {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in found)


def _ready_s(pod: dict[str, Any]) -> float:
    ready = next(c for c in pod["status"]["conditions"] if c["type"] == "Ready")
    return datetime.fromisoformat(ready["lastTransitionTime"]).timestamp()
