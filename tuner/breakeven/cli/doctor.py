"""`breakeven doctor`: one look at Prometheus, and what is wrong with speculation there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from breakeven.cli.output import DEFAULT_CONFIDENCE, echo_result, json_option
from breakeven.cli.parameters import InputFile, Number, read_draft_length
from breakeven.cli.profile_options import arm_in, length_options, read_profile
from breakeven.cli.prometheus_options import PrometheusAddress, prometheus_options, read_matcher
from breakeven.errors import InputError

if TYPE_CHECKING:
    from breakeven.serving.causes import ModelSnapshot
    from breakeven.serving.engine_series import EngineSeries
    from breakeven.serving.promql import Matcher

_REPLICA = "replica"
# Without these nothing is said about speculation.
_NEEDED = ("completed", "started", "ttft_s", "e2e_s", "e2e_n", "generated", "steps", "prompt_tokens", "output_tokens", "output_n")  # fmt: skip


@click.command("doctor", short_help="Does speculation pay right now, and if not, why.")
@prometheus_options
@click.option("--model", required=True, help="vLLM's model_name, as served.")
@click.option("--namespace", help="Only pods of this namespace.")
@click.option(
    "--match",
    multiple=True,
    metavar="LABEL=VALUE",
    help="Further label matchers (cluster, pod, ...); =, !=, =~ and !~ as in PromQL, such as 'pod=~chat-a-.*'.",
)
@click.option(
    "--metric-prefix",
    metavar="PREFIX",
    help="What the names of vLLM's series begin with; else vllm:, kserve_vllm:, ray_vllm:, ray_vllm_ and vllm_ are looked for.",
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
    model: str,
    namespace: str | None,
    match: tuple[str, ...],
    metric_prefix: str | None,
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
    **access: Any,
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
    from breakeven.serving.promql import Matcher

    if profile_path is not None and (method is None or k is None):
        raise InputError("--profile", "given without --method and --k", "the arm that runs")
    asked = Conditions(tokens_per_step, prompt_tokens, output_tokens)
    if profile_path is None and asked != Conditions():
        raise InputError("--profile", "not given", "a profile to judge other acceptance or lengths with")
    server = PrometheusAddress.of(access, timeout_seconds)
    matchers = [Matcher("model_name", "=", model)]
    if namespace:
        matchers.append(Matcher("namespace", "=", namespace))
    matchers += map(read_matcher, match)
    if metric_prefix is not None and not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", metric_prefix):
        raise InputError("--metric-prefix", repr(metric_prefix), "letters, digits, _ and :")
    snapshot = _snapshot(server, tuple(matchers), metric_prefix, window_seconds)
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


def _snapshot(
    server: PrometheusAddress, matchers: tuple[Matcher, ...], prefix: str | None, window_s: int
) -> ModelSnapshot:
    from breakeven.serving.causes import ModelSnapshot
    from breakeven.serving.counted_window import CountedWindow
    from breakeven.serving.engine_series import COUNTED, RUNNING, WAITING

    def value(promql: str) -> float | None:
        return next((number for _, number in server.instant(promql)), None)

    engines, pods = _engines(server, matchers, prefix)
    if not pods:
        return ModelSnapshot(0, 0.0, window_s)
    stats: dict[str, float] = {}
    accepted: dict[int, float] = {}
    for stat, counted in COUNTED.items():
        once = engines.once("max", engines.increase(stat, window_s), *counted.labels)
        if stat == "accepted":
            for labels, number in server.instant(f"sum by (position) ({once})"):
                if labels.get("position", "").isdigit():
                    accepted[int(labels["position"])] = number
        elif (number_of_all := value(f"sum({once})")) is not None:
            stats[stat] = number_of_all
    for growth, gauge in (("waiting_growth", WAITING), ("running_growth", RUNNING)):
        grown = value(f"sum({engines.once('avg', engines.gauge('delta', gauge, window_s))})")
        stats |= {growth: grown} if grown is not None else {}
    window = CountedWindow(stats, accepted)
    arrived = CountedWindow({name: grown for name, grown in stats.items() if name != "running_growth"}, {})
    return ModelSnapshot(
        pods=int(pods),
        requests=stats.get("completed", 0.0),
        window_s=window_s,
        latency_s=window.latency_s,
        ttft_s=window.ttft_s,
        tokens_per_step=window.tokens_per_step,
        survival=window.survival,
        speculating="drafts" in stats,
        waiting_min=value(f"min({engines.gauge('min_over_time', WAITING, window_s)})"),
        kv_usage=value(f"max({engines.gauge('max_over_time', 'kv_cache_usage_perc', window_s)})"),
        itl_s=window.step_s,
        preemptions=stats.get("preemptions"),
        prompt_tokens=window.prompt_tokens,
        output_tokens=window.output_tokens,
        offered=arrived.offered,
        given_up=window.given_up_share,
        first_engine="drafts" not in stats
        and bool(value(f"count({engines.named('spec_decode_num_emitted_tokens_total')})")),
        missing=tuple(f"{engines.prefix}{COUNTED[stat].name}" for stat in _NEEDED if stat not in stats),
    )


def _engines(
    server: PrometheusAddress, matchers: tuple[Matcher, ...], prefix: str | None
) -> tuple[EngineSeries, float]:
    """The model's series under the first prefix that has some, and the number of its pods."""
    from breakeven.serving.engine_series import PREFIXES, RUNNING, EngineSeries

    for one in (prefix,) if prefix is not None else PREFIXES:
        engines = EngineSeries(matchers, one, ("namespace", _REPLICA), _replicas)
        pods = server.instant(f"count(count by(namespace,{_REPLICA})({_replicas(engines.named(RUNNING))}))")
        if pods:
            return engines, pods[0][1]
    return engines, 0.0


def _replicas(expression: str) -> str:
    """Series with a name of their server: the pod's, and outside of Kubernetes the scraped address."""
    by_address = f'label_replace({expression},"{_REPLICA}","$1","instance","(.+)")'
    return f'label_replace({by_address},"{_REPLICA}","$1","pod","(.+)")'
