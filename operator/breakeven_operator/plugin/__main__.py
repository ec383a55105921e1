"""Entry points `kubectl-breakeven`, which kubectl finds on PATH as its plugin, and `kubectl_complete-breakeven`."""

from __future__ import annotations

import os
import sys

import click

from breakeven.errors import BreakevenError
from breakeven_operator.plugin.plugin_commands import COMPLETE_VARIABLE, PROGRAM, completions, root
from breakeven_operator.printable import one_line


def main() -> None:
    """Entry point of the plugin: exit 0, 1 (refused, one line), 2 (usage) or 130 (interrupted)."""
    try:
        root.main(prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE, standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except click.ClickException as usage:
        usage.show()
        sys.exit(usage.exit_code)
    except BreakevenError as refusal:
        click.echo(f"{PROGRAM}: {one_line(str(refusal))}", err=True)
        sys.exit(1)
    except Exception as fault:
        if os.environ.get("BREAKEVEN_TRACEBACK"):
            raise
        text = one_line(f"{type(fault).__name__}: {fault}")[:300]
        click.echo(
            f"{PROGRAM}: a fault of breakeven itself, please report it ({text}); BREAKEVEN_TRACEBACK=1 shows where",
            err=True,
        )
        sys.exit(1)


def complete() -> None:
    """Entry point that kubectl calls with the words after `kubectl breakeven`, the last of which is incomplete."""
    click.echo(completions(sys.argv[1:]))


if __name__ == "__main__":
    main()
