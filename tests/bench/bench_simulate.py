"""Fleet replay: CPU seconds per policy and events per second, and what dominates.

The Azure 2023 conversation trace (19,366 requests) on 8 replicas with the event clock, at the trace's own rate and at
20 times it; a week of ServeGen windows by analytic stepping. CPU time of this process; calibration is shown apart.
An event is a decode step or a prompt step of one replica.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.planning.objective import Policy
from breakeven_sim.engine.costs import default_document, load_costs
from breakeven_sim.engine.requests import Request
from breakeven_sim.replay.fleet import Fleet
from breakeven_sim.replay.fleet_arms import CostArms
from breakeven_sim.replay.measured import measured_profile
from breakeven_sim.replay.study import Study
from breakeven_sim.replay.trace_files import read_trace
from breakeven_sim.replay.traces import RequestTrace

TRACES = Path(__file__).parents[3] / "shared" / "data" / "traces"
DEMO = Path(__file__).parents[2] / "examples" / "engine-costs" / "demo.json"
CANDIDATES = [Arm("eagle3", 3), Arm("ngram", 4)]
POLICIES = ("none", "static:eagle3:3", "static:ngram:4", "schedule", "breakeven", "oracle", "oracle-free")
FASTER = Policy(cooldown_s=600, dwell_s=120, roll_seconds=123)


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[float, T]:
    before = time.process_time()
    result = work()
    return time.process_time() - before, result


def poisson_trace() -> RequestTrace:
    """Stands in where the traces are absent: as many requests, lengths of the same means."""
    random = np.random.default_rng(1)
    arrivals = np.cumsum(random.exponential(3500 / 19366, 19366))
    return RequestTrace(
        arrivals - arrivals[0],
        1 + random.geometric(1 / 1155, 19366).clip(max=6000),
        random.geometric(1 / 211, 19366),
    )


def azure(factor: float) -> None:
    path = TRACES / "azure_2023_conv.csv"
    loaded = read_trace(path) if path.exists() else poisson_trace()
    assert isinstance(loaded, RequestTrace)
    trace = loaded.faster(factor)
    name = "Azure conversation" if path.exists() else f"Poisson trace ({path} is absent)"
    arms = CostArms(default_document().for_gpu("NVIDIA-H100-80GB-HBM3", "defaults"))
    calibration_s, profile = timed(
        lambda: measured_profile(
            arms, [NO_SPECULATION, *CANDIDATES], trace.prompt_tokens, trace.output_tokens, 1
        )
    )
    say(f"{name} x{factor:g}: {len(trace)} requests, {len(trace) / trace.duration_s:.1f} rps on 8 replicas")
    say(f"  simulated calibration of {len(CANDIDATES) + 1} arms    {calibration_s:6.2f} s CPU")
    study = Study(arms, profile, trace, CANDIDATES, 8, FASTER, compared=POLICIES)
    for policy in POLICIES if factor == 1.0 else POLICIES[:2]:
        seconds, outcome = timed(partial(study.outcome, policy))
        say(
            f"  {policy:18} {seconds:6.2f} s CPU   mean latency {outcome.mean_latency_s:6.2f} s  switches {outcome.switches}"
        )
    if factor > 1.0:
        return
    fleet = Fleet(arms, CANDIDATES[0], 8, 123.0)
    profiler = cProfile.Profile()
    seconds, _ = timed(lambda: drive(fleet, trace))
    say(f"  eagle3/3: {len(fleet.finished) / seconds:,.0f} requests per second of CPU, in {seconds:.2f} s")
    profiler.runcall(drive, Fleet(arms, CANDIDATES[0], 8, 123.0), trace)
    total = sum(row[2] for row in pstats.Stats(profiler).stats.values())  # type: ignore[attr-defined]
    say("  what dominates (own time under the profiler):")
    rows = sorted(pstats.Stats(profiler).stats.items(), key=lambda item: -item[1][2])[:6]  # type: ignore[attr-defined]
    for (file, _, function), row in rows:
        say(f"    {row[2] / total:5.1%}  {Path(file).name}:{function}")


def drive(fleet: Fleet, trace: RequestTrace) -> None:
    rows = zip(
        trace.arrival_s.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True
    )
    for number, (arrival_s, prompt, output) in enumerate(rows):
        fleet.offer(Request(number, arrival_s, prompt, output))
    fleet.to(float("inf"))


def week() -> None:
    path = TRACES / "servegen_m_large_week1_10min.csv"
    if not path.exists():
        say(f"skipped: a week of ServeGen windows ({path} is absent)")
        return
    trace = read_trace(path)
    arms = CostArms(load_costs(str(DEMO), {}))
    profile = measured_profile(arms, [NO_SPECULATION, *CANDIDATES], np.array([64]), np.array([32]), 1)
    say(f"ServeGen week: {len(trace)} windows, 40 replicas, demo costs")
    study = Study(arms, profile, trace, CANDIDATES, 40, Policy(roll_seconds=2.5), compared=POLICIES)
    total = 0.0
    for policy in POLICIES:
        seconds, outcome = timed(partial(study.outcome, policy))
        total += seconds
        say(
            f"  {policy:18} {seconds:6.3f} s CPU   mean latency {outcome.mean_latency_s:6.2f} s  switches {outcome.switches}"
        )
    say(f"  all {len(POLICIES)} policies   {total:6.2f} s CPU")


def main() -> int:
    azure(1.0)
    azure(20.0)
    week()
    return 0


if __name__ == "__main__":
    sys.exit(main())
