"""`breakeven report PROFILE.json -o report.html`: a page (and PNGs) worth showing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from breakeven.cli.output import echo_result, json_option, write_atomically
from breakeven.cli.parameters import InputFile, Number, OutputFile
from breakeven.cli.profile_options import (
    conditions_of,
    length_options,
    profile_argument,
    prompt_parts,
    prompts_option,
    read_profile,
    steps_option,
)
from breakeven.errors import InputError
from breakeven.laws.arrays import Span

if TYPE_CHECKING:
    from breakeven.profile import Conditions, Profile
    from breakeven.reporting.page import Table
    from breakeven.reporting.profile_page import Recommended


@click.command("report")
@profile_argument
@click.option(
    "-o",
    "--output",
    type=OutputFile(),
    required=True,
    help="report.html, or report.png for the pictures alone (one file each: report-speedup.png, ...).",
)
@click.option("--title", help="Default: model, drafters, GPU and workload as the profile names them.")
@click.option(
    "--load-range",
    nargs=2,
    type=Number(0),
    metavar="LO HI",
    help="Loads per replica to shade, rps.",
)
@click.option("--trace", type=InputFile(), help="Shade this trace's loads.")
@click.option(
    "--replicas", type=click.IntRange(1), default=1, show_default=True, help="Over which --trace spreads."
)
@click.option(
    "--arm",
    help="The arm that an operator recommends, such as eagle/3: the verdict names it in place of the best one.",
)
@click.option("--rps", type=Number(0, 1e6), help="Its load per replica: of the verdict, with --arm.")
@click.option("--note", default="", help="A sentence below the verdict, such as what a service gains by it.")
@click.option(
    "--receipts", type=InputFile(), help="Output of `breakeven savings --json`: its table on the page."
)
@steps_option
@length_options
@prompts_option
@click.option("--png/--no-png", default=False, help="Write the PNGs beside the page as well.")
@json_option
def command(
    profile_path: Path,
    output: Path,
    title: str | None,
    load_range: Span | None,
    trace: Path | None,
    replicas: int,
    note: str,
    arm: str | None,
    rps: float | None,
    receipts: Path | None,
    steps: tuple[str, ...],
    lengths: Conditions,
    prompts: tuple[float, ...] | None,
    *,
    png: bool,
    as_json: bool,
) -> None:
    """Make a page that says whether speculation pays, until which load, and what not to believe.

    With --tokens-per-step or lengths it speaks of that acceptance and those lengths, as plan does; measured points then stand in the picture of the fit alone.

    The page is one file: pictures are inside, nothing is loaded from elsewhere, and it is light or dark as the
    reader's system is.

    \b
    Example:
      breakeven report chat.json -o chat.html --load-range 1 6
    """
    from breakeven.reporting.page import render_png
    from breakeven.reporting.profile_page import PageNotes, drawings, page_title, render_report, verdict

    if output.suffix not in {".html", ".png"}:
        raise InputError("--output", f"{output.name!r}", "a name ending in .html or .png")
    if load_range and trace:
        raise InputError("--trace", "given together with --load-range", "one of them")
    if load_range and load_range[0] >= load_range[1]:
        raise InputError("--load-range", f"{load_range[0]:g} {load_range[1]:g}", "the lower load first")
    shaded = _trace_range(trace, replicas) if trace else load_range or None
    profile = read_profile(profile_path, 0.9)
    about = _about(profile, arm, rps)
    conditions = conditions_of(profile, steps, None, None, lengths)
    written: dict[Path, str | bytes] = {}
    if output.suffix == ".html":
        answer = verdict(profile, shaded, conditions, prompt_parts(prompts), about)
        written[output] = render_report(
            profile,
            title or page_title(profile),
            shaded,
            conditions,
            PageNotes(note, answer, _receipts(receipts)),
        )
    if png or output.suffix == ".png":
        for name, draw in drawings(profile, shaded, conditions).items():
            written[output.with_name(f"{output.stem}-{name}.png")] = render_png(draw)
    # Everything is drawn before anything is written: a failure leaves no half of a report.
    for path, content in written.items():
        write_atomically(path, content)
    if as_json:
        echo_result({"written": [str(path) for path in written], "confidence": profile.confidence})
    else:
        click.echo("\n".join(str(path) for path in written))


def _receipts(file: Path | None) -> tuple[Table, ...]:
    """The table of a file of receipts; a refused input if it holds none."""
    from breakeven.intake import json_value
    from breakeven.past.receipt_table import notes, of_document, table
    from breakeven.reporting.page import Table

    if file is None:
        return ()
    given = json_value(file.read_bytes(), str(file), "the output of `breakeven savings --json`")
    found, price, currency = of_document(given, str(file))
    return (Table("Receipts", *table(found, price, currency), note=" ".join(notes(found))),)


def _about(profile: Profile, arm: str | None, rps: float | None) -> Recommended | None:
    """The recommended arm with its load, if one is named."""
    from breakeven.reporting.profile_page import Recommended

    if arm is None:
        if rps is not None:
            raise InputError("--rps", "given without --arm", "both, or --load-range")
        return None
    names = {fit.arm.name: fit.arm for fit in profile.arms}
    if arm not in names:
        raise InputError("--arm", repr(arm[:64]), f"one of {', '.join(names)}")
    return Recommended(names[arm], rps)


def _trace_range(path: Path, replicas: int) -> Span:
    """5th and 95th percentile of the trace's load per replica, over minutes where it lists requests."""
    import numpy as np

    from breakeven_sim.replay.trace_files import read_trace
    from breakeven_sim.replay.traces import RequestTrace

    trace = read_trace(path)
    windows = trace.rates(60.0) if isinstance(trace, RequestTrace) else trace
    low, high = np.percentile(windows.rate_rps, [5, 95]) / replicas
    return float(low), float(high)
