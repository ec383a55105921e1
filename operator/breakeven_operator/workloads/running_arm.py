"""Which arm a target runs: read from its pod template, compared by meaning and not by spelling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from breakeven.arm import ADAPTIVE, NO_SPECULATION, Arm, arm_drafting
from breakeven.errors import InputError
from breakeven.methods import ADAPTIVE_KEY, draft_length_of, method_of
from breakeven.serving.command_line import configuration
from breakeven.serving.opt_in import VARIABLE
from breakeven.tiers import Schedule
from breakeven_operator.resources.candidates import Candidates, drafter_mark, table_of, without_drafts
from breakeven_operator.workloads.workload import PodState, Workload


@dataclass(frozen=True, slots=True)
class RunningArm:
    """The arm that a pod template makes vLLM run.

    Attributes:
        arm: None if the value cannot be read.
        schedule: the draft length per batch size that it runs; None if it drafts by one length.
        measured_instead: the arm that stands for a foreign one, whose law is not known: of the same drafter with the schedule
            that was measured; no speculation for a drafter that its candidate had before.
        source: `Annotation`, `Arguments`, or `Unset` (opted in, but the annotation was never written).
        problem: one line when the value cannot be read, or vLLM would refuse it.
    """

    arm: Arm | None
    source: str
    problem: str | None = None
    schedule: Schedule | None = None
    measured_instead: Arm | None = None

    @property
    def former_drafter(self) -> bool:
        """Whether it runs a drafter that was measured under a candidate's name before that got another one."""
        return self.measured_instead == NO_SPECULATION

    @property
    def foreign_schedule(self) -> bool:
        """Whether it runs a schedule that nobody has measured."""
        return self.schedule is not None and self.arm is not None and self.arm.candidate is None


def running_arm(workload: Workload, candidates: Candidates) -> RunningArm:
    """The arm of the pod template: from the annotation when it is opted in, else from its arguments."""
    engine = workload.engine
    if engine is None:
        return RunningArm(None, "Unset", "the engine's container cannot be told")
    if engine.opt_in.ok:
        return arm_of_value(workload.given, candidates)
    said = engine.speculation
    if said.problem is not None:
        return RunningArm(None, "Arguments", said.problem)
    if said.variable == VARIABLE and workload.given:
        # The argument is there and the environment entry is not quite: what runs is not known.
        return RunningArm(
            None, "Arguments", "the arguments read the arm from the environment, which is not set up"
        )
    return _running(said.config, "Arguments", candidates)


def arm_of_value(value: str | None, candidates: Candidates) -> RunningArm:
    """The arm that an annotation's value stands for; absent, empty and `null` run without speculation."""
    if value is None:
        return RunningArm(NO_SPECULATION, "Unset")
    try:
        config = configuration(value)
    except InputError as error:
        return RunningArm(None, "Annotation", f"the annotation's value: {error.problem}")
    return _running(config, "Annotation", candidates)


def pods_by_arm(pods: Iterable[PodState], candidates: Candidates) -> dict[Arm | None, int]:
    """Number of pods of each arm; the arm is None if it is not known.

    Each value is read once: a fleet of hundreds of pods has two.
    """
    found: dict[Arm | None, int] = {}
    for value, count in Counter(pod.value for pod in pods).items():
        arm = arm_of_value(value, candidates).arm
        found[arm] = found.get(arm, 0) + count
    return found


def same_value(left: str | None, right: str | None) -> bool:
    """Whether two annotation values mean the same to vLLM, however they are spelled."""
    return bool(_meaning(left) == _meaning(right))


def _meaning(value: str | None) -> Mapping[str, Any] | str | None:
    try:
        return configuration(value or "")
    except InputError:
        return value


def _running(config: Mapping[str, Any] | None, source: str, candidates: Candidates) -> RunningArm:
    """The candidate whose configuration this is, else an arm named by vLLM's method alone."""
    if config is None:
        return RunningArm(NO_SPECULATION, source)
    try:
        schedule = table_of(config)
    except InputError as error:
        return RunningArm(None, source, f"{error.where}: {error.problem}")
    # Marks of a drafter whose table of draft lengths may come from the operator, or from the spec.
    marks = {drafter_mark(config), drafter_mark(without_drafts(config))}
    known = {arm: candidates.drafters_of(arm) for arm in candidates.recognised()}
    drafters = [arm for arm, theirs in known.items() if marks.intersection(theirs[:1])]
    arm = next((arm for arm in drafters if _same_drafts(arm, config, candidates)), None)
    if arm is not None:
        # The method as it was measured; the spec may name another one since.
        return RunningArm(replace(arm, method=str(config["method"])), source, schedule=schedule)
    k = draft_length_of(config)
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        # vLLM takes k from the drafter's own configuration then; 1 stands for "some".
        k = 1
    adaptive = config.get(ADAPTIVE_KEY) is True
    varied = ADAPTIVE if adaptive else str(schedule) if schedule is not None else None
    foreign = arm_drafting(str(method_of(config) or "draft_model"), k, None, varied)
    tables = (arm for arm in drafters if arm.scheduled and not arm.adaptive)
    measured = next(tables, None) if schedule is not None and not adaptive else None
    # Measured under an arm's name before the drafter that the profile in force is about.
    if not drafters and any(marks.intersection(theirs[1:]) for theirs in known.values()):
        measured = NO_SPECULATION
    return RunningArm(foreign, source, schedule=schedule, measured_instead=measured)


def _same_drafts(arm: Arm, config: Mapping[str, Any], candidates: Candidates) -> bool:
    """Whether the same drafter drafts and verifies the same; a range that is cut in two changes nothing."""
    own = configuration(candidates.speculative_config(arm)) or {}
    key = "num_speculative_tokens"
    alike = own.get(key) == config.get(key) and arm.adaptive == (config.get(ADAPTIVE_KEY) is True)
    return bool(alike) and table_of(own) == table_of(config)
