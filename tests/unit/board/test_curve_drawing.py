"""Curves as places of an SVG: inside their frame, whatever the figures are."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from breakeven.reporting.lines import arm_curves
from breakeven_operator.board.board_service import laws_of
from breakeven_operator.board.curve_drawing import (
    HEIGHT,
    STRIP_HEIGHT,
    WIDTH,
    end_of_axis,
    latency_picture,
    load_strip,
    speedup_picture,
    ticks,
)
from breakeven_operator.board.load_trail import LoadSample
from fakes.fleet_world import BREAK_EVEN_RPS
from fakes.published_board import CHAT


@pytest.fixture(scope="module")
def curves(settled):
    return arm_curves(laws_of(settled, CHAT)[1])


@pytest.fixture
def decision(settled):
    return settled.services[CHAT].status.decision


def places(path):
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", path)]


def all_places(picture):
    paths = [path for arm in picture.arms for path in (arm.line, arm.band)]
    assert not any("nan" in path or "inf" in path for path in paths)
    return [place for path in paths for place in places(path)]


@pytest.mark.parametrize("draw", [speedup_picture, latency_picture])
def test_all_lines_and_bands_lie_in_the_frame(curves, decision, draw):
    picture = draw(curves, end_of_axis(curves, (), decision), decision)
    drawn = all_places(picture)
    assert len(drawn) > 100
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in drawn)
    assert 0 <= picture.now.x <= WIDTH


def test_a_line_ends_where_it_leaves_the_picture(curves, decision):
    picture = latency_picture(curves, end_of_axis(curves, (), decision), decision)
    for arm in picture.arms:
        assert [y for _, y in places(arm.line)].count(0.0) <= 1


def test_the_line_crosses_1_at_the_break_even_that_is_marked(curves, decision):
    end_rps = end_of_axis(curves, (), decision)
    (arm,) = speedup_picture(curves, end_rps, decision).arms
    middle, low, high = (x / WIDTH * end_rps for x in arm.break_even)
    assert low < middle < high
    assert middle == pytest.approx(BREAK_EVEN_RPS, rel=0.05)


def test_now_lies_on_the_curve_and_higher_loads_lie_to_its_right(curves, decision):
    end_rps = end_of_axis(curves, (), decision)
    picture = speedup_picture(curves, end_rps, decision)
    line = places(picture.arms[0].line)
    nearest = min(line, key=lambda place: abs(place[0] - picture.now.x))
    assert nearest[1] == pytest.approx(picture.now.y, abs=0.06 * HEIGHT)
    assert picture.now.high <= picture.now.y <= picture.now.low


@pytest.mark.parametrize("gap", [math.nan, math.inf])
def test_figures_that_are_none_leave_a_gap_and_open_bounds_reach_the_edge(curves, decision, gap):
    broken = [
        replace(
            curve,
            speedup=np.where(np.arange(len(curve.rps)) % 2, gap, curve.speedup),
            speedup_upper=np.full(len(curve.rps), math.nan),
        )
        for curve in curves
    ]
    picture = speedup_picture(broken, 20.0, decision)
    assert len(places(picture.arms[0].line)) <= len(curves[0].rps) / 2
    assert min(y for _, y in places(picture.arms[0].band)) == 0.0
    all_places(picture)


@pytest.mark.parametrize("field", ["load_rps", "speedup"])
@pytest.mark.parametrize("value", [None, math.nan])
def test_without_a_load_or_a_figure_there_is_no_point_of_now(curves, decision, field, value):
    assert speedup_picture(curves, 20.0, decision.model_copy(update={field: value})).now is None
    assert speedup_picture(curves, 20.0, None).now is None


@pytest.mark.parametrize("end", [1e-3, 0.7, 1.0, 3.14, 9.99, 31.0, 480.0, 1e6])
def test_ticks_are_few_round_and_inside(end):
    found = ticks(end)
    assert 2 <= len(found) <= 7
    assert found[0] == 0.0
    assert found[-1] <= end * (1 + 1e-9)
    step = found[1]
    assert f"{step:e}"[0] in "125"
    assert f"{step:e}"[1:8] == ".000000"


def test_the_strip_has_the_newest_load_on_top_and_far_loads_at_the_edge(curves, decision):
    trail = [LoadSample(60.0 * minute, rps) for minute, rps in enumerate((2.0, 4.0, 1e4))]
    end_rps = end_of_axis(curves, trail, decision)
    assert end_rps < 1.6 * max(curve.saturation_rps for curve in curves)
    strip = load_strip(trail, end_rps, decision)
    (newest_x, top), _, (_, bottom) = places(strip.path)
    assert (newest_x, top, bottom) == (WIDTH, 0.0, STRIP_HEIGHT)
    assert strip.hours == pytest.approx(2 / 60)
    assert load_strip(trail[:1], end_rps, decision) is None


def test_names_of_lines_that_end_at_one_place_do_not_lie_on_each_other(curves, decision):
    (eagle,) = (curve for curve in curves if curve.arm.k)
    many = [replace(eagle, arm=replace(eagle.arm, k=k)) for k in range(1, 9)]
    ends = [arm.end for arm in speedup_picture(many, 20.0, decision).arms]
    heights = sorted(y for _, y in ends)
    assert min(later - earlier for earlier, later in itertools.pairwise(heights)) >= 13.0


def test_each_arm_has_a_style_of_its_own_and_no_speculation_is_plain(curves, decision):
    assert {arm.name: arm.style for arm in latency_picture(curves, 20.0, decision).arms} == {
        "none": 0,
        "eagle/3": 1,
    }
