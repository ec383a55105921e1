"""`breakeven acceptance`: from any acceptance number in circulation to all the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from breakeven.cli.output import confidence_option, echo_result, json_option
from breakeven.cli.parameters import InputFile, Number, Share, checked_share, read_numbers, read_survival
from breakeven.errors import InputError
from breakeven.methods import LOOKUP_METHODS

if TYPE_CHECKING:
    from breakeven.cli.results import AcceptanceResult
    from breakeven.laws.acceptance_numbers import TokensPerStep


@click.command("acceptance", short_help="Convert between the acceptance numbers in circulation.")
@click.option(
    "--per-position",
    callback=read_survival,
    metavar="S1,S2,...",
    help="Share of steps whose first i drafts were all accepted, i = 1..k.",
)
@click.option(
    "--conditional",
    callback=read_numbers,
    metavar="C1,C2,...",
    help="Share of drafts i accepted among the steps whose drafts before i were all accepted.",
)
@click.option(
    "--histogram",
    callback=read_numbers,
    metavar="N0,N1,...",
    help="Steps in which 0, 1, ..., k drafts were accepted; their sum is --drafts.",
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
@click.option("--alpha", type=float, help="Rate of independent acceptances (needs --k).")
@click.option(
    "--drafts",
    type=Number(0, min_open=True),
    help="Number of drafts behind the figures; gives intervals.",
)
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
@click.option(
    "--design-effect",
    type=Number(1),
    default=3.0,
    show_default=True,
    help="Drafts worth one independent draft: 2 to 3 on homogeneous text, over 100 on chat.",
)
@confidence_option
@json_option
def command(
    per_position: tuple[float, ...] | None,
    conditional: tuple[float, ...] | None,
    histogram: tuple[float, ...] | None,
    accepted: float | None,
    length: float | None,
    bonus: str | None,
    rate: float | None,
    log: Path | None,
    alpha: float | None,
    drafts: float | None,
    k: int | None,
    for_k: int | None,
    method: str,
    design_effect: float,
    confidence: float,
    *,
    as_json: bool,
) -> None:
    """Tokens per step, acceptance rate, alpha and survival: they are four different numbers.

    Tokens per step include the bonus token. The acceptance rate is accepted over drafted tokens, as vLLM prints it.
    Alpha is the rate of independent acceptances that gives the same tokens per step; it is not the acceptance rate.

    \b
    Examples:
      breakeven acceptance --per-position .5732,.2821,.1313,.0620,.0296
      breakeven acceptance --per-position .6731,.4395,.2811 --method eagle3 --drafts 20716 --for-k 7
      breakeven acceptance --accepted 265 --drafts 127 --k 3
      breakeven acceptance --length 2.1 --bonus included --k 3
      kubectl logs chat-vllm-0 | breakeven acceptance --log -
    """
    given = {
        "--per-position": per_position,
        "--conditional": conditional,
        "--histogram": histogram,
        "--accepted": accepted,
        "--length": length,
        "--rate": rate,
        "--log": log,
        "--alpha": alpha,
    }
    known = _known(given, bonus, drafts, k, method)
    result = _result(
        known,
        known.k if for_k is None else for_k,
        method=method,
        design_effect=design_effect,
        confidence=confidence,
        drafted_only=log is not None and method in LOOKUP_METHODS,
    )
    if as_json:
        echo_result(result)
    else:
        _print(result)


def _known(
    given: Mapping[str, Any], bonus: str | None, drafts: float | None, k: int | None, method: str
) -> _Given:
    """The figures behind the one option whose value is not None.

    Raises:
        click.UsageError: not one option is given, or one that does not belong to it.
        InputError: impossible figures.
    """
    options = [name for name, value in given.items() if value is not None]
    if len(options) != 1:
        raise click.UsageError(f"give one of {', '.join(given)} (given: {', '.join(options) or 'none'})")
    if bonus is not None and given["--length"] is None:
        raise click.UsageError("--bonus says how to read --length")
    name, value = options[0], given[options[0]]
    readers: Mapping[str, Callable[[], _Given]] = {
        "--per-position": lambda: _from_positions(value, k, drafts),
        "--conditional": lambda: _from_positions(_from_conditional(value), k, drafts),
        "--histogram": lambda: _from_histogram(value, k, drafts),
        "--accepted": lambda: _from_counts(value, drafts, k),
        "--length": lambda: _from_length(value, bonus, k)._replace(drafts=drafts),
        "--rate": lambda: _from_rate(value, k)._replace(drafts=drafts),
        "--log": lambda: _from_log(value, k, drafts, method),
        "--alpha": lambda: _from_alpha(value, k)._replace(drafts=drafts),
    }
    return readers[name]()


class _Given(NamedTuple):
    """E, the draft length it was measured at, survival if known, alpha if that is what was given, the number of drafts if known.

    `rate` is accepted over drafted tokens as counted: look-ups draft fewer than k tokens at times.
    """

    tokens_per_step: float
    k: int
    survival: tuple[float, ...] | None = None
    alpha: float | None = None
    drafts: float | None = None
    rate: float | None = None


def _from_positions(survival: tuple[float, ...], k: int | None, drafts: float | None) -> _Given:
    if k is not None and k != len(survival):
        raise InputError("--k", f"{k} with {len(survival)} positions", "as many positions as drafted tokens")
    return _Given(1.0 + math.fsum(survival), len(survival), survival, drafts=drafts)


def _from_conditional(rates: tuple[float, ...]) -> tuple[float, ...]:
    from breakeven.laws.acceptance_numbers import survival_from_conditional

    for position, rate in enumerate(rates, start=1):
        checked_share(f"--conditional, position {position}", rate)
    return tuple(float(share) for share in survival_from_conditional(rates))


def _from_histogram(steps: tuple[float, ...], k: int | None, drafts: float | None) -> _Given:
    from breakeven.laws.acceptance_numbers import survival_from_histogram

    counted = math.fsum(steps)
    if len(steps) < 2 or min(steps) < 0 or not 0 < counted < math.inf:
        raise InputError(
            "--histogram", ",".join(f"{n:g}" for n in steps[:8]), "steps with 0, 1, ..., k drafts accepted"
        )
    if drafts is not None and drafts != counted:
        raise InputError(
            "--drafts", f"{drafts:g} with a histogram of {counted:g} steps", "their sum, or nothing"
        )
    return _from_positions(tuple(float(share) for share in survival_from_histogram(steps)), k, counted)


def _from_log(log: Path, k: int | None, drafts: float | None, method: str) -> _Given:
    from breakeven.cli.acceptance_log import read_log

    if drafts is not None:
        raise click.UsageError("--log counts the drafts: leave --drafts out")
    with click.open_file(str(log), encoding="utf-8", errors="replace") as lines:
        found = read_log(lines, str(log), looked_up=method in LOOKUP_METHODS)
    return _from_positions(found.survival, k, found.drafts)._replace(rate=found.accepted / found.drafted)


def _from_length(length: float, bonus: str | None, k: int | None) -> _Given:
    """A mean length. Included it lies in 1..k+1, excluded in 0..k: --bonus is needed only if both are possible."""
    if k is None:
        raise click.UsageError("--length needs --k")
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


def _from_rate(rate: float, k: int | None) -> _Given:
    if k is None:
        raise click.UsageError("--rate needs --k")
    return _Given(1.0 + rate * k, k)


def _from_counts(accepted: float, drafts: float | None, k: int | None) -> _Given:
    if drafts is None or k is None:
        raise click.UsageError("--accepted needs --drafts and --k")
    if accepted > drafts * k:
        raise InputError("--accepted", f"{accepted:g} of {drafts:g} drafts of {k}", f"at most {drafts * k:g}")
    return _Given(1.0 + accepted / drafts, k, drafts=drafts)


def _from_alpha(alpha: float, k: int | None) -> _Given:
    from breakeven.laws.acceptance_numbers import tokens_per_step_iid

    if k is None:
        raise click.UsageError("--alpha needs --k")
    if not 0 <= alpha <= 1:
        raise InputError("--alpha", f"{alpha:g}", "a rate between 0 and 1")
    return _Given(float(tokens_per_step_iid(alpha, k)), k, alpha=alpha)


def _result(
    given: _Given,
    k: int,
    *,
    method: str,
    design_effect: float,
    confidence: float,
    drafted_only: bool,
) -> AcceptanceResult:
    """Everything that follows from one measured profile or number, at draft length k."""
    from statistics import NormalDist

    from breakeven.cli.results import AcceptanceResult
    from breakeven.laws.acceptance_numbers import (
        alpha_from_tokens_per_step,
        survival_bounds,
        survival_iid,
        tokens_per_step_sd,
    )

    at, survival = _carried(given, k, method)
    # An alpha already assumes independent positions, so there is no measurement to bound.
    half = 0.0 if k != given.k and given.alpha is None else None
    if given.drafts is not None:
        known = given.survival or survival_iid(
            float(alpha_from_tokens_per_step(given.tokens_per_step, given.k)), given.k
        )
        sampling = NormalDist().inv_cdf(0.5 + confidence / 2.0) * float(
            tokens_per_step_sd(known, given.drafts, design_effect)
        )
        gained = given.tokens_per_step - 1.0
        half = sampling * ((at.value - 1.0) / gained if gained > 0 else 1.0)
    return AcceptanceResult(
        tokens_per_step=at.value,
        tokens_per_step_ci=None
        if half is None
        else (max(at.lower - half, 1.0), min(at.upper + half, k + 1.0)),
        acceptance_rate=given.rate if given.rate is not None and k == given.k else (at.value - 1.0) / k,
        alpha=float(alpha_from_tokens_per_step(at.value, k)),
        survival=survival,
        survival_bounds=None if survival else _pairs(survival_bounds(min(at.value, k + 1.0), k)),
        extrapolated=k != given.k,
        k=k,
        measured_k=given.k,
        method=method,
        basis=at.basis,
        confidence=confidence,
        warnings=(*(_DRAFTED_ONLY * drafted_only), *(_doubts(given, at) if k != given.k else ())),
    )


_DRAFTED_ONLY = (
    "the log counts drafts: steps in which nothing was found to draft are not among them, and tokens per step are fewer",
)


def _pairs(bounds: Iterable[Sequence[float]]) -> tuple[tuple[float, float], ...]:
    return tuple((float(lower), float(upper)) for lower, upper in bounds)


def _carried(given: _Given, k: int, method: str) -> tuple[TokensPerStep, Sequence[float] | None]:
    """E and survival at draft length k, the latter None if no position was measured."""
    from breakeven.laws.acceptance_numbers import (
        AcceptanceModel,
        TokensPerStep,
        TwoPointMixture,
        survival_iid,
        tokens_per_step_iid,
    )
    from breakeven.laws.mixture import default_decay

    if given.alpha is not None:
        value = float(tokens_per_step_iid(given.alpha, k))
        return TokensPerStep(value, value, value, "one-rate", 0), [*survival_iid(given.alpha, k)]
    profiles = {given.k: given.survival} if given.survival is not None else {}
    at = AcceptanceModel(method, {given.k: given.tokens_per_step}, profiles).at(k)
    if given.survival is None or k == given.k:
        return at, given.survival
    shape = TwoPointMixture.fit(given.survival, default_decay(method)).survival(k)
    total = float(shape.sum())
    # The mixture's sum differs from the corrected E. Survival must add up to the E that is printed.
    return at, [min(float(s) * (at.value - 1.0) / total, 1.0) if total > 0 else 0.0 for s in shape]


def _doubts(given: _Given, at: TokensPerStep) -> Iterator[str]:
    """Warnings about a figure that was carried to another draft length."""
    if given.alpha is not None:
        yield "one alpha for all draft lengths overstates long drafts (9 to 14 % on recorded text); give --per-position"
        return
    if given.survival is None:
        yield "no positions given: extrapolated from one rate, wide bounds"
    elif at.positions < 3:
        yield f"{at.positions} position(s) measured: fewer than three leave wide bounds at another draft length"
    if given.drafts is None:
        yield "no --drafts given: the interval holds what the profile leaves open, not its sampling error"


def _print(result: AcceptanceResult) -> None:
    from breakeven.cli.tables import bounds, figure, print_table, print_warnings

    rows = [
        (
            "tokens per step (bonus included)",
            bounds(result.tokens_per_step, result.tokens_per_step_ci),
        ),
        ("acceptance rate (accepted/drafted)", figure(result.acceptance_rate)),
        ("alpha (independent acceptances)", figure(result.alpha)),
        ("survival by position", _positions(result)),
    ]
    where = f"at k = {result.k}"
    if result.extrapolated:
        where += f", from k = {result.measured_k}"
    bounded = result.tokens_per_step_ci is not None
    level = f"[bounds at {100 * result.confidence:g} %]" if bounded else ""
    print_table((f"{result.method} {where}", level), rows)
    print_warnings(result.warnings)


def _positions(result: AcceptanceResult) -> str:
    """The first positions, or the bounds of each. Far positions are nearly zero; the document has all of them."""
    from breakeven.cli.tables import figure

    shares = [figure(share) for share in result.survival or ()]
    shares += [f"{figure(lower)}..{figure(upper)}" for lower, upper in result.survival_bounds or ()]
    return " ".join(shares[:8]) + (" ..." if len(shares) > 8 else "")
