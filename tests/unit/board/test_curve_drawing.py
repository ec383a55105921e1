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
    DAY_HEIGHT,
    HEIGHT,
    WIDTH,
    load_picture,
    speedup_picture,
    styles_of,
    ticks,
)
from breakeven_operator.board.load_trail import LoadSample
from fakes.published_board import CHAT, ROLLING


@pytest.fixture(scope="module")
def curves(settled):
    return arm_curves(laws_of(settled, CHAT)[1])


@pytest.fixture
def status(settled):
    return settled.services[CHAT].status


def places(path):
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", path)]


def with_decision(status, **fields):
    return status.model_copy(update={"decision": status.decision.model_copy(update=fields)})


def with_column(status, speedup):
    display = status.display.model_copy(update={"speedup": speedup})
    return status.model_copy(update={"workings": status.workings.model_copy(update={"display": display})})


def test_all_lines_and_bands_lie_in_the_frame(curves, status):
    picture = speedup_picture(curves, status)
    drawn = [place for arm in picture.arms for path in (arm.line, arm.band) for place in places(path)]
    assert len(drawn) > 100
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in drawn)
    assert [arm.name for arm in picture.arms if arm.compared] == ["eagle/3"]
    assert len(picture.arms[0].points) == 6


def test_the_line_crosses_1_at_the_break_even_that_is_marked(curves, status):
    picture = speedup_picture(curves, status)
    (arm,) = picture.arms
    crossing = min(places(arm.line), key=lambda place: abs(place[1] - picture.one))
    assert crossing[0] / WIDTH * 100 == pytest.approx(picture.break_even.value, abs=2.0)
    assert picture.break_even.low < picture.break_even.value < picture.break_even.high == 100.0


def test_now_lies_on_the_curve_at_the_figure_of_the_column(curves, status):
    picture = speedup_picture(curves, status)
    nearest = min(places(picture.arms[0].line), key=lambda place: abs(place[0] / WIDTH * 100 - picture.now.x))
    assert nearest[1] == pytest.approx(picture.now.y, abs=0.06 * HEIGHT)
    assert picture.now.high < picture.now.y < picture.now.low
    assert picture.now.text == "now 1.79 at 3 rps"
    measured = speedup_picture(curves, with_column(status, "0.80 [0.70,0.90] measured")).now
    assert picture.one < measured.y
    assert measured.text == "now 0.80 at 3 rps"


@pytest.mark.parametrize("gap", [math.nan, math.inf])
def test_figures_that_are_none_leave_a_gap_and_bounds_that_say_nothing_no_band(curves, status, gap):
    broken = [
        replace(
            curve,
            speedup=np.where(np.arange(len(curve.rps)) == 80, gap, curve.speedup),
            speedup_upper=np.where(curve.rps > 5.0, gap, curve.speedup_upper),
        )
        for curve in curves
    ]
    (arm,) = speedup_picture(broken, status).arms
    assert arm.line.count("M") == 2
    right = max(x for x, _ in places(arm.band))
    (whole,) = speedup_picture(curves, status).arms
    assert right < 0.5 * max(x for x, _ in places(whole.band))


@pytest.mark.parametrize("change", ["load", "saturated", "unknown"])
def test_without_a_load_or_a_figure_there_is_no_point_of_now(curves, status, change):
    changed = {
        "load": with_decision(status, load_rps=math.nan),
        "saturated": with_column(status, "saturated"),
        "unknown": status.model_copy(update={"decision": None, "workings": None}),
    }[change]
    assert speedup_picture(curves, changed).now is None


@pytest.mark.parametrize("end", [1e-3, 0.7, 1.0, 3.14, 9.99, 31.0, 480.0, 1e6])
def test_ticks_are_few_round_and_inside(end):
    found = ticks(end)
    assert 2 <= len(found) <= 7
    assert found[0] == 0.0
    assert found[-1] <= end * (1 + 1e-9)
    step = found[1]
    assert f"{step:e}"[0] in "125"
    assert f"{step:e}"[1:8] == ".000000"


def test_the_newest_load_is_to_the_right_and_the_break_even_a_height(status):
    trail = [LoadSample(60.0 * minute, rps) for minute, rps in enumerate((2.0, 4.0, 6.0))]
    picture = load_picture(trail, status, {})
    drawn = places(picture.line)
    assert [x for x, _ in drawn] == [0, WIDTH / 2, WIDTH]
    heights = [y for _, y in drawn]
    assert heights == sorted(heights, reverse=True)
    assert 0.0 <= picture.break_even.value < heights[-1] < DAY_HEIGHT
    assert (picture.hours, picture.times[0].text) == ("2 min", "now")
    assert load_picture(trail[:1], status, {}) is None


def test_twelve_hours_have_few_times_on_their_axis(status):
    trail = [LoadSample(240.0 * number, 3.0) for number in range(181)]
    picture = load_picture(trail, status, {})
    assert [tick.text for tick in picture.times] == ["now", "-2 h", "-4 h", "-6 h", "-8 h", "-10 h", "-12 h"]
    assert picture.times[-1].place == 0.0


def test_the_arms_that_ran_fill_the_time(fleet, curves):
    service, now_s = fleet.services[CHAT], fleet.time.timestamp()
    trail = [LoadSample(now_s - 3600.0 * back, 3.0) for back in range(12, -1, -1)]
    spans = load_picture(trail, service.status, styles_of(curves)).arms
    ran = [(one.arm, one.style) for one in spans]
    assert ran == [(name, style) for name, style in [("no speculation", 0), ("no speculation", 0), ("eagle/3", 1), ("no speculation", 0), ("eagle/3", 1)]]  # fmt: skip
    assert spans[0].begin == 0.0
    assert all(one.begin + one.width == pytest.approx(later.begin, abs=0.02) for one, later in itertools.pairwise(spans))  # fmt: skip
    rolling = load_picture(trail, fleet.services[ROLLING].status, styles_of(curves)).arms
    assert rolling[-1].arm == "no speculation"


def test_each_arm_has_a_style_of_its_own_and_no_speculation_is_plain(curves):
    (eagle,) = (curve for curve in curves if curve.arm.k)
    many = [replace(eagle, arm=replace(eagle.arm, k=k)) for k in range(1, 9)]
    assert styles_of([*curves[:1], *many]) == {
        "none": 0, "eagle/1": 1, "eagle/2": 2, "eagle/3": 3, "eagle/4": 4, "eagle/5": 5, "eagle/6": 6, "eagle/7": 1,
        "eagle/8": 2,
    }  # fmt: skip
