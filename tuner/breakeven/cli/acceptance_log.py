"""The lines of vLLM's log that state accepted tokens, pooled over the log.

vLLM prints `SpecDecoding metrics:` every ten seconds. The line has the mean acceptance length (bonus token
included), accepted and drafted tokens, and the shares of drafts accepted up to each position
(three decimals).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from breakeven.errors import InputError
from breakeven.phrases import figure

MARK = "SpecDecoding metrics:"
_FIGURE = r"([0-9]+(?:\.[0-9]+)?|nan)"
_MEAN = re.compile(rf"Mean acceptance length: {_FIGURE}")
_COUNTS = re.compile(r"\bAccepted: (\d{1,15}) tokens, Drafted: (\d{1,15}) tokens")
_SHARES = re.compile(rf"Per-position acceptance rate: ({_FIGURE}(?:, {_FIGURE})*)(?![\w.]|, [0-9n])")
# Each share is off by half a thousandth at most, the mean by half a hundredth.
_ROUNDED = 0.0005
_MEAN_ROUNDED = 0.005
# The last drafts before the end of a context are shorter.
_SHORTER = 0.03


@dataclass(frozen=True, slots=True)
class LoggedAcceptance:
    """Acceptance pooled over a log, or of one line.

    Attributes:
        survival: share of drafts whose tokens up to each position were accepted.
        drafts: the number behind it.
        accepted: tokens.
        drafted: tokens.
    """

    survival: tuple[float, ...]
    drafts: float
    accepted: int
    drafted: int

    @property
    def depth(self) -> float | None:
        """Mean length of a draft; None if nothing was accepted, because drafts are then counted as whole ones."""
        return self.drafted / self.drafts if self.accepted else None

    def is_of_length(self, length: float) -> bool:
        """Whether its drafts may have had this length on average, by the digits that a line has."""
        off = _SHORTER + _ROUNDED * len(self.survival) / max(sum(self.survival), _ROUNDED)
        return self.depth is None or abs(self.depth - length) <= off * length


def read_log(lines: Iterable[str], where: str, *, looked_up: bool = False) -> LoggedAcceptance:
    """Pool the lines of a log; each line is weighted by its drafts.

    Args:
        lines: of the log, other lines included.
        where: the log, named in messages.
        looked_up: the drafts were looked up, so that one may be shorter than another.

    Raises:
        InputError: no line states accepted tokens, a line contradicts itself or is cut, or draft lengths differ.
    """
    sums: list[float] = []
    drafts, accepted, drafted, first, length = 0.0, 0, 0, 0, 0.0
    for number, line in enumerate(lines, start=1):
        at = f"{where}: line {number}"
        one = _line(line, at) if MARK in line else None
        if one is None:
            continue
        if sums and len(one.survival) != len(sums):
            raise InputError(at, f"{len(one.survival)} positions, {len(sums)} in line {first}", _ONE_LENGTH)
        if not looked_up and one.depth is not None:
            length = length or _whole(one, at)
            if not one.is_of_length(length):
                raise InputError(
                    at, f"drafts of {figure(one.depth)} tokens, of {length:g} before", _ONE_LENGTH
                )
        sums, first = sums or [0.0] * len(one.survival), first or number
        sums = [before + share * one.drafts for before, share in zip(sums, one.survival, strict=True)]
        drafts, accepted, drafted = drafts + one.drafts, accepted + one.accepted, drafted + one.drafted
    if not drafts:
        raise InputError(
            where,
            f"no line with {MARK!r} in which something was drafted",
            "the log of a vLLM that speculates",
        )
    # Positions beyond the length of all drafts were never drafted.
    survival = tuple(total / drafts for total in sums[: int(length) or None])
    return LoggedAcceptance(survival, drafts, accepted, drafted)


_ONE_LENGTH = "one draft length: cut the log there (of look-ups: --method ngram or suffix)"


def _whole(one: LoggedAcceptance, at: str) -> float:
    """The one length of a line's drafts."""
    longest = len(one.survival)
    depth = one.depth or float(longest)
    length = float(longest if one.is_of_length(longest) else round(depth))
    if not (0 < length <= longest and one.is_of_length(length)) or any(
        share > _ROUNDED for share in one.survival[int(length) :]
    ):
        raise InputError(
            at, f"drafts of {figure(depth)} tokens on average, with {longest} positions", _ONE_LENGTH
        )
    return length


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
    drafts = accepted / total if accepted and total else drafted / len(survival)
    return LoggedAcceptance(survival, drafts, accepted, drafted)
