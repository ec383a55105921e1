"""The study that the options of `breakeven simulate` ask for: its arms, its candidates, its policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from breakeven.errors import InputError

if TYPE_CHECKING:
    from breakeven.arm import Arm
    from breakeven.planning.policy import Policy
    from breakeven.profile import Profile
    from breakeven_sim.replay.fleet_arms import CostArms, LawArms
    from breakeven_sim.replay.study import Study
    from breakeven_sim.replay.traces import Trace


def study_of(trace: Trace, policies: Sequence[str], confidence: float | None, given: dict[str, Any]) -> Study:
    """The study of a trace that the options ask for; with costs the arms are calibrated on the simulated engine here.

    Args:
        trace: to replay.
        policies: names to compare; empty: all but schedules.
        confidence: an explicit one; None: the profile's own.
        given: the other options of the command, by name.

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
    from breakeven.cli.profile_options import read_profile

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
    """The candidates of a profile: the named ones by drafter or method, else all that may be believed."""
    measured = [fit.arm for fit in profile.arms if fit.k > 0 and fit.measurements and not fit.scheduled]
    if not named and not scheduled:
        return [fit.arm for fit in profile.arms if fit.k > 0 and fit.believable]
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
    from breakeven.planning.objective import Slo
    from breakeven.planning.policy import Policy

    return Policy(
        min_gain=given["min_gain_percent"] / 100.0,
        risk=given["risk_percent"] / 100.0,
        day_risk=None if given["day_risk_percent"] is None else given["day_risk_percent"] / 100.0,
        cooldown_s=given["cooldown_seconds"],
        dwell_s=given["dwell_seconds"],
        horizon_s=given["horizon_seconds"],
        slo=Slo(given["e2e_slo_s"], given["ttft_slo_s"], given["tpot_slo_s"], given["quantile"]),
        roll_seconds=given["roll_seconds"] if given["roll_seconds"] is not None else roll_s,
    )
