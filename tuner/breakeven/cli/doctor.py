"""`breakeven doctor`: one look at Prometheus, and what is wrong with speculation there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from breakeven.cli.output import DEFAULT_CONFIDENCE, echo_result, json_option
from breakeven.cli.parameters import InputFile, Number, read_draft_length
from breakeven.cli.profile_options import arm_in, length_options, read_profile
from breakeven.errors import BreakevenError, InputError


@click.command("doctor", short_help="Does speculation pay right now, and if not, why.")
@click.option(
    "--prometheus", "url", required=True, metavar="URL", help="Prometheus base URL (http or https)."
)
@click.option("--model", required=True, help="vLLM's model_name, as served.")
@click.option("--namespace", help="Only pods of this namespace.")
@click.option(
    "--match", multiple=True, metavar="LABEL=VALUE", help="Further label matchers (cluster, tenant, ...)."
)
@click.option(
    "--window-seconds",
    type=click.IntRange(30, 86400),
    default=300,
    show_default=True,
    help="How far back to look.",
)
@click.option(
    "--timeout-seconds",
    type=Number(0.1),
    default=10.0,
    show_default=True,
    help="For each answer of Prometheus.",
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
    metavar="K|schedule",
    help="Draft length that runs (with --profile). schedule: the measured schedule of the method.",
)
@click.option(
    "--tokens-per-step",
    type=Number(1, 1000),
    help="Tokens per request-step to judge with, in place of the live ones (with --profile).",
)
@length_options
@json_option
def command(
    url: str,
    model: str,
    namespace: str | None,
    match: tuple[str, ...],
    window_seconds: int,
    timeout_seconds: float,
    profile_path: Path | None,
    method: str | None,
    k: int | Literal["schedule"] | None,
    tokens_per_step: float | None,
    prompt_tokens: float | None,
    output_tokens: float | None,
    *,
    as_json: bool,
) -> None:
    """Say whether speculation pays right now, and if not, which of the known causes it is.

    With a profile of the same engine the answer has bounds, at the live acceptance and lengths unless others are given; without one only the causes that the live figures show
    by themselves can be named.

    \b
    Example:
      breakeven doctor --prometheus http://localhost:9090 --model chat --profile chat.json --method eagle3 --k 3
    """
    from breakeven.profile import Conditions
    from breakeven.serving.diagnosis import diagnose
    from breakeven.serving.promql import Matcher, selector

    if profile_path is not None and (method is None or k is None):
        raise InputError("--profile", "given without --method and --k", "the arm that runs")
    asked = Conditions(tokens_per_step, prompt_tokens, output_tokens)
    if profile_path is None and asked != Conditions():
        raise InputError("--profile", "not given", "a profile to judge other acceptance or lengths with")
    if not url.startswith(("http://", "https://")):
        raise InputError("--prometheus", repr(url), "an http:// or https:// URL")
    matchers = [Matcher("model_name", "=", model)]
    if namespace:
        matchers.append(Matcher("namespace", "=", namespace))
    for text in match:
        label, equals, value = text.partition("=")
        if not equals:
            raise InputError("--match", repr(text), "LABEL=VALUE")
        matchers.append(Matcher(label, "=", value))
    try:
        chosen = selector(matchers)
    except ValueError as error:
        raise InputError("--match", str(error), "LABEL=VALUE") from error
    snapshot = _snapshot(url, chosen, window_seconds, timeout_seconds)
    profile = read_profile(profile_path, 0.9) if profile_path else None
    arm = arm_in(profile, method, k) if profile is not None and method is not None else None
    diagnosis = diagnose(snapshot, profile, arm, asked)
    if as_json:
        from breakeven.cli.results import DoctorResult

        echo_result(
            DoctorResult.of(
                diagnosis,
                snapshot,
                confidence=profile.confidence if profile else DEFAULT_CONFIDENCE,
                rps=snapshot.rps if snapshot.pods else None,
            )
        )
        return
    answer = {True: "Yes", False: "No", None: "?"}[diagnosis.pays]
    click.echo(f"Does speculation pay? {answer}: {diagnosis.sentence}")
    for finding in diagnosis.findings:
        click.echo(f"! {finding.cause}: {finding.evidence}\n  do first: {finding.remedy}")


def _snapshot(url: str, chosen: str, window_s: int, timeout_s: float) -> Any:
    from breakeven.laws.acceptance_numbers import tokens_per_step_from_counters
    from breakeven.serving.causes import ModelSnapshot

    def value(promql: str) -> float | None:
        return _instant(url, promql, timeout_s).get("", None)

    def increase(metric: str) -> float | None:
        return value(f"sum(increase(vllm:{metric}{chosen}[{window_s}s]))")

    def per(top: str, bottom: str) -> float | None:
        above, below = increase(top), increase(bottom)
        return above / below if above is not None and below else None

    pods = value(f"count(vllm:num_requests_running{chosen})")
    requests = increase("request_success_total")
    generated, started = increase("generation_tokens_total"), increase("time_to_first_token_seconds_count")
    steps = increase("inter_token_latency_seconds_count")
    drafts = increase("spec_decode_num_drafts_total")
    accepted = _instant(
        url,
        f"sum by (position) (increase(vllm:spec_decode_num_accepted_tokens_per_pos_total{chosen}[{window_s}s]))",
        timeout_s,
    )
    positions = sorted((int(position), count) for position, count in accepted.items() if position.isdigit())
    return ModelSnapshot(
        pods=int(pods or 0),
        requests=requests or 0.0,
        window_s=window_s,
        latency_s=per("e2e_request_latency_seconds_sum", "e2e_request_latency_seconds_count"),
        ttft_s=per("time_to_first_token_seconds_sum", "time_to_first_token_seconds_count"),
        tokens_per_step=float(tokens_per_step_from_counters(generated, started, steps))
        if generated is not None and started is not None and steps
        else None,
        survival=tuple(count / drafts for _, count in positions) if drafts else (),
        speculating=drafts is not None,
        waiting_min=value(f"min(min_over_time(vllm:num_requests_waiting{chosen}[{window_s}s]))"),
        kv_usage=value(f"max(max_over_time(vllm:kv_cache_usage_perc{chosen}[{window_s}s]))"),
        itl_s=per("inter_token_latency_seconds_sum", "inter_token_latency_seconds_count"),
        preemptions=increase("num_preemptions_total"),
        prompt_tokens=per("request_prompt_tokens_sum", "request_prompt_tokens_count"),
        output_tokens=per("request_generation_tokens_sum", "request_generation_tokens_count"),
    )


def _instant(url: str, promql: str, timeout_s: float) -> dict[str, float]:
    """One instant query: values by the label `position` ("" where there is none); NaN counts as no value."""
    import math
    import urllib.error
    import urllib.parse
    import urllib.request

    from breakeven.intake import json_value
    from breakeven.readers.foreign import Document
    from breakeven.readers.prometheus import series

    address = f"{url.rstrip('/')}/api/v1/query?{urllib.parse.urlencode({'query': promql})}"
    try:
        with urllib.request.urlopen(address, timeout=timeout_s) as answer:  # noqa: S310 - the scheme is checked
            text = answer.read()
    except urllib.error.HTTPError as error:
        raise BreakevenError(f"{url}: Prometheus answered HTTP {error.code}; expected 200") from error
    except (TimeoutError, OSError) as error:
        raise BreakevenError(
            f"{url}: no answer ({getattr(error, 'reason', error)}); expected Prometheus"
        ) from error
    document = Document(json_value(text, url, "an answer of Prometheus' /api/v1/query"), url)
    found = {one.labels.get("position", ""): one.samples[0][1] for one in series(document)}
    return {position: value for position, value in found.items() if math.isfinite(value)}
