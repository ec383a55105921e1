"""Pasts of services without a profile: whose pods count, one at a time, what is repeated when, and what a stranger's series do."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.prior.public_table import ServiceFacts
from breakeven.readers.prometheus import InstantSample, Samples, TimedValue
from breakeven.readers.reading import read_text
from breakeven.serving.promql import EngineSeries
from breakeven_operator.actions import FitOutcome
from breakeven_operator.cluster import prometheus_answers
from breakeven_operator.cluster.prometheus_answers import RETRY_S, WorkloadPast, first_answers
from breakeven_operator.cluster.prometheus_questions import Runner
from breakeven_operator.observing.past_metrics import AWAITED
from breakeven_operator.ports import MetricsError, PrometheusAccess
from fakes.manual_clock import FakeClock
from fakes.past_courses import C1_S, STEP_S, grid_of, lawful, stored
from fakes.promql_evaluation import evaluate, evaluate_range

WINDOWS = 36
RATES = np.linspace(0.3, 4.0, WINDOWS)
GRID = grid_of(WINDOWS)
EAGLE = Arm("eagle3", 3, "eagle")
ABOUT = WorkloadPast(
    PrometheusAccess("http://prometheus:9090"),
    EngineSeries(),
    "llm",
    "chat",
    "Deployment chat",
    frozenset(),
    (NO_SPECULATION, EAGLE),
    "eagle3",
    ServiceFacts(8.0, False, "H100", "bf16"),
)
NONE, DRAFTS = "chat-7d9f8b6c5d-bbbbb", "chat-64bd5fcf9-zzzzz"


class HeldPrometheus:
    """The `Metrics` port over a store of series."""

    def __init__(self, *pods):
        self.store = stored(pods, GRID)
        self.asked = []
        self.error = None
        self.reached, self.goes_on = asyncio.Event(), asyncio.Event()
        self.goes_on.set()

    async def query(self, source, promql):
        await self._asked(source)
        return [InstantSample(one.labels, one.value) for one in evaluate(self.store, promql, GRID.last_s)]

    async def query_past(self, source, promql):
        await self._asked(source)
        found = evaluate_range(self.store, promql, GRID.last_s + 7.0)
        return [
            Samples(
                {key: value for key, value in one.labels.items() if key != "__name__"},
                tuple(
                    TimedValue(at / 1000.0, value) for at, value in zip(one.times_ms, one.values, strict=True)
                ),
            )
            for one in found
        ]

    async def _asked(self, source):
        self.asked.append(source)
        self.reached.set()
        await self.goes_on.wait()
        if self.error is not None:
            raise self.error


class LibraryFit:
    """The `Fitter` port, in this process."""

    async def fit(self, points_csv, arguments):
        return FitOutcome(fit_points(read_text(points_csv, "points")).to_json(), None)


@pytest.fixture
def clock():
    found = FakeClock()
    found.advance(GRID.last_s - found.now().timestamp() + 7.0)
    return found


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(prometheus_answers, "LOOKBACK_S", WINDOWS * STEP_S)


def pods():
    return lawful(RATES, NONE), lawful(RATES, DRAFTS, k=3, c1_s=1.5, c2_s=0.12)


class Asked:
    """Pasts, and the outcomes of their readings as they come."""

    def __init__(self, server, clock):
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        self.outcomes = []
        self.pasts = Runner(first_answers(LibraryFit()), server, clock, self.ended.put_nowait)

    async def next_end(self):
        self.outcomes.append(await self.ended.get())

    async def told(self, wanted):
        """The answers once none is awaited."""
        while AWAITED in (answers := await self.read(wanted)).values():
            await self.next_end()
        return answers

    async def read(self, wanted):
        """The answers, by uid."""
        told = await self.pasts.read(dict.fromkeys(wanted.values(), ()))
        return {uid: told[about] for uid, about in wanted.items()}


@pytest.fixture
async def made(clock):
    found = []

    def make(server):
        found.append(Asked(server, clock))
        return found[-1]

    yield make
    for one in found:
        await one.pasts.close()


async def test_the_laws_of_what_ran_come_back_under_the_names_of_the_service(made):
    server = HeldPrometheus(*pods())
    asked = made(server)
    assert await asked.read({"a": ABOUT}) == {"a": AWAITED}, "no cycle waits"
    answer = (await asked.told({"a": ABOUT}))["a"]
    assert [fit.arm for fit in answer.profile.arms] == [NO_SPECULATION, EAGLE]
    assert answer.profile.arm(NO_SPECULATION).c1_s == pytest.approx(C1_S, rel=0.1)
    assert "6 h of no speculation, 6 h of eagle/3" in answer.sentence
    assert f"{len(server.asked)} queries" in answer.sentence
    assert asked.outcomes == ["ok"]


async def test_pods_of_another_target_do_not_count_though_their_names_begin_alike(made):
    other = lawful(RATES, "chat-large-7d9f8b6c5d-ccccc", c1_s=5 * C1_S)
    alone = (await made(HeldPrometheus(*pods())).told({"a": ABOUT}))["a"]
    beside = (await made(HeldPrometheus(*pods(), other)).told({"a": ABOUT}))["a"]
    assert beside.profile.arms == alone.profile.arms


async def test_the_pods_of_an_unknown_kind_are_those_that_share_a_beginning(made):
    about = replace(ABOUT, title="", siblings=frozenset({"chat-7d9f8b6c5d-"}))
    answer = (await made(HeldPrometheus(*pods())).told({"a": about}))["a"]
    assert [fit.arm for fit in answer.profile.arms] == [NO_SPECULATION]
    assert "OtherArmNeverRan" in answer.sentence


async def test_a_candidate_that_never_ran_is_spoken_of_by_the_measurements_of_others(made):
    server = HeldPrometheus(lawful(RATES, NONE))
    answer = (await made(server).told({"a": ABOUT}))["a"]
    assert [fit.arm for fit in answer.profile.arms] == [NO_SPECULATION]
    assert "FromPrior: eagle/3: eagle3/3 of" in answer.sentence
    assert not answer.pays_nothing


async def test_one_past_is_read_at_a_time_and_namespaces_take_turns(made):
    server = HeldPrometheus(*pods())
    asked = made(server)
    server.goes_on.clear()
    names = {"a": "one", "b": "one", "c": "two"}
    wanted = {
        uid: replace(ABOUT, source=PrometheusAccess(f"http://{uid}"), namespace=space)
        for uid, space in names.items()
    }
    await asked.read(wanted)
    await server.reached.wait()
    await asked.read(wanted)
    assert {one.address for one in server.asked} == {"http://a"}
    server.goes_on.set()
    await asked.told(wanted)
    assert list(dict.fromkeys(one.address[-1] for one in server.asked)) == ["a", "c", "b"]


async def test_a_failure_is_said_and_tried_again_sooner_than_what_succeeded(made, clock):
    server = HeldPrometheus(*pods())
    server.error = MetricsError("prometheus gave no whole answer within 10 s")
    asked = made(server)
    answer = (await asked.told({"a": ABOUT}))["a"]
    assert (answer.profile, asked.outcomes) == (None, ["error"])
    assert "no whole answer" in answer.sentence
    server.error = None
    clock.advance(RETRY_S - 1.0)
    assert (await asked.told({"a": ABOUT}))["a"] == answer
    clock.advance(1.0)
    await asked.read({"a": ABOUT})
    await asked.next_end()
    assert (await asked.told({"a": ABOUT}))["a"].profile is not None
    queries = len(server.asked)
    clock.advance(RETRY_S)
    await asked.told({"a": ABOUT})
    assert len(server.asked) == queries, "what succeeded stands for hours"


async def test_a_past_too_large_to_be_read_beside_a_fleet_is_given_up(made, monkeypatch):
    monkeypatch.setattr(prometheus_answers, "MOST_SAMPLES", 100)
    answer = (await made(HeldPrometheus(*pods())).told({"a": ABOUT}))["a"]
    assert answer.profile is None
    assert "more than 100 samples" in answer.sentence


async def test_series_that_make_no_sense_are_the_tenants_problem_alone(made, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(prometheus_answers, "read_past", broken)
    answer = (await made(HeldPrometheus(*pods())).told({"a": ABOUT}))["a"]
    assert answer.profile is None
    assert "log" in answer.sentence


async def test_a_reading_ends_with_its_service(made):
    server = HeldPrometheus(*pods())
    asked = made(server)
    server.goes_on.clear()
    await asked.read({"a": ABOUT})
    await server.reached.wait()
    await asked.read({})
    server.goes_on.set()
    answer = (await asked.told({"b": ABOUT}))["b"]
    assert answer.profile is not None
    assert asked.outcomes == ["ok"]


def test_the_clock_of_these_tests_is_the_end_of_the_series(clock):
    assert clock.now() == datetime.fromtimestamp(GRID.last_s + 7.0, UTC)


async def test_what_began_an_hour_ago_is_not_asked_about_for_two_weeks(made, monkeypatch):
    server = HeldPrometheus(*pods())
    await made(server).told({"a": ABOUT})
    monkeypatch.setattr(prometheus_answers, "LOOKBACK_S", 14 * 86_400)
    young = HeldPrometheus(*pods())
    answer = (await made(young).told({"a": ABOUT}))["a"]
    assert answer.profile is not None
    assert len(young.asked) == len(server.asked), "six hours are part of one day"
