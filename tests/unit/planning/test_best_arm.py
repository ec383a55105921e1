"""Choosing among arms at one load: objectives, required gain, saturation; and stretches of load."""

import json
from dataclasses import replace
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.cli import root
from breakeven.errors import NotIdentifiedError
from breakeven.fitting import fit_points
from breakeven.planning.evaluation import ArmEvaluation, BestArm, LoadQuestion, best_arm, envelope, evaluate
from breakeven.planning.objective import Slo
from breakeven.profile import LoadPoint
from breakeven.reasons import Reason
from sweeps import CLIENTS, closed, csv_of, poisson

FAST, STEADY = Arm("eagle3", 7), Arm("eagle3", 1)


def sweep(noise: float = 0.0):
    rows = []
    for k, c1_s, c2_s in ((0, 1.2, 0.07), (1, 0.92, 0.072), (7, 0.78, 0.085)):
        for c in CLIENTS:
            rows += closed(
                "eagle3" if k else "none", k, c1_s, c2_s, clients=[c], noise=noise, seed=c, first_row=100 * k + c,
                output_tokens=201.0, tpot_mean_s=(c1_s - 0.1 + (c2_s - 0.01) * (c - 1)) / 200,
                ttft_mean_s=0.1 + 0.01 * (c - 1), p95_latency_s=1.5 * c1_s + 1.4 * c2_s * (c - 1),
                tpot_p95_s=(1.3 * c1_s + 1.5 * (c2_s - 0.01) * (c - 1)) / 200,
            )  # fmt: skip
    return rows


@pytest.fixture(scope="module")
def profile():
    return fit_points(sweep())


class Ranked(NamedTuple):
    """Figures of every arm, and the best of them."""

    arms: tuple[ArmEvaluation, ...]
    best: BestArm


NO_SLO = Slo()


def at(profile, *, rps=None, concurrency=None, slo=NO_SLO, min_gain=0.0, unmeasured=()) -> Ranked:
    arms = [*(fit.arm for fit in profile.arms), *unmeasured]
    found = evaluate(profile, arms, LoadQuestion(LoadPoint(rps, concurrency), slo=slo, derived=True))
    return Ranked(found.arms, best_arm(found, slo, min_gain))


@pytest.mark.parametrize(
    ("rps", "best"), [(3.0, FAST), (9.0, STEADY), (11.0, STEADY), (12.9, NO_SPECULATION)]
)
def test_the_lowest_latency_wins(profile, rps: float, best: Arm) -> None:
    ranked = at(profile, rps=rps)
    assert ranked.best.arm == best
    latencies = {one.arm: one.prediction.latency_s for one in ranked.arms if one.prediction.latency_s}
    assert ranked.best.arm == min(latencies, key=latencies.get)


def test_an_arm_that_is_best_on_an_extrapolation_stands_beside_what_the_operator_keeps(profile) -> None:
    """At 79 % of its saturation the law of STEADY is an extrapolation; that of FAST is one at 94 %."""
    ranked = at(profile, rps=11.0)
    assert (ranked.best.arm, ranked.best.reason) == (STEADY, Reason.EXTRAPOLATED)
    assert ranked.best.chosen.extrapolated
    assert ranked.best.kept == NO_SPECULATION


def test_where_nothing_else_carries_the_load_there_is_nothing_to_keep() -> None:
    carrying = fit_points(closed("none", 0, 1.2, 0.07) + closed("eagle3", 7, 0.7, 0.05))
    ranked = at(carrying, rps=16.0)
    assert (ranked.best.arm, ranked.best.reason, ranked.best.kept) == (FAST, Reason.EXTRAPOLATED, None)


def test_the_command_names_the_fastest_arm_that_is_no_extrapolation(tmp_path) -> None:
    points = tmp_path / "points.csv"
    points.write_text(csv_of(sweep()), encoding="utf-8")
    shown = CliRunner().invoke(root, ["plan", str(points), "--rps", "11"]).output
    words = " ".join(shown.split())
    assert "eagle3/1 is best, " in words
    assert "(Extrapolated)" in words
    assert "! that an arm is faster than no speculation at this load is an extrapolation" in words
    told = json.loads(CliRunner().invoke(root, ["plan", str(points), "--rps", "11", "--json"]).output)
    assert (told["best"], told["reason"]) == ({"method": "eagle3", "k": 1}, "Extrapolated")
    assert {arm["k"]: arm["extrapolated"] for arm in told["arms"]} == {0: True, 1: True, 7: True}
    trusted = json.loads(CliRunner().invoke(root, ["plan", str(points), "--rps", "9", "--json"]).output)
    assert (trusted["best"], trusted["warnings"]) == ({"method": "eagle3", "k": 1}, [])


def test_a_required_gain_is_held_against_the_lower_bound() -> None:
    noisy = fit_points(sweep(noise=0.02))
    lower = next(one for one in at(noisy, rps=8.0).arms if one.arm == STEADY).against_none.speedup_ci[0]
    assert at(noisy, rps=8.0, min_gain=lower - 1 - 1e-3).best.arm == STEADY
    refused = at(noisy, rps=8.0, min_gain=lower - 1 + 1e-3).best
    assert (refused.arm, refused.reason) == (NO_SPECULATION, Reason.GAIN_BELOW_THRESHOLD)
    assert at(noisy, rps=8.0, min_gain=5.0).best.reason == Reason.GAIN_BELOW_THRESHOLD


@pytest.mark.parametrize(("rps", "reason"), [(8.9, Reason.WIDE_BOUNDS), (11.0, Reason.BEYOND_BREAK_EVEN)])
def test_next_to_a_break_even_the_word_says_that_bounds_are_wide(rps: float, reason: Reason) -> None:
    two = fit_points([row for row in sweep(noise=0.02) if row.arm != STEADY])
    ranked = at(two, rps=rps)
    assert (ranked.best.arm, ranked.best.reason) == (NO_SPECULATION, reason)


def test_an_arm_that_misses_an_objective_loses_to_one_that_keeps_it(profile) -> None:
    others = {one.arm: one.prediction for one in at(profile, rps=5.0).arms}
    between = 0.5 * (others[FAST].tpot_s + others[STEADY].tpot_s)
    ranked = at(profile, rps=5.0, slo=Slo(tpot_s=between))
    kept = {one.arm for one in ranked.arms if one.meets_slo}
    assert ranked.best.arm in kept
    assert kept == {arm for arm, one in others.items() if one.tpot_s <= between}


def test_objectives_that_nobody_keeps_are_said(profile) -> None:
    ranked = at(profile, rps=5.0, slo=Slo(e2e_s=0.1))
    assert ranked.best.reason == Reason.SLO_VIOLATED
    assert [one.capacity_rps for one in ranked.arms] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "slo",
    [
        Slo(e2e_s=3.0),
        Slo(e2e_s=3.0, quantile=0.95),
        Slo(tpot_s=0.012),
        Slo(ttft_s=0.2),
        Slo(ttft_s=0.2, e2e_s=3),
        Slo(tpot_s=0.02, quantile=0.95),
        Slo(tpot_s=0.02, ttft_s=0.3, e2e_s=4, quantile=0.95),
    ],
)
def test_capacity_is_the_rate_at_which_an_objective_is_just_kept(profile, slo: Slo) -> None:
    for one in at(profile, rps=1.0, slo=slo).arms:
        most = one.capacity_rps
        just = {c.arm: c.meets_slo for c in at(profile, rps=0.9999 * most, slo=slo).arms}
        beyond = {c.arm: c.meets_slo for c in at(profile, rps=1.0001 * most, slo=slo).arms}
        assert (just[one.arm], beyond[one.arm]) == (True, False)


def test_an_objective_about_what_nobody_measured_is_refused() -> None:
    bare = fit_points(closed("none", 0, 1.2, 0.07))
    with pytest.raises(NotIdentifiedError, match="measured for no arm"):
        at(bare, rps=1.0, slo=Slo(ttft_s=1.0))


def test_a_quantile_objective_is_about_that_quantile_of_every_figure(profile) -> None:
    load = LoadPoint(rps=5.0)
    p95 = profile.predict(STEADY, rps=load.rps, quantile=0.95)
    for limit, kept in ((1.001 * p95.tpot_s, True), (0.999 * p95.tpot_s, False)):
        found = at(profile, rps=load.rps, slo=Slo(tpot_s=limit, quantile=0.95))
        one = next(one for one in found.arms if one.arm == STEADY)
        assert (one.meets_slo, one.unmeasured, one.promised.tpot_s) == (kept, (), p95.tpot_s)
        # The figures beside it stay means.
        assert one.prediction.tpot_s < p95.tpot_s


def test_a_quantile_that_was_not_measured_is_replaced_by_the_mean_and_said() -> None:
    rows = sweep()
    lacking = [replace(row, tpot_p95_s=None) if row.arm == FAST else row for row in rows]
    profile = fit_points(lacking)
    limit = 1.1 * profile.predict(FAST, rps=4.0).tpot_s
    found = {one.arm: one for one in at(profile, rps=4.0, slo=Slo(tpot_s=limit, quantile=0.95)).arms}
    assert found[FAST].meets_slo
    assert found[FAST].unmeasured == ("p95 of TPOT was not measured: its mean is held against the objective",)
    assert "tpot_s" in found[FAST].promised.means
    wide = at(profile, rps=4.0, slo=Slo(tpot_s=1.0, quantile=0.95))
    # Both keep it, but one of them by its mean only: the other one keeps it significantly.
    assert (wide.best.arm, at(profile, rps=4.0, slo=Slo(tpot_s=1.0)).best.arm) == (STEADY, FAST)


@pytest.mark.parametrize("clients", [[1, 8], [8]])
def test_an_arm_of_few_points_is_named_and_beyond_them_it_is_an_extrapolation(clients) -> None:
    few = fit_points(closed("none", 0, 1.2, 0.07) + closed("eagle3", 7, 0.5, 0.05, clients=clients))
    reached, beyond = (at(few, concurrency=float(load)).best for load in (8, 16))
    assert (reached.arm, reached.reason) == (FAST, Reason.GAIN_ABOVE_THRESHOLD)
    assert (beyond.arm, beyond.reason, beyond.kept) == (FAST, Reason.EXTRAPOLATED, NO_SPECULATION)


@pytest.mark.parametrize("clients", [CLIENTS, [32]])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_saturated_arm_is_never_named_while_another_one_carries_the_load(clients, noise) -> None:
    """A roofline engine: FAST is far the fastest alone, and saturates first; the arm that carries more has few points, or wild ones."""
    rows = closed("none", 0, 1.2, 0.11) + closed("eagle3", 7, 0.3, 0.12)
    rows += closed("eagle3", 1, 0.9, 0.05, clients=clients, noise=noise)
    profile = fit_points(rows)
    most = max(one.saturation_rps or 0.0 for one in profile.arms if one.arm != STEADY)
    for rps in (1.02 * most, 1.2 * most):
        ranked = at(profile, rps=rps)
        assert [one.arm for one in ranked.arms if not one.prediction.saturated] == [STEADY]
        assert ranked.best.arm == STEADY
        assert at(profile, rps=rps, min_gain=0.1).best.arm == STEADY


def test_where_all_are_saturated_the_one_that_carries_most_is_named(profile) -> None:
    ranked = at(profile, rps=20.0)
    assert (ranked.best.arm, ranked.best.reason) == (NO_SPECULATION, Reason.SATURATED)


def test_tokens_per_second_are_the_rate_times_the_length(profile) -> None:
    assert at(profile, rps=4.0).arms[0].tokens_per_second == pytest.approx(4.0 * 201)


def test_a_measured_ceiling_ends_a_stretch() -> None:
    rows = closed("none", 0, 1.2, 0.07, clients=[1, 2, 4, 8])
    rows += closed("eagle3", 7, 0.78, 0.06, clients=[1, 2, 4, 8])
    rows += poisson("eagle3", 7, 0.78, 0.06, [12.0], first_row=50, achieved_rps=7.0)
    capped = fit_points(rows)
    curves = [(fit.arm, capped.curve(fit.arm)) for fit in capped.arms]
    found = envelope(curves, (1.0, 12.0))
    assert [one.arm for one in found] == [FAST, NO_SPECULATION]
    assert found[0].to_rps == pytest.approx(capped.arm(FAST).saturation_rps, rel=1e-3)


def test_a_saturated_arm_keeps_no_objective_not_even_none(profile) -> None:
    ranked = at(profile, rps=12.0)
    kept = {one.arm: one.meets_slo for one in ranked.arms}
    assert kept == {NO_SPECULATION: True, STEADY: True, FAST: False}


def test_arms_that_lose_at_every_load_never_pay() -> None:
    losing = fit_points(closed("none", 0, 1.2, 0.07) + closed("eagle3", 7, 1.4, 0.09))
    assert at(losing, rps=5.0).best.reason == Reason.NEVER_PAYS


def test_derived_arms_are_compared_at_the_lengths_of_the_measured_ones() -> None:
    """Each arm was measured at two output lengths."""
    rows = []
    for k, e in ((0, 1.0), (2, 2.1), (7, 3.2)):
        for tokens in (64.0, 256.0):
            step_s, company_s = 0.007 + 0.0006 * k + 0.001 * (k > 0), 0.0002 + 0.00008 * k
            rows += closed(
                "eagle3" if k else "none", k, 0.05 + tokens / e * step_s, 0.002 + tokens / e * company_s,
                first_row=1000 * k + int(tokens), prompt_tokens=256.0, output_tokens=tokens, tokens_per_step=e,
            )  # fmt: skip
    candidates = at(fit_points(rows), rps=2.0, unmeasured=[Arm("eagle3", 4)]).arms
    by_k = {one.arm.k: one.prediction.latency_s for one in candidates}
    assert by_k[4] == pytest.approx(0.5 * (by_k[2] + by_k[7]), rel=0.15)
