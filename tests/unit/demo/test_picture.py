"""The demo's picture: every name lies inside, time begins with the demo, and what was measured lies below saturation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.profile import Profile
from breakeven.reporting.lines import arm_curves
from breakeven.reporting.theme import LIGHT, drawing
from demo.picture import draw
from demo.record import Record, Sample, ServiceRecord
from fakes.played_day import EAGLE, FIRST_LOOK_S, PAYS_UNTIL_A_LOAD, STARTED_S, played_day, profile_of

# Where one arm saturates long before the demo's high load, that load lies beyond the end of the speedup's line.
ENGINES = {
    "until a load": PAYS_UNTIL_A_LOAD,
    "until a low load": {NO_SPECULATION: (0.46, 0.032), EAGLE: (0.40, 0.08)},
    "always": {NO_SPECULATION: (0.50, 0.068), EAGLE: (0.25, 0.034)},
    "never": {NO_SPECULATION: (0.46, 0.030), EAGLE: (0.55, 0.072)},
}


@pytest.fixture(scope="module", params=list(ENGINES.values()), ids=list(ENGINES))
def drawn(request):
    """The figure of a run in which everything happened as the laws say, after it was laid out."""
    record, profile = played_day(request.param)
    with drawing(LIGHT):
        # Two columns, as in the demo: names have as little room as they have there.
        figure = draw(record, dict.fromkeys(record.services, profile), LIGHT)
        FigureCanvasAgg(figure).draw()
        yield figure


def test_the_name_of_every_load_lies_inside_its_axes(drawn):
    speedup = drawn.axes[0]
    frame = speedup.get_window_extent()
    names = [text for text in speedup.texts if text.get_text().partition(" ")[0] in {"low", "high"}]
    assert len(names) == 2
    for name in names:
        box = name.get_window_extent()
        assert frame.x0 <= box.x0 < box.x1 <= frame.x1, name.get_text()
        assert frame.y0 <= box.y0 < box.y1 <= frame.y1, name.get_text()


def test_every_load_lies_inside_both_axes_of_load(drawn):
    name = next(text.get_text() for text in drawn.axes[0].texts if text.get_text().startswith("high"))
    for axes in (drawn.axes[0], drawn.axes[2]):
        assert float(name.removeprefix("high ")) < axes.get_xlim()[1]


def test_no_name_of_a_line_lies_on_the_title(drawn):
    speedup = drawn.axes[0]
    (title,) = [text for text in speedup.findobj() if getattr(text, "get_text", str)().startswith("chat on")]
    under = title.get_window_extent()
    for text in speedup.texts:
        assert not under.overlaps(text.get_window_extent()), text.get_text()


def test_the_time_axis_begins_with_the_demo(drawn):
    for axes in (drawn.axes[4], drawn.axes[6]):
        assert axes.get_xlim() == (0.0, FIRST_LOOK_S + 149.0)


def test_no_point_lies_beyond_the_saturation_that_is_drawn():
    """A ceiling that was measured too low does not contradict the points beside it."""
    document = profile_of(ENGINES["always"])
    low = document.arm(EAGLE)
    highest = max(point.others / point.latency_s for point in low.measurements)
    assert low.saturation_rps > highest
    (curve,) = [curve for curve in arm_curves(_ceiling_at(document, 0.7 * highest)) if curve.arm == EAGLE]
    assert curve.saturation_rps == pytest.approx(highest)


def _ceiling_at(profile: Profile, rps: float) -> Profile:
    arms = tuple(
        replace(fit, saturation_rps=rps, measured_saturation_rps=rps) if fit.arm == EAGLE else fit
        for fit in profile.arms
    )
    return replace(profile, arms=arms)


def test_every_roll_shows_what_it_promised_and_what_was_measured(drawn):
    axes = next(axes for axes in drawn.axes if axes.get_title(loc="left").startswith("Each roll"))
    heights = [float(bar.lines[0].get_ydata()[0]) for bar in axes.containers]
    assert heights == [1.7, 1.8, 1.2]
    names = [tick.get_text() for tick in axes.get_xticklabels()]
    assert names == ["none to eagle/3\nConfirmed", "eagle/3 to none\nUnmeasured"]


def test_break_evens_that_are_near_share_one_name():
    engine = {NO_SPECULATION: (0.46, 0.032), EAGLE: (0.27, 0.056), Arm("eagle3", 5, "eagle"): (0.26, 0.057)}
    profile = profile_of(engine)
    service = ServiceRecord("chat", "A100", "RollingUpdate")
    service.samples += [Sample(STARTED_S + at, 3.0, 0.5, "none", "none", "Yes", "", "Any", False, "") for at in (0.0, 60.0)]  # fmt: skip
    with drawing(LIGHT):
        figure = draw(Record(STARTED_S, {"chat": service}), {"chat": profile}, LIGHT)
        FigureCanvasAgg(figure).draw()
        load = next(axes for axes in figure.axes if axes.get_title(loc="left").startswith("The run"))
        (name,) = [text.get_text() for text in load.texts]
        assert name.count(",") == 1
        # Without a roll there is a sentence and no empty frame.
        assert not figure.axes[4].axison
        assert figure.axes[4].get_title(loc="left") == "No roll: it is only advised"
