"""The rule: the arm that is expected to save requests the most time over the hours to come, and may be risked.

By Little's law the requests in flight are the request-seconds that are spent per second. So the saving of an arm is the
difference in flight, over the expected loads, times the horizon, less the cost of the roll. Three things make it safe if
a fit is wrong or an unexpected load comes:

- every figure is drawn, not estimated: fits err, and beyond saturation an error costs more than it saves on the other
  side. An arm is entered by the lower bound of its saving, and left by the expected saving of leaving.
- laws are learned from live latency (`learned_laws`).
- the cost of a jump of the load on an arm (`surprise`) is paid from an account: a share of the request time of ten days
  without speculation, plus the savings so far. The nearer the cost comes to the account, the more it counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.estimate import Estimate
from breakeven.laws.arrays import FloatArray
from breakeven.planning.decision_memory import ACCOUNT_S, DAY_S, RISK, DecisionMemory, Evidence
from breakeven.planning.forecast import Forecast, Loads
from breakeven.planning.learned_laws import (
    FULL,
    INDEPENDENT_S,
    FittedLaw,
    LearnedLaws,
    in_flight,
    learned,
    with_latency,
)
from breakeven.planning.objective import Policy, tail_factor
from breakeven.planning.surprise import (
    LASTS_S,
    Day,
    Outflow,
    credible_rps,
    waited_along,
    waited_in_jump,
    worth_avoiding,
)
from breakeven.serving.counted_window import Load

DOUBT_SD = 1.0
"""Standard deviations of the saving that must remain to enter an arm."""
_JUMP = 1.5
"""Factor on the largest load seen that a surprise is taken to reach."""
_CARRIED = 0.95
"""Share of the capacity of no speculation up to which a surprise counts: beyond it no arm helps."""
_STAYS = 1.2
"""Factor by which the account of the arm in place is larger: its roll has been paid for."""
_SHORTER = 0.15
"""Share of the time waited in a queue that a roll must save: how long an overload lasts is a guess."""
_SURPRISING_SD = 3.0
"""Standard deviations beyond which the number in flight contradicts a law."""
_UNBOUNDED = 10.0
"""Multiple of the request time of the arm in place beyond which a bound counts as open."""
_LEAST = 1e-12
_LEAST_RPS = 1e-9
"""Rate below which a request is alone: the numbers in flight of a smaller one are 0, and have no ratio."""


def known_speedup(
    laws: Sequence[FittedLaw],
    evidence: Mapping[Arm, Evidence],
    arm: Arm,
    rps: float,
    now_s: float,
    confidence: float,
) -> Estimate | None:
    """The speedup at a rate (1/s per replica) by the laws that decisions rest on; None if there is none: saturated, idle, or no such law.

    `laws` are of no speculation, the arm and all others that have evidence; `now_s` is on the clock of the evidence.
    """
    arms = [law.arm for law in laws]
    if arm == NO_SPECULATION or arm not in arms or NO_SPECULATION not in arms or not rps > 0.0:
        return None
    known = learned(laws, evidence, now_s)
    likely = np.exp(known.mean).reshape(1, -1, 2)
    places = [arms.index(one) for one in (NO_SPECULATION, arm)]
    if any(rps > FULL * float(laws[i].saturations(likely[:, i])[0]) for i in places):
        return None

    def logarithm(factors: FloatArray) -> FloatArray:
        # At equal rates latencies and requests in flight have the same ratio.
        none, other = (
            np.log(laws[i].at(np.array([max(rps, _LEAST_RPS)]), factors[:, i], 0.0)[:, 0]) for i in places
        )
        return np.asarray(none - other)

    value = float(logarithm(likely)[0])
    half = NormalDist().inv_cdf(0.5 + confidence / 2.0) * float(logarithm(known.draws()).std())
    return Estimate(math.exp(value), math.exp(value - half), math.exp(value + half))


def waiting(load: Load, lawful: FloatArray) -> float:
    """Requests of a queue that drains, or came and went: those in flight beyond what laws expect of the rate; else 0.

    They are beyond by three standard deviations, whatever the capacity. A number that is steady, or grows, is none of a
    queue that goes: an arm that is slower than its law holds it too. `lawful` is in flight by the laws, in M draws.
    """
    usual = float(lawful.mean())
    beyond = (load.inflight or 0.0) - usual
    sd = math.hypot(float(lawful.std()), math.sqrt(usual))
    return beyond if load.drains and beyond > _SURPRISING_SD * sd else 0.0


@dataclass(frozen=True, slots=True)
class ArmSaving:
    """Expected effect of changing to an arm, per replica.

    Attributes:
        share: saving as a share of the expected request time on the arm in place.
        taken_sd: standard deviation of ln(request time on this arm over that on the arm in place).
        gross: request-seconds saved over the horizon, and for the rest of a day if all loads seen confirm it.
        gross_now: requests in flight that it saves at the present load.
        least: request-seconds that must be saved, by the margin.
        net: request-seconds saved, less the roll, the margin and the worth of avoiding a surprise.
        surely_net: `net` less one standard deviation of the advantage over staying, or over leaving if that pays
            already; `net` itself for leaving speculation.
        roll_cost: request-seconds that the roll takes.
        risk: worth of avoiding a surprise on this arm (request-seconds).
        carries_rps: rate at which it saturates (1/s).
    """

    arm: Arm
    share: float
    taken_sd: float
    gross: float
    gross_now: float
    least: float
    net: float
    surely_net: float
    roll_cost: float
    risk: float
    carries_rps: float

    def percent(self, confidence: float) -> Estimate:
        """`share` in percent with two-sided bounds: at most 100; open below if only some draws saturate."""
        taken, factor = (
            1.0 - self.share,
            math.exp(NormalDist().inv_cdf(0.5 + confidence / 2.0) * self.taken_sd),
        )
        least = 1.0 - taken * factor if taken * factor < _UNBOUNDED else None
        return Estimate(self.share, least, 1.0 - taken / factor).times(100.0)


def since_s(memory: DecisionMemory, load: Load, now_s: float) -> float:
    """Time (s) that a window stands for: since the last decision, at most `INDEPENDENT_S`."""
    lasted_s = load.window_s if memory.decided_s is None else now_s - memory.decided_s
    return min(max(lasted_s, 0.0), INDEPENDENT_S)


def decide_by_saving(
    laws: Sequence[FittedLaw],
    live: Load,
    ahead: Forecast,
    memory: DecisionMemory,
    policy: Policy,
    now_s: float,
) -> Savings:
    """Decide which arm should run, of no speculation, the arm in place and every arm that may run; pure.

    `live` is the last window of the arm in place. Candidate and times in the memory are left to the caller.
    """
    arms = [one.arm for one in laws]
    known = learned(laws, memory.evidence, now_s)
    stands_s = since_s(memory, live, now_s)
    after = memory.with_largest(ahead.largest_rps, now_s)
    i, none = arms.index(memory.running), arms.index(NO_SPECULATION)
    found = Savings(laws, known, live, ahead, policy, after, i)
    held = float(found.now[i].mean()) if live.inflight is None else live.inflight
    carries = found.carries[[i, none]].mean(axis=1).tolist()
    after = after.with_queue(live, (carries[0], carries[1]), stands_s, now_s)
    drains = waiting(live, found.now[i])
    found.queued = after.queued + drains > 0.0
    spared = (float(found.now[none].mean()) + after.queued_without - held) * stands_s
    if i == none:
        # The queue that speculation has left behind, and the waits of the roll back, are its cost.
        lately = memory.last_switch_s is not None and now_s < memory.last_switch_s + found.roll_s + LASTS_S
        spared = min(spared, 0.0) if lately else 0.0
    saved = memory.saved * math.exp(-stands_s / ACCOUNT_S) + spared
    found.options = found.calculated(none, saved)
    worth = [one for one in found.options if one.surely_net > 0.0]
    found.arm = max(worth, key=lambda one: one.surely_net).arm if worth else memory.running
    evidence = memory.evidence
    if not drains and live.settled and after.teaches(live.window_s, now_s):
        evidence = with_latency(memory.evidence, known, laws[i], live, now_s)
    after = replace(after, saved=saved, evidence=evidence)
    if found.arm != memory.running:
        after = replace(after, running=found.arm, last_switch_s=now_s)
    found.memory = after
    return found


@dataclass(slots=True, eq=False)
class Savings:
    """The effect of changing to each other arm than the arm in place, by all arms at all loads, drawn: M draws, A arms.

    `known` are the laws that it rests on, in the order of `laws`. `arm` is to run from now on, and `memory` is for the next decision.
    """

    laws: Sequence[FittedLaw]
    known: LearnedLaws
    live: Load
    ahead: Forecast
    policy: Policy
    memory: DecisionMemory
    running: int
    queued: bool = False
    options: tuple[ArmSaving, ...] = ()
    arm: Arm = field(init=False)
    factors: FloatArray = field(init=False)
    """On C1 and C2, shape (M, A, 2)."""
    roll_s: float = field(init=False)
    away_share: float = field(init=False)
    tails: FloatArray = field(init=False)
    """Measured ratios to limits on the arm in place over those by its law, shape (M, 1)."""
    now: FloatArray = field(init=False)
    """In flight at the present rate, shape (A, M)."""
    fewer: FloatArray = field(init=False)
    """In flight on each replica that is left during a roll, shape (A, M)."""
    taken: FloatArray = field(init=False)
    """In flight on average over the expected loads, queues apart, shape (A, M)."""
    expected: FloatArray = field(init=False)
    """`taken`, with loads that miss an objective counted several times, shape (A, M)."""
    usual: FloatArray = field(init=False)
    """In flight on average over all loads that were seen, shape (A, M)."""
    seen: FloatArray = field(init=False)
    """`usual` without queues and objectives, shape (A, M)."""
    carries: FloatArray = field(init=False)
    """Saturation (1/s), shape (A, M)."""

    def __post_init__(self) -> None:
        self.factors = self.known.draws()
        self.roll_s, self.away_share = self.policy.roll_s, self.policy.away_share
        shares, rates = _arrays(self.ahead.expected)
        past_shares, past_rates = _arrays(self.ahead.seen)
        fewer_rps = self.live.rps / (1.0 - self.away_share)
        asked = np.concatenate([[self.live.rps, fewer_rps], rates, past_rates])
        # Waits in queues are calculated along the paths of the load.
        held, past = in_flight(self.laws, asked, self.factors, 0.0), 2 + len(rates)
        self.now, self.fewer, self.taken = held[:, :, 0], held[:, :, 1], held[:, :, 2:past] @ shares
        strain, own = self.laws[self.running].strain, self.factors[:, self.running]
        self.tails = np.ones((len(own), 1))
        if strain is not None:
            self.tails = tail_factor(strain.at(self.now[self.running][:, None], own), self.live.strain)
        counted = held * self._weights(held)
        self.expected = counted[:, :, 2:past] @ shares
        self.carries = np.stack([one.saturations(self.factors[:, i]) for i, one in enumerate(self.laws)])
        # No path is kept of all the past: a load beyond an arm's capacity is taken to last for an hour.
        queued = np.maximum(past_rates - FULL * self.carries[..., None], 0.0) * (LASTS_S / 2.0)
        self.usual = (counted[:, :, past:] + queued) @ past_shares
        self.seen = held[:, :, past:] @ past_shares

    def _weights(self, held: FloatArray) -> FloatArray:
        """Weight of a request in flight; shape of `held`, (A, M, X)."""
        return np.stack(
            [
                np.ones_like(among)
                if law.strain is None
                else law.strain.weights(among, self.factors[:, i], self.tails)
                for i, (law, among) in enumerate(zip(self.laws, held, strict=True))
            ]
        )

    def calculated(self, none: int, saved: float) -> tuple[ArmSaving, ...]:
        """The options with so many request-seconds saved so far."""
        i = self.running
        risks, covered = self._surprises(none, saved)
        stay, rolled = self._waited()
        changes = [self._change(b, stay - rolled[b], risks[i] - risks[b]) for b in range(len(self.laws))]
        # If leaving pays already, another arm is compared with no speculation, else with staying.
        leaving = changes[none][2]
        instead = leaving if i != none and float(leaving.mean()) > 0.0 else np.zeros_like(leaving)
        return tuple(
            self._option(b, change, instead, (stay, rolled[b]), risks[b], covered=covered)
            for b, change in enumerate(changes)
            if b != i
        )

    def _change(self, b: int, spared: FloatArray, safer: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Of the change to arm `b`: the saving with so much waiting spared, the roll, and what is left with `safer`; (M,) each.

        `safer` is the worth of risking less of a surprise. While requests queue, only the waiting that a roll saves counts. Every
        other gain can wait until they are served, and is then the same without a queue that grows on the remaining replicas.
        """
        if not self.queued:
            saving, roll = self._saving(b) + spared, self._roll_cost(b)
            return saving, roll, saving - roll + safer
        # A roll that takes no replica away lets the queue shrink all the time.
        roll = self._roll_cost(b) if self.away_share else np.zeros_like(spared)
        return spared, roll, spared - roll + min(safer, 0.0)

    def _waited(self) -> tuple[FloatArray, FloatArray]:
        """Request-seconds in queues: on the arm in place (M,), and after a roll to each arm (A, M), with the present queue."""
        i, policy = self.running, self.policy
        paths = np.array(self.ahead.paths or ((self.ahead.mean_rps,),))
        every_s = policy.horizon_s / paths.shape[1]
        held = self.now[i] if self.live.inflight is None else self.live.inflight
        waits = np.maximum(held - self.now[i], 0.0)
        full = FULL * self.carries[..., None]
        # During a roll half of the others run the old arm, and half of them the new one.
        begins_s = every_s * np.arange(paths.shape[1])
        rolling = np.clip((self.roll_s - begins_s) / every_s, 0.0, 1.0)
        meanwhile = (1.0 - self.away_share) * (full[i] + full) / 2.0
        return (
            waited_along(paths, full[i], every_s, waits),
            waited_along(paths, rolling * meanwhile + (1.0 - rolling) * full, every_s, waits),
        )

    def _surprises(self, none: int, saved: float) -> tuple[FloatArray, bool]:
        """Worth of avoiding a surprise on each arm above that on none, (A,), and whether the account covers one on the arm in place."""
        i, policy = self.running, self.policy
        safe, largest_rps = self.carries[none], max(self.memory.largest_rps, _LEAST)
        # The shorter the known past, the further a load may exceed it: a reason not to enter an arm, and none to leave it.
        beyond = np.full((len(self.laws), 1), 1.0 + policy.young_s / max(self.ahead.known_s, 1.0))
        beyond[i] = 1.0
        # A load that no arm carries does not count, unless it was seen.
        most = np.maximum(_CARRIED * safe, np.minimum(largest_rps, safe))
        rps = np.minimum((1.0 + (_JUMP - 1.0) * beyond) * largest_rps, most)
        # The same by day and night: a cost that changed with the hour would make an arm leave and come back every day.
        shares, rates = _arrays(self.ahead.seen)
        mean_rps, roll = float(shares @ rates), (self.roll_s, self.away_share, self.live.window_s)
        both = np.stack([self.carries, np.broadcast_to(safe, rps.shape)])
        waited, anyway = waited_in_jump(rps, mean_rps, both, safe, roll)
        costs = np.maximum((waited - anyway).mean(axis=-1), 0.0)
        # A service whose load may jump further than usual is larger than seen so far: its ten days take more request time.
        larger = np.maximum(rps.mean(axis=-1) / (_JUMP * largest_rps), 1.0)
        accounts = np.maximum(RISK * ACCOUNT_S * larger * float(self.usual[none].mean()) + saved, _LEAST)
        accounts[i] *= _STAYS
        risks = worth_avoiding(costs, accounts)
        # A load that never moved brings no other hours.
        moves = largest_rps > (1.0 + _LEAST_RPS) * mean_rps
        if policy.day_risk < 1.0 and (moves or self.ahead.known_s < policy.young_s):
            risks = np.maximum(risks, self._days(none, mean_rps, roll))
        return risks, bool(costs[i] <= accounts[i])

    def _days(self, none: int, mean_rps: float, roll: tuple[float, float, float]) -> FloatArray:
        """Worth of not risking the worst hours of a day on each arm (request-seconds a day); (A,)."""
        i = self.running
        levels = np.array([law.c1_s / law.c2_s for law in self.laws])
        half = levels[:, None] * (self.factors[..., 0] / self.factors[..., 1]).T
        # A young service may meet any load: a reason not to enter an arm, and none to leave it.
        known_days = self.ahead.known_s / self.policy.young_s if self.policy.young_s else 1.0
        most = np.full(len(self.laws), credible_rps(self.memory.largest_rps, mean_rps, known_days))
        most[i] = credible_rps(self.memory.largest_rps, mean_rps, 1.0)
        slack = np.where(np.arange(len(most)) == i, _STAYS, 1.0)
        day = Day(Outflow(self.carries, half), self.seen, none, mean_rps, roll)
        return day.worth_avoiding(most, self.policy.day_risk, slack)

    def _option(
        self,
        b: int,
        change: tuple[FloatArray, FloatArray, FloatArray],
        instead: FloatArray,
        waited: tuple[FloatArray, FloatArray],
        risk: float,
        *,
        covered: bool,
    ) -> ArmSaving:
        i, horizon_s = self.running, self.policy.horizon_s
        saving, roll, drawn = change
        least = self.policy.min_gain * float(self.expected[b].mean()) * horizon_s
        if self.queued:
            covered, least = True, _SHORTER * float(waited[0].mean())
        net = float(drawn.mean()) - (least if covered else 0.0)
        entered = self.laws[b].arm != NO_SPECULATION
        doubt = DOUBT_SD * float((drawn - instead).std()) if entered else 0.0
        taken = (self.taken[i] + waited[0] / horizon_s, self.taken[b] + waited[1] / horizon_s)
        log_ratios = np.log(np.maximum(taken[1], _LEAST) / np.maximum(taken[0], _LEAST))
        # The ratio of the means, as for the saving: the mean of ratios may have another sign.
        share = 1.0 - float(taken[1].mean()) / max(float(taken[0].mean()), _LEAST)
        return ArmSaving(
            self.laws[b].arm,
            share,
            float(log_ratios.std()),
            float(saving.mean()),
            float((self.now[i] - self.now[b]).mean()),
            least,
            net,
            net - doubt,
            float(roll.mean()),
            float(risk),
            float(self.carries[b].mean()),
        )

    def _roll_cost(self, b: int) -> FloatArray:
        """Request-seconds of a roll: replicas that start up serve nothing, and more requests are in flight on the others.

        Half of the roll is spent on the old arm, half on the new one, all of it with replicas away.
        """
        i, left = self.running, 1.0 - self.away_share
        more = np.maximum((self.fewer[i] + self.fewer[b]) / 2.0 * left - self.now[i], 0.0)
        return np.asarray(self.policy.roll_seconds * self.now[i] + more * self.roll_s)

    def _saving(self, b: int) -> FloatArray:
        """Request-seconds saved, queues apart: over the horizon, and for the rest of a day at all loads seen.

        By the horizon alone a roll that pays within half a day is never made, however long the load has been constant.
        The rest of the day counts if it has the sign of the horizon: else there is time to change again.
        """
        soon, usually = (held[self.running] - held[b] for held in (self.expected, self.usual))
        lasting = np.where(soon * usually > 0.0, usually, 0.0)
        horizon_s = self.policy.horizon_s
        return np.asarray(soon * horizon_s + lasting * max(DAY_S - horizon_s, 0.0))


def _arrays(loads: Loads) -> tuple[FloatArray, FloatArray]:
    shares, rates = zip(*loads, strict=True)
    return np.asarray(shares, dtype=float), np.asarray(rates, dtype=float)
