"""Capacity of an arm within the objectives, and replicas that a fleet needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import NotIdentifiedError
from breakeven.fitting import fit_points
from breakeven.fitting.profiles import points_of
from breakeven.laws.latency import InflightDistribution
from breakeven.planning.capacity import (
    HEADROOM,
    Capacity,
    CapacityLimit,
    capacity_along,
    fewest_replicas,
    recommended_replicas,
)
from breakeven.planning.objective import Slo
from breakeven.profile import Profile
from breakeven.profile.student_t import t_quantile
from sweeps import CLIENTS, closed

EAGLE = Arm("eagle3", 3)
P95 = Slo(e2e_s=3.0, quantile=0.95)


def sweep(noise: float = 0.01, clients=CLIENTS, kv_per_request: float = 0.0) -> Profile:
    rows = []
    for c in clients:
        rows += closed(
            "none", 0, 1.2, 0.07, clients=[c], noise=noise, seed=c, first_row=c, output_tokens=201.0,
            tpot_mean_s=(1.1 + 0.06 * (c - 1)) / 200, p95_latency_s=1.5 * 1.2 + 1.4 * 0.07 * (c - 1),
            **({"kv_usage_max": kv_per_request * c} if kv_per_request else {}),
        )  # fmt: skip
        rows += closed("eagle3", 3, 0.8, 0.08, clients=[c], noise=noise, seed=c, first_row=100 + c)
    return fit_points(rows)


@pytest.fixture(scope="module")
def profile() -> Profile:
    return sweep()


def of(profile: Profile, slo: Slo, **options) -> Capacity:
    found = capacity_along(profile, NO_SPECULATION, profile.curve(NO_SPECULATION), slo, **options)
    assert found is not None
    return found


def carried(rps: float, lower: float | None = None, upper: float | None = None, arm: Arm = EAGLE) -> Capacity:
    return Capacity(arm, rps, lower, upper, CapacityLimit.OBJECTIVE)


def test_without_objectives_the_capacity_is_saturation(profile) -> None:
    found, curve = of(profile, Slo()), profile.curve(NO_SPECULATION)
    assert (found.rps, found.limit) == (curve.saturation_rps, "Saturation")
    t = t_quantile(profile.confidence, curve.dof)
    assert (found.lower_rps, found.upper_rps) == pytest.approx(curve.saturation_bounds(t))


def test_a_mean_s_capacity_is_where_its_latency_and_its_bounds_reach_the_limit(profile) -> None:
    curve = profile.curve(NO_SPECULATION)
    found = of(profile, Slo(e2e_s=3.0))
    assert float(curve.latencies_at_rps(np.asarray(found.rps))) == pytest.approx(3.0)
    # On the line C1/(1 - rps*C2) a limit is kept up to (1 - C1/limit)/C2.
    fit = profile.arm(NO_SPECULATION)
    assert found.rps == pytest.approx((1.0 - fit.c1_s / 3.0) / fit.c2_s, rel=0.02)
    lower_s, upper_s = curve.all_bounds_at_rps(
        np.array([found.lower_rps, found.upper_rps]), t_quantile(profile.confidence, curve.dof)
    )
    assert (upper_s[0], lower_s[1]) == (pytest.approx(3.0, rel=0.01), pytest.approx(3.0, rel=0.01))


def test_wider_confidence_gives_wider_bounds(profile) -> None:
    narrow, wide = (of(replace(profile, confidence=level), P95) for level in (0.5, 0.99))
    assert wide.lower_rps < narrow.lower_rps < narrow.rps == wide.rps < narrow.upper_rps < wide.upper_rps


def test_no_bounds_are_told_for_an_arm_whose_figure_has_none() -> None:
    """TPOT of a draft length that was not measured is what is left of its latency: nothing says how sure that is."""
    rows = []
    for k, c1_s, c2_s in ((0, 1.2, 0.07), (1, 0.95, 0.072), (5, 0.8, 0.08)):
        for c in CLIENTS:
            rows += closed(
                "eagle3" if k else "none", k, c1_s, c2_s, clients=[c], noise=0.01, seed=c, first_row=100 * k + c,
                output_tokens=201.0, ttft_mean_s=0.1 + 0.01 * (c - 1), tokens_per_step=1 + 0.3 * k,
                tpot_mean_s=(c1_s - 0.1 + (c2_s - 0.01) * (c - 1)) / 200,
            )  # fmt: skip
    profile = fit_points(rows)
    found = capacity_along(profile, Arm("eagle3", 3), profile.curve(Arm("eagle3", 3)), Slo(tpot_s=0.012))
    assert found is not None
    assert (found.rps > 0, found.lower_rps) == (True, None)


def test_a_lone_request_that_misses_an_objective_leaves_no_capacity(profile) -> None:
    found = of(profile, Slo(e2e_s=0.5))
    assert (found.rps, found.lower_rps, found.limit) == (0.0, 0.0, "Objective")


def test_an_objective_about_what_nobody_measured_has_no_capacity(profile) -> None:
    assert capacity_along(profile, NO_SPECULATION, profile.curve(NO_SPECULATION), Slo(ttft_s=1.0)) is None
    with pytest.raises(NotIdentifiedError):
        capacity_along(profile, Arm("ngram", 4), profile.curve(Arm("ngram", 4)), Slo())


def test_a_full_batch_answers_no_more_than_little_s_law_lets_it(profile) -> None:
    found = of(profile, Slo(), max_num_seqs=8)
    curve = profile.curve(NO_SPECULATION)
    assert (found.rps, found.limit) == (
        pytest.approx(8 / curve.loop_latency_s(7.0, closed=False)),
        "MaxNumSeqs",
    )


def test_a_law_that_holds_the_limit_has_it_in_its_saturation(profile) -> None:
    rows = [replace(one, max_num_seqs=8.0) for one in points_of(profile) if one.concurrency <= 8]
    limited = fit_points(rows)
    found, curve = of(limited, Slo(), max_num_seqs=8), limited.curve(NO_SPECULATION)
    assert (found.rps, found.limit) == (curve.saturation_rps, "MaxNumSeqs")
    # Of the eight in a step each takes as long as one of eight clients.
    assert found.rps == pytest.approx(8 / curve.loop_latency_s(7.0, closed=True), rel=0.02)
    assert found.rps < 0.7 * of(profile, Slo()).rps


@pytest.mark.parametrize(("quantile", "share"), [(0.99, 0.01), (0.95, 0.05), (0.5, 0.05), (None, 0.05)])
def test_with_objectives_hardly_any_request_finds_the_batch_full(profile, quantile, share) -> None:
    """So many may wait as may miss the objective; the mean load alone would let half of them."""
    found = of(profile, Slo(e2e_s=60.0, quantile=quantile), max_num_seqs=16)
    curve = profile.curve(NO_SPECULATION)
    inflight = found.rps * float(curve.latencies_at_rps(np.asarray(found.rps)))
    met = InflightDistribution(inflight, found.rps / curve.saturation_rps)
    assert found.limit == "MaxNumSeqs"
    # Number in flight that fills the batch, or more.
    assert met.exceedance(15) == pytest.approx(share, rel=2e-3)
    assert found.lower_rps < found.rps < found.upper_rps


def test_the_kv_pool_bounds_an_arm_as_its_own_engine_showed_it() -> None:
    """A drafter's own cache is in the pool's use while its arm is measured, so nothing has to be added."""
    room, tight = sweep(kv_per_request=0.001), sweep(kv_per_request=0.015)
    assert tight.arm(NO_SPECULATION).kv_requests == pytest.approx(1 / 0.015)
    assert of(room, P95).limit == "Objective"
    wide = Slo(e2e_s=60.0, quantile=0.95)
    found = of(tight, wide)
    assert found.limit == "KvPool"
    assert found.rps == pytest.approx(of(sweep(), wide, max_num_seqs=66).rps)
    # The smaller of both counts.
    assert of(tight, wide, max_num_seqs=8).limit == "MaxNumSeqs"
    assert Profile.from_json(tight.to_json()).document() == tight.document()


def test_a_measured_ceiling_is_the_capacity_where_the_law_promises_more() -> None:
    """Queues and preemption in a calibration limit the capacity, whatever 1/C2 is."""
    rows = closed("none", 0, 1.2, 0.07, clients=(1, 2, 4, 8, 16), noise=0.01)
    rows += closed("none", 0, 8.0, 0.0, clients=[80], first_row=90, requests=2000.0, flag="Preempting")
    found = of(fit_points(rows), Slo())
    assert found.rps == pytest.approx(10.0, rel=0.05)
    assert found.lower_rps < found.rps <= found.upper_rps


@pytest.mark.parametrize(
    ("fleet_rps", "capacities", "replicas"),
    [
        (10.0, [carried(4.0, 3.0, 5.0)], 4),
        (0.0, [carried(4.0, 3.0)], 1),
        (10.0, [carried(4.0, 3.0), carried(8.0, 6.0, arm=NO_SPECULATION)], 4),
        (10.0, [carried(4.0, None, 5.0)], None),
        (10.0, [carried(4.0, 0.0, 5.0)], None),
        (10.0, [carried(4.0, 3.0), None], None),
        (10.0, [], None),
    ],
)
def test_replicas_for_the_present_load(fleet_rps, capacities, replicas) -> None:
    """By the lower bound, by the arm with the least capacity, and nothing if the capacity is not known."""
    assert HEADROOM == 1.2
    assert recommended_replicas(fleet_rps, capacities) == replicas


def test_a_whole_number_of_replicas_is_not_rounded_up_by_an_error_of_the_last_digit() -> None:
    assert recommended_replicas(25.0, [carried(3.0, 3.0)]) == 10
    assert recommended_replicas(0.1 + 0.2, [carried(0.12, 0.12)]) == 3


def test_a_fleet_that_scales_runs_the_arm_that_needs_fewer_replicas_not_the_faster_one() -> None:
    """At any one load eagle/3 may well be faster; at the objective its capacity is lower."""
    slow_and_strong, fast = carried(6.0, 5.8, 6.2, NO_SPECULATION), carried(4.0, 3.9, 4.1)
    found = fewest_replicas([slow_and_strong, fast], 40.0, EAGLE)
    assert found is not None
    assert found.arm == NO_SPECULATION
    assert list(found.needs) == [NO_SPECULATION, EAGLE]
    assert (
        found.sentence
        == "for 40 rps no speculation needs 8 replicas (8 to 9); eagle3/3 needs 12 replicas (12 to 13)"
    )


def test_an_arm_whose_need_is_not_surely_less_does_not_replace_the_running_one() -> None:
    doubtful = [carried(6.0, 4.0, 8.0, NO_SPECULATION), carried(5.0, 4.5, 5.5)]
    found = fewest_replicas(doubtful, 40.0, EAGLE)
    assert found is not None
    assert found.arm == EAGLE
    assert found.sentence.endswith("no other arm surely needs fewer")
    open_below = [carried(9.0, None, None, NO_SPECULATION), carried(5.0, 4.5, 5.5)]
    assert fewest_replicas(open_below, 40.0, EAGLE).arm == EAGLE


def test_an_open_bound_of_the_capacity_leaves_one_replica_at_least_and_no_number_at_most() -> None:
    found = fewest_replicas([carried(5.0, None, None)], 40.0, EAGLE)
    assert found is not None
    assert (found.needs[EAGLE].lower, found.needs[EAGLE].upper) == (1, None)


def test_a_small_fleet_gains_nothing_from_an_arm_that_carries_more() -> None:
    one_each = [carried(6.0, 5.9, 6.1, NO_SPECULATION), carried(4.0, 3.9, 4.1)]
    assert fewest_replicas(one_each, 2.0, EAGLE).arm == EAGLE


def test_nothing_is_said_where_the_running_arm_s_need_is_not_known() -> None:
    assert fewest_replicas([carried(6.0, 5.8, 6.2, NO_SPECULATION), None], 4.0, EAGLE) is None
