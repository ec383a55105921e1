"""The result of `plan` as one JSON document, as one sentence and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from breakeven.arm import NO_SPECULATION
from breakeven.cli.tables import bounds, figure, print_table, print_text, print_warnings, through
from breakeven.planning.wording import ranges_text

if TYPE_CHECKING:
    from breakeven.cli.results import PlanArm, PlanResult
    from breakeven.planning.best_arm import BestArm
    from breakeven.planning.envelope import Stretch
    from breakeven.planning.evaluation import ArmEvaluation
    from breakeven.profile import Comparison


class Plan(NamedTuple):
    """Answer of `plan`.

    Attributes:
        arms: evaluations of the arms at the load.
        best: the arm to run.
        stretches: the fastest arm over a range of rates; None if no range was given.
        warnings: a sentence each.
    """

    arms: Sequence[ArmEvaluation]
    best: BestArm
    stretches: tuple[Stretch, ...] | None
    warnings: list[str]


def result_of(
    plan: Plan, confidence: float, quantile: float | None, *, dispersion: float | None
) -> PlanResult:
    """The document of `plan --json`; no dispersion at a concurrency."""
    from breakeven.cli.results import EnvelopeStretch, PlanResult

    stretches = plan.stretches
    return PlanResult(
        confidence=confidence,
        best=plan.best.arm,
        compared_at="equal_concurrency" if dispersion is None else "equal_rps",
        dispersion=dispersion,
        quantile=quantile,
        arms=[_arm(one, quantile) for one in plan.arms],
        reason=plan.best.reason,
        explanation=_sentence(plan.arms, plan.best),
        warnings=plan.warnings,
        envelope=None if stretches is None else [EnvelopeStretch.of(one, one.arm) for one in stretches],
    )


def _arm(one: ArmEvaluation, quantile: float | None) -> PlanArm:
    from breakeven.cli.results import PlanArm

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
    return PlanArm.of(
        one.arm,
        one.prediction,
        one,
        against,
        at_quantile=None if quantile is None else one.promised,
        **compared,
    )


def _sentence(arms: Sequence[ArmEvaluation], named: BestArm) -> str:
    best, chosen = named.arm, named.chosen
    if chosen.prediction.saturated:
        most = "no speculation" if best == NO_SPECULATION else str(best)
        return f"every arm is saturated; {most} has the highest saturation, {figure(chosen.saturation_rps)} rps: add replicas"
    if chosen.against_none is None:
        others = [one for one in arms if one.arm != best]
        if best == NO_SPECULATION:
            return "no speculation is best" if others else "only no speculation was measured"
        return f"{best} is best" if others else f"{best} is the only arm"
    gain = chosen.against_none
    unbounded = gain.speedup == float("inf")
    words = f"{best} is best, {figure(gain.speedup)}x{through(gain.speedup_ci)}"
    if unbounded:
        words = f"{best} is best: without speculation the replica is saturated"
    if gain.pays_rps:
        return f"{words}; pays {ranges_text(gain.pays_rps)} rps"
    if gain.break_even_rps is not None:
        side = "until" if gain.verdict == "below" else "from"
        words += f"; pays {side} {figure(gain.break_even_rps)} rps{through(gain.break_even_ci_rps)}"
    elif gain.verdict in {"always", "never", "uncertain", "tie"}:
        words += {"always": "; pays at every load", "never": "; never pays", "tie": "; a tie"}.get(
            gain.verdict.value, "; the bounds tell no gain from a loss"
        )
    else:
        words += f"; pays {gain.verdict.value} a load beyond the measured range"
    if gain.verdict.value == ("below" if gain.c2_ratio < 1 else "above"):
        return words  # decided by points that bend, for which the ratio of the laws is wrong
    trend = "shrinks" if gain.c2_ratio > 1 else "grows"
    return f"{words}; C2,R {figure(gain.c2_ratio)}: the gain {trend} with load"


def load_text(rps: float | None, concurrency: float | None, dispersion: float, lengths: str) -> str:
    """The load in words; a rate with the dispersion of arrivals, because a speedup holds for that one, and for these lengths."""
    arrivals = "Poisson arrivals" if dispersion == 1.0 else f"arrivals of dispersion {figure(dispersion)}"
    load = f"concurrency {concurrency:g}" if rps is None else f"{rps:g} rps per replica ({arrivals})"
    return f"{load} and {lengths}" if lengths else load


def show(plan: Plan, load: str, *, objectives: bool) -> None:
    """Print sentence, table, envelope and warnings; with `objectives` the table has a column of them."""
    arms, best = plan.arms, plan.best
    print_text(f"at {load}: {_sentence(arms, best)} ({best.reason.value})")
    header = ["arm", "latency s", "speedup", "pays at rps", "SLO rps" if objectives else "saturation rps"]
    rows = [[*_cells(one), _most(one, objectives=objectives)] for one in arms]
    print_table(header, rows)
    if not all(one.measured for one in arms):
        click.echo("* derived from the method's other draft lengths, not measured")
    for stretch in plan.stretches or ():
        click.echo(f"{figure(stretch.from_rps)} to {figure(stretch.to_rps)} rps: {stretch.arm}")
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
