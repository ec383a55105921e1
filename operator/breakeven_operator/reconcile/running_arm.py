"""Which arm a target runs: read from its pod template, compared by meaning and not by spelling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError
from breakeven.methods import draft_length_of, method_of
from breakeven.serving.command_line import configuration, speculation
from breakeven.serving.opt_in import VARIABLE, opt_in
from breakeven_operator.reconcile.deployment import Deployment
from breakeven_operator.resources.candidates import Candidates


@dataclass(frozen=True, slots=True)
class RunningArm:
    """What a pod template makes vLLM run.

    Attributes:
        arm: the arm; `None` when the value cannot be read.
        source: `Annotation`, `Arguments`, or `Unset` (opted in, but the annotation was never written).
        problem: one line when the value cannot be read, or vLLM would refuse it.
    """

    arm: Arm | None
    source: str
    problem: str | None = None


def running_arm(deployment: Deployment, candidates: Candidates) -> RunningArm:
    """The arm of the pod template: from the annotation when it is opted in, else from its arguments."""
    if deployment.container is None:
        return RunningArm(None, "Unset", "the engine's container cannot be told")
    if opt_in(deployment.container).ok:
        return arm_of_value(deployment.value, candidates)
    said = speculation(deployment.command_line)
    if said.problem is not None:
        return RunningArm(None, "Arguments", said.problem)
    if said.variable == VARIABLE and deployment.value:
        # The argument is there and the environment entry is not quite: what runs is not known.
        return RunningArm(
            None, "Arguments", "the arguments read the arm from the environment, which is not set up"
        )
    return RunningArm(_arm(said.config, candidates), "Arguments")


def arm_of_value(value: str | None, candidates: Candidates) -> RunningArm:
    """The arm that an annotation's value stands for; absent, empty and `null` run without speculation."""
    if value is None:
        return RunningArm(NO_SPECULATION, "Unset")
    try:
        return RunningArm(_arm(configuration(value), candidates), "Annotation")
    except InputError as error:
        return RunningArm(None, "Annotation", f"the annotation's value: {error.problem}")


def same_value(left: str | None, right: str | None) -> bool:
    """Whether two annotation values mean the same to vLLM, however they are spelled."""
    return bool(_meaning(left) == _meaning(right))


def _meaning(value: str | None) -> Mapping[str, Any] | str | None:
    try:
        return configuration(value or "")
    except InputError:
        return value


def _arm(config: Mapping[str, Any] | None, candidates: Candidates) -> Arm:
    """The candidate whose configuration this is, else an arm named by vLLM's method alone."""
    if config is None:
        return NO_SPECULATION
    k = draft_length_of(config)
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        # vLLM takes k from the drafter's own configuration then; 1 stands for "some".
        k = 1
    for method in candidates.methods:
        if k in method.draft_lengths and configuration(method.speculative_config(k)) == config:
            return Arm(method.method, k, method.name)
    return Arm(str(method_of(config) or "draft_model"), k)
