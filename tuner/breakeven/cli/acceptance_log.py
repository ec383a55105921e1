"""The lines of vLLM's log that state accepted tokens, pooled over the log.

vLLM 0.8.5 to 0.32 prints `SpecDecoding metrics:` every ten seconds. The line has the mean acceptance length (bonus token
included), accepted and drafted tokens, and the shares of drafts accepted up to each position
(three decimals).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from breakeven.errors import InputError

MARK = "SpecDecoding metrics:"
_FIGURE = r"([0-9]+(?:\.[0-9]+)?|nan)"
_MEAN = re.compile(rf"Mean acceptance length: {_FIGURE}")
_COUNTS = re.compile(r"\bAccepted: (\d{1,15}) tokens, Drafted: (\d{1,15}) tokens")
_SHARES = re.compile(rf"Per-position acceptance rate: ({_FIGURE}(?:, {_FIGURE})*)(?![\w.]|, [0-9n])")
# Each share is off by half a thousandth at most, the mean by half a hundredth.
_ROUNDED = 0.0005
_MEAN_ROUNDED = 0.005


@dataclass(frozen=True, slots=True)
class LoggedAcceptance:
    """Acceptance pooled over a log.

    Attributes:
        survival: share of drafts whose tokens up to each position were accepted. drafts: the number behind it.
    """

    survival: tuple[float, ...]
    drafts: float


def read_log(lines: Iterable[str], where: str) -> LoggedAcceptance:
    """Pool the lines of a log; each line is weighted by its drafts.

    Args:
        lines: of the log, other lines included.
        where: the log, named in messages.

    Raises:
        InputError: no line states accepted tokens, a line contradicts itself or is cut, or draft lengths differ.
    """
    sums: list[float] = []
    drafts, length_from = 0.0, 0
    for number, line in enumerate(lines, start=1):
        if MARK not in line:
            continue
        at = f"{where}: line {number}"
        one = _line(line, at)
        if one is None:
            continue
        if sums and len(one.survival) != len(sums):
            raise InputError(
                at,
                f"{len(one.survival)} positions, {len(sums)} in line {length_from}",
                "one draft length: cut the log there",
            )
        sums, length_from = sums or [0.0] * len(one.survival), length_from or number
        sums = [before + share * one.drafts for before, share in zip(sums, one.survival, strict=True)]
        drafts += one.drafts
    if not drafts:
        raise InputError(
            where,
            f"no line with {MARK!r} in which something was drafted",
            "the log of a vLLM that speculates",
        )
    return LoggedAcceptance(tuple(total / drafts for total in sums), drafts)


def _line(line: str, at: str) -> LoggedAcceptance | None:
    """One line; None if nothing was drafted."""
    mean, counts, shares = _MEAN.search(line), _COUNTS.search(line), _SHARES.search(line)
    if mean is None or counts is None or shares is None:
        expected = "mean acceptance length, accepted and drafted tokens, and acceptance rates per position, as vLLM writes them"
        raise InputError(at, "a line that is cut or of another program", expected)
    accepted, drafted = int(counts[1]), int(counts[2])
    if not drafted or "nan" in (mean[1], *shares[1].split(", ")):
        return None
    survival = tuple(float(share) for share in shares[1].split(", "))
    total = sum(survival)
    if abs(float(mean[1]) - 1.0 - total) > _MEAN_ROUNDED + _ROUNDED * len(survival) or max(survival) > 1.0:
        said = f"mean acceptance length {mean[1]}, and shares that add up to {total:.3f}"
        raise InputError(at, said, "a mean of 1 + their sum, as vLLM counts it")
    # vLLM drafts fewer than k tokens if a lookup finds fewer. Accepted tokens per draft give the number of drafts.
    return LoggedAcceptance(survival, accepted / total if accepted and total else drafted / len(survival))
