"""`breakeven doctor`: one look at Prometheus, and what is wrong with speculation there."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from breakeven.cli.output import DEFAULT_CONFIDENCE, document, echo_result, json_option
from breakeven.cli.parameters import InputFile, MeasuredDrafts, Number, read_draft_length
from breakeven.cli.profile_options import arm_in, length_options, read_profile
from breakeven.cli.prometheus_options import (
    AskedPrometheus,
    prometheus_options,
    read_matcher,
    read_prefix,
    series_options,
)
from breakeven.errors import BreakevenError, InputError

if TYPE_CHECKING:
    from breakeven.profile import Conditions
    from breakeven.serving.diagnosis import Diagnosis
    from breakeven.serving.model_watch import ModelSnapshot
    from breakeven.serving.promql import Matcher

FIELDS = {
    "": "pays sentence speedup speedup_ci confidence requests rps tokens_per_step findings",
}
"""Fields of `--json`."""


@click.command("doctor")
@prometheus_options
@click.option("--model", required=True, help="vLLM's model_name, as served.")
@click.option("--namespace", help="Only pods of this namespace.")
@series_options(timeout_s=10.0)
@click.option(
    "--window-seconds",
    type=click.IntRange(30, 86400),
    default=300,
    show_default=True,
    help="How far back to look.",
)
@click.option(
    "--profile",
    "profile_path",
    type=InputFile(),
    help="Profile of the same engine: gives the answer bounds.",
)
@click.option("--method", help="Method (or drafter's name) that runs (with --profile).")
@click.option(
    "--k",
    callback=read_draft_length,
    metavar="K|schedule|adaptive",
    help="Draft length that runs (with --profile). schedule, adaptive: the measured schedule, or adaptive verification, of the method.",
)
@click.option(
    "--tokens-per-step",
    type=Number(1, 1000),
    help="Tokens per request-step to judge with, in place of the live ones (with --profile).",
)
@length_options
@json_option
def command(
    model: str,
    namespace: str | None,
    match: tuple[str, ...],
    metric_prefix: str | None,
    window_seconds: int,
    timeout_seconds: float,
    profile_path: Path | None,
    method: str | None,
    k: int | MeasuredDrafts | None,
    tokens_per_step: float | None,
    lengths: Conditions,
    *,
    as_json: bool,
    access: dict[str, Any],
) -> None:
    """Say whether speculation pays right now, and if not, which of the known causes it is.

    With a profile of the same engine the answer has bounds, at the live acceptance and lengths unless others are given.
    Without a profile only causes that the live figures show by themselves are named. The following have a name each: pods
    that are gone, old samples, series that ended, missing series, counts that
    are no numbers or cannot be, failed requests and requests that clients gave up. Without any series of the model the status is 1.

    \b
    Example:
      breakeven doctor --prometheus http://localhost:9090 --model chat --profile chat.json --method eagle3 --k 3
    """
    from breakeven.profile import Conditions
    from breakeven.serving.diagnosis import diagnose
    from breakeven.serving.findings import Cause
    from breakeven.serving.promql import Matcher

    if profile_path is not None and (method is None or k is None):
        raise InputError("--profile", "given without --method and --k", "the arm that runs")
    asked = replace(lengths, tokens_per_step=tokens_per_step)
    if profile_path is None and asked != Conditions():
        raise InputError("--profile", "not given", "a profile to judge other acceptance or lengths with")
    server = AskedPrometheus.of(access, timeout_seconds)
    of_namespace = [Matcher("namespace", "=", namespace)] if namespace else []
    matchers = (Matcher("model_name", "=", model), *of_namespace, *map(read_matcher, match))
    snapshot = _snapshot(server, matchers, read_prefix(metric_prefix), window_seconds)
    profile = read_profile(profile_path, 0.9) if profile_path else None
    arm = arm_in(profile, method, k) if profile is not None and method is not None else None
    diagnosis = diagnose(snapshot, profile, arm, asked)
    if as_json:
        echo_result(
            document(
                FIELDS,
                diagnosis,
                snapshot.window,
                confidence=profile.confidence if profile else DEFAULT_CONFIDENCE,
                rps=snapshot.window.rps if snapshot.pods else None,
            )
        )
    else:
        _print(diagnosis)
    if any(one.cause is Cause.NO_SERIES for one in diagnosis.findings):
        sys.exit(1)


def _print(diagnosis: Diagnosis) -> None:
    answer = {True: "Yes", False: "No", None: "?"}[diagnosis.pays]
    click.echo(f"Does speculation pay? {answer}: {diagnosis.sentence}")
    for finding in diagnosis.findings:
        click.echo(f"! {finding.cause}: {finding.evidence}\n  do first: {finding.remedy}")


def _snapshot(
    server: AskedPrometheus, matchers: tuple[Matcher, ...], prefix: str | None, window_s: int
) -> ModelSnapshot:
    from breakeven.serving.model_watch import ModelWatch

    watch = ModelWatch.of(server.at, matchers, prefix, window_s)
    snapshot = watch.snapshot()
    try:
        return watch.with_events(snapshot)
    except BreakevenError as error:
        click.echo(
            f"! pods that are gone, old samples and failed requests are not looked for: {error}", err=True
        )
        return snapshot
