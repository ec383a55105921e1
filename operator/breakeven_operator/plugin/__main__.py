"""Entry points `kubectl-breakeven`, which kubectl finds on PATH as its plugin, and `kubectl_complete-breakeven`."""

from __future__ import annotations

import sys

import click

from breakeven.cli import run
from breakeven_operator.plugin.plugin_commands import PROGRAM, completions, root


def main() -> None:
    """Entry point of the plugin: exit 0, 1 (refused, one line), 2 (usage) or 130 (interrupted)."""
    run(root, PROGRAM, prog_name=PROGRAM)


def complete() -> None:
    """Entry point that kubectl calls with the words after `kubectl breakeven`, the last of which is incomplete."""
    click.echo(completions(sys.argv[1:]))


if __name__ == "__main__":
    main()
