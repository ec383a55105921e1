"""Whether the decision is safe, and how near to hindsight: published and generated loads, right and wrong models.

Every fleet has eight replicas that follow a law exactly; a replica takes two minutes to start. The policy believes a
profile that was fitted to points of these laws, right ones or wrong ones. Per set: geometric mean and worst fleet of the
speedup over no speculation, over the best static arm and over hindsight that pays for rolls; rolls per day.
`PYTHONPATH=tests .venv/bin/python tests/bench/bench_policies.py --judge` takes the seeds that no rule was chosen on; look at
them once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from bench.generated_loads import CHOOSING, JUDGING, Kind, generated
from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting.profiles import fit_points
from breakeven.planning.policy import Policy
from breakeven.points.point import LoadMode, Point
from breakeven.profile import Profile
from breakeven_sim.replay.fleet_arms import LawArms
from breakeven_sim.replay.study import Study
from breakeven_sim.replay.traces import RateTrace, read_trace

TRACES = Path(__file__).parents[3] / "shared" / "data" / "traces"
PUBLISHED = {
    "large": "servegen_m_large_week1_10min.csv",
    "mid": "servegen_m_mid_10min.csv",
    "small": "servegen_m_small_10min.csv",
}
REPLICAS = 8
START_UP_S = 120.0
TOKENS = 256.0
LOADS = (0.05, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8)
"""Shares of an arm's saturation at which it was measured."""
GENERATED = tuple(kind for kind in Kind if kind is not Kind.JUMP)

Laws = Mapping[Arm, tuple[float, float]]
"""C1 and C2 (s) of every arm."""

EAGLE_2, EAGLE_3, EAGLE_5 = (Arm("eagle3", k) for k in (2, 3, 5))
FLEETS: Mapping[str, Laws] = {
    "mild": {NO_SPECULATION: (1.20, 0.070), EAGLE_3: (0.78, 0.085), EAGLE_5: (0.92, 0.072)},
    "slow": {NO_SPECULATION: (4.1, 0.24), EAGLE_2: (2.6, 0.262), EAGLE_5: (2.1, 0.33)},
    "steep": {NO_SPECULATION: (2.0, 0.05), EAGLE_3: (1.1, 0.075)},
    "block": {NO_SPECULATION: (3.0, 0.10), EAGLE_3: (1.5, 0.104), EAGLE_5: (1.3, 0.135)},
}
"""Speculation that carries as much as none (mild), a little less (slow, block), and a third less (steep)."""


@dataclass(frozen=True, slots=True)
class World:
    """One fleet under one load.

    Attributes:
        name: for whoever looks for the worst one.
        laws: what the fleet follows.
        load: rates of the whole fleet.
        believed: the profile that decides.
    """

    name: str
    laws: Laws
    load: RateTrace
    believed: Profile


DECIDED = ("breakeven", "expected-saving")
"""The rule in force, and the one that is tried."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a policy made of a world; speedups above 1 are gains."""

    policy: str
    name: str
    vs_none: float
    vs_static: float
    vs_oracle: float
    rolls: int
    rolls_per_day: float


def profile_of(laws: Laws, noise: float = 0.0, seed: int = 0) -> Profile:
    """The fit of points that lie on laws, up to a relative error drawn for each."""
    random = np.random.default_rng((seed, 11))
    points = [
        Point(
            method=arm.method,
            k=arm.k,
            load_mode=LoadMode.POISSON,
            request_rate_rps=share / c2_s,
            mean_latency_s=c1_s / (1.0 - share) * float(np.exp(random.normal(0.0, noise))),
            output_tokens=TOKENS,
            requests=400.0,
        )
        for arm, (c1_s, c2_s) in laws.items()
        for share in LOADS
    ]
    return fit_points(points, 0.9, {"workload": "bench"})


def peak_of(laws: Laws, share: float) -> float:
    """Rate of the fleet (1/s) that takes a share of what it carries without speculation."""
    return share * REPLICAS / laws[NO_SPECULATION][1]


def published(shares: tuple[float, ...], believe: Callable[[Laws], Profile] = profile_of) -> Iterator[World]:
    """ServeGen's weeks on every fleet, at peaks that take shares of its capacity."""
    for size, file in PUBLISHED.items():
        if not (TRACES / file).exists():
            continue
        trace = read_trace(TRACES / file)
        assert isinstance(trace, RateTrace)
        for name, laws in FLEETS.items():
            for share in shares:
                load = trace.faster(peak_of(laws, share) / float(trace.rate_rps.max()))
                yield World(f"{size} {name} {share:.0%}", laws, load, believe(laws))


def drawn(
    seeds: tuple[int, ...],
    kinds: tuple[Kind, ...] = GENERATED,
    believe: Callable[[Laws], Profile] = profile_of,
) -> Iterator[World]:
    """Generated loads, each on a fleet and at a peak (60 to 95 % of its capacity) that its seed draws."""
    for kind in kinds:
        for seed in seeds:
            random = np.random.default_rng((seed, 5, list(Kind).index(kind)))
            name = str(random.choice(list(FLEETS)))
            share = float(random.uniform(0.6, 0.95))
            laws = FLEETS[name]
            load = generated(kind, seed, peak_of(laws, share))
            yield World(f"{kind} {seed} {name} {share:.0%}", laws, load, believe(laws))


def slope_wrong(laws: Laws) -> Profile:
    """No speculation is believed to carry 20 % less than it does: what is left when it was measured badly."""
    c1_s, c2_s = laws[NO_SPECULATION]
    return profile_of({**laws, NO_SPECULATION: (c1_s, 1.2 * c2_s)})


def drafters_faster(laws: Laws) -> Profile:
    """Every drafter is believed to be 1.5 times as fast as it is."""
    return profile_of({arm: (c1 / 1.5, c2 / 1.5) if arm.k else (c1, c2) for arm, (c1, c2) in laws.items()})


def scores(world: World) -> list[Score]:
    """Replay one world under every rule."""
    candidates = [arm for arm in world.laws if arm.k]
    static = ["none", *(f"static:{arm.family}:{arm.k}" for arm in candidates)]
    study = Study(
        LawArms(profile_of(world.laws), TOKENS),
        world.believed,
        world.load,
        candidates,
        REPLICAS,
        Policy(roll_seconds=START_UP_S),
        compared=DECIDED,
    )
    latency_s = {name: study.outcome(name).mean_latency_s or 1.0 for name in (*static, *DECIDED, "oracle")}
    days = float(world.load.length_s.sum()) / 86400.0
    return [
        Score(
            name,
            world.name,
            latency_s["none"] / latency_s[name],
            min(latency_s[other] for other in static) / latency_s[name],
            latency_s["oracle"] / latency_s[name],
            study.outcome(name).switches,
            study.outcome(name).switches / days,
        )
        for name in DECIDED
    ]


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def show(title: str, found: list[Score], *, every: bool) -> None:
    """One line of the table per rule; with `every`, a line per fleet as well."""
    if not found:
        say(f"  {title:38} skipped: {TRACES} is absent")
    for policy in DECIDED if found else ():
        mine = [one for one in found if one.policy == policy]

        def figure(name: str, mine: list[Score] = mine) -> str:
            values = np.array([getattr(one, name) for one in mine])
            return f"{np.exp(np.log(values).mean()):6.3f} /{values.min():6.3f}"

        rolls = [one.rolls_per_day for one in mine]
        say(
            f"  {title:38} {policy:15} {len(mine):3}  {figure('vs_none')}  {figure('vs_static')}  {figure('vs_oracle')}"
            f"  {sum(rolls) / len(rolls):5.2f} /{max(rolls):5.2f}"
        )
        for one in sorted(mine, key=lambda one: one.vs_oracle) if every else ():
            say(
                f"      {one.name:54} {one.vs_none:15.3f} {one.vs_static:15.3f} {one.vs_oracle:15.3f} {one.rolls:10}"
            )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--judge", action="store_true", help="seeds that no rule was chosen on")
    options.add_argument("--every", action="store_true", help="a line per fleet")
    options.add_argument("--only", default="", help="sets whose title holds this text")
    given = options.parse_args()
    seeds = JUDGING if given.judge else CHOOSING
    noisy = partial(profile_of, noise=0.08, seed=seeds[0])
    sets = {
        "published, peaks 70 and 95 %": published((0.7, 0.95)),
        "published, peak 40 %": published((0.4,)),
        "generated loads": drawn(seeds),
        "a jump to 1.5 times the largest load": drawn(seeds, (Kind.JUMP,)),
        "published, points with 8 % noise": published((0.7,), noisy),
        "generated, points with 8 % noise": drawn(seeds[:1], believe=noisy),
        "published, none's slope 20 % wrong": published((0.7,), slope_wrong),
        "published, drafters 1.5x slower": published((0.7,), drafters_faster),
    }
    say(f"seeds {seeds}; geometric mean / worst fleet; `--only TEXT` takes the sets with such a title")
    say(f"  {'':58} {'vs none':>14}  {'vs best static':>14}  {'vs oracle':>14}  {'rolls per day':>12}")
    with ProcessPoolExecutor() as workers:
        for title, worlds in sets.items():
            if given.only in title:
                show(
                    title, [one for found in workers.map(scores, worlds) for one in found], every=given.every
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
