"""`breakeven predict PROFILE.json --method M --k K --rps R`: latency of one arm at one load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from breakeven.cli.output import (
    bounds,
    confidence_option,
    document,
    echo_result,
    figure,
    json_option,
    print_warnings,
)
from breakeven.cli.parameters import MeasuredDrafts, Number, read_draft_length
from breakeven.cli.profile_options import (
    arm_in,
    arm_of,
    length_options,
    load_options,
    profile_argument,
    read_profile,
)
from breakeven.errors import InputError

if TYPE_CHECKING:
    from breakeven.arm import Arm
    from breakeven.profile import Conditions, LoadPoint, Prediction

FIELDS = {
    "": "confidence latency_s latency_ci_s ttft_s ttft_ci_s tpot_s tpot_ci_s quantile means inflight utilisation saturated "
    "extrapolated basis would_pay?"
}
"""Fields of `--json`."""


@click.command("predict")
@profile_argument
@click.option("--method", required=True, help="none, or the speculative method (or its drafter's name).")
@click.option(
    "--k",
    callback=read_draft_length,
    metavar="K|schedule|adaptive",
    help="Draft length; 0 (the default) only for method none. schedule, adaptive: the measured schedule, or adaptive verification.",
)
@click.option("--candidate", help="The drafter's name, where one method was measured with several drafters.")
@load_options
@click.option(
    "--tokens-per-step",
    type=Number(min=1),
    help="Tokens per request-step E now, bonus token included.",
)
@click.option("--alpha", type=Number(0, 1), help="Independent acceptance rate, in place of E.")
@length_options
@click.option(
    "--quantile",
    type=Number(0, 1, min_open=True, max_open=True),
    help="0.5, 0.95 or 0.99 in place of the means.",
)
@click.option(
    "--would-pay",
    "asks",
    is_flag=True,
    help="Also say at which acceptance, load or lengths, each alone (with --rps), the arm would be as fast as no speculation.",
)
@confidence_option
@json_option
def command(
    profile_path: Path,
    method: str,
    k: int | MeasuredDrafts | None,
    candidate: str | None,
    load: LoadPoint,
    tokens_per_step: float | None,
    alpha: float | None,
    lengths: Conditions,
    quantile: float | None,
    confidence: float,
    *,
    asks: bool,
    as_json: bool,
) -> None:
    """Predict the latency of one arm at a rate (open loop) or a concurrency (closed loop).

    All arms are predicted from one law of the engine's steps; a measured arm also follows its own rows. Another draft
    length of a measured method gets an acceptance that is derived from the measured ones. All are predicted at one set of
    lengths: the lengths given, else the lengths of no speculation.

    \b
    Example:
      breakeven predict chat.json --method eagle3 --k 3 --rps 4
      breakeven predict chat.json --method eagle3 --k 5 --concurrency 16 --tokens-per-step 2.6
    """
    from breakeven.planning.evaluation import extrapolated
    from breakeven.planning.what_it_takes import would_pay
    from breakeven.profile.document import HIDDEN_PROMPTS
    from breakeven.profile.operating_conditions import compared_text

    rps = load.rps
    if asks and rps is None:
        raise click.UsageError("--would-pay goes with --rps")
    if tokens_per_step is not None and alpha is not None:
        raise click.UsageError("--tokens-per-step and --alpha say the same thing; give one")
    of_result = None if isinstance(k, str) else arm_of(method, k, candidate)
    profile = read_profile(profile_path, confidence, of_result)
    arm = arm_in(profile, method, k, candidate)
    conditions = replace(lengths, tokens_per_step=_tokens_per_step(arm, tokens_per_step, alpha))
    found = profile.predict(
        arm,
        rps=rps,
        concurrency=load.concurrency,
        conditions=conditions,
        quantile=quantile,
        confidence=confidence,
    )
    texts = would_pay(profile, arm, rps, conditions) if asks and rps is not None else {}
    doubtful = extrapolated(found, open_loop=rps is not None)
    where = f"{rps:g} rps" if rps is not None else f"concurrency {load.concurrency:g}"
    if compared := compared_text(profile.arms, conditions):
        where += f" and {compared}"
    if as_json:
        given: dict[str, Any] = {
            "confidence": confidence,
            "quantile": quantile,
            "extrapolated": doubtful,
            "would_pay": texts,
        }
        echo_result(document(FIELDS, found, **given))
        return
    if found.saturated:
        saturation = figure(profile.curve(arm, conditions).saturation_rps)
        click.echo(f"{arm} at {where}: saturated; its saturation is {saturation} rps")
    else:
        _print(found, where, quantile, doubtful=doubtful)
    for text in texts.values():
        click.echo(text)
    if rps is not None:
        print_warnings([one for one in profile.warnings if one == HIDDEN_PROMPTS])


def _tokens_per_step(arm: Arm, given: float | None, alpha: float | None) -> float | None:
    """E of an arm: as given, or by the rate of independent acceptances; a refused input if the draft length does not allow it."""
    from breakeven.laws.acceptance_numbers import tokens_per_step_iid

    e = given if alpha is None else float(tokens_per_step_iid(alpha, arm.k))
    if e is not None and e > arm.k + 1:
        raise InputError("--tokens-per-step", f"{e:g} for {arm}", f"1 to k + 1 = {arm.k + 1}")
    return e


def _print(found: Prediction, where: str, quantile: float | None, *, doubtful: bool) -> None:
    what = "latency" if quantile is None else f"latency quantile {quantile:g}"
    click.echo(f"{found.arm} at {where}: {what} {bounds(found.latency_s, found.latency_ci_s)} s")
    parts = ""
    for name, field, value, interval in (
        ("TTFT", "ttft_s", found.ttft_s, found.ttft_ci_s),
        ("TPOT", "tpot_s", found.tpot_s, found.tpot_ci_s),
    ):
        if value is not None:
            kind = "" if quantile is None else " mean" if field in found.means else f" quantile {quantile:g}"
            parts += f"{name}{kind} {bounds(value, interval)} s, "
    click.echo(
        f"{parts}{figure(found.inflight)} in flight, utilisation {found.utilisation:.2f}, from {_BASIS[found.basis]}"
    )
    if doubtful:
        click.echo("! extrapolated: outside what was measured, or above utilisation 0.75")


_BASIS = {
    "arm": "the law and the arm's own rows",
    "others": "the law and the rows of other arms",
}
