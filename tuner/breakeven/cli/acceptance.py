"""`breakeven acceptance`: from any acceptance number in circulation to all the others."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click

from breakeven import phrases
from breakeven.cli.output import bounds, echo_result, figure, json_option, print_table, print_warnings
from breakeven.cli.parameters import InputFile, Number, Share, read_survival
from breakeven.errors import InputError
from breakeven.methods import LOOKUP_METHODS


@click.command("acceptance")
@click.option(
    "--per-position",
    callback=read_survival,
    metavar="S1,S2,...",
    help="Share of steps whose first i drafts were all accepted, i = 1..k.",
)
@click.option("--accepted", type=Number(0), help="Accepted draft tokens in all (needs --drafts and --k).")
@click.option(
    "--length",
    type=Number(0),
    help="Mean acceptance length (needs --k, and --bonus where both readings are possible).",
)
@click.option(
    "--bonus",
    type=click.Choice(["included", "excluded"]),
    help="Whether --length counts the target's own token of each step: vLLM's and SGLang's do, accepted tokens per step do not.",
)
@click.option(
    "--rate",
    type=Share(),
    help="Accepted over drafted tokens, as vLLM prints it, such as .447 or 44.7% (needs --k).",
)
@click.option(
    "--log",
    type=InputFile(dash=True),
    help="vLLM's log: its lines 'SpecDecoding metrics:' are pooled; - reads standard input.",
)
@click.option("--drafts", type=Number(0, min_open=True), help="Number of drafts behind --accepted.")
@click.option("--k", type=click.IntRange(1, 128), help="Draft length at which it was measured.")
@click.option(
    "--for-k", type=click.IntRange(1, 128), help="Draft length to extrapolate to; default: the measured one."
)
@click.option(
    "--method",
    default="draft_model",
    show_default=True,
    help="vLLM's method; ngram and suffix do not decay with depth.",
)
@json_option
def command(
    per_position: tuple[float, ...] | None,
    accepted: float | None,
    length: float | None,
    bonus: str | None,
    rate: float | None,
    log: Path | None,
    drafts: float | None,
    k: int | None,
    for_k: int | None,
    method: str,
    *,
    as_json: bool,
) -> None:
    """Tokens per step, acceptance rate, alpha and survival: they are four different numbers.

    Tokens per step include the bonus token. The acceptance rate is accepted over drafted tokens, as vLLM prints it.
    Alpha is the rate of independent acceptances that gives the same tokens per step; it is not the acceptance rate.

    \b
    Examples:
      breakeven acceptance --per-position .5732,.2821,.1313,.0620,.0296
      breakeven acceptance --per-position .6731,.4395,.2811 --method eagle3 --for-k 7
      breakeven acceptance --accepted 265 --drafts 127 --k 3
      breakeven acceptance --length 2.1 --bonus included --k 3
      kubectl logs chat-vllm-0 | breakeven acceptance --log -
    """
    given = {
        "--per-position": per_position,
        "--accepted": accepted,
        "--length": length,
        "--rate": rate,
        "--log": log,
    }
    options = [name for name, value in given.items() if value is not None]
    if len(options) != 1:
        raise click.UsageError(f"give one of {', '.join(given)} (given: {', '.join(options) or 'none'})")
    if bonus is not None and length is None:
        raise click.UsageError("--bonus says how to read --length")
    if drafts is not None and accepted is None:
        raise click.UsageError("--drafts is the number of drafts behind --accepted")
    if per_position is not None:
        known = _from_positions(per_position, k)
    elif log is not None:
        with click.open_file(str(log), encoding="utf-8", errors="replace") as lines:
            found = read_log(lines, str(log), looked_up=method in LOOKUP_METHODS)
        known = _from_positions(found.survival, k)._replace(rate=found.accepted / found.drafted)
    elif k is None:
        raise click.UsageError(f"{options[0]} needs --k")
    elif accepted is not None:
        known = _from_counts(accepted, drafts, k)
    elif length is not None:
        known = _from_length(length, bonus, k)
    else:
        known = _Given(1.0 + (rate or 0.0) * k, k)
    drafted_only = log is not None and method in LOOKUP_METHODS
    result = _result(known, known.k if for_k is None else for_k, method=method, drafted_only=drafted_only)
    if as_json:
        echo_result(result)
    else:
        _print(result)


class _Given(NamedTuple):
    """E, the draft length at which it was measured, and survival if known.

    `rate` is accepted over drafted tokens as counted: look-ups draft fewer than k tokens at times.
    """

    tokens_per_step: float
    k: int
    survival: tuple[float, ...] | None = None
    rate: float | None = None


def _from_positions(survival: tuple[float, ...], k: int | None) -> _Given:
    if k is not None and k != len(survival):
        raise InputError("--k", f"{k} with {len(survival)} positions", "as many positions as drafted tokens")
    return _Given(1.0 + math.fsum(survival), len(survival), survival)


def _from_length(length: float, bonus: str | None, k: int) -> _Given:
    """A mean length. Included it lies in 1..k+1, excluded in 0..k: --bonus is needed only if both are possible."""
    possible = [name for name, most in (("excluded", k), ("included", k + 1)) if most - k <= length <= most]
    read = bonus or (possible[0] if len(possible) == 1 else None)
    if not possible or (read is not None and read not in possible):
        kind = f" with the bonus token {bonus}" if bonus else ""
        least, most = (1, k + 1) if bonus == "included" else (0, k if bonus else k + 1)
        why = f" (a step of {k} drafts yields at most {k} and the target's own)" if length > most else ""
        raise InputError("--length", f"{length:g} at k = {k}{kind}", f"{least} to {most}{why}")
    if read is None:
        raise InputError(
            "--length",
            f"{length:g} at k = {k}, which may or may not count the bonus token",
            "--bonus included (mean acceptance length of vLLM, SGLang) or excluded (accepted tokens per step)",
        )
    return _Given(length + (read == "excluded"), k)


def _from_counts(accepted: float, drafts: float | None, k: int) -> _Given:
    if drafts is None:
        raise click.UsageError("--accepted needs --drafts and --k")
    if accepted > drafts * k:
        raise InputError("--accepted", f"{accepted:g} of {drafts:g} drafts of {k}", f"at most {drafts * k:g}")
    return _Given(1.0 + accepted / drafts, k)


def _result(given: _Given, k: int, *, method: str, drafted_only: bool) -> dict[str, Any]:
    """Everything that follows from one measured profile or number, at draft length k."""
    from breakeven.laws.acceptance_numbers import AcceptanceModel, alpha_from_tokens_per_step
    from breakeven.laws.mixture import TwoPointMixture, default_decay

    profiles = {given.k: given.survival} if given.survival is not None else {}
    at, survival = AcceptanceModel(method, {given.k: given.tokens_per_step}, profiles).at(k), given.survival
    if survival is not None and k != given.k:
        shape = TwoPointMixture.fit(survival, default_decay(method)).survival(k)
        # The mixture's sum differs from the corrected E. Survival must add up to the E that is printed.
        scale = (at.value - 1.0) / max(float(shape.sum()), 1e-12)
        survival = tuple(min(float(share) * scale, 1.0) for share in shape)
    warnings = [_DRAFTED_ONLY] if drafted_only else []
    if k != given.k and given.survival is None:
        warnings.append("no positions given: extrapolated from one rate, wide bounds")
    elif k != given.k and at.positions < 3:
        warnings.append(
            f"{at.positions} position(s) measured: fewer than three leave wide bounds at another draft length"
        )
    return {
        "tokens_per_step": at.value,
        "tokens_per_step_range": None if k == given.k else (at.lower, at.upper),
        "acceptance_rate": given.rate if given.rate is not None and k == given.k else (at.value - 1.0) / k,
        "alpha": float(alpha_from_tokens_per_step(at.value, k)),
        "survival": survival,
        "extrapolated": k != given.k,
        "k": k,
        "measured_k": given.k,
        "method": method,
        "basis": at.basis,
        "warnings": warnings,
    }


_DRAFTED_ONLY = "the log counts drafts: steps in which nothing was found to draft are not among them, and tokens per step are fewer"


def _print(result: Mapping[str, Any]) -> None:
    shares = [figure(share) for share in result["survival"] or ()]
    rows = [
        (
            "tokens per step (bonus included)",
            bounds(result["tokens_per_step"], result["tokens_per_step_range"]),
        ),
        ("acceptance rate (accepted/drafted)", figure(result["acceptance_rate"])),
        ("alpha (independent acceptances)", figure(result["alpha"])),
        # Far positions are nearly zero; the document has all of them.
        (
            "survival by position",
            " ".join(shares[:8]) + (" ..." if len(shares) > 8 else "") if shares else "-",
        ),
    ]
    where = f"at k = {result['k']}" + (f", from k = {result['measured_k']}" if result["extrapolated"] else "")
    print_table((f"{result['method']} {where}", ""), rows)
    print_warnings(result["warnings"])


# The lines of vLLM's log that state accepted tokens, pooled over the log.
#
# vLLM prints `SpecDecoding metrics:` every ten seconds. The line has the mean acceptance length (bonus token
# included), accepted and drafted tokens, and the shares of drafts accepted up to each position
# (three decimals).


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
    """Acceptance pooled over a log, or of one line: shares of drafts accepted up to each position, and numbers of drafts and tokens."""

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
    """Pool the lines of a log, other lines included, by their drafts; a looked-up draft may be shorter than another.

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
                    at, f"drafts of {phrases.figure(one.depth)} tokens, of {length:g} before", _ONE_LENGTH
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
            at, f"drafts of {phrases.figure(depth)} tokens on average, with {longest} positions", _ONE_LENGTH
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
