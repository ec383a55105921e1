"""Pasts of a service whose savings are known: what its operator's metrics said, and what speculation truly saved in each window.

An arm is rolled out, measured with noise, and the load goes on. Operators restart, engine pods are evicted, Prometheus has gaps, a
second operator writes for hours, and a fleet of fixed size that was measured at its lowest load comes near saturation. Which windows may be claimed is worked out here from these events, not from the series.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from breakeven.past.courses import TimeGrid
from breakeven.planning.capacity import replicas_for
from breakeven.readers.prometheus import Samples, TimedValue

STEP_S, SCRAPE_S, DAY_S = 300, 100, 86_400
GPUS = 2
_Z = 1.645
_Labels = tuple[tuple[str, str], ...]


class KnownPast(StrEnum):
    """What happens in a past beside its rolls."""

    QUIET = "quiet"
    RESTARTS = "restarts"
    EVICTIONS = "evictions"
    GAPS = "gaps"
    TWO_OPERATORS = "two operators"
    CONTROL = "control"
    SATURATION = "saturation"
    ALL = "all at once"


@dataclass
class Known:
    """A past as scraped, and its truth over the windows that may be claimed.

    Attributes:
        truth_s: request time truly saved in the claimable windows; upper_s: the same by the upper bound of the measurement.
        truth_gpu_hours: GPU-hours that were truly not used in them.
        spent_gpu_hours: of calibrations.
    """

    name: str
    grid: TimeGrid
    scrapes: dict[str, dict[_Labels, list[tuple[int, float]]]] = field(default_factory=dict)
    truth_s: float = 0.0
    upper_s: float = 0.0
    truth_gpu_hours: float = 0.0
    claimable_hours: float = 0.0
    spent_gpu_hours: float = 0.0

    def add(self, metric: str, time_s: int, value: float, pod: str, **labels: str) -> None:
        own = {
            "specsvc_namespace": "llm",
            "specsvc": self.name,
            "namespace": "breakeven",
            "pod": pod,
            **labels,
        }
        series = self.scrapes.setdefault(metric, {}).setdefault(tuple(sorted(own.items())), [])
        series.append((time_s, value))

    def on_grid(self) -> Iterator[Samples]:
        """The series as a range query with a lookback of one step gives them."""
        first_s = self.grid.first_s - DAY_S
        for metric, found in self.scrapes.items():
            for labels, scraped in found.items():
                newest: dict[int, float] = {}
                for time_s, value in scraped:
                    newest[-(-(time_s - first_s) // STEP_S) * STEP_S + first_s] = value
                values = tuple(
                    TimedValue(float(at), value)
                    for at, value in sorted(newest.items())
                    if at <= self.grid.last_s
                )
                yield Samples({"__name__": f"breakeven_{metric}", **dict(labels)}, values)

    def openmetrics(self) -> Mapping[str, list[str]]:
        """Lines by metric, for promtool."""
        found: dict[str, list[str]] = {}
        for metric, series in self.scrapes.items():
            for labels, scraped in series.items():
                own = ",".join(f'{key}="{value}"' for key, value in labels)
                head = f"breakeven_{metric}{{{own}}}"
                found.setdefault(metric, []).extend(
                    f"{head} {value:.12g} {time_s}" for time_s, value in scraped
                )
        return found


@dataclass(frozen=True)
class _World:
    """Laws, load and events of one past; times are Unix seconds."""

    c1_s: tuple[float, float]
    c2: tuple[float, float]
    carried_rps: tuple[float, float]
    fleet_rps: float
    swing: float
    rolled_s: int
    begun_s: int
    silent: tuple[tuple[int, int], ...]
    doubled: tuple[tuple[int, int], ...]
    evicted: tuple[tuple[int, int], ...]
    restarts: tuple[int, ...]
    control: bool
    fixed: int | None = None

    def load(self, time_s: float) -> float:
        return self.fleet_rps * (1.0 + self.swing * math.sin(2.0 * math.pi * time_s / DAY_S))

    def arm(self, time_s: float) -> int:
        return int(time_s > self.rolled_s)

    def ready(self, time_s: float) -> int:
        """Replicas that an autoscaler keeps for the load and the arm, less an evicted one."""
        wanted = self.fixed or replicas_for(self.load(time_s), self.carried_rps[self.arm(time_s)])
        return max(wanted - within(time_s, self.evicted), 1)

    def latency_s(self, arm: int, rps: float) -> float:
        return self.c1_s[arm] / (1.0 - min(self.c2[arm] * rps, 0.98))

    def speedup(self, rps: float) -> float:
        return self.latency_s(0, rps) / self.latency_s(1, rps)


def as_openmetrics(pasts: Iterable[Known]) -> str:
    """The samples of pasts, of which promtool makes blocks."""
    lines: dict[str, list[str]] = {}
    for known in pasts:
        for metric, found in known.openmetrics().items():
            lines.setdefault(metric, []).extend(found)
    text = [line for metric, found in lines.items() for line in (f"# TYPE breakeven_{metric} gauge", *found)]
    return "\n".join([*text, "# EOF", ""])


def within(time_s: float, spans: tuple[tuple[int, int], ...]) -> bool:
    """Whether a time lies in one of the spans, their begins left out."""
    return any(begin < time_s <= end for begin, end in spans)


def known_past(kind: KnownPast, seed: int, end_s: int, days: int = 2, name: str = "chat") -> Known:
    """A past of so many days; the roll ends within its first third."""
    rng = np.random.default_rng(seed)
    grid = TimeGrid(end_s - days * DAY_S, STEP_S, days * DAY_S // STEP_S + 1)
    world = _world(kind, rng, grid, days)
    known = Known(name, grid)
    noise = float(rng.uniform(0.01, 0.06))
    load0 = world.load(world.rolled_s) / world.ready(world.rolled_s - 1)
    measured = world.speedup(load0) * math.exp(noise * rng.standard_normal())
    carried = tuple(one * math.exp(0.03 * rng.standard_normal()) for one in world.carried_rps)
    # Of the profile, with errors of its own.
    plain_c2, arm_c2 = world.c2
    errors = np.exp(0.02 * rng.standard_normal(2)).tolist()
    law = replace(world, c2=(plain_c2 * errors[0], arm_c2 * errors[1]))
    control = {
        hour: math.exp(noise * rng.standard_normal())
        for hour in range(grid.first_s // 3600 - 25, grid.last_s // 3600 + 2)
    }
    run_s = int(rng.integers(grid.first_s, grid.last_s))
    for time_s in range(grid.first_s - DAY_S // 4, grid.last_s + 1, SCRAPE_S):
        if within(time_s, world.silent):
            continue
        pods = [f"operator-{sum(one <= time_s for one in world.restarts)}"]
        pods += ["other"] * within(time_s, world.doubled)
        for pod in pods:
            _say(known, world, time_s, pod, carried)
            now = law.speedup(world.load(time_s) / world.ready(time_s))
            for bound, value in _ends(now, 0.05).items():
                known.add("speedup_ratio", time_s, value, pod, arm="eagle/3", bound=bound)
            # A calibration of four GPU-hours, seen growing.
            used = 3600.0 * min(max((time_s - run_s) / 1800.0, 0.0), 1.0) * 4.0
            known.add("calibrations_gpu_seconds_spent", time_s, 7200.0 + used, pod)
            if world.arm(time_s):
                ends = _ends(measured, noise)
                for bound, value in ends.items():
                    known.add("roll_speedup", time_s, value, pod, from_arm="none", to_arm="eagle/3", result="Confirmed",
                              figure="measured", bound=bound)  # fmt: skip
                known.add("roll_speedup", time_s, law.speedup(load0), pod, from_arm="none", to_arm="eagle/3", result="Confirmed",
                          figure="promised", bound="estimate")  # fmt: skip
                known.add(
                    "roll_timestamp_seconds", time_s, world.rolled_s, pod, from_arm="none", to_arm="eagle/3"
                )
                known.add(
                    "roll_load_requests_per_second", time_s, load0, pod, from_arm="none", to_arm="eagle/3"
                )
                if world.control:
                    load = world.load(time_s) / world.ready(time_s)
                    for bound, value in _ends(world.speedup(load) * control[time_s // 3600], noise).items():
                        known.add(
                            "control_speedup_ratio",
                            time_s,
                            value,
                            pod,
                            arm="eagle/3",
                            against="none",
                            bound=bound,
                        )
    _truth(known, world, law, load0, noise)
    known.spent_gpu_hours = _spent(known)
    return known


def _ends(value: float, noise: float) -> dict[str, float]:
    return {"estimate": value, "lower": value * math.exp(-_Z * noise), "upper": value * math.exp(_Z * noise)}


def _world(kind: KnownPast, rng: np.random.Generator, grid: TimeGrid, days: int) -> _World:
    every = kind is KnownPast.ALL

    def spans(wanted: KnownPast, longest_s: int) -> tuple[tuple[int, int], ...]:
        if kind is not wanted and not every:
            return ()
        begins = rng.integers(grid.first_s, grid.last_s, 2 * days)
        return tuple((int(one), int(one + rng.integers(120, longest_s))) for one in begins)

    restarts = spans(KnownPast.RESTARTS, 1800)
    first = float(rng.uniform(1.2, 1.9))
    rolled_s = grid.first_s + int(rng.uniform(0.05, 0.3) * days * DAY_S)
    world = _World(
        c1_s=(2.0, 2.0 / first),
        c2=(0.06, 0.06 * float(rng.uniform(0.9, 1.3))),
        carried_rps=(5.0, 5.0 * float(rng.uniform(1.0, 1.5))),
        fleet_rps=float(rng.uniform(15.0, 40.0)),
        swing=float(rng.uniform(0.0, 0.6)),
        rolled_s=rolled_s,
        begun_s=rolled_s - 1800,
        silent=(*restarts, *spans(KnownPast.GAPS, 14_400)),
        doubled=spans(KnownPast.TWO_OPERATORS, 7200),
        evicted=spans(KnownPast.EVICTIONS, 3600),
        restarts=tuple(sorted(end for _, end in restarts)),
        control=kind is KnownPast.CONTROL or every,
    )
    return _near_saturation(world, rng, grid) if kind is KnownPast.SATURATION else world


def _near_saturation(world: _World, rng: np.random.Generator, grid: TimeGrid) -> _World:
    """A past whose first arm is rolled out at the day's lowest load, and whose highest load comes near what either arm carries."""
    most_rps = (6.0, 6.0 * float(rng.uniform(0.75, 1.05)))
    swing, replicas = float(rng.uniform(0.05, 0.3)), 6
    rolled_s = grid.first_s + round((0.75 - grid.first_s / DAY_S) % 1.0 * DAY_S)
    return replace(
        world,
        c2=(1.0 / most_rps[0], 1.0 / most_rps[1]),
        carried_rps=(0.85 * most_rps[0], 0.85 * most_rps[1]),
        fleet_rps=replicas * min(most_rps) * float(rng.uniform(0.5, 0.95)) / (1.0 + swing),
        swing=swing,
        rolled_s=rolled_s,
        begun_s=rolled_s - 1800,
        fixed=replicas,
    )


def _say(known: Known, world: _World, time_s: int, pod: str, carried: tuple[float, ...]) -> None:
    arm, ready, fleet = world.arm(time_s), world.ready(time_s), world.load(time_s)
    load = fleet / ready
    for metric, value in (
        ("service_info", 1.0), ("stale", 0.0), ("ready_replicas", ready), ("pod_gpus", GPUS), ("load_requests_per_second", load),
        ("inflight_requests", load * world.latency_s(arm, load)), ("evidence_timestamp_seconds", time_s - 20.0),
        ("rollout_in_progress", float(world.begun_s < time_s <= world.rolled_s)),
    ):  # fmt: skip
        known.add(metric, time_s, float(value), pod)
    known.add("current_arm_info", time_s, 1.0, pod, arm=("none", "eagle/3")[arm])
    for name, rps in (("none", carried[0]), ("eagle/3", carried[1])):
        for bound, end in _ends(rps, 0.03).items():
            known.add("capacity_requests_per_second", time_s, end, pod, arm=name, bound=bound)
    ends = (_ends(one, 0.03) for one in carried)
    plain, other = ends
    pairs = {"estimate": ("estimate", "estimate"), "lower": ("upper", "lower"), "upper": ("lower", "upper")}
    for bound, (without, with_it) in pairs.items():
        fewer = replicas_for(fleet, plain[without]) - replicas_for(fleet, other[with_it])
        basis = ("Recommended", "Running")[arm]
        known.add(
            "gpus_not_needed", time_s, float(GPUS * fewer), pod, arm="eagle/3", basis=basis, bound=bound
        )


def _truth(known: Known, world: _World, law: _World, load0: float, noise: float) -> None:
    """Truth over the windows that events and load allow to claim."""
    scraped: dict[int, set[str]] = {}
    newest: dict[int, int] = {}
    oldest: dict[int, int] = {}
    for labels, values in known.scrapes["ready_replicas"].items():
        for time_s, _ in values:
            end_s = -(-(time_s - known.grid.first_s) // STEP_S) * STEP_S + known.grid.first_s
            scraped.setdefault(end_s, set()).add(dict(labels)["pod"])
            newest[end_s] = max(newest.get(end_s, 0), time_s)
            oldest[end_s] = min(oldest.get(end_s, time_s), time_s)
    for place in range(1, known.grid.times):
        end_s = known.grid.first_s + place * STEP_S
        at_s = newest.get(end_s, 0)
        # A window in which both arms were seen is nobody's.
        if len(scraped.get(end_s, ())) != 1 or not world.arm(oldest[end_s]):
            continue
        load = world.load(at_s) / world.ready(at_s)
        said = law.speedup(load) / law.speedup(load0)
        if not world.control and max(load / load0, load0 / load, said, 1.0 / said) > 1.5:
            continue
        known.claimable_hours += STEP_S / 3600.0
        for time_s in range(end_s - STEP_S + SCRAPE_S, end_s + 1, SCRAPE_S):
            ready = world.ready(time_s)
            load = world.load(time_s) / ready
            inflight, speedup = ready * load * world.latency_s(1, load), world.speedup(load)
            known.truth_s += SCRAPE_S * inflight * (speedup - 1.0)
            known.upper_s += SCRAPE_S * inflight * (speedup * math.exp(_Z * noise) - 1.0)
            needed = replicas_for(world.load(time_s), world.carried_rps[0])
            known.truth_gpu_hours += GPUS * max(needed - ready, 0) * SCRAPE_S / 3600.0


def _spent(known: Known) -> float:
    """What calibrations used from the last scrape before the grid to its last one."""
    values = sorted(
        pair for series in known.scrapes["calibrations_gpu_seconds_spent"].values() for pair in series
    )
    before = [value for time_s, value in values if time_s <= known.grid.first_s]
    return (values[-1][1] - (before or [values[0][1]])[-1]) / 3600.0
