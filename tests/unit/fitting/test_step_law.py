"""The one law of all arms: fitted to sweeps of its own making, it predicts loads, arms and lengths that were not measured."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.cli import root
from breakeven.errors import InputError
from breakeven.fitting import fit_points
from breakeven.laws.step_law import CostsOfSteps, Demand, Tier, closed_loop, company
from breakeven.points.point import LoadMode, Point
from breakeven.points.table import cells, written
from breakeven.profile import Profile

COSTS = CostsOfSteps(
    **{
        name: np.asarray(value)
        for name, value in {
            "weights_s": 0.015,
            "position_s": 6e-5,
            "sharpness": 1.8,
            "untouched": 0.1,
            "touching": 20.0,
            "context_s": 1e-7,
            "prompt_s": 5e-5,
            "drafting_s": 1e-3,
            "draft_s": 7e-4,
            "each_draft_s": 2e-6,
            "request_s": 0.008,
        }.items()
    },
    departures=np.zeros(12),
)
YIELDS = {0: 1.0, 2: 2.1, 3: 2.5, 5: 2.9, 7: 3.1}
SHARES = (0.03, 0.15, 0.3, 0.45, 0.6)


def demand(k, prompt=512.0, output=256.0, e=None):
    tier = Tier(1, np.asarray(float(k)), np.asarray(e or YIELDS[k]))
    return Demand((tier,), np.asarray(prompt), np.asarray(output), np.asarray(prompt + output / 2))


def truth(k, share, **lengths):
    """The rate at a share of saturation, and what requests take there."""
    together = company(COSTS, demand(k, **lengths), 1024)
    rate = share * float(together.saturation_rps)
    found = together.at_rate(np.asarray(rate))
    return rate, float(found.latency_s), float(found.ttft_s)


def point(k, share, factor=1.0, **lengths):
    rate, latency_s, ttft_s = truth(k, share, **lengths)
    return Point(
        method="eagle3" if k else "none",
        k=k,
        load_mode=LoadMode.POISSON,
        request_rate_rps=rate,
        achieved_rps=rate,
        mean_latency_s=latency_s * factor,
        mean_inflight=rate * latency_s * factor,
        ttft_mean_s=ttft_s * factor,
        prompt_tokens=lengths.get("prompt", 512.0),
        output_tokens=lengths.get("output", 256.0),
        tokens_per_step=lengths.get("e") or YIELDS[k],
        drafted_per_step=float(k),
        requests=2000,
    )


def sweep(noise=0.0, seed=3):
    rng = np.random.default_rng(seed)
    return [point(k, share, float(np.exp(noise * rng.normal()))) for k in (0, 2, 7) for share in SHARES]


@pytest.fixture(scope="module")
def profile():
    return fit_points(sweep(0.01), law="steps")


@pytest.mark.parametrize("k", [0, 3, 5, 7])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.7])
def test_loads_and_draft_lengths_that_were_not_measured(profile, k, share):
    rate, latency_s, _ = truth(k, share)
    arm = Arm("eagle3", k) if k else NO_SPECULATION
    found = profile.predict(arm, rps=rate, tokens_per_step=YIELDS[k] if k else None)
    assert found.latency_s == pytest.approx(latency_s, rel=0.04)
    assert found.latency_ci_s is not None
    low, high = found.latency_ci_s
    assert low < latency_s < high


@pytest.mark.parametrize("lengths", [{"prompt": 2048.0}, {"output": 512.0}, {"e": 1.7}])
def test_other_lengths_and_acceptance_lie_within_the_bounds(profile, lengths):
    rate, latency_s, _ = truth(7, 0.4, **lengths)
    found = profile.predict(
        Arm("eagle3", 7),
        rps=rate,
        tokens_per_step=lengths.get("e"),
        prompt_tokens=lengths.get("prompt"),
        output_tokens=lengths.get("output"),
    )
    assert found.latency_s == pytest.approx(latency_s, rel=0.12)
    low, high = found.latency_ci_s
    assert low < latency_s < high


def test_a_second_prompt_length_narrows_what_other_lengths_take():
    more = [point(0, share, prompt=2048.0) for share in (0.05, 0.5)]
    widths = []
    for points in (sweep(0.01), [*sweep(0.01), *more]):
        found = fit_points(points, law="steps").predict(NO_SPECULATION, rps=1.0, prompt_tokens=4096.0)
        low, high = found.latency_ci_s
        widths.append(high - low)
    assert widths[1] < 0.7 * widths[0]


def test_what_both_arms_share_leaves_their_ratio_alone(profile):
    ours, none = Arm("eagle3", 7), NO_SPECULATION
    rate = 6.0
    found = profile.compare(ours, rps=rate)
    own = [profile.predict(arm, rps=rate).latency_ci_s for arm in (ours, none)]
    independent = np.hypot(*(np.log(high / low) for low, high in own))
    low, high = found.speedup_ci
    assert np.log(high / low) < 0.99 * independent
    assert low < found.speedup < high


def bent(share):
    """What no engine of this law does: a quarter slower around a load in the middle."""
    return 1.0 + 0.25 * np.exp(-(((share - 0.3) / 0.2) ** 2))


def test_an_arm_that_leaves_the_law_is_followed_where_it_was_measured_and_doubted_where_it_was_not():
    shares = (0.03, 0.12, 0.22, 0.3, 0.38, 0.5, 0.6)
    points = [point(k, share, bent(share) if k == 7 else 1.0) for k in (0, 2, 7) for share in shares]
    profile = fit_points(points, law="steps")
    straight = fit_points([point(k, share) for k in (0, 2, 7) for share in shares], law="steps")
    assert profile.steps.form.sd > 2.0 * straight.steps.form.sd
    for share in (0.12, 0.3, 0.5):
        rate, latency_s, _ = truth(7, share)
        found = profile.predict(Arm("eagle3", 7), rps=rate)
        assert found.latency_s == pytest.approx(latency_s * bent(share), rel=0.035)
    rate = truth(3, 0.3)[0]
    widths = [
        np.log(high / low)
        for arm in (Arm("eagle3", 7), Arm("eagle3", 3))
        for low, high in [profile.predict(arm, rps=rate, tokens_per_step=YIELDS[arm.k]).latency_ci_s]
    ]
    assert widths[1] > 1.3 * widths[0], "an arm that was not measured may leave the law as far"


def test_the_document_is_the_law(profile):
    again = Profile.from_json(profile.to_json())
    assert again == profile
    assert again.predict(Arm("eagle3", 5), rps=5.0, tokens_per_step=2.9) == profile.predict(
        Arm("eagle3", 5), rps=5.0, tokens_per_step=2.9
    )
    without = replace(profile, steps=None)
    assert "steps" not in without.document()


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (lambda steps: steps["figures"].pop(), "steps.figures"),
        (lambda steps: steps["figures"].__setitem__(0, 900.0), "steps.figures"),
        (lambda steps: steps["arms"].pop(), "steps.figures"),
        (lambda steps: steps["covariance"].pop(), "steps.covariance"),
        (lambda steps: steps["covariance"][0].__setitem__(0, -1.0), "steps.covariance"),
        (lambda steps: steps["covariance"][0].__setitem__(1, 5.0), "steps.covariance"),
        (lambda steps: steps.update(dof=0), "steps.covariance"),
        (lambda steps: steps["form"].update(sd=0.0), "steps.form"),
        (lambda steps: steps["gaps"].pop(), "steps.gaps"),
        (lambda steps: steps["gaps"][0]["gaps"].pop(), "steps.gaps"),
        (lambda steps: steps["gaps"][0]["slopes"][0].pop(), "steps.gaps"),
    ],
)
def test_a_law_that_no_fit_writes_is_refused_by_its_place(profile, edit, place):
    document = json.loads(profile.to_json())
    edit(document["steps"])
    with pytest.raises(InputError, match=re.escape(place)):
        Profile.from_json(json.dumps(document))


def test_closed_and_open_loops_fit_together():
    mixed = sweep()
    for clients in (1, 8, 32):
        for k in (0, 7):
            served = closed_loop(COSTS, demand(k), np.asarray([float(clients)])).served
            mixed.append(
                replace(
                    point(k, 0.1),
                    load_mode=LoadMode.CLOSED,
                    concurrency=float(clients),
                    request_rate_rps=None,
                    achieved_rps=clients / float(served.latency_s[0]),
                    mean_inflight=float(clients),
                    mean_latency_s=float(served.latency_s[0]),
                    ttft_mean_s=None,
                )
            )
    law = fit_points(mixed, law="steps").steps
    assert law.noise < 0.02


def test_rows_without_lengths_are_fitted_arm_by_arm():
    unknown = [replace(one, output_tokens=None, prompt_tokens=None) for one in sweep()]
    profile = fit_points(unknown, law="steps")
    assert profile.steps is None
    assert profile.predict(NO_SPECULATION, rps=2.0).basis == "arm"


def test_the_command_prints_what_a_step_costs(tmp_path):
    points = tmp_path / "points.csv"
    points.write_text(written([cells(one) for one in sweep(0.01)]))
    out = tmp_path / "profile.json"
    words = ["fit", str(points), "-o", str(out), "--law", "steps"]
    shown = CliRunner().invoke(root, words)
    assert shown.exit_code == 0, shown.output
    assert "each draft ms" in shown.output
    found = json.loads(CliRunner().invoke(root, [*words, "--json"]).output)
    costs = {one["name"]: one for one in found["step_costs"]}
    assert costs["weights_s"]["ci"][0] < 0.015 < costs["weights_s"]["ci"][1]
    assert costs["prompt_s"]["ci"][0] < 5e-5 < costs["prompt_s"]["ci"][1]
    asked = ["predict", str(out), "--method", "eagle3", "--k", "5", "--rps", "4", "--tokens-per-step", "2.9"]
    assert "from the one law of all arms" in CliRunner().invoke(root, asked).output
