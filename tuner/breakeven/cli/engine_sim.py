"""`breakeven engine-sim`: the simulated vLLM; its arguments are vLLM's own and go to vLLM's own rules."""

from __future__ import annotations

import sys

import click


@click.command(
    "engine-sim",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Serve a simulated vLLM: its flags, API and metrics."""
    from breakeven_sim.engine.serve_arguments import parse
    from breakeven_sim.engine.server import prepare, run

    parsed = parse(arguments)
    sys.exit(run(prepare(parsed)))
