"""`breakeven history` on a real Prometheus that holds five kinds of past: it says what the windows say without one between."""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner

from breakeven.cli import root
from fakes.past_samples import openmetrics
from operatorcluster.made_up_prometheus import prometheus_of
from validation.judged_engines import ENGINES, Half
from validation.past_trials import read_made
from validation.pasts import DEPLOYMENT, PastOf, made_past

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


@pytest.fixture(scope="module")
def address(pasts, tmp_path_factory):
    made = openmetrics({space(kind): past for kind, past in pasts.items()})
    with prometheus_of(tmp_path_factory.mktemp("prometheus"), made) as found:
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
