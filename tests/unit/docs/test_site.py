"""The site has every page of docs/ in its navigation, and pictures that say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import yaml

from breakeven.cli import root as cli
from breakeven_operator.generate.pictures import ARM, DRAIN_S, NONE, break_even_rps, pictures
from breakeven_operator.plugin.plugin_commands import root as plugin

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
# The hook `packaging/site/site_links.py` appends the pages of these folders.
APPENDED = ("runbooks", "decisions")


def pages(entry):
    """All pages of a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    return [page for one in (entry.values() if isinstance(entry, dict) else entry) for page in pages(one)]


@pytest.fixture(scope="module")
def named():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return pages(yaml.safe_load(text[text.index("nav:\n- Start") :])["nav"])


def test_every_page_has_one_place_in_the_navigation(named):
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page.parent.name not in APPENDED}
    assert {page for page in named if not page.startswith("project/")} == there
    assert len(named) == len(set(named))


def test_guests_exist_and_the_hook_brings_them(named):
    guests = {page.removeprefix("project/") for page in named if page.startswith("project/")}
    hook = (ROOT / "packaging" / "site" / "site_links.py").read_text(encoding="utf-8")
    assert guests == set(re.findall(r'"([\w/-]+\.md)",', hook))
    assert all((ROOT / page).exists() for page in guests)


def test_the_break_even_of_the_picture_is_where_its_lines_cross():
    edge = break_even_rps()
    (none_s, arm_s) = (c1_s / (1.0 - edge * c2_s) for c1_s, c2_s in (NONE, ARM))
    assert none_s == pytest.approx(arm_s)
    assert f"break-even {edge:.1f} rps" in pictures()["break-even.svg"]


def test_the_draining_of_the_picture_is_that_of_the_example():
    (target, _) = yaml.safe_load_all((ROOT / "examples" / "vllm-a100.yaml").read_text(encoding="utf-8"))
    spec = target["spec"]["template"]["spec"]
    (engine,) = spec["containers"]
    assert {
        "preStop": engine["lifecycle"]["preStop"]["sleep"]["seconds"],
        "--shutdown-timeout": int(
            next(one for one in engine["args"] if one.startswith("--shutdown-timeout")).partition("=")[2]
        ),
        "terminationGracePeriodSeconds": spec["terminationGracePeriodSeconds"],
    } == DRAIN_S
    page = (DOCS / "opt-in.md").read_text(encoding="utf-8")
    assert all(f"| {seconds} s |" in page for seconds in DRAIN_S.values())


@pytest.mark.parametrize("name", sorted(pictures()))
def test_each_picture_is_shown_with_words_for_who_does_not_see_it(name):
    shown = [
        words
        for page in DOCS.glob("*.md")
        for words, file in re.findall(r"!\[([^\]]+)\]\(images/([^)]+)\)", page.read_text(encoding="utf-8"))
        if file == name
    ]
    assert shown
    assert all(len(words.split()) >= 8 for words in shown)


def commands(page):
    """Commands of ours on a page: lines of consoles and indented lines, and pipes that end in one."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^(?:\$ | {4,})((?:kubectl )?\S.*)$", text, re.MULTILINE)
    for line in lines:
        for part in re.split(r" \| ", line.partition("  #")[0]):
            if re.match(r"(kubectl )?breakeven [a-z]", part):
                yield part


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_commands_on_a_page_have_verbs_and_options_that_exist(page):
    for line in commands(page):
        words = re.sub(r"'[^']*'?|\"[^\"]*\"?", "TEXT", line).split()
        group = plugin if words[0] == "kubectl" else cli
        verb = words[2] if words[0] == "kubectl" else words[1]
        command = group.get_command(click.Context(group), verb)
        assert command is not None, line
        if command.context_settings.get("ignore_unknown_options"):
            continue
        known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
        asked = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert asked <= known, line


def test_pages_hold_commands_that_the_test_above_reads():
    found = {page.stem: len([*commands(page)]) for page in DOCS.glob("*.md")}
    assert found["kubectl"] >= 5
    assert found["start"] >= 3
    assert sum(found.values()) >= 40
