"""The target and the arm that runs on it, as a status says them."""

from __future__ import annotations

from breakeven_operator.reconcile.cycle_facts import CycleFacts
from breakeven_operator.reconcile.preconditions import scaled_time
from breakeven_operator.resources.targetstatus import (
    LONGEST_IMAGE,
    LONGEST_MODEL,
    ArmSource,
    Current,
    PodsOfArm,
    Target,
)
from breakeven_operator.workloads.running_arm import pods_by_arm


def target_status(cycle: CycleFacts) -> Target | None:
    """The target as the cycle found it; None if it is not there."""
    workload = cycle.workload
    if workload is None:
        return None
    engine, identity = workload.engine, workload.identity
    return Target(
        uid=workload.ref.uid,
        generation=workload.generation,
        container_name=engine.name if engine else None,
        image=_cut(identity.image, LONGEST_IMAGE) if identity else None,
        model=_cut(identity.model, LONGEST_MODEL) if identity else None,
        served_model_name=(
            cycle.service.spec.metrics_source.served_model_name
            or (_cut(identity.served_model, LONGEST_MODEL) if identity else None)
        ),
        gpu_product=_cut(
            ", ".join(workload.gpu_classes) or (identity.gpu_product if identity else None), 128
        ),
        gpus_per_pod=identity.gpus if identity else None,
        replicas=workload.desired,
        replicas_changed_time=scaled_time(workload, cycle.service.status.target, cycle.now),
        ready_replicas=workload.ready,
        fingerprint=identity.fingerprint if identity and len(workload.gpu_classes) < 2 else None,
        opted_in=engine.opt_in.ok if engine else None,
        drain_configured=engine.drain.ok if engine else None,
    )


def _cut(text: str | None, longest: int) -> str | None:
    """A text of the target as a status has room for it; `refuse_target` names the one that is too long."""
    return None if text is None else text[:longest]


def current_status(cycle: CycleFacts) -> Current | None:
    """The arm that runs, and the pods of each arm; None if the target cannot be looked at."""
    running, workload = cycle.running, cycle.workload
    if running is None or workload is None:
        return None
    source = {"Annotation": ArmSource.ANNOTATION, "Arguments": ArmSource.COMMAND_LINE}.get(
        running.source, ArmSource.UNSET
    )
    arm = running.arm
    old = cycle.service.status.current
    name = arm.name if arm is not None else None
    since = old.since if old is not None and old.arm == name and old.since is not None else cycle.now
    pods = [pod for pod in workload.pods if not pod.terminating]
    candidates = cycle.service.spec.candidates
    found = {arm: len(pods)} if source is ArmSource.COMMAND_LINE and pods else pods_by_arm(pods, candidates)
    counts = {runs.name: count for runs, count in found.items() if runs is not None}
    return Current(
        arm=name,
        method=arm.method if arm is not None else None,
        draft_length=arm.k if arm is not None else None,
        schedule=str(running.schedule) if running.schedule is not None else None,
        source=source,
        since=since,
        pods_by_arm=tuple(PodsOfArm(arm=key, pods=counts[key]) for key in sorted(counts))[:8],
    )
