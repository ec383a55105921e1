"""HTML and CSS of the board: views in, text out. Every word is escaped, and nothing on a page is a script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from breakeven.phrases import spoken
from breakeven.reporting.theme import DARK, LIGHT, Theme
from breakeven_operator.board import curve_drawing
from breakeven_operator.board.board_list import ServiceList
from breakeven_operator.board.board_rows import age
from breakeven_operator.board.board_service import ServicePage
from breakeven_operator.board.what_if import FIELDS
from breakeven_operator.plugin.service_view import short_age
from breakeven_operator.printable import one_line
from breakeven_operator.reconcile.formatting import figure
from breakeven_operator.reconcile.worth import bounded_text, time_text

if TYPE_CHECKING:
    import jinja2

STYLE = "style.css"
RENEWALS_S = (0, 15, 60)
"""Seconds between two renewals that a page offers; 0: none. A reader chooses, because a page that moves by itself disturbs."""


@dataclass(frozen=True, slots=True)
class Frontispiece:
    """The parts that all pages share.

    Attributes:
        prefix: path below which the board is served, such as `/breakeven`; empty: at the root.
        query: the page's own fields, without `renew`.
        renew_s: time between two renewals; 0: none.
        published: when the last cycle of this operator ended.
        stale: a sentence if that is too long ago; empty otherwise.
        gpu_price_per_hour: None: no money is shown.
        now: when the page is read.
    """

    prefix: str
    query: Mapping[str, str]
    renew_s: int
    published: datetime
    stale: str
    gpu_price_per_hour: float | None
    now: datetime


def list_html(page: ServiceList, front: Frontispiece) -> str:
    """The page of all services."""
    return _render("board.html.j2", front, list=page)


def service_html(page: ServicePage, front: Frontispiece) -> str:
    """The page of one service."""
    return _render(
        "service.html.j2", front, page=page, fields=FIELDS, width=curve_drawing.WIDTH, height=curve_drawing.HEIGHT,
        strip_height=curve_drawing.STRIP_HEIGHT,
    )  # fmt: skip


def message_html(title: str, text: str, prefix: str) -> str:
    """A page that says why there is no other one."""
    return _environment().get_template("message.html.j2").render(
        title=title, text=text, prefix=prefix, style=STYLE
    )  # fmt: skip


@cache
def style_css() -> str:
    """The style of the report's pages and the board's own, with the palettes of the pictures."""
    return _environment().get_template("board.css.j2").render(
        light=_colours(LIGHT), dark=_colours(DARK), styles=curve_drawing.STYLES
    )  # fmt: skip


def _colours(theme: Theme) -> list[str]:
    return [theme.ink, *theme.palette]


def _render(template: str, front: Frontispiece, **views: Any) -> str:
    return _environment().get_template(template).render(
        front=front, style=STYLE, renewals=RENEWALS_S, short_age=short_age, age=age, **views
    )  # fmt: skip


@cache
def _environment() -> jinja2.Environment:
    import jinja2  # noqa: PLC0415 - two megabytes that an operator without readers does without

    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader("breakeven_operator.board"), jinja2.PackageLoader("breakeven.reporting")]
        ),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        # A reader must see the name itself: no character in it turns the direction of the text around it.
        finalize=_shown,
    )
    environment.filters |= {
        "figure": figure,
        "bounded": bounded_text,
        "duration": time_text,
        "spoken": spoken,
    }
    return environment


def _shown(value: object) -> object:
    return one_line(value) if type(value) is str and not value.isprintable() else value
