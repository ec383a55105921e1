"""Print the validation tables; exit 0 whether goals are met or missed, which the table says."""

from __future__ import annotations

import sys
import time

import click

from breakeven.cli.output import print_table
from validation.adaptive_sweeps import SWEEP_HEADER, adaptive_rows
from validation.checks import all_checks
from validation.judged_engines import ENGINES
from validation.law_door import LAWS
from validation.law_table import files_header, files_rows, law_header, law_rows, noisy_rows
from validation.outcomes import ValidationOutcome
from validation.past_trials import past_row, past_trials
from validation.published import data_folder
from validation.start_trials import DRIFT_HEADER, START_HEADER, drift_rows, start_rows


def main() -> int:
    """Run all checks and print one table."""
    started = time.perf_counter()
    folder = data_folder()
    outcomes = list(all_checks(folder))
    print_table(
        ("question", "dataset", "split", "n", "mean %", "p90 %", "worst %", "regret %", "held %", "goal", ""),
        [_row(one) for one in outcomes],
    )
    for one in outcomes:
        if one.goals and not one.met:
            click.echo(
                f"! {one.what}, {one.dataset}, {one.split}: {_by_how_much(one)}; {one.note or 'not explained'}"
            )
    missed = sum(not one.met for one in outcomes if one.goals)
    judged = sum(bool(one.goals) for one in outcomes)
    if folder is None:
        click.echo("! no published data beside the repository ($BREAKEVEN_DATA): only the simulations ran")
    click.echo(f"{judged - missed} of {judged} goals met, {time.perf_counter() - started:.0f} s")
    click.echo(
        "\nadaptive verification in two public sweeps: tok/s, and errors of the law; no speculation and k=7 at all loads"
    )
    print_table(SWEEP_HEADER, list(adaptive_rows()))
    _judge_laws()
    _judge_starts()
    _judge_pasts()
    return 0


def _judge_laws() -> None:
    """The laws side by side on the second engine (docs/validation.md says what the columns mean)."""
    started = time.perf_counter()
    click.echo(
        "\nlaws on the second engine: errors mean/worst in percent, 2 % noise, three calibrations an engine"
    )
    print_table(law_header(), [row for law in LAWS for row in law_rows(law, ENGINES)])
    click.echo("\nthe same with more noise, three kinds of engines, a calibration each")
    print_table(law_header(), [row for law in LAWS for row in noisy_rows(law)])
    click.echo("\nlaws fitted to the files of two workloads: as above")
    print_table(files_header(), [row for law in LAWS for row in files_rows(law)])
    click.echo(f"{time.perf_counter() - started:.0f} s")


def _judge_starts() -> None:
    """Bounds where starts of an engine differ (docs/validation.md)."""
    click.echo("\nstarts of an engine that differ: bounds of 90 % on engines kept apart")
    print_table(START_HEADER, list(start_rows()))
    click.echo("\na machine that drifts, in two orders of the windows: the same engines")
    print_table(DRIFT_HEADER, list(drift_rows()))


def _judge_pasts() -> None:
    """Answers of `breakeven history` about made-up pasts (docs/validation.md)."""
    started = time.perf_counter()
    click.echo(
        "\npasts of engines kept apart: break-evens (rps) that are read out of them, and what they cannot say"
    )
    trials = [*past_trials(engines=("cpu",), seeds=(0, 1)), *past_trials(engines=("roofline",))]
    print_table(
        ("engine", "k", "past", "true", "lower", "upper", "held", "words"), [past_row(one) for one in trials]
    )
    held = [one.held for one in trials if one.held is not None]
    click.echo(f"bounds of 90 % hold {sum(held)} of {len(held)}, {time.perf_counter() - started:.0f} s")


def _by_how_much(one: ValidationOutcome) -> str:
    return ", ".join(
        f"{name} {100 * one.figures[name]:.1f} for a goal of {100 * limit:g}"
        for name, (limit, below) in one.goals.items()
        if (one.figures[name] > limit) is below
    )


def _row(one: ValidationOutcome) -> tuple[str, ...]:
    def cell(name: str) -> str:
        if name not in one.figures:
            return ""
        mark = ""
        if name in one.goals:
            limit, below = one.goals[name]
            value = one.figures[name]
            mark = "" if (value <= limit if below else value >= limit) else " *"
        return f"{100 * one.figures[name]:.1f}{mark}"

    goal = ", ".join(
        f"{name} {'<=' if below else '>='} {100 * limit:g}" for name, (limit, below) in one.goals.items()
    )
    verdict = "" if not one.goals else "met" if one.met else "MISSED"
    return (
        one.what,
        one.dataset,
        one.split,
        str(one.count),
        *(cell(name) for name in ("mean", "p90", "worst", "regret", "coverage")),
        goal,
        verdict,
    )


if __name__ == "__main__":
    sys.exit(main())
