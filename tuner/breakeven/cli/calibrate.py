"""`breakeven calibrate`: sweep one running engine and append its points to a points file."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from breakeven.cli.endpoint_options import access_options, endpoint_of, model_option, url_option
from breakeven.cli.output import DEFAULT_CONFIDENCE, echo_result, json_option
from breakeven.cli.parameters import Number, OutputFile, read_length_or_schedule, read_loads
from breakeven.cli.points_file import PointsFile
from breakeven.cli.sweep_options import sweep_of
from breakeven.cli.sweep_run import SweepRun
from breakeven.cli.workload_options import workload_options


@click.command()
@url_option
@click.option("--method", required=True, help="What the engine runs: none, or vLLM's method name.")
@click.option(
    "--k",
    callback=read_length_or_schedule,
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
    help="Operating points, both ends too: so many, spread evenly, or at most 12, those that the decision hangs on; those of --other-lengths come on top.",
)
@click.option(
    "--expected-rps",
    multiple=True,
    type=Number(0, min_open=True),
    help="With --loads auto: load for which you decide; may be given several times.  [default: 15 to 75 % of the capacity]",
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
@click.option("--max-seconds", type=Number(0, min_open=True), help="Time for the sweep.  [default: no limit]")
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
    """Sweep one running engine: from one client to the throughput ceiling, and open-loop rates between.

    With --loads auto each next load saves the most expected regret per second. Regret is about which arm is fastest at the
    expected loads, given the points of all arms in the file. The first load is one client.

    Each point is written to the file before the next one starts. Stop with Ctrl-C and give the same command again to go
    on: points in the file are not measured twice. Nothing else may use the engine meanwhile.

    \b
      breakeven calibrate --url http://localhost:8000 --method none -o points.csv
      breakeven calibrate --url http://localhost:8001 --method eagle3 --k 3 -o points.csv
      breakeven calibrate --url http://localhost:8002 --method eagle3 --k 1-8:5,9-32:2,33-:0 -o points.csv
      breakeven calibrate --url http://localhost:8003 --method eagle3 --k 5 --loads auto --dry-run -o points.csv
      breakeven fit points.csv -o profile.json
    """
    as_json = options.pop("as_json")
    sweep, endpoint = sweep_of(options), endpoint_of(options)
    file = PointsFile(options["output"])
    schedule = str(options["k"]) if sweep.arm.scheduled else None
    run = SweepRun(sweep, endpoint, file, schedule, gpu=options["gpu"] or "", as_json=as_json)
    if options["dry_run"]:
        run.show_plan()
        return
    finished = asyncio.run(run.sweep_engine())
    if as_json:
        from breakeven.cli.results import CalibrateResult
        from breakeven.points import table

        echo_result(
            CalibrateResult(
                arm=sweep.arm,
                file=str(file.path),
                complete=finished.complete,
                reason=finished.reason,
                points=[table.document(point) for point in run.points],
                confidence=DEFAULT_CONFIDENCE,
            )
        )
        return
    click.echo(f"{file.path}: {len(run.points)} points of {sweep.arm}; {finished.reason}")
