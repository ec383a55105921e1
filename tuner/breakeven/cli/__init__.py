"""The command line: `breakeven COMMAND`; one module per command, imported only when it runs.

`breakeven --help` must answer in 0.3 s, so this module imports click and nothing of the library; each command's
module is named as the command.
"""

from __future__ import annotations

import importlib
import os
import sys

import click

from breakeven import __version__
from breakeven.errors import BreakevenError
from breakeven.printable import printable

# The matrices are small: threads that wait for each other took four times as long as one. Read when numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Plugins of pydantic watch applications; to look for some reads the metadata of every installed package.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


COMMANDS: dict[str, str] = {
    "fit": "Fit the latency law of every measured arm.",
    "predict": "Latency of one arm at one load.",
    "plan": "The best arm at a load, and until which load.",
    "compare": "What changed from one profile to another, with bounds.",
    "acceptance": "Convert between the acceptance numbers in circulation.",
    "rank": "Which drafter, on your own finished answers.",
    "schedule": "Export vLLM's draft length per batch size.",
    "simulate": "Replay a trace against policies.",
    "calibrate": "Sweep one running engine and append its points.",
    "answers": "Does an arm answer as no speculation does.",
    "gate": "Does speculation still work in the next version.",
    "history": "A workload's past at Prometheus as a points file.",
    "report": "One self-contained HTML page (and PNGs) of a profile.",
    "lint": "Lines a manifest needs for opt-in and draining.",
    "doctor": "Does speculation pay right now, and if not, why.",
    "engine-sim": "The simulated vLLM: its flags, API and metrics.",
}
"""Line of the overview for each command; its module has its name."""


# Packages that only some commands need, and the extra that brings each.
_EXTRAS = {
    "breakeven_sim": "sim",
    "aiohttp": "engine",
    "prometheus_client": "engine",
    "jinja2": "report",
    "matplotlib": "report",
}


class _LazyGroup(click.Group):
    """Lists commands from COMMANDS and imports one only to run it or to show its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"{__name__}.{cmd_name.replace('-', '_')}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as unknown:
            # Of a group whose commands are imported one by one click knows no other name.
            raise click.exceptions.NoSuchCommand(
                unknown.command_name, possibilities=COMMANDS, ctx=ctx
            ) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])


@click.group(
    cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="breakeven")
def root() -> None:
    """Does speculative decoding pay, with which draft length, and until which load?

    From benchmark files to a decision, without a cluster:

    \b
      breakeven fit points.csv -o chat.json
      breakeven plan chat.json --rps 3
      breakeven report chat.json -o chat.html
    """


def main() -> None:
    """Entry point of the console script: exit 0, 1 (input refused, one line), 2 (usage) or 130 (interrupted)."""
    # SIGPIPE stays ignored, as Python has it: by default it would end a serving engine whenever a client hangs up. A
    # reader of standard output that stops early (`| head`) is click's to handle, which ends quietly.
    run(root, "breakeven", interrupted="breakeven: interrupted; nothing half written")


def run(command: click.Command, program: str, *, interrupted: str = "", prog_name: str | None = None) -> None:
    """Run a command line and end the process; `program` stands before each line of an error, `interrupted` answers Ctrl-C."""
    try:
        command.main(prog_name=prog_name, standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (click.Abort, KeyboardInterrupt):
        if interrupted:
            click.echo(interrupted, err=True)
        sys.exit(130)
    except click.ClickException as usage:
        usage.show()
        sys.exit(usage.exit_code)
    except BreakevenError as refusal:
        click.echo(printable(f"{program}: {refusal}"), err=True)
        sys.exit(1)
    except Exception as fault:
        # A person at a terminal cannot act on a traceback; the person who repairs the fault asks for it.
        if os.environ.get("BREAKEVEN_TRACEBACK"):
            raise
        if (lacking := _lacking(fault)) is not None:
            click.echo(f"{program}: {lacking}", err=True)
            sys.exit(1)
        text = " ".join(f"{type(fault).__name__}: {fault}".split())[:300]
        click.echo(
            f"{program}: a fault of breakeven itself, please report it ({text}); BREAKEVEN_TRACEBACK=1 shows where",
            err=True,
        )
        sys.exit(1)


def _lacking(fault: Exception) -> str | None:
    """The command that installs the extra of a missing package; None if the fault is another one."""
    package = (getattr(fault, "name", None) or "").partition(".")[0]
    if not isinstance(fault, ModuleNotFoundError) or package not in _EXTRAS:
        return None
    return f"this command needs {package}, which is not installed; expected pip install 'breakeven[{_EXTRAS[package]}]'"
