"""`breakeven simulate`: a trace replayed against policies, on an engine's costs or on a profile's laws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from breakeven.cli.output import (
    confidence_option,
    document,
    echo_result,
    figure,
    json_option,
    print_table,
    print_text,
    print_warnings,
    several,
)
from breakeven.cli.parameters import Number
from breakeven.cli.profile_options import compared, read_profile
from breakeven.errors import InputError
from breakeven.phrases import fixed

if TYPE_CHECKING:
    from breakeven.arm import Arm
    from breakeven.planning.objective import Policy
    from breakeven.profile import Profile
    from breakeven_sim.replay.fleet_arms import CostArms, LawArms
    from breakeven_sim.replay.outcome import PolicyOutcome
    from breakeven_sim.replay.study import Study
    from breakeven_sim.replay.traces import Trace

_POSITIVE = Number(min=0, min_open=True)
_options = several(
    click.option("--profile", "profile_path", type=click.Path(path_type=Path), help="Laws of a fitted profile (or a points file)."),
    click.option("--truth", "truth_path", type=click.Path(path_type=Path), help="Laws that the fleet follows, where --profile is only what decisions rest on."),
    click.option("--costs", metavar="FILE|JSON", help="Costs of a simulated engine (docs/engine-costs.md)."),
    click.option("--gpu", help="Which engine, if the costs hold several."),
    click.option("--trace", "trace_path", type=click.Path(path_type=Path), required=True, help="Requests or rates: CSV or JSON lines, as published (Azure, BurstGPT, Mooncake, ServeGen), or a time and a rate (Grafana)."),
    click.option("--replicas", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Over which the trace spreads."),
    click.option(
        "--policy",
        "policies",
        multiple=True,
        metavar="NAME",
        help="breakeven, changes (the same, updatePolicy.follow: Changes), none, schedule[:METHOD], static:METHOD:K, static:METHOD:schedule, oracle (pays for rolls), "
        "oracle-free; may be repeated. Default: all but schedule.",
    ),
    click.option("--arm", "arms", multiple=True, metavar="METHOD:K", help="Candidate, or METHOD:schedule; default: arms of static policies, else all measured."),
    click.option("--roll-seconds", type=Number(min=0), help="Start-up time of a replica; default: the costs' own, or 300."),
    click.option("--cooldown-seconds", type=Number(min=0), default=3600.0, show_default=True, help="Between two rolls to speculative arms."),
    click.option("--dwell-seconds", type=Number(min=0), default=300.0, show_default=True, help="For which entering a speculative arm must have been worth it."),
    click.option("--min-gain-percent", type=Number(min=0), default=3.0, show_default=True, help="Of request time that a roll must save at least."),
    click.option("--day-risk-percent", type=Number(min=0), default=5.0, show_default=True, help="Of a day's request time that its worst hours may cost; 100: no day is bounded by itself."),
    click.option("--evaluate-seconds", type=_POSITIVE, default=60.0, show_default=True, help="Between decisions (request traces)."),
    click.option("--window-seconds", type=_POSITIVE, default=300.0, show_default=True, help="That a decision looks back on (request traces)."),
    click.option("--horizon-seconds", type=_POSITIVE, default=14400.0, show_default=True, help="To look ahead: whose loads are expected."),
    click.option("--lookback-seconds", type=Number(min=0), default=259200.0, show_default=True, help="Of loads that are known; 0: the present load is taken to last."),
    click.option("--e2e-slo-s", type=_POSITIVE, help="Objective of a request's latency, seconds."),
    click.option("--ttft-slo-s", type=_POSITIVE, help="Objective of the time to the first token, seconds."),
    click.option("--tpot-slo-s", type=_POSITIVE, help="Objective of the time per output token, seconds."),
    click.option(
        "--quantile",
        type=Number(0, 1, min_open=True, max_open=True),
        default=0.95,
        show_default=True,
        help="Of requests, that policy breakeven has keep the objectives; the operator takes 0.95.",
    ),
    click.option("--alpha", type=Number(0, 1), help="I.i.d. acceptance in place of the measured one."),
    click.option("--tokens-per-step", type=Number(min=1), help="E in place of the measured one (one draft length)."),
    click.option("--acceptance", "recorded_path", type=click.Path(path_type=Path), help="Recorded acceptance, JSON lines (with --costs)."),
    click.option("--prompt-tokens", type=click.IntRange(1), help="Where the trace has none."),
    click.option("--output-tokens", type=click.IntRange(1), help="Where the trace has none."),
    click.option("--rate-scale", type=_POSITIVE, default=1.0, show_default=True, help="Times the trace's rate."),
    click.option("--seed", type=int, default=0, show_default=True, help="Of everything random."),
)  # fmt: skip


FIELDS = {
    "": "policy requests mean_latency_s p95_latency_s speedup_vs_none speedup_vs_oracle switches seconds_below_one slo_attainment "
    "ttft_mean_s ttft_p95_s tpot_mean_s tpot_p95_s tokens_per_step mean_inflight"
}
"""Fields of a policy of `--json`."""


@click.command("simulate")
@_options
@confidence_option
@json_option
def command(confidence: float, as_json: bool, policies: tuple[str, ...], **given: Any) -> None:
    """Replay a trace against policies: the operator's own decisions, static arms, schedules, hindsight.

    Request traces run on an event clock, rate traces window by window. With --costs the arms are calibrated on the
    simulated engine first, as an operator would.

    \b
      breakeven simulate --profile chat.json --trace week.csv --replicas 8
      breakeven simulate --profile chat.json --truth points.csv --trace week.csv
      breakeven simulate --costs examples/engine-costs/demo.json --gpu H100 --trace requests.csv --policy breakeven --policy none
    """
    from breakeven_sim.replay.study import parse_policy, static_name
    from breakeven_sim.replay.trace_files import read_trace
    from breakeven_sim.replay.traces import RequestTrace

    if (given["profile_path"] is None) == (given["costs"] is None):
        raise click.UsageError("give either --profile or --costs")
    if given["truth_path"] is not None and given["profile_path"] is None:
        raise click.UsageError(
            "--truth belongs to --profile; with --costs decisions rest on what is measured on that engine"
        )
    for policy in policies:
        parse_policy(policy)
    trace = read_trace(given["trace_path"], given["prompt_tokens"], given["output_tokens"]).faster(
        given["rate_scale"]
    )
    count = len(trace)
    with _progress(count, hidden=as_json) as progress:
        # A profile has a confidence of its own, which only an explicit one replaces.
        explicit = (
            click.get_current_context().get_parameter_source("confidence")
            is not click.core.ParameterSource.DEFAULT
        )
        study = study_of(trace, policies, confidence if explicit else None, given)
        study.progress = progress
        static = map(static_name, study.candidates)
        names = policies or ("breakeven", "none", *static, "oracle", "oracle-free")
        rows = [_row(study, name) for name in names]
    notes = [*trace.notes, *_notes(study, trace, decided="breakeven" in names)]
    if as_json:
        echo_result(
            {
                "policies": rows,
                "trace": {
                    "kind": "requests" if isinstance(trace, RequestTrace) else "rates",
                    "rows": count,
                    "replicas": study.replicas,
                    "roll_seconds": study.policy.roll_seconds,
                },
                "confidence": study.profile.confidence,
                "decisions": study.reasons,
                "warnings": notes,
            }
        )
        return
    _print(rows, study, notes)


def _notes(study: Study, trace: Trace, *, decided: bool) -> list[str]:
    """Notes about requests that the replay left out, and objectives that decisions ignored."""
    from breakeven.planning.wording import unmeasured_texts
    from breakeven_sim.replay.traces import RateTrace

    notes = compared(study.profile)
    if study.left_out:
        notes.append(f"{study.left_out} of {len(trace)} requests are longer than the KV pool and left out")
    slo = study.policy.slo
    if isinstance(trace, RateTrace) and (slo.ttft_s is not None or slo.tpot_s is not None):
        notes.append(
            "a rate trace tells no TTFT and no TPOT of requests: only --e2e-slo-s counts into the SLO share"
        )
    return [*notes, *unmeasured_texts(_unmeasured(study))] if decided else notes


def _unmeasured(study: Study) -> dict[Arm, tuple[str, ...]]:
    """Objectives of each arm whose quantile was not measured, so that decisions cannot be compared with it."""
    from breakeven.arm import NO_SPECULATION
    from breakeven.profile import LoadPoint

    slo, found = study.policy.slo, {}
    for arm in (NO_SPECULATION, *study.candidates):
        if study.profile.measured(arm) and study.profile.arm(arm).measurements:
            curve, alone = study.profile.curve(arm), LoadPoint(concurrency=1.0)
            at = study.profile.predict_along(arm, curve, alone, quantile=slo.quantile)
            found[arm] = slo.unmeasured(at)
    return found


def _row(study: Study, name: str) -> dict[str, Any]:
    outcome = study.outcome(name)
    none, oracle = study.outcome("none"), study.outcome("oracle")
    inflight = outcome.mean_inflight
    names = ("ttft_mean_s", "ttft_p95_s", "tpot_mean_s", "tpot_p95_s", "tokens_per_step")
    parts: dict[str, Any] = {name: getattr(outcome.parts, name, None) for name in names}
    return document(
        FIELDS,
        outcome,
        **parts,
        policy=name,
        mean_inflight=None if inflight is None else inflight / study.replicas,
        speedup_vs_none=_ratio(none, outcome),
        speedup_vs_oracle=_ratio(oracle, outcome),
        seconds_below_one=outcome.seconds_below_one(none),
    )


def _ratio(of: PolicyOutcome, to: PolicyOutcome) -> float | None:
    if of.mean_latency_s is None or not to.mean_latency_s:
        return None
    return of.mean_latency_s / to.mean_latency_s


@contextmanager
def _progress(count: int, *, hidden: bool) -> Iterator[Any]:
    """A progress bar on stderr, per policy; none if `hidden` or stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("replaying"), BarColumn(), TimeRemainingColumn())
    silent = hidden or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=silent) as bar:
        task = bar.add_task("", total=count)
        yield lambda done: bar.update(task, completed=done)


def _print(rows: Sequence[Mapping[str, Any]], study: Study, notes: Sequence[str]) -> None:
    header = (
        "policy",
        "requests",
        "mean s",
        "p95 s",
        "vs none",
        "vs oracle",
        "switches",
        "slower than none s",
        "SLO kept",
    )
    print_table(
        header,
        [
            (
                row["policy"],
                f"{row['requests']:.0f}",
                figure(row["mean_latency_s"]),
                figure(row["p95_latency_s"]),
                figure(row["speedup_vs_none"]),
                figure(row["speedup_vs_oracle"]),
                str(row["switches"]),
                f"{row['seconds_below_one']:.0f}",
                "-" if row["slo_attainment"] is None else f"{fixed(100.0 * row['slo_attainment'], 1)} %",
            )
            for row in rows
        ],
    )
    if study.reasons:
        print_text(
            "decisions: " + ", ".join(f"{reason} {count}" for reason, count in sorted(study.reasons.items()))
        )
    print_warnings(notes)


def study_of(trace: Trace, policies: Sequence[str], confidence: float | None, given: dict[str, Any]) -> Study:
    """The study of a trace that the options ask for; with costs the arms are calibrated on the simulated engine here.

    Without an explicit confidence the profile's own holds; without policies all but schedules are compared.

    Raises:
        UsageError: options that do not belong together.
        InputError: a file that is refused.
    """
    import numpy as np

    from breakeven.arm import NO_SPECULATION
    from breakeven_sim.replay.measured import measured_profile
    from breakeven_sim.replay.study import Study
    from breakeven_sim.replay.traces import RequestTrace

    named, scheduled = _named_arms(policies, given["arms"])
    arms: CostArms | LawArms
    if given["costs"] is None:
        profile = _profile(given["profile_path"], confidence)
        candidates = _of_profile(profile, named, scheduled)
        arms = _law_arms(given, trace, candidates, scheduled, profile, confidence)
        roll_s, overhead = 300.0, 0.066
    else:
        arms = engine = _cost_arms(given)
        candidates = named if named or scheduled else engine.distinct_arms(3)
        if isinstance(trace, RequestTrace):
            prompts, outputs = trace.prompt_tokens, trace.output_tokens
        else:
            natural = engine.costs.natural_output_tokens or 256.0
            prompts = np.array([given["prompt_tokens"] or 512])
            outputs = np.array([given["output_tokens"] or round(natural)])
        profile = measured_profile(
            arms, [NO_SPECULATION, *candidates], prompts, outputs, given["seed"], confidence or 0.9
        )
        startup = arms.costs.startup
        roll_s, overhead = (
            (startup.base_s + startup.drafter_s) * arms.costs.time_scale,
            arms.costs.zero_drafts_overhead,
        )
    return Study(
        arms=arms,
        profile=profile,
        trace=trace,
        candidates=candidates,
        replicas=given["replicas"],
        policy=_policy(given, roll_s),
        compared=policies or ("breakeven",),
        scheduled=scheduled,
        zero_drafts_overhead=overhead,
        seed=given["seed"],
        every_s=given["evaluate_seconds"],
        window_s=given["window_seconds"],
        lookback_s=given["lookback_seconds"],
    )


def _cost_arms(given: dict[str, Any]) -> CostArms:
    from breakeven_sim.engine.costs import GPU_VARIABLE, load_costs
    from breakeven_sim.replay.fleet_arms import CostArms
    from breakeven_sim.replay.recorded_texts import read_recorded

    if given["tokens_per_step"] is not None:
        raise click.UsageError(
            "--tokens-per-step belongs to --profile; with --costs say --alpha or --acceptance"
        )
    costs = load_costs(
        given["costs"], {GPU_VARIABLE: given["gpu"]} if given["gpu"] else None, option="--costs"
    )
    recorded = read_recorded(given["recorded_path"]) if given["recorded_path"] is not None else None
    return CostArms(costs, given["seed"], recorded, given["alpha"])


def _profile(path: Path, confidence: float | None) -> Profile:
    profile = read_profile(path, confidence or 0.9)
    return profile if confidence is None else replace(profile, confidence=confidence)


def _law_arms(
    given: dict[str, Any],
    trace: Trace,
    candidates: Sequence[Arm],
    scheduled: Sequence[str],
    believed: Profile,
    confidence: float | None,
) -> LawArms:
    """The arms that the fleet runs: by the truth if it is given, else by the fitted laws."""
    from breakeven.arm import NO_SPECULATION
    from breakeven.laws.acceptance_numbers import tokens_per_step_iid
    from breakeven_sim.replay.fleet_arms import LawArms
    from breakeven_sim.replay.traces import RequestTrace

    if given["recorded_path"] is not None:
        raise click.UsageError(
            "--acceptance belongs to --costs; with --profile say --alpha or --tokens-per-step"
        )
    profile = believed if given["truth_path"] is None else _profile(given["truth_path"], confidence)
    for arm in (NO_SPECULATION, *candidates):
        if profile.measured(arm) < believed.measured(arm) and not arm.scheduled:
            raise InputError(str(given["truth_path"]), f"no law for {arm.name}", "every arm that may run")
    tokens = profile.arm(NO_SPECULATION).lengths.output_tokens
    if tokens is None:
        tokens = float(trace.output_tokens.mean()) if isinstance(trace, RequestTrace) else 256.0
    e: dict[Arm, float] = {}
    if given["alpha"] is not None:
        # Tiers of a schedule need not be candidates themselves.
        speculative = {*candidates, *(fit.arm for fit in profile.arms if fit.k)}
        e = {
            arm: float(tokens_per_step_iid(given["alpha"], arm.k)) for arm in speculative if not arm.scheduled
        }
    elif given["tokens_per_step"] is not None:
        if len({arm.k for arm in candidates}) > 1 or any(arm.scheduled for arm in candidates) or scheduled:
            raise click.UsageError(
                "--tokens-per-step needs candidates of one draft length; say --arm, or --alpha"
            )
        e = dict.fromkeys(candidates, given["tokens_per_step"])
    return LawArms(profile, tokens, e)


def _of_profile(profile: Profile, named: Sequence[Arm], scheduled: Sequence[str]) -> list[Arm]:
    """The candidates of a profile: the named ones by drafter or method, else all measured ones."""
    measured = [fit.arm for fit in profile.arms if fit.k > 0 and fit.measurements and fit.schedule is None]
    if not named and not scheduled:
        return [fit.arm for fit in profile.arms if fit.k > 0 and fit.measurements]
    return [
        next((one for one in measured if one.k == arm.k and arm.method in {one.family, one.method}), arm)
        for arm in named
    ]


def _named_arms(policies: Sequence[str], arms: Sequence[str]) -> tuple[list[Arm], list[str]]:
    """Arms that were named, and drafters whose schedules were."""
    from breakeven_sim.replay.study import ScheduleOf, parse_policy

    named = [parse_policy(policy) for policy in policies if policy.startswith("static:")]
    named.extend(parse_policy(f"static:{text}") for text in arms)
    scheduled = [one.family for one in named if isinstance(one, ScheduleOf)]
    static = [one for one in named if one is not None and not isinstance(one, ScheduleOf) and one.k > 0]
    return list(dict.fromkeys(static)), list(dict.fromkeys(scheduled))


def _policy(given: dict[str, Any], roll_s: float) -> Policy:
    from breakeven.planning.objective import Policy, Slo

    return Policy(
        min_gain=given["min_gain_percent"] / 100.0,
        day_risk=given["day_risk_percent"] / 100.0,
        cooldown_s=given["cooldown_seconds"],
        dwell_s=given["dwell_seconds"],
        horizon_s=given["horizon_seconds"],
        slo=Slo(given["e2e_slo_s"], given["ttft_slo_s"], given["tpot_slo_s"], given["quantile"]),
        roll_seconds=given["roll_seconds"] if given["roll_seconds"] is not None else roll_s,
    )
