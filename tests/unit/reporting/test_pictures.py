"""Pictures: borders of the map are break-evens, and no name lies on another or outside."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.cli.profile_options import read_profile
from breakeven.fitting import fit_points
from breakeven.laws.acceptance_numbers import tokens_per_step_iid
from breakeven.profile import Conditions, Profile
from breakeven.reporting import plots
from breakeven.reporting.lines import ArmCurve, arm_curves, best_arm_map
from breakeven.reporting.plots import latency_against_load, speedup_against_load
from breakeven.reporting.theme import LIGHT, drawing
from sweeps import closed

POINTS = Path(__file__).parents[3] / "examples" / "points.csv"


@pytest.fixture(scope="module")
def profile() -> Profile:
    return read_profile(POINTS, 0.9)


def test_no_measured_point_lies_beyond_a_drawn_saturation() -> None:
    # Rows of the driver whose short windows counted whole waves of answers; the last one queued.
    columns = {"window_s": 4.0, "requests": 640.0}
    rows = [
        row
        for clients, counted_rps in ((1, 2.8), (8, 11.0), (16, 14.0), (32, 16.0))
        for row in closed("none", 0, 0.35, 1 / 28.7, clients=[clients], achieved_rps=counted_rps, **columns)
    ]
    rows += closed("none", 0, 2.58, 0.0, clients=[64], achieved_rps=17.5, flag="SaturatedPoint", **columns)
    (curve,) = arm_curves(fit_points(rows))
    assert len(curve.measured_rps) == 4
    assert curve.measured_rps.max() <= curve.saturation_rps


def test_one_arm_leads_everywhere_on_the_map(profile: Profile) -> None:
    best = best_arm_map(profile, rows=11, columns=21)
    assert best is not None
    assert ((best.lead > 0).sum(axis=0) == 1).all()
    led = [best.arms[number].name for number in np.argmax(best.lead[:, -1], axis=0)]
    assert led[0] == "eagle3/5"
    assert led[-1] == "none"


def test_the_map_turns_to_no_speculation_at_the_break_even(profile: Profile) -> None:
    best = best_arm_map(profile, rows=11, columns=41)
    assert best is not None
    arm, row = Arm("eagle3", 2), 7
    expected = profile.compare(
        arm,
        conditions=Conditions(tokens_per_step=float(tokens_per_step_iid(best.alpha[row], arm.k))),
        rps=0.0,
    ).break_even_rps
    lead = best.lead[best.arms.index(NO_SPECULATION), row]
    last = int(np.flatnonzero(lead < 0)[-1])
    border = np.interp(0.0, lead[last : last + 2], best.rps[last : last + 2])
    assert expected is not None
    assert border == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("line", [0.3, 0.45, 0.6, 0.75, 0.9])
def test_names_of_the_map_lie_off_the_measured_acceptance(profile: Profile, line: float) -> None:
    best = best_arm_map(profile, rows=41, columns=41)
    assert best is not None
    with drawing(LIGHT):
        axes = Figure().subplots()
        plots.best_arm_map(axes, replace(best, measured_alpha=line), LIGHT.strokes(best.arms), LIGHT)
        names = [
            text.get_position() for text in axes.texts if text.get_text() in {arm.name for arm in best.arms}
        ]
    assert len(names) > 1
    assert all(abs(alpha - line) > 0.03 for _, alpha in names)


def curve(k: int, saturation_rps: float, speedup: float) -> ArmCurve:
    """An arm of an invented law, with a band and no points."""
    rps = np.linspace(0.0, 0.97 * saturation_rps, 50)
    latency_s = 1.0 / (speedup * (1.0 - rps / saturation_rps))
    gain = speedup * (1.0 - rps / saturation_rps) / (1.0 - rps / 20.0)
    arm = Arm("eagle3", k) if k else NO_SPECULATION
    none = np.array([])
    return ArmCurve(
        arm,
        rps,
        latency_s,
        0.9 * latency_s,
        1.1 * latency_s,
        gain,
        0.9 * gain,
        1.1 * gain,
        none,
        none,
        none,
        saturation_rps,
        None,
        (None, None),
    )


HEAD = {
    speedup_against_load: "Does it pay? Above the line, yes",
    latency_against_load: "Latency against load",
}


@pytest.mark.parametrize("draw", [speedup_against_load, latency_against_load])
@pytest.mark.parametrize("ends_rps", [(10.0, 10.05, 10.1), (1.0, 1.1, 1.2)])
def test_names_of_lines_that_end_together_do_not_touch(draw, ends_rps) -> None:
    curves = [curve(0, 10.3, 1.0), *(curve(k, end, 1.5) for k, end in zip((2, 5, 7), ends_rps, strict=True))]
    with drawing(LIGHT):
        figure = Figure(figsize=(9.6, 4.6))
        axes = figure.subplots()
        draw(axes, curves, LIGHT.strokes([one.arm for one in curves]), LIGHT)
        figure.draw_without_rendering()
        names = {text.get_text(): text.get_window_extent() for text in axes.texts}
        assert {"eagle3/2", "eagle3/5", "eagle3/7"} <= set(names)
        for (one, here), (other, there) in itertools.combinations(names.items(), 2):
            assert not here.overlaps(there), (one, other)
        (title,) = (
            text for text in axes.get_children() if isinstance(text, Text) and text.get_text() == HEAD[draw]
        )
        for box in names.values():
            assert figure.bbox.containsx(box.x0)
            assert figure.bbox.containsx(box.x1)
            assert figure.bbox.containsy(box.y1)
            assert not box.overlaps(title.get_window_extent())
