"""One start of `breakeven calibrate`: the sweep of an engine, and what it prints."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from breakeven.cli.output import DEFAULT_CONFIDENCE, echo_result
from breakeven.cli.points_file import PointsFile
from breakeven.cli.sweep_options import guessed_lone_s
from breakeven.phrases import figure

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from breakeven.load_driver.client import Endpoint
    from breakeven.load_driver.design import Finished, SweepStep
    from breakeven.load_driver.sweep import Sweep, SweepProgress
    from breakeven.points.point import Point

_SETTING = ("sweep", "model", "gpu")
_HEADER = f"{'arm':<12} {'load':<12} {'latency s':>10} {'in flight':>10} {'TTFT s':>8} {'TPOT ms':>8} {'E':>6} {'requests':>9}"


@dataclass
class SweepRun:
    """One start of the command: the sweep, and what it prints."""

    sweep: Sweep
    endpoint: Endpoint
    file: PointsFile
    schedule: str | None
    gpu: str
    as_json: bool

    def __post_init__(self) -> None:
        self.points: list[Point] = []
        self._constant: dict[str, Any] = {}
        self._headed = False
        self._bar: tuple[Bar, TaskID] | None = None

    async def sweep_engine(self) -> Finished:
        """Measure what the file does not hold yet."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        from breakeven.load_driver.client import EngineClient
        from breakeven.load_driver.sweep import check_arm, run_sweep

        existing = self.file.points()
        async with EngineClient(self.endpoint, self.sweep.workload.sampling) as client:
            self._constant = {
                "workload": self.sweep.workload.name or None,
                "gpu": self.gpu or None,
                "model": await client.model(),
                "engine_version": await client.version() or None,
                "sweep": self.sweep.workload.identity,
                "schedule": self.schedule,
            }
            await check_arm(client, self.sweep.arm)
            self._take_over(existing)
            if self.points:
                click.echo(f"{self.file.path}: going on after {len(self.points)} points", err=True)
            for point in self.points:
                self._print(point)
            with Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[detail]}"),
                console=Console(stderr=True),
                transient=True,
                disable=not sys.stderr.isatty(),
            ) as bar:
                self._bar = bar, bar.add_task(self.sweep.arm.name, total=self.sweep.settings.loads, detail="")
                return await run_sweep(
                    client, self.sweep, tuple(self.points), on_point=self._keep, on_progress=self._show
                )

    def show_plan(self) -> None:
        """Print the loads that would be measured. The model is unknown before a start, so all points of the file count."""
        from breakeven.cli.results import CalibratePlanResult, PlannedPoint
        from breakeven.cli.tables import figure, print_table

        self._constant = {
            "gpu": self.gpu or None,
            "sweep": self.sweep.workload.identity,
            "schedule": self.schedule,
        }
        self._take_over(self.file.points())
        arm = self.sweep.arm
        steps = self.sweep.steps(self.points, guessed_lone_s(self.sweep.workload.output_tokens))
        seconds = sum(step.expected_s for step in steps)
        if self.as_json:
            plan = tuple(
                PlannedPoint(
                    load_mode=step.load.mode.value,
                    concurrency=step.load.clients,
                    request_rate_rps=step.load.rps,
                    prompt_tokens=step.prompt_tokens,
                    latency_s=step.latency_s,
                    seconds=step.expected_s,
                )
                for step in steps
            )
            echo_result(
                CalibratePlanResult(
                    arm=arm,
                    file=str(self.file.path),
                    measured=len(self.points),
                    plan=plan,
                    seconds=seconds,
                    confidence=DEFAULT_CONFIDENCE,
                )
            )
            return
        rows = [(arm.name, _asked(step), figure(step.latency_s), f"{step.expected_s:.0f}") for step in steps]
        print_table(("arm", "load", "latency s", "GPU s"), rows)
        there = f" beside {len(self.points)} that are there" if self.points else ""
        click.echo(
            f"{len(steps)} points{there}, about {seconds:.0f} GPU-seconds; each one measured may change those after it"
        )

    def _take_over(self, existing: list[Point]) -> None:
        """Go on from the points of this arm, workload, model and GPU. Points of other arms only help to choose loads."""
        known = [name for name in _SETTING if name in self._constant]
        here = [
            point for point in existing if all(getattr(point, name) == self._constant[name] for name in known)
        ]
        own = [point.arm == self.sweep.arm and point.schedule == self.schedule for point in here]
        self.points = [point for point, mine in zip(here, own, strict=True) if mine]
        others = tuple(point for point in here if point.arm != self.sweep.arm)
        self.sweep = replace(self.sweep, others=others)

    async def _keep(self, measured: Point) -> None:
        point = replace(measured, **self._constant)
        self.file.append(point)
        self.points.append(point)
        self._print(point)

    def _print(self, point: Point) -> None:
        if not self.as_json:
            line = _line(point)
            click.echo(line if self._headed else f"{_HEADER}\n{line}")
            self._headed = True

    def _show(self, progress: SweepProgress) -> None:
        if self._bar is not None:
            bar, task = self._bar
            share = min(0.95, progress.point_seconds / progress.step.expected_s)
            detail = f"{progress.step.load}, {progress.done}/{progress.total} points, {_minutes(progress.seconds_left)} left"
            bar.update(task, completed=progress.done + share, total=progress.total, detail=detail)


def _asked(step: SweepStep) -> str:
    """The load of a step, and its prompt length if that differs from the sweep's."""
    longer = f", prompts of {step.prompt_tokens}" if step.prompt_tokens else ""
    return f"{step.load}{longer}"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _line(point: Point) -> str:
    """One point as a line under the header; reasons against the point stand behind a `!`."""
    load = f"{point.load.clients} closed" if point.closed else f"{figure(point.load.value)} rps"
    tpot_ms = f"{point.tpot_mean_s * 1e3:.2f}" if point.tpot_mean_s is not None else ""
    step = f"{point.tokens_per_step:.2f}" if point.tokens_per_step is not None else "-"
    inflight, ttft_s = (
        math.nan if value is None else value for value in (point.mean_inflight, point.ttft_mean_s)
    )
    line = (
        f"{point.arm.name:<12} {load:<12} {point.mean_latency_s:>10.4g} {inflight:>10.4g}"
        f" {ttft_s:>8.3g} {tpot_ms:>8} {step:>6} {point.requests or 0:>9.0f}"
    )
    return f"{line}  ! {point.flag}" if point.flag else line
