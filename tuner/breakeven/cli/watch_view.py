"""One frame of `breakeven watch`: present figures, where they lie on the curve, and what would pay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from breakeven.cli.tables import bounds, figure, through
from breakeven.reasons import PAYS

if TYPE_CHECKING:
    from breakeven.cli.worth_view import ToldWorth
    from breakeven.past.standing import ArmNow, Standing
    from breakeven.serving.causes import Finding
    from breakeven.serving.counted_window import Window

_BAR, _LEVELS = 40, "▁▂▃▄▅▆▇█"
_MOST_LOADS = 60
_BEYOND = {
    "below": "pays until a load beyond those that the past knows",
    "above": "pays from a load beyond those that the past knows",
}


class Frame(NamedTuple):
    """Content of a frame.

    Attributes:
        title: of whom, and when.
        standing: the moment.
        pods: that have series.
        loads: rates per pod that were seen until now (1/s), oldest first.
        findings: what is wrong with the figures, or with speculation.
        past: which past the curves are of, or why there are none.
        worth: answer about arms that never ran; None: it was not asked.
    """

    title: str
    standing: Standing
    pods: int
    loads: Sequence[float]
    findings: Sequence[Finding]
    past: str
    worth: ToldWorth | None


def drawn(frame: Frame) -> Group:
    """Draw a frame."""
    parts: list[RenderableType] = [Text(frame.title, style="bold"), _figures(frame)]
    if (now := frame.standing.of_running) is not None:
        parts.append(_curve(frame.standing, now))
        parts.append(_arms(frame.standing))
    parts.extend(_never_ran(frame.worth))
    parts += [Text(f"! {one.cause}: {one.evidence}", style="yellow") for one in frame.findings]
    parts.append(Text(frame.past, style="dim"))
    return Group(*parts)


def _figures(frame: Frame) -> Table:
    window, standing = frame.standing.window, frame.standing
    table = Table.grid(padding=(0, 2))
    runs = " and ".join(map(str, standing.running)) or "drafts of which the past knows no arm"
    rows = [
        ("runs", runs),
        ("load", f"{figure(window.rps)} rps per pod, {figure(window.total_rps)} of {frame.pods} pods"),
        ("in flight", f"{figure(in_flight(window))} per pod, as rate times latency"),
        ("latency", f"{figure(window.latency_s)} s{_predicted(standing.predicted_s)}"),
        ("first token", f"{figure(window.ttft_s)} s"),
        ("tokens per step", figure(window.tokens_per_step)),
        ("lengths", f"{figure(window.prompt_tokens)} in, {figure(window.output_tokens)} out"),
        ("loads so far", spark(frame.loads)),
    ]
    for name, value in rows:
        table.add_row(Text(name, style="dim"), value)
    return table


def in_flight(window: Window) -> float | None:
    """Requests in flight at a pod, by Little's law."""
    return window.rps * window.latency_s if window.latency_s is not None else None


def _predicted(latency_s: float | None) -> str:
    return f"; the past's law says {figure(latency_s)} s" if latency_s is not None else ""


def spark(loads: Sequence[float]) -> str:
    """Loads as a line of blocks from 0 to the highest; the newest sixty."""
    shown = [load for load in loads[-_MOST_LOADS:] if math.isfinite(load)]
    top = max(shown, default=0.0)
    if top <= 0.0:
        return "-"
    return "".join(_LEVELS[min(int(load / top * len(_LEVELS)), len(_LEVELS) - 1)] for load in shown)


def _curve(standing: Standing, now: ArmNow) -> Text:
    """The load as a bar up to the break-even, or a sentence if there is none."""
    found, rps = now.against_none, standing.window.rps
    if found.break_even_rps is None:
        return Text(f"{now.arm} {(PAYS | _BEYOND)[str(found.verdict).lower()]}")
    filled = min(round(_BAR * rps / found.break_even_rps), _BAR) if found.break_even_rps > 0.0 else _BAR
    bar = Text("█" * filled + "░" * (_BAR - filled), style="green" if rps < found.break_even_rps else "red")
    share = 100.0 * rps / found.break_even_rps if found.break_even_rps > 0.0 else math.inf
    said = f" {share:.0f} % of the break-even, {figure(found.break_even_rps)} rps{through(found.break_even_ci_rps)}"
    return bar.append(said, style="default")


def _arms(standing: Standing) -> Table:
    """Table of the arms that ran, at the present load."""
    table = Table(title="At this load, by the past", title_justify="left")
    for head in ("arm", "speedup", "break-even rps", "verdict"):
        table.add_column(head)
    for arm, found in standing.arms:
        table.add_row(
            str(arm),
            "saturated"
            if found.speedup == 0.0 and found.speedup_ci is None
            else bounds(found.speedup, found.speedup_ci),
            bounds(found.break_even_rps, found.break_even_ci_rps),
            str(found.verdict).lower(),
        )
    return table


def _never_ran(told: ToldWorth | None) -> Iterator[RenderableType]:
    """Table of the arms that never ran, by measurements of others."""
    if told is None or not told.answer.arms:
        return
    worth = told.answer
    table = Table(title=f"Never ran here (FromPrior): {worth.word}", title_justify="left")
    for head in ("arm", "pays until rps", "gain % over the past's loads", "chance"):
        table.add_column(head)
    for one in worth.arms:
        until = one.break_even_rps
        table.add_row(
            str(one.arm),
            "saturation" if until.value is None else bounds(until.value, until.bounds),
            bounds(one.gain.value, one.gain.bounds, 100.0),
            f"{100.0 * one.chance:.0f} %",
        )
    yield table
