"""Parts of the pages in docs/cli and of docs/result-files.md that the code makes: options, vLLM's versions, columns and keys of files.

They stand between `<!-- generated: NAME -->` and `<!-- end of NAME -->`. Everything else in the pages is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click

from breakeven.cli import COMMANDS, root
from breakeven.methods import MTP_ALIAS
from breakeven.points.point import COLUMNS
from breakeven.readers.foreign import COLUMN_FIGURES, tables
from breakeven.readers.reading import others
from breakeven.serving.vllm_versions import Known, Span, known, limits
from breakeven_sim.engine.serve_arguments import argument_parser

_VERSIONS = """\
This table is lint's knowledge of vLLM {oldest} to {newest}, read from vLLM's packages (`tests/realvllm/speculation.py`). It includes spellings that end in `_mtp`.
An image's version is that of its tag, if the image is called after vLLM. For other versions lint says that it does not know them.

| | versions | words |
|---|---|---|"""

_TOOLS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "vllm bench serve": (("", "vllm bench serve"),),
    "GuideLLM": (
        ("", "GuideLLM"),
        ("", "GuideLLM report"),
        ("requests.successful[].", "GuideLLM request"),
        ("requests.incomplete[].", "GuideLLM request"),
    ),
    "AIPerf and GenAI-Perf": (("", "AIPerf"), ("input_config.phases[].", "AIPerf phase")),
    **{tool: (("", tool),) for tool in ("llm-d-benchmark", "inference-perf", "genai-bench", "EvalScope")},
}
"""By tool: where its results stand in a file, and the table of each."""

_EXAMPLE = re.compile(r"^Examples?:$")


def cli_pages(root: Path) -> dict[Path, str]:
    """The pages below the repository's root with their generated parts as the code has them.

    Raises:
        LookupError: a page has no place for a part.
    """
    texts = {Path("docs") / name: parts for name, parts in _parts().items()}
    return {path: current((root / path).read_text("utf-8"), parts) for path, parts in texts.items()}


def _parts() -> dict[str, dict[str, str]]:
    """The generated parts of each page below docs/, by name.

    Raises:
        LookupError: a command is listed and does not exist.
    """
    columns = _table(
        ("column", "expected value"),
        (
            (
                "`accept_1` ... `accept_k`" if name == "accept" else f"`{name}`",
                re.sub(r"(?<!\[)reason words?", r"[\g<0>](../reasons.md)", _cell(column.meaning)),
            )
            for name, column in COLUMNS.items()
        ),
    )
    commands = _table(
        ("command", "effect"), ((f"[`{name}`]({name}.md)", summary) for name, summary in COMMANDS.items())
    )
    made = {"cli/README.md": {"commands": commands}, "cli/points-file.md": {"columns": columns}}
    context = click.Context(root, info_name="breakeven")
    for name in COMMANDS:
        command = root.get_command(context, name)
        if command is None:
            raise LookupError(f"{name}: listed but not found")
        lines = _engine_sim() if name == "engine-sim" else _click(command, name, context)
        made[f"cli/{name}.md"] = {f"breakeven {name}": "\n".join(lines)}
    made["cli/lint.md"]["versions"] = "\n".join(_versions())
    return made | {"result-files.md": _result_files()}


def _result_files() -> dict[str, str]:
    keys = {
        f"keys of {tool}": _table(
            ("key", "what it becomes"), (row for place, table in parts for row in _keys(table, place))
        )
        for tool, parts in _TOOLS.items()
    }
    instead = ((other.tool, other.instead) for other in others())
    return keys | {"tools": _table(("tool", "give in its place"), instead)}


def current(page: str, parts: Mapping[str, str]) -> str:
    """The page with its generated parts as the code has them.

    Raises:
        LookupError: it has no place for a part.
    """
    for name, text in parts.items():
        begin, end = f"<!-- generated: {name} -->\n\n", f"\n\n<!-- end of {name} -->"
        before, begun, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        if not begun or not ended:
            raise LookupError(f"no place for {name}")
        page = f"{before}{begin}{text}{end}{after}"
    return page


def _table(header: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"| {one} | {two} |" for one, two in (header, *rows)).replace("\n", "\n|---|---|\n", 1)


def _keys(table: str, place: str) -> Iterator[tuple[str, str]]:
    for name, row in tables()[table].items():
        if not row.means and name not in COLUMN_FIGURES:
            raise LookupError(f"{name}: neither a column of a points file nor explained")
        yield ", ".join(f"`{place}{key}`" for key in row.places), row.means or f"column `{name}`"


def _versions() -> Iterator[str]:
    """The speculation words of each vLLM version, from the table that lint uses."""
    table = known()
    yield _VERSIONS.format(oldest=table.oldest, newest=table.newest)
    for what, rows in (
        ("method", table.methods),
        ("key", table.keys),
        ("rejection_sample_method", table.verification),
        ("flag", table.flags),
    ):
        spans: dict[str, list[str]] = {}
        for word, span in rows.items():
            if not word.endswith(MTP_ALIAS):
                spans.setdefault(_span(span, table), []).append(word)
        for span_words, words in sorted(spans.items()):
            yield f"| {what} | {span_words} | {', '.join(f'`{word}`' for word in words)} |"
    for limit in limits():
        files = ", ".join(f"`{file}`" for file in limit.sources)
        yield f"| limit | {_span(limit.versions, table)} | {limit.what} ({files}) |"


def _span(span: Span, table: Known) -> str:
    first = span.first or table.oldest
    # Read in vLLM's main, before the version was released.
    return f"{first} and newer" if first > table.newest else f"{first} to {span.last or table.newest}"


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
    """The flags of the engine are vLLM flags, parsed by vLLM's rules, so they come from its own parser."""
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
