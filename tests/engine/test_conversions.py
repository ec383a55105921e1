"""An arm that was calibrated at one acceptance and one length, predicted at others, against the engine on the event clock."""

from __future__ import annotations

import pytest

from validation.conversions import ENGINES, Elsewhere, Judged, judge

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

LONG_PROMPTS = next(engine for engine in ENGINES if engine.name == "long prompts")


@pytest.mark.parametrize(
    "condition",
    [Elsewhere(1.0, 1.0, 0.6, 0.35), Elsewhere(2.0, 0.5, 0.6, 0.5), Elsewhere(0.5, 2.0, 0.8, 0.35)],
    ids=["other acceptance", "longer prompts", "longer answers"],
)
def test_latency_and_speedup_at_other_acceptance_and_lengths_are_what_the_engine_does(condition):
    """A rule that scaled all of C2 with 1/E was off by a quarter where prompts are long, and rolled away from a faster arm."""
    found = Judged()
    judge(LONG_PROMPTS, [condition], 1, found)
    assert found.latency == pytest.approx([0.0, 0.0], abs=0.08)
    assert found.speedup == pytest.approx([0.0], abs=0.05)
    assert found.wrong == [False]
