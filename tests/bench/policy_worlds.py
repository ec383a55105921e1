"""Fleets, loads and beliefs that a decision rule is scored on.

A world is one fleet under one load, deciding by one profile. Most fleets have eight replicas that follow a law exactly
and take two minutes each to start; what decides is fitted to points of these laws, right ones or wrong ones. One world
is an hour of real requests on three simulated engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.generated_loads import Kind, generated
from breakeven.arm import NO_SPECULATION, Arm
from breakeven.fitting.profiles import fit_points
from breakeven.points.point import LoadMode, Point
from breakeven.profile import Profile
from breakeven_sim.engine.costs import default_document
from breakeven_sim.replay.fleet_arms import CostArms, LawArms
from breakeven_sim.replay.measured import measured_profile
from breakeven_sim.replay.trace_files import read_trace
from breakeven_sim.replay.traces import RateTrace, RequestTrace

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
APART = (Kind.JUMP, Kind.TO_CAPACITY, Kind.NEWCOMER)
"""Kinds that have a set, and a goal, of their own."""
GENERATED = tuple(kind for kind in Kind if kind not in APART)

Laws = Mapping[Arm, tuple[float, float]]
"""C1 and C2 (s) of every arm."""

EAGLE_2, EAGLE_3, EAGLE_5 = (Arm("eagle3", k) for k in (2, 3, 5))
FLEETS: Mapping[str, Laws] = {
    "mild": {NO_SPECULATION: (1.20, 0.070), EAGLE_3: (0.78, 0.085), EAGLE_5: (0.92, 0.072)},
    "slow": {NO_SPECULATION: (4.1, 0.24), EAGLE_2: (2.6, 0.262), EAGLE_5: (2.1, 0.33)},
    "steep": {NO_SPECULATION: (2.0, 0.05), EAGLE_3: (1.1, 0.075)},
    "block": {NO_SPECULATION: (3.0, 0.10), EAGLE_3: (1.5, 0.104), EAGLE_5: (1.3, 0.135)},
}
"""Speculation with the saturation of none (mild), with a little less (slow, block), and with a third less (steep)."""


@dataclass(frozen=True, slots=True)
class World:
    """One fleet under one load.

    Attributes:
        name: by which the worst fleet is found.
        load: of the whole fleet.
        arms: what the fleet follows.
        believed: the profile that decides.
        replicas: of the fleet.
        schedules: whether each drafter's schedule per batch size is an arm, too.
    """

    name: str
    load: RateTrace | RequestTrace
    arms: LawArms | CostArms
    believed: Profile
    replicas: int = REPLICAS
    schedules: bool = False

    @property
    def candidates(self) -> list[Arm]:
        """Arms that may run besides no speculation."""
        return [one.arm for one in self.believed.arms if one.arm.k]

    @property
    def days(self) -> float:
        """How long the load lasts (days)."""
        load = self.load
        return (float(load.length_s.sum()) if isinstance(load, RateTrace) else load.duration_s) / 86400.0


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
    """Rate of the fleet (1/s) that is a share of its capacity without speculation."""
    return share * REPLICAS / laws[NO_SPECULATION][1]


# Loads ----------------------------------------------------------------------------------------------------


def published(
    shares: tuple[float, ...], believe: Callable[[Laws], Profile] = profile_of, *, schedules: bool = False
) -> Iterator[World]:
    """ServeGen's weeks on every fleet, at peaks that take shares of its capacity."""
    for size, file in PUBLISHED.items():
        if not (TRACES / file).exists():
            continue
        trace = read_trace(TRACES / file)
        assert isinstance(trace, RateTrace)
        for name, laws in FLEETS.items():
            for share in shares:
                load = trace.faster(peak_of(laws, share) / float(trace.rate_rps.max()))
                title = f"{size} {name} {share:.0%}"
                yield World(title, load, _following(laws), believe(laws), schedules=schedules)


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
            share = 1.0 if kind is Kind.TO_CAPACITY else float(random.uniform(0.6, 0.95))
            laws = FLEETS[name]
            load = generated(kind, seed, peak_of(laws, share))
            yield World(f"{kind} {seed} {name} {share:.0%}", load, _following(laws), believe(laws))


def constant(seeds: tuple[int, ...]) -> Iterator[World]:
    """A constant load on every fleet, low and high."""
    for name, laws in FLEETS.items():
        for share in (0.5, 0.8):
            load = generated(Kind.CONSTANT, seeds[0], peak_of(laws, share))
            yield World(f"{name} {share:.0%}", load, _following(laws), profile_of(laws))


def azure_hour() -> Iterator[World]:
    """An hour of real requests on three simulated engines with their default costs, calibrated on its own lengths."""
    path = TRACES / "azure_2023_conv.csv"
    if not path.exists():
        return
    trace = read_trace(path)
    assert isinstance(trace, RequestTrace)
    arms = CostArms(default_document().for_gpu("NVIDIA-H100-80GB-HBM3", "defaults"))
    wanted = [NO_SPECULATION, EAGLE_3, Arm("ngram", 4)]
    profile = measured_profile(arms, wanted, trace.prompt_tokens, trace.output_tokens, 1)
    yield World("Azure 2023, conversation", trace, arms, profile, 3)


def _following(laws: Laws) -> LawArms:
    return LawArms(profile_of(laws), TOKENS)


# Beliefs that are wrong -----------------------------------------------------------------------------------


def none_too_steep(laws: Laws) -> Profile:
    """No speculation is believed to carry a sixth less than it does: what is left when it was measured badly."""
    c1_s, c2_s = laws[NO_SPECULATION]
    return profile_of({**laws, NO_SPECULATION: (c1_s, 1.2 * c2_s)})


def drafter_too_flat(laws: Laws) -> Profile:
    """The saturation of the longest drafts is believed a quarter too high."""
    longest = max(laws, key=lambda arm: arm.k)
    c1_s, c2_s = laws[longest]
    return profile_of({**laws, longest: (c1_s, 0.8 * c2_s)})


def drafters_faster(laws: Laws) -> Profile:
    """Every drafter is believed to be 1.5 times as fast as it is."""
    return profile_of({arm: (c1 / 1.5, c2 / 1.5) if arm.k else (c1, c2) for arm, (c1, c2) in laws.items()})
