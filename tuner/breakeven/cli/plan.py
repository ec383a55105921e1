"""`breakeven plan PROFILE.json --rps R`: the best arm at a load, and until which load."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.cli.output import confidence_option, echo_json, json_option
from breakeven.cli.predict import arm_of
from breakeven.cli.profiles import length_options, load_given, load_options, profile_argument, read_profile
from breakeven.errors import InputError

if TYPE_CHECKING:
    from breakeven.planning.ranking import Candidate, Ranking, Stretch
    from breakeven.profile import Conditions, Profile

_SECONDS = click.FloatRange(min=0, max=86_400, min_open=True)


@click.command("plan", short_help="The best arm at a load, and until which load.")
@profile_argument
@load_options
@click.option(
    "--tokens-per-step",
    "steps",
    multiple=True,
    metavar="[METHOD/K=]E",
    help="Tokens per request-step now; of one arm, or without a name of every speculative arm.",
)
@click.option(
    "--alpha", type=click.FloatRange(0, 1), help="Independent acceptance rate now, of every speculative arm."
)
@click.option(
    "--per-position", metavar="S1,S2,...", help="Unconditional survival per position now, of every arm."
)
@length_options
@click.option("--tpot-slo-s", type=_SECONDS, help="Objective: mean time per output token, in seconds.")
@click.option("--ttft-slo-s", type=_SECONDS, help="Objective: mean time to first token, in seconds.")
@click.option(
    "--e2e-slo-s", type=_SECONDS, help="Objective: end-to-end latency in seconds, mean or --quantile."
)
@click.option(
    "--quantile",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="0.5, 0.95 or 0.99: which quantile --e2e-slo-s is about.",
)
@click.option(
    "--min-gain-percent",
    type=click.FloatRange(0, 1000),
    default=0.0,
    show_default=True,
    help="Choose an arm only if the lower bound of its gain exceeds this; 0 goes by the expected latency.",
)
@click.option(
    "--draft-lengths", metavar="1-10", help="Add these draft lengths of every measured method, derived."
)
@click.option(
    "--rps-range",
    type=float,
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
    rps: float | None,
    concurrency: float | None,
    steps: tuple[str, ...],
    alpha: float | None,
    per_position: str | None,
    prompt_tokens: float | None,
    output_tokens: float | None,
    tpot_slo_s: float | None,
    ttft_slo_s: float | None,
    e2e_slo_s: float | None,
    quantile: float | None,
    min_gain_percent: float,
    draft_lengths: str | None,
    rps_range: tuple[float, float] | None,
    method: str | None,
    k: int | None,
    confidence: float,
    *,
    as_json: bool,
) -> None:
    """Compare every arm at one load and name the best: at equal rate (--rps) or equal concurrency (--concurrency).

    Speedups are against no speculation. Only measured arms take part unless --draft-lengths adds others.

    \b
    Example:
      breakeven plan chat.json --rps 12
      breakeven plan chat.json --rps 12 --tpot-slo-s 0.04 --rps-range 0 30 --draft-lengths 1-8
    """
    from breakeven.planning.ranking import Objectives, envelope, rank
    from breakeven.profile import LoadPoint

    load_given(rps, concurrency)
    if rps_range is not None and not 0 <= rps_range[0] < rps_range[1] < float("inf"):
        raise click.BadParameter(f"{rps_range[0]:g} {rps_range[1]:g} is no range", param_hint="--rps-range")
    if quantile is not None and e2e_slo_s is None:
        raise click.UsageError("--quantile says which quantile --e2e-slo-s is about; give that too")
    lengths = _draft_lengths(draft_lengths) if draft_lengths is not None else []
    profile = read_profile(profile_path, confidence, arm_of(method, k) if method is not None else None)
    conditions = _conditions(profile, steps, alpha, per_position, prompt_tokens, output_tokens)
    ranking = rank(
        profile,
        LoadPoint(rps, concurrency),
        conditions,
        Objectives(tpot_slo_s, ttft_slo_s, e2e_slo_s, quantile),
        unmeasured=_unmeasured(profile, lengths),
        min_gain=min_gain_percent / 100.0,
        rps_range=rps_range,
        confidence=confidence,
    )
    stretches = None
    if rps_range is not None:
        taking_part = [one.arm for one in ranking.candidates if one.believable] or [
            one.arm for one in ranking.candidates
        ]
        stretches = envelope([(arm, profile.curve(arm, conditions(arm))) for arm in taking_part], rps_range)
    warnings = [*ranking.skipped, *_lacks(profile, lengths), *_doubts(ranking)]
    if as_json:
        echo_json(_facts(ranking, stretches, warnings, confidence, at_rate=rps is not None))
    else:
        asked = any(limit is not None for limit in (tpot_slo_s, ttft_slo_s, e2e_slo_s))
        _show(ranking, stretches, [*warnings, *profile.warnings], rps, concurrency, objectives=asked)


def _draft_lengths(text: str) -> list[int]:
    found: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        try:
            ends = int(low), int(high if dash else low)
        except ValueError:
            ends = (0, 0)
        if not 1 <= ends[0] <= ends[1] <= 1000:
            raise click.BadParameter(
                f"{text!r} is no list of draft lengths such as 1-10 or 1,3,5", param_hint="--draft-lengths"
            )
        found.update(range(ends[0], ends[1] + 1))
    return sorted(found)


def _unmeasured(profile: Profile, lengths: list[int]) -> list[Arm]:
    arms = []
    for pooled in profile.pooled:
        member = next(fit.arm for fit in profile.arms if fit.k and fit.arm.family == pooled.method)
        arms += [Arm(member.method, k, member.candidate) for k in lengths]
    return [arm for arm in arms if not profile.measured(arm)]


def _lacks(profile: Profile, lengths: list[int]) -> list[str]:
    pooled = {one.method for one in profile.pooled}
    families = {fit.arm.family for fit in profile.arms if fit.k} if lengths else set()
    return [
        f"{family}: other draft lengths cannot be derived; its points need output_tokens, and tokens_per_step or accept_1..k"
        for family in sorted(families - pooled)
    ]


def _doubts(ranking: Ranking) -> list[str]:
    chosen = ranking.chosen
    if chosen.prediction.extrapolated and not chosen.prediction.saturated:
        return [
            f"{chosen.arm}: this load is extrapolated (outside what was measured, or above utilisation 0.75)"
        ]
    return []


def _conditions(
    profile: Profile,
    steps: tuple[str, ...],
    alpha: float | None,
    per_position: str | None,
    prompt_tokens: float | None,
    output_tokens: float | None,
) -> Callable[[Arm], Conditions]:
    """Turn the acceptance options into what holds for each arm."""
    from breakeven.acceptance import AcceptanceModel, tokens_per_step_iid
    from breakeven.profile import Conditions

    if sum([bool(steps), alpha is not None, per_position is not None]) > 1:
        raise click.UsageError("--tokens-per-step, --alpha and --per-position say the same thing; give one")
    named, common = _named_steps(profile, steps)
    survival = None if per_position is None else _survival(per_position)

    def conditions(arm: Arm) -> Conditions:
        e: float | None = None
        if arm.k and str(arm) in named:
            e = named[str(arm)]
        elif arm.k and common is not None:
            e = min(common, arm.k + 1.0)
        elif arm.k and alpha is not None:
            e = float(tokens_per_step_iid(alpha, arm.k))
        elif arm.k and survival is not None:
            model = AcceptanceModel(
                arm.method, {len(survival): 1.0 + sum(survival)}, {len(survival): survival}
            )
            e = model.at(arm.k).value
        return Conditions(e, prompt_tokens, output_tokens)

    return conditions


def _named_steps(profile: Profile, steps: tuple[str, ...]) -> tuple[dict[str, float], float | None]:
    named: dict[str, float] = {}
    common: float | None = None
    for text in steps:
        name, equals, figure = text.rpartition("=")
        try:
            value = float(figure)
        except ValueError:
            value = 0.0
        if not 1.0 <= value < float("inf"):
            raise click.BadParameter(f"{text!r} is no number of at least 1", param_hint="--tokens-per-step")
        if not equals:
            common = value
            continue
        arm = next((fit.arm for fit in profile.arms if str(fit.arm) == name), None)
        if arm is None or not arm.k:
            known = ", ".join(str(fit.arm) for fit in profile.arms if fit.k) or "none"
            raise InputError("--tokens-per-step", f"arm {name!r}", f"a measured speculative arm ({known})")
        if value > arm.k + 1:
            raise InputError("--tokens-per-step", f"{value:g} for {arm}", f"1 to k + 1 = {arm.k + 1}")
        named[name] = value
    return named, common


def _survival(text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    falling = all(high <= low for low, high in itertools.pairwise(values))
    if not values or not falling or not all(0 <= value <= 1 for value in values):
        raise InputError(
            "--per-position",
            repr(text)[:60],
            "unconditional survival per position: numbers from 1 to 0 that never rise",
        )
    return values


def _facts(
    ranking: Ranking,
    stretches: tuple[Stretch, ...] | None,
    warnings: list[str],
    confidence: float,
    *,
    at_rate: bool,
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "confidence": confidence,
        "best": _identity(ranking.best),
        "compared_at": "equal_rps" if at_rate else "equal_concurrency",
        "arms": [_arm_facts(one) for one in ranking.candidates],
        "reason": ranking.reason.value,
        "explanation": _sentence(ranking),
        "warnings": warnings,
    }
    if stretches is not None:
        facts["envelope"] = [
            {"from_rps": one.from_rps, "to_rps": one.to_rps, **_identity(one.arm)} for one in stretches
        ]
    return facts


def _identity(arm: Arm) -> dict[str, Any]:
    return {"method": arm.method, "k": arm.k, **({"candidate": arm.candidate} if arm.candidate else {})}


def _arm_facts(one: Candidate) -> dict[str, Any]:
    same = one.arm == NO_SPECULATION
    against = one.comparison
    return {
        **_identity(one.arm),
        "measured": one.measured,
        "believable": one.believable,
        "latency_s": one.prediction.latency_s,
        "latency_ci_s": one.prediction.latency_ci_s,
        "ttft_s": one.prediction.ttft_s,
        "tpot_s": one.prediction.tpot_s,
        "speedup": 1.0 if same else against.speedup if against else None,
        "speedup_ci": (1.0, 1.0) if same else against.speedup_ci if against else None,
        "c1_ratio": 1.0 if same else against.c1_ratio if against else None,
        "c1_ratio_ci": (1.0, 1.0) if same else against.c1_ratio_ci if against else None,
        "c2_ratio": 1.0 if same else against.c2_ratio if against else None,
        "c2_ratio_ci": (1.0, 1.0) if same else against.c2_ratio_ci if against else None,
        "verdict": "tie" if same else against.verdict.value if against else None,
        "break_even_rps": against.break_even_rps if against else None,
        "break_even_ci_rps": against.break_even_ci_rps if against else None,
        "break_even_concurrency": against.break_even_concurrency if against else None,
        "break_even_beyond_measured_range": against.break_even_beyond_range if against else False,
        "saturation_rps": one.saturation_rps,
        "saturated": one.prediction.saturated,
        "extrapolated": one.prediction.extrapolated,
        "basis": one.prediction.basis,
        "utilisation": one.prediction.utilisation,
        "meets_slo": one.meets_slo,
        "capacity_rps": one.capacity_rps,
        "tokens_per_second": one.tokens_per_second,
    }


def _sentence(ranking: Ranking) -> str:
    from breakeven.cli.tables import figure, through

    best, chosen = ranking.best, ranking.chosen
    if chosen.prediction.saturated:
        return f"every arm is saturated; {best} carries most, {figure(chosen.saturation_rps)} rps"
    if chosen.comparison is None:
        others = [one for one in ranking.candidates if one.arm != best]
        if best == NO_SPECULATION and others:
            return "no speculation is best"
        return f"{best} is best" if others else f"{best} is the only arm"
    gain = chosen.comparison
    words = f"{best} is best, {figure(gain.speedup)}x{through(gain.speedup_ci)}"
    if gain.break_even_rps is not None:
        side = "until" if gain.verdict == "below" else "above"
        words += f"; pays {side} {figure(gain.break_even_rps)} rps{through(gain.break_even_ci_rps)}"
    elif gain.verdict in {"always", "never", "uncertain", "tie"}:
        words += {"always": "; pays at every load", "never": "; never pays", "tie": "; a tie"}.get(
            gain.verdict.value, "; the bounds tell no gain from a loss"
        )
    else:
        words += f"; pays {gain.verdict.value} a load beyond the measured range"
    trend = "shrinks" if gain.c2_ratio > 1 else "grows"
    return f"{words}; C2,R {figure(gain.c2_ratio)}: the gain {trend} with load"


def _show(
    ranking: Ranking,
    stretches: tuple[Stretch, ...] | None,
    warnings: list[str],
    rps: float | None,
    concurrency: float | None,
    *,
    objectives: bool,
) -> None:
    from breakeven.cli.tables import bounds, figure, print_table, print_warnings

    load = f"{rps:g} rps per replica" if rps is not None else f"concurrency {concurrency:g}"
    click.echo(f"at {load}: {_sentence(ranking)} ({ranking.reason.value})")
    yes_or_no = {True: "kept" if objectives else "-", False: "missed", None: "?"}
    rows = []
    for one in ranking.candidates:
        against = one.comparison
        break_even = "-"
        if against is not None and against.break_even_rps is not None:
            break_even = bounds(against.break_even_rps, against.break_even_ci_rps)
        elif against is not None and against.break_even_beyond_range:
            break_even = "beyond range"
        rows.append(
            (
                str(one.arm) + ("" if one.measured else " (derived)"),
                "saturated"
                if one.prediction.saturated
                else bounds(one.prediction.latency_s, one.prediction.latency_ci_s),
                "1"
                if one.arm == NO_SPECULATION
                else bounds(against.speedup, against.speedup_ci)
                if against
                else "-",
                against.verdict.value if against else "-",
                break_even,
                figure(one.saturation_rps),
                yes_or_no[one.meets_slo],
                figure(one.capacity_rps),
            )
        )
    print_table(
        ("arm", "latency s", "speedup", "pays", "break-even rps", "saturation rps", "SLO", "capacity rps"),
        rows,
    )
    for stretch in stretches or ():
        click.echo(f"{figure(stretch.from_rps)} to {figure(stretch.to_rps)} rps: {stretch.arm}")
    print_warnings(list(dict.fromkeys(warnings)))
