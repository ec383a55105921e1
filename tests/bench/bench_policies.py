"""Whether the decision is safe, and how near to hindsight: published and generated loads, right and wrong models.

Per set of worlds (`policy_worlds.py`) and rule: geometric mean and worst world of the speedup over no speculation, over
the best static arm and over hindsight that pays for rolls; rolls per day, mean and worst, and the most of any world. Under
each set stand its goals, with what the rule that is tried makes of them.
`PYTHONPATH=tests .venv/bin/python tests/bench/bench_policies.py --judge` takes the seeds that no rule was chosen on; look at
them once. `--only TEXT` takes the sets with such a title, `--every` prints a line per world.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from bench.generated_loads import CHOOSING, JUDGING, Kind
from bench.policy_worlds import (
    START_UP_S,
    World,
    azure_hour,
    constant,
    drafter_too_flat,
    drafters_faster,
    drawn,
    none_too_steep,
    profile_of,
    published,
)
from breakeven.planning.policy import Policy
from breakeven_sim.replay.study import Study

TRIED = "breakeven"
DECIDED = (TRIED,)


@dataclass(frozen=True, slots=True)
class Score:
    """A policy's result in a world; speedups above 1 are gains."""

    policy: str
    name: str
    vs_none: float
    vs_static: float
    vs_oracle: float
    rolls: int
    rolls_per_day: float


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure of `figures` that a set should reach: `first` must be (None: nothing must), `then` is wanted next."""

    figure: str
    first: float | None
    then: float

    def judged(self, value: float) -> str:
        """The figure, its goals and whether they are missed."""
        verdict = " MISSED" if self.missed(value) else "" if self._reached(value, self.then) else " (next)"
        first = "" if self.first is None else f"{self.first:g}, "
        return f"{self.figure} {value:.3f} of {first}{self.then:g}{verdict}"

    def missed(self, value: float) -> bool:
        """Whether the first goal is."""
        return self.first is not None and not self._reached(value, self.first)

    def _reached(self, value: float, goal: float) -> bool:
        return value <= goal if "rolls" in self.figure else value >= goal


SAFE = Goal("worst vs none", 0.95, 1.0)
RARE = (Goal("rolls per day", 1.0, 1.0), Goal("worst rolls per day", 3.0, 3.0))
GOALS: dict[str, tuple[Goal, ...]] = {
    "published, peaks 70 and 95 %": (
        SAFE,
        Goal("vs oracle", 0.91, 0.95),
        Goal("worst vs static", None, 0.98),
        *RARE,
    ),
    "published, the same with schedules": (
        SAFE,
        Goal("vs oracle", 0.93, 0.98),
        Goal("worst vs static", None, 0.98),
        *RARE,
    ),
    "published, peak 40 %": (SAFE, Goal("vs oracle", 0.995, 0.998), *RARE),
    "generated loads": (SAFE, Goal("vs oracle", 0.92, 0.95), Goal("vs static", None, 0.98), *RARE),
    "a constant load": (SAFE, Goal("most rolls", 1.0, 1.0)),
    "a service without a past": (SAFE, *RARE),
    "a jump to 1.5 times the largest load": (SAFE, *RARE),
    "a jump to none's capacity": (),
    "published, points with 8 % noise": (SAFE, *RARE),
    "generated, points with 8 % noise": (SAFE, *RARE),
    "published, none's slope 20 % too high": (SAFE, *RARE),
    "published, a drafter's slope 20 % too low": (SAFE, *RARE),
    "published, drafters 1.5x slower": (SAFE, *RARE),
    "generated, drafters 1.5x slower": (SAFE, *RARE),
    "an hour of requests (Azure), 3 replicas": (Goal("vs none", 1.2, 1.4), Goal("most rolls", 1.0, 1.0)),
}
"""Every set, and what it should reach."""


def worlds(seeds: tuple[int, ...]) -> dict[str, Iterator[World]]:
    """The worlds of every set of `GOALS`, made when they are asked for."""
    noisy = partial(profile_of, noise=0.08, seed=seeds[0])
    found = (
        published((0.7, 0.95)),
        published((0.7, 0.95), schedules=True),
        published((0.4,)),
        drawn(seeds),
        constant(seeds),
        drawn(seeds, (Kind.NEWCOMER,)),
        drawn(seeds, (Kind.JUMP,)),
        drawn(seeds, (Kind.TO_CAPACITY,)),
        published((0.7,), noisy),
        drawn(seeds[:1], believe=noisy),
        published((0.7,), none_too_steep),
        published((0.7,), drafter_too_flat),
        published((0.7,), drafters_faster),
        drawn(seeds[:1], believe=drafters_faster),
        azure_hour(),
    )
    return dict(zip(GOALS, found, strict=True))


def scores(world: World) -> list[Score]:
    """Replay one world under every rule."""
    scheduled = sorted({arm.family for arm in world.candidates}) if world.schedules else []
    static = ["none", *(f"static:{arm.family}:{arm.k}" for arm in world.candidates)]
    static += [f"static:{family}:schedule" for family in scheduled]
    study = Study(
        world.arms,
        world.believed,
        world.load,
        world.candidates,
        world.replicas,
        Policy(roll_seconds=START_UP_S),
        compared=DECIDED,
        scheduled=scheduled,
    )
    latency_s = {name: study.outcome(name).mean_latency_s or 1.0 for name in (*static, *DECIDED, "oracle")}
    return [
        Score(
            name,
            world.name,
            latency_s["none"] / latency_s[name],
            min(latency_s[other] for other in static) / latency_s[name],
            latency_s["oracle"] / latency_s[name],
            study.outcome(name).switches,
            study.outcome(name).switches / world.days,
        )
        for name in DECIDED
    ]


def figures(found: list[Score]) -> dict[str, float]:
    """Figures of one rule's scores of a set, as the table shows them."""
    shown: dict[str, float] = {}
    for title in ("vs none", "vs static", "vs oracle"):
        values = np.array([getattr(one, title.replace(" ", "_")) for one in found])
        shown |= {title: float(np.exp(np.log(values).mean())), f"worst {title}": float(values.min())}
    daily = [one.rolls_per_day for one in found]
    return shown | {
        "rolls per day": sum(daily) / len(daily),
        "worst rolls per day": max(daily),
        "most rolls": float(max(one.rolls for one in found)),
    }


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def show(title: str, found: list[Score], *, every: bool) -> int:
    """One line of the table per rule, then the goals; with `every`, a line per world as well. Number of goals missed."""
    if not found:
        say(f"  {title:42} skipped: its traces are absent")
        return 0
    missed = 0
    for policy in DECIDED:
        mine = [one for one in found if one.policy == policy]
        of = figures(mine)
        pairs = "  ".join(
            f"{of[name]:6.3f} /{of['worst ' + name]:6.3f}" for name in ("vs none", "vs static", "vs oracle")
        )
        say(
            f"  {title:42} {policy:15} {len(mine):3}  {pairs}"
            f"  {of['rolls per day']:5.2f} /{of['worst rolls per day']:5.2f} {of['most rolls']:5.0f}"
        )
        for one in sorted(mine, key=lambda one: one.vs_oracle) if every else ():
            say(
                f"      {one.name:58} {one.vs_none:15.3f} {one.vs_static:15.3f} {one.vs_oracle:15.3f} {one.rolls:18}"
            )
        if policy == TRIED and (goals := GOALS[title]):
            say(f"      goals: {'; '.join(goal.judged(of[goal.figure]) for goal in goals)}")
            missed = sum(goal.missed(of[goal.figure]) for goal in goals)
    return missed


def main() -> int:
    """Print the table; 1 if a first goal is missed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--judge", action="store_true", help="seeds that no rule was chosen on")
    options.add_argument("--every", action="store_true", help="a line per world")
    options.add_argument("--only", default="", help="sets whose title holds this text")
    options.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="worlds that are replayed at a time"
    )
    given = options.parse_args()
    seeds = JUDGING if given.judge else CHOOSING
    say(f"seeds {seeds}; geometric mean / worst world; rolls per day mean / worst, most rolls of a world")
    say(f"  {'':62} {'vs none':>14}  {'vs best static':>14}  {'vs oracle':>14}  {'rolls per day':>12}  most")
    # One thread per world: matrices of six by six are slower on many.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    missed = 0
    with ProcessPoolExecutor(given.workers) as workers:
        for title, some in worlds(seeds).items():
            if given.only in title:
                found = [one for scored in workers.map(scores, some) for one in scored]
                missed += show(title, found, every=given.every)
    say(f"first goals missed by {TRIED}: {missed}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
