"""The fit of a schedule: its own points, and beyond them its last tier."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError, NotIdentifiedError
from breakeven.fitting import fit_points, with_schedule
from breakeven.planning.stepwise import AssumedAcceptance, step_view
from breakeven.profile import Conditions, Profile
from breakeven.tiers import Schedule
from fakes.scheduled_points import LEVEL, STEEP, all_points, latency_s, points

TO_NONE = Schedule(((1, 3), (21, 0)))
TO_FIVE = Schedule(((1, 3), (12, 5)))
STEEP_SCHEDULE, LEVEL_SCHEDULE = Arm("eagle3", 3, scheduled=True), Arm("eagle3", 5, scheduled=True)


def test_a_schedule_is_fitted_beside_the_static_arms_and_leaves_them_alone():
    found = fit_points(all_points(STEEP, TO_NONE))
    alone = fit_points([one for one in all_points(STEEP, TO_NONE) if one.schedule is None])
    assert [fit.arm.name for fit in found.arms] == ["none", "eagle3/3", "eagle3/schedule"]
    assert found.arms[:2] == alone.arms
    assert found.pooled == alone.pooled
    assert found.arm(STEEP_SCHEDULE).schedule == "1-20:3,21-:0"
    assert found.arm(STEEP_SCHEDULE).believable


def test_inside_its_points_a_schedule_is_its_points():
    found = fit_points(all_points(STEEP, TO_NONE))
    for clients in (4, 9, 16, 30):
        expected = latency_s(STEEP, Arm("eagle3", 3), TO_NONE, clients - 1.0)
        assert found.predict(STEEP_SCHEDULE, concurrency=clients).latency_s == pytest.approx(
            expected, rel=0.002
        )


@pytest.mark.parametrize(
    ("laws", "table", "tax", "last"),
    [
        (STEEP, TO_NONE, 0.0, NO_SPECULATION),
        (STEEP, TO_NONE, 0.15, NO_SPECULATION),
        (LEVEL, TO_FIVE, 0.0, Arm("eagle3", 5)),
    ],
)
def test_beyond_its_points_a_schedule_goes_on_as_its_last_tier(laws, table, tax, last):
    found = fit_points(all_points(laws, table, tax=tax))
    arm = next(fit.arm for fit in found.arms if fit.scheduled)
    c1_s, c2_s = laws[last]
    expected = (c1_s + 199.0 * c2_s) * (1.0 + tax)
    assert found.predict(arm, concurrency=200).latency_s == pytest.approx(expected, rel=0.01)
    saturation_rps = 1.0 / (c2_s * (1.0 + tax))
    assert found.arm(arm).saturation_rps == pytest.approx(saturation_rps, rel=0.01)
    low, high = found.arm(arm).saturation_ci_rps
    assert low < saturation_rps < high
    assert found.predict(arm, rps=1.02 * saturation_rps).saturated


def test_where_its_points_end_a_schedule_is_as_uncertain_as_the_points_of_its_last_tier():
    found = fit_points(all_points(STEEP, TO_NONE))
    beyond, last = found.arm(STEEP_SCHEDULE).beyond, found.arm(STEEP_SCHEDULE).measurements[-1]
    (v1, v12), (_, v2) = beyond.covariance
    sd_s = (v1 + 2.0 * last.others * v12 + last.others**2 * v2) ** 0.5
    assert sd_s == pytest.approx(found.arm(NO_SPECULATION).noise * last.latency_s, rel=0.01)


def test_a_tax_that_no_point_shows_widens_the_bounds_of_saturation():
    static = [one for one in all_points(STEEP, TO_NONE) if one.schedule is None]
    short = points(STEEP, Arm("eagle3", 3), TO_NONE, clients=(1, 4, 9, 16))
    long = points(STEEP, Arm("eagle3", 3), TO_NONE)
    widths = []
    for rows in (short, long):
        fit = fit_points([*static, *rows]).arm(STEEP_SCHEDULE)
        low, high = fit.saturation_ci_rps
        widths.append(high / low)
    assert widths[0] > 1.15
    assert widths[1] < 1.05


def test_a_last_tier_that_nobody_measured_is_said():
    static = [one for one in all_points(STEEP, TO_NONE) if one.schedule is None and one.method != "none"]
    found = fit_points([*static, *points(STEEP, Arm("eagle3", 3), TO_NONE)])
    assert found.arm(STEEP_SCHEDULE).beyond is None
    assert any("nothing says what it does beyond its points" in one for one in found.warnings)


def test_what_a_schedule_accepts_is_not_converted_and_not_pooled():
    found = fit_points(all_points(LEVEL, TO_FIVE))
    (pooled,) = found.pooled
    assert pooled.tokens_per_step == {3: pytest.approx(2.2), 5: pytest.approx(3.0)}
    fit = found.arm(LEVEL_SCHEDULE)
    assert fit.acceptance is not None
    assert fit.tokens_per_step is None
    with pytest.raises(NotIdentifiedError, match="changes with the load"):
        found.curve(LEVEL_SCHEDULE, Conditions(tokens_per_step=2.0))
    assert step_view(found, "eagle3", 16, acceptance=AssumedAcceptance()).tokens_per_step[
        -1
    ] == pytest.approx(3.0)


def test_a_schedule_that_was_not_measured_is_not_predicted_from_the_pooled_form():
    static = [one for one in all_points(LEVEL, TO_FIVE) if one.schedule is None]
    with pytest.raises(NotIdentifiedError, match="eagle3/schedule: not in the profile"):
        fit_points(static).curve(LEVEL_SCHEDULE)


def test_other_lengths_move_a_schedule_as_a_whole():
    found = fit_points(all_points(STEEP, TO_NONE))
    longer = {"output_tokens": 128.0}
    # Time per token is all of the latency here, up to the first token's.
    for clients in (1, 9, 60, 200):
        before = found.predict(STEEP_SCHEDULE, concurrency=clients).latency_s
        assert found.predict(STEEP_SCHEDULE, concurrency=clients, **longer).latency_s == pytest.approx(
            2.0 * before, rel=0.02
        )


def test_a_family_has_one_schedule():
    other = points(STEEP, Arm("eagle3", 3), Schedule(((1, 3), (9, 0))))
    with pytest.raises(InputError, match="one schedule of eagle3"):
        fit_points([*all_points(STEEP, TO_NONE), *other])


def test_a_schedule_measured_later_joins_a_profile_as_if_it_had_been_there():
    rows = all_points(STEEP, TO_NONE)
    static = fit_points([one for one in rows if one.schedule is None])
    joined = with_schedule(static, [one for one in rows if one.schedule])
    assert joined.arms == fit_points(rows).arms
    another = points(STEEP, Arm("eagle3", 3), Schedule(((1, 3), (9, 0))))
    assert [fit.schedule for fit in with_schedule(joined, another).arms] == [None, None, "1-8:3,9-:0"]
    with pytest.raises(InputError, match="not those of one schedule"):
        with_schedule(static, rows)


def test_a_profile_with_a_schedule_is_written_and_read_exactly_and_one_without_says_nothing_of_it():
    found = fit_points(all_points(STEEP, TO_NONE))
    assert Profile.from_json(found.to_json()) == found
    document = found.document()["arms"]
    assert ["schedule" in arm for arm in document] == [False, False, True]
    assert ["beyond" in arm for arm in document] == [False, False, True]


@pytest.mark.parametrize("table", ["1-8:9,9-:0", "2-8:3", "what"])
def test_a_profile_with_an_impossible_schedule_is_refused_where_it_stands(table):
    found = fit_points(all_points(STEEP, TO_NONE))
    wrong = replace(found, arms=(*found.arms[:2], replace(found.arms[2], schedule=table)))
    with pytest.raises(InputError, match=r"p.json: arms\[2\].schedule"):
        Profile.from_json(wrong.to_json(), "p.json")


def test_a_last_tier_whose_lengths_nobody_knows_is_taken_as_it_is():
    rows = all_points(STEEP, TO_NONE)
    bare = [one if one.schedule else replace(one, output_tokens=None, tokens_per_step=None) for one in rows]
    with_lengths = fit_points(rows).arm(STEEP_SCHEDULE)
    assert fit_points(bare).arm(STEEP_SCHEDULE).saturation_rps == pytest.approx(with_lengths.saturation_rps)
