"""The Job and the pods of one arm, found among those of its run."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from breakeven_operator.calibration.jobs import arm_label, job_name
from breakeven_operator.calibration.transition import Transition
from breakeven_operator.calibration.trial_state import TrialState, is_gone, read_trial
from breakeven_operator.labels import ARM_LABEL
from breakeven_operator.ports import Manifest
from breakeven_operator.resources.calibrationrun import CalibrationPlan
from breakeven_operator.workloads.object_facts import owner_uid
from breakeven_operator.workloads.presence import is_finished, is_overdue


def trial_of(transition: Transition, plan: CalibrationPlan, arm: str) -> TrialState:
    """How far an arm's trial is.

    Args:
        transition: the cycle, with the Jobs and pods of the run.
        plan: of the run.
        arm: name of the arm.
    """
    view, name = transition.view, job_name(transition.run.metadata.name, arm)
    job = next((job for job in view.jobs if job["metadata"]["name"] == name), None)
    pods = [
        pod
        for pod in view.pods
        if _label(pod, ARM_LABEL) == arm_label(arm) and job is not None and _may_be_of(pod, job)
    ]
    return read_trial(view, job, pods, plan, transition.now)


def place_is_held(transition: Transition) -> bool:
    """Whether a pod of the run has its GPUs still: not once it has ended, nor when its node is lost."""
    view = transition.view
    return any(
        not is_finished(pod) and not is_gone(pod, view.lost_nodes, transition.now) for pod in view.pods
    )


def kept_words(pods: Iterable[Manifest], now: datetime) -> str:
    """Pods that were deleted and keep their GPUs because of a finalizer, as a clause; empty if there are none."""
    kept = [
        f"pod {pod['metadata']['name']} was deleted and is kept by {', '.join(pod['metadata']['finalizers'])}"
        for pod in pods
        if pod["metadata"].get("finalizers") and is_overdue(pod, now) and not is_finished(pod)
    ]
    return f"{'; '.join(kept)}: it may hold its GPUs" if kept else ""


def _label(manifest: Manifest, name: str) -> str | None:
    labels = manifest["metadata"].get("labels") or {}
    return labels.get(name)


def _may_be_of(pod: Manifest, job: Manifest) -> bool:
    """The pod is this Job's, and not one of an earlier Job of the same name that is still being removed."""
    return owner_uid(pod) in {"", job["metadata"].get("uid")}
