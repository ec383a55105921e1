"""`breakeven share PROFILE.json`: a profile's ratios as rows that others may have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from breakeven.cli.output import DEFAULT_CONFIDENCE, echo_result, json_option
from breakeven.cli.prior_options import fact_options, facts_given, printable_name
from breakeven.cli.profile_options import profile_argument, read_profile
from breakeven.cli.worth_view import known_facts

if TYPE_CHECKING:
    from breakeven.prior.public_table import RatioRow


@click.command("share", short_help="A profile's ratios as rows that others may have.")
@profile_argument
@fact_options
@click.option("--stack", metavar="NAME", help="Engine and version to print, such as 'vLLM 0.33'.")
@click.option("--model", metavar="NAME", help="Public name of the model to print.")
@click.option("--workload", metavar="WORDS", help="The text in a few words to print, such as mt_bench.")
@click.option(
    "--source",
    metavar="NAME",
    default="shared",
    show_default=True,
    help="Who measured: a name or an address; rows of one source share an error.",
)
@json_option
def command(profile_path: Path, *, as_json: bool, **options: Any) -> None:
    """Print ratios of a profile as a table, one row per draft length: C1 and C2 over those without speculation, and tokens per step.

    Nothing is sent. Of the profile's own names none is printed: no service, namespace, model, GPU, file, candidate or workload. What you name by options is printed as you name it. A method that vLLM does not know becomes `other`.

    \b
    Example:
      breakeven share chat.json --model Llama-3.1-8B --parameters-b 8 --dense --gpu H100 --quantisation bf16
    """
    from breakeven.prior.public_table import RatioRow, written_ratios
    from breakeven.prior.shared_rows import OTHER_METHOD, shared_rows
    from breakeven.profile import Conditions
    from breakeven.profile.operating_conditions import compared_text

    texts = {
        name: printable_name(f"--{name}", options[name]) or ""
        for name in ("stack", "model", "workload", "source")
    }
    named = RatioRow(
        facts_given(options),
        OTHER_METHOD,
        1,
        stack=texts["stack"],
        model=texts["model"],
        workload=texts["workload"],
        source=texts["source"] or "shared",
    )
    profile = read_profile(profile_path, DEFAULT_CONFIDENCE)
    found = shared_rows(profile, named)
    if lengths := compared_text(profile.arms, Conditions()):
        click.echo(f"all arms at {lengths}", err=True)
    if as_json:
        from breakeven.cli.results import ShareResult

        echo_result(
            ShareResult(
                rows=[_document(row) for row in found.rows],
                left_out=found.left_out,
                confidence=DEFAULT_CONFIDENCE,
            )
        )
        return
    click.echo(written_ratios(found.rows), nl=False)
    for reason in found.left_out:
        click.echo(f"! left out: {reason}", err=True)


def _document(row: RatioRow) -> dict[str, Any]:
    """A row of `--json`."""
    texts = {name: getattr(row, name) or None for name in ("stack", "model", "workload")}
    figures = ("method", "k", "lone_ratio", "slope_ratio", "tokens_per_step", "source")
    return {**texts, **known_facts(row.facts), **{name: getattr(row, name) for name in figures}}
