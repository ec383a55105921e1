"""`breakeven plan PROFILE.json --rps R`: the best arm at a load, and until which load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from breakeven.arm import NO_SPECULATION
from breakeven.cli.output import (
    ARM,
    bounds,
    confidence_option,
    document,
    echo_result,
    figure,
    gathered,
    json_option,
    print_table,
    print_text,
    print_warnings,
)
from breakeven.cli.parameters import Number, read_draft_lengths, read_survival
from breakeven.cli.profile_options import (
    arm_of,
    compared,
    conditions_of,
    dispersion_of,
    dispersion_options,
    length_options,
    load_options,
    profile_argument,
    prompt_parts,
    prompts_option,
    read_profile,
    steps_option,
)
from breakeven.laws.arrays import Span
from breakeven.phrases import ranges_text

if TYPE_CHECKING:
    from breakeven.planning.evaluation import ArmEvaluation
    from breakeven.planning.objective import Slo
    from breakeven.planning.plan_at_load import Plan
    from breakeven.profile import Comparison, Conditions, LoadPoint

_COMPARED = (
    "speedup speedup_ci side_by_side c1_ratio c1_ratio_ci c2_ratio c2_ratio_ci verdict break_even_rps break_even_ci_rps "
    "break_even_concurrency break_even_beyond_measured_range pays_rps"
)
FIELDS = {
    "": "confidence best compared_at dispersion quantile arms reason explanation warnings envelope? by_prompt?",
    "best.": ARM,
    "arms[].": f"{ARM} measured latency_s latency_ci_s ttft_s tpot_s {_COMPARED} saturation_rps saturated extrapolated basis "
    "utilisation at_quantile meets_slo capacity_rps capacity_ci_rps tokens_per_second",
    "arms[].at_quantile.": "latency_s latency_ci_s ttft_s ttft_ci_s tpot_s tpot_ci_s means",
    "envelope[].": "from_rps to_rps method k candidate?",
    "by_prompt[].": "share mean_tokens speedup extrapolated",
}
"""Fields of `--json`."""

_NOT_COMPARED = SimpleNamespace(
    **dict.fromkeys(_COMPARED.split())
    | {"side_by_side": False, "break_even_beyond_measured_range": False, "pays_rps": ()}
)
_SECONDS = Number(min=0, max=86_400, min_open=True)


def _read_range(_ctx: click.Context, _param: click.Parameter, value: Span | None) -> Span | None:
    if value is not None and not 0 <= value[0] < value[1] < float("inf"):
        raise click.BadParameter(f"{value[0]:g} {value[1]:g} is no range", param_hint="--rps-range")
    return value


def _objectives(quantile: float | None, **limits_s: float | None) -> Slo:
    """The objectives; a quantile without any of them is refused."""
    from breakeven.planning.objective import Slo

    slo = Slo(**{name.replace("_slo", ""): limit_s for name, limit_s in limits_s.items()}, quantile=quantile)
    if quantile is not None and not slo.is_set:
        raise click.UsageError("--quantile says which quantile an objective is about; give --...-slo-s too")
    return slo


@click.command("plan")
@profile_argument
@load_options
@steps_option
@click.option("--alpha", type=Number(0, 1), help="Independent acceptance rate now, of every speculative arm.")
@click.option(
    "--per-position",
    callback=read_survival,
    metavar="S1,S2,...",
    help="Unconditional survival per position now, of every arm.",
)
@length_options
@prompts_option
@dispersion_options
@gathered(
    "slo",
    _objectives,
    click.option("--tpot-slo-s", type=_SECONDS, help="Objective: time per output token, in seconds."),
    click.option("--ttft-slo-s", type=_SECONDS, help="Objective: time to first token, in seconds."),
    click.option("--e2e-slo-s", type=_SECONDS, help="Objective: end-to-end latency, in seconds."),
    click.option(
        "--quantile",
        type=Number(0, 1, min_open=True, max_open=True),
        help="0.5, 0.95 or 0.99: the quantile of requests that is to keep the objectives. Default: the mean.",
    ),
)
@click.option(
    "--min-gain-percent",
    type=Number(0, 1000),
    default=0.0,
    show_default=True,
    help="Choose an arm only if the lower bound of its gain exceeds this; 0 goes by the expected latency.",
)
@click.option(
    "--draft-lengths",
    callback=read_draft_lengths,
    metavar="1-10",
    help="Add these draft lengths of every measured method, derived.",
)
@click.option(
    "--rps-range",
    type=float,
    callback=_read_range,
    nargs=2,
    metavar="LO HI",
    help="Also say which arm is fastest over these rates.",
)
@click.option("--method", help="Method of the arm, if the file is a result that does not name it.")
@click.option("--k", type=click.IntRange(0, 1000), help="Draft length of that arm.")
@confidence_option
@json_option
def command(
    profile_path: Path,
    load: LoadPoint,
    steps: tuple[str, ...],
    alpha: float | None,
    per_position: tuple[float, ...] | None,
    lengths: Conditions,
    prompts: tuple[float, ...] | None,
    dispersion: float | None,
    arrivals: Path | None,
    slo: Slo,
    min_gain_percent: float,
    draft_lengths: tuple[int, ...] | None,
    rps_range: Span | None,
    method: str | None,
    k: int | None,
    confidence: float,
    *,
    as_json: bool,
) -> None:
    """Compare every arm at one load and name the best: at equal rate (--rps) or equal concurrency (--concurrency).

    Speedups are against no speculation. At a rate they hold for arrivals of the dispersion that the first line names. All arms are compared at one set of lengths: the lengths given, else the lengths of no speculation. The first line names them if an arm was measured at others. Where the best one rests on an extrapolation, a warning names the arm that needs none. Only measured arms take part unless --draft-lengths adds others.

    \b
    Example:
      breakeven plan chat.json --rps 12
      breakeven plan chat.json --rps 12 --tpot-slo-s 0.04 --rps-range 0 30 --draft-lengths 1-8
    """
    from breakeven.planning.evaluation import LoadQuestion
    from breakeven.planning.plan_at_load import plan_of
    from breakeven.profile.operating_conditions import compared_text

    profile = read_profile(profile_path, confidence, arm_of(method, k) if method is not None else None)
    bursts = dispersion_of(profile, dispersion, arrivals, load)
    now = replace(lengths, dispersion=bursts)
    of_arms = conditions_of(profile, steps, alpha, per_position, now)
    question = LoadQuestion(load, of_arms, slo, derived=True, rps_range=rps_range, confidence=confidence)
    plan = plan_of(profile, question, draft_lengths or (), min_gain_percent / 100.0, prompt_parts(prompts))
    if as_json:
        plan = replace(plan, warnings=(*plan.warnings, *compared(profile, now)))
        open_loop = bursts if load.concurrency is None else None
        echo_result(result_of(plan, confidence, slo.quantile, dispersion=open_loop))
    else:
        plan = replace(plan, warnings=(*plan.warnings, *profile.warnings))
        where = load_text(load, bursts, compared_text(profile.arms, now))
        show(plan, where, objectives=slo.is_set)


def result_of(
    plan: Plan, confidence: float, quantile: float | None, *, dispersion: float | None
) -> dict[str, Any]:
    """The document of `plan --json`; no dispersion at a concurrency."""
    stretches = plan.stretches
    return document(
        FIELDS,
        confidence=confidence,
        best=document(FIELDS, plan.best.arm, place="best."),
        compared_at="equal_concurrency" if dispersion is None else "equal_rps",
        dispersion=dispersion,
        quantile=quantile,
        arms=[_arm(one, quantile) for one in plan.arms],
        reason=plan.best.reason,
        explanation=plan.sentence,
        warnings=plan.warnings,
        envelope=[document(FIELDS, one, one.arm, place="envelope[].") for one in stretches or ()],
        by_prompt=[document(FIELDS, one, one.part, place="by_prompt[].") for one in plan.by_prompt],
    )


def _arm(one: ArmEvaluation, quantile: float | None) -> dict[str, Any]:
    against = one.against_none
    compared: dict[str, Any] = {}
    if one.arm == NO_SPECULATION:
        # The speedup of no speculation over itself is 1, unless it is saturated and has no latency.
        if not one.prediction.saturated:
            compared = {"speedup": 1.0, "speedup_ci": (1.0, 1.0)}
        compared |= dict.fromkeys(("c1_ratio", "c2_ratio"), 1.0)
        compared |= dict.fromkeys(("c1_ratio_ci", "c2_ratio_ci"), (1.0, 1.0)) | {"verdict": "tie"}
    elif against is not None:
        compared = {"break_even_beyond_measured_range": against.break_even_beyond_range}
    quantiles = SimpleNamespace(at_quantile=None if quantile is None else one.promised)
    parts = (one.arm, one.prediction, one, quantiles, against or _NOT_COMPARED)
    return document(FIELDS, *parts, place="arms[].", **compared)


def load_text(load: LoadPoint, dispersion: float, lengths: str) -> str:
    """The load in words; a rate with the dispersion of arrivals, because a speedup holds for that one, and for these lengths."""
    arrivals = "Poisson arrivals" if dispersion == 1.0 else f"arrivals of dispersion {figure(dispersion)}"
    rate = "" if load.rps is None else f"{load.rps:g} rps per replica ({arrivals})"
    where = rate or f"concurrency {load.concurrency:g}"
    return f"{where} and {lengths}" if lengths else where


def show(plan: Plan, load: str, *, objectives: bool) -> None:
    """Print sentence, table, envelope and warnings; with `objectives` the table has a column of them."""
    arms, best = plan.arms, plan.best
    print_text(f"at {load}: {plan.sentence} ({best.reason.value})")
    header = ["arm", "latency s", "speedup", "pays at rps", "SLO rps" if objectives else "saturation rps"]
    rows = [[*_cells(one), _most(one, objectives=objectives)] for one in arms]
    print_table(header, rows)
    if not all(one.measured for one in arms):
        click.echo("* derived from the method's other draft lengths, not measured")
    for stretch in plan.stretches or ():
        click.echo(f"{figure(stretch.from_rps)} to {figure(stretch.to_rps)} rps: {stretch.arm}")
    from breakeven.planning.prompt_lengths import prompts_text

    if said := prompts_text(plan.by_prompt):
        print_text(f"{plan.drafting} by prompt: {said}")
    print_warnings(plan.warnings)


def _cells(one: ArmEvaluation) -> list[str]:
    at, against = one.prediction, one.against_none
    if one.arm == NO_SPECULATION:
        speedup = "-" if at.saturated else "1"
    else:
        speedup = bounds(against.speedup, against.speedup_ci) if against else "-"
    return [
        str(one.arm) + ("" if one.measured else "*"),
        "saturated" if at.saturated else bounds(at.latency_s, at.latency_ci_s),
        speedup,
        _pays(against) if against else "-",
    ]


def _most(one: ArmEvaluation, *, objectives: bool) -> str:
    """The largest rate of the arm: within the objectives, which are the narrower limit, or without any."""
    if not objectives:
        return figure(one.saturation_rps)
    kept = {True: "yes", False: "no", None: "?"}[one.meets_slo]
    return f"{bounds(one.capacity_rps, one.capacity_ci_rps)} {kept}"


def _pays(against: Comparison) -> str:
    verdict = against.verdict.value
    if against.pays_rps:
        return ranges_text(against.pays_rps)
    if against.break_even_beyond_range:
        return f"{verdict}, beyond range"
    if against.break_even_rps is None or verdict == "uncertain":
        return verdict
    return f"{verdict} {bounds(against.break_even_rps, against.break_even_ci_rps)}"
