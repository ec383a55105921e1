# ruff: noqa: INP001 - mkdocs loads it by its path
"""Hooks of the site: pages that lie outside of docs/ come in, and links that lead out of it go to the repository.

Pages are written for a reader of the repository, where `../SECURITY.md` is a file. The site has the same pages at other places.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
GUESTS = (
    "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "charts/breakeven/README.md", "examples/README.md", "localcluster/README.md",
    "real/README.md", "tests/README.md",
)  # fmt: skip
"""Pages outside of docs/ that the site has, below project/."""

_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_CODE = re.compile(r"(```.*?```|`[^`\n]+`)", re.DOTALL)


def on_config(config: Any) -> Any:
    """Append one page per runbook and decision to the navigation."""
    for title, folder in (("Runbooks", "runbooks"), ("Decisions", "decisions")):
        pages = sorted(file.name for file in (ROOT / "docs" / folder).glob("*.md"))
        first = [name for name in pages if name == "README.md"]
        config.nav.append(
            {title: [f"{folder}/{name}" for name in [*first, *(p for p in pages if p not in first)]]}
        )
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the guests."""
    for path in GUESTS:
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, f"project/{path}", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Let each link lead to where its target is on the site, else to the repository."""
    here = page.file.src_uri

    def moved(link: re.Match[str]) -> str:
        return f"{link[1]}{_moved(link[2], here, config.repo_url, files)}{link[3]}"

    parts = _CODE.split(markdown)
    return "".join(part if place % 2 else _LINK.sub(moved, part) for place, part in enumerate(parts))


def _moved(target: str, here: str, repository: str, files: Any) -> str:
    path, _, anchor = target.partition("#")
    if not path or re.match(r"[a-z]+:", target):
        return target
    source = here.removeprefix("project/") if here.startswith("project/") else f"docs/{here}"
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if not (ROOT / wanted).exists():
        raise PluginError(f"{source}: {target}: no such file")
    if (ROOT / wanted / "README.md").exists():
        wanted = f"{wanted}/README.md"
    place = wanted.removeprefix("docs/") if wanted.startswith("docs/") else f"project/{wanted}"
    tail = f"#{anchor}" if anchor else ""
    if files.get_file_from_path(place) is not None:
        return posixpath.relpath(place, posixpath.dirname(here) or ".") + tail
    kind = "tree" if (ROOT / wanted).is_dir() else "blob"
    return f"{repository}/{kind}/main/{wanted}{tail}"
