# ruff: noqa: INP001 - mkdocs loads it by its path
"""Hooks of the site: pages of elsewhere come in, links that lead out go to the repository, and the theme's gaps for readers of keyboards are closed.

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
GUESTS = ("CHANGELOG.md", "charts/breakeven/README.md", "examples/README.md")
"""Pages outside of docs/ that the site has, below project/."""

_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_CODE = re.compile(r"(```.*?```|`[^`\n]+`)", re.DOTALL)
_UNNAMED = re.compile(
    r'aria-labelledby="__nav_\w+"([^>]*>\s*<label class="md-nav__title".*?</span>\s*([^<]+?)\s*</label>)',
    re.DOTALL,
)
_NAME = re.compile(r"(?<=<td><code>)[^<]+(?=</code>)")


def on_config(config: Any) -> Any:
    """Append one page per runbook to the navigation."""
    pages = sorted(file.name for file in (ROOT / "docs" / "runbooks").glob("*.md"))
    config.nav.append({"Runbooks": [f"runbooks/{name}" for name in pages]})
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
        return f"{link[1]}{_moved(link[2], here, config.extra['repository'], files)}{link[3]}"

    parts = _CODE.split(markdown)
    return "".join(part if place % 2 else _LINK.sub(moved, part) for place, part in enumerate(parts))


def on_page_content(html: str, **_: Any) -> str:
    """Let names of fields break at their dots, and a keyboard scroll tables."""
    html = _NAME.sub(lambda name: name[0].replace(".", ".<wbr>"), html)
    return html.replace("<table>", '<table tabindex="0">')


def on_post_page(output: str, **_: Any) -> str:
    """Name what the theme leaves without a name for who does not see it: the search, and lists of pages; no key leads to its hidden switches."""
    output = _UNNAMED.sub(r'aria-label="\2"\1', output)
    output = output.replace('class="md-option"', 'class="md-option" tabindex="-1"')
    return output.replace('role="dialog">', 'role="dialog" aria-label="Search">', 1)


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
    found = files.get_file_from_path(place)
    if found is not None and found.inclusion.is_included():
        return posixpath.relpath(place, posixpath.dirname(here) or ".") + tail
    kind = "tree" if (ROOT / wanted).is_dir() else "blob"
    return f"{repository}/{kind}/main/{wanted}{tail}"
