"""A self-contained HTML page of pictures and tables; the report and the demo fill it."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from breakeven.reporting.theme import DARK, LIGHT, Theme, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[[Theme], "Figure"]


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure: how to draw it on either paper, and the sentence under it; the first ones stand above the warnings.

    `narrows`: it is drawn for a phone, too.
    """

    draw: Draw
    caption: str
    first: bool = False
    narrows: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are text already: units stand in the head, bounds in brackets."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPage:
    """The parts of a page, from the top.

    Attributes:
        facts: about the measurement or the run, a few words each.
        verdict: the sentence that a hurried reader takes away.
        warnings: limits of the figures, a sentence each.
    """

    title: str
    facts: Sequence[str]
    verdict: str
    note: str = ""
    pictures: Sequence[Picture]
    warnings: Sequence[str]
    tables: Sequence[Table]
    footer: str


def render_page(page: ReportPage) -> str:
    """Render a page; all text is escaped, pictures are inline SVG in a light and a dark version, for wide screens and phones."""
    import jinja2  # noqa: PLC0415 - only pages need it

    def drawn(picture: Picture) -> dict[str, dict[str, str]]:
        widths = {"wide": False, "narrow": True} if picture.narrows else {"every-width": False}
        return {
            width: {theme.name: _svg(picture.draw, replace(theme, narrow=narrow)) for theme in (LIGHT, DARK)}
            for width, narrow in widths.items()
        }

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("breakeven.reporting"),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("page.html.j2").render(
        page=page,
        pictures=[
            {
                "first": picture.first,
                "caption": picture.caption,
                "svg": drawn(picture),
            }
            for picture in page.pictures
        ],
    )


def render_png(draw: Draw, dots_per_inch: int = 150) -> bytes:
    """Draw one picture as PNG on light paper."""
    buffer = io.BytesIO()
    with drawing(LIGHT):
        # Without the program's version in its metadata, the same profile gives the same bytes.
        draw(LIGHT).savefig(buffer, format="png", dpi=dots_per_inch, metadata={"Software": None})
    return buffer.getvalue()


def _svg(draw: Draw, theme: Theme) -> str:
    buffer = io.StringIO()
    with drawing(theme):
        draw(theme).savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # Two pictures on one page may not share identifiers: clip paths of one would cut the other.
    prefix = f"{theme.name}{zlib.crc32(text.encode()):08x}-"
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    return re.sub(r'(url\(#|href="#)', rf"\1{prefix}", text)
