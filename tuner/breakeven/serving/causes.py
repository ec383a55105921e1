"""Known causes for which speculation does not pay, and the figures that show each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from breakeven.serving.counted_window import Window

FULL_POOL = 0.95
"""Share of the KV pool in use from which new tokens cost preemptions."""

STALE_S = 120.0
"""Age of the newest sample above which figures are not used, as in the operator's metricsSource.stalenessSeconds."""

DEAD_POSITION = 0.05
"""A draft position that is accepted less often costs more to verify than it yields on any engine measured."""


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


class HttpRequests(NamedTuple):
    """HTTP requests for answers that a model's servers got, and those that they answered with 4xx or 5xx."""

    posts: float
    refused: float


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """Figures of one model over one window.

    Attributes:
        pods: with series of this model.
        speculating: whether they count drafts.
        waiting_min: least queue at any time (0: the queue emptied). kv_usage: highest share in use; None if not counted.
        missing: names of needed series that are not there.
        not_a_number: the first statistic that is none.
        impossible: how counters contradict each other, as a sentence without a full stop.
        gone: pods that had series in the window and have none now, with the age of their newest sample (s).
        ages_s: the same age, of the pods that have series.
        ended: series that ended in the window while the engine's others go on, each with its pod.
        elsewhere: where other series are, as the end of a sentence; empty if there are pods, or no series at all.
    """

    pods: int
    window: Window
    speculating: bool = False
    waiting_min: float | None = None
    kv_usage: float | None = None
    missing: tuple[str, ...] = ()
    not_a_number: str | None = None
    impossible: str | None = None
    gone: Mapping[str, float] = field(default_factory=dict)
    ages_s: Mapping[str, float] = field(default_factory=dict)
    ended: tuple[str, ...] = ()
    http: HttpRequests | None = None
    elsewhere: str = ""

    @property
    def stale(self) -> Mapping[str, float]:
        """The pods whose newest sample is old."""
        return {pod: age_s for pod, age_s in self.ages_s.items() if age_s > STALE_S}

    @property
    def unfinished(self) -> float | None:
        """HTTP requests that no engine finished, and whose clients waited; None where HTTP requests are not counted."""
        seen = self.window
        return None if self.http is None else self.http.posts - seen.requests - seen.given_up_requests


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause, the figures that show it, and what to do first."""

    cause: Cause
    evidence: str
    remedy: str


def prompt_bound(snapshot: ModelSnapshot) -> bool:
    """Whether most of a request's time passes before its first token."""
    return bool(
        snapshot.window.latency_s
        and snapshot.window.ttft_s
        and snapshot.window.ttft_s > 0.5 * snapshot.window.latency_s
    )


def pool_is_full(snapshot: ModelSnapshot) -> bool:
    """Whether new tokens cost preemptions."""
    return (snapshot.kv_usage or 0.0) > FULL_POOL or (snapshot.window.preemptions or 0.0) > 0
