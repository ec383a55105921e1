"""Receipts: what speculation saved or lost in each calendar month, from experiments alone, by the operator's own metrics. Pure.

A window of time is claimed if an experiment measured the arm that ran: a roll whose pods of both arms were compared, or a standing
control. Its claim is requests in flight, times its length, times the measured speedup less 1 (Little's law). Every other window has
one word that says why nothing is claimed. Windows are independent of each other, so a restart loses its own gap alone. Bounds of
windows add up linearly, because one measurement stands behind many of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple

from breakeven.arm import NO_SPECULATION
from breakeven.estimate import Estimate
from breakeven.past.courses import TimeGrid
from breakeven.planning.capacity import replicas_for
from breakeven.readers.prometheus import Samples
from breakeven.serving.growths import fresh

METRICS: Final = (
    "stale", "rollout_in_progress", "current_arm_info", "inflight_requests", "load_requests_per_second",
    "expected_peak_requests_per_second", "ready_replicas", "pod_gpus", "evidence_timestamp_seconds", "doubt", "roll_speedup",
    "roll_timestamp_seconds", "roll_load_requests_per_second", "control_speedup_ratio", "capacity_requests_per_second",
    "gpus_not_needed", "calibrations_gpu_seconds_spent", "speedup_ratio",
)  # fmt: skip
"""Names of the operator's series that receipts rest on, without the prefix."""
PREFIX: Final = "breakeven_"
BEFORE_S: Final = 86_400
"""Span before the grid whose samples say what calibrations had cost by then."""
BEFORE_ROLL_S: Final = 21_600
"""Span before a roll's end whose samples say how many replicas there were before it."""
_OLDEST_ROLL_S = 30 * 86_400
# Older samples behind a load are no load of now.
_OLDEST_LOAD_S = 900
# No series of an operator has such a value: whoever is scraped can write one, and the sums of all services are to end.
_MOST = 1e12
# Near the measured load the speedup moves at most as fast as the load, or, near saturation, as the law says.
_FARTHEST_LOAD = 1.5
_DRIFTS = ("AcceptanceDrifted", "LengthsDrifted")
_BOUNDS = ("estimate", "lower", "upper")


class Unclaimed(StrEnum):
    """Why nothing is claimed for a window."""

    OPERATOR_SILENT = "OperatorSilent"
    TWO_OPERATORS = "TwoOperators"
    ROLL_UNDER_WAY = "RollUnderWay"
    LOAD_UNKNOWN = "LoadUnknown"
    NO_EXPERIMENT = "NoExperiment"
    OTHER_ARM = "OtherArm"
    OTHER_LOAD = "OtherLoad"
    EVIDENCE_STALE = "EvidenceStale"


MEANINGS: Final[Mapping[str, str]] = {
    Unclaimed.OPERATOR_SILENT: "Prometheus has no sample of the operator",
    Unclaimed.TWO_OPERATORS: "two operators wrote about the service at the same time",
    Unclaimed.ROLL_UNDER_WAY: "pods of two arms ran",
    Unclaimed.LOAD_UNKNOWN: "running arm, ready replicas or requests in flight were not known, or are older than 15 min or ahead of now",
    Unclaimed.NO_EXPERIMENT: "no roll was measured yet, and there is no control",
    Unclaimed.OTHER_ARM: "another arm ran than the last measured roll led to",
    Unclaimed.OTHER_LOAD: "the load, or the speedup by the law, was beyond a factor of 1.5 of the measured roll",
    Unclaimed.EVIDENCE_STALE: "the measurement is older than 30 days or ahead of now, requests have drifted since, no profile is of the engine of now, or the operator could not decide",
}


class ServiceKey(NamedTuple):
    """A service; `cluster` is the label of that name, empty without one."""

    cluster: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one service saved in one calendar month (UTC), against the arms that ran before its rolls; below 0 lost.

    Attributes:
        month: such as `2026-11`.
        first_s, last_s: Unix times between which the month was looked at.
        against: arms that the claims are against.
        request_saved_s: request time; empty where nothing is claimed.
        gpu_hours_saved: GPU-hours of replicas that were removed after a measured roll; empty where nothing is claimed.
        calibration_gpu_hours: GPU-hours that calibrations held, which nothing above contains.
        claimed_hours: hours behind the claims. unclaimed_hours: other hours by `Unclaimed`.
    """

    service: ServiceKey
    month: str
    first_s: int
    last_s: int
    against: tuple[str, ...]
    request_saved_s: Estimate
    gpu_hours_saved: Estimate
    calibration_gpu_hours: float
    claimed_hours: float
    unclaimed_hours: Mapping[str, float] = field(default_factory=dict)

    def net_gpu_hours(self) -> Estimate:
        """GPU-hours saved less GPU-hours of calibrations."""
        saved = self.gpu_hours_saved if self.gpu_hours_saved.value is not None else Estimate(0.0, 0.0, 0.0)
        return saved.by(lambda end: end - self.calibration_gpu_hours)


class _Claim(NamedTuple):
    """One window's claim: request time per second, and GPUs."""

    against: str
    inflight_saved: Estimate
    gpus_saved: Estimate


_Labels = tuple[str, ...]


class _Moment:
    """What one operator said of a service at one time."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: dict[str, dict[_Labels, float]] = {}

    def one(self, metric: str) -> float | None:
        """The value of a series without labels of its own, if it can be one: none is below 0."""
        found = _finite(next(iter(self.values.get(metric, {}).values()), None))
        return found if found is not None and found >= 0.0 else None

    def bounded(self, metric: str, *labels: str) -> Estimate:
        """The estimate and bounds whose other labels are these."""
        found = self.values.get(metric, {})
        return Estimate(*(_finite(found.get((*labels, bound))) for bound in _BOUNDS))


# Labels that tell the series of a metric apart, in the order of the keys below.
_OWN: Final[Mapping[str, _Labels]] = {
    "current_arm_info": ("arm",),
    "doubt": ("reason",),
    "roll_speedup": ("from_arm", "to_arm", "figure", "bound"),
    "roll_timestamp_seconds": ("from_arm", "to_arm"),
    "roll_load_requests_per_second": ("from_arm", "to_arm"),
    "control_speedup_ratio": ("arm", "against", "bound"),
    "capacity_requests_per_second": ("arm", "bound"),
    "gpus_not_needed": ("arm", "basis", "bound"),
    "speedup_ratio": ("arm", "bound"),
}


def receipts(samples: Iterable[Samples], grid: TimeGrid) -> tuple[Receipt, ...]:
    """Receipts of every service and month of a grid, whose times are ends of windows.

    Samples of earlier times say what calibrations had cost and how many replicas there were before a roll, and are claimed nowhere.
    Series of one pod that several servers scraped are one operator.
    """
    services: dict[ServiceKey, dict[int, dict[str, _Moment]]] = {}
    for one in samples:
        metric = one.labels.get("__name__", "").removeprefix(PREFIX)
        if metric not in METRICS:
            continue
        key = ServiceKey(
            *(one.labels.get(label, "") for label in ("cluster", "specsvc_namespace", "specsvc"))
        )
        times = services.setdefault(key, {})
        operator = "/".join(one.labels.get(label, "") for label in ("namespace", "pod")).strip("/")
        operator = operator or one.labels.get("instance", "")
        own = tuple(one.labels.get(label, "") for label in _OWN.get(metric, ()))
        for time_s, value in one.values:
            moments = times.setdefault(round(time_s), {})
            said = moments.setdefault(operator, _Moment()).values.setdefault(metric, {})
            said.setdefault(own, value)
    return tuple(one for key in sorted(services) for one in _of_service(key, services[key], grid))


def added(parts: Iterable[Receipt]) -> tuple[Receipt, ...]:
    """Receipts of parts of a time as receipts of the whole: one of each service and month."""
    kept: dict[tuple[ServiceKey, str], list[Receipt]] = {}
    for one in parts:
        kept.setdefault((one.service, one.month), []).append(one)
    return tuple(_joined(kept[place]) for place in sorted(kept))


def _joined(parts: Sequence[Receipt]) -> Receipt:
    claimed = [one for one in parts if one.claimed_hours]
    unclaimed: Counter[str] = Counter()
    for one in parts:
        unclaimed.update(one.unclaimed_hours)
    return Receipt(
        parts[0].service,
        parts[0].month,
        min(one.first_s for one in parts),
        max(one.last_s for one in parts),
        tuple(sorted({arm for one in parts for arm in one.against})),
        _sum((one.request_saved_s, 1) for one in claimed),
        _sum((one.gpu_hours_saved, 1) for one in claimed),
        math.fsum(one.calibration_gpu_hours for one in parts),
        math.fsum(one.claimed_hours for one in parts),
        dict(unclaimed.most_common()),
    )


def _of_service(key: ServiceKey, times: Mapping[int, Mapping[str, _Moment]], grid: TimeGrid) -> list[Receipt]:
    # Older samples tell replicas alone.
    early_s = grid.first_s - BEFORE_S
    before = _replicas_before(times)
    spent_s = _spent({time_s: said for time_s, said in times.items() if time_s >= early_s})
    months: dict[str, _Month] = {}
    for place in range(1, grid.times):
        end_s = grid.first_s + place * grid.step_s
        month = f"{datetime.fromtimestamp(end_s - grid.step_s, UTC):%Y-%m}"
        found = months.setdefault(month, _Month(end_s - grid.step_s))
        found.add(_judged(end_s, times.get(end_s, {}), before), end_s, grid.step_s)
    for time_s, more_s in spent_s:
        # What was seen at a time may have been spent since the time before it.
        place_s = -(-(time_s - grid.first_s) // grid.step_s) * grid.step_s + grid.first_s
        if grid.first_s < place_s <= grid.last_s:
            months[f"{datetime.fromtimestamp(place_s - grid.step_s, UTC):%Y-%m}"].spent_s += more_s
    return [one.receipt(key, name) for name, one in sorted(months.items())]


@dataclass(slots=True)
class _Month:
    first_s: int
    last_s: int = 0
    claims: list[tuple[_Claim, int]] = field(default_factory=list)
    unclaimed_s: Counter[str] = field(default_factory=Counter)
    spent_s: float = 0.0

    def add(self, found: _Claim | Unclaimed, end_s: int, step_s: int) -> None:
        self.last_s = end_s
        if isinstance(found, Unclaimed):
            self.unclaimed_s[str(found)] += step_s
        else:
            self.claims.append((found, step_s))

    def receipt(self, service: ServiceKey, month: str) -> Receipt:
        claims = self.claims
        return Receipt(
            service,
            month,
            self.first_s,
            self.last_s,
            tuple(sorted({one.against for one, _ in claims})),
            _sum((one.inflight_saved, step_s) for one, step_s in claims),
            _sum((one.gpus_saved, step_s) for one, step_s in claims).times(1.0 / 3600.0),
            self.spent_s / 3600.0,
            sum(step_s for _, step_s in claims) / 3600.0,
            {word: seconds / 3600.0 for word, seconds in self.unclaimed_s.most_common()},
        )


def _sum(parts: Iterable[tuple[Estimate, int]]) -> Estimate:
    """Estimates times seconds, added up end by end; an end that is open once stays open, and nothing adds up to nothing."""
    known = list(parts)
    if not known:
        return Estimate()
    ends = []
    for name in ("value", "lower", "upper"):
        values = [(getattr(one, name), step_s) for one, step_s in known]
        is_open = any(value is None for value, _ in values)
        ends.append(None if is_open else math.fsum(value * step_s for value, step_s in values))
    return Estimate(*ends)


def _judged(
    time_s: int, operators: Mapping[str, _Moment], before: Sequence[tuple[int, float]]
) -> _Claim | Unclaimed:
    """The claim of the window that ends at a time, or why there is none."""
    if len(operators) != 1:
        return Unclaimed.TWO_OPERATORS if operators else Unclaimed.OPERATOR_SILENT
    (seen,) = operators.values()
    rolling = seen.one("rollout_in_progress")
    if seen.one("stale") != 0.0 or rolling is None:
        return Unclaimed.EVIDENCE_STALE
    if rolling:
        return Unclaimed.ROLL_UNDER_WAY
    arms = [arm for (arm,), value in seen.values.get("current_arm_info", {}).items() if value == 1.0]
    inflight, ready, at = map(seen.one, ("inflight_requests", "ready_replicas", "evidence_timestamp_seconds"))
    if (
        len(arms) != 1
        or inflight is None
        or ready is None
        or at is None
        or not fresh(at, time_s, _OLDEST_LOAD_S)
    ):
        return Unclaimed.LOAD_UNKNOWN
    measured = _by_control(seen, arms[0]) or _by_roll(seen, arms[0], time_s)
    if isinstance(measured, Unclaimed):
        return measured
    against, speedup, rolled_s = measured
    return _Claim(
        against,
        speedup.by(lambda end: ready * inflight * (end - 1.0)),
        _gpus(seen, arms[0], ready, None if rolled_s is None else _before(before, rolled_s)),
    )


class _Measured(NamedTuple):
    """Speedup of the running arm over another one; `rolled_s`: when the roll behind it ended, None of a control."""

    against: str
    speedup: Estimate
    rolled_s: float | None


def _by_control(seen: _Moment, arm: str) -> _Measured | None:
    """What a standing control measures now; None without one for the running arm."""
    found = seen.values.get("control_speedup_ratio", {})
    others = sorted({against for ours, against, _ in found if ours == arm})
    if len(others) != 1:
        return None
    speedup = seen.bounded("control_speedup_ratio", arm, others[0])
    rolled = [
        time_s
        for (_, to_arm), time_s in seen.values.get("roll_timestamp_seconds", {}).items()
        if to_arm == arm
    ]
    return _Measured(others[0], speedup, max(rolled, default=None)) if _positive(speedup.value) else None


def _by_roll(seen: _Moment, arm: str, time_s: int) -> _Measured | Unclaimed:
    """What the last measured roll says of the running arm at the present load."""
    found = seen.values.get("roll_speedup", {})
    pairs = {(old, new) for old, new, figure, bound in found if figure == "measured" and bound == "estimate"}
    if not pairs:
        return Unclaimed.NO_EXPERIMENT
    pair = next((one for one in sorted(pairs) if one[1] == arm), None)
    if pair is None:
        return Unclaimed.OTHER_ARM
    rolled_s = _finite(seen.values.get("roll_timestamp_seconds", {}).get(pair))
    speedup = seen.bounded("roll_speedup", *pair, "measured")
    drifted = any(seen.values.get("doubt", {}).get((word,)) == 1.0 for word in _DRIFTS)
    # The operator says no speedup while no profile is of the engine of now, as after an upgrade.
    drifted = drifted or not seen.values.get("speedup_ratio")
    if (
        drifted
        or rolled_s is None
        or not fresh(rolled_s, time_s, _OLDEST_ROLL_S)
        or not _positive(speedup.value)
    ):
        return Unclaimed.EVIDENCE_STALE
    load = seen.one("load_requests_per_second")
    measured = _finite(seen.values.get("roll_load_requests_per_second", {}).get(pair))
    if not _positive(load) or not _positive(measured):
        return Unclaimed.LOAD_UNKNOWN
    since = _moved_by_law(seen, pair)
    ratios = ((load or 0.0) / (measured or 1.0), since)
    away = max(max(one, 1.0 / one if one else math.inf) for one in ratios)
    if away > _FARTHEST_LOAD:
        return Unclaimed.OTHER_LOAD
    lower, upper = speedup.lower, speedup.upper
    moved = Estimate(
        # A gain that the law adds was not measured.
        (speedup.value or 0.0) * min(since, 1.0),
        None if lower is None else lower / away,
        None if upper is None else upper * away,
    )
    return _Measured(pair[0], moved, rolled_s)


def _moved_by_law(seen: _Moment, pair: tuple[str, str]) -> float:
    """The law's speedup of now over the law's speedup at the measurement of a roll; 1 if either is not known."""
    old, new = pair
    laws, plain = seen.values.get("speedup_ratio", {}), NO_SPECULATION.name
    promised = _finite(seen.values.get("roll_speedup", {}).get((*pair, "promised", "estimate")))
    now = _finite(laws.get((old if new == plain else new, "estimate"))) if plain in pair else None
    if now is None or now < 0.0 or not _positive(promised):
        return 1.0
    if new == plain:
        now = 1.0 / now if now > 0.0 else math.inf
    return now / (promised or 1.0)


def _gpus(seen: _Moment, arm: str, ready: float, before: float | None) -> Estimate:
    """GPUs of replicas that were removed since the roll and that no speculation would need; below 0 added ones.

    A replica counts as saved if three things hold: the load does not need it with the arm, would need it without speculation, and there
    were more replicas before the roll. Whatever is not known counts as not saved.
    """
    nothing = Estimate(0.0, 0.0, 0.0)
    each = seen.one("pod_gpus")
    load = seen.one("expected_peak_requests_per_second") or seen.one("load_requests_per_second")
    spared = seen.bounded("gpus_not_needed", arm, "Running")
    plain = seen.bounded("capacity_requests_per_second", NO_SPECULATION.name)
    if before is None or not _positive(each) or not _positive(load) or spared.value is None:
        return nothing
    fleet_rps, gpus = (load or 0.0) * ready, each or 1.0

    def removed(fewer: float | None, plain_rps: float | None) -> float | None:
        if fewer is None or plain_rps is None or not _positive(plain_rps):
            return None
        needed = replicas_for(fleet_rps, plain_rps)
        if fewer >= 0.0:
            return gpus * max(0.0, min(fewer / gpus, needed - ready, before - ready))
        return -gpus * max(0.0, min(-fewer / gpus, ready - needed, ready - before))

    # More capacity without speculation needs fewer replicas, so its upper bound is against the arm.
    return Estimate(
        removed(spared.value, plain.value), removed(spared.lower, plain.upper), removed(spared.upper, plain.lower)
    ) if plain.value is not None else nothing  # fmt: skip


def _replicas_before(times: Mapping[int, Mapping[str, _Moment]]) -> list[tuple[int, float]]:
    """Ready replicas at each time at which a sample says that no roll was under way, oldest first."""
    found = []
    for time_s in sorted(times):
        for one in times[time_s].values():
            ready = one.one("ready_replicas")
            if ready is not None and one.one("rollout_in_progress") == 0.0:
                found.append((time_s, ready))
                break
    return found


def _before(known: Sequence[tuple[int, float]], rolled_s: float) -> float | None:
    """Replicas before a roll that ended at a time; None if no sample of the hours before says so."""
    place = bisect_left(known, (rolled_s, 0.0)) - 1
    return known[place][1] if place >= 0 and rolled_s - known[place][0] <= BEFORE_ROLL_S else None


def _spent(times: Mapping[int, Mapping[str, _Moment]]) -> list[tuple[int, float]]:
    """GPU-seconds by which the sum of calibrations grew, each with the time at which it was seen.

    A sum that appears later than the service began with nothing; one that falls is of a service that was made again.
    """
    found: list[tuple[int, float]] = []
    before: float | None = None
    for place, time_s in enumerate(sorted(times)):
        sums = [one.one("calibrations_gpu_seconds_spent") for one in times[time_s].values()]
        now = max((one for one in sums if one is not None), default=None)
        if now is None:
            before = 0.0 if before is None else before
            continue
        if before is None and place == 0:
            before = now
        began = before or 0.0
        more = now - began if now >= began else now
        if more > 0.0:
            found.append((time_s, more))
        before = now
    return found


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) < _MOST else None


def _positive(value: float | None) -> bool:
    return value is not None and 1.0 / _MOST < value < _MOST
