"""Whether the decision is safe where a load meets capacity: the engine exactly as profiled, four replicas, two weeks.

Per load (`overload_loads.py`), over the fleets of `policy_worlds.py`: geometric mean and worst fleet of the speedup over no
speculation; the worst day and the worst ten days of any fleet; rolls of the fleet that rolls most, and the most of any day;
the speedup of the best static arm over no speculation, which is what caution gives up where it is larger.
`PYTHONPATH=tests .venv/bin/python tests/bench/bench_overload.py --judge` takes shapes and seeds that no rule was chosen on;
look at them once. `--risk 0.015` is a seventh of a day, and shows what less risk costs; `--day-risk 0.25` bounds each day. `--only TEXT` takes loads with such a title, `--every` prints a line per fleet.
`--hours` decides nothing: it prints what one hour at a load makes of a day on every arm, which no rule can mend once the load has come.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from bench.overload_loads import CHOOSING, CHOSEN, JUDGING, OTHERS, WINDOW_S, overloaded
from bench.policy_worlds import FLEETS, TOKENS, Laws, profile_of
from breakeven.arm import NO_SPECULATION, Arm
from breakeven.planning.policy import Policy
from breakeven_sim.replay.fleet_arms import LawArms
from breakeven_sim.replay.outcome import PolicyOutcome
from breakeven_sim.replay.stepping import PiecewiseLaw, SteppedFleet, step_through
from breakeven_sim.replay.study import Study, static_name
from breakeven_sim.replay.traces import RateTrace

REPLICAS = 4
START_UP_S = 120.0
_DAY_S = 86400.0
_HOURS = (0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.3)
"""Shares of what no speculation carries."""
_FIRST = {"worst day": 0.85, "worst ten days": 0.95, "rolls in a day": 1.0}
_THEN = {"worst day": 0.95, "worst ten days": 1.0, "rolls in a day": 1.0}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The decision's result on one load and one fleet; speedups above 1 are gains.

    Attributes:
        name: load, seed and fleet.
        vs_none: over all of the load.
        worst_day: of the days, each from midnight.
        worst_ten_days: of ten days in a row.
        rolls: all of them.
        daily_rolls: most within a day's time.
        static: of the best static arm.
    """

    name: str
    vs_none: float
    worst_day: float
    worst_ten_days: float
    rolls: int
    daily_rolls: int
    static: float


def replayed(
    asked: tuple[str, int, str], risk: float = Policy().risk, day_risk: float | None = None
) -> Outcome:
    """Replay one load on one fleet."""
    title, seed, fleet = asked
    laws = FLEETS[fleet]
    profile = profile_of(laws)
    trace = overloaded(title, seed, REPLICAS / min(c2_s for arm, (_, c2_s) in laws.items() if not arm.k))
    candidates = [arm for arm in laws if arm.k]
    study = Study(
        LawArms(profile, TOKENS),
        profile,
        trace,
        candidates,
        REPLICAS,
        Policy(roll_seconds=START_UP_S, risk=risk, day_risk=day_risk),
    )
    mine, none = study.outcome("breakeven"), study.outcome("none")
    taken, without = (spent(one, study) for one in (mine, none))
    days, without_days = (_by_day(values, study) for values in (taken, without))
    busy = without_days > 0.0
    tens = range(len(days) - 9)
    static = min(spent(study.outcome(static_name(arm)), study).sum() for arm in candidates)
    return Outcome(
        f"{title}, seed {seed}, {fleet}",
        float(without.sum() / taken.sum()),
        float((without_days[busy] / days[busy]).min()),
        min(float(without_days[day : day + 10].sum() / days[day : day + 10].sum()) for day in tens),
        mine.switches,
        most_within(rolled_s(mine, study), _DAY_S),
        max(float(without.sum() / static), 1.0),
    )


def hours(usual: float) -> None:
    """Speedup on each arm of a day at a usual share of none's capacity, and of one that has an hour at other shares."""
    say(
        f"  a day at {usual:.0%}, speedup:       carries  usual  an hour at "
        + "  ".join(f"{x:5g}" for x in _HOURS)
    )
    for fleet, laws in FLEETS.items():
        capacity_rps = REPLICAS / laws[NO_SPECULATION][1]
        for arm in (one for one in laws if one.k):
            ratios = [
                _day_on(NO_SPECULATION, laws, usual, share, capacity_rps)
                / _day_on(arm, laws, usual, share, capacity_rps)
                for share in (usual, *_HOURS)
            ]
            carries = laws[NO_SPECULATION][1] / laws[arm][1]
            say(
                f"  {fleet:8} {arm!s:22} {carries:7.3f} {ratios[0]:6.2f}             "
                + "  ".join(f"{x:5.2f}" for x in ratios[1:])
            )


def _day_on(arm: Arm, laws: Laws, usual: float, hour: float, capacity_rps: float) -> float:
    """Request-seconds of a day that has an hour at another load."""
    start_s = np.arange(0.0, _DAY_S, WINDOW_S)
    shares = np.where((start_s >= 0.4 * _DAY_S) & (start_s < 0.4 * _DAY_S + 3600.0), hour, usual)
    trace = RateTrace(start_s, np.full(len(start_s), WINDOW_S), shares * capacity_rps)
    fleet = SteppedFleet(lambda _: PiecewiseLaw(*laws[arm]), arm, REPLICAS, START_UP_S)
    windows = step_through(fleet, trace, lambda _, __: None)
    return float(sum(one.latency_s * one.rps for one in windows))


def spent(outcome: PolicyOutcome, study: Study) -> np.ndarray:
    """Request-seconds of each window."""
    assert isinstance(study.trace, RateTrace)
    return np.asarray(np.nan_to_num(outcome.window_latency_s) * study.trace.rate_rps * study.trace.length_s)


def _by_day(values: np.ndarray, study: Study) -> np.ndarray:
    assert isinstance(study.trace, RateTrace)
    return np.bincount((study.trace.start_s // _DAY_S).astype(int), values)


def rolled_s(outcome: PolicyOutcome, study: Study) -> list[float]:
    """Starts of the windows whose arm is another one than that of the window before."""
    assert isinstance(study.trace, RateTrace)
    starts, arms = study.trace.start_s.tolist()[1:], outcome.window_arms
    return [at_s for at_s, before, arm in zip(starts, arms[:-1], arms[1:], strict=True) if before != arm]


def most_within(times_s: list[float], span_s: float) -> int:
    """Most of these moments within any such time."""
    times = np.array(times_s)
    return max(int(((times >= at_s) & (times < at_s + span_s)).sum()) for at_s in times) if len(times) else 0


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def figures(found: list[Outcome]) -> dict[str, float]:
    """Figures that the goals are about."""
    return {
        "worst day": min(one.worst_day for one in found),
        "worst ten days": min(one.worst_ten_days for one in found),
        "rolls in a day": float(max(one.daily_rolls for one in found)),
    }


def missed(found: dict[str, float], goals: dict[str, float]) -> list[str]:
    """Goals that are missed."""
    return [
        name
        for name, goal in goals.items()
        if (found[name] > goal if name.startswith("rolls") else found[name] < goal)
    ]


def show(title: str, found: list[Outcome], *, every: bool) -> None:
    """One line of the table; with `every`, a line per fleet as well."""
    gains, of = np.array([one.vs_none for one in found]), figures(found)
    mean, static = (float(np.exp(np.log(some).mean())) for some in (gains, [one.static for one in found]))
    lacks = missed(of, _FIRST)
    verdict = f" MISSED {', '.join(lacks)}" if lacks else "" if missed(of, _THEN) else " (next)"
    say(
        f"  {title:46} {mean:6.3f} /{gains.min():6.3f}  {of['worst day']:6.3f} {of['worst ten days']:6.3f}"
        f"  {max(one.rolls for one in found):5} {of['rolls in a day']:4.0f}  {static:6.3f}{verdict}"
    )
    for one in found if every else ():
        say(
            f"      {one.name:58} {one.vs_none:6.3f}  {one.worst_day:6.3f} {one.worst_ten_days:6.3f}  {one.rolls:5}"
            f" {one.daily_rolls:4}  {one.static:6.3f}"
        )


def main() -> int:
    """Print the table; 1 if a first goal is missed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--judge", action="store_true", help="shapes and seeds that no rule was chosen on")
    options.add_argument("--every", action="store_true", help="a line per fleet")
    options.add_argument("--only", default="", help="loads whose title holds this text")
    options.add_argument(
        "--risk", type=float, default=Policy().risk, help="policy.risk: what less of it costs"
    )
    options.add_argument("--day-risk", type=float, help="policy.day_risk: what a bound on each day costs")
    options.add_argument("--workers", type=int, default=os.cpu_count(), help="replays at a time")
    options.add_argument("--hours", action="store_true", help="what one hour makes of a day on every arm")
    given = options.parse_args()
    if given.hours:
        for usual in (0.3, 0.6):
            hours(usual)
        return 0
    titles = [title for title in ((CHOSEN | OTHERS) if given.judge else CHOSEN) if given.only in title]
    seeds = JUDGING if given.judge else CHOOSING
    asked = [(title, seed, fleet) for title in titles for seed in seeds for fleet in FLEETS]
    say(f"seeds {seeds}; {REPLICAS} replicas, fleets {', '.join(FLEETS)}; geometric mean / worst fleet")
    say(f"  {'':46} {'vs none':>14}  {'day':>6} {'ten':>6}  {'rolls':>5} {'/day':>4}  static")
    # One thread per world: matrices of six by six are slower on many.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    every: list[Outcome] = []
    with ProcessPoolExecutor(given.workers) as workers:
        results = workers.map(partial(replayed, risk=given.risk, day_risk=given.day_risk), asked)
        for title in titles:
            found = [next(results) for _ in range(len(seeds) * len(FLEETS))]
            every += found
            show(title, found, every=given.every)
    of = figures(every)
    say(f"  goals, first: {_FIRST}; then: {_THEN}")
    say("  all loads: " + ", ".join(f"{name} {value:.3f}" for name, value in of.items()))
    return int(bool(missed(of, _FIRST)))


if __name__ == "__main__":
    sys.exit(main())
