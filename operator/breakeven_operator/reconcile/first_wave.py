"""The first wave of a roll: a partition keeps the other pods on the old arm until the new one is measured against them.

The partition is written by the same apply as the annotation, and given up by the apply that releases or undoes. The object
itself says whose it is (managedFields), and the status has the deadline. So an operator that starts again goes on from these
two alone, and a partition that somebody else has set since is theirs. What is held by an operator that never comes back
serves on, some pods on either arm.
"""

from __future__ import annotations

from datetime import datetime

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.reasons import Reason
from breakeven_operator.actions import WriteAnnotation
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import FIELD_MANAGER
from breakeven_operator.reconcile.steps import Event, RolloutContext, RolloutStep
from breakeven_operator.resources.rolloutstatus import Rollout, RolloutPhase
from breakeven_operator.resources.updatepolicy import UpdatePolicy
from breakeven_operator.workloads.running_arm import same_value
from breakeven_operator.workloads.workload import Workload


def partition_of(
    policy: UpdatePolicy,
    workload: Workload,
    to_arm: Arm,
    reason: Reason | ClusterReason,
    at_once: frozenset[Reason | ClusterReason],
) -> int:
    """The ordinal below which pods stay on the old arm at first; 0: nothing holds the roll.

    No speculation needs no test.

    Args:
        policy: of the service.
        workload: the target.
        to_arm: what shall run.
        reason: of the roll.
        at_once: reasons of rolls that do not wait: a person's order, and those that measurements ask for.
    """
    wave = policy.first_wave
    if wave is None or workload.kind.unheld or to_arm == NO_SPECULATION or reason in at_once:
        return 0
    size = wave.size(workload.desired)
    return workload.desired - size if size else 0


def is_held(context: RolloutContext) -> bool:
    """Whether the first wave stands, and nobody else has touched what holds it."""
    rollout, workload = context.rollout, context.workload
    return (
        rollout is not None
        and rollout.phase is RolloutPhase.ROLLING
        and rollout.wave_time is not None
        and rollout.wave_partition is not None
        and workload.own_partition == rollout.wave_partition
        and same_value(workload.value, rollout.value)
    )


def is_late(context: RolloutContext) -> bool:
    """Whether the deadline of what is under way has passed."""
    deadline = context.rollout.deadline_time if context.rollout is not None else None
    return deadline is not None and context.now > deadline


def stands(workload: Workload) -> bool:
    """Whether all pods of the first wave serve, and none is on its way in or out."""
    wave = workload.desired - workload.own_partition
    return (
        workload.observed_generation >= workload.generation
        and 0 < wave <= min(workload.updated, len(workload.serving))
        # A controller with surge keeps its further replicas until it has updated all others.
        and workload.desired <= workload.total == workload.ready
        and not any(pod.terminating for pod in workload.pods)
    )


def hold(context: RolloutContext, rollout: Rollout, *, begins: bool) -> RolloutStep:
    """Wait while the wave is measured; `begins` in the cycle in which it was first seen to stand."""
    workload = context.workload
    wave = workload.desired - workload.own_partition
    message = (
        f"{rollout.change}: its first wave ({wave} of {workload.desired} pods) runs it and is measured against the "
        f"others, which partition {workload.own_partition} holds until {rollout.deadline_time:%Y-%m-%d %H:%M:%S} UTC at most"
        + workload.lost_words
    )
    said = (Event(ClusterReason.FIRST_WAVE_HELD, message),) if begins else ()
    return RolloutStep(
        rollout, context.memory, events=said, reason=ClusterReason.FIRST_WAVE_HELD, message=message, busy=True
    )


def release(context: RolloutContext, rollout: Rollout, why: str, deadline: datetime) -> RolloutStep:
    """Let the other pods follow: the partition is given up, the annotation stays.

    Args:
        context: of the cycle.
        rollout: that is held.
        why: as the end of a sentence.
        deadline: when the rest of it is undone unless it has finished.
    """
    reason, change = ClusterReason.FIRST_WAVE_RELEASED, rollout.change
    if not context.may_write:
        message = f"{change}: {why}; its first wave stays held while paused or in mode Recommend"
        return RolloutStep(
            rollout, context.memory, reason=ClusterReason.FIRST_WAVE_HELD, message=message, busy=True
        )
    message = f"{change}: its first wave is released: {why}"
    workload = context.workload
    return RolloutStep(
        rollout.replace(wave_partition=None, deadline_time=deadline),
        context.memory,
        write=WriteAnnotation(workload.ref, rollout.value, workload.generation),
        events=(Event(reason, message),),
        reason=reason,
        message=message,
        busy=True,
        otherwise=RolloutStep(rollout, context.memory),
    )


def released_by_hand(context: RolloutContext, rollout: Rollout, deadline: datetime) -> RolloutStep:
    """Somebody else has set the partition, or given it up: it is theirs from now on, and this roll one like any other."""
    partition = context.workload.kind.partition(context.workload.manifest)
    now = f"partition {partition} now" if partition else "no partition any more"
    reason = ClusterReason.FIRST_WAVE_RELEASED
    message = (
        f"{rollout.change}: another hand has changed the partition of {context.workload.title}, which has {now}; "
        "the operator leaves it alone"
    )
    return RolloutStep(
        rollout.replace(wave_partition=None, deadline_time=deadline),
        context.memory,
        events=(Event(reason, message, warning=True),),
        reason=reason,
        message=message,
        busy=True,
    )


def give_up(context: RolloutContext) -> RolloutStep | None:
    """Give a partition up that no roll accounts for, because one ended without its last write; None: there is none.

    An annotation that has become somebody else's stays as it is.
    """
    workload, rollout = context.workload, context.rollout
    if not workload.own_partition or not context.may_write or _accounts(rollout, workload):
        return None
    reason = ClusterReason.FIRST_WAVE_RELEASED
    message = (
        f"no first wave needs partition {workload.own_partition} of {workload.title} any more: it is given up"
    )
    value = workload.value if FIELD_MANAGER in workload.value_managers else None
    return RolloutStep(
        rollout,
        context.memory,
        write=WriteAnnotation(workload.ref, value, workload.generation),
        events=(Event(reason, message),),
        reason=reason,
        message=message,
        busy=True,
        otherwise=RolloutStep(rollout, context.memory),
    )


def _accounts(rollout: Rollout | None, workload: Workload) -> bool:
    """Whether a roll holds the partition, or is about to give it up together with its annotation."""
    if rollout is None or rollout.phase is RolloutPhase.CONFIRMING:
        return False
    if rollout.phase is RolloutPhase.UNDOING:
        return same_value(workload.value, rollout.value)
    return rollout.wave_partition is not None
