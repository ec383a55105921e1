"""The site has every page of docs/ in its navigation, and pictures that say what the code says."""

from __future__ import annotations

import math
import re
from pathlib import Path

import click
import pytest
import yaml

from breakeven.cli import root as cli
from breakeven.planning.capacity import HEADROOM
from breakeven_operator.plugin.plugin_commands import root as plugin
from shipping.generate.pictures import ARM, DRAIN_S, NONE, break_even_rps, pictures

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
# The hook `packaging/site/site_links.py` appends the pages of this folder.
APPENDED = "runbooks"
# Made by `make generate`, whole or in their tables.
GENERATED = ("api/", "cli/", "metrics.md", "reasons.md", "result-files.md")
MOST_WORDS = 29_600
MOST_WORDS_OF_A_PARAGRAPH = 60


def pages(entry):
    """All pages of a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    return [page for one in (entry.values() if isinstance(entry, dict) else entry) for page in pages(one)]


@pytest.fixture(scope="module")
def named():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return pages(yaml.safe_load(text[text.index("nav:\n- Home") :])["nav"])


def by_hand(text):
    """A page without blocks of code, whose output commands make, and without the chart's values, which its schema makes."""
    return re.sub(r"```.*?```|<!--.*?-->", "", text.partition("\n## Values\n")[0], flags=re.DOTALL)


@pytest.fixture(scope="module")
def written(named):
    """Pages of the site that people write, with their text."""
    runbooks = sorted(page.relative_to(DOCS).as_posix() for page in (DOCS / APPENDED).glob("*.md"))
    own = [page for page in (*named, *runbooks) if not page.startswith(GENERATED)]
    places = {
        page: ROOT / page.removeprefix("project/") if page.startswith("project/") else DOCS / page
        for page in own
    }
    return {page: by_hand(place.read_text(encoding="utf-8")) for page, place in places.items()}


def for_contributors():
    """Pages and folders that the site leaves in the repository."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return yaml.safe_load(re.search(r"^exclude_docs: \|\n(?:  .*\n)+", text, re.MULTILINE)[0])[
        "exclude_docs"
    ].split()


def test_every_page_has_one_place_in_the_navigation(named):
    kept = tuple(for_contributors())
    assert all((DOCS / page).exists() for page in kept)
    every = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    there = {page for page in every if not page.startswith((*kept, f"{APPENDED}/"))}
    assert {page for page in named if not page.startswith("project/")} == there
    assert len(named) == len(set(named))


def test_the_site_is_short_enough_to_be_read(written):
    words = {page: len(text.split()) for page, text in written.items()}
    # CONTRIBUTING.md asks each change for a line there: it is no page that somebody reads through.
    del words["project/CHANGELOG.md"]
    found = sum(words.values())
    assert found <= MOST_WORDS, f"{found - MOST_WORDS} words too many on pages written by hand: {words}"


def test_no_paragraph_is_longer_than_a_reader_s_breath(written):
    long = []
    for page, text in written.items():
        parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.) ?)", text)
        long += [
            f"{page}: {len(part.split())}: {part.strip()[:60]}"
            for part in parts
            if not part.startswith(("|", "    ")) and len(part.split()) > MOST_WORDS_OF_A_PARAGRAPH
        ]
    assert long == []


def test_the_site_asks_no_other_host():
    """The theme asks api.github.com on each page if `repo_url` names a repository there."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert not re.search(r"^repo_url:", text, re.MULTILINE)
    assert re.search(r"^  font: false$", text, re.MULTILINE)


def test_the_replicas_of_the_worked_day_follow_from_what_the_commands_print():
    page = (DOCS / "worked-day.md").read_text(encoding="utf-8")
    carried = {
        arm: float(low)
        for arm, low in re.findall(r"^(none|eagle3/2) .* \S+ \[([\d.]+),[\d.]+\] yes$", page, re.MULTILINE)
    }
    needed = {arm: math.ceil(48 * HEADROOM / low) for arm, low in carried.items()}
    assert f"| a replica carries at least | {carried['none']:g} rps | {carried['eagle3/2']:g} rps |" in page
    assert f"| replicas for 48 x {HEADROOM:g} | {needed['none']} | {needed['eagle3/2']} |" in page


def test_guests_exist_and_the_hook_brings_them(named):
    guests = {page.removeprefix("project/") for page in named if page.startswith("project/")}
    hook = (ROOT / "packaging" / "site" / "site_links.py").read_text(encoding="utf-8")
    assert guests == set(
        re.findall(r'"([\w/-]+\.md)"[,)]', hook.partition("GUESTS = ")[2].partition("\n")[0])
    )
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


@pytest.mark.parametrize(
    "page", sorted((*DOCS.glob("*.md"), *DOCS.glob("cli/*.md"))), ids=lambda page: page.stem
)
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
