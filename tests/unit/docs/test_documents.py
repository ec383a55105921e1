"""Targets of the pages' links exist: files, headings, make targets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    page
    for folder in ("", "docs", "examples", "charts/breakeven", "localcluster", "tests", "studies")
    for page in ((ROOT / folder).rglob("*.md") if folder else ROOT.glob("*.md"))
)


def anchors(page: Path) -> set[str]:
    """Headings as GitHub links to them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_make_targets_that_pages_name_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (page.name, target)
        for page in PAGES
        for target in re.findall(r"(?:`|^\$ |^ {4})make ([a-z-]+)", page.read_text(), re.MULTILINE)
    }
    assert len(named) >= 8
    assert {target for _, target in named} <= targets, named


@pytest.mark.parametrize(
    "page", ["CONTRIBUTING.md", "SECURITY.md", "tests/README.md", "localcluster/README.md"]
)
def test_files_that_a_page_names_exist(page):
    named = re.findall(
        r"`((?:tuner|operator|tests|studies|charts|docs|crds|localcluster|demo|requirements)/[^` *]+)`",
        (ROOT / page).read_text(),
    )
    assert named
    assert not [path for path in named if not any(ROOT.glob(path.rstrip("/")))]
