"""The law of steps follows a schedule through its tiers, at its points and beyond them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError, NotIdentifiedError
from breakeven.fitting import fit_points, with_schedule
from breakeven.planning.draft_schedule import step_view
from breakeven.profile import Conditions, Profile
from breakeven.tiers import Schedule
from fakes.scheduled_points import LEVEL, STEEP, all_points, latency_s, points

TO_NONE = Schedule(((1, 3), (21, 0)))
TO_FIVE = Schedule(((1, 3), (12, 5)))
STEEP_SCHEDULE, LEVEL_SCHEDULE = Arm("eagle3", 3, scheduled=True), Arm("eagle3", 5, scheduled=True)


@cache
def steep() -> Profile:
    """The fit that most tests ask."""
    return fit_points(all_points(STEEP, TO_NONE))


def test_a_schedule_is_fitted_beside_the_static_arms_and_leaves_them_alone():
    found = steep()
    alone = fit_points([one for one in all_points(STEEP, TO_NONE) if one.schedule is None])
    assert [fit.arm.name for fit in found.arms] == ["none", "eagle3/3", "eagle3/schedule"]
    for with_it, without in zip(found.arms, alone.arms, strict=False):
        assert (with_it.c1_s, with_it.c2_s) == pytest.approx((without.c1_s, without.c2_s), rel=0.01)
        for rps in (4.0, 11.0):
            ours, theirs = (one.predict(without.arm, rps=rps).latency_s for one in (found, alone))
            assert ours == pytest.approx(theirs, rel=0.03)
    assert found.arm(STEEP_SCHEDULE).schedule == "1-20:3,21-:0"


def test_inside_its_points_a_schedule_is_its_points():
    found = steep()
    for clients in (4, 9, 16, 30):
        expected = latency_s(STEEP, Arm("eagle3", 3), TO_NONE, clients - 1.0)
        assert found.predict(STEEP_SCHEDULE, concurrency=clients).latency_s == pytest.approx(
            expected, rel=0.05
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
    arm = next(fit.arm for fit in found.arms if fit.schedule)
    c1_s, c2_s = laws[last]
    expected = (c1_s + 199.0 * c2_s) * (1.0 + tax)
    prediction = found.predict(arm, concurrency=200)
    low, high = prediction.latency_ci_s
    assert prediction.latency_s == pytest.approx(expected, rel=0.1)
    assert 0.97 * low < expected < 1.03 * high
    saturation_rps = 1.0 / (c2_s * (1.0 + tax))
    assert found.curve(arm).saturation_rps == pytest.approx(saturation_rps, rel=0.12)
    assert found.predict(arm, rps=1.15 * saturation_rps).saturated


def test_what_a_schedule_accepts_is_not_converted_and_of_no_other_length():
    found = fit_points(all_points(LEVEL, TO_FIVE))
    (drafter,) = found.drafters
    assert drafter.tokens_per_step == {3: pytest.approx(2.2), 5: pytest.approx(3.0)}
    fit = found.arm(LEVEL_SCHEDULE)
    assert fit.acceptance is not None
    assert fit.tokens_per_step is None
    with pytest.raises(NotIdentifiedError, match="changes with the load"):
        found.curve(LEVEL_SCHEDULE, Conditions(tokens_per_step=2.0))
    assert step_view(found, "eagle3", 16).tokens_per_step[-1] == pytest.approx(3.0)


def test_a_schedule_that_was_not_measured_is_not_derived():
    static = [one for one in all_points(LEVEL, TO_FIVE) if one.schedule is None]
    with pytest.raises(NotIdentifiedError, match="eagle3/schedule: not in the profile"):
        fit_points(static).curve(LEVEL_SCHEDULE)


def test_other_lengths_move_a_schedule_as_a_whole():
    found = steep()
    longer = Conditions(output_tokens=128.0)
    # Time per token is all of the latency here, up to the first token's.
    for clients in (1, 9, 60, 200):
        before = found.predict(STEEP_SCHEDULE, concurrency=clients).latency_s
        assert found.predict(
            STEEP_SCHEDULE, concurrency=clients, conditions=longer
        ).latency_s == pytest.approx(2.0 * before, rel=0.25)


def test_a_family_has_one_schedule():
    other = points(STEEP, Arm("eagle3", 3), Schedule(((1, 3), (9, 0))))
    with pytest.raises(InputError, match="schedule of eagle3/schedule"):
        fit_points([*all_points(STEEP, TO_NONE), *other])


def test_a_schedule_measured_later_joins_a_profile_as_if_it_had_been_there():
    rows = all_points(STEEP, TO_NONE)
    static = fit_points([one for one in rows if one.schedule is None])
    joined = with_schedule(static, [one for one in rows if one.schedule])
    together = steep()
    assert [fit.arm for fit in joined.arms] == [fit.arm for fit in together.arms]
    for clients in (2, 20, 60):
        one, other = (
            found.predict(STEEP_SCHEDULE, concurrency=clients).latency_s for found in (joined, together)
        )
        assert one == pytest.approx(other, rel=0.01)
    another = points(STEEP, Arm("eagle3", 3), Schedule(((1, 3), (9, 0))))
    assert [fit.schedule for fit in with_schedule(joined, another).arms] == [None, None, "1-8:3,9-:0"]
    with pytest.raises(InputError, match="not those of one schedule"):
        with_schedule(static, rows)


def test_a_profile_with_a_schedule_is_written_and_read_exactly_and_one_without_says_nothing_of_it():
    found = steep()
    assert Profile.from_json(found.to_json()).document() == found.document()
    document = found.document()["arms"]
    assert ["schedule" in arm for arm in document] == [False, False, True]


@pytest.mark.parametrize("table", ["1-8:9,9-:0", "2-8:3", "what"])
def test_a_profile_with_an_impossible_schedule_is_refused_where_it_stands(table):
    found = steep()
    wrong = replace(found, arms=(*found.arms[:2], replace(found.arms[2], schedule=table)))
    with pytest.raises(InputError, match=r"p.json: arms\[2\].schedule"):
        Profile.from_json(wrong.to_json(), "p.json")
