"""`breakeven history`: what a Prometheus already knows of a workload, as a points file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from breakeven.cli.output import DEFAULT_CONFIDENCE, echo_result, json_option, write_atomically
from breakeven.cli.parameters import OutputFile
from breakeven.cli.past_options import PastQuestion, past_options
from breakeven.cli.prior_options import PriorQuestion, prior_options
from breakeven.cli.worth_view import ToldWorth, print_worth, worth_document
from breakeven.errors import InputError

if TYPE_CHECKING:
    from breakeven.past.clustering import ArmPast
    from breakeven.past.past_reading import KnownPast

_SHOWN = 4


@click.command("history", short_help="A workload's past at Prometheus as a points file.")
@past_options
@prior_options
@click.option("-o", "--output", metavar="POINTS.csv", type=OutputFile(), help="Points file to write.")
@json_option
def command(output: Path | None, *, as_json: bool, **options: Any) -> None:
    """Read what already ran out of Prometheus: which arms, at which loads, how fast. No GPU is used.

    The past is cut into windows. Windows that are not steady are dropped, each with a word: rolls, restarts, other numbers of
    pods, too few requests, a queue that moves. Draft counters tell the arms apart. What ran under another model, image, GPU or
    arguments is left out. Windows at like loads within a block of time become one row, with an error. The command then says what
    the past cannot know.

    At the end it says whether calibrating arms that never ran is worth its GPU time, by ratios that others measured.

    \b
      breakeven history --prometheus http://localhost:9090 --deployment llm/chat -o points.csv
      breakeven fit points.csv -o profile.json
    """
    question = PriorQuestion.of(options)
    past = PastQuestion.of(options).read()
    worth = ToldWorth.of(past, question)
    if output is not None:
        _write(past, output)
    if as_json:
        echo_result(_result(past, worth, output))
    else:
        _print(past, worth, output)


def _write(past: KnownPast, output: Path) -> None:
    """Write the rows of all arms.

    Raises:
        InputError: there are none, or the file cannot be written.
    """
    from breakeven.points.table import cells, written

    points = [point for one in past.arms for point in one.points]
    if not points:
        raise InputError("--since", "no row: too few requests in every window", "a longer past")
    write_atomically(output, written([cells(point) for point in points]))


def _result(past: KnownPast, worth: ToldWorth, output: Path | None) -> Any:
    """The document of `--json`."""
    from breakeven.cli.results import PastResult
    from breakeven.points.table import document

    return PastResult(
        file=None if output is None else str(output),
        from_s=past.grid.first_s,
        to_s=past.grid.last_s,
        window_s=past.grid.step_s,
        pods=past.pods,
        arms=[_arm(one, past) for one in past.arms],
        dropped={str(word): count for word, count in sorted(past.cut.dropped.items())},
        earlier=[
            {**one.fingerprint._asdict(), "differs": one.differs, "hours": one.hours} for one in past.earlier
        ],
        unknown=[one._asdict() for one in past.doubts],
        points=[document(point) for one in past.arms for point in one.points],
        calibration=worth_document(worth),
        confidence=DEFAULT_CONFIDENCE,
    )


def _arm(one: ArmPast, past: KnownPast) -> dict[str, Any]:
    points = one.points
    arm = points[0].arm if points else None
    fit = past.profile.arm(arm) if past.profile is not None and arm is not None else None
    against = past.against_none(arm, DEFAULT_CONFIDENCE) if arm is not None else None
    rates, inflight = (
        [getattr(each, name) or 0.0 for each in points] for name in ("request_rate_rps", "mean_inflight")
    )
    return {
        "method": points[0].method if points else one.kind.method or "none",
        "k": one.kind.k,
        "scheduled": one.kind.schedule is not None,
        "schedule": one.kind.schedule,
        "hours": one.hours,
        "windows": len(one.windows),
        "requests": one.seen.requests,
        "points": len(points),
        "rps": (min(rates), max(rates)) if rates else None,
        "inflight": (min(inflight), max(inflight)) if inflight else None,
        **{name: getattr(one.seen, name) for name in ("tokens_per_step", "prompt_tokens", "output_tokens")},
        **{name: getattr(fit, name, None) for name in ("c1_s", "c1_ci_s", "c2_s", "c2_ci_s")},
        **{name: getattr(against, name, None) for name in ("break_even_rps", "break_even_ci_rps", "verdict")},
    }


def _print(past: KnownPast, worth: ToldWorth, output: Path | None) -> None:
    from breakeven.cli.tables import bounds, figure, print_table, print_text, print_warnings
    from breakeven.past.steady import WORDS
    from breakeven.past.unknowns import named

    rows = []
    for one in past.arms:
        shown = _arm(one, past)
        spans = [
            f"{figure(low)}-{figure(high)}" if span else "-"
            for span in (shown["rps"], shown["inflight"])
            for low, high in [span or (0, 0)]
        ]
        rows.append(
            (
                named(one), figure(one.hours), f"{one.seen.requests:.0f}", str(len(one.points)), *spans,
                bounds(shown["c1_s"], shown["c1_ci_s"]), bounds(shown["c2_s"], shown["c2_ci_s"], 1e3),
                bounds(shown["break_even_rps"], shown["break_even_ci_rps"]) if shown["verdict"] else "-",
            )
        )  # fmt: skip
    header = ("arm", "hours", "requests", "rows", "rps", "in flight", "C1 s", "C2 ms", "break-even rps")
    print_table(header, rows)
    windows = len({one.end_s for one in past.cut.windows})
    dropped = ", ".join(f"{word} {count}" for word, count in past.cut.dropped.most_common())
    days = (past.grid.last_s - past.grid.first_s) / 86400
    print_text(
        f"{past.pods} pods, {windows} of {past.grid.times - 1} windows of {past.grid.step_s} s in {figure(days)} days count"
        + (f"; dropped: {dropped}" if dropped else "")
    )
    for word, _ in past.cut.dropped.most_common(_SHOWN):
        print_text(f"{word}: {WORDS[word]}", mark="  ")
    print_warnings([f"{one.word}: {one.sentence}" for one in past.doubts])
    print_worth(worth)
    if output is not None:
        click.echo(
            f"{output}: {sum(len(one.points) for one in past.arms)} rows; next: breakeven fit {output} -o profile.json"
        )
