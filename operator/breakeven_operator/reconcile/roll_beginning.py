"""The step that begins a change of arm: its promise, and the arm that is barred if it is left for a fault."""

from __future__ import annotations

from dataclasses import replace

from breakeven.estimate import Estimate
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.barred_arms import barred
from breakeven_operator.reconcile.case import Case
from breakeven_operator.reconcile.leaving import BARRING
from breakeven_operator.reconcile.roll_evidence import RollEvidence, so_far
from breakeven_operator.reconcile.rollout import ArmChange, begin
from breakeven_operator.reconcile.steps import RolloutStep
from breakeven_operator.reconcile.verdict import Verdict


def roll_begun(case: Case, step: RolloutStep, evidence: RollEvidence, verdict: Verdict) -> RolloutStep:
    """The step that begins a change of arm."""
    running, wanted, rollout = case.running.arm, verdict.arm, case.context.rollout
    assert running is not None and wanted is not None  # noqa: PT018, S101 - no change without both
    figures = case.live.figures
    change = ArmChange(
        running,
        wanted,
        case.spec.candidates.speculative_config(wanted),
        str(verdict.reason),
        _promised(verdict),
        figures.rps if figures is not None else None,
        figures.latency_s if figures is not None else None,
    )
    context = replace(case.context, rollout=None if rollout is None else so_far(rollout, evidence))
    started = begin(context, change, case.service.metadata.uid)
    memory = started.memory
    if isinstance(verdict.reason, ClusterReason) and verdict.reason in BARRING:
        name = case.calibrated.profile_name
        memory = barred(memory, running.name, verdict.reason, verdict.message, name, case.now)
    return replace(step.then(started), memory=memory, otherwise=step)


def _promised(verdict: Verdict) -> Estimate:
    """Speedup over the running arm at this load; an empty one if it is not known."""
    comparison = verdict.decision.against_running if verdict.decision is not None else None
    if comparison is None or comparison.speedup is None:
        return Estimate()
    return Estimate.of(comparison.speedup, comparison.speedup_ci)
