"""The laws side by side on the second engine: `python -m validation.law_table [--law NAME] [--engine KIND] [--half ...]`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import click
import numpy as np

from breakeven.cli.output import print_table
from validation.judged_engines import ENGINES, TWO_WORKLOADS, Half, JudgedEngine
from validation.law_door import LAWS, NoLaw
from validation.law_trials import DESIGNS, LawTrial, trial, trials
from validation.truths import Truths
from validation.two_workloads import files_trial

_COLUMNS = (
    "unseen load", "unseen k", "prompts x4", "answers x2", "answers /2", "E x0.6", "E x1.3", "bursts", "schedule", "break-even"
)  # fmt: skip
_NOISES = (0.08, 0.15, 0.25)
_NOISY_KINDS = ("dense", "roofline", "knee")
_FIRST_SEED = {Half.CHOSEN: 1, Half.APART: 101}


def law_rows(
    law: str,
    engines: Sequence[JudgedEngine],
    noise: float = 0.02,
    seeds: int = 1,
    designs: Sequence[str] = tuple(DESIGNS),
) -> Iterator[list[str]]:
    """A row an engine: mean/worst error in percent for each question, then regret, bounds and time.

    Args:
        law: name of one of `LAWS`.
        engines: which.
        noise: of a measured latency.
        seeds: how often each design is calibrated.
        designs: which.
    """
    with ProcessPoolExecutor(2) as pool:
        found = list(pool.map(_of_engine, [(law, engine, noise, seeds, designs) for engine in engines]))
    for engine, of_engine in zip(engines, found, strict=True):
        yield [str(engine.half), engine.kind, law, *_cells(of_engine)]
    for half in Half:
        of_half = [one for of_engine in found for one in of_engine if one.engine.half is half]
        if len({one.engine.kind for one in of_half}) > 1:
            yield [str(half), "all", law, *_cells(of_half)]


def noisy_rows(law: str) -> Iterator[list[str]]:
    """A row a half of three kinds of engines, calibrated once with more and more noise."""
    engines = [one for one in ENGINES if one.kind in _NOISY_KINDS]
    for noise in _NOISES:
        for half, kind, *cells in law_rows(law, engines, noise, designs=("mixed",)):
            if kind == "all":
                yield [half, f"{noise:.0%} noise", *cells]


def _of_engine(what: tuple[str, JudgedEngine, float, int, Sequence[str]]) -> list[LawTrial]:
    law, engine, noise, seeds, designs = what
    first = _FIRST_SEED[engine.half]
    return list(trials(LAWS[law], engine, noise, range(first, first + seeds), designs))


def files_rows(law: str, noise: float = 0.02, seeds: int = 3) -> Iterator[list[str]]:
    """A row an engine that was calibrated by two workloads' files."""
    for engine in TWO_WORKLOADS:
        truths = Truths.read(engine)
        first = _FIRST_SEED[engine.half]
        found = [files_trial(LAWS[law], truths, noise, seed) for seed in range(first, first + seeds)]
        asked = [answer for one in found for answer in one.latencies]
        errors = [abs(answer.error) for answer in asked if answer.error is not None]
        held = [answer.held for answer in asked if answer.held is not None]
        wrong = [side for one in found for side in one.wrong]
        yield [
            str(engine.half),
            engine.kind,
            law,
            f"{100 * np.mean(errors):.1f}/{100 * max(errors):.0f}" if errors else "-",
            f"{len(errors)}/{len(asked)}",
            f"{100 * np.mean(held):.0f}" if held else "-",
            f"{sum(wrong)}/{len(wrong)}",
        ]


def files_header() -> list[str]:
    """Header of the rows of files."""
    return ["engines", "kind", "law", "latency", "given", "held", "wrong side"]


def law_header() -> list[str]:
    """Header of the rows of laws."""
    return [
        "engines",
        "kind",
        "law",
        *_COLUMNS,
        "k* regret",
        "given",
        "BE held",
        "L held",
        "fit s",
        "decide ms",
    ]


def _cells(found: Sequence[LawTrial]) -> Iterator[str]:
    answers = [answer for one in found for answer in one.answers]
    for column in _COLUMNS:
        asked = [answer.error for answer in answers if answer.column == column]
        given = [abs(error) for error in asked if error is not None]
        lost = f" {len(given)}/{len(asked)}" if len(given) < len(asked) or column == "break-even" else ""
        yield (
            (f"{100 * np.mean(given):.1f}/{100 * max(given):.0f}{lost}" if given else f"-{lost}")
            if asked
            else "none"
        )
    regrets = [regret for one in found for regret in one.regrets]
    named = [regret for regret in regrets if regret is not None]
    yield f"{100 * np.mean(named):.1f}/{100 * max(named):.0f}" if named else "-"
    yield f"{len(named)}/{len(regrets)}"
    for columns in (("break-even",), ("unseen load", "unseen k")):
        held = [answer.held for answer in answers if answer.column in columns and answer.held is not None]
        yield f"{100 * np.mean(held):.0f}" if held else "-"
    yield f"{np.mean([one.fit_s for one in found]):.2f}"
    yield f"{1e3 * np.mean([one.decision_s for one in found]):.1f}"


@click.command()
@click.option("--law", "laws", multiple=True, type=click.Choice(list(LAWS)), help="Which; all without it.")
@click.option("--engine", "kinds", multiple=True, help="Kinds of engine; all without it.")
@click.option("--half", type=click.Choice([half.value for half in Half]), help="One half; both without it.")
@click.option(
    "--noise", default=0.02, type=click.FloatRange(0.0, 0.5), help="Of a measured latency, .02 by itself."
)
@click.option(
    "--seeds",
    default=1,
    type=click.IntRange(1),
    help="Calibrations of each of the three designs, 1 by itself.",
)
@click.option("--make", "making", is_flag=True, help="Make the figures of these engines: minutes each.")
def main(
    laws: tuple[str, ...], kinds: tuple[str, ...], half: str | None, noise: float, seeds: int, *, making: bool
) -> None:
    """Print mean/worst errors in percent of each law on each engine (docs/validation.md says what the columns mean)."""
    chosen = [
        one
        for one in (*ENGINES, *TWO_WORKLOADS)
        if (not kinds or one.kind in kinds) and half in (None, one.half.value)
    ]
    if not chosen:
        known = ", ".join(dict.fromkeys(one.kind for one in (*ENGINES, *TWO_WORKLOADS)))
        raise click.BadParameter(f"{', '.join(kinds)}: expected {known}")
    if making:
        for engine in chosen:
            _make(engine)
        return
    names = laws or tuple(LAWS)
    engines = [one for one in chosen if one in ENGINES]
    if engines:
        click.echo(
            f"errors mean/worst in percent, {noise:.0%} noise, {len(DESIGNS) * seeds} calibrations an engine"
        )
        print_table(law_header(), [row for law in names for row in law_rows(law, engines, noise, seeds)])
    if len(engines) < len(chosen):
        print_table(files_header(), [row for law in names for row in files_rows(law, noise)])


def _make(engine: JudgedEngine) -> None:
    truths = Truths.read(engine, making=True)
    if engine in TWO_WORKLOADS:
        files_trial(NoLaw(), truths, 0.0, 0)
    else:
        for design in DESIGNS:
            trial(NoLaw(), truths, design, 0.0, 0)
    worst = max(run.error for run in truths.known.values() if math.isfinite(run.error))
    click.echo(f"{engine.half}, {engine.kind}: {len(truths.known)} figures, largest error {worst:.2%}")


if __name__ == "__main__":
    main()
