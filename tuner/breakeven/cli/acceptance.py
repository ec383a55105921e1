"""`breakeven acceptance`: from any acceptance number in circulation to all the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from breakeven.cli.output import confidence_option, echo_result, json_option
from breakeven.cli.parameters import Number
from breakeven.errors import InputError

if TYPE_CHECKING:
    from breakeven.cli.results import AcceptanceResult
    from breakeven.laws.acceptance import TokensPerStep


def _shares(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    """Read a comma-separated list; what the shares must satisfy is checked where they can be named."""
    if value is None:
        return None
    try:
        return tuple(float(item) for item in value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a comma-separated list of numbers") from error


@click.command("acceptance", short_help="Convert between the acceptance numbers in circulation.")
@click.option(
    "--per-position",
    callback=_shares,
    metavar="S1,S2,...",
    help="Share of steps whose first i drafts were all accepted, i = 1..k.",
)
@click.option("--accepted", type=Number(0), help="Accepted draft tokens in all (needs --drafts and --k).")
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
    accepted: float | None,
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
    """
    given = [
        name
        for name, value in (("--per-position", per_position), ("--accepted", accepted), ("--alpha", alpha))
        if value is not None
    ]
    if len(given) != 1:
        raise click.UsageError(
            f"give one of --per-position, --accepted and --alpha (given: {', '.join(given) or 'none'})"
        )
    if per_position is not None:
        measured = _from_positions(per_position, k)
    elif accepted is not None:
        measured = _from_counts(accepted, drafts, k)
    else:
        measured = _from_alpha(alpha if alpha is not None else 0.0, k)
    result = _result(
        *measured,
        for_k=for_k,
        method=method,
        drafts=drafts,
        design_effect=design_effect,
        confidence=confidence,
    )
    if as_json:
        echo_result(result)
    else:
        _print(result)


_Measured = tuple[float, int, "tuple[float, ...] | None", "float | None"]
"""E, the draft length it was measured at, survival if known, alpha if that is what was given."""


def _from_positions(survival: tuple[float, ...], k: int | None) -> _Measured:
    for i, share in enumerate(survival, start=1):
        if not 0 <= share <= 1:
            raise InputError(f"--per-position, position {i}", f"{share:g}", "a share between 0 and 1")
        if i > 1 and share > survival[i - 2] + 1e-9:
            raise InputError(
                f"--per-position, position {i}",
                f"{share:g} after {survival[i - 2]:g}",
                "shares of all drafts, which cannot rise (conditional rates are not what is asked)",
            )
    if k is not None and k != len(survival):
        raise InputError("--k", f"{k} with {len(survival)} positions", "as many positions as drafted tokens")
    return 1.0 + math.fsum(survival), len(survival), survival, None


def _from_counts(accepted: float, drafts: float | None, k: int | None) -> _Measured:
    if drafts is None or k is None:
        raise click.UsageError("--accepted needs --drafts and --k")
    if accepted > drafts * k:
        raise InputError("--accepted", f"{accepted:g} of {drafts:g} drafts of {k}", f"at most {drafts * k:g}")
    return 1.0 + accepted / drafts, k, None, None


def _from_alpha(alpha: float, k: int | None) -> _Measured:
    from breakeven.laws.acceptance import tokens_per_step_iid

    if k is None:
        raise click.UsageError("--alpha needs --k")
    if not 0 <= alpha <= 1:
        raise InputError("--alpha", f"{alpha:g}", "a rate between 0 and 1")
    return float(tokens_per_step_iid(alpha, k)), k, None, alpha


def _result(
    e: float,
    measured_k: int,
    survival: tuple[float, ...] | None,
    alpha: float | None,
    *,
    for_k: int | None,
    method: str,
    drafts: float | None,
    design_effect: float,
    confidence: float,
) -> AcceptanceResult:
    """Everything that follows from one measured profile or number."""
    from breakeven.cli.results import AcceptanceResult
    from breakeven.laws.acceptance import (
        AcceptanceModel,
        TokensPerStep,
        alpha_from_tokens_per_step,
        survival_iid,
        tokens_per_step_iid,
    )

    k = measured_k if for_k is None else for_k
    if alpha is not None:
        value = float(tokens_per_step_iid(alpha, k))
        # Independence is what was said, not what was measured: there is nothing to bound.
        at = TokensPerStep(value, value, value, "one-rate", 0)
    else:
        profiles = {measured_k: survival} if survival is not None else {}
        at = AcceptanceModel(method, {measured_k: e}, profiles).at(k)
    shown = _survival(at, k, measured_k, survival, alpha, method)
    known = (
        survival
        if survival is not None
        else tuple(survival_iid(float(alpha_from_tokens_per_step(e, measured_k)), measured_k))
    )
    sampling = _sampling(at.value, e, known, drafts, design_effect, confidence)
    return AcceptanceResult(
        tokens_per_step=at.value,
        tokens_per_step_ci=_interval(at, k, sampling, extrapolated=k != measured_k and alpha is None),
        acceptance_rate=(at.value - 1.0) / k,
        alpha=float(alpha_from_tokens_per_step(at.value, k)),
        survival=shown,
        extrapolated=k != measured_k,
        k=k,
        measured_k=measured_k,
        method=method,
        basis=at.basis,
        confidence=confidence,
        warnings=_warnings(at, k, measured_k, survival, alpha, drafts),
    )


def _survival(
    at: TokensPerStep,
    k: int,
    measured_k: int,
    survival: tuple[float, ...] | None,
    alpha: float | None,
    method: str,
) -> list[float] | None:
    from breakeven.laws.acceptance import TwoPointMixture, survival_iid
    from breakeven.laws.mixture import default_decay

    if alpha is not None:
        return [float(s) for s in survival_iid(alpha, k)]
    if survival is None:
        return None
    if k == measured_k:
        return list(survival)
    shape = TwoPointMixture.fit(survival, default_decay(method)).survival(k)
    total = float(shape.sum())
    # The mixture's sum differs from E by what it was corrected to; survival must add up to what is printed.
    return [min(float(s) * (at.value - 1.0) / total, 1.0) if total > 0 else 0.0 for s in shape]


def _sampling(
    value: float,
    e: float,
    survival: tuple[float, ...],
    drafts: float | None,
    design_effect: float,
    confidence: float,
) -> float | None:
    """Half width of the sampling interval of E; `None` without a number of drafts."""
    from statistics import NormalDist

    from breakeven.laws.acceptance import tokens_per_step_sd

    if drafts is None:
        return None
    sd = float(tokens_per_step_sd(survival, drafts, design_effect))
    carried = (value - 1.0) / (e - 1.0) if e > 1 else 1.0
    return NormalDist().inv_cdf(0.5 + confidence / 2.0) * sd * carried


def _interval(
    at: TokensPerStep, k: int, sampling: float | None, *, extrapolated: bool
) -> tuple[float, float] | None:
    if sampling is None and not extrapolated:
        return None
    half = sampling or 0.0
    return max(at.lower - half, 1.0), min(at.upper + half, k + 1.0)


def _warnings(
    at: TokensPerStep,
    k: int,
    measured_k: int,
    survival: tuple[float, ...] | None,
    alpha: float | None,
    drafts: float | None,
) -> list[str]:
    warnings = []
    if alpha is None and k != measured_k:
        if survival is None:
            warnings.append("no positions given: extrapolated from one rate, wide bounds")
        elif at.positions < 3:
            warnings.append(
                f"{at.positions} position(s) measured: fewer than three leave wide bounds at another draft length"
            )
        if drafts is None:
            warnings.append(
                "no --drafts given: the interval holds what the profile leaves open, not its sampling error"
            )
    if alpha is not None and k != measured_k:
        warnings.append(
            "one alpha for all draft lengths overstates long drafts (9 to 14 % on recorded text); give --per-position"
        )
    return warnings


def _print(result: AcceptanceResult) -> None:
    from breakeven.cli.tables import bounds, figure, print_table, print_warnings

    rows = [
        (
            "tokens per step (bonus included)",
            bounds(result.tokens_per_step, result.tokens_per_step_ci),
        ),
        ("acceptance rate (accepted/drafted)", figure(result.acceptance_rate)),
        ("alpha (independent acceptances)", figure(result.alpha)),
        ("survival by position", _positions(result.survival or ())),
    ]
    where = f"at k = {result.k}"
    if result.extrapolated:
        where += f", from k = {result.measured_k}"
    bounded = result.tokens_per_step_ci is not None
    level = f"[bounds at {100 * result.confidence:g} %]" if bounded else ""
    print_table((f"{result.method} {where}", level), rows)
    print_warnings(result.warnings)


def _positions(survival: Sequence[float]) -> str:
    """The first positions; far ones are next to nothing, and all are in the document."""
    from breakeven.cli.tables import figure

    shown = " ".join(figure(share) for share in survival[:8])
    return f"{shown} ..." if len(survival) > 8 else shown or "-"
