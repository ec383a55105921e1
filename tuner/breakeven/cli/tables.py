"""Readable tables: aligned, units in the header, bounds in brackets, warnings last."""

from __future__ import annotations

from collections.abc import Sequence

import click

from breakeven.profile.fits import Bounds

_WIDEST = 400


def figure(value: float | None) -> str:
    """Three significant digits without an exponent; a dash where there is no figure."""
    if value is None:
        return "-"
    if value == float("inf"):
        return "unbounded"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.1e}"


def bounds(value: float | None, interval: Bounds | None, scale: float = 1.0) -> str:
    """A value with its bounds, `1.82 [1.74, 1.90]`; an open end is three dots."""
    if value is None:
        return "-"
    text = figure(value * scale)
    if interval is None:
        return text
    low, high = ("..." if end is None else figure(end * scale) for end in interval)
    return f"{text} [{low}, {high}]"


def through(interval: Bounds | None) -> str:
    """Bounds in a sentence, ` (1.44 to 1.66)`; nothing where there are none."""
    if interval is None:
        return ""
    low, high = interval
    if low is None and high is None:
        return " (no bound)"
    if high is None:
        return f" (at least {figure(low)})"
    return f" (at most {figure(high)})" if low is None else f" ({figure(low)} to {figure(high)})"


def percent(share: float | None) -> str:
    """A share in percent with one decimal."""
    return "-" if share is None else f"{100.0 * share:.1f} %"


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns side by side; colour only sets the header off."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for name in header:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # A terminal narrower than the table wraps or scrolls; a figure cut off in the middle would lie.
    Console(highlight=False, width=_WIDEST).print(table)


def print_warnings(warnings: Sequence[str]) -> None:
    """Print warnings last, one a line, marked by an exclamation mark."""
    for warning in warnings:
        click.echo(f"! {warning}")
