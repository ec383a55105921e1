"""Our queries on a real Prometheus that holds one engine several times, or two engines under one name."""

from __future__ import annotations

import json
import time
from collections import defaultdict

import pytest
from click.testing import CliRunner

from breakeven.cli import root
from breakeven.serving.promql import EngineSeries
from breakeven_operator.case import SeriesOwner
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import (
    fleet_query,
    past_query,
    roll_query,
    siblings_of,
    sums_query,
)
from breakeven_operator.observing.latency_metrics import latency_query, read_latencies
from breakeven_operator.observing.live_metrics import read_fleet
from breakeven_operator.observing.past_metrics import read_past
from breakeven_operator.observing.roll_metrics import read_roll
from operatorcluster.made_up_prometheus import asked, past_asked
from operatorcluster.sources import SOURCES, source_of

SECONDS, SCRAPE_S, WINDOW_S = 1200, 15, 300
# The pages go on for so long after they were made: a test that comes a minute late on a busy machine has whole windows, too.
AHEAD_S = 900
RPS = 2.0
# Jobs, replicas of Prometheus, ports by another name, sidecars by which a pod is discovered once more; the last two scrape later.
COPIES = (
    ({"job": "podmonitor", "instance": "10.0.0.7:8000"}, 0),
    ({"job": "annotations", "instance": "10.0.0.7:8000", "container": "istio-proxy"}, 0),
    ({"job": "servicemonitor", "instance": "10.0.0.7:http", "service": "chat", "endpoint": "http"}, 4),
    ({"job": "podmonitor", "instance": "10.0.0.7:8000", "prometheus_replica": "b", "receive": "true"}, 11),
)


class Page:
    """Samples of engines at a steady load, as scrapes of several jobs see them."""

    def __init__(self) -> None:
        self.end_s = int(time.time())
        self._lines: dict[str, list[str]] = defaultdict(list)

    def engine(self, pod, labels, later_s=0, *, began=0.0, finished=1.0):
        """One copy of one engine; `began`: what its counters had counted before, `finished`: share of its requests."""
        own = {"namespace": "llm", "pod": pod, "model_name": "chat", **labels}
        done = RPS * finished
        rates = {
            "request_success_total": (done, {"finished_reason": "length"}),
            "time_to_first_token_seconds_count": (RPS, {}),
            "generation_tokens_total": (100 * RPS, {}),
            "e2e_request_latency_seconds_count": (done, {}),
            "e2e_request_latency_seconds_sum": (1.5 * done, {}),
            "time_to_first_token_seconds_sum": (0.1 * RPS, {}),
            "inter_token_latency_seconds_count": (99 * RPS, {}),
            "inter_token_latency_seconds_sum": (1.4 * RPS, {}),
            "prompt_tokens_total": (50 * RPS, {}),
            "prefix_cache_hits_total": (20 * RPS, {}),
            "request_prompt_tokens_sum": (50 * done, {}),
            "request_generation_tokens_sum": (100 * done, {}),
            "request_generation_tokens_count": (done, {}),
            "e2e_request_latency_seconds_bucket": (done, {"le": "2.5"}),
            "spec_decode_num_accepted_tokens_per_pos_total": (RPS, {"position": "0"}),
        }
        for name, (rate, more) in rates.items():
            self._add(name, own | more, later_s, lambda age_s, rate=rate: began * rate + rate * age_s)
        self._add("num_requests_running", own, later_s, lambda _: 3.0)
        self._add("num_requests_waiting", own, later_s, lambda age_s: age_s / 100)

    def other_prefix(self, prefix):
        """The same samples under names that begin otherwise, of another model."""
        for name, lines in list(self._lines.items()):
            self._lines[f"{prefix}{name}"] = [
                line.replace("vllm:", prefix, 1).replace('"chat"', '"renamed"') for line in lines
            ]

    def _add(self, name, labels, later_s, value):
        shown = ",".join(f'{key}="{one}"' for key, one in labels.items())
        for at_s in range(later_s, SECONDS + AHEAD_S + 1, SCRAPE_S):
            self._lines[name].append(f"vllm:{name}{{{shown}}} {value(at_s)} {self.end_s - SECONDS + at_s}")

    def text(self):
        return "\n".join([*(line for lines in self._lines.values() for line in lines), "# EOF", ""])


def name(letters):
    return f"chat-7d9f8b6c5d-{letters}"


@pytest.fixture(scope="module", params=SOURCES)
def address(request, tmp_path_factory):
    page = Page()
    for letters, copies in (("bbbbb", COPIES[:1]), ("ccccc", COPIES)):
        for engine in "01":
            for labels, later_s in copies:
                page.engine(name(letters), {**labels, "engine": engine}, later_s)
    # Two engines that call themselves 0, as two containers of one pod do.
    for container, began in (("first", 0.0), ("second", 5000.0)):
        page.engine(name("ddddd"), {"engine": "0", "container": container}, began=began)
    # A pod's own label `engine` hides vLLM's.
    for engine in "01":
        page.engine(name("fffff"), {"engine": "vllm", "exported_engine": engine})
    page.engine("gone-7d9f8b6c5d-bbbbb", {"engine": "0"}, finished=0.5)
    page.other_prefix("kserve_vllm:")
    with source_of(request.param, tmp_path_factory.mktemp("source"), page.text()) as found:
        yield found


def test_copies_are_one_engine_and_engines_of_a_pod_are_several(address):
    pods = read_fleet(asked(address, fleet_query(["llm"], EngineSeries(), WINDOW_S, 120))).pods
    stats = {pod.name: reading.stats for pod, readings in pods.items() for reading in readings.values()}
    for letters in ("bbbbb", "ccccc", "fffff"):
        found = stats[name(letters)]
        assert found["engines"] == 2
        assert found["started"] == pytest.approx(2 * RPS * WINDOW_S, rel=0.03)
        assert found["completed"] == pytest.approx(2 * RPS * WINDOW_S, rel=0.03)
        assert found["running"] == pytest.approx(6.0)
        assert found["waiting_growth"] == pytest.approx(2 * WINDOW_S / 100, rel=0.03)
        (reading,) = pods[NamespacedName("llm", name(letters))].values()
        assert reading.accepted[0] == pytest.approx(2 * RPS * WINDOW_S, rel=0.03)


def test_names_that_begin_otherwise_are_read_as_they_are_given(address):
    found = read_fleet(
        asked(address, fleet_query(["llm"], EngineSeries(prefix="kserve_vllm:"), WINDOW_S, 120))
    ).pods
    for one in found.values():
        assert set(one) == {"renamed"}
    reading = found[NamespacedName("llm", name("ccccc"))]["renamed"]
    assert reading.stats["started"] == pytest.approx(2 * RPS * WINDOW_S, rel=0.03)
    past = read_past(
        past_asked(address, past_query(["llm"], EngineSeries(prefix="kserve_vllm:"), 600, 300))
    ).rates
    assert {owner.model_name for owner in past} == {"renamed"}


def test_two_engines_under_one_name_are_shown_with_their_labels_and_copies_are_not(address):
    pods = read_fleet(asked(address, fleet_query(["llm"], EngineSeries(), WINDOW_S, 120))).pods
    mixed = {
        pod.name: [one["container"] for one in reading.mixed]
        for pod, readings in pods.items()
        for reading in readings.values()
        if reading.mixed
    }
    assert {pod: sorted(found) for pod, found in mixed.items()} == {name("ddddd"): ["first", "second"]}


def test_sums_latencies_past_and_blocks_count_each_engine_once(address):
    copied, rolled = f"chat-7d9f8b6c5d-{'c' * 5}", [("llm", "chat")]
    sums = read_fleet(asked(address, sums_query(["llm"], EngineSeries(), WINDOW_S, 120))).pods
    siblings = siblings_of(copied)
    (of_set,) = sums[NamespacedName("llm", siblings)].values()
    # Three pods of two engines; of the two under one name one alone can be seen.
    assert of_set.stats["started"] == pytest.approx(7 * RPS * WINDOW_S, rel=0.03)
    assert of_set.stats["reporting"] == 4
    buckets = read_latencies(
        asked(address, latency_query([NamespacedName("llm", "chat")], EngineSeries(), WINDOW_S))
    )
    assert buckets.counts[SeriesOwner("llm", siblings, "chat")]["e2e"][2.5] == pytest.approx(
        7 * RPS * WINDOW_S, rel=0.03
    )
    blocks = read_roll(past_asked(address, roll_query(rolled, EngineSeries(), 300, 60)))
    for figure in ("started", "step_s", "generated", "prefilled", "hits"):
        grown = [blocks.pods[SeriesOwner("llm", name(pod), "chat")][figure] for pod in ("bbbbb", "ccccc")]
        assert grown[1][-1] - grown[1][-3] == pytest.approx(grown[0][-1] - grown[0][-3], rel=0.15)
        assert grown[1][-1] == pytest.approx(grown[0][-1], rel=0.02)


def test_the_past_counts_engines_once_and_requests_that_clients_gave_up(address):
    past = read_past(past_asked(address, past_query(["llm"], EngineSeries(), 600, 300))).rates
    queue = 1 / 100
    # Seven engines of four pods.
    assert past[SeriesOwner("llm", "Deployment chat", "chat")].rps[-1] == pytest.approx(
        7 * (RPS + queue) / 4, rel=0.03
    )
    assert past[SeriesOwner("llm", "Deployment gone", "chat")].rps[-1] == pytest.approx(RPS + queue, rel=0.03)


@pytest.mark.parametrize("model", ["chat", "renamed"])
def test_doctor_counts_pods_and_each_engine_once(address, model):
    """A pod of two engines that four jobs scrape; names of the other model begin with `kserve_vllm:`."""
    told = CliRunner().invoke(
        root,
        ["doctor", "--prometheus", address, "--model", model, "--match", "pod=~chat-.*-ccccc", "--json"],
        catch_exceptions=False,
    )
    found = json.loads(told.stdout)
    assert found["rps"] == pytest.approx(2 * RPS + 2 / 100, rel=0.03)
    assert "SeriesMissing" not in {one["cause"] for one in found["findings"]}


def test_doctor_says_that_clients_give_up(address):
    asked_for = ["--prometheus", address, "--model", "chat", "--match", 'pod!~"chat-.*"', "--json"]
    told = CliRunner().invoke(root, ["doctor", *asked_for], catch_exceptions=False)
    found = json.loads(told.stdout)
    assert found["rps"] == pytest.approx(RPS + 1 / 100, rel=0.03)
    assert {
        "cause": "ClientsGiveUp",
        "evidence": "clients gave up 50% of the requests that began",
    }.items() <= next(one for one in found["findings"] if one["cause"] == "ClientsGiveUp").items()
