"""Whether following the load or following changes is safe, and what each gains: generated loads, and loads that meet capacity.

Both are replayed on every load, on one of four fleets (`policy_worlds.py`) in turns, with an engine exactly as profiled: four replicas that
are rolled one by one, each away for two minutes, and one replica that is replaced by a new pod within eight. Per set and policy: geometric mean and worst of the speedup over no speculation; the same over the best static arm and over hindsight that pays for
rolls; the worst day over no speculation, and how many of all days lose more than 5 %; rolls a day, mean and most.
`PYTHONPATH=tests .venv/bin/python tests/bench/bench_policies.py` takes minutes. `--day-risk` is a share other than the default, `--only TEXT` takes
the sets with such a title, `--seed` other loads, `--every` prints a line per load, `--all-fleets` takes every fleet.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from bench.generated_loads import Kind, generated
from bench.overload_loads import CHOSEN, OTHERS, WINDOW_S, overloaded
from bench.policy_worlds import FLEETS, TOKENS, profile_of
from breakeven.arm import NO_SPECULATION
from breakeven.planning.objective import Policy
from breakeven_sim.replay.fleet_arms import LawArms
from breakeven_sim.replay.outcome import PolicyOutcome
from breakeven_sim.replay.study import DECIDED, Study, static_name
from breakeven_sim.replay.traces import RateTrace

SEED = 401
ROLLS = {"pods away first": (4, 120.0), "new pods first": (1, 480.0)}
"""Replicas, and the time that each takes to start (s), by how a roll goes; the replay renews a single replica by a new pod."""
GENERATED, OVERLOAD = "generated, peak 60 to 95 %", "overload"
_DAY_S = 86400.0
_LOSS = 0.95


@dataclass(frozen=True, slots=True)
class Asked:
    """One load on one fleet."""

    group: str
    title: str
    fleet: str
    rolls: str
    seed: int


@dataclass(frozen=True, slots=True)
class Score:
    """What a policy made of it; speedups above 1 are gains, `days` are those of each day over no speculation."""

    asked: Asked
    policy: str
    vs_none: float
    vs_static: float
    vs_oracle: float
    days: tuple[float, ...]
    rolls: int


def worlds(seed: int, *, every: bool) -> list[Asked]:
    """Every load on one fleet, in turns, or on every fleet, rolled either way."""
    loads = [(GENERATED, str(kind)) for kind in Kind] + [(OVERLOAD, title) for title in CHOSEN | OTHERS]
    fleets = list(FLEETS)
    return [
        Asked(*load, fleet, rolls, seed)
        for rolls in ROLLS
        for place, load in enumerate(loads)
        for fleet in (fleets if every else [fleets[place % len(fleets)]])
    ]


def trace_of(asked: Asked) -> RateTrace:
    """Its load: a generated one has a peak of 60 to 95 % of what the fleet carries without speculation, drawn from its name."""
    capacity_rps = ROLLS[asked.rolls][0] / FLEETS[asked.fleet][NO_SPECULATION][1]
    if asked.group == OVERLOAD:
        return overloaded(asked.title, asked.seed, capacity_rps)
    kind = Kind(asked.title)
    random = np.random.default_rng((asked.seed, list(Kind).index(kind), list(FLEETS).index(asked.fleet)))
    share = 1.0 if kind is Kind.TO_CAPACITY else float(random.uniform(0.6, 0.95))
    return generated(kind, asked.seed, share * capacity_rps)


def scores(asked: Asked, day_risk: float) -> list[Score]:
    """Replay a load on a fleet under both policies, every static arm and hindsight."""
    replicas, start_up_s = ROLLS[asked.rolls]
    laws = FLEETS[asked.fleet]
    profile = profile_of(laws)
    candidates = [arm for arm in laws if arm.k]
    policy = Policy(roll_seconds=start_up_s, day_risk=day_risk)
    study = Study(
        LawArms(profile, TOKENS),
        profile,
        trace_of(asked),
        candidates,
        replicas,
        policy,
        compared=tuple(DECIDED),
        stepped_s=WINDOW_S,
    )
    static = min(
        _spent(study.outcome(static_name(arm)), study).sum() for arm in (NO_SPECULATION, *candidates)
    )
    none = _spent(study.outcome("none"), study)
    best = _spent(study.outcome("oracle"), study).sum()
    found = []
    for name in DECIDED:
        outcome = study.outcome(name)
        taken = _spent(outcome, study)
        days, without = (_by_day(values, study) for values in (taken, none))
        ratios = tuple((without[without > 0.0] / days[without > 0.0]).tolist())
        whole = taken.sum()
        found.append(
            Score(asked, name, none.sum() / whole, static / whole, best / whole, ratios, outcome.switches)
        )
    return found


def _spent(outcome: PolicyOutcome, study: Study) -> np.ndarray:
    """Request-seconds of each window."""
    assert isinstance(study.trace, RateTrace)
    return np.asarray(np.nan_to_num(outcome.window_latency_s) * study.trace.rate_rps * study.trace.length_s)


def _by_day(values: np.ndarray, study: Study) -> np.ndarray:
    assert isinstance(study.trace, RateTrace)
    return np.bincount((study.trace.start_s // _DAY_S).astype(int), values)


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def line_of(title: str, found: list[Score]) -> str:
    """The figures of one policy in some worlds."""
    pairs = ""
    for name in ("vs_none", "vs_static", "vs_oracle"):
        values = np.array([getattr(one, name) for one in found])
        pairs += f"  {np.exp(np.log(values).mean()):6.3f} /{values.min():6.3f}"
    days = np.concatenate([one.days for one in found])
    rolls = [one.rolls / max(len(one.days), 1) for one in found]
    lost = int((days < _LOSS).sum())
    return f"  {title:76}{pairs}  {days.min():6.3f} {lost:4} of {len(days):<5} {sum(rolls) / len(rolls):5.2f} /{max(rolls):5.2f}"


def main() -> int:
    """Print the table; 1 if the policy that a user gets by default loses a day by more than 5 %."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--day-risk", type=float, default=Policy().day_risk, help="policy.day_risk")
    options.add_argument("--seed", type=int, default=SEED, help="of the loads")
    options.add_argument("--only", default="", help="sets whose title holds this text")
    options.add_argument("--every", action="store_true", help="a line per load and fleet")
    options.add_argument(
        "--all-fleets", action="store_true", help="every load on every fleet: four times as long"
    )
    options.add_argument("--workers", type=int, default=os.cpu_count(), help="replays at a time")
    given = options.parse_args()
    # One thread per world: matrices of six by six are slower on many.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    asked = [
        one for one in worlds(given.seed, every=given.all_fleets) if given.only in f"{one.group}, {one.rolls}"
    ]
    say(
        f"seed {given.seed}, fleets {', '.join(FLEETS)}, dayRiskPercent {100 * given.day_risk:g}; mean / worst"
    )
    say(f"  {'':76}{'vs none':>16}{'vs best static':>16}{'vs oracle':>16}   worst day, lost  rolls a day")
    with ProcessPoolExecutor(given.workers) as workers:
        found = []
        for some in workers.map(partial(scores, day_risk=given.day_risk), asked):
            found += some
            for one in some if given.every else ():
                say(
                    line_of(
                        f"    {one.asked.title}, {one.asked.fleet}, {one.asked.rolls}: {one.policy}", [one]
                    )
                )
    for group in dict.fromkeys((one.group, one.rolls) for one in asked):
        for name in DECIDED:
            mine = [
                one for one in found if (one.asked.group, one.asked.rolls) == group and one.policy == name
            ]
            say(line_of(f"{', '.join(group)}: {name}", mine))
    default = [day for one in found if one.policy == next(iter(DECIDED)) for day in one.days]
    return int(min(default) < _LOSS)


if __name__ == "__main__":
    sys.exit(main())
