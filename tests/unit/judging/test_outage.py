"""At which moments a roll may begin, and an outage is allowed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from breakeven_operator.judging.gates import refuse_outside_windows, why_no_outage
from breakeven_operator.resources.updatepolicy import RollWindow, UpdatePolicy


def allowed(at: str, *windows: dict[str, Any]) -> bool:
    return why_no_outage(windows_of(*windows), datetime.fromisoformat(at)) is None


def windows_of(*windows: dict[str, Any], outage: bool = True) -> tuple[RollWindow, ...]:
    data = {"windows": [{"allowOutage": outage, **window} for window in windows]}
    return UpdatePolicy.read(data, "policy").windows


NIGHT = {"days": ["Sat", "Sun"], "start": "23:00", "durationSeconds": 7200, "timeZone": "Europe/Berlin"}


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        # Saturday, 21 November 2026; Berlin is one hour ahead of UTC, and two in summer.
        ("2026-11-21T21:59:59+00:00", False),
        ("2026-11-21T22:00:00+00:00", True),
        ("2026-11-21T23:59:59+00:00", True),
        ("2026-11-22T00:00:00+00:00", False),
        ("2026-11-22T23:30:00+00:00", True),
        ("2026-11-23T22:30:00+00:00", False),
        ("2026-07-04T21:00:00+00:00", True),
        ("2026-07-04T20:59:00+00:00", False),
    ],
)
def test_a_window_begins_on_its_days_at_its_time_of_day(at: str, expected: bool) -> None:
    assert allowed(at, NIGHT) is expected


def test_without_days_it_is_every_day_and_without_a_zone_utc() -> None:
    window = {"start": "03:00", "durationSeconds": 3600}
    first = datetime(2026, 11, 16, 3, 30, tzinfo=UTC)
    assert all(allowed((first + timedelta(days=day)).isoformat(), window) for day in range(7))
    assert not allowed("2026-11-16T04:00:00+00:00", window)


def test_a_week_long_window_never_ends() -> None:
    window = {"days": ["Mon"], "start": "00:00", "durationSeconds": 604800}
    first = datetime(2026, 11, 16, 0, 0, tzinfo=UTC)
    assert all(allowed((first + timedelta(hours=hour)).isoformat(), window) for hour in range(0, 400, 7))


def test_what_is_said_names_the_next_start_or_what_is_wrong() -> None:
    now = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
    assert "2026-11-28T22:00Z" in why_no_outage(windows_of(NIGHT), now)
    assert "'Mars/Base'" in why_no_outage(windows_of({**NIGHT, "timeZone": "Mars/Base"}), now)
    assert "allowOutage: true" in why_no_outage((), now)
    assert "allowOutage: true" in why_no_outage(windows_of(NIGHT, outage=False), now)


def test_an_ordinary_roll_waits_for_a_window_and_without_any_for_nothing() -> None:
    now = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
    windows = windows_of(NIGHT, outage=False)
    refusal = refuse_outside_windows(windows, None, now)
    assert refusal is not None
    assert (refusal.reason, "2026-11-28T22:00Z" in refusal.message) == ("OutsideWindows", True)
    assert refuse_outside_windows(windows, None, datetime(2026, 11, 21, 22, 30, tzinfo=UTC)) is None
    assert refuse_outside_windows((), None, now) is None
