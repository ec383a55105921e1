"""The fit runs outside this process and says in one line what is wrong."""

from __future__ import annotations

import asyncio

from breakeven.profile import Profile
from breakeven_operator.actions import FitOutcome
from breakeven_operator.cluster.fitter import ChildFitter
from fakes.fleet_world import LAWS

HEADER = "method,k,candidate,request_rate_rps,mean_latency_s,mean_inflight,tokens_per_step\n"


def points():
    rows = []
    for arm, (c1_s, c2_s) in LAWS.items():
        for share in (0.02, 0.15, 0.3, 0.45, 0.6, 0.7):
            rps = share / c2_s
            latency_s = c1_s / (1 - share)
            rows.append(
                f"{arm.method},{arm.k},{arm.candidate or ''},{rps},{latency_s},{rps * latency_s},{2.5 if arm.k else 1}"
            )
    return HEADER + "\n".join(rows) + "\n"


async def test_points_become_a_profile():
    outcome = await ChildFitter().fit(points(), ["--confidence", "0.9"])
    assert outcome.error is None
    assert outcome.profile_json is not None
    assert {fit.arm for fit in Profile.from_json(outcome.profile_json).arms} == set(LAWS)


async def test_wrong_points_are_one_line():
    outcome = await ChildFitter().fit(HEADER + "none,0,,1,-1,1,1\n", [])
    assert outcome.profile_json is None
    assert outcome.error is not None
    assert "\n" not in outcome.error
    assert "mean_latency_s" in outcome.error


async def test_a_fit_that_takes_too_long_is_ended():
    outcome = await ChildFitter(timeout_s=0.01).fit(points(), [])
    assert outcome.error == "the fit did not end within 0.01 s"


async def test_the_child_inherits_no_setting_and_no_credential(monkeypatch):
    monkeypatch.setenv("BREAKEVEN_PROMETHEUS_BEARER_FILE", "/secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    given = {}

    async def start(*_command, env, **_pipes):
        given.update(env)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    outcome = await ChildFitter().fit(points(), [])
    assert outcome == FitOutcome(None, "the fit could not be run: Resource temporarily unavailable")
    assert given.keys() <= {
        "PATH",
        "HOME",
        "LANG",
        "TMPDIR",
        "PYTHONPATH",
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
    }
