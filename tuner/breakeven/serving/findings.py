"""Findings about an engine: the words of each, and what to do first, are a row of `findings.json`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from breakeven.intake import shipped_json


class Cause(StrEnum):
    """Cause for which speculation does not pay, or cannot be judged."""

    NO_SERIES = "NoSeries"
    NO_REQUESTS = "NoRequests"
    SERIES_MISSING = "SeriesMissing"
    SERIES_NOT_A_NUMBER = "SeriesNotANumber"
    SERIES_IMPOSSIBLE = "SeriesImpossible"
    SERIES_STALE = "SeriesStale"
    SERIES_ENDED = "SeriesEnded"
    PODS_GONE = "PodsGone"
    REQUESTS_FAIL = "RequestsFail"
    CLIENTS_GIVE_UP = "ClientsGiveUp"
    NOT_SPECULATING = "NotSpeculating"
    ACCEPTANCE_COLLAPSED = "AcceptanceCollapsed"
    DRAFT_TOO_LONG = "DraftTooLong"
    BEYOND_BREAK_EVEN = "BeyondBreakEven"
    SATURATED = "Saturated"
    KV_CACHE_FULL = "KvCacheFull"
    PREFILL_DOMINATES = "PrefillDominates"
    DRAFTER_MISMATCH = "DrafterMismatch"
    NEVER_PAYS = "NeverPays"
    SLOW_DRAFTER = "SlowDrafter"
    TOO_LITTLE_LOAD = "TooLittleLoad"
    DRAFTER_IN_KV_POOL = "DrafterInKvPool"
    PROMPTS_SHIFTED = "PromptsShifted"
    PREFIX_HITS_LOST = "PrefixHitsLost"
    PREFIX_HITS_SHIFTED = "PrefixHitsShifted"
    ITL_IS_NOT_TPOT = "ItlIsNotTpot"
    SCHEDULE_RESTS = "ScheduleRests"
    NO_PROFILE = "NoProfile"


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause, the figures that show it, and what to do first."""

    cause: Cause
    evidence: str
    remedy: str

    @classmethod
    def of(cls, cause: Cause, /, **figures: Any) -> Finding:
        """The finding in the words of its row."""
        return cls(cause, *(part.format(**figures) for part in _table("causes")[cause]))


def said(name: str, /, **figures: Any) -> str:
    """The sentence of a row about a manifest, or about counters that cannot be, with its figures."""
    return str(_table("sentences")[name]).format(**figures)


@cache
def _table(part: str) -> dict[str, Any]:
    rows: dict[str, Any] = shipped_json("findings.json")[part]
    return rows
