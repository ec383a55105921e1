"""`breakeven history`: what a Prometheus already knows of a workload, as a points file."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from breakeven.cli.output import DEFAULT_CONFIDENCE, echo_result, json_option, write_atomically
from breakeven.cli.parameters import Number, OutputFile
from breakeven.cli.prior_options import PriorQuestion, prior_options
from breakeven.cli.prometheus_options import (
    PrometheusAddress,
    prometheus_options,
    read_matcher,
    read_prefix,
)
from breakeven.errors import InputError

if TYPE_CHECKING:
    from breakeven.past.clustering import ArmPast
    from breakeven.past.past_reading import KnownPast
    from breakeven.prior.calibration_worth import CalibrationWorth
    from breakeven.prior.public_table import ServiceFacts
    from breakeven.serving.promql import Matcher

_UNITS_S = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LONGEST_S = 400 * 86400
_MOST_WINDOWS = 20_000
_POD_OF = r"-([a-z0-9]+-)?[a-z0-9]+"
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_SHOWN = 4
_STEPS = 1000


def _seconds(_ctx: click.Context, _param: click.Parameter, text: str) -> int:
    """A span such as 14d, 36h or 90m, in seconds.

    Raises:
        click.BadParameter: it is none, or beyond 400 days.
    """
    found = re.fullmatch(r"(\d{1,6})([mhdw])", text.strip())
    seconds = int(found[1]) * _UNITS_S[found[2]] if found else 0
    if not 0 < seconds <= _LONGEST_S:
        raise click.BadParameter(f"{text!r} is no span; expected such as 14d, 36h or 90m, at most 400d")
    return seconds


@click.command("history", short_help="A workload's past at Prometheus as a points file.")
@prometheus_options
@click.option(
    "--since",
    "since_s",
    default="14d",
    show_default=True,
    callback=_seconds,
    metavar="SPAN",
    help="How far back to look: m, h, d or w behind a number.",
)
@click.option("--deployment", metavar="NS/NAME", help="Only pods of this Deployment or StatefulSet.")
@click.option(
    "--match",
    multiple=True,
    metavar="LABEL=VALUE",
    help="Label matchers on every series (model_name, namespace, pod, job, ...); =, !=, =~ and !~ as in PromQL.",
)
@click.option(
    "--metric-prefix",
    metavar="PREFIX",
    help="What the names of vLLM's series begin with; else vllm:, kserve_vllm:, ray_vllm:, ray_vllm_ and vllm_ are looked for.",
)
@click.option(
    "--method",
    help="Name of the method (or drafter) that ran, where no series says it: vLLM's counters do not.",
)
@click.option(
    "--window-seconds",
    type=click.IntRange(120, 21600),
    default=600,
    show_default=True,
    help="Length of a window; at least four scrapes.",
)
@click.option(
    "--timeout-seconds",
    type=Number(0.1),
    default=30.0,
    show_default=True,
    help="For each answer of Prometheus.",
)
@prior_options
@click.option("-o", "--output", metavar="POINTS.csv", type=OutputFile(), help="Points file to write.")
@json_option
def command(
    since_s: int,
    deployment: str | None,
    match: tuple[str, ...],
    metric_prefix: str | None,
    method: str | None,
    window_seconds: int,
    timeout_seconds: float,
    output: Path | None,
    *,
    as_json: bool,
    **options: Any,
) -> None:
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
    from breakeven.past.courses import TimeGrid
    from breakeven.past.past_reading import AskedPast, read_past

    question = PriorQuestion.of(options)
    server = PrometheusAddress.of(options, timeout_seconds)
    if since_s < 2 * window_seconds or since_s / window_seconds > _MOST_WINDOWS:
        raise InputError(
            "--since",
            f"{since_s} s with windows of {window_seconds} s",
            f"2 to {_MOST_WINDOWS} windows: see --window-seconds",
        )
    matchers = (*_of_deployment(deployment), *map(read_matcher, match))
    asked = AskedPast(
        matchers,
        read_prefix(metric_prefix),
        TimeGrid.of_past(time.time(), since_s, window_seconds),
        _checked(method),
        single=not matchers,
    )
    # Where nobody looks, the bar would be a line before that of an error.
    hidden = not sys.stderr.isatty()
    with click.progressbar(length=_STEPS, label="asking Prometheus", file=sys.stderr, hidden=hidden) as bar:

        def show(share: float) -> None:
            bar.update(round(_STEPS * share) - bar.pos)

        past = read_past(server, asked, show)
    worth = _Worth.of(past, question)
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


class _Worth(NamedTuple):
    """The answer about a calibration, and the facts that it rests on."""

    answer: CalibrationWorth
    facts: ServiceFacts

    @classmethod
    def of(cls, past: KnownPast, question: PriorQuestion) -> _Worth:
        from breakeven.past.past_worth import facts_of_past, worth_of_past

        facts = facts_of_past(past, question.facts)
        answer = worth_of_past(
            past,
            question.asked,
            facts,
            question.rows,
            cost=question.cost,
            least_gain=question.least_gain,
            confidence=DEFAULT_CONFIDENCE,
        )
        return cls(answer, facts)


def _of_deployment(name: str | None) -> tuple[Matcher, ...]:
    """Matchers of the pods of a workload.

    Raises:
        InputError: it is no NS/NAME.
    """
    from breakeven.serving.promql import Matcher

    if name is None:
        return ()
    space, slash, own = name.partition("/")
    if not slash or not _NAME.fullmatch(space) or not _NAME.fullmatch(own):
        raise InputError("--deployment", repr(name), "NAMESPACE/NAME")
    return (
        Matcher("namespace", "=", space),
        Matcher("pod", "=~", re.escape(own).replace("\\-", "-") + _POD_OF),
    )


def _checked(method: str | None) -> str | None:
    """A method's name as a points file takes it.

    Raises:
        InputError: it is none.
    """
    if method is None:
        return None
    if method == "none" or not re.fullmatch(r"[!-.0-~]{1,64}", method):
        raise InputError(
            "--method", repr(method[:64]), "vLLM's name of the speculative method, such as eagle3"
        )
    return method


def _result(past: KnownPast, worth: _Worth, output: Path | None) -> Any:
    """The document of `--json`."""
    from breakeven.cli.results import PastResult
    from breakeven.cli.worth_view import worth_document
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
        calibration=worth_document(worth.answer, worth.facts),
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


def _print(past: KnownPast, worth: _Worth, output: Path | None) -> None:
    from breakeven.cli.tables import bounds, figure, print_table, print_text, print_warnings
    from breakeven.cli.worth_view import print_worth
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
        f"{past.pods} pods, {windows} of {past.grid.times - 1} windows of {past.grid.step_s} s in {days:.3g} days count"
        + (f"; dropped: {dropped}" if dropped else "")
    )
    for word, _ in past.cut.dropped.most_common(_SHOWN):
        print_text(f"{word}: {WORDS[word]}", mark="  ")
    print_warnings([f"{one.word}: {one.sentence}" for one in past.doubts])
    print_worth(worth.answer, worth.facts)
    if output is not None:
        click.echo(
            f"{output}: {sum(len(one.points) for one in past.arms)} rows; next: breakeven fit {output} -o profile.json"
        )
