"""A server's recorded sums take the place of the operator's own while they count, and only then."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from breakeven.serving.engine_series import EngineSeries
from breakeven.serving.promql import Matcher
from breakeven_operator.adapters.present_loads import PresentSums
from breakeven_operator.adapters.prometheus_answers import Watch
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import InstantSample, PrometheusAccess
from breakeven_operator.reconcile.fleet_query import EVALUATED, REPORTING, SIBLINGS, STAT
from breakeven_operator.reconcile.recorded_sums import RECORD
from fakes.manual_clock import FakeClock

WATCH = Watch(PrometheusAccess("http://prometheus:9090"), EngineSeries(), 300, 120)
RECORDED, QUERIED = 1.0, 2.0


def row(namespace, value, **more):
    return InstantSample(
        {"namespace": namespace, SIBLINGS: "chat-1-", "model_name": "m", STAT: "running", **more}, value
    )


class Recorder:
    """The `Metrics` port: one ReplicaSet in each namespace that is asked about, whose sum says where it comes from.

    Attributes:
        recorded: namespaces of which there are recorded series. age_s: of these; None: there is no rule.
        twice: namespaces of which there are two.
    """

    def __init__(self, clock):
        self.clock = clock
        self.recorded, self.twice, self.age_s = {"a", "b"}, set(), 10.0
        self.questions = []

    async def query(self, _source, promql):
        now_s = self.clock.now().timestamp()
        recorded = RECORD in promql
        self.questions.append("recorded" if recorded else "query")
        named = [
            name for name in "abc" if f'"{name}"' in promql or f"{name}|" in promql or f"|{name}" in promql
        ]
        if not recorded:
            assert REPORTING in promql
            return [*(row(name, QUERIED) for name in named), InstantSample({STAT: EVALUATED}, now_s)]
        if self.age_s is None:
            return []
        rows = [row(name, RECORDED, __name__=RECORD) for name in named if name in self.recorded]
        rows += [row(name, 9.0, replica="b") for name in named if name in self.twice]
        return [*rows, InstantSample({STAT: EVALUATED, "__name__": RECORD}, now_s - self.age_s)]


class Fleet:
    """The sums of namespaces as cycles read them."""

    def __init__(self):
        self.clock = FakeClock()
        self.server = Recorder(self.clock)
        self.sums = PresentSums(self.server, self.clock, lambda _: None, 2.0)

    async def read(self, watch=WATCH, later_s=15.0):
        """Value by namespace, the questions that were put, and the age of the answer (s)."""
        self.clock.advance(later_s)
        self.server.questions.clear()
        reading = (await self.sums.read({watch: dict.fromkeys("abc", 1)}))[watch]
        found = {name: one.stats["running"] for name, (one,) in reading.pods.items()}
        assert found.keys() == {NamespacedName(name, "chat-1-") for name in "abc"}
        age_s = self.clock.now().timestamp() - reading.evaluated_s
        return {name.namespace: value for name, value in found.items()}, [*self.server.questions], age_s


@pytest.fixture
async def fleet():
    made = Fleet()
    yield made
    await made.sums.close()


async def test_namespaces_without_recorded_series_are_asked_about_and_the_answer_is_as_old_as_the_rule(fleet):
    found, asked, age_s = await fleet.read()
    assert found == {"a": RECORDED, "b": RECORDED, "c": QUERIED}
    assert asked == ["recorded", "query"]
    assert age_s == pytest.approx(10.0)
    fleet.server.recorded.add("c")
    assert (await fleet.read())[1] == ["recorded"]


async def test_what_two_rules_say_of_a_namespace_counts_for_nothing(fleet):
    fleet.server.twice = {"b"}
    found, asked, _ = await fleet.read()
    assert (found, asked) == ({"a": RECORDED, "b": QUERIED, "c": QUERIED}, ["recorded", "query"])


async def test_a_server_without_a_rule_is_asked_for_it_every_ten_minutes(fleet):
    fleet.server.age_s = None
    assert (await fleet.read())[:2] == (dict.fromkeys("abc", QUERIED), ["recorded", "query"])
    asked = [(await fleet.read())[1] for _ in range(39)]
    assert asked == [["query"]] * 39
    fleet.server.age_s = 10.0
    assert (await fleet.read())[1] == ["recorded", "query"]
    assert (await fleet.read())[0]["a"] == RECORDED


@pytest.mark.parametrize("age_s", [121.0, -121.0])
async def test_sums_that_are_stale_do_not_count_until_the_rule_is_evaluated_again(fleet, age_s, caplog):
    caplog.set_level(logging.INFO)
    await fleet.read()
    fleet.server.age_s = age_s
    for _ in range(2):
        found, asked, newest_s = await fleet.read()
        assert (found, asked) == (dict.fromkeys("abc", QUERIED), ["recorded", "query"])
        assert newest_s == 0.0
    fleet.server.age_s = 119.0
    assert (await fleet.read())[0]["a"] == RECORDED
    said = [one.getMessage().partition(": ")[2] for one in caplog.records]
    assert said == [
        "sums are read of its recording rule",
        f"its recorded sums are {age_s:.0f} s old (limit 120 s), so they do not count",
        "sums are read of its recording rule",
    ]


async def test_services_with_matchers_of_their_own_are_never_read_of_a_rule(fleet):
    watch = dataclasses.replace(WATCH, engines=EngineSeries((Matcher("cluster", "=", "one"),)))
    assert (await fleet.read(watch))[1] == ["query"]


async def test_a_server_that_is_wanted_again_is_asked_for_its_rule_at_once(fleet):
    fleet.server.age_s = None
    await fleet.read()
    await fleet.sums.read({})
    assert (await fleet.read())[1] == ["recorded", "query"]
