"""Readable tables: aligned, units in the header, bounds in brackets, warnings last, within 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import click

from breakeven.phrases import NOT_KNOWN, are_known
from breakeven.profile.fits import Bounds

_WIDTH = 100


def figure(value: float | None) -> str:
    """Three significant digits without an exponent; a dash where there is no figure."""
    if value is None:
        return "-"
    if value == float("inf"):
        return "unbounded"
    if value == 0:
        return "0"
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:#.3g}" if abs(value) >= 1e-3 else f"{value:.1e}"


def bounds(value: float | None, interval: Bounds | None, scale: float = 1.0) -> str:
    """A value with its bounds, `1.82 [1.74,1.90]`; an open end is three dots, and bounds that say nothing are `not known yet`."""
    text = within(value, interval, scale)
    if value is None or interval is None or text == NOT_KNOWN:
        return text
    low, high = ("..." if end is None else figure(end * scale) for end in interval)
    return f"{text} [{low},{high}]"


def within(value: float | None, interval: Bounds | None, scale: float = 1.0) -> str:
    """A value without its bounds, unless these say nothing."""
    if value is None:
        return "-"
    known = interval is None or value <= 0.0 or are_known(value, *interval)
    return figure(value * scale) if known else NOT_KNOWN


def percent(share: float | None) -> str:
    """A share in percent with one decimal."""
    return "-" if share is None else f"{100.0 * share:.1f} %"


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns side by side, as wide as their figures need; a terminal's bold only sets the header off."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return "  ".join(padded).rstrip()

    click.echo(click.style(line(header), bold=True))
    for row in rows:
        click.echo(line(row))


def print_text(text: str, mark: str = "") -> None:
    """Print a sentence over as many lines as it needs, those after the first indented."""
    wrapped = textwrap.wrap(
        mark + text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    click.echo("\n".join(wrapped))


def print_warnings(warnings: Sequence[str]) -> None:
    """Print warnings last, marked by an exclamation mark; a warning about several arms is printed once."""
    owners: dict[str, list[str]] = {}
    for warning in dict.fromkeys(warnings):
        owner, colon, text = warning.partition(": ")
        is_arm = bool(colon) and " " not in owner
        owners.setdefault(text if is_arm else warning, []).extend([owner] if is_arm else [])
    for text, named in owners.items():
        print_text(f"{', '.join(named)}: {text}" if named else text, mark="! ")
