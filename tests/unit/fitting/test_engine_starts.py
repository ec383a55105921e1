"""Starts of an engine that differ, and a machine that drifts, in what a fit says and how sure it is."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting import fit_points
from breakeven.fitting.arms import blocks_of, rows_of
from breakeven.fitting.profiles import PRIOR_DOF, PRIOR_MINUTES_SD, PRIOR_SD, points_of, with_schedule
from breakeven.points.point import LIVE_TRAFFIC, Point
from breakeven.profile import Conditions, Profile
from sweeps import BEGUN_S, closed, poisson

ARM = Arm("eagle3", 3)
CLIENTS = (1, 2, 4, 8, 16, 32, 64)


def rows(arm: Arm, c1_s: float, c2_s: float, **changes: object) -> list[Point]:
    """A closed-loop sweep with 1 % noise, each row with these columns in addition."""
    e = 2.4 if arm.k else 1.0
    found = closed(
        arm.method, arm.k, c1_s, c2_s, clients=CLIENTS, noise=0.01, output_tokens=200.0, tokens_per_step=e
    )
    return [replace(one, **changes) for one in found]


def slowed(points: list[Point], factor: float, **changes: object) -> list[Point]:
    """The rows of a start that is slower by a factor, among as many clients."""
    return [
        replace(
            one,
            mean_latency_s=one.mean_latency_s * factor,
            achieved_rps=None,
            origin=replace(one.origin, source="again.csv"),
            **changes,
        )
        for one in points
    ]


BESIDE = rows(NO_SPECULATION, 1.2, 0.07), rows(ARM, 0.8, 0.075)
NONE, SPECULATING = rows(NO_SPECULATION, 1.2, 0.07, begun_s=None), rows(ARM, 0.8, 0.075, begun_s=None)
AFTER_SD = math.hypot(PRIOR_SD, PRIOR_MINUTES_SD)


def latency_s(profile: Profile, arm: Arm, clients: float) -> float:
    found = profile.predict(arm, concurrency=clients).latency_s
    assert found is not None
    return found


def width(profile: Profile) -> float:
    """Upper over lower bound of the speedup at eight clients."""
    lower, upper = profile.compare(ARM, concurrency=8.0).speedup_ci or (None, None)
    assert lower is not None
    assert upper is not None
    return upper / lower


def test_one_start_of_each_arm_leaves_the_stated_doubt_in_every_bound():
    profile = fit_points([*NONE, *SPECULATING])
    starts = profile.starts
    assert starts is not None
    assert (starts.sd, starts.differences) == (AFTER_SD, 0)
    # Two arms, each known from one start; Student's quantile is never below the normal one.
    assert math.log(width(profile)) > 2 * 1.645 * math.sqrt(2) * AFTER_SD
    none = profile.arm(NO_SPECULATION)
    for value, ends in ((none.c1_s, none.c1_ci_s), (none.c2_s, none.c2_ci_s)):
        assert value is not None
        assert ends is not None
        assert ends[0] is not None
        assert math.log(value / ends[0]) > 1.645 * AFTER_SD
    assert not [one for one in profile.warnings if "start" in one]


def test_rows_of_two_starts_count_as_their_mean_and_the_difference_is_said():
    factor = 1.08
    profile = fit_points([*NONE, *slowed(NONE, factor, start="2"), *SPECULATING])
    alone = fit_points([*NONE, *SPECULATING])
    for clients in (1.0, 12.0, 50.0):
        ratio = latency_s(profile, NO_SPECULATION, clients) / latency_s(alone, NO_SPECULATION, clients)
        assert ratio == pytest.approx(math.sqrt(factor), rel=0.01)
    said = [one for one in profile.warnings if "StartsDiffer" in one]
    assert len(said) == 1
    assert said[0].startswith("none: 2 starts of its engine differ by ")
    assert profile.starts is not None
    expected = math.sqrt((PRIOR_DOF * AFTER_SD**2 + 0.5 * math.log(factor) ** 2) / (PRIOR_DOF + 1))
    assert profile.starts.sd == pytest.approx(expected, rel=0.05)


def test_a_second_start_that_agrees_narrows_the_bounds():
    once = fit_points([*NONE, *SPECULATING])
    twice = fit_points(
        [*NONE, *slowed(NONE, 1.0, start="2"), *SPECULATING, *slowed(SPECULATING, 1.0, start="2")]
    )
    assert width(twice) < width(once)
    assert not [one for one in twice.warnings if "StartsDiffer" in one]


def test_a_second_start_at_a_few_other_loads_is_compared_where_the_law_misses_both_alike():
    bent = [replace(one, mean_latency_s=one.mean_latency_s * (1.0 + 0.003 * i)) for i, one in enumerate(NONE)]
    again = slowed([bent[1], bent[3], bent[5]], 1.0, start="2")
    profile = fit_points([*bent, *again, *SPECULATING])
    assert profile.starts is not None
    assert profile.starts.arms[0].number == 2
    assert profile.starts.arms[0].apart == pytest.approx(0.0, abs=0.01)


def test_a_machine_that_drifts_within_a_start_is_said_and_widens_that_arms_bounds():
    begun = [replace(one, sweep="s1", relative_error=0.01) for one in NONE]
    ended = slowed(begun[:1], 1.10)
    steady = fit_points([*begun, *slowed(begun[:1], 1.01), *SPECULATING])
    assert not [one for one in steady.warnings if "MachineDrifts" in one]
    profile = fit_points([*begun, *ended, *SPECULATING])
    said = [one for one in profile.warnings if "MachineDrifts" in one]
    assert len(said) == 1
    assert said[0].startswith("none: the same load took 10.0% longer at the end than at the beginning")
    assert profile.steps is not None
    assert profile.steps.starts_of(NO_SPECULATION) > profile.steps.starts_of(ARM)
    # Rows of other tools stand in any order.
    unordered = fit_points([*NONE, *slowed(NONE[:1], 1.10), *SPECULATING])
    assert not [one for one in unordered.warnings if "MachineDrifts" in one]


def test_arms_that_were_measured_beside_each_other_share_their_minutes():
    beside, after = fit_points([*BESIDE[0], *BESIDE[1]]), fit_points([*NONE, *SPECULATING])
    assert beside.steps is not None
    assert beside.steps.starts_of(ARM) == pytest.approx(PRIOR_SD)
    assert math.log(width(after)) > 1.8 * math.log(width(beside))
    assert beside.compare(ARM, concurrency=9.0).side_by_side
    # No window stood near 24 clients, and none of these beside another arm's.
    assert not beside.compare(ARM, concurrency=24.0).side_by_side
    assert not after.compare(ARM, concurrency=9.0).side_by_side
    # Under other conditions the law converts what was measured.
    assert beside.compare(ARM, concurrency=9.0, conditions=Conditions(tokens_per_step=2.4)).side_by_side
    for asked in (Conditions(tokens_per_step=1.8), Conditions(output_tokens=100.0)):
        assert not beside.compare(ARM, concurrency=9.0, conditions=asked).side_by_side


def test_long_windows_of_one_load_stand_beside_each_other():
    """Windows of ten minutes, each begun when the one before it ended: their begins are farther apart than their ends."""
    later = [replace(one, begun_s=one.begun_s + 605.0) for one in BESIDE[1]]
    long = [replace(one, begun_s=20.0 * one.begun_s, window_s=600.0) for one in BESIDE[0]]
    later = [replace(one, begun_s=20.0 * (one.begun_s - 605.0) + 605.0, window_s=600.0) for one in later]
    profile = fit_points([*long, *later])
    assert profile.compare(ARM, concurrency=9.0).side_by_side


def test_a_slow_minute_is_no_difference_of_arms_that_shared_it():
    """Two loads of the sweep fell into minutes that were slower by a fifth, for both arms alike."""
    usual = fit_points([*BESIDE[0], *BESIDE[1]])
    slow = [
        replace(one, mean_latency_s=1.2 * one.mean_latency_s) if one.concurrency in {4, 32} else one
        for one in (*BESIDE[0], *BESIDE[1])
    ]
    shaken = fit_points(slow)
    for clients in (2.0, 6.0, 16.0):
        before, after = (one.compare(ARM, concurrency=clients) for one in (usual, shaken))
        assert after.speedup == pytest.approx(before.speedup, rel=0.03)
    assert shaken.steps is not None
    assert shaken.steps.minutes_sd > 0.03
    alone = fit_points([replace(one, begun_s=None) for one in slow])
    assert width(shaken) < 0.8 * width(alone)
    # A latency is as uncertain as its minute.
    found = shaken.predict(ARM, concurrency=8.0)
    assert found.latency_ci_s is not None
    assert math.log(found.latency_ci_s[1] / found.latency_ci_s[0]) > 2 * 1.645 * shaken.steps.minutes_sd


def test_windows_of_one_load_on_two_days_are_no_neighbours():
    tomorrow = [replace(one, begun_s=one.begun_s + 86_400.0) for one in BESIDE[1]]
    profile = fit_points([*BESIDE[0], *tomorrow])
    assert profile.steps is not None
    assert profile.steps.starts_of(ARM) == pytest.approx(AFTER_SD)


def pairs(number: int, rps: float, every_s: float) -> list[Point]:
    """Pairs of no speculation and the arm at one rate, in the order A B, B A, a window begun each so many seconds."""
    found = []
    for at in range(2 * number):
        first = at % 4 in {0, 3}
        (row,) = (
            poisson("none", 0, 1.2, 0.07, [rps], 50 + at)
            if first
            else poisson("eagle3", 3, 0.8, 0.075, [rps], 50 + at)
        )
        found.append(
            replace(row, begun_s=BEGUN_S + every_s * at, window_s=0.9 * every_s, replicate=str(1 + at // 2))
        )
    return found


def stretches(points: list[Point]) -> list[float]:
    """The stretch of time of each row."""
    arms = [rows_of(arm, [one for one in points if one.arm == arm], 0.5) for arm in (NO_SPECULATION, ARM)]
    numbers = {
        id(row.point): number
        for arm, found in zip(arms, blocks_of(arms), strict=True)
        for row, number in zip(arm.rows, found, strict=True)
    }
    return [numbers[id(one)] for one in points]


def at_once(*machines: str) -> list[Point]:
    """The arms' windows at each load at the same time, each arm on its machine."""
    return [
        replace(one, begun_s=here.begun_s, start=f"{one.arm.name} on {machine}")
        for machine, own in zip(machines, BESIDE, strict=True)
        for one, here in zip(own, BESIDE[0], strict=True)
    ]


def test_windows_at_the_same_time_share_their_minutes_on_one_machine_alone():
    one, two = at_once("a", "a"), at_once("a", "b")
    assert len({*stretches(one)}) == len(one) / 2
    assert len({*stretches(two)}) == len(two)
    assert fit_points(one).compare(ARM, concurrency=9.0).side_by_side
    assert not fit_points(two).compare(ARM, concurrency=9.0).side_by_side


def test_a_chain_of_pairs_is_no_longer_stretch_than_five_minutes():
    # 16 windows in 16 minutes: the machine of the first one is not that of the last.
    long = pairs(8, 2.0, 60.0)
    found = stretches(long)
    assert len(set(found)) == 3
    for number in set(found):
        own = [one for one, stretch in zip(long, found, strict=True) if stretch == number]
        assert {one.arm for one in own} == {NO_SPECULATION, ARM}
        assert own[-1].begun_s - own[0].begun_s - own[0].window_s <= 300.0
    assert len(set(stretches(pairs(4, 2.0, 40.0)))) == 1


def open_loops() -> list[Point]:
    """Both arms at the same rates beside each other, each a little off the rate in what it answered."""
    none, arm = (
        poisson("none", 0, 1.2, 0.07, (1, 2, 4, 6, 8)),
        poisson("eagle3", 3, 0.8, 0.075, (1, 2, 4, 6, 8)),
    )
    return [
        replace(
            one, achieved_rps=one.load.rps * (0.8 + 0.04 * i), mean_inflight=one.load.rps * one.mean_latency_s,
            window_s=400.0, begun_s=BEGUN_S + 1e4 * one.load.rps + (410.0 if one.k else 0.0), requests=30.0,
            output_tokens=200.0, tokens_per_step=2.4 if one.k else 1.0,
        )
        for i, one in enumerate((*none, *arm))
    ]  # fmt: skip


def test_a_profile_gives_its_rows_back_with_their_times():
    profile = fit_points([*BESIDE[0], *BESIDE[1]])
    again = fit_points(points_of(Profile.from_json(profile.to_json())))
    assert width(again) == pytest.approx(width(profile), rel=0.02)


def test_a_schedule_that_joins_a_profile_leaves_the_stretches_of_its_open_loops():
    before = Profile.from_json(fit_points(open_loops()).to_json())
    assert [one.load for one in points_of(before)] == [one.load for one in open_loops()]
    alone = fit_points(points_of(before))
    for profile in (alone, with_schedule(before, rows(Arm("eagle3", 5), 0.8, 0.075, schedule="1-4:5,5-:0"))):
        assert [one.excluded for one in profile.arms[:2]] == [(), ()], "each was judged when it was measured"
        assert profile.compare(ARM, rps=4.0).side_by_side
        assert profile.steps.starts_of(ARM) == pytest.approx(PRIOR_SD)
    assert len({*stretches(points_of(before))}) == 5


def test_rates_beyond_the_other_arms_do_not_make_no_speculation_one_that_stood_alone():
    """No speculation carries more: of its eight rates the arm was measured at three, each beside it."""
    none = poisson("none", 0, 1.2, 0.07, (0.5, 1, 2, 4, 6, 8, 10, 12), output_tokens=200.0)
    arm = poisson("eagle3", 3, 0.8, 0.3, (0.5, 1, 2), output_tokens=200.0, tokens_per_step=2.4)
    profile = fit_points([*none, *arm])
    assert profile.compare(ARM, rps=2.0).side_by_side
    # Below the arm's highest rate it could have stood beside it.
    alone = fit_points(
        [
            *none,
            arm[0],
            *(replace(one, begun_s=None) for one in arm[1:]),
            *poisson("eagle3", 3, 0.8, 0.05, (13,), tokens_per_step=2.4, output_tokens=200.0),
        ]
    )
    assert not alone.compare(ARM, rps=0.5).side_by_side


def test_a_probe_at_other_lengths_is_no_drift():
    begun = [replace(one, sweep="s1", relative_error=0.01) for one in NONE]
    probe = replace(
        begun[0],
        mean_latency_s=0.3 * begun[0].mean_latency_s,
        achieved_rps=None,
        output_tokens=20.0,
        output_tokens_sq=None,
        origin=replace(begun[0].origin, row=900),
    )
    profile = fit_points([begun[0], probe, *begun[1:], *SPECULATING])
    assert profile.steps is not None
    assert profile.steps.starts_of(NO_SPECULATION) == pytest.approx(AFTER_SD)


def test_rows_of_live_traffic_are_of_many_pods_and_carry_no_doubt_of_one_start():
    live = [replace(one, text_source=LIVE_TRAFFIC, relative_error=0.01) for one in (*NONE, *SPECULATING)]
    profile = fit_points(live)
    assert profile.steps is not None
    assert profile.steps.starts_of(NO_SPECULATION) == 0.0
    assert profile.steps.starts_of(Arm("eagle3", 5)) == PRIOR_SD


def test_a_profile_of_a_version_without_starts_is_read_and_keeps_its_bounds():
    profile = fit_points([*NONE, *SPECULATING])
    document = profile.document()
    del document["steps"]["starts"]
    older = Profile.from_json(json.dumps(document))
    assert older.steps is not None
    assert older.steps.starts_of(NO_SPECULATION) == 0.0
    assert width(older) < width(profile)
