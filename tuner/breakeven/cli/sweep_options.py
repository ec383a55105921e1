"""The sweep that the options of `breakeven calibrate` ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from breakeven.cli.workload_options import workload_of

if TYPE_CHECKING:
    from breakeven.arm import Arm
    from breakeven.load_driver.design import SweepSettings
    from breakeven.load_driver.question import Question
    from breakeven.load_driver.sent_workload import SentWorkload
    from breakeven.load_driver.sweep import Sweep

_MOST_LOADS = 12
_GUESSED_STEP_S = 0.01  # 7 ms on an H100 with 8 billion parameters, four times as much with 70


def sweep_of(options: Mapping[str, Any]) -> Sweep:
    """The arm, its workload, and how its loads are chosen.

    Args:
        options: of the command, by name.

    Raises:
        UsageError: options that do not belong together.
        InputError: an option whose value is refused.
    """
    from breakeven.cli.profile_options import arm_of
    from breakeven.load_driver.design import SweepSettings
    from breakeven.load_driver.sweep import Sweep
    from breakeven.points.point import LoadMode
    from breakeven.serving.refused_requests import check_min_p

    method, k = options["method"], options["k"]
    if k is None:
        if method != "none":
            raise click.UsageError(f"--k is needed with --method {method}")
        k = 0
    arm = arm_of(method, k, options["candidate"])
    workload = workload_of(options)
    check_min_p(workload.sampling.min_p, arm)
    loads = _MOST_LOADS if options["loads"] == "auto" else options["loads"]
    settings = SweepSettings(
        loads=loads,
        arrivals=LoadMode(options["arrivals"]),
        max_concurrency=options["max_concurrency"],
        point_seconds=options["point_seconds"],
        min_point_seconds=min(5.0, options["point_seconds"]),
        warmup_seconds=options["warmup_seconds"],
        relative_error=options["relative_error"],
        max_seconds=options["max_seconds"],
    )
    question = _question(arm, settings, workload, options)
    return Sweep(arm, workload, settings, question=question, lengths=options["other_lengths"])


def _question(
    arm: Arm, settings: SweepSettings, workload: SentWorkload, options: Mapping[str, Any]
) -> Question | None:
    """The decision that the loads are chosen for; None if loads are spread evenly."""
    from breakeven.load_driver.question import Question

    expected_rps, target_percent = tuple(options["expected_rps"]), options["target_regret_percent"]
    if options["loads"] != "auto":
        for flag, given in (("--expected-rps", expected_rps), ("--target-regret-percent", target_percent)):
            if given:
                raise click.UsageError(f"{flag} needs --loads auto: other loads are spread evenly")
        return None
    question = Question(
        (arm,),
        settings,
        expected_rps=expected_rps,
        running=arm,
        lone_s=guessed_lone_s(workload.output_tokens),
    )
    return question if target_percent is None else replace(question, target_regret=target_percent / 100.0)


def guessed_lone_s(output_tokens: int) -> float:
    """Latency of a lone request (s) before there is a point."""
    return _GUESSED_STEP_S * output_tokens
