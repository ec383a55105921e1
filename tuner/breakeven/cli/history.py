"""`breakeven history`: what a Prometheus already knows of a workload, as a points file."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from breakeven.arm import Arm
from breakeven.cli.output import (
    DEFAULT_CONFIDENCE,
    bounds,
    echo_result,
    figure,
    json_option,
    print_table,
    print_text,
    print_warnings,
    write_atomically,
)
from breakeven.cli.parameters import Number, OutputFile
from breakeven.cli.prometheus_options import (
    AskedPrometheus,
    prometheus_options,
    read_matcher,
    read_prefix,
    series_options,
    span_seconds,
)
from breakeven.errors import InputError

if TYPE_CHECKING:
    from breakeven.past.clustering import ArmPast
    from breakeven.past.others_measured import OthersMeasured
    from breakeven.past.past_reading import KnownPast
    from breakeven.serving.promql import Matcher


_MOST_WINDOWS = 20_000
_POD_OF = r"-([a-z0-9]+-)?[a-z0-9]+"
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_STEPS = 1000


def _read_past(options: dict[str, Any]) -> KnownPast:
    """Take the options of the question out of the command's options, and ask, with a progress bar where somebody looks.

    Raises:
        InputError: one of them is wrong.
        BreakevenError: no usable answer, or nothing that counts.
    """
    from breakeven.past.courses import TimeGrid
    from breakeven.past.past_reading import AskedPast, read_past

    server = AskedPrometheus.of(options.pop("access"), options.pop("timeout_seconds"))
    since_s, window_s = options.pop("since_s"), options.pop("window_seconds")
    if since_s < 2 * window_s or since_s / window_s > _MOST_WINDOWS:
        raise InputError(
            "--since",
            f"{since_s} s with windows of {window_s} s",
            f"2 to {_MOST_WINDOWS} windows: see --window-seconds",
        )
    matchers = (*_of_deployment(options.pop("deployment")), *map(read_matcher, options.pop("match")))
    asked = AskedPast(
        matchers,
        read_prefix(options.pop("metric_prefix")),
        TimeGrid.of_past(time.time(), since_s, window_s),
        _checked(options.pop("method")),
        single=not matchers,
    )
    # Where nobody looks, the bar would be a line above the error.
    hidden = not sys.stderr.isatty()
    with click.progressbar(length=_STEPS, label="asking Prometheus", file=sys.stderr, hidden=hidden) as bar:
        return read_past(server, asked, lambda share: bar.update(round(_STEPS * share) - bar.pos))


def _of_deployment(name: str | None) -> tuple[Matcher, ...]:
    """Matchers of the pods of a workload; a refused input if it is no NS/NAME."""
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
    """A method's name as a points file takes it; a refused input if it is none."""
    if method is None:
        return None
    if method == "none" or not re.fullmatch(r"[!-.0-~]{1,64}", method):
        raise InputError(
            "--method", repr(method[:64]), "vLLM's name of the speculative method, such as eagle3"
        )
    return method


_SHOWN = 4
_LONGEST_NAME = 120


@click.command("history")
@prometheus_options
@click.option(
    "--since",
    "since_s",
    default="14d",
    show_default=True,
    callback=span_seconds,
    metavar="SPAN",
    help="How far back to look: m, h, d or w behind a number.",
)
@click.option("--deployment", metavar="NS/NAME", help="Only pods of this Deployment or StatefulSet.")
@series_options(timeout_s=30.0)
@click.option(
    "--method",
    help="Name of the method (or drafter) that ran, where no series says it: vLLM's counters do not.",
)
@click.option(
    "--window-seconds",
    type=click.IntRange(120, 21600),
    default=600,
    show_default=True,
    help="Length of a window of the past; at least four scrapes.",
)
@click.option(
    "--arm",
    "asked",
    multiple=True,
    metavar="METHOD/K",
    help="Arm that might be calibrated; may be given several times.  [default: eagle3/3, mtp/2, ngram_gpu/3]",
)
@click.option(
    "--parameters-b", type=Number(1e-3, 1e5), help="Parameters of the model, in thousands of millions."
)
@click.option("--experts/--dense", default=None, help="Whether the model is a mixture of experts, or dense.")
@click.option("--gpu", metavar="PRODUCT", help="GPU product, such as H100.")
@click.option("--quantisation", metavar="WORD", help="Of the weights, such as bf16, fp8 or awq.")
@click.option("-o", "--output", metavar="POINTS.csv", type=OutputFile(), help="Points file to write.")
@json_option
def command(output: Path | None, *, as_json: bool, **options: Any) -> None:
    """Read what already ran out of Prometheus: which arms, at which loads, how fast. No GPU is used.

    The past is cut into windows. Windows that are not steady are dropped, each with a word: rolls, restarts, other numbers of
    pods, too few requests, a queue that moves. Draft counters tell the arms apart. What ran under another model, image, GPU or
    arguments is left out. Windows at like loads within a block of time become one row, with an error. The command then says what
    the past cannot know.

    At the end it shows what others measured of arms that never ran here: the row of a public table that is most like each.

    \b
      breakeven history --prometheus http://localhost:9090 --deployment llm/chat -o points.csv
      breakeven fit points.csv -o profile.json
    """
    from breakeven.past.others_measured import facts_of_past, others_measured
    from breakeven.prior.public_table import ServiceFacts

    asked = tuple(map(_asked_arm, options.pop("asked")))
    given = {name: options.pop(name) for name in ("parameters_b", "experts", "gpu", "quantisation")}
    names = {name: _printable(f"--{name}", given[name]) for name in ("gpu", "quantisation")}
    past = _read_past(options)
    others = others_measured(past, asked, facts_of_past(past, ServiceFacts(**given | names)))
    if output is not None:
        _write(past, output)
    if as_json:
        echo_result(_result(past, others, output))
    else:
        _print(past, others, output)


def _write(past: KnownPast, output: Path) -> None:
    """Write the rows of all arms; a refused input if there are none."""
    from breakeven.points.table import cells, written

    points = [point for one in past.arms for point in one.points]
    if not points:
        raise InputError("--since", "no row: too few requests in every window", "a longer past")
    write_atomically(output, written([cells(point) for point in points]))


def _result(past: KnownPast, others: tuple[OthersMeasured, ...], output: Path | None) -> dict[str, Any]:
    from breakeven.points.table import document

    return {
        "file": None if output is None else str(output),
        "from_s": past.grid.first_s,
        "to_s": past.grid.last_s,
        "window_s": past.grid.step_s,
        "pods": past.pods,
        "arms": [_arm(one, past) for one in past.arms],
        "dropped": dict(sorted(past.cut.dropped.items())),
        "earlier": [
            {"differs": one.differs, **one.fingerprint._asdict(), "hours": one.hours} for one in past.earlier
        ],
        "unknown": [one._asdict() for one in past.doubts],
        "points": [document(point) for one in past.arms for point in one.points],
        "others": [_others_document(one) for one in others],
        "confidence": DEFAULT_CONFIDENCE,
    }


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
        **({"scheduled": True, "schedule": one.kind.schedule} if one.kind.schedule else {}),
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


def _print(past: KnownPast, others: tuple[OthersMeasured, ...], output: Path | None) -> None:
    from breakeven.past.past_reading import named
    from breakeven.past.steady import MEANINGS

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
        print_text(f"{word}: {MEANINGS[word]}", mark="  ")
    print_warnings([f"{one.word}: {one.sentence}" for one in past.doubts])
    _print_others(others)
    if output is not None:
        click.echo(
            f"{output}: {sum(len(one.points) for one in past.arms)} rows; next: breakeven fit {output} -o profile.json"
        )


def _others_document(one: OthersMeasured) -> dict[str, Any]:
    row = one.row
    return {
        "method": one.arm.method,
        "k": one.arm.k,
        "basis": "FromPrior",
        "measured_k": row.k,
        "model": row.model or None,
        "gpu": row.facts.gpu,
        "source": row.source,
        "c1_ratio": row.lone_ratio,
        "c2_ratio": row.slope_ratio,
        "tokens_per_step": row.tokens_per_step,
        "pays_until_rps": one.pays_until_rps,
    }


def _print_others(others: tuple[OthersMeasured, ...]) -> None:
    """Print what others measured of arms that never ran."""
    from breakeven.past.others_measured import FROM_PRIOR

    if not others:
        return
    print_table(
        (f"arm ({FROM_PRIOR})", "measured", "C1 ratio", "C2 ratio", "pays up to rps", "source"),
        [
            (
                str(one.arm),
                f"{one.row.method}/{one.row.k}, {one.row.model or '?'}, {one.row.facts.gpu or '?'}",
                figure(one.row.lone_ratio),
                figure(one.row.slope_ratio),
                "all" if one.pays_until_rps == float("inf") else figure(one.pays_until_rps),
                one.row.source,
            )
            for one in others
        ],
    )
    print_text(
        f"{FROM_PRIOR}: other people measured it, on another engine: calibrate the arm before you believe it",
        mark="  ",
    )


def _printable(option: str, text: str | None) -> str | None:
    """A name as it was given; None if it is empty, a refused input if it does not print or is too long."""
    if text and not (text.isprintable() and len(text) <= _LONGEST_NAME):
        raise InputError(option, repr(text[:24]), f"at most {_LONGEST_NAME} characters that print")
    return (text or "").strip() or None


def _asked_arm(text: str) -> Arm:
    """An arm such as eagle3/3; a refused input if it is none."""
    method, _, k = text.partition("/")
    if not (method.isprintable() and method not in {"", "none"} and k.isascii() and k.isdecimal()):
        raise InputError("--arm", repr(text[:64]), "METHOD/K, such as eagle3/3")
    if not 1 <= int(k[:5]) <= 1000:
        raise InputError("--arm", repr(text[:64]), "a draft length from 1 to 1000")
    return Arm(method, int(k))
