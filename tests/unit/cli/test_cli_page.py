"""docs/cli.md and docs/result-files.md are what the code says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from breakeven.cli import COMMANDS, root
from breakeven.cli.manual import PAGES, main, render
from breakeven.cli.results import RESULTS, JsonResult

GOLDEN = Path(__file__).parents[2] / "golden" / "data"
# Named after their command; other files there are input.
DOCUMENTS = sorted(file for file in GOLDEN.glob("*.json") if file.stem.partition("-")[0] in COMMANDS)


def test_the_committed_page_is_current(tmp_path, capsys):
    assert main(["--check"]) == 0
    assert main(["--write"], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    for name in PAGES:
        page = tmp_path / name
        page.write_text(page.read_text().replace("request", "quest", 1))
        assert main(["--check"], tmp_path) == 1
        assert f"docs/{name} is not what the code says; run `make generate`" in capsys.readouterr().err
        assert main(["--write"], tmp_path) == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches_with_an_example(name):
    assert f"$ breakeven {name} " in section(name)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "engine-sim"])
def test_every_option_is_explained(name):
    command = root.get_command(click.Context(root), name)
    silent = [p.name for p in command.params if isinstance(p, click.Option) and not p.help]
    assert silent == []


def test_no_line_ends_in_the_middle_of_a_table():
    for line in render().splitlines():
        if line.startswith("|"):
            assert line.endswith("|")


def test_there_are_documents() -> None:
    """All commands but the engine, its answers, the report, the sweep and the past, whose documents name files of the run."""
    assert {file.stem.partition("-")[0] for file in DOCUMENTS} == {*COMMANDS} - {
        "engine-sim",
        "answers",
        "report",
        "calibrate",
        "history",
    }


def section(name):
    return render().partition(f"\n## breakeven {name}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.stem)
def test_every_key_of_the_golden_documents_is_explained_where_it_stands(file):
    def keys(node, place=""):
        if isinstance(node, dict):
            for key, value in node.items():
                # Tables by draft length, coefficient or reason word have no fixed keys.
                if not re.fullmatch(r"\d+|c[12][pvds]|[A-Z]\w+", key):
                    yield f"{place}{key}"
                    yield from keys(value, f"{place}{key}.")
        elif isinstance(node, list):
            for item in node:
                yield from keys(item, f"{place[:-1]}[].")

    table = section(file.stem.partition("-")[0]).partition("The document of `--json`:")[2]
    documented = set(re.findall(r"`([^`]+)`", "".join(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE))))
    assert set(keys(json.loads(file.read_text()))) <= documented


def models(model=JsonResult):
    return [model, *(one for child in model.__subclasses__() for one in models(child))]


@pytest.mark.parametrize("model", models()[1:], ids=lambda model: model.__name__)
def test_no_field_of_a_result_is_without_words(model):
    """Fields without words share those of the next field that has them, so the last one must."""
    assert list(model.model_fields.values())[-1].description


def test_every_command_with_a_document_has_its_model():
    assert RESULTS.keys() == COMMANDS.keys() - {"engine-sim"}
