"""How often each word about a roll is right, on fleets whose truth is known.

Both arms run for hours on the event-clock engine, at several loads each; a pod of a fleet is a stretch cut out of its
arm's run. The new arm's latencies come from a run on a faster clock. Its speed is such that the ratio of the long
means is the true speedup at every load. On top come a factor per pod, a factor per pod and block, and one per block
that all pods of both arms share and that lasts (the hour, the texts); each scatters by the noise. Rates drift by a
fifth, and the pods of one arm get up to a fifth more than those of the other.

A roll replaces a quarter of the pods at a time, two blocks each. It is looked at after every block, as the operator does,
by the operator's own rule (`roll_evidence.outcome`). The promise is right, or half as large again.

    PYTHONPATH=tests .venv/bin/python tests/bench/bench_roll_experiments.py [--judge]

`--judge` uses the seeds that nothing was chosen on.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from breakeven.estimate import Estimate
from breakeven.laws.arrays import FloatArray
from breakeven.planning.arm_blocks import ArmBlocks, LatencyAt
from breakeven.planning.roll_experiment import experiment
from breakeven_operator.reconcile.roll_evidence import Outcome, outcome
from breakeven_operator.resources.rolloutstatus import HistoryResult
from breakeven_sim.engine.configuration import DraftLengths, engine_config
from breakeven_sim.engine.core import Engine
from breakeven_sim.engine.costs import load_costs
from breakeven_sim.engine.drafting import TextSource
from breakeven_sim.engine.requests import Request

COSTS = Path(__file__).parents[2] / "examples" / "engine-costs" / "demo.json"
PROMPT, OUTPUT = 64, 32
RATES = (1.6, 2.0, 2.4, 4.8, 5.8, 7.0)
HOURS, GRID_S, BLOCK_S = 1.5, 5.0, 60.0
BEFORE, AFTER = 15, 31
BLOCKS_PER_WINDOW = 5
REPLICAS, NOISES = (2, 8, 40), (0.01, 0.03, 0.10)
TRUTHS = (0.8, 0.9, 1.0, 1.1, 1.3, 1.5)
TOO_HIGH = 1.5
PROMISES = ("right", "too high")
WORDS = ("Confirmed", "NotWorse", "Unproven", "Disproved", "Unmeasured")
ROLLS = 60
CHOSEN_ON, JUDGED_ON = 0, 40_000


@dataclass(frozen=True)
class Run:
    """One arm at one rate for hours: what had been counted by each time of a grid.

    Attributes:
        waited_s, begun, stepped_s, tokens: as `ArmBlocks` has them, shape (times,). mean_s: latency of all requests.
    """

    waited_s: FloatArray
    begun: FloatArray
    stepped_s: FloatArray
    tokens: FloatArray
    mean_s: float


def run_of(k: int, rps: float, seed: int) -> Run:
    """Poisson arrivals at an engine."""
    costs = load_costs(str(COSTS))
    method = "eagle3" if k else None
    engine = Engine(engine_config(costs, method, DraftLengths(k), kv_pool_tokens=10**6))
    texts = TextSource(costs.method("eagle3").text, seed) if k else None
    rng = np.random.default_rng(seed)
    seconds = HOURS * 3600
    arrived = np.cumsum(rng.exponential(1 / rps, int(1.1 * rps * seconds)))
    arrived = arrived[arrived < seconds]
    lengths = np.maximum(rng.exponential(OUTPUT, arrived.size).astype(int), 1)
    ended = []
    for number, (at_s, output) in enumerate(zip(arrived.tolist(), lengths.tolist(), strict=True)):
        ended += engine.advance(at_s)
        text = texts.draw(number, output) if texts else None
        engine.submit(Request(number, at_s, PROMPT, output, text))
    ended += engine.advance(math.inf)
    came = np.array([one.arrival_s for one in ended])
    went = np.array([one.finished_s for one in ended])
    first = np.array([one.first_token_s for one in ended])
    after = np.array([one.generated - 1.0 for one in ended])
    grid = np.arange(0.0, seconds, GRID_S)
    ones = np.ones_like(first)
    # Tokens come evenly between the first one and the last.
    per_s = after / np.maximum(went - first, 1e-9)
    decoded = after > 0.0
    waited, begun = (_counted(grid, first, each) for each in (first - came, ones))
    stepped, tokens = (_grown(grid, first[decoded], went[decoded], each[decoded]) for each in (ones, per_s))
    return Run(waited, begun, stepped, tokens, float((went - came).mean()))


def _counted(grid: FloatArray, at_s: FloatArray, each: FloatArray) -> FloatArray:
    """Counts by each time of the grid."""
    order = np.argsort(at_s)
    return np.concatenate([[0.0], np.cumsum(each[order])])[np.searchsorted(at_s[order], grid, side="right")]


def _grown(grid: FloatArray, begin_s: FloatArray, end_s: FloatArray, per_s: FloatArray) -> FloatArray:
    """Growth by each time of the grid, of things that each grow from a time to another."""
    begun, ended = (
        grid * _counted(grid, at_s, per_s) - _counted(grid, at_s, per_s * at_s) for at_s in (begin_s, end_s)
    )
    return begun - ended


def law_of(runs: dict[float, Run]) -> LatencyAt:
    """C1/(1 - C2*rate) through the means, as a calibration would fit it."""
    rates, means = np.array(list(runs)), np.array([run.mean_s for run in runs.values()])
    slope, level = np.polyfit(rates, 1.0 / means, 1)

    def at(rps: FloatArray) -> FloatArray:
        inverse = level + slope * np.asarray(rps, dtype=float)
        return np.where(inverse > 0.0, 1.0 / np.where(inverse > 0.0, inverse, 1.0), np.nan)

    return at


class Fleet:
    """One roll of one fleet, block by block."""

    def __init__(self, runs: dict[int, dict[float, Run]], replicas: int, noise: float, seed: int) -> None:
        self.rng = np.random.default_rng([seed, replicas, round(1000 * noise)])
        self.noise, self.replicas = noise, replicas
        batch = max(1, replicas // 4)
        self.rolled = finished_after(replicas)
        batches = (self.rolled - BEFORE) // 2
        self.blocks = self.rolled + AFTER
        # Two groups of three rates; the load turns to another of its group, and a balancer may prefer the new arm or the old.
        group = int(self.rng.integers(2)) * 3
        level, turned = (int(one) for one in self.rng.integers(3, size=2))
        late = np.arange(self.blocks) >= self.rng.integers(BEFORE, self.rolled + 1)
        places = np.where(late, turned, level)
        preferred = int(self.rng.choice([-1, 0, 0, 1]))
        rates = [[RATES[group + min(max(one + shift, 0), 2)] for one in places] for shift in (0, preferred)]
        shared = self._lasting(self.blocks)
        first = np.repeat(BEFORE + 2 * np.arange(batches), batch)[:replicas]
        here = np.arange(self.blocks)
        same = dict.fromkeys(RATES, 1.0)
        level_of = {rate: runs[0][rate].mean_s / runs[3][rate].mean_s for rate in RATES}
        self.old = self._arm(runs[0], same, here < first[:, None], rates[0], shared)
        self.new = self._arm(runs[3], level_of, here >= first[:, None], rates[1], shared)

    def _lasting(self, count: int) -> FloatArray:
        """Correlated factors: a block keeps half of the one before it."""
        found = np.empty(count)
        found[0] = self.rng.standard_normal()
        for index in range(1, count):
            found[index] = 0.5 * found[index - 1] + math.sqrt(0.75) * self.rng.standard_normal()
        return found

    def _arm(
        self,
        runs: dict[float, Run],
        level_of: dict[float, float],
        present: NDArray[np.bool_],
        rates: list[float],
        shared: FloatArray,
    ) -> ArmBlocks:
        """Stretches of an arm's runs, one per pod, with the noise of pods and blocks."""
        shape = present.shape
        slowed = np.exp(
            self.noise * (self.rng.standard_normal((shape[0], 1)) + self.rng.standard_normal(shape) + shared)
        )
        step = int(BLOCK_S / GRID_S)
        offsets = self.rng.integers(0, int(HOURS * 3600 / GRID_S) - 1 - self.blocks * step, shape[0])
        parts = np.full((8, *shape), np.nan)
        for column, rate in enumerate(rates):
            run, begin = runs[rate], offsets + column * step
            end = begin + step
            factor = slowed[:, column] * level_of[rate]
            begun, none = run.begun[end] - run.begun[begin], np.zeros(shape[0])
            parts[:, :, column] = (
                (run.waited_s[end] - run.waited_s[begin]) * factor,
                begun,
                (run.stepped_s[end] - run.stepped_s[begin]) * factor,
                run.tokens[end] - run.tokens[begin],
                np.full(shape[0], BLOCK_S),
                none,
                PROMPT * begun,
                none,
            )
        parts[:, ~present] = np.nan
        return ArmBlocks(*parts)

    def judged(self, law: LatencyAt) -> dict[tuple[float, str], tuple[Outcome, int]]:
        """The word and the block after which it was said, by true speedup and kind of promise.

        An arm that is faster by a factor in all of its blocks is measured to be so by exactly that factor: one
        comparison of equal arms serves all truths.
        """
        ends: dict[tuple[float, str], tuple[Outcome, int]] = {}
        wanted = list(itertools.product(TRUTHS, zip(PROMISES, (1.0, TOO_HIGH), strict=True)))
        for seen in range(BEFORE + 2, self.blocks + 1):
            found = experiment(self._until(self.old, seen), self._until(self.new, seen), law, law).found
            windows = (seen - self.rolled) / BLOCKS_PER_WINDOW if seen >= self.rolled else -1.0
            for truth, (kind, factor) in wanted:
                if found is None or (truth, kind) in ends:
                    continue
                promised = truth * factor
                promise = Estimate(promised, 0.95 * promised, 1.05 * promised)
                word = outcome(replace(found, log=found.log + math.log(truth)), promise, windows)
                if word is not None:
                    ends[truth, kind] = (word, seen)
            if len(ends) == len(wanted):
                break
        return ends

    @staticmethod
    def _until(arm: ArmBlocks, seen: int) -> ArmBlocks:
        return ArmBlocks(*(getattr(arm, part.name)[:, :seen] for part in fields(ArmBlocks)))


def measured(rolls: int, first_seed: int) -> dict[tuple[int, float, float, str], list[tuple[Outcome, float]]]:
    """Words, and minutes since the roll began, by replicas, noise, truth and promise."""
    runs = {k: {rps: run_of(k, rps, 17 * k + place) for place, rps in enumerate(RATES)} for k in (0, 3)}
    law = law_of(runs[0])
    found = defaultdict(list)
    for replicas, noise, number in itertools.product(REPLICAS, NOISES, range(rolls)):
        fleet = Fleet(runs, replicas, noise, first_seed + number)
        for (truth, promise), (word, seen) in fleet.judged(law).items():
            minutes = (seen - BEFORE) * BLOCK_S / 60
            found[replicas, noise, truth, promise].append((word, minutes))
    return found


def share(words: list[Outcome], result: str) -> float:
    """Percent of the words."""
    return 100 * sum(str(one.result) == result for one in words) / max(len(words), 1)


def main() -> int:
    """Print the table and the goals."""
    judge = "--judge" in sys.argv
    began = time.process_time()
    found = measured(ROLLS, JUDGED_ON if judge else CHOSEN_ON)
    say = sys.stdout.write
    say(f"{ROLLS} rolls a row; {', '.join(WORDS)} in percent. Promise right / half as large again.\n\n")
    say("| replicas | noise | true speedup | " + " | ".join(WORDS) + " | median minutes to disprove |\n")
    say("|" + "---|" * (4 + len(WORDS)) + "\n")
    for replicas, noise, truth in itertools.product(REPLICAS, NOISES, TRUTHS):
        rows = {kind: found[replicas, noise, truth, kind] for kind in PROMISES}
        cells = [
            " / ".join(f"{share([one for one, _ in rows[kind]], word):.0f}" for kind in PROMISES)
            for word in WORDS
        ]
        took = [at for one, at in rows["too high"] if one.result is HistoryResult.DISPROVED]
        said = f"{np.median(took):.0f}" if took else "-"
        say(f"| {replicas} | {noise:.0%} | {truth} | " + " | ".join(cells) + f" | {said} |\n")
    return goals(found, time.process_time() - began)


def goals(found: dict[tuple[int, float, float, str], list[tuple[Outcome, float]]], took_s: float) -> int:
    """Print what was to be reached, and what was."""
    say = sys.stdout.write

    def words(truths: tuple[float, ...], kind: str) -> list[Outcome]:
        return [one for (_, _, truth, promise), ends in found.items() for one, _ in ends
                if truth in truths and promise == kind]  # fmt: skip

    def worst(truths: tuple[float, ...], kind: str, result: str) -> float:
        cells = [
            share([one for one, _ in ends], result)
            for (_, _, truth, promise), ends in found.items()
            if truth in truths and promise == kind
        ]
        return max(cells)

    say("\n| what | goal | all fleets | worst row |\n|---|---|---|---|\n")
    for what, goal, truths, kind, result in (
        ("wrong RollConfirmed (true 0.8 to 1.0), promise right", 5.0, (0.8, 0.9, 1.0), "right", "Confirmed"),
        ("wrong RollConfirmed (true 0.8 to 1.0), too high", 5.0, (0.8, 0.9, 1.0), "too high", "Confirmed"),
        ("RollDisproved of a true 1.1, promise right", 1.0, (1.1,), "right", "Disproved"),
        ("RollDisproved of a true 1.1, promise too high", 1.0, (1.1,), "too high", "Disproved"),
        ("RollDisproved of a true 1.0, promise too high", 5.0, (1.0,), "too high", "Disproved"),
    ):
        reached = share(words(truths, kind), result)
        say(f"| {what} | under {goal:g} % | {reached:.2f} % | {worst(truths, kind, result):.1f} % |\n")
    for replicas in REPLICAS:
        ends = [
            end for (many, _, truth, kind), all_ends in found.items()
            if many == replicas and truth == 0.8 and kind == "too high" for end in all_ends
        ]  # fmt: skip
        took = sorted(at for one, at in ends if one.result is HistoryResult.DISPROVED)
        roll = (finished_after(replicas) - BEFORE) * BLOCK_S / 60
        say(
            f"| a true 0.8 promised 1.2, {replicas} replicas: disproved | soon | {100 * len(took) / len(ends):.0f} % | median "
            f"{np.median(took):.0f} min, nine tenths within {took[int(0.9 * (len(took) - 1))]:.0f} min; the roll takes {roll:.0f} min |\n"
        )
    say(f"\n{took_s:.0f} s of CPU time.\n")
    return 0


def finished_after(replicas: int) -> int:
    """Blocks until all pods run the new arm: a quarter of them at a time, two blocks each."""
    batch = max(1, replicas // 4)
    return BEFORE + 2 * -(-replicas // batch)


if __name__ == "__main__":
    sys.exit(main())
