"""docs/cli.md, generated from the commands themselves: `python -m breakeven.cli.document --write|--check`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_origin

import click

from breakeven.cli import COMMANDS, root
from breakeven.cli.document_words import HEAD, HEAD_OF_COLUMNS
from breakeven.cli.results import RESULTS, JsonResult

_EXAMPLE = re.compile(r"^Examples?:$")


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    parts += [f"| [`{name}`](#breakeven-{name}) | {entry.summary} |" for name, entry in COMMANDS.items()]
    context = click.Context(root, info_name="breakeven")
    for name in COMMANDS:
        command = root.get_command(context, name)
        if command is None:
            raise LookupError(f"{name}: listed but not found")
        parts.append(f"\n## breakeven {name}\n")
        parts += _engine_sim() if name == "engine-sim" else _click(command, name, context)
        if name in RESULTS:
            parts += ["\nThe document of `--json`:\n", "| key | meaning |", "|---|---|"]
            parts += (row for result in RESULTS[name] for row in _keys(result))
    parts += _points_file()
    return "\n".join(parts) + "\n"


def _points_file() -> Iterator[str]:
    from breakeven.points.point import COLUMNS

    yield HEAD_OF_COLUMNS
    for name, column in COLUMNS.items():
        shown = "`accept_1` ... `accept_k`" if name == "accept" else f"`{name}`"
        yield f"| {shown} | {_linked(_cell(column.meaning))} |"


def _keys(result: type[JsonResult], place: str = "") -> Iterator[str]:
    """A row per field, or per several that share their words; below it the fields of the models in it."""
    named: list[str] = []
    within: list[tuple[type[JsonResult], str]] = []
    for name, field in result.model_fields.items():
        named.append(f"`{place}{name}`")
        within += _models(field.annotation, f"{place}{name}")
        if field.description:
            yield f"| {', '.join(named)} | {_linked(_cell(field.description))} |"
            for model, inner in within:
                yield from _keys(model, inner)
            named, within = [], []


def _models(annotation: object, place: str) -> Iterator[tuple[type[JsonResult], str]]:
    """The models that a field holds, each with what stands before the keys of its fields."""
    if isinstance(annotation, type) and issubclass(annotation, JsonResult):
        yield annotation, f"{place}."
    for part in get_args(annotation):
        yield from _models(part, f"{place}[]" if get_origin(annotation) is tuple else place)


def _click(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    prose, examples = _split(command.help or "")
    yield "\n\n".join(prose)
    yield f"\n```console\n{examples}\n```\n"
    arguments = [p.make_metavar(context) for p in command.params if isinstance(p, click.Argument)]
    yield f"`{' '.join(['breakeven', name, *arguments, '[OPTIONS]'])}`\n"
    yield "| option | meaning |\n|---|---|"
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and record[1]:
            flags, about = record
            yield f"| `{flags.replace('|', '&#124;')}` | {_cell(about)} |"


def _split(text: str) -> tuple[list[str], str]:
    """Paragraphs of a help text, and its example lines with a prompt."""
    prose: list[str] = []
    examples: list[str] = []
    for paragraph in text.split("\n\n"):
        lines = [line.strip() for line in paragraph.replace("\b", "").splitlines()]
        found = [line for line in lines if line.startswith(("breakeven ", "kubectl "))]
        if found:
            examples += found
        elif any(lines) and not _EXAMPLE.match(lines[0]):
            prose.append(" ".join(line for line in lines if line))
    return prose, "\n".join(f"$ {line}" for line in examples)


def _engine_sim() -> Iterator[str]:
    """The engine's flags are vLLM's, parsed by vLLM's rules, so they come from its own parser."""
    from breakeven_sim.engine.serve_arguments import argument_parser

    parser = argument_parser()
    yield f"{parser.description}\n"
    for paragraph in (parser.epilog or "").split("\n\n"):
        lines = [line.strip() for line in paragraph.strip().splitlines()]
        if lines[0].startswith("breakeven "):
            shown = (f"$ {line}" if line.startswith("breakeven ") else f"      {line}" for line in lines)
            yield "\n".join(["```console", *shown, "```\n"])
        else:
            yield " ".join(lines) + "\n"
    yield "| flag | default | meaning |\n|---|---|---|"
    for action in parser._actions:  # noqa: SLF001 - argparse lists its flags nowhere else
        if action.help in {None, "==SUPPRESS=="}:
            continue
        value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
        value = " ".join(value) if isinstance(value, tuple) else value
        flags = f"{', '.join(action.option_strings)} {value}".strip().replace("|", "&#124;")
        default = (
            "" if action.default in {None, "==SUPPRESS=="} or action.nargs == 0 else f"`{action.default}`"
        )
        yield f"| `{flags}` | {default} | {_cell(str(action.help))} |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "&#124;").replace("<", "&lt;").split())


def _linked(text: str) -> str:
    return re.sub(r"(?<!\[)reason words?", r"[\g<0>](reasons.md)", text)


def main(arguments: list[str], page: Path | None = None) -> int:
    """`--write` rewrites the page, `--check` says whether it is current, nothing prints it."""
    page = page or Path(__file__).parents[3] / "docs" / "cli.md"
    if arguments == ["--write"]:
        page.write_text(render(), encoding="utf-8")
        return 0
    if arguments == ["--check"]:
        current = page.exists() and page.read_text(encoding="utf-8") == render()
        if not current:
            click.echo("docs/cli.md is not what the commands say; run `make generate`", err=True)
        return int(not current)
    click.echo(render(), nl=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
