"""Capacity: the load per replica that an arm carries within the objectives, and so the replicas that a fleet needs.

The capacity is the largest rate at which all of this holds, each with bounds:

- the arm has a steady state: saturation, and no more in flight than the engine's batch and its KV pool take on average;
- every objective is kept. Each figure rises with the number of others in flight, so its limit is one such number;
- with objectives, the share of requests that find batch or pool full, and wait, is at most the share that may miss them.

Without objectives only the first condition counts. A bound that is not known is None, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, NamedTuple

import numpy as np

from breakeven.arm import Arm
from breakeven.estimate import Estimate
from breakeven.laws.latency import InflightDistribution
from breakeven.phrases import between, counted, figure, spoken
from breakeven.planning.objective import Slo
from breakeven.profile import Bounds, Curve, LoadPoint, Prediction, Profile
from breakeven.profile.fits import LARGEST_FIGURE
from breakeven.profile.student_t import t_quantile

HEADROOM = 1.2
"""Factor on the present load that the replicas are to carry: it may rise by so much until a further one has started."""

FULL_SHARE = 0.05
"""Share of requests that may find batch or KV pool full where the objectives name no rarer quantile."""

_FAR = 1e9
"""More others in flight than any engine holds: a figure that keeps its limit there does not rise with load."""

_EXACT = 1e-9
_STEPS = 100
_NEAR = 1e-4
"""Relative precision of a rate that is found by the chance of a full engine."""


class CapacityLimit(StrEnum):
    """The limit that a further request per second would exceed."""

    OBJECTIVE = "Objective"
    SATURATION = "Saturation"
    MAX_NUM_SEQS = "MaxNumSeqs"
    KV_POOL = "KvPool"


@dataclass(frozen=True, slots=True)
class Capacity:
    """Largest rate (1/s) that one replica carries with one arm, by the tightest limit; 0 where a lone request misses an objective.

    Its bounds are at the profile's confidence; None where open.
    """

    arm: Arm
    rps: float
    lower_rps: float | None
    upper_rps: float | None
    limit: CapacityLimit


def capacity_along(
    profile: Profile,
    arm: Arm,
    curve: Curve,
    slo: Slo,
    *,
    max_num_seqs: int | None = None,
    confidence: float | None = None,
) -> Capacity | None:
    """Capacity of an arm by the curve of its latency; None if the figure of an objective was not measured at all.

    `max_num_seqs` is the largest batch of the engine, None if not known; `confidence` is the level of the bounds, None takes the
    level of the profile.
    """
    asked = _LoadedArm(profile, arm, curve, slo, confidence or profile.confidence)
    room = _room(profile, arm, max_num_seqs)
    rates = [asked.saturation()]
    # A law that holds the limit has its wait in the latencies: its saturation is the rate of full steps.
    if room is not None and not asked.holds(room):
        rates.append(asked.full(room))
    if slo.is_set:
        if slo.lacks(asked.promised(0.0)):
            return None
        rates.append(asked.objectives())
        most_rps = min(one.rps for one in rates)
        if room is not None and (seldom := asked.seldom_full(room, most_rps)) is not None:
            rates.append(seldom)
    least = min(rates, key=lambda one: one.rps)
    lowest = [0.0 if one.lower_rps is None else one.lower_rps for one in rates]
    upper = min((one.upper_rps for one in rates if one.upper_rps is not None), default=None)
    return Capacity(
        arm,
        least.rps,
        # A limit without a lower bound may be anything down to 0.
        None if any(one.lower_rps is None for one in rates) else min(*lowest, least.rps),
        None if upper is None else max(upper, least.rps),
        least.limit,
    )


class _Room(NamedTuple):
    """Requests that an engine holds at once, and the limit that this number comes from."""

    requests: int
    limit: CapacityLimit


def _room(profile: Profile, arm: Arm, max_num_seqs: int | None) -> _Room | None:
    """The smaller of batch and KV pool, as far as they are known."""
    measured = profile.arm(arm).kv_requests if profile.measured(arm) else None
    rooms = [
        _Room(max(int(requests), 1), limit)
        for requests, limit in ((max_num_seqs, CapacityLimit.MAX_NUM_SEQS), (measured, CapacityLimit.KV_POOL))
        if requests is not None
    ]
    return min(rooms, default=None)


@dataclass(frozen=True, slots=True)
class _LoadedArm:
    profile: Profile
    arm: Arm
    curve: Curve
    slo: Slo
    confidence: float
    predictions: dict[float, Prediction] = field(default_factory=dict)

    @property
    def _t(self) -> float:
        return t_quantile(self.confidence, self.curve.dof)

    def promised(self, others: float) -> Prediction:
        """The figures of the objectives among so many others; predicted once and kept."""
        if others not in self.predictions:
            self.predictions[others] = self.profile.predict_along(
                self.arm,
                self.curve,
                LoadPoint(others=others),
                quantile=self.slo.quantile,
                confidence=self.confidence,
            )
        return self.predictions[others]

    def saturation(self) -> Capacity:
        """Rate beyond which there is no steady state; queues and preemption that were measured count as its ceiling."""
        most_rps = self.curve.saturation_rps
        found = Estimate.of(most_rps, self.curve.saturation_bounds(self._t))
        full = self.curve.ceiling_rps is None and self._max_num_seqs is not None
        limit = CapacityLimit.MAX_NUM_SEQS if full else CapacityLimit.SATURATION
        return Capacity(self.arm, most_rps, found.lower, found.upper, limit)

    @property
    def _max_num_seqs(self) -> int | None:
        return self.profile.steps.max_num_seqs if self.profile.steps is not None else None

    def holds(self, room: _Room) -> bool:
        """Whether the law knows the room as the engine's batch."""
        return room == _Room(self._max_num_seqs or 0, CapacityLimit.MAX_NUM_SEQS)

    def full(self, room: _Room) -> Capacity:
        """Rate at which all the room is in use all the time: by Little's law the throughput cannot be higher."""
        return self._rate(room.requests, room.requests - 1.0, room.limit)

    def objectives(self) -> Capacity:
        """Rate at which the tightest objective is just kept; each bound uses the latencies at the opposite end of theirs."""

        def strain(others: float, end: Literal[0, 1] | None) -> float:
            at = self.promised(others)
            return self.slo.worst_ratio(at if end is None else _at_end(at, end))

        def kept(end: Literal[0, 1] | None) -> Capacity | None:
            others = _most_others(lambda n: strain(n, end))
            if others is None or others >= _FAR:
                return None if others is None else self.saturation()
            return self._rate(others, others, CapacityLimit.OBJECTIVE)

        slow, fast = kept(1), kept(0)
        return Capacity(
            self.arm,
            (kept(None) or self.saturation()).rps,
            slow.lower_rps if slow is not None else None,
            fast.upper_rps if fast is not None else None,
            CapacityLimit.OBJECTIVE,
        )

    def _rate(self, inflight: float, others: float, limit: CapacityLimit) -> Capacity:
        """Rate by Little's law of so many requests in flight that each meet so many others."""
        latency_s = self.curve.loop_latency_s(others, closed=False)
        found = Estimate.of(latency_s, self.curve.bounds_of(latency_s, others, self._t))
        return Capacity(
            self.arm,
            inflight / latency_s,
            max(inflight / found.upper, self._promised_among_fewer(others)) if found.upper else None,
            inflight / found.lower if found.lower else None,
            limit,
        )

    def _promised_among_fewer(self, others: float) -> float:
        """Largest lower bound of the rate among fewer others: doubt grows with load, but a rate that is carried stays carried."""
        n, latency_s = self.curve.knots[self.curve.knots[:, 0] < others].T
        _, upper_s = self.curve.all_bounds_of(latency_s, n, self._t)
        return float(np.max(n / upper_s, where=upper_s <= LARGEST_FIGURE, initial=0.0))

    def seldom_full(self, room: _Room, most_rps: float) -> Capacity | None:
        """Rate at which just so many requests find no room as may miss an objective.

        None if it allows more than all other limits do (`most_rps`), at the lower end of its bounds too.
        """
        allowed = min(1.0 - (self.slo.quantile or 0.0), FULL_SHARE)
        if self._finds_full(room, most_rps * self._at_rps(most_rps)[0]) <= allowed:
            return None
        low, high = 0.0, self.curve.saturation_rps
        while high - low > _NEAR * high:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self._finds_full(room, middle) <= allowed else (low, middle)
        # If all latencies are wrong by one factor, the rate is wrong by the same factor.
        slower, faster = self._at_rps(low)
        known = math.isfinite(self._t)
        return Capacity(
            self.arm,
            low,
            low / slower if known else None,
            low / faster if known and faster else None,
            room.limit,
        )

    def _at_rps(self, rps: float) -> tuple[float, float]:
        """Upper and lower bound of the latency at a rate (1/s) over the latency; 1 and 1 without bounds."""
        latency_s = self.curve.at_rps(rps)
        ends = self.curve.bounds_of(latency_s, rps * latency_s, self._t) if math.isfinite(latency_s) else None
        found = Estimate.of(latency_s, ends)
        if found.lower is None or found.upper is None:
            return 1.0, 1.0
        return found.upper / latency_s, found.lower / latency_s

    def _finds_full(self, room: _Room, rps: float) -> float:
        """Chance that a request finds all the room taken; 1 where there is no steady state."""
        inflight = rps * self.curve.at_rps(rps)
        if math.isnan(inflight):
            return 1.0
        return InflightDistribution(inflight, rps / self.curve.saturation_rps).exceedance(room.requests - 1)


def _at_end(at: Prediction, end: Literal[0, 1]) -> Prediction:
    """The figures at the lower or upper ends of their bounds; NaN where one is open."""

    def moved(value: float | None, bounds: Bounds | None) -> float | None:
        if value is None:
            return None
        found = bounds[end] if bounds is not None else None
        return math.nan if found is None else found

    return replace(
        at,
        latency_s=moved(at.latency_s, at.latency_ci_s),
        ttft_s=moved(at.ttft_s, at.ttft_ci_s),
        tpot_s=moved(at.tpot_s, at.tpot_ci_s),
    )


def _most_others(strain: Callable[[float], float]) -> float | None:
    """Largest number of others in flight at which a strain that rises with it is at most 1.

    0 if a lone request strains more; infinite if no number does; None if the strain is not known.
    """
    low, below = 0.0, strain(0.0) - 1.0
    if math.isnan(below) or below >= 0:
        return None if math.isnan(below) else 0.0
    high, above = 1.0, strain(1.0) - 1.0
    while above < 0:
        if high >= _FAR:
            return math.inf
        low, below = high, above
        high *= 4.0
        above = strain(high) - 1.0
    if math.isnan(above):
        return None
    # False position, which a straight line ends at once; an end that stays is taken for half as far (Illinois).
    stayed = ""
    for _ in range(_STEPS):
        middle = (low * above - high * below) / (above - below)
        if not low <= middle <= high:
            # A bound of a far number in flight may be infinite, which gives no position.
            middle = 0.5 * (low + high)
        at = strain(middle) - 1.0
        if math.isnan(at):
            return None
        if abs(at) <= _EXACT:
            return middle
        if at > 0:
            high, above, below = middle, at, (0.5 * below if stayed == "low" else below)
            stayed = "low"
        else:
            low, below, above = middle, at, (0.5 * above if stayed == "high" else above)
            stayed = "high"
    return low


@dataclass(frozen=True, slots=True)
class FewestReplicas:
    """The arm that a fleet that scales should run: the running one, unless another one needs significantly fewer replicas.

    `needs` are replicas of every arm whose capacity is above 0, fewest first; the upper bound is None where the capacity has no
    lower one above 0. The sentence tells why, without a full stop.
    """

    arm: Arm
    needs: Mapping[Arm, Estimate]
    sentence: str

    def no_more_than(self, running: Arm) -> tuple[Arm, ...]:
        """Arms that are expected to need no more replicas than the running one; none where its need is not known."""
        mine = self.needs.get(running, Estimate()).value or 0.0
        return tuple(arm for arm, need in self.needs.items() if need.value is not None and need.value <= mine)


def recommended_replicas(fleet_rps: float, capacities: Iterable[Capacity | None]) -> int | None:
    """Replicas for the present load of the whole fleet (1/s), at least 1, by the lower bound of the arm that carries least.

    During a roll replicas run two arms. None where a capacity is not known, or has no lower bound above 0.
    """
    bounds = [one.lower_rps if one is not None else None for one in capacities]
    if not bounds or any(not bound for bound in bounds):
        return None
    return replicas_for(fleet_rps, min(bound for bound in bounds if bound))


def replicas_for(fleet_rps: float, capacity_rps: float) -> int:
    """Replicas that carry a load of the whole fleet with `HEADROOM`, at least 1; `capacity_rps` is above 0."""
    return max(math.ceil(HEADROOM * fleet_rps / capacity_rps - _EXACT), 1)


def replicas_between(fleet_rps: float, capacity_rps: Estimate) -> Estimate:
    """Replicas that carry the load, and how many at least and at most by the bounds of the capacity; None by one that is open, or not above 0."""

    def needed(rps: float | None) -> int | None:
        return replicas_for(fleet_rps, rps) if rps is not None and 0.0 < rps < math.inf else None

    return Estimate(needed(capacity_rps.value), needed(capacity_rps.upper), needed(capacity_rps.lower))


def fewest_replicas(
    capacities: Iterable[Capacity | None], fleet_rps: float, running: Arm
) -> FewestReplicas | None:
    """The arm that keeps the objectives with the fewest replicas, and so the fewest GPUs, at a load of the whole fleet (1/s).

    This is the question of a fleet whose number of replicas follows its load: each replica is then always near its capacity,
    and an arm that is faster at the present load and carries less costs GPUs all day. The running arm stays unless another one
    needs significantly fewer; None where its own need is not known.
    """
    known = sorted(
        (one for one in capacities if one is not None and one.rps > 0),
        key=lambda one: (replicas_for(fleet_rps, one.rps), one.arm != running),
    )
    needs = {}
    for one in known:
        need = replicas_between(fleet_rps, Estimate(one.rps, one.lower_rps, one.upper_rps))
        needs[one.arm] = replace(need, value=replicas_for(fleet_rps, one.rps), lower=need.lower or 1)
    if running not in needs:
        return None
    best = next((arm for arm, need in needs.items() if need.below(needs[running].lower or 1.0)), running)
    told = [
        f"{spoken(arm)} needs {counted(round(need.value or 0), 'replica')} ({between(need.lower, need.upper)})"
        for arm, need in sorted(needs.items(), key=lambda one: one[0] != best)
    ]
    why = "" if best != running or len(needs) == 1 else "; no other arm surely needs fewer"
    return FewestReplicas(best, needs, f"for {figure(fleet_rps)} rps {'; '.join(told)}{why}")
