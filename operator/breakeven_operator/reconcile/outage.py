"""Whether an outage is allowed at a moment: by the windows of the update policy."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from breakeven_operator.resources.updatepolicy import AllowOutage, OutageWindow, UpdatePolicy, Weekday

_DAYS = tuple(Weekday)
_WEEK = 7


class Allowed(NamedTuple):
    """Whether an outage is allowed, and what is said if it is not."""

    now: bool
    message: str = ""


def outage_allowed(policy: UpdatePolicy, now: datetime) -> Allowed:
    """Whether a roll may begin now that leaves too few pods, or none.

    Args:
        policy: of the service.
        now: time of the observation.
    """
    if policy.allow_outage is AllowOutage.NEVER:
        return Allowed(
            False,
            "allow an outage at a time of your choice (updatePolicy.allowOutage Window, with outageWindows)",
        )
    starts = []
    for window in policy.outage_windows:
        try:
            zone = ZoneInfo(window.time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return Allowed(False, f"name a time zone that exists: outageWindows has {window.time_zone!r}")
        if _is_within(window, zone, now):
            return Allowed(True)
        starts.append(_next_start(window, zone, now))
    return Allowed(
        False, f"wait for the next window of updatePolicy.outageWindows, {min(starts):%Y-%m-%dT%H:%MZ}"
    )


def _is_within(window: OutageWindow, zone: ZoneInfo, now: datetime) -> bool:
    """A window may last a week: whether one of those that began in the last eight days has not ended."""
    lasts = timedelta(seconds=window.duration_seconds)
    return any(start <= now < start + lasts for start in _starts(window, zone, now, range(-_WEEK - 1, 1)))


def _next_start(window: OutageWindow, zone: ZoneInfo, now: datetime) -> datetime:
    later = [start for start in _starts(window, zone, now, range(_WEEK + 2)) if start > now]
    return min(later)


def _starts(window: OutageWindow, zone: ZoneInfo, now: datetime, days: range) -> list[datetime]:
    """When it begins on the days from today, in the zone of `now`."""
    today = now.astimezone(zone).date()
    at = time.fromisoformat(window.start)
    dates = [today + timedelta(days=day) for day in days]
    return [
        datetime.combine(date, at, zone).astimezone(now.tzinfo)
        for date in dates
        if not window.days or _DAYS[date.weekday()] in window.days
    ]
