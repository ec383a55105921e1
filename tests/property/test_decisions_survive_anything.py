"""Loads of any figures that a page may show give a decision, a sentence with numbers and a memory that can be kept."""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.deciding import Decision, DecisionMemory, Decisions, Load, PastRates, Policy, Slo, sentence
from breakeven.fitting import fit_points
from breakeven.profile import Profile
from draws import draws
from sweeps import closed, wild_sweep

WINDOWS = 6


@cache
def profiles() -> tuple[Profile, ...]:
    """A profile of three arms, and wild ones whose coefficients are hardly known."""
    figures = {"noise": 0.02, "output_tokens": 200.0, "prompt_tokens": 100.0, "ttft_mean_s": 0.05}
    tame = [
        *closed("none", 0, 1.2, 0.07, **figures),
        *closed("eagle3", 3, 0.8, 0.085, tokens_per_step=2.5, **figures),
        *closed("eagle3", 1, 0.95, 0.075, tokens_per_step=1.7, **figures),
    ]
    wild = [fit_points(wild_sweep(np.random.default_rng(seed))) for seed in (11, 15, 19, 21, 22)]
    return fit_points(tame), *(one for one in wild if one.steps is not None and len(one.arms) > 1)


class Wild:
    """Draws of one generator."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.reach = float(self.rng.choice([3.0, 7.0]))

    def size(self, low: float, high: float) -> float:
        return float(10.0 ** self.rng.uniform(low, high))

    def of(self, *values: float) -> float:
        return float(self.rng.choice(values))

    def wide(self, usual: float) -> float:
        return self.of(0.0, self.size(-1.5 * self.reach, self.reach), usual)

    def maybe(self, draw: Callable[[], float]) -> float | None:
        return draw() if self.rng.random() < 0.7 else None

    def policy(self) -> Policy:
        limits = {name: self.size(-6.0, 4.0) for name in ("e2e_s", "ttft_s", "tpot_s") if self.of(0, 1, 0)}
        return Policy(
            min_gain=self.of(0.0, 0.03, 1.0),
            day_risk=self.of(0.0, 0.05, 1.0),
            cooldown_s=self.of(0.0, 600.0, 1e7),
            dwell_s=self.of(0.0, 300.0),
            slo=Slo(**limits),
            roll_seconds=self.of(0.0, 300.0, 1e6),
            roll_away_share=self.of(0.0, 0.5, 1.0),
            horizon_s=self.of(60.0, 14_400.0, 1e6),
            lookback_s=self.of(0.0, 86_400.0, 1e6),
        )

    def load(self) -> Load:
        accepted = np.cumprod(self.rng.uniform(0.0, 1.0, self.rng.integers(1, 6))).tolist()
        return Load(
            self.wide(self.size(-1.0, 1.5)),
            self.of(0.0, 60.0, 300.0, 1e5),
            self.of(0.0, 1.0, 100.0, 1e9),
            inflight=self.maybe(lambda: self.wide(3.0)),
            latency_s=self.maybe(lambda: self.wide(1.0)),
            tokens_per_step=self.maybe(lambda: self.of(1.0, 2.2, self.size(-3.0, 3.0))),
            prompt_tokens=self.maybe(lambda: self.of(0.0, 100.0, self.size(0.0, 8.0))),
            output_tokens=self.maybe(lambda: self.of(0.0, 1.0, 200.0, self.size(0.0, 8.0))),
            saturated=bool(self.of(0, 0, 1)),
            ttft_s=self.maybe(lambda: self.size(-9.0, 3.0)),
            tpot_s=self.maybe(lambda: self.size(-9.0, 3.0)),
            survival=tuple(accepted) if self.of(0, 1) else (),
            settled=bool(self.of(0, 1, 1)),
            strain=(self.size(-3.0, 3.0), self.maybe(lambda: self.size(0.0, 4.0)))
            if self.of(0, 0, 1)
            else None,
            dispersion=self.maybe(lambda: self.size(-3.0, 4.0)),
        )

    def past(self, load: Load, now_s: float) -> PastRates:
        count = int(self.of(1, 3, 50, 900))
        rates = np.abs(self.rng.normal(1.0, 1.0, count)) * load.rps * self.of(0.0, 1.0, 1e3)
        return PastRates((now_s - 300.0 * np.arange(count, 0, -1)).tolist(), rates.tolist())


def survives(seed: int) -> None:
    wild = Wild(seed)
    profile = profiles()[int(wild.rng.integers(len(profiles())))]
    arms = [fit.arm for fit in profile.arms]
    fleet = Decisions(profile, arms, wild.policy())
    memory, now_s = DecisionMemory(arms[int(wild.rng.integers(len(arms)))]), wild.of(0.0, 1.7e9)
    for _ in range(WINDOWS):
        now_s += wild.of(0.0, 15.0, 300.0, 1800.0, 1e6, -1e5)
        load = wild.load()
        decision = fleet.at(load, memory, now_s, wild.past(load, now_s) if wild.of(0, 1) else None)
        looked_at(decision)
        memory = decision.memory


def looked_at(decision: Decision) -> None:
    """All that a status shows of a decision."""
    assert "nan" not in sentence(decision)
    memory = decision.memory
    assert all(one.possible for one in memory.evidence.values())
    kept = [number for one in memory.evidence.values() for number in (*one.precision, *one.pull)]
    assert all(map(math.isfinite, (memory.saved, memory.queued, memory.queued_without, *kept)))
    for one in decision.evaluations.arms:
        assert isinstance(one.missed, tuple)
        assert one.capacity_rps is None or one.capacity_rps >= 0.0
        for against in (one.against_none, one.against_running):
            assert against is None or against.speedup is None or against.speedup >= 0.0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@draws(100)
@given(st.integers(0, 1 << 32))
def test_a_decision_about_anything_is_a_word_and_numbers(seed):
    survives(seed)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", [1021, 1666])
def test_what_once_broke_a_decision(seed):
    """A strain that is infinite, or unknown, at some number in flight gives no position between two others."""
    survives(seed)
