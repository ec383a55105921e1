"""A trace replayed against policies: the computation of `breakeven simulate`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from breakeven.arm import NO_SPECULATION, SCHEDULE, Arm
from breakeven.errors import InputError
from breakeven.fitting import with_schedule
from breakeven.planning.objective import Follow, Policy
from breakeven.profile import Profile
from breakeven_sim.engine.requests import Request
from breakeven_sim.replay.controllers import (
    Controller,
    Decider,
    Deciding,
    Nobody,
    Planned,
    SeenRates,
    decide_after,
    follow,
)
from breakeven_sim.replay.fleet import Fleet, waves
from breakeven_sim.replay.fleet_arms import CostArms, LawArms
from breakeven_sim.replay.hindsight import Greedy, best_plan, free_windows
from breakeven_sim.replay.measured import measured_points, measured_profile
from breakeven_sim.replay.outcome import PolicyOutcome, of_requests, of_windows
from breakeven_sim.replay.stepping import PiecewiseLaw, ReplayedWindow, SteppedFleet, step_through
from breakeven_sim.replay.traces import RateTrace, RequestTrace

POLICIES = (
    "breakeven", "changes", "none", "schedule", "static:METHOD:K", "static:METHOD:schedule", "oracle", "oracle-free"
)  # fmt: skip
DECIDED = {"breakeven": Follow.LOAD, "changes": Follow.CHANGES}
"""Policies of the decision code, by what the arm follows."""
_Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
HINDSIGHT_WINDOW_S = 60.0
_MOST_CHOICES = 10_000
STEPPED_DECISION_S = 150.0
LOOKBACK_S = 259200.0
_COMPARED_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class ScheduleOf:
    """The schedule of a drafter, before its longest draft length is known.

    Attributes:
        family: method or candidate; empty: of the candidate that is fastest when alone.
    """

    family: str = ""


def parse_policy(name: str) -> Arm | ScheduleOf | None:
    """The arm or schedule of a static policy, `None` for the others.

    Raises:
        InputError: no such policy.
    """
    match name.split(":"):
        case ["static", method, length] if length.isdigit() and length.isascii():
            try:
                return Arm(method, int(length))
            except ValueError as problem:
                raise InputError(f"--policy {name}", str(problem), "static:METHOD:K") from None
        case ["static", family, word] if word == SCHEDULE and family:
            return ScheduleOf(family)
        case [word, family] if word == SCHEDULE and family:
            return ScheduleOf(family)
        case [word] if word == SCHEDULE:
            return ScheduleOf()
        case ["none"]:
            return NO_SPECULATION
        case ["breakeven" | "changes" | "oracle" | "oracle-free"]:
            return None
    raise InputError(f"--policy {name}", "unknown", f"one of {', '.join(POLICIES)}")


@dataclass(slots=True)
class Study:
    """One fleet, one trace, any number of policies; every policy meets the same requests and texts.

    Attributes:
        arms: how an arm runs.
        profile: the basis of decisions; with `LawArms` the fleet follows the laws of their profile, which may differ. A
            schedule among the candidates that it lacks is measured on the simulated engine and joins it.
        trace: requests or rates of the whole fleet.
        candidates: arms that may run, besides no speculation; schedules join them.
        scheduled: drafters (methods or candidates) whose schedules may run.
        compared: policies that are compared; hindsight may do what any of them did, and run their schedules like any arm.
        replicas: of the fleet.
        policy: of the decision code; its `roll_seconds` is a replica's start-up time, its `slo` the objectives.
        zero_drafts_overhead: of a schedule that drafts nothing, if the fleet follows laws.
        seed: of the load balancer and of simulated sweeps.
        progress: is called with the number of requests or windows done.
        every_s: between two decisions on the event clock (s).
        window_s: that a decision looks back on (s).
        lookback_s: a decision knows the loads of this time before it (s); 0: the present load is expected to last.
        stepped_s: longest time between two decisions where the trace has rates (s).
        reasons: how often the decision code gave each reason, following what `policy` says.
        left_out: requests that no engine of these arms could hold; they are not replayed.
    """

    arms: CostArms | LawArms
    profile: Profile
    trace: RequestTrace | RateTrace
    candidates: Sequence[Arm]
    replicas: int
    policy: Policy
    zero_drafts_overhead: float = 0.066
    seed: int = 0
    progress: Callable[[int], None] = lambda _: None
    every_s: float = 60.0
    window_s: float = 300.0
    lookback_s: float = LOOKBACK_S
    stepped_s: float = STEPPED_DECISION_S
    compared: Sequence[str] = ()
    scheduled: Sequence[str] = ()
    reasons: dict[str, int] = field(default_factory=dict)
    left_out: int = field(init=False, default=0)
    _outcomes: dict[str, PolicyOutcome] = field(default_factory=dict)
    _laws: dict[Arm, PiecewiseLaw] = field(default_factory=dict)
    _schedules: dict[str, Arm] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.trace, RateTrace):
            # Within a long window the decision code looks more than once.
            self.trace = self.trace.finer(self.stepped_s)
        families = [*(arm.family for arm in self.candidates if arm.scheduled), *self.scheduled]
        static = [arm for arm in self.candidates if not arm.scheduled]
        self.candidates = list(dict.fromkeys([*static, *map(self._schedule, families)]))
        if isinstance(self.trace, RequestTrace):
            self.trace = self._held_by_every_pool(self.trace)
        for arm in self.candidates:
            if arm.scheduled and not self._knows(self.profile, arm):
                self.profile = self._with_schedule(self._calibrated(arm), self.profile, arm)

    def _held_by_every_pool(self, trace: RequestTrace) -> RequestTrace:
        pool = min(self.arms.config(arm).kv_pool_tokens for arm in (NO_SPECULATION, *self.candidates))
        short = trace.prompt_tokens + trace.output_tokens <= pool
        self.left_out = int((~short).sum())
        if self.left_out == len(trace):
            raise InputError(
                "trace", f"every request is longer than the KV pool ({pool} tokens)", "shorter requests"
            )
        return trace.only(short) if self.left_out else trace

    def outcome(self, name: str) -> PolicyOutcome:
        """The outcome of a policy, computed once.

        Raises:
            InputError: no such policy, or an arm that neither costs nor profile know.
        """
        if name not in self._outcomes:
            self._outcomes[name] = replace(self._run(name), policy=name)
        return self._outcomes[name]

    def _run(self, name: str) -> PolicyOutcome:
        arm = parse_policy(name)
        if isinstance(arm, ScheduleOf):
            return self._replay(self._schedule(arm.family), [])
        if arm is not None:
            # A drafter may be named by its own name or by its method.
            same = (
                one
                for one in self.candidates
                if not one.scheduled and one.k == arm.k and arm.method in {one.family, one.method}
            )
            return self._replay(next(same, arm), [])
        if name in DECIDED:
            return self._decided(DECIDED[name])
        return self._free_oracle() if name == "oracle-free" else self._oracle()

    def _oracle(self) -> PolicyOutcome:
        """The best that hindsight finds if rolls cost: its own plan, or the run of a compared policy."""
        arms = [NO_SPECULATION, *self.candidates]
        # Hindsight can do everything that a policy without hindsight does.
        others = [
            name for name in self.compared if name in DECIDED or isinstance(parse_policy(name), ScheduleOf)
        ]
        tried = [self.outcome(name) for name in (*map(static_name, arms), *others)]
        plan = best_plan(self._known_load(), self._laws_of_any_arm(), self.replicas, self.policy.roll_seconds)
        if len(plan.changes) > 1:
            tried.append(self._replay(plan.changes[0][1], list(plan.changes[1:])))
        return min(tried, key=_rank)

    def _free_oracle(self) -> PolicyOutcome:
        """The best that hindsight finds if rolls are free; no policy that pays for them is better."""
        laws = self._laws_of_any_arm()
        if isinstance(self.trace, RequestTrace):
            # A replica's number in flight changes within the time of a request.
            every_s = max(min(law.c1_s for law in laws.values()), self.trace.duration_s / _MOST_CHOICES)
            alone = min(laws, key=lambda arm: laws[arm].c1_s)
            free = self._replay_requests(self.trace, alone, Greedy(laws, every_s), 0.0)
        else:
            windows, changes = free_windows(self.trace, laws, self.replicas)
            free = of_windows("", windows, changes, self.policy.slo, self.trace.rate_rps, self.trace.length_s)
        return min(free, self.outcome("oracle"), key=_rank)

    def _known_load(self) -> RateTrace:
        """The load as rates, in as many windows as a plan takes a few seconds for."""
        if isinstance(self.trace, RateTrace):
            return self.trace
        return self.trace.rates(max(HINDSIGHT_WINDOW_S, self.trace.duration_s / _MOST_CHOICES))

    def _laws_of_any_arm(self) -> dict[Arm, PiecewiseLaw]:
        """Laws of every arm that hindsight may run."""
        wanted = [parse_policy(name) for name in self.compared]
        scheduled = [self._schedule(one.family) for one in wanted if isinstance(one, ScheduleOf)]
        return {arm: self.law(arm) for arm in (NO_SPECULATION, *self.candidates, *scheduled)}

    def _decided(self, follows: Follow) -> PolicyOutcome:
        # The decision must reckon with the replicas that a roll of this fleet takes away at a time.
        policy = replace(
            self.policy,
            roll_away_share=1.0 / waves(self.replicas) if self.replicas > 1 else 0.0,
            lookback_s=self.lookback_s,
            follow=follows,
        )
        past = SeenRates(self.lookback_s)
        decider = Decider(self.profile, policy, self.candidates, past)
        if isinstance(self.trace, RequestTrace):
            controller = Deciding(decider, self.trace, past, self.every_s, self.window_s)
            outcome = self._replay_requests(self.trace, NO_SPECULATION, controller, self.policy.roll_seconds)
        else:
            trace = self.trace
            outcome = self._replay_rates(
                trace,
                NO_SPECULATION,
                self.policy.roll_seconds,
                lambda fleet, window, _: decide_after(decider, past, fleet, window, trace),
            )
        if follows is self.policy.follow:
            self.reasons = decider.reasons
        return outcome

    def _replay(
        self, arm: Arm, changes: list[tuple[float, Arm]], roll_s: float | None = None
    ) -> PolicyOutcome:
        pause_s = self.policy.roll_seconds if roll_s is None else roll_s
        if isinstance(self.trace, RequestTrace):
            controller: Controller = Planned(changes) if changes else Nobody()
            return self._replay_requests(self.trace, arm, controller, pause_s)
        left = list(changes)
        return self._replay_rates(
            self.trace, arm, pause_s, lambda fleet, _, end_s: follow(left, fleet, end_s)
        )

    def _replay_requests(
        self, trace: RequestTrace, arm: Arm, controller: Controller, roll_s: float
    ) -> PolicyOutcome:
        fleet = Fleet(self.arms, arm, self.replicas, roll_s, self.seed)
        rows = zip(
            trace.arrival_s.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True
        )
        for number, (arrival_s, prompt, output) in enumerate(rows):
            while controller.next_s <= arrival_s:
                controller.act(fleet)
            fleet.offer(Request(number, arrival_s, prompt, output))
            if number % 1000 == 0:
                self.progress(number)
        fleet.to(math.inf)
        return of_requests(
            "",
            fleet.finished,
            fleet.switches,
            self.policy.slo,
            trace.rates(_COMPARED_WINDOW_S),
            engine=isinstance(self.arms, CostArms),
        )

    def _replay_rates(
        self,
        trace: RateTrace,
        arm: Arm,
        roll_s: float,
        act: Callable[[SteppedFleet, ReplayedWindow, float], None],
    ) -> PolicyOutcome:
        fleet = SteppedFleet(self.law, arm, self.replicas, roll_s)
        windows = step_through(fleet, trace, lambda window, end_s: act(fleet, window, end_s))
        return of_windows("", windows, fleet.switches, self.policy.slo, trace.rate_rps, trace.length_s)

    # Laws and schedules -----------------------------------------------------------------------------------

    def law(self, arm: Arm) -> PiecewiseLaw:
        """An arm's law for stepping; a schedule is measured on the simulated engine first.

        Raises:
            BreakevenError: the profile holds no law for the arm.
        """
        if arm not in self._laws:
            self._laws[arm] = self._law(arm)
        return self._laws[arm]

    def _law(self, arm: Arm) -> PiecewiseLaw:
        # The fleet follows its own laws, whatever the decision believes.
        profile = self.arms.profile if isinstance(self.arms, LawArms) else self.profile
        if arm.scheduled:
            return self._law_of_schedule(profile, arm)
        if isinstance(self.arms, CostArms) and not profile.measured(arm):
            profile = measured_profile(self.arms, [arm], *self._lengths(), self.seed, profile.confidence)
        if isinstance(self.arms, LawArms):
            c1_s, c2_s = self.arms.law(arm)
        else:
            c1_s, c2_s = self._measured(profile, arm)
        # The tail moves with the mean under other acceptance; an arm that was not measured has none.
        tail = profile.arm(arm).quantiles.get("0.95") if profile.measured(arm) else None
        if tail is None:
            return PiecewiseLaw(c1_s, c2_s)
        own_c1_s, own_c2_s = self._measured(profile, arm)
        # A coefficient at its bound moves by no factor.
        return PiecewiseLaw(
            c1_s,
            c2_s,
            (),
            tail.c1_s * (c1_s / own_c1_s if own_c1_s > 0.0 else 1.0),
            tail.c2_s * (c2_s / own_c2_s if own_c2_s > 0.0 else 1.0),
        )

    def _law_of_schedule(self, profile: Profile, arm: Arm) -> PiecewiseLaw:
        """A schedule's curve."""
        known = self._knows(profile, arm)
        if not known:
            profile = self._with_schedule(self.arms, profile, arm)
        curve, tail = profile.curve(arm), profile.arm(arm).quantiles.get("0.95")
        c2_s = 1.0 / curve.saturation_rps
        if isinstance(self.arms, LawArms) and not known:
            _, c2_s = self.arms.last_tier(arm)
        knots = tuple((float(n), float(t)) for n, t in curve.open_ends[:-1])
        p95 = (None, None) if tail is None else (tail.c1_s, tail.c2_s)
        return PiecewiseLaw(knots[0][1], c2_s, knots, *p95)

    def _knows(self, profile: Profile, arm: Arm) -> bool:
        """Whether the profile holds the very schedule that the fleet runs, at its acceptance."""
        if isinstance(self.arms, LawArms) and self.arms.tokens_per_step:
            return False
        return profile.measured(arm) and profile.arm(arm).schedule == str(self.arms.schedules[arm])

    def _calibrated(self, schedule: Arm) -> CostArms | LawArms:
        """The engine on which a calibration measures a schedule: the simulated one, or one that follows the believed laws."""
        if isinstance(self.arms, CostArms):
            return self.arms
        engine = LawArms(self.profile, self.arms.tokens)
        engine.add_schedule(schedule, self.arms.schedules[schedule], self.zero_drafts_overhead)
        return engine

    def _with_schedule(self, engine: CostArms | LawArms, profile: Profile, arm: Arm) -> Profile:
        """The profile with a schedule that was measured on an engine, and with its last tier."""
        lengths = self._lengths()
        last = self.arms.schedules[arm].last
        tier = replace(arm, k=last, scheduled=False) if last else NO_SPECULATION
        if isinstance(engine, CostArms) and not profile.measured(tier):
            more = measured_profile(engine, [tier], *lengths, self.seed, profile.confidence)
            profile = replace(profile, arms=(*profile.arms, *more.arms))
        return with_schedule(profile, measured_points(engine, [arm], *lengths, self.seed))

    @staticmethod
    def _measured(profile: Profile, arm: Arm) -> tuple[float, float]:
        fit = profile.arm(arm)
        if fit.c1_s is None or fit.c2_s is None:
            raise InputError("profile", f"no usable point of {arm.name}", "at least one")
        return fit.c1_s, fit.c2_s

    def _lengths(self) -> tuple[_Ints, _Ints]:
        """Lengths to measure a schedule with: the trace's own, else those that the laws belong to."""
        if isinstance(self.trace, RequestTrace):
            return self.trace.prompt_tokens, self.trace.output_tokens
        profile = self.arms.profile if isinstance(self.arms, LawArms) else self.profile
        lengths = profile.arm(NO_SPECULATION).lengths
        prompt, output = (
            max(1, round(mean or 256)) for mean in (lengths.prompt_tokens, lengths.output_tokens)
        )
        return np.array([prompt]), np.array([output])

    def _schedule(self, family: str) -> Arm:
        """The arm that stands for the schedule of a drafter; without a name of the candidate that is fastest when alone."""
        static = [arm for arm in self.candidates if not arm.scheduled]
        if not family:
            if not static:
                raise InputError("--policy schedule", "no candidate to schedule", "a speculative arm")
            family = min(static, key=lambda arm: self.law(arm).c1_s).family
        known = [*static, *(fit.arm for fit in self.profile.arms if fit.k)]
        # A drafter may be named by its own name or by its method.
        family = next((one.family for one in known if family in {one.family, one.method}), family)
        if family not in self._schedules:
            if isinstance(self.arms, LawArms):
                # Chosen by the believed laws, run by the true ones.
                believed = LawArms(self.profile, self.arms.tokens, self.arms.tokens_per_step)
                arm, table = believed.schedule_of(family, self.zero_drafts_overhead)
                self.arms.add_schedule(arm, table, self.zero_drafts_overhead)
            else:
                lengths = [one.k for one in static if one.family == family] or [3]
                prompts, outputs = self._lengths()
                context = float(prompts.mean() + (outputs.astype(float) ** 2).mean() / (2 * outputs.mean()))
                arm = self.arms.add_schedule(family, range(1, max(lengths) + 1), context)
            self._schedules[family] = arm
        return self._schedules[family]


def _rank(outcome: PolicyOutcome) -> tuple[float, int]:
    """Faster first; of equally fast ones, fewer rolls first."""
    return outcome.mean_latency_s or math.inf, outcome.switches


def static_name(arm: Arm) -> str:
    """The policy that runs one arm throughout."""
    length = SCHEDULE if arm.scheduled else arm.k
    return "none" if arm == NO_SPECULATION else f"static:{arm.family}:{length}"
