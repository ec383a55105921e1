"""A roll of `rolled_fleet`, read and judged by the operator's own code after every block."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, datetime

import numpy as np

from breakeven.estimate import Estimate
from breakeven.laws.arrays import FloatArray
from breakeven.planning.arm_blocks import ArmBlocks, LatencyAt
from breakeven.planning.roll_experiment import MeasuredSpeedup, experiment
from breakeven_operator.case import RollReading, SeriesOwner
from breakeven_operator.observing.roll_metrics import RolledPods, both_arms
from breakeven_operator.rolls.roll_evidence import RollFinding, outcome
from fakes.rolled_fleet import (
    BLOCK_S,
    Rolled,
    RolledShape,
    TruePaces,
    arms_of,
    mean_latency_s,
    rolled_fleet,
    work_s,
)

BLOCKS_PER_WINDOW = 5
# A gain in any case: an arm is disproved as soon as it is shown to lose.
PROMISE = Estimate(1.3, 1.0, 1.6)
OLD, NEW = "chat-7d9f8b6c5d", "chat-64bd5fcf9"


def law_of(shape: RolledShape, arms: TruePaces, alone_s: float) -> LatencyAt:
    """C1/(1 - C2*rate) through exact latencies at six loads, as a calibration would fit it."""
    rates = arms.rps * np.linspace(0.15, 1.15, 6)
    means = np.array([mean_latency_s(work_s(shape.engine, alone_s), rate) for rate in rates])
    slope, level = np.polyfit(rates, 1.0 / means, 1, w=means)

    def at(rps: FloatArray) -> FloatArray:
        inverse = level + slope * np.asarray(rps, dtype=float)
        return np.where(inverse > 0.1 * level, 1.0 / np.where(inverse > 0.0, inverse, 1.0), np.nan)

    return at


def pods_of(rolled: Rolled) -> dict[SeriesOwner, dict[str, FloatArray]]:
    """All pods' figures, as `read_roll` sorts them."""
    named = [(OLD, one) for one in rolled.old] + [(NEW, one) for one in rolled.new]
    return {
        SeriesOwner("llm", f"{replica_set}-{number:05}", "chat"): dict(one)
        for number, (replica_set, one) in enumerate(named)
    }


@dataclass(frozen=True)
class Ended:
    """A word, and minutes from the roll's begin to it."""

    word: RollFinding
    minutes: float


@dataclass(frozen=True)
class JudgedRoll:
    """One roll: the last word, if one was spoken, and what was measured by then."""

    ended: Ended | None
    found: MeasuredSpeedup | None


def until(arm: ArmBlocks, seen: int) -> ArmBlocks:
    """The first blocks alone."""
    return ArmBlocks(*(getattr(arm, part.name)[:, :seen] for part in fields(ArmBlocks)))


def judged(shape: RolledShape, speedup: float, seed: int, *, every: int = 1) -> JudgedRoll:
    """The last word about one roll, of looks after every so many blocks."""
    found = None
    rolled, arms = rolled_fleet(shape, speedup, seed), arms_of(shape, speedup)
    laws = [law_of(shape, arms, alone_s) for alone_s in (arms.old_s, arms.new_s)]
    started = datetime.fromtimestamp(rolled.began_s, UTC)
    target = RolledPods("llm", "chat", OLD, NEW, started)
    # A block is the same however much came after it.
    both = both_arms(RollReading(tuple(rolled.times_s.tolist()), pods_of(rolled)), target)
    for index in np.flatnonzero(rolled.times_s > rolled.began_s + 2.0 * BLOCK_S)[::every]:
        old, new = (until(one, int(index) + 1) for one in both)
        found = experiment(old, new, *laws).found
        windows = (rolled.times_s[index] - rolled.finished_s) / (BLOCKS_PER_WINDOW * BLOCK_S)
        word = None if found is None else outcome(found, PROMISE, windows if windows >= 0.0 else -1.0)
        if word is not None:
            return JudgedRoll(Ended(word, float(rolled.times_s[index] - rolled.began_s) / 60.0), found)
    return JudgedRoll(None, found)
