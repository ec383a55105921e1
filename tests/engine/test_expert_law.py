"""A mixture of experts on the event clock: its law is found in a sweep, and predicts open loops that were not measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.points.point import LoadMode, Origin, Point
from breakeven.profile import Conditions, Profile
from breakeven.profile.operating_conditions import measured_curve
from breakeven_sim.engine.costs import EngineCosts, default_document
from breakeven_sim.engine.requests import Request
from breakeven_sim.replay.fleet_arms import CostArms
from breakeven_sim.replay.loops import closed_loop, open_loop

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

EAGLE = Arm("eagle3", 3)
PROMPT, OUTPUT = 128, 64
CLIENTS = (1, 2, 4, 8, 16, 32, 64)
# Shares of saturation; from there on the chance of arrivals counts for more than the law.
LOADS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)


def engine(experts: dict[str, float] | None) -> CostArms:
    document = default_document().for_gpu("NVIDIA-H100-80GB-HBM3", "test").model_dump()
    document["step"] |= {"base_s": 0.004, "per_token_s": 2e-4, "experts": experts}
    return CostArms(EngineCosts.model_validate(document), seed=1)


def mean_latency_s(requests: Sequence[Request]) -> float:
    return float(np.mean([one.finished_s - one.arrival_s for one in requests]))


def swept(arms: CostArms, clients: Sequence[int] = CLIENTS) -> Profile:
    points: list[Point] = []
    for arm in (NO_SPECULATION, EAGLE):
        for count in clients:
            requests = [Request(number, 0.0, PROMPT, OUTPUT) for number in range(max(40 * count, 200))]
            closed_loop(arms, arm, requests, count)
            steady = requests[len(requests) // 5 : -len(requests) // 5]
            points.append(
                Point(
                    method=arm.method,
                    k=arm.k,
                    load_mode=LoadMode.CLOSED,
                    concurrency=float(count),
                    mean_inflight=float(count),
                    mean_latency_s=mean_latency_s(steady),
                    prompt_tokens=PROMPT,
                    output_tokens=OUTPUT,
                    requests=len(steady),
                    origin=Origin("sweep", len(points) + 1),
                )
            )
    return fit_points(points)


def true_latency_s(arms: CostArms, arm: Arm, rps: float) -> float:
    arrivals = np.random.default_rng(5).exponential(1.0 / rps, 2000).cumsum()
    requests = [Request(number, at, PROMPT, OUTPUT) for number, at in enumerate(arrivals.tolist())]
    open_loop(arms, arm, requests)
    return mean_latency_s(requests[200:])


@pytest.fixture(scope="module")
def mixture() -> CostArms:
    return engine({"all_s": 0.012, "share_per_token": 8 / 128})


@pytest.fixture(scope="module")
def profile(mixture: CostArms) -> Profile:
    return swept(mixture)


@pytest.mark.parametrize("arm", [NO_SPECULATION, EAGLE], ids=str)
def test_its_law_predicts_loads_that_the_straight_one_misses(mixture, profile, arm):
    fit = profile.arm(arm)
    assert fit.experts is not None
    assert fit.experts.error < 0.01
    assert fit.experts.share_per_token == pytest.approx(8 / 128, rel=0.6)
    assert (fit.believable, fit.reason, fit.basis) == (True, "LawBends", "arm")
    assert any("as a mixture of experts does" in one for one in profile.warnings)
    curve, line = profile.curve(arm, Conditions()), fit.fit.law
    misses, straight = [], []
    for share in LOADS:
        rps = share * curve.saturation_rps
        truth_s = true_latency_s(mixture, arm, rps)
        predicted = curve.at_rps(rps)
        assert predicted.basis == "arm"
        misses.append(abs(predicted.latency_s / truth_s - 1.0))
        left = 1.0 - rps * line.c2
        straight.append(abs(line.c1 / left / truth_s - 1.0) if left > 0 else 1.0)
    assert max(misses) < 0.12
    assert np.mean(misses) < 0.5 * np.mean(straight)


def test_beyond_its_points_latency_follows_the_law_of_all_experts_touched(mixture, profile):
    """Straight pieces between points know nothing there: their line saturates where the last two of them point."""
    fit = profile.arm(NO_SPECULATION)
    beyond = profile.curve(NO_SPECULATION, Conditions())
    pieces = measured_curve(dataclasses.replace(fit, experts=None, beyond=None, basis="points"), Conditions())
    rps = 0.7 * beyond.saturation_rps
    assert np.isnan(pieces.at_rps(rps).latency_s)
    truth_s = true_latency_s(mixture, NO_SPECULATION, rps)
    assert beyond.at_rps(rps).latency_s == pytest.approx(truth_s, rel=0.1)


def test_a_knee_is_no_mixture_of_experts():
    """Latency that rises faster where a batch is large: n*phi alone would bend like it, and points do as well."""
    others = np.array([0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0])
    points = [
        Point(
            load_mode=LoadMode.CLOSED,
            concurrency=n + 1.0,
            mean_inflight=n + 1.0,
            mean_latency_s=1.0 + 0.02 * n + 0.002 * n * n,
            requests=1000,
            origin=Origin("knee", number),
        )
        for number, n in enumerate(others.tolist(), start=1)
    ]
    fit = fit_points(points).arms[0]
    assert (fit.reason, fit.experts) == ("LawBends", None)


def test_a_dense_engine_has_none_and_six_loads_are_needed(mixture):
    assert [fit.experts for fit in swept(engine(None)).arms] == [None, None]
    assert [fit.experts for fit in swept(mixture, CLIENTS[:5]).arms] == [None, None]
