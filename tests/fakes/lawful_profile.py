"""The fit of invented points on known laws, as the operator would store it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from breakeven.arm import Arm
from breakeven.fitting import fit_points
from breakeven.fitting.profiles import PRIOR_SD
from breakeven.laws.latency import open_loop_latency
from breakeven.points.point import LoadMode, Origin, Point


def lawful_profile_json(
    laws: Mapping[Arm, tuple[float, float]],
    tokens_per_step: Mapping[Arm, float],
    *,
    prompt_tokens: float,
    output_tokens: float,
    gpu: str,
    schedules: Mapping[Arm, str] | None = None,
) -> str:
    """A profile of laws (C1 s, C2 s) with half a percent of scatter, so that bounds are narrow and not absurd; minutes do not differ.

    Args:
        laws: by arm.
        tokens_per_step: by arm.
        prompt_tokens, output_tokens: of every request.
        gpu: GPU class.
        schedules: tables of the arms that run one.
    """
    points = [
        point
        for arm, law in laws.items()
        for point in lawful_points(
            arm,
            law,
            tokens_per_step[arm],
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            schedule=(schedules or {}).get(arm),
        )
    ]
    profile = fit_points(points, provenance={"gpu": gpu})
    assert profile.steps is not None
    starts = replace(profile.steps.starts, sd=PRIOR_SD)
    return replace(profile, steps=replace(profile.steps, starts=starts)).to_json()


def lawful_points(
    arm: Arm,
    law: tuple[float, float],
    tokens_per_step: float,
    *,
    prompt_tokens: float,
    output_tokens: float,
    schedule: str | None = None,
) -> list[Point]:
    """Points of one arm that obey a law."""
    c1_s, c2_s = law
    points = []
    for index, share in enumerate((0.02, 0.12, 0.25, 0.4, 0.55, 0.7)):
        rps = share / c2_s
        latency_s = float(open_loop_latency(c1_s, c2_s, rps)) * (1.005 if index % 2 else 0.995)
        points.append(
            Point(
                method=arm.method,
                k=arm.k,
                candidate=arm.candidate,
                schedule=schedule,
                load_mode=LoadMode.POISSON,
                mean_latency_s=latency_s,
                origin=Origin("law", index + 2),
                request_rate_rps=rps,
                mean_inflight=rps * latency_s,
                achieved_rps=rps,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                tokens_per_step=tokens_per_step,
                requests=1000.0,
            )
        )
    return points
