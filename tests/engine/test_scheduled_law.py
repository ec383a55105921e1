"""Stepping takes a schedule's law from its measured points and from its last tier; the event clock runs the schedule itself."""

from __future__ import annotations

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.planning.policy import Policy
from breakeven.points.point import LoadMode, Point
from breakeven.profile import Profile
from breakeven_sim.engine.requests import Request
from breakeven_sim.replay.fleet_arms import LawArms
from breakeven_sim.replay.loops import closed_loop
from breakeven_sim.replay.study import Study
from breakeven_sim.replay.traces import RateTrace

EAGLE, LONGER = Arm("eagle3", 3), Arm("eagle3", 5)
TOKENS = 64
STEEP = {NO_SPECULATION: (2.0, 0.05), EAGLE: (1.1, 0.075)}
"""The drafter carries a third less: its schedule ends at draft length 0."""
LEVEL = {NO_SPECULATION: (1.20, 0.070), EAGLE: (0.78, 0.085), LONGER: (0.92, 0.072)}
"""The longer draft carries nearly as much: its schedule ends there."""
CONSTANT = RateTrace(np.arange(4) * 600.0, np.full(4, 600.0), np.full(4, 4.0))


def profile_of(laws: dict[Arm, tuple[float, float]], tail: float = 2.0) -> Profile:
    return fit_points(
        [
            Point(
                method=arm.method,
                k=arm.k,
                load_mode=LoadMode.POISSON,
                request_rate_rps=share / c2_s,
                mean_latency_s=c1_s / (1.0 - share),
                p95_latency_s=tail * c1_s / (1.0 - share),
                output_tokens=float(TOKENS),
            )
            for arm, (c1_s, c2_s) in laws.items()
            for share in (0.05, 0.2, 0.4, 0.6, 0.8)
        ]
    )


def study_of(laws: dict[Arm, tuple[float, float]], believed: Profile | None = None) -> Study:
    truth = profile_of(laws)
    candidates = [arm for arm in laws if arm.k]
    return Study(
        LawArms(truth, TOKENS), believed or truth, CONSTANT, candidates, 1, Policy(), compared=["schedule"]
    )


@pytest.mark.parametrize(("laws", "last"), [(STEEP, 0), (LEVEL, 5)])
def test_beyond_its_points_a_schedule_goes_on_as_its_last_tier(laws, last):
    study = study_of(laws)
    study.outcome("schedule")
    (schedule, made), *_ = study.arms.schedules.items()
    assert made.ranges[-1][2] == last
    clients = 200
    requests = [Request(number, 0.0, 1, TOKENS) for number in range(6 * clients)]
    closed_loop(study.arms, schedule, requests, clients)
    # The first generation starts together and the last one is not filled up again.
    inner = [one.finished_s - one.arrival_s for one in requests[clients:-clients]]
    assert clients > 2 * study.law(schedule).knots[-1][0]
    assert study.law(schedule).mean_s(clients - 1) == pytest.approx(np.mean(inner), rel=0.03)


def test_the_fleet_follows_its_own_laws_whatever_the_decision_believes():
    believed = profile_of(
        {arm: (c1_s / 1.5, c2_s) if arm.k else (c1_s, c2_s) for arm, (c1_s, c2_s) in LEVEL.items()}, tail=3.0
    )
    right, wrong = study_of(LEVEL), study_of(LEVEL, believed)
    for policy in ("none", "static:eagle3:3", "schedule", "oracle"):
        assert wrong.outcome(policy).mean_latency_s == right.outcome(policy).mean_latency_s
        assert wrong.outcome(policy).p95_latency_s == right.outcome(policy).p95_latency_s
