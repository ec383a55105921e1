"""Which arm is expected to spare requests the most time over the hours to come, and may be risked.

One rule. By Little's law the requests in flight are the request-seconds that are spent per second; so an arm's saving is
the difference in flight, over the loads that are expected, times the horizon, less what the roll costs. Three things make
it safe where a fit is wrong or a load comes that nobody expected:

- every figure is drawn, not estimated: fits err, and beyond saturation an error costs more than it saves on the other
  side. An arm is entered by what it surely saves, and left by what leaving is expected to save.
- laws are learned from live latency (`learned_laws`).
- what a jump of the load would cost on an arm (`surprise`) is paid from an account: a share of what ten days without
  speculation take, and what speculation has saved so far. What the account does not cover counts as a cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.laws.arrays import FloatArray
from breakeven.planning.evaluation import ArmEvaluation
from breakeven.planning.fluid_queue import FluidQueue
from breakeven.planning.forecast import Forecast
from breakeven.planning.inflight import InflightTable, table
from breakeven.planning.learned_laws import Evidence, LawPrior, learned, with_latency
from breakeven.planning.objective_strain import ObjectiveStrain
from breakeven.planning.outlook import ExpectedLoad
from breakeven.planning.surprise import Jump

_DAY_S = 86400.0
ACCOUNT_S = 10.0 * _DAY_S
"""Time over which a surprise may cost at most the risked share, and over which savings are remembered."""
_DRAWS = 16
_LEAST = 1e-12
_random = np.random.default_rng(1)
_HALF = _random.standard_normal((_DRAWS // 2, 64))
STANDARD = np.concatenate([_HALF, -_HALF])
"""Standard normal draws, the same for every decision, in pairs of opposite sign: their mean is 0."""


@dataclass(frozen=True, slots=True)
class Stakes:
    """What a decision may risk and must gain.

    Attributes:
        margin: least saving, as a share of what the requests take on the arm that is entered.
        doubt: standard deviations of the saving that must remain to enter an arm.
        risk: share of ten days' request time without speculation that one surprise may cost, savings aside.
        jump: factor on the largest load seen that a surprise is taken to reach.
        carried: share of what none carries beyond which no surprise is reckoned with: nothing helps there.
        young_s: with less of a past than this (s), a surprise may reach that share whatever was seen.
        horizon_s: how far ahead savings count (s).
        start_up_s: time that a replica takes to start (s).
        away_share: share of the replicas that are away during a roll; 0 where new ones come first.
        cooldown_s: least time between two switches to a speculative arm (s).
    """

    margin: float = 0.03
    doubt: float = 1.0
    risk: float = 0.12
    jump: float = 1.5
    carried: float = 0.95
    young_s: float = _DAY_S
    horizon_s: float = 14400.0
    start_up_s: float = 300.0
    away_share: float = 0.25
    cooldown_s: float = 3600.0

    @property
    def roll_s(self) -> float:
        """How long a roll takes (s)."""
        return self.start_up_s / self.away_share if self.away_share else self.start_up_s


@dataclass(frozen=True, slots=True)
class FittedLaw:
    """One arm as the profile knows it under the conditions of a service.

    Attributes:
        prior: its law.
        table: its number in flight.
        strain: how near it is to what is promised; None where nothing is.
        tokens_per_step: E that was measured live; None: as calibrated.
        calibrated_tokens_per_step: E when the arm was measured; None where it was not.
    """

    prior: LawPrior
    table: InflightTable
    strain: ObjectiveStrain | None = None
    tokens_per_step: float | None = None
    calibrated_tokens_per_step: float | None = None


def fitted_law(one: ArmEvaluation) -> FittedLaw:
    """What the rule needs of an arm's evaluation."""
    law = one.curve.law
    c1_s, c2_s = float(law.c1), float(law.c2)
    relative = np.asarray(law.covariance, dtype=float) / np.outer((c1_s, c2_s), (c1_s, c2_s))
    return FittedLaw(
        LawPrior(one.arm, c1_s, c2_s, relative),
        table(one.curve),
        one.strain,
        one.tokens_per_step,
        one.calibrated_tokens_per_step,
    )


@dataclass(frozen=True, slots=True)
class LiveLoad:
    """What a window showed, per replica.

    Attributes:
        rps: rate (1/s).
        inflight: mean number in flight; None where it was not observed.
        latency_s: mean latency (s); None where it was not observed.
        window_s: length of the window, or the time since the last one if that is shorter (s).
    """

    rps: float
    inflight: float | None
    latency_s: float | None
    window_s: float


@dataclass(frozen=True, slots=True)
class SavingMemory:
    """What lasts from one decision to the next.

    Attributes:
        running: the arm in place.
        last_switch_s: when it was switched to (s); `None`: never.
        saved: request-seconds per replica that speculation has saved; older ones fade.
        evidence: what live latency has said about each arm.
    """

    running: Arm
    last_switch_s: float | None = None
    saved: float = 0.0
    evidence: Mapping[Arm, Evidence] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArmSaving:
    """What changing to an arm is expected to do, per replica.

    Attributes:
        arm: which.
        share: of the expected request time that the arm in place takes, what this one spares.
        share_sd: standard deviation of that share.
        gross: request-seconds saved over the horizon, and for the rest of a day where all loads seen bear it out.
        gross_now: requests in flight that it spares at the present load.
        least: request-seconds that must be saved, by the margin.
        net: request-seconds saved, the roll, the margin and the risk that no account covers paid.
        surely_net: the same less `Stakes.doubt` standard deviations; to leave speculation, the same.
        roll_cost: request-seconds that the roll takes.
        uncovered: request-seconds of a surprise on this arm that no account covers.
        carries_rps: rate at which it saturates (1/s).
    """

    arm: Arm
    share: float
    share_sd: float
    gross: float
    gross_now: float
    least: float
    net: float
    surely_net: float
    roll_cost: float
    uncovered: float
    carries_rps: float

    def share_bounds(self, confidence: float) -> tuple[float, float]:
        """Two-sided bounds of `share`."""
        half = NormalDist().inv_cdf(0.5 + confidence / 2.0) * self.share_sd
        return self.share - half, self.share + half


@dataclass(frozen=True, slots=True)
class SavingDecision:
    """The arm to run from now on, and what each other one would do.

    Attributes:
        arm: the arm.
        options: every other arm than the one in place.
        memory: for the next decision.
    """

    arm: Arm
    options: tuple[ArmSaving, ...]
    memory: SavingMemory


def decide_by_saving(
    laws: Sequence[FittedLaw],
    live: LiveLoad,
    ahead: Forecast,
    memory: SavingMemory,
    stakes: Stakes,
    now_s: float,
) -> SavingDecision:
    """Decide which arm should run; pure, and equal arguments give equal decisions.

    Args:
        laws: of no speculation, the arm in place and every arm that may run.
        live: what the last window showed of the arm in place.
        ahead: loads that are expected.
        memory: from the last decision.
        stakes: what may be risked and must be gained.
        now_s: current time (s), on the clock of `memory` and `ahead`.
    """
    arms = [one.prior.arm for one in laws]
    known = learned([one.prior for one in laws], memory.evidence, now_s)
    view = _View(laws, known.draws(STANDARD), live, ahead, stakes)
    i, none = arms.index(memory.running), arms.index(NO_SPECULATION)
    saved = memory.saved * math.exp(-live.window_s / ACCOUNT_S)
    if i != none:
        held = float(view.now[i].mean()) if live.inflight is None else live.inflight
        saved += (float(view.now[none].mean()) - held) * live.window_s
    options = view.options(i, none, max(saved, 0.0))
    arm = memory.running
    cooled = memory.last_switch_s is None or now_s >= memory.last_switch_s + stakes.cooldown_s
    worth = [one for one in options if one.surely_net > 0.0 and (cooled or one.arm == NO_SPECULATION)]
    if worth:
        arm = max(worth, key=lambda one: one.surely_net).arm
    evidence = memory.evidence
    if live.inflight is not None and live.latency_s is not None and live.window_s > 0.0:
        evidence = with_latency(
            memory.evidence,
            known,
            laws[i].prior,
            inflight=live.inflight,
            latency_s=live.latency_s,
            window_s=live.window_s,
            now_s=now_s,
        )
    after = replace(memory, saved=saved, evidence=evidence)
    if arm != memory.running:
        after = replace(after, running=arm, last_switch_s=now_s)
    return SavingDecision(arm, options, after)


@dataclass(slots=True, eq=False)
class _View:
    """All arms at all loads, drawn: M draws, A arms."""

    laws: Sequence[FittedLaw]
    factors: FloatArray
    live: LiveLoad
    ahead: Forecast
    stakes: Stakes
    now: FloatArray = field(init=False)
    """In flight at the present rate, shape (A, M)."""
    fewer: FloatArray = field(init=False)
    """In flight on each replica that is left during a roll, shape (A, M)."""
    taken: FloatArray = field(init=False)
    """In flight on average over the expected loads, shape (A, M)."""
    expected: FloatArray = field(init=False)
    """The same, where what misses an objective counts several times, shape (A, M)."""
    usual: FloatArray = field(init=False)
    """In flight on average over all loads that were seen, shape (A, M)."""
    carries: FloatArray = field(init=False)
    """Saturation (1/s), shape (A, M)."""

    def __post_init__(self) -> None:
        shares, rates = _arrays(self.ahead.expected)
        fewer_rps = np.array([self.live.rps / (1.0 - self.stakes.away_share)])
        past_shares, past_rates = _arrays(self.ahead.seen)
        asked = np.concatenate([[self.live.rps], rates, past_rates])
        held = np.stack([law.table.at(asked, self.factors[:, i]) for i, law in enumerate(self.laws)])
        cost = held * self._weights(held)
        self.now, self.taken = held[:, :, 0], held[:, :, 1 : 1 + len(rates)] @ shares
        self.expected = cost[:, :, 1 : 1 + len(rates)] @ shares
        self.usual = cost[:, :, 1 + len(rates) :] @ past_shares
        # What would wait in a queue is reckoned by the queue, with its end.
        self.fewer = np.stack(
            [law.table.at(fewer_rps, self.factors[:, i], 0.0)[:, 0] for i, law in enumerate(self.laws)]
        )
        self.carries = np.stack(
            [law.table.saturations(self.factors[:, i]) for i, law in enumerate(self.laws)]
        )

    def _weights(self, held: FloatArray) -> FloatArray:
        """How much a request in flight counts; shape of `held`, (A, M, X)."""
        return np.stack(
            [
                np.ones_like(among) if law.strain is None else law.strain.weights(among, self.factors[:, i])
                for i, (law, among) in enumerate(zip(self.laws, held, strict=True))
            ]
        )

    def options(self, i: int, none: int, saved: float) -> tuple[ArmSaving, ...]:
        """What changing from arm `i` to each other one would do."""
        risks = self.uncovered(none, saved, i)
        return tuple(self._option(i, b, none, risks) for b in range(len(self.laws)) if b != i)

    def uncovered(self, none: int, saved: float, i: int) -> FloatArray:
        """What a surprise would cost on each arm more than on none, as far as no account covers it; shape (A,)."""
        stakes, safe = self.stakes, self.carries[none]
        most_rps = stakes.carried * float(safe.mean())
        young = self.ahead.known_s < stakes.young_s
        rps = most_rps if young else min(stakes.jump * self.ahead.largest_rps, most_rps)
        jump = Jump(rps, self.ahead.mean_rps, stakes.roll_s, stakes.away_share)
        on_none = float(jump.waited(safe, safe).mean())
        account = stakes.risk * (ACCOUNT_S * float(self.usual[none].mean()) + on_none) + saved
        costs = [float(jump.waited(carried, safe).mean()) - on_none for carried in self.carries]
        # Whoever is there already has paid for the roll: a cost at the edge of the account does not drive it out.
        return np.array([max(cost - account * (1.5 if b == i else 1.0), 0.0) for b, cost in enumerate(costs)])

    def _option(self, i: int, b: int, none: int, risks: FloatArray) -> ArmSaving:
        stakes = self.stakes
        roll = self._roll_cost(i, b)
        saving = self._saving(i, b)
        drawn = saving - roll + risks[i] - risks[b]
        least = stakes.margin * float(self.expected[b].mean()) * stakes.horizon_s
        net = float(drawn.mean()) - (least if risks[i] == 0.0 else 0.0)
        doubt = 0.0 if b == none else stakes.doubt * float(drawn.std())
        shares = 1.0 - self.taken[b] / np.maximum(self.taken[i], _LEAST)
        return ArmSaving(
            self.laws[b].prior.arm,
            float(shares.mean()),
            float(shares.std()),
            float(saving.mean()),
            float((self.now[i] - self.now[b]).mean()),
            least,
            net,
            net - doubt,
            float(roll.mean()),
            float(risks[b]),
            float(self.carries[b].mean()),
        )

    def _roll_cost(self, i: int, b: int) -> FloatArray:
        """Request-seconds: what starts up serves nothing, and more wait on what is left, in the end in a queue.

        Half of the roll is spent on the old arm, half on the new one, all of it with replicas away.
        """
        stakes, left, rps = self.stakes, 1.0 - self.stakes.away_share, self.live.rps
        more = np.maximum((self.fewer[i] + self.fewer[b]) / 2.0 * left - self.now[i], 0.0)
        carried = left * (self.carries[i] + self.carries[b]) / 2.0
        queue = FluidQueue.empty(carried).grow(rps - carried, stakes.roll_s)
        return np.asarray(
            stakes.start_up_s * self.now[i] + more * stakes.roll_s + queue.drained(self.carries[b], rps)
        )

    def _saving(self, i: int, b: int) -> FloatArray:
        """Request-seconds: over the horizon, and for the rest of a day what all loads seen bear out of it.

        By the horizon alone a roll that pays within half a day is never made, however long the load has been constant.
        """
        soon, usually = (held[i] - held[b] for held in (self.expected, self.usual))
        lasting = np.sign(soon) * np.minimum(np.abs(soon), np.maximum(np.sign(soon) * usually, 0.0))
        horizon_s = self.stakes.horizon_s
        return np.asarray(soon * horizon_s + lasting * max(_DAY_S - horizon_s, 0.0))


def _arrays(loads: Sequence[ExpectedLoad]) -> tuple[FloatArray, FloatArray]:
    shares, rates = zip(*loads, strict=True)
    return np.asarray(shares, dtype=float), np.asarray(rates, dtype=float)
