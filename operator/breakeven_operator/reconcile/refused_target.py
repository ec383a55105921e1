"""A service whose target cannot be looked at: the reason in its status, and the state of a change that was under way."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.action_plan import ServiceOutcome, outcome_of
from breakeven_operator.reconcile.active_profile import calibrated
from breakeven_operator.reconcile.cycle_facts import CycleFacts
from breakeven_operator.reconcile.observation import CycleLimits, ServiceObservation
from breakeven_operator.reconcile.rollout import watch
from breakeven_operator.reconcile.steps import RolloutContext, RolloutStep, ended_roll
from breakeven_operator.reconcile.target import Refusal, refuse_target
from breakeven_operator.reconcile.verdict import HOLD, Verdict
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.rolloutstatus import HistoryResult, RolloutPhase
from breakeven_operator.workloads.running_arm import same_value
from breakeven_operator.workloads.workload import Workload

# Such a target is no measure of a roll, whenever the refusal ends.
_NO_MEASURE = frozenset({ClusterReason.KV_TRANSFER_PAIR, ClusterReason.MIXED_GPU_CLASSES})


def refusal_of(service: SpeculativeService, observation: ServiceObservation) -> Refusal | None:
    """Why the target cannot be looked at; None if it can."""
    refusal = refuse_target(
        service.spec, observation.workload, observation.managed_by, observation.target_problem
    )
    if refusal is not None and refusal.reason is ClusterReason.GPU_CLASS_UNKNOWN and observation.profiles:
        # A label that was lost is no reason to stay on an arm that loses by the profile of before.
        return None
    return refusal


def refused(
    service: SpeculativeService,
    observation: ServiceObservation,
    workload: Workload | None,
    refusal: Refusal | None,
    limits: CycleLimits,
    now: datetime,
) -> ServiceOutcome:
    """A target that cannot be looked at: say why; a calibration that runs is not ours to judge here.

    A calibration that ended because the target is gone is asked for again at once: what it was asked is still open, and
    the new run waits until the target is back.
    """
    assert refusal is not None  # noqa: S101 - without a refusal there is a workload with a container
    state = calibrated(service, observation, None, None, now)
    verdict = Verdict(HOLD, None, refusal.reason, refusal.message)
    step = _while_refused(service, observation, workload, refusal, now)
    cycle = CycleFacts(
        service=service,
        workload=workload,
        calibrated=state if refusal.reason is ClusterReason.TARGET_NOT_FOUND else replace(state, create=None),
        step=step,
        verdict=verdict,
        cannot_roll=refusal,
        now=now,
        timing=observation.timing,
        failures=tuple(observation.failures),
    )
    return outcome_of(cycle, observation.written, limits)


def _while_refused(
    service: SpeculativeService,
    observation: ServiceObservation,
    workload: Workload | None,
    refusal: Refusal,
    now: datetime,
) -> RolloutStep:
    """The state of a change under way while its target cannot be read.

    A target that is gone takes it along. One that another service has is that one's. Of any other the change goes on to its
    end, or to its deadline: new pods on another GPU class are no reason to leave half of a roll for ever. A change that is made
    stays, and is not measured on a target that hands caches on or runs on several classes.
    """
    memory, rollout = service.status.memory or MemoryStatus(), service.status.rollout
    if rollout is None or observation.managed_by is not None:
        return RolloutStep(rollout, memory)
    if workload is None:
        entry = ended_roll(rollout, HistoryResult.SUPERSEDED, "the target is gone", now)
        return RolloutStep(None, memory, ended=(entry,))
    same = memory.target_uid in {None, workload.ref.uid}
    unwritten = rollout.phase is RolloutPhase.INTENDED and not same_value(workload.value, rollout.value)
    confirming = rollout.phase is RolloutPhase.CONFIRMING
    if confirming and refusal.reason in _NO_MEASURE:
        message = f"{rollout.change} was not measured: {refusal.message}"
        entry = ended_roll(rollout, HistoryResult.UNMEASURED, message, now)
        return RolloutStep(None, memory, ended=(entry,))
    if not same or unwritten or confirming:
        return RolloutStep(rollout, memory)
    return watch(RolloutContext.of(service, workload, None, observation.timing, now))
