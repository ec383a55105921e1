"""What a script of pairs has shown, from what was kept so far, however little that is; pure.

A figure has its standard error beside it: by the scatter of windows of one kind, or by neighbouring pairs of windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import StatisticsError, correlation, fmean, median

from real.machine_state import MachineLook

PLAIN = "none"
AGAIN = "none again"
"""No speculation, restarted with what may make a prompt cheaper beside decodes."""

DECODE, BESIDE, IN_TURN = "decode only", "prompts beside decodes", "in turn"
STOPPED, MIXED, RESTARTED = "one engine stopped", "mixed lengths", "none restarted"
PARTS = (DECODE, BESIDE, IN_TURN, STOPPED, MIXED, RESTARTED)
ONE_LENGTH, LENGTHS, OPEN = "closed, one length", "closed, mixed lengths", "open at that rate"

TERM_S, STATE, STEADY_PAIRS = 0.004, 0.05, 0.03
"""Limits of the verdicts: seconds of a prompt beside decodes, scatter of windows, scatter of pairs."""

_DEVIATIONS = 1.64
HEAD = ("part", "what", "figure", "standard error", "windows")
Row = tuple[str, str, str, str, str]
_REASONS = {0x4: "power cap", 0x8: "slowed down", 0x20: "warm", 0x40: "hot", 0x80: "power brake"}
_SHOWN = {
    "loop_ms": "loop of Python, ms",
    "busy": "processors busy, share",
    "steal": "processors taken away, share",
    "sm_mhz": "clock, MHz",
    "memory_mhz": "clock of memory, MHz",
    "watts": "power, W",
    "celsius": "temperature, C",
}


@dataclass(frozen=True, slots=True)
class Kept:
    """One window, one row of prompts, or one sentence about what was left out.

    Attributes:
        part: of the script.
        engine: its name.
        what: which load, in words.
        begun_s: Unix time of its begin, s.
        seconds: its length.
        figures: measured, each with its unit in its name.
        left_out: why there are no figures; empty if there are.
    """

    part: str
    engine: str
    what: str
    begun_s: float
    seconds: float
    figures: Mapping[str, float] = field(default_factory=dict)
    left_out: str = ""

    @property
    def log_s(self) -> float:
        """Logarithm of the mean latency in s."""
        return math.log(self.figures["latency_s"])


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its standard error, NaN if unknown, by so many windows."""

    value: float
    error: float
    windows: int

    def side_of(self, limit: float) -> str:
        """`above` or `at most` the limit, and whether chance may have made that."""
        word = "above" if self.value > limit else "at most"
        sure = abs(self.value - limit) > _DEVIATIONS * self.error
        return word if sure else f"{word} (not surely)"


def _windows(kept: Iterable[Kept], part: str) -> list[Kept]:
    """Windows of one part, in the order in which they were measured."""
    return [one for one in kept if one.part == part and "latency_s" in one.figures]


def _grouped(windows: Iterable[Kept]) -> dict[tuple[str, str], list[Kept]]:
    found: dict[tuple[str, str], list[Kept]] = {}
    for one in windows:
        found.setdefault((one.engine, one.what), []).append(one)
    return found


def _scatter(groups: Iterable[Sequence[float]]) -> Estimate:
    """Standard deviation about the mean of each group."""
    squares, freedom, count = 0.0, 0, 0
    for group in groups:
        squares += sum((one - fmean(group)) ** 2 for one in group)
        freedom, count = freedom + len(group) - 1, count + len(group)
    if not freedom:
        return Estimate(math.nan, math.nan, count)
    found = math.sqrt(squares / freedom)
    return Estimate(found, found / math.sqrt(2 * freedom), count)


def state(kept: Sequence[Kept], *engines: str) -> Estimate:
    """Scatter of ln(latency) of windows with equal arrivals, of some engines or of all.

    That of no speculation is the machine's state; drafts add the chance of their acceptance.
    """
    groups = _grouped(_windows(kept, IN_TURN)).items()
    return _scatter(
        [one.log_s for one in group] for (engine, _), group in groups if engine in engines or not engines
    )


def pairs(kept: Sequence[Kept]) -> dict[str, list[float]]:
    """ln(latency of no speculation over the arm's) of each window and the nearest one of no speculation, by arm."""
    windows = _windows(kept, IN_TURN)
    plain = [one for one in windows if one.engine == PLAIN]
    found: dict[str, list[float]] = {}
    for one in windows if plain else ():
        if one.engine != PLAIN:
            _, near = min((abs(other.begun_s - one.begun_s), other.log_s) for other in plain)
            found.setdefault(one.engine, []).append(near - one.log_s)
    return found


def speedup(ratios: Sequence[float]) -> Estimate:
    """Of an arm, by its pairs."""
    error = _scatter([ratios]).value / math.sqrt(len(ratios))
    mean = math.exp(fmean(ratios))
    return Estimate(mean, mean * error, len(ratios))


def prompt_costs(kept: Iterable[Kept], part: str, engine: str) -> dict[int, tuple[float, float]]:
    """By tokens of the prompt: what it adds to a lone step, and to each step of streams beside it (s).

    A lone prompt of few tokens stands for all that is not the prompt's. Beside streams all that a prompt adds is what their
    steps take longer than in the quiet before and after.
    """
    own = [one for one in kept if (one.part, one.engine) == (part, engine)]
    alone = {int(one.figures["tokens"]): one.figures["alone_s"] for one in own if "alone_s" in one.figures}
    found = {}
    for one in own:
        figures = one.figures
        if "quiet_s" in figures and (tokens := int(figures["tokens"])) in alone:
            beside = one.seconds * (1 - figures["quiet_s"] / figures["step_s"]) / figures["prompts"]
            found[tokens] = alone[tokens] - alone[min(alone)], beside
    return found


def term(kept: Iterable[Kept], part: str = BESIDE, engine: str = PLAIN) -> Estimate | None:
    """Seconds that a prompt costs beside decodes more than alone: mean over its lengths; None if not measured."""
    more = [beside - alone for alone, beside in prompt_costs(kept, part, engine).values()]
    if not more:
        return None
    return Estimate(fmean(more), _scatter([more]).value / math.sqrt(len(more)), len(more))


def rows(kept: Sequence[Kept], looks: Sequence[MachineLook]) -> list[Row]:
    """All that can be said."""
    return [
        *_decode_rows(kept),
        *_prompt_rows(kept, BESIDE),
        *_turn_rows(kept, looks),
        *_ratio_rows(kept, STOPPED, "latency over that beside the stopped engine"),
        *_mixed_rows(kept),
        *_ratio_rows(kept, RESTARTED, "latency over that before the restart"),
        *_prompt_rows(kept, RESTARTED),
        *_machine_rows(looks),
    ]


def _decode_rows(kept: Sequence[Kept]) -> list[Row]:
    groups = _grouped(one for one in _windows(kept, DECODE) if "step_s" in one.figures)
    steps = {key: [math.log(one.figures["step_s"]) for one in group] for key, group in groups.items()}
    scatter = _scatter(steps.values()).value
    return [
        _row(
            DECODE,
            f"step of {engine}, {what}, ms",
            Estimate(1e3 * math.exp(fmean(logs)), 1e3 * math.exp(fmean(logs)) * scatter / math.sqrt(len(logs)), len(logs)),
        )
        for (engine, what), logs in steps.items()
    ]  # fmt: skip


def _prompt_rows(kept: Sequence[Kept], part: str) -> list[Row]:
    found = []
    for engine in dict.fromkeys(one.engine for one in kept if one.part == part):
        for tokens, (alone, beside) in sorted(prompt_costs(kept, part, engine).items()):
            what = f"{engine}, prompt of {tokens} tokens: alone, beside streams, ms"
            found.append((part, what, f"{1e3 * alone:.1f}, {1e3 * beside:.1f}", "-", "1"))
        if more := term(kept, part, engine):
            shown = Estimate(1e3 * more.value, 1e3 * more.error, more.windows)
            found.append(_row(part, f"{engine}, a prompt beside streams more than alone, ms", shown))
    return found


def _turn_rows(kept: Sequence[Kept], looks: Sequence[MachineLook]) -> list[Row]:
    windows = _windows(kept, IN_TURN)
    scatter = state(kept)
    found = []
    for (engine, _), group in _grouped(windows).items():
        mean = math.exp(fmean(one.log_s for one in group))
        found.append(
            _row(
                IN_TURN,
                f"latency of {engine}, s"
                + (", requests piled up" if any(one.figures.get("piled_up") for one in group) else ""),
                Estimate(mean, mean * scatter.value / math.sqrt(len(group)), len(group)),
            )
        )
    by_arm = pairs(kept)
    found += [_row(IN_TURN, f"speedup of {arm}", speedup(ratios)) for arm, ratios in by_arm.items()]
    if math.isnan(scatter.value):
        return found
    found += [
        _row(IN_TURN, "scatter of windows, %", _percent(scatter)),
        _row(IN_TURN, f"scatter of windows of {PLAIN}, %", _percent(state(kept, PLAIN))),
        _row(IN_TURN, "scatter of pairs, %", _percent(_scatter(by_arm.values()))),
    ]
    means = {key: fmean(one.log_s for one in group) for key, group in _grouped(windows).items()}
    off = [one.log_s - means[one.engine, one.what] for one in windows]
    for what, linked in _linked(windows, off, looks):
        found.append(_row(IN_TURN, f"a window's state and {what}, correlation", linked))
    return found


def _linked(
    windows: Sequence[Kept], off: Sequence[float], looks: Sequence[MachineLook]
) -> list[tuple[str, Estimate]]:
    """Correlation of the windows' residuals with the window after, and with the machine's figures in the same window."""
    spans = [later.begun_s - one.begun_s for one, later in pairwise(windows)]
    found = [(f"the next window's, {median(spans):.0f} s later", off[:-1], off[1:])] if spans else []
    for name in ("loop_ms", "busy", "sm_mhz"):
        seen = [(residual, _mean(name, one, looks)) for one, residual in zip(windows, off, strict=True)]
        known = [(residual, mean) for residual, mean in seen if not math.isnan(mean)]
        found.append((_SHOWN[name], [one for one, _ in known], [one for _, one in known]))
    linked = []
    for what, first, second in found:
        try:
            value = correlation(first, second)
        except StatisticsError:
            # Fewer than two windows, or a figure that never changes.
            continue
        linked.append((what, Estimate(value, 1 / math.sqrt(len(first)), len(first))))
    return linked


def _mean(name: str, window: Kept, looks: Sequence[MachineLook]) -> float:
    """Of a figure of the machine in a window; NaN if it was not seen."""
    within = (look.figures for look in looks if 0 <= look.at_s - window.begun_s <= window.seconds)
    values = [figures[name] for figures in within if name in figures]
    return fmean(values) if values else math.nan


def _ratio_rows(kept: Sequence[Kept], part: str, what: str) -> list[Row]:
    """Latencies of a part over those in turn."""
    before = _grouped(_windows(kept, IN_TURN))
    scatter, found = state(kept).value, []
    for (engine, _), group in _grouped(_windows(kept, part)).items():
        plain = PLAIN if engine == AGAIN else engine
        others = [one for (name, _), windows in before.items() if name == plain for one in windows]
        if others:
            found.append(_row(part, f"{engine}: {what}", _ratio(group, others, scatter)))
    return found


def _ratio(group: Sequence[Kept], others: Sequence[Kept], scatter: float) -> Estimate:
    ratio = math.exp(fmean(one.log_s for one in group) - fmean(one.log_s for one in others))
    count = len(group) + len(others)
    return Estimate(ratio, ratio * scatter * math.sqrt(1 / len(group) + 1 / len(others)), count)


def _mixed_rows(kept: Sequence[Kept]) -> list[Row]:
    """Closed loops over the open loop of the same rate."""
    groups = {what: group for (_, what), group in _grouped(_windows(kept, MIXED)).items()}
    scatter = _scatter([one.log_s for one in group] for group in groups.values()).value
    return [
        _row(
            MIXED, f"{what}: latency over that of the open loop", _ratio(groups[what], groups[OPEN], scatter)
        )
        for what in (ONE_LENGTH, LENGTHS)
        if what in groups and OPEN in groups
    ]


def _machine_rows(looks: Sequence[MachineLook]) -> list[Row]:
    found = []
    for name, what in _SHOWN.items():
        seen = sorted(look.figures[name] for look in looks if name in look.figures)
        if seen:
            shown = f"{seen[0]:.4g}, {median(seen):.4g}, {seen[-1]:.4g}"
            found.append(("machine", f"{what}: least, median, most", shown, "-", str(len(seen))))
    for bit, reason in _REASONS.items():
        if count := sum(bool(look.reasons & bit) for look in looks):
            found.append(("machine", f"GPU throttled: {reason}, looks", str(count), "-", str(len(looks))))
    return found


def _percent(found: Estimate) -> Estimate:
    return Estimate(100 * found.value, 100 * found.error, found.windows)


def _row(part: str, what: str, found: Estimate) -> Row:
    value, error = (
        "-" if math.isnan(one) else f"{one:.{digits}g}"
        for one, digits in ((found.value, 4), (found.error, 2))
    )
    return part, what, value, error, str(found.windows)


def verdicts(kept: Sequence[Kept]) -> tuple[str, str, str]:
    """The three answers that the script is for."""
    more, scatter = term(kept), state(kept, PLAIN)
    both = _scatter(pairs(kept).values())
    stays, goes = "the term stays", "the term goes"
    return (
        "a prompt beside decodes: "
        + (
            "not measured"
            if more is None
            else f"{1e3 * more.value:.1f} ms more than alone, {more.side_of(TERM_S)} {1e3 * TERM_S:.0f} ms: "
            + (stays if more.value > TERM_S else goes)
        ),
        "state of the machine: "
        + _scatter_words(scatter, STATE, "pairs only", "windows one after the other will do"),
        "pairs: "
        + _scatter_words(
            both, STEADY_PAIRS, "the old points were no one bad minute", "the old points were one bad minute"
        ),
    )


def _scatter_words(found: Estimate, limit: float, above: str, below: str) -> str:
    if math.isnan(found.value):
        return "not measured"
    word = above if found.value > limit else below
    return f"{100 * found.value:.1f} % scatter, {found.side_of(limit)} {100 * limit:.0f} %: {word}"


def table(kept: Sequence[Kept], looks: Sequence[MachineLook]) -> str:
    """Rows, what was left out, and the verdicts, as text."""
    shown = [HEAD, *rows(kept, looks)]
    widths = [max(len(row[column]) for row in shown) for column in range(len(HEAD))]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in shown]
    left_out = dict.fromkeys(
        f"left out: {one.part}, {one.engine}: {one.left_out}" for one in kept if one.left_out
    )
    measured = {one.part for one in kept}
    lines += [*left_out, *(f"not reached: {part}" for part in PARTS if part not in measured)]
    return "\n".join([*lines, *verdicts(kept)]) + "\n"
