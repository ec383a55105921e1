"""Print the validation table; exit 0 whether goals are met or missed, which the table says."""

from __future__ import annotations

import sys
import time

import click

from breakeven.cli.tables import print_table
from validation.checks import all_checks
from validation.outcomes import ValidationOutcome
from validation.published import data_folder


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
    return 0


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
