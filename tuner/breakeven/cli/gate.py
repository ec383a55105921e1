"""`breakeven gate`: whether speculation still works in another version of an engine."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from breakeven.cli.output import (
    DEFAULT_CONFIDENCE,
    document,
    echo_result,
    json_option,
    print_table,
    print_text,
    write_atomically,
)
from breakeven.cli.parameters import InputFile, Number, OutputFile
from breakeven.cli.profile_options import read_profile
from breakeven.cli.sweep_options import (
    access_options,
    arm_named,
    endpoint_of,
    model_option,
    workload_of,
    workload_options,
)
from breakeven.phrases import column, spoken

if TYPE_CHECKING:
    from breakeven.points.point import ImposedLoad
    from breakeven.upgrade.record import UpgradeReport

_FIELDS = {
    "": "word arm versions findings needs",
    "findings[].": "figure before after ratio interval word sentence",
}
_LOADS = 2


def _refuse_image(_context: click.Context, _parameter: click.Parameter, image: str | None) -> None:
    if image is not None:
        raise click.UsageError(
            "images are compared on a cluster, by kubectl breakeven gate SERVICE --from IMAGE --to IMAGE; expected --from-url and --to-url"
        )


@click.command("gate", short_help="Does speculation still work in the next version.")
@click.option("--from", "--to", hidden=True, is_eager=True, expose_value=False, callback=_refuse_image)
@click.option("--from-url", help="The engine of today, http://host:port.")
@click.option(
    "--from-profile",
    type=InputFile(),
    help="A profile in its place: latencies and acceptance of the past alone.",
)
@click.option("--to-url", required=True, help="The engine of the next version.")
@click.option(
    "--arm",
    metavar="METHOD/K",
    help="The arm that both run, none or such as eagle3/3; Undecided if the first engine runs another.  [default: what it runs]",
)
@click.option(
    "--concurrency",
    "clients",
    type=click.IntRange(1, 10_000),
    multiple=True,
    help="Clients of a closed loop; a low and a high load.  [default: 1 and 8]",
)
@click.option(
    "--rps",
    type=Number(0, 1e6, min_open=True),
    multiple=True,
    help="Requests per second in place of clients (Poisson, the same arrivals for both engines).",
)
@click.option(
    "--max-seconds",
    type=Number(30),
    default=900.0,
    show_default=True,
    help="Time for all of it; windows are as long as fits.",
)
@workload_options
@model_option
@access_options
@click.option("-o", "--output", type=OutputFile(), help="Also write the JSON document to this file.")
@json_option
def command(
    from_url: str | None,
    from_profile: Path | None,
    to_url: str,
    output: Path | None,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare two engines, such as two versions of vLLM with one model and one arm, and say one word.

    Same, Faster (exit 0), Slower, AcceptanceLost, CacheLost, AnswersDiffer, Refused, DoesNotStart (exit 1), or Undecided with what it
    would take (exit 2). An input that is refused exits with 1 or 2 too, without a word. Nobody else may use the engines meanwhile. No prompt and no answer leaves them.

    \b
    Examples:
      breakeven gate --from-url http://old:8000 --to-url http://new:8000
      breakeven gate --from-url http://old:8000 --to-url http://new:8000 --dataset prompts.jsonl --rps 2 --rps 8
      breakeven gate --from-profile chat.json --arm eagle3/3 --to-url http://new:8000
    """
    if (from_url is None) == (from_profile is None):
        given = "neither is given" if from_url is None else "both are given"
        raise click.UsageError(
            f"{given}; expected --from-url for an engine of today that runs, or --from-profile for its past if none runs"
        )
    if from_url is not None and from_url.rstrip("/") == to_url.rstrip("/"):
        raise click.UsageError(f"--from-url and --to-url are both {to_url}; expected two engines")
    report = asyncio.run(_report(from_url, from_profile, to_url, options))
    result = document(_FIELDS, report, versions=dict(report.versions))
    result["confidence"] = DEFAULT_CONFIDENCE
    if output is not None:
        from pydantic_core import to_json

        write_atomically(output, to_json(result, indent=2, inf_nan_mode="null") + b"\n")
    if as_json:
        echo_result(result)
    else:
        _print(report)
    sys.exit(report.word.status)


async def _report(
    from_url: str | None, from_profile: Path | None, to_url: str, options: dict[str, Any]
) -> UpgradeReport:
    from breakeven.load_driver.client import EngineError
    from breakeven.upgrade.record import UpgradeReport, UpgradeWord
    from breakeven.upgrade.trial import UpgradePlan, try_against, try_upgrade

    def say(line: str) -> None:
        click.echo(line, err=True)

    arm = None if options["arm"] is None else arm_named(options["arm"])
    after = endpoint_of(options, to_url)
    # Other prompts each time: an engine that was asked before has its old ones in the prefix cache.
    workload = workload_of(options | {"workload": None, "seed": int(time.time())})
    plan = UpgradePlan(arm, workload, _loads(options), options["max_seconds"])
    try:
        if from_url is not None:
            return await try_upgrade(endpoint_of(options, from_url), after, plan, say)
        if arm is None or from_profile is None:
            raise click.UsageError("--from-profile needs --arm: which of the profile's arms the engine runs")
        return await try_against(read_profile(from_profile, DEFAULT_CONFIDENCE), arm, after, plan, say)
    except EngineError as error:
        # Nothing is known of the next version, which is no loss.
        return UpgradeReport(UpgradeWord.UNDECIDED, needs=str(error), arm=options["arm"])


def _loads(options: dict[str, Any]) -> tuple[ImposedLoad, ...]:
    from breakeven.points.point import ImposedLoad, LoadMode
    from breakeven.upgrade.trial import LOADS

    clients, rates = options["clients"], options["rps"]
    if clients and rates:
        raise click.UsageError("--concurrency excludes --rps")
    given = [
        *(ImposedLoad(LoadMode.CLOSED, float(one)) for one in clients),
        *(ImposedLoad(LoadMode.POISSON, one) for one in rates),
    ]
    if given and len(set(given)) != _LOADS:
        option = "--rps" if rates else "--concurrency"
        raise click.UsageError(f"{option}: {len(set(given))} loads; expected two, a low and a high one")
    return tuple(given) or LOADS


def _print(report: UpgradeReport) -> None:
    rows = [
        (one.figure, column(one.before), column(one.after), column(one.ratio), str(one.word or "-"))
        for one in report.findings
        if one.before is not None
    ]
    if rows:
        print_table(("figure", "before", "after", "after/before", "word"), rows)
    for one in report.findings:
        if one.before is None or (one.word is not None and one.word.status == 1):
            print_text(f"{one.figure}: {one.sentence}")
    versions = " to ".join(version or "?" for version in report.versions.values())
    about = ", ".join(part for part in (versions, spoken(report.arm) if report.arm else "") if part)
    print_text(f"{report.word}{f': {about}' if about else ''}")
    if report.needs:
        print_text(f"Deciding takes: {report.needs}.")
