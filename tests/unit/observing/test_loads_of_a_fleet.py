"""Loads and savings belong to the fleet: what its status remembers is the same load on any number of replicas."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from breakeven.planning.forecast import PastRates
from breakeven.profile import Profile
from breakeven.serving.counted_window import Load
from breakeven_operator.judging.judge import choose
from breakeven_operator.resources import SpeculativeServiceSpec
from breakeven_operator.resources.memorystatus import MemoryStatus
from fakes.cases import a_case
from fakes.fleet_world import EAGLE, SERVICE, profile_json

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SPEC = SpeculativeServiceSpec.model_validate(
    {
        **SERVICE["spec"],
        "updatePolicy": {**SERVICE["spec"].get("updatePolicy", {}), "lookbackSeconds": 259200},
    }
)
STEPS = 864


def chosen(total_rps, replicas, memory=None, past=None, *, scaled=False, now=NOW):
    """The decision, and the memory for the status."""
    figures = Load(
        window_s=300.0, replicas=replicas, rps=total_rps / replicas, total_rps=total_rps, requests=1000
    )
    profile = Profile.from_json(profile_json())
    decision, kept = choose(
        a_case(
            SPEC,
            profile,
            figures,
            now,
            memory=memory,
            past=past,
            scaled=scaled,
            unavailable=replicas // 4,
        ),
        profile,
    )
    return decision, kept


def days(rps, replicas):
    """Three days of one load of each of so many replicas."""
    ends = [NOW.timestamp() - 300.0 * (STEPS - 1 - place) for place in range(STEPS)]
    return PastRates(ends, [rps] * STEPS, [float(replicas)] * STEPS)


@pytest.mark.parametrize(
    ("replicas", "scaled", "each_rps"), [(8, False, 3.0), (4, False, 6.0), (4, True, 3.0)]
)
def test_tomorrow_s_load_follows_from_the_replicas_of_then(replicas, scaled, each_rps):
    """Eight replicas at 3 rps were one load of 24; an autoscaler makes eight of four again when it comes back."""
    decision, _ = chosen(8.0, replicas, past=days(3.0, 8), scaled=scaled)
    assert decision.ahead.largest_rps == pytest.approx(each_rps)
    assert {round(rps, 6) for _, rps in decision.ahead.seen} == {each_rps}


def test_the_largest_load_is_remembered_as_the_fleet_s():
    _, eight = chosen(8.0, 8, past=days(3.0, 8))
    assert (eight.largest_rps, eight.largest_replicas, eight.largest_time) == (24.0, 8, NOW)
    decision, kept = chosen(8.0, 4, eight)
    assert decision.memory.largest_rps == pytest.approx(6.0)
    assert (kept.largest_rps, kept.largest_replicas) == (24.0, 8)
    scaled, _ = chosen(8.0, 4, eight, scaled=True)
    assert scaled.memory.largest_rps == pytest.approx(3.0)


def test_what_was_saved_is_the_fleet_s():
    stored = MemoryStatus(
        saved_request_seconds=8e5, largest_rps=24.0, largest_replicas=8, largest_time=NOW - timedelta(days=1)
    )
    decision, kept = chosen(8.0, 4, stored)
    assert decision.memory.saved == pytest.approx(2e5, rel=1e-3)
    assert kept.saved_request_seconds == pytest.approx(8e5, rel=1e-3)


def test_requests_that_wait_are_remembered_as_the_fleet_s():
    # 25 rps on each replica, where 19.7 are the saturation of none by its law.
    _, growing = chosen(100.0, 4)
    assert growing.queued_requests == pytest.approx(4 * 5.3 * 300.0, rel=0.05)
    assert growing.queued_time == NOW
    assert EAGLE.name not in {one.arm for one in growing.evidence}
    later = MemoryStatus.model_validate_json(growing.model_dump_json())
    decision, _ = chosen(100.0, 4, later, now=NOW + timedelta(minutes=5))
    assert decision.memory.queued > growing.queued_requests / 4
