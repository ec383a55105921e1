"""`breakeven history` on a real Prometheus that holds five kinds of past: it says what the windows say without one between."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from click.testing import CliRunner

from breakeven.cli import root
from breakeven.prior.public_table import ServiceFacts
from breakeven.serving.promql import EngineSeries
from breakeven_operator.cluster import prometheus_answers
from breakeven_operator.cluster.fitter import ChildFitter
from breakeven_operator.cluster.prometheus_answers import WorkloadPast, first_answers
from breakeven_operator.cluster.prometheus_api import PrometheusClient
from breakeven_operator.cluster.prometheus_questions import Runner
from breakeven_operator.ports import PrometheusAccess
from fakes.manual_clock import FakeClock
from fakes.past_samples import openmetrics
from operatorcluster.sources import SOURCES, source_of
from validation.judged_engines import ENGINES, Half
from validation.past_trials import read_made
from validation.pasts import DEPLOYMENT, PastOf, made_past

# Product files whose change runs these tests at the next landing.
COVERS = ("tuner/breakeven/past/",)

DAYS, DRAFTS, HIGHEST_RPS = 2, 2, 1.0
HOUR_S = 3600
(ENGINE,) = (one for one in ENGINES if one.kind == "cpu" and one.half is Half.APART)
EXPECTED = {
    PastOf.TWO_ARMS: set(),
    PastOf.ONE_ARM: {"OtherArmNeverRan"},
    PastOf.DRIFT: {"AcceptanceDrifts"},
    PastOf.HOURS: {"LengthsMoveWithLoad"},
    PastOf.HALF_WAY: set(),
}


def space(kind: PastOf) -> str:
    return kind.name.lower().replace("_", "-")


@pytest.fixture(scope="module")
def pasts():
    end_s = int(time.time()) // HOUR_S * HOUR_S
    return {kind: made_past(ENGINE, kind, DRAFTS, HIGHEST_RPS, end_s, DAYS) for kind in PastOf}


@pytest.fixture(scope="module", params=SOURCES)
def address(request, pasts, tmp_path_factory):
    made = openmetrics({space(kind): past for kind, past in pasts.items()})
    with source_of(request.param, tmp_path_factory.mktemp("source"), made) as found:
        yield found


@pytest.mark.parametrize("kind", PastOf)
def test_a_real_prometheus_says_the_same(kind, pasts, address, monkeypatch):
    past = pasts[kind]
    monkeypatch.setattr(time, "time", lambda: float(past.end_s))
    words = [
        "--deployment",
        f"{space(kind)}/{DEPLOYMENT}",
        "--since",
        f"{DAYS}d",
        "--method",
        ENGINE.method,
        "--json",
    ]
    done = CliRunner().invoke(root, ["history", "--prometheus", address, *words], catch_exceptions=False)
    found = json.loads(done.stdout)
    known = read_made(past, ENGINE.method)
    points = [point for one in known.arms for point in one.points]
    assert {word: count for word, count in found["dropped"].items() if count} == {
        str(word): count for word, count in known.cut.dropped.items() if count
    }
    assert [(one["method"], one["k"], one["requests"]) for one in found["points"]] == [
        (one.method, one.k, one.requests) for one in points
    ]
    for column in ("mean_latency_s", "mean_inflight", "request_rate_rps"):
        assert [one[column] for one in found["points"]] == pytest.approx(
            [getattr(one, column) for one in points], rel=1e-3
        )
    said = {one["word"] for one in found["unknown"]}
    assert said >= EXPECTED[kind] | {"ChangesUnknown"}
    assert ("OtherArmNeverRan" in said) is (kind is PastOf.ONE_ARM)


@pytest.mark.parametrize("kind", [PastOf.TWO_ARMS, PastOf.ONE_ARM])
async def test_the_operator_reads_the_same_law_through_its_own_client(kind, pasts, address, monkeypatch):
    monkeypatch.setattr(prometheus_answers, "LOOKBACK_S", DAYS * 86400)
    clock = FakeClock()
    clock.advance(pasts[kind].end_s + 5.0 - clock.now().timestamp())
    ended: asyncio.Queue[str] = asyncio.Queue()
    client = PrometheusClient(None, allowed=("127.0.0.0/8",))
    reader = Runner(first_answers(ChildFitter()), client, clock, ended.put_nowait)
    known = read_made(pasts[kind], ENGINE.method)
    about = WorkloadPast(
        PrometheusAccess(address), EngineSeries(), space(kind), DEPLOYMENT, f"Deployment {DEPLOYMENT}", frozenset(),
        tuple(one.points[0].arm for one in known.arms), ENGINE.method, ServiceFacts(),
    )  # fmt: skip
    try:
        await reader.read({about: ()})
        await ended.get()
        answer = (await reader.read({about: ()}))[about]
    finally:
        await reader.close()
        await client.close()
    assert answer.profile is not None, answer.sentence
    assert known.profile is not None
    assert [fit.arm for fit in answer.profile.arms] == [fit.arm for fit in known.profile.arms]
    for found, expected in zip(answer.profile.arms, known.profile.arms, strict=True):
        assert found.c1_s == pytest.approx(expected.c1_s, rel=2e-3)
        assert found.c2_s == pytest.approx(expected.c2_s, rel=5e-3)
    assert ("OtherArmNeverRan" in answer.sentence) is (kind is PastOf.ONE_ARM)
