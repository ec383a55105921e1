"""`breakeven calibrate`: sweep the engines that are up, load by load, and append their points to a points file."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from breakeven.cli.output import (
    ARM,
    DEFAULT_CONFIDENCE,
    document,
    echo_result,
    figure,
    json_option,
    print_table,
    write_atomically,
)
from breakeven.cli.parameters import Number, OutputFile, read_loads
from breakeven.cli.sweep_options import (
    access_options,
    endpoint_of,
    engines_of,
    guessed_lone_s,
    model_option,
    sweep_of,
    workload_options,
)
from breakeven.errors import InputError
from breakeven.estimate import Estimate
from breakeven.intake import file_text
from breakeven.phrases import column, ratio_text

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from breakeven.arm import Arm
    from breakeven.load_driver.client import Endpoint, EngineError
    from breakeven.load_driver.course import Sweep
    from breakeven.load_driver.design import Finished
    from breakeven.load_driver.sweep import SweepProgress
    from breakeven.points.point import Point


@click.command()
@click.option(
    "--engine",
    multiple=True,
    metavar="ARM=URL",
    help="One of several engines that are up, such as none=http://localhost:8000, eagle3/3=http://localhost:8001; after / as --k, "
    "after another / as --candidate.",
)
@click.option("--url", help="The engine if it is one, http://host:port.")
@click.option("--method", help="What it runs: none, or vLLM's method name.")
@click.option(
    "--k",
    metavar="K|TABLE|adaptive:K",
    help="Draft length, or a schedule's table such as 1-8:5,9-32:2,33-:0, or adaptive:K with vLLM's adaptive verification; not "
    "needed with --method none.",
)
@click.option("--candidate", help="Your name for the drafter, where one method is tried with several.")
@click.option("-o", "--output", required=True, type=OutputFile(), help="Points file.")
@model_option
@click.option(
    "--loads",
    callback=read_loads,
    default="8",
    show_default=True,
    metavar="N|auto",
    help="Operating points, both ends too: so many, spread evenly, or at most 12 that the decision hangs on; points of --other-lengths come on top.",
)
@click.option(
    "--expected-rps",
    multiple=True,
    type=Number(0, min_open=True),
    help="Load for which you decide; may be given several times. --loads auto chooses loads for it, and pairs are measured at it. "
    " [default: 15 to 75 % of the capacity, pairs at a load in the middle]",
)
@click.option(
    "--target-regret-percent",
    type=Number(0, 100, min_open=True),
    help="With --loads auto: stop when the recommendation may cost no more than this, in expectation.  [default: 0.5]",
)
@click.option(
    "--dry-run", is_flag=True, help="Print what would be measured and what it costs; ask the engine nothing."
)
@workload_options
@click.option(
    "--other-lengths/--no-other-lengths",
    default=True,
    show_default=True,
    help="Also two short points with prompts four times as long, made-up prose, six request latencies together: they tell what a step costs, and with it what other lengths and acceptance do.",
)
@click.option(
    "--max-seconds",
    type=Number(0, min_open=True),
    help="Time for the sweep, the last fifth of it for pairs.  [default: no limit]",
)
@click.option("--point-seconds", type=Number(1), default=60.0, show_default=True, help="Longest window.")
@click.option("--warmup-seconds", type=Number(0), default=5.0, show_default=True, help="Before each window.")
@click.option(
    "--relative-error",
    type=Number(0, 0.5, min_open=True),
    default=0.01,
    show_default=True,
    help="A window may end when its mean latency is this precise (standard error).",
)
@click.option(
    "--max-concurrency", type=click.IntRange(2), default=64, show_default=True, help="Clients at the ceiling."
)
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "constant"]),
    default="poisson",
    show_default=True,
    help="How open-loop requests arrive.",
)
@click.option("--workload", help="Name of the workload, copied into the points.")
@click.option("--gpu", help="GPU product, copied into the points.")
@access_options
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of prompts, lengths and arrivals."
)
@json_option
def command(**options: Any) -> None:
    """Sweep the engines that are up: from one client to the throughput ceiling, and open-loop rates between.

    Several engines, on one GPU or on several, are measured load by load: all arms at one load with the same arrivals and prompts,
    one engine asked at a time, then the next load in reversed order. A machine that drifts so moves all arms alike. An arm is
    not measured at rates beyond 80 % of its capacity. The last fifth of the time is for pairs of no speculation and the
    fastest arm at one rate, in the order A B, B A, until their ratio is known to 5 % (standard error).

    With --loads auto each next load saves the most expected regret per second. Regret is about which arm is fastest at the
    expected loads, given the points of all arms in the file. The first load is one client.

    Each point is written to the file before the next one starts. Stop with Ctrl-C and give the same command again to go
    on: points in the file are not measured twice. An engine that fails or does not answer is left out, and the others go on; without
    the engine of no speculation, where one is named, nothing begins. Nothing else may use the engines meanwhile.

    \b
      breakeven calibrate --engine none=http://localhost:8000 --engine eagle3/3=http://localhost:8001 -o points.csv
      breakeven calibrate --url http://localhost:8001 --method eagle3 --k 3 -o points.csv
      breakeven calibrate --url http://localhost:8002 --method eagle3 --k 1-8:5,9-32:2,33-:0 -o points.csv
      breakeven calibrate --url http://localhost:8003 --method eagle3 --k 5 --loads auto --dry-run -o points.csv
      breakeven fit points.csv -o profile.json
    """
    as_json = options.pop("as_json")
    engines = engines_of(options)
    sweep = sweep_of(options, tuple(engine.arm for engine in engines))
    endpoints = [endpoint_of(options, engine.url) for engine in engines]
    file = PointsFile(options["output"])
    schedules = {engine.arm: engine.schedule for engine in engines}
    run = SweepRun(sweep, endpoints, file, schedules, gpu=options["gpu"] or "", as_json=as_json)
    if options["dry_run"]:
        run.show_plan()
        return
    from breakeven.load_driver.sweep import speedups_of
    from breakeven.points import table

    finished = asyncio.run(run.sweep_engines())
    speedups = speedups_of(run.points)
    if as_json:
        echo_result(
            {
                **run.arms_document(),
                "file": str(file.path),
                "complete": finished.complete,
                "reason": finished.reason,
                "points": [table.document(point) for point in run.points],
                "pairs": [
                    {
                        **document({"": ARM}, one.arm),
                        "request_rate_rps": one.load.rps,
                        "pairs": one.pairs,
                        "speedup": one.ratio,
                        "speedup_ci": one.interval,
                    }
                    for one in speedups
                ],
                "confidence": DEFAULT_CONFIDENCE,
            }
        )
        return
    for one in speedups:
        ratio = ratio_text(Estimate.of(one.ratio, one.interval))
        what = f"{ratio} as fast as no speculation, measured side by side in {one.pairs} pairs"
        click.echo(f"{one.arm} at {one.load}: {what}")
    click.echo(
        f"{file.path}: {len(run.points)} points of {', '.join(map(str, sweep.arms))}; {finished.reason}"
    )


_HEADER = f"{'arm':<12} {'load':<12} {'latency s':>10} {'in flight':>10} {'TTFT s':>8} {'TPOT ms':>8} {'E':>6} {'requests':>9}"


@dataclass
class SweepRun:
    """One start of the command: the sweep, and what it prints."""

    sweep: Sweep
    endpoints: Sequence[Endpoint]
    file: PointsFile
    schedules: Mapping[Arm, str | None]
    gpu: str
    as_json: bool

    def __post_init__(self) -> None:
        self.points: list[Point] = []
        self._constant: dict[str, Any] = {}
        self._versions: dict[Arm, str | None] = {}
        self._headed = False
        self._bar: tuple[Bar, TaskID] | None = None

    def arms_document(self) -> dict[str, Any]:
        """The arms as the document of --json names them."""
        arms = [document({"": ARM}, arm) for arm in self.sweep.arms]
        return {"arm": arms[0]} if len(arms) == 1 else {"arms": arms}

    async def sweep_engines(self) -> Finished:
        """Measure what the file does not hold yet."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        from breakeven.load_driver.client import EngineClient
        from breakeven.load_driver.sweep import answering, run_sweep

        existing = self.file.points()
        async with contextlib.AsyncExitStack() as stack:
            sampling = self.sweep.workload.sampling
            clients = [await stack.enter_async_context(EngineClient(one, sampling)) for one in self.endpoints]
            engines = await answering(dict(zip(self.sweep.arms, clients, strict=True)), self._lose)
            models = [await client.model() for client in engines.values()]
            if len(set(models)) > 1:
                raise InputError("--engine", f"engines that serve {' and '.join(models)}", "one model")
            self._constant = self._settings() | {"model": models[0]}
            for arm, client in engines.items():
                self._versions[arm] = await client.version() or None
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
                self._bar = bar, bar.add_task("", total=self.sweep.settings.loads, detail="")
                return await run_sweep(
                    engines,
                    self.sweep,
                    tuple(self.points),
                    on_point=self._keep,
                    on_progress=self._show,
                    on_lost=self._lose,
                )

    def show_plan(self) -> None:
        """Print the loads that would be measured. The model is unknown before a start, so all points of the file count."""
        self._constant = self._settings()
        self._take_over(self.file.points())
        steps = self.sweep.steps(self.points, guessed_lone_s(self.sweep.workload.output_tokens))
        seconds = sum((step.expected_s for _, step in steps), 0.0)
        most_s, pairs_s = self.sweep.settings.max_seconds, 0.0
        if self.sweep.paired:
            pairs_s = self.sweep.pairs_s(self.points, seconds) if most_s is None else most_s - seconds
        if self.as_json:
            plan = [
                {
                    **document({"": ARM}, arm),
                    "load_mode": step.load.mode.value,
                    "concurrency": step.load.clients,
                    "request_rate_rps": step.load.rps,
                    "prompt_tokens": step.prompt_tokens,
                    "latency_s": step.latency_s,
                    "seconds": step.expected_s,
                }
                for arm, step in steps
            ]
            echo_result(
                {
                    **self.arms_document(),
                    "file": str(self.file.path),
                    "measured": len(self.points),
                    "plan": plan,
                    "pairs_seconds": pairs_s,
                    "seconds": seconds + pairs_s,
                    "confidence": DEFAULT_CONFIDENCE,
                }
            )
            return
        # The prompt length of a step if the sweep has another.
        longer = [f", prompts of {step.prompt_tokens}" if step.prompt_tokens else "" for _, step in steps]
        rows = [
            (arm.name, f"{step.load}{own}", figure(step.latency_s), f"{step.expected_s:.0f}")
            for (arm, step), own in zip(steps, longer, strict=True)
        ]
        print_table(("arm", "load", "latency s", "GPU s"), rows)
        there = f" beside {len(self.points)} that are there" if self.points else ""
        pairs = f", then pairs for up to {pairs_s:.0f} s" if pairs_s else ""
        click.echo(
            f"{len(steps)} points{there}, about {seconds:.0f} GPU-seconds{pairs}; each one measured may change those after it"
        )

    def _settings(self) -> dict[str, Any]:
        workload = self.sweep.workload
        return {"workload": workload.name or None, "gpu": self.gpu or None, "sweep": workload.identity}

    def _take_over(self, existing: list[Point]) -> None:
        """Go on from the points of these arms, workload, model and GPU. Points of other arms only help to choose loads."""
        known = {name: self._constant[name] for name in ("sweep", "model", "gpu") if name in self._constant}
        here = [one for one in existing if all(getattr(one, name) == known[name] for name in known)]
        self.points = [
            point
            for point in here
            if point.arm in self.schedules and point.schedule == self.schedules[point.arm]
        ]
        others = tuple(point for point in here if point.arm not in self.schedules)
        self.sweep = replace(self.sweep, others=others)

    def _lose(self, arm: Arm, error: EngineError) -> None:
        click.echo(f"{arm} is left out: {error}; the other arms go on", err=True)

    async def _keep(self, measured: Point) -> None:
        schedule, version = self.schedules[measured.arm], self._versions[measured.arm]
        point = replace(measured, schedule=schedule, engine_version=version, **self._constant)
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
            left_s = progress.seconds_left
            left = f"{left_s:.0f} s" if left_s < 90 else f"{left_s / 60:.0f} min"
            detail = f"{progress.step.load}, {progress.done}/{progress.total} points, {left} left"
            completed, name = progress.done + share, progress.arm.name
            bar.update(task, description=name, completed=completed, total=progress.total, detail=detail)


def _line(point: Point) -> str:
    """One point as a line under the header; reasons against the point stand behind a `!`."""
    load = f"{point.load.clients} closed" if point.closed else column(point.load.value, "rps")
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


class PointsFile:
    """A points file that grows by one row at a time and is whole at every moment."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> list[dict[str, str]]:
        """Every row as it stands in the file; none if there is no file yet.

        Raises:
            InputError: the file is not a CSV with the header of a points file.
        """
        from breakeven.points.table import rows_as_they_stand

        if not self.path.exists():
            return []
        return rows_as_they_stand(file_text(self.path, "a points file (CSV with header)"), str(self.path))

    def points(self) -> list[Point]:
        """Every row that is a point. A sweep cannot continue from the other rows."""
        from breakeven.points.point import Origin
        from breakeven.points.row import point

        found = []
        for number, row in enumerate(self.rows(), start=1):
            with contextlib.suppress(InputError):
                found.append(point(row, Origin(str(self.path), number)))
        return found

    def append(self, point: Point) -> None:
        """Add a row; columns that the file does not have yet are added to all rows, empty."""
        from breakeven.points.table import cells, written

        write_atomically(self.path, written([*self.rows(), cells(point)]))
