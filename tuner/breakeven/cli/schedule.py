"""`breakeven schedule PROFILE.json`: a draft length per batch size, as vLLM takes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from breakeven.cli.output import echo_result, figure, json_option, print_table, print_warnings
from breakeven.cli.parameters import InputFile, Number, read_draft_lengths
from breakeven.cli.profile_options import arm_in, length_options, read_profile

if TYPE_CHECKING:
    from breakeven.planning.draft_schedule import StepView
    from breakeven.profile import Conditions
    from breakeven.tiers import Schedule

_TAX = (
    "k = 0 inside the engine is not no speculation: it still feeds the drafter (6.6 to 21.6 % longer per token was "
    "measured); measure the schedule as one more arm"
)


@click.command("schedule")
@click.argument("profile", metavar="PROFILE.json", type=InputFile())
@click.option("--method", required=True, help="Method (or candidate) as in the profile.")
@click.option(
    "--max-batch-size", type=click.IntRange(1, 65536), required=True, help="The engine's --max-num-seqs."
)
@click.option(
    "--draft-lengths",
    callback=read_draft_lengths,
    metavar="1-7",
    help="Draft lengths to consider; default: up to the longest measured.",
)
@click.option(
    "--tokens-per-step", type=float, help="E at the longest measured draft length; default: as measured."
)
@click.option("--alpha", type=float, help="Rate of independent acceptances instead of the measured profile.")
@length_options
@click.option(
    "--tpot-slo-s", type=Number(0, min_open=True), help="Time per output token to keep, in seconds."
)
@click.option(
    "--tpot-worst-case", is_flag=True, help="Keep it in steps that yield one token too: E times stricter."
)
@click.option(
    "--zero-draft-tax-percent",
    type=Number(0, 100),
    default=0.0,
    show_default=True,
    help="How much longer a step with k = 0 takes than without speculation.",
)
@json_option
def command(
    profile: Path,
    method: str,
    max_batch_size: int,
    draft_lengths: tuple[int, ...] | None,
    tokens_per_step: float | None,
    alpha: float | None,
    lengths: Conditions,
    tpot_slo_s: float | None,
    zero_draft_tax_percent: float,
    *,
    tpot_worst_case: bool,
    as_json: bool,
) -> None:
    """The draft length with the highest goodput at every batch size, in few ranges.

    All draft lengths are tried: goodput has more than one local maximum where drafting has a flat cost. Differences
    under half a percent are merged away.

    \b
    Example:
      breakeven schedule chat.json --method eagle3 --max-batch-size 256 --tpot-slo-s 0.04
    """
    if alpha is not None and tokens_per_step is not None:
        raise click.UsageError("give --alpha or --tokens-per-step, not both")
    if tpot_worst_case and tpot_slo_s is None:
        raise click.UsageError("--tpot-worst-case needs --tpot-slo-s")
    from breakeven.planning.draft_schedule import schedule, step_view
    from breakeven.profile.operating_conditions import compared_text

    fitted = read_profile(profile, 0.9)
    if method != "none":
        method = arm_in(fitted, method, 1).family
    wanted = replace(lengths, tokens_per_step=tokens_per_step)
    view = step_view(
        fitted, method, max_batch_size, conditions=wanted, alpha=alpha, draft_lengths=draft_lengths
    )
    if compared := compared_text(fitted.arms, wanted):
        view = replace(view, warnings=(f"all draft lengths at {compared}", *view.warnings))
    step_s = view.step_s.copy()
    step_s[:, 0] *= 1.0 + zero_draft_tax_percent / 100.0
    step_s += view.prompts_s
    found = schedule(
        step_s, view.tokens_per_step, view.draft_lengths, tpot_limit_s=tpot_slo_s, worst_case=tpot_worst_case
    )
    result = _result(found, view, method, tpot_slo_s, fitted.confidence, worst_case=tpot_worst_case)
    if as_json:
        echo_result(result)
    else:
        _print(result)


def _result(
    found: Schedule,
    view: StepView,
    method: str,
    tpot_slo_s: float | None,
    confidence: float,
    *,
    worst_case: bool,
) -> dict[str, Any]:
    warnings = list(view.warnings)
    if not found.speculates:
        warnings.append(
            "no draft length pays at any batch size: run without speculation instead of this schedule"
        )
    elif any(k == 0 for _, k in found.tiers):
        warnings.append(_TAX)
    e = dict(zip(view.draft_lengths, (float(x) for x in view.tokens_per_step), strict=True))
    ranges = found.ranges(len(view.step_s))
    # At the upper end of a range a request's tokens take longest.
    with_prompts_s = view.step_s + view.prompts_s
    tpot = [
        float(with_prompts_s[high - 1, view.draft_lengths.index(k)]) / (1.0 if worst_case else e[k])
        for _, high, k in ranges
    ]
    if tpot_slo_s is not None and (
        late := [high for (_, high, _), t in zip(ranges, tpot, strict=True) if t > tpot_slo_s]
    ):
        warnings.append(
            f"no draft length keeps {tpot_slo_s:g} s per token up to batch size {late[-1]}; the fastest is taken"
        )
    return {
        # vLLM refuses 0: a schedule that never drafts must still name a draft length.
        "num_speculative_tokens": max(found.num_speculative_tokens, 1),
        "num_speculative_tokens_per_batch_size": ranges,
        "method": method,
        "tokens_per_step": {str(k): value for k, value in e.items()},
        "tpot_s": tpot,
        "warnings": warnings,
        "confidence": confidence,
    }


def _print(result: Mapping[str, Any]) -> None:
    rows = [
        (f"{low}-{high}", str(k), figure(result["tokens_per_step"][str(k)]), figure(1000.0 * tpot))
        for (low, high, k), tpot in zip(
            result["num_speculative_tokens_per_batch_size"], result["tpot_s"], strict=True
        )
    ]
    print_table(("batch size", "draft length", "tokens per step", "TPOT ms at the upper end"), rows)
    keys = ("num_speculative_tokens", "num_speculative_tokens_per_batch_size")
    click.echo(f"add to --speculative-config:\n{json.dumps({key: result[key] for key in keys})}")
    print_warnings(result["warnings"])
