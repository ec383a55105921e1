"""A ranking as one JSON document, as one sentence and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.cli.tables import bounds, figure, print_table, print_text, print_warnings, through

if TYPE_CHECKING:
    from breakeven.planning.ranking import Candidate, Ranking
    from breakeven.planning.stretches import Stretch
    from breakeven.profile import Comparison


def facts(
    ranking: Ranking,
    stretches: tuple[Stretch, ...] | None,
    warnings: list[str],
    confidence: float,
    quantile: float | None,
    *,
    at_rate: bool,
) -> dict[str, Any]:
    """Return the document of `plan --json`; `stretches` and `quantile` only where they were asked for."""
    facts: dict[str, Any] = {
        "confidence": confidence,
        "best": _identity(ranking.best),
        "compared_at": "equal_rps" if at_rate else "equal_concurrency",
        "quantile": quantile,
        "arms": [_arm_facts(one, quantile) for one in ranking.candidates],
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


def _arm_facts(one: Candidate, quantile: float | None) -> dict[str, Any]:
    same, against = one.arm == NO_SPECULATION, one.comparison
    # Compared with itself an arm is as fast as it is, as long as it has a latency at all.
    own = 1.0 if same and not one.prediction.saturated else None
    return {
        **_identity(one.arm),
        "measured": one.measured,
        "believable": one.believable,
        "latency_s": one.prediction.latency_s,
        "latency_ci_s": one.prediction.latency_ci_s,
        "ttft_s": one.prediction.ttft_s,
        "tpot_s": one.prediction.tpot_s,
        "speedup": own if same else against.speedup if against else None,
        "speedup_ci": (own, own) if own else against.speedup_ci if against else None,
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
        "extrapolated": one.extrapolated,
        "basis": one.prediction.basis,
        "utilisation": one.prediction.utilisation,
        "at_quantile": None if quantile is None else _at_quantile(one),
        "meets_slo": one.meets_slo,
        "capacity_rps": one.capacity_rps,
        "tokens_per_second": one.tokens_per_second,
    }


def _at_quantile(one: Candidate) -> dict[str, Any]:
    promised = one.promised
    return {
        "latency_s": promised.latency_s,
        "ttft_s": promised.ttft_s,
        "tpot_s": promised.tpot_s,
        "means": list(promised.means),
    }


def _sentence(ranking: Ranking) -> str:
    best, chosen = ranking.best, ranking.chosen
    if chosen.prediction.saturated:
        most = "no speculation" if best == NO_SPECULATION else str(best)
        return f"every arm is saturated; {most} carries most, {figure(chosen.saturation_rps)} rps"
    if chosen.comparison is None:
        others = [one for one in ranking.candidates if one.arm != best]
        if best == NO_SPECULATION:
            return "no speculation is best" if others else "only no speculation was measured"
        return f"{best} is best" if others else f"{best} is the only arm"
    gain = chosen.comparison
    unbounded = gain.speedup == float("inf")
    words = f"{best} is best, {figure(gain.speedup)}x{through(gain.speedup_ci)}"
    if unbounded:
        words = f"{best} is best: without speculation the replica is saturated"
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
        return words  # decided by points that bend, of which the ratio of the laws says nothing
    trend = "shrinks" if gain.c2_ratio > 1 else "grows"
    return f"{words}; C2,R {figure(gain.c2_ratio)}: the gain {trend} with load"


def show(
    ranking: Ranking,
    stretches: tuple[Stretch, ...] | None,
    warnings: list[str],
    rps: float | None,
    concurrency: float | None,
    *,
    objectives: bool,
) -> None:
    """Print sentence, table, envelope and warnings; `objectives` says whether the SLO column means anything."""
    load = f"{rps:g} rps per replica" if rps is not None else f"concurrency {concurrency:g}"
    print_text(f"at {load}: {_sentence(ranking)} ({ranking.reason.value})")
    header = ["arm", "latency s", "speedup", "pays at rps", "saturation rps"]
    rows = [_cells(one) for one in ranking.candidates]
    if objectives:
        header.append("SLO rps")
        kept = {True: "yes", False: "no", None: "?"}
        for row, one in zip(rows, ranking.candidates, strict=True):
            row.append(f"{figure(one.capacity_rps)} {kept[one.meets_slo]}")
    print_table(header, rows)
    if not all(one.measured for one in ranking.candidates):
        click.echo("* derived from the method's other draft lengths, not measured")
    for stretch in stretches or ():
        click.echo(f"{figure(stretch.from_rps)} to {figure(stretch.to_rps)} rps: {stretch.arm}")
    print_warnings(warnings)


def _cells(one: Candidate) -> list[str]:
    at, against = one.prediction, one.comparison
    if one.arm == NO_SPECULATION:
        speedup = "-" if at.saturated else "1"
    else:
        speedup = bounds(against.speedup, against.speedup_ci) if against else "-"
    return [
        str(one.arm) + ("" if one.measured else "*"),
        "saturated" if at.saturated else bounds(at.latency_s, at.latency_ci_s),
        speedup,
        _pays(against) if against else "-",
        figure(one.saturation_rps),
    ]


def _pays(against: Comparison) -> str:
    verdict = against.verdict.value
    if against.break_even_beyond_range:
        return f"{verdict}, beyond range"
    if against.break_even_rps is None or verdict == "uncertain":
        return verdict
    return f"{verdict} {bounds(against.break_even_rps, against.break_even_ci_rps)}"
