"""At which moments an outage is allowed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from breakeven_operator.judging.gates import why_no_outage
from breakeven_operator.resources.updatepolicy import UpdatePolicy


def allowed(at: str, *windows: dict[str, Any]) -> bool:
    return why_no_outage(policy(*windows), datetime.fromisoformat(at)) is None


def policy(*windows: dict[str, Any]) -> UpdatePolicy:
    data = {"allowOutage": "Window" if windows else "Never", "outageWindows": list(windows)}
    return UpdatePolicy.read(data, "policy")


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
    assert "2026-11-28T22:00Z" in why_no_outage(policy(NIGHT), now)
    assert "'Mars/Base'" in why_no_outage(policy({**NIGHT, "timeZone": "Mars/Base"}), now)
    assert "allowOutage Window" in why_no_outage(policy(), now)
