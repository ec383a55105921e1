"""Pages of docs/cli and docs/result-files.md are what the code says, and explain every key that a command prints."""

from __future__ import annotations

import json
import shutil

import click
import pytest

from breakeven.cli import COMMANDS, fit, plan, predict, root, simulate
from golden.documents import DATA, PAGES, explained, section, unexplained
from shipping.generate.cli_pages import cli_pages, current

# Named after their command; other files there are input.
ROOT = PAGES.parents[1]
DOCUMENTS = sorted(file for file in DATA.glob("*.json") if file.stem.partition("-")[0] in COMMANDS)


@pytest.mark.parametrize(
    ("name", "marked"),
    [("docs/cli/fit.md", "| option | meaning |"), ("docs/result-files.md", "| key | what it becomes |")],
)
def test_the_committed_page_is_current(tmp_path, name, marked):
    pages = cli_pages(ROOT)
    assert {path: (ROOT / path).read_text("utf-8") for path in pages} == pages
    for page in pages:
        (tmp_path / page).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / page, tmp_path / page)
    page = tmp_path / name
    page.write_text(page.read_text().replace(marked, "| key | |", 1))
    assert cli_pages(tmp_path) == pages


def test_a_page_without_a_place_for_a_part_is_a_fault():
    with pytest.raises(LookupError, match="no place for breakeven fit"):
        current("# The command line\n", {"breakeven fit": "text"})


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches_with_an_example(name):
    assert f"$ breakeven {name} " in section(name)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "engine-sim"])
def test_every_option_is_explained(name):
    command = root.get_command(click.Context(root), name)
    silent = [p.name for p in command.params if isinstance(p, click.Option) and not (p.help or p.hidden)]
    assert silent == []


def test_no_line_ends_in_the_middle_of_a_table():
    for page in PAGES.glob("*.md"):
        for line in page.read_text().splitlines():
            if line.startswith("|"):
                assert line.endswith("|")


def test_every_command_has_a_page_and_every_page_a_command():
    assert {page.stem for page in PAGES.glob("*.md")} == {*COMMANDS, "README", "points-file"}


def test_there_are_documents() -> None:
    """All commands but the engine, what asks one, the report, the past and receipts, whose documents name files of the run."""
    assert {file.stem.partition("-")[0] for file in DOCUMENTS} == {*COMMANDS} - {
        "engine-sim",
        "answers",
        "report",
        "calibrate",
        "gate",
        "history",
        "savings",
    }


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.stem)
def test_every_key_of_the_golden_documents_is_explained_where_it_stands(file):
    assert unexplained(file.stem.partition("-")[0], json.loads(file.read_text())) == set()


@pytest.mark.parametrize(
    ("module", "place"), [(fit, ""), (predict, ""), (plan, ""), (simulate, "policies[].")]
)
def test_every_field_of_a_result_is_explained(module, place):
    found = {
        f"{place}{at}{name.removesuffix('?')}"
        for at, names in module.FIELDS.items()
        for name in names.split()
    }
    assert len(found) > 7
    assert found <= explained(module.__name__.rpartition(".")[2])
