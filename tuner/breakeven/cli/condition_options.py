"""Conditions of each arm from the options about present acceptance, lengths and arrivals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from breakeven.arm import Arm
from breakeven.errors import InputError
from breakeven.phrases import figure

if TYPE_CHECKING:
    from breakeven.profile import Conditions, Profile


def conditions_of(
    profile: Profile,
    steps: tuple[str, ...],
    alpha: float | None,
    per_position: tuple[float, ...] | None,
    load: Conditions,
) -> Callable[[Arm], Conditions]:
    """Conditions of each arm: those of the load, with the acceptance of the options."""
    from breakeven.laws.acceptance_numbers import AcceptanceModel, tokens_per_step_iid

    if sum([bool(steps), alpha is not None, per_position is not None]) > 1:
        raise click.UsageError("--tokens-per-step, --alpha and --per-position say the same thing; give one")
    named, common = _named_steps(profile, steps)

    def conditions(arm: Arm) -> Conditions:
        e: float | None = None
        if arm.k and str(arm) in named:
            e = named[str(arm)]
        elif arm.k and common is not None:
            e = min(common, arm.k + 1.0)
        elif arm.k and alpha is not None:
            e = float(tokens_per_step_iid(alpha, arm.k))
        elif arm.k and per_position is not None:
            measured_k = len(per_position)
            model = AcceptanceModel(
                arm.method, {measured_k: 1.0 + sum(per_position)}, {measured_k: per_position}
            )
            e = model.at(arm.k).value
        return replace(load, tokens_per_step=e)

    return conditions


def dispersion_of(
    profile: Profile, dispersion: float | None, arrivals: Path | None, concurrency: float | None
) -> float:
    """Dispersion of arrivals: the given number, or the one that a file of request times shows.

    A file is counted in spans as long as a lone request of the slowest arm.

    Raises:
        InputError: the file holds rates, or too few requests for an estimate.
    """
    if dispersion is not None and arrivals is not None:
        raise click.UsageError("--dispersion and --arrivals say the same thing; give one")
    if concurrency is not None and (dispersion is not None or arrivals is not None):
        raise click.UsageError(
            "--dispersion and --arrivals are about --rps: clients ask when they are answered"
        )
    if arrivals is None:
        return 1.0 if dispersion is None else dispersion
    # Only a file of request times needs the simulator, which the image lacks.
    from breakeven.laws.latency import FEWEST_SPANS
    from breakeven.laws.latency import dispersion as measured
    from breakeven_sim.replay.trace_files import read_trace
    from breakeven_sim.replay.traces import RequestTrace

    trace = read_trace(arrivals, prompt_tokens=1, output_tokens=1)
    if not isinstance(trace, RequestTrace):
        raise InputError(str(arrivals), "rates of windows", "a moment for each request")
    span_s = max(fit.c1_s for fit in profile.arms if fit.c1_s is not None)
    found = measured(trace.arrival_s, span_s)
    if found is None:
        raise InputError(
            str(arrivals),
            f"{len(trace)} requests in {figure(trace.duration_s)} s",
            f"more than {FEWEST_SPANS} times {figure(span_s)} s",
        )
    return found


def _named_steps(profile: Profile, steps: tuple[str, ...]) -> tuple[dict[str, float], float | None]:
    named: dict[str, float] = {}
    common: float | None = None
    for text in steps:
        name, equals, figure = text.rpartition("=")
        try:
            value = float(figure)
        except ValueError:
            value = 0.0
        if not 1.0 <= value < float("inf"):
            raise click.BadParameter(f"{text!r} is no number of at least 1", param_hint="--tokens-per-step")
        if not equals:
            common = value
            continue
        arm = next((fit.arm for fit in profile.arms if str(fit.arm) == name), None)
        if arm is None or not arm.k:
            known = ", ".join(str(fit.arm) for fit in profile.arms if fit.k) or "none"
            raise InputError("--tokens-per-step", f"arm {name!r}", f"a measured speculative arm ({known})")
        if value > arm.k + 1:
            raise InputError("--tokens-per-step", f"{value:g} for {arm}", f"1 to k + 1 = {arm.k + 1}")
        named[name] = value
    return named, common
