"""The next point to buy: the arm, load and window that save the most regret per second of GPU.

At every expected load one arm is recommended, the fastest measured one; `regret` computes its expected
loss. A point removes regret(|delta|, s) of it in expectation, where s is the standard deviation by which the point will
move the believed delta. If a rival becomes one that may be recommended, its lead is gained as well. One number so covers
both parts of a decision: arms close in rank, and the load at which two of them change places, near which delta is 0.

An arm may be recommended once it has its first points and they reach the load: `plan` would call it an extrapolation
otherwise. The first loads are spread: alone, the highest trusted load, then the middle of the widest gap. The first arm,
usually no speculation, begins with its ceiling. It gets them even if it significantly loses, because speedups and
break-evens are stated against it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from breakeven.arm import ADAPTIVE, Arm
from breakeven.laws.arrays import FloatArray
from breakeven.load_driver.design import (
    EXTRA_ATTEMPTS,
    HIGHEST_UTILISATION,
    SAME_RATE,
    Finished,
    SweepSettings,
)
from breakeven.load_driver.question import ROUNDING, Belief, Knowledge, Question, known_from
from breakeven.points.point import ImposedLoad, LoadMode, Point, significant
from breakeven.points.quality import FEWEST_GENERATIONS

_FEWEST_REQUESTS = 5
_IMAGINED = -1
_LEAST_GAIN = 1e-9
"""Regret per second below which a point saves nothing but rounding."""


@dataclass(frozen=True, slots=True)
class Purchase:
    """One point to measure next, with its expected means.

    Attributes:
        company_s: expected C2 (s).
        warmup_s: load before the window.
        startup_s: GPU time of starting the engine; 0 if it runs.
        others: mean number of others that its requests meet. requests: expected in the window.
        regret: expected regret (share of latency) as things stand.
        saved: how much of it this point is expected to remove, per second; NaN for the first points of an arm that runs.
    """

    arm: Arm
    load: ImposedLoad
    latency_s: float
    inflight: float
    company_s: float
    warmup_s: float
    window_s: float
    startup_s: float
    others: float
    requests: float
    regret: float = math.nan
    saved: float = math.nan

    @property
    def measuring_s(self) -> float:
        """GPU time (s) of the point, its warm-up and its last answers included, without a start."""
        return self.warmup_s + self.window_s + self.latency_s


def next_point(
    question: Question, measured: Sequence[Point], left_s: float = math.inf
) -> Purchase | Finished:
    """Choose the next point by every one so far, flagged ones included, or give the reason why there is none.

    Equal inputs give an equal choice, whatever the order of the points. `left_s` is GPU time for measuring, into which the
    point fits with its warm-up and its tail.
    """
    state = known_from(question, measured)
    pairs = rival_pairs(state)
    regret = tellable_regret(state, pairs)
    opening = [offer for arm in _startable(state) for offer in _opening(state, arm)[:1]]
    running = [offer for offer in opening if offer.arm == question.running]
    if running and (first := _affordable(state, running, left_s)):
        return replace(first[0], regret=regret)
    if regret <= question.target_regret and any(state.recommendable(at) for at in range(len(state.rates))):
        return Finished(
            complete=True, reason=f"expected regret {regret:.2%}, asked for {question.target_regret:.2%}"
        )
    wanted = [offer for arm in _startable(state) for offer in _offers(state, arm)]
    offers = _affordable(state, wanted, left_s)
    if not offers:
        if not _startable(state):
            return Finished(complete=False, reason=f"every arm has {question.settings.loads} points")
        late = left_s < math.inf
        reason = f"nothing more fits into {left_s:.0f} s" if late else "no load is left"
        return Finished(complete=False, reason=reason, out_of_time=late)
    gains = [_gain_per_second(state, pairs, offer) for offer in offers]
    # Rounded, so that the last bits of a sum do not choose between offers that are equally good.
    best = max(range(len(offers)), key=lambda i: (float(f"{gains[i]:.9g}"), -i))
    if gains[best] <= _LEAST_GAIN:
        return Finished(complete=True, reason=f"no point tells more; expected regret {regret:.2%}")
    return replace(offers[best], regret=regret, saved=gains[best])


def _startable(state: Knowledge) -> list[int]:
    question = state.question
    most = question.settings.loads + EXTRA_ATTEMPTS
    return [
        i
        for i, arm in enumerate(state.belief.arms)
        if arm in question.arms
        and state.usable[i] < question.settings.loads
        and len(state.measured[i]) < most
    ]


def _opening(state: Knowledge, arm: int) -> list[Purchase]:
    """Missing first points of an arm: a lone client; for the first arm also the ceiling and a law.

    The expected loads are shares of that ceiling, and a law that bends would put the ceiling elsewhere. For the other arms
    only the expected loads matter.
    """
    if arm != state.in_question[0]:
        return [] if state.measured[arm] else _spread(state, arm, 1)
    settings = state.question.settings
    clients = [point.load.clients or 0 for point in state.measured[arm]]
    ends = [(1, 1 in clients), (settings.max_concurrency, any(count > 1 for count in clients))]
    missing = [ImposedLoad(LoadMode.CLOSED, count) for count, there in ends if not there]
    offers = [_offer(state, arm, load, settings.min_point_seconds) for load in missing]
    return offers or _spread(state, arm, state.wanted(arm) - state.usable[arm])


def _spread(state: Knowledge, arm: int, count: int) -> list[Purchase]:
    """The next loads with which an arm gets a law: alone, as far as it would be trusted, then the widest gap's middle.

    A law that bends is followed through its points, so they must lie close to each other on a logarithmic scale.
    """
    settings, met = state.question.settings, list(state.met[arm])
    clients = [ImposedLoad(LoadMode.CLOSED, 1), *_clients(settings)]
    clients.append(ImposedLoad(LoadMode.CLOSED, settings.max_concurrency))
    left = [
        _offer(state, arm, load, settings.min_point_seconds)
        for load in _unmeasured(state, arm, [*_rates(state, arm), *clients])
    ]
    trusted = [one.others for at, one in enumerate(state.latencies[arm]) if state.trusted(arm, at)]
    far = max(trusted, default=state.latencies[arm][0].others)
    found = list[Purchase]()
    while left and len(found) < count:
        closed = [offer for offer in left if offer.load.clients]
        beyond = [offer for offer in closed if offer.others >= far]
        if not met:
            best = min(left, key=lambda offer: offer.others)
        elif max(met) * ROUNDING < far and beyond:
            best = min(beyond, key=lambda offer: offer.others)
        else:
            places = np.log1p(sorted(met))
            widest = int(np.argmax(np.diff(places))) if len(places) > 1 else 0
            middle = float(np.mean(places[widest : widest + 2]))
            best = left[int(np.argmin([abs(math.log1p(offer.others) - middle) for offer in left]))]
        left.remove(best)
        found.append(best)
        met.append(best.others)
    return found


def _offers(state: Knowledge, arm: int) -> Iterator[Purchase]:
    """Every load and window worth looking at; of an arm without a law only what it needs first."""
    if opening := _opening(state, arm) or _spread(state, arm, min(state.wanted(arm) - state.usable[arm], 1)):
        yield opening[0]
        return
    settings = state.question.settings
    ceiling = ImposedLoad(LoadMode.CLOSED, settings.max_concurrency)
    for load in _unmeasured(state, arm, [*_rates(state, arm), *_clients(settings), ceiling]):
        window_s = settings.min_point_seconds
        while True:
            yield _offer(state, arm, load, window_s)
            if window_s >= settings.point_seconds:
                break
            window_s = min(2.0 * window_s, settings.point_seconds)


def _rates(state: Knowledge, arm: int) -> list[ImposedLoad]:
    """Expected loads below the arm's believed saturation; a rate that was measured elsewhere stands in for one beside it."""
    settings, belief = state.question.settings, state.belief
    most = min(HIGHEST_UTILISATION / belief.c2_s(arm), state.ceilings[arm] * (1.0 - SAME_RATE))
    rates = []
    for wanted in state.rates:
        near = min(settings.reference_rps, key=lambda rate: abs(rate - wanted), default=wanted)
        rates.append(near if abs(near - wanted) <= 2.0 * SAME_RATE * wanted else significant(wanted))
    return [ImposedLoad(settings.arrivals, rate) for rate in dict.fromkeys(rates) if rate <= most]


def _unmeasured(state: Knowledge, arm: int, loads: Sequence[ImposedLoad]) -> list[ImposedLoad]:
    def same(load: ImposedLoad, other: ImposedLoad) -> bool:
        return load.mode == other.mode and abs(load.value - other.value) <= SAME_RATE * load.value

    return [load for load in loads if not any(same(load, point.load) for point in state.measured[arm])]


def _clients(settings: SweepSettings) -> list[ImposedLoad]:
    counts = [2**power for power in range(1, 20) if 2**power < settings.max_concurrency]
    return [ImposedLoad(LoadMode.CLOSED, count) for count in counts]


def _offer(state: Knowledge, arm: int, load: ImposedLoad, window_s: float) -> Purchase:
    belief, settings, question = state.belief, state.question.settings, state.question
    if load.clients is not None:
        others, clients = load.clients - 1.0, float(load.clients)
        latency_s = belief.among(arm, others).latency_s
        least = max(_FEWEST_REQUESTS, FEWEST_GENERATIONS * clients if clients > 1 else 0.0)
        rate, inflight = clients / latency_s, clients
    else:
        found = belief.at_rps(arm, load.value)
        latency_s, others, least = found.latency_s, found.others, float(_FEWEST_REQUESTS)
        rate, inflight = load.value, others
    window_s = max(window_s, least / rate)
    name = belief.arms[arm]
    return Purchase(
        arm=name,
        load=load,
        latency_s=latency_s,
        inflight=inflight,
        company_s=belief.c2_s(arm),
        warmup_s=max(settings.warmup_seconds, latency_s),
        window_s=window_s,
        startup_s=0.0 if name == question.running else question.startup_s,
        others=others,
        requests=rate * window_s,
    )


def _affordable(state: Knowledge, offers: Sequence[Purchase], left_s: float) -> list[Purchase]:
    """Offers within the time left, together with the points that must follow: an arm without a law is money thrown away."""
    return [offer for offer in offers if sum(one.measuring_s for one in _needed(state, offer)) <= left_s]


def _gain_per_second(state: Knowledge, pairs: RivalPairs, offer: Purchase) -> float:
    """Expected regret that a point removes per second; the first one of an arm counts with the points that must follow."""
    arm, bundle = state.belief.arms.index(offer.arm), _needed(state, offer)
    cost_s = bundle[0].startup_s + sum(one.measuring_s for one in bundle)
    belief, steps = state.belief, list[FloatArray]()
    for one in bundle:
        steps.append(belief.step(arm, one.others, one.requests))
        belief = belief.after(steps[-1]) if len(bundle) > 1 else belief
    moved = np.linalg.norm(np.stack(steps) @ pairs.rows.T, axis=0)
    gain = expected_losses(np.abs(pairs.ahead), moved)
    more = len(bundle), max(one.others for one in bundle)
    opens = np.array([state.may_recommend(arm, at, *more) for at in range(len(state.rates))])[pairs.loads]
    gain = gain + np.where(opens & (pairs.rivals == arm), np.maximum(-pairs.ahead, 0.0), 0.0)
    return float(gain.sum()) / len(state.rates) / cost_s


def _needed(state: Knowledge, offer: Purchase) -> list[Purchase]:
    """The point with all that its arm needs besides before it may be recommended; later points show which these are."""
    arm = state.belief.arms.index(offer.arm)
    return [offer, *_spread(state, arm, state.wanted(arm) - state.usable[arm])[1:]]


def believed(
    question: Question, measured: Sequence[Point], arms: Sequence[Arm], load: ImposedLoad, window_s: float
) -> list[Purchase]:
    """The points that a load is believed to give on these arms, all in question."""
    state = known_from(question, measured)
    return [_offer(state, state.belief.arms.index(arm), load, window_s) for arm in arms]


def imagined(step: Purchase) -> Point:
    """The point as it is expected."""
    rate = step.inflight / step.latency_s
    closed = step.load.clients is not None
    return Point(
        method=step.arm.method,
        k=step.arm.k,
        candidate=step.arm.candidate,
        schedule=some_schedule(step.arm),
        load_mode=step.load.mode,
        concurrency=float(step.load.value) if closed else None,
        request_rate_rps=None if closed else step.load.value,
        mean_latency_s=significant(step.latency_s),
        mean_inflight=significant(max(step.inflight, 1e-6)),
        requests=max(significant(rate * step.window_s), 1.0),
        window_s=significant(step.window_s),
    )


def some_schedule(arm: Arm) -> str | None:
    """A column `schedule` by which a point is one of this arm."""
    return (ADAPTIVE if arm.adaptive else f"1-:{arm.k}") if arm.scheduled else None


# Expected loss of the recommended arm against its rivals, per expected load.
#
#     regret(delta, sigma) = sigma*pdf(delta/sigma) - delta*cdf(-delta/sigma)
#
# with delta the ln L of the rival less the ln L of the recommended arm, and sigma the standard deviation of delta. Rivals are
# counted one by one, so the sum over them is an upper bound. A single arm in question is compared
# with an imagined rival that is known to be as fast: the hardest case.


@dataclass(frozen=True, slots=True, eq=False)
class RivalPairs:
    """The recommended arm against every rival at every expected load, one after the other; shape (pairs,), rivals and loads by index.

    `ahead` is ln L of the rival less ln L of the recommended arm; its derivatives by the coefficients have a row each.
    """

    ahead: FloatArray
    rivals: NDArray[np.int64]
    loads: NDArray[np.int64]
    rows: FloatArray


def rival_pairs(state: Knowledge) -> RivalPairs:
    """Every other arm against the fastest one that may be recommended."""
    logs, slopes = log_latencies(state)
    arms, loads = state.in_question, list[int]()
    ahead, rivals, rows = list[float](), list[int](), list[FloatArray]()
    for at in range(len(state.rates)):
        best = min(state.kept(at), key=lambda i: float(logs[i, at]))
        before = len(ahead)
        if len(arms) == 1:
            ahead.append(0.0)
            rivals.append(_IMAGINED)
            rows.append(slopes[best, at])
        for rival in arms:
            if rival != best:
                ahead.append(float(logs[rival, at] - logs[best, at]))
                rivals.append(rival)
                rows.append(slopes[rival, at] - slopes[best, at])
        loads += [at] * (len(ahead) - before)
    return RivalPairs(np.array(ahead), np.array(rivals), np.array(loads), np.stack(rows))


def tellable_regret(state: Knowledge, pairs: RivalPairs) -> float:
    """The regret that points of the arms in question can remove, also by giving a faster arm the law that it lacks."""
    known = [i for i, arm in enumerate(state.belief.arms) if arm in state.question.arms]
    certain = state.belief.given(known)
    told = max(_regret(state, pairs, state.belief) - _regret(state, pairs, certain), 0.0)
    opened = np.zeros(len(state.rates))
    for rival, at, ahead in zip(
        pairs.rivals.tolist(), pairs.loads.tolist(), pairs.ahead.tolist(), strict=True
    ):
        if rival in known and state.trusted(rival, at) and not state.may_recommend(rival, at):
            opened[at] = max(opened[at], -ahead)
    return told + float(opened.mean())


def log_latencies(state: Knowledge) -> tuple[FloatArray, FloatArray]:
    """Ln L of every arm at the expected loads and its derivatives, shapes (arms, loads) and (arms, loads, coefficients)."""
    logs = np.log([[one.latency_s for one in ones] for ones in state.latencies])
    rows = [[state.belief.row(arm, one) for one in ones] for arm, ones in enumerate(state.latencies)]
    return logs, np.array(rows)


def _regret(state: Knowledge, pairs: RivalPairs, belief: Belief) -> float:
    variances = np.einsum("pi,ij,pj->p", pairs.rows, belief.covariance, pairs.rows)
    return float(expected_losses(pairs.ahead, np.sqrt(np.maximum(variances, 0.0))).sum()) / len(state.rates)


def expected_losses(delta: FloatArray, sigma: FloatArray) -> FloatArray:
    """E[max(0, -D)] of normal D with these means and standard deviations."""
    spread = np.maximum(sigma, 1e-12)
    z = delta / spread
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    below = 0.5 * np.array([math.erfc(x) for x in (z / math.sqrt(2.0)).tolist()])
    return np.asarray(np.maximum(spread * density - delta * below, 0.0))
