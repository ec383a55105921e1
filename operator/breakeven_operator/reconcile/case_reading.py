"""From a service and what surrounds it to its case: the profile in force, the running arm, the present figures. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from breakeven.serving.plausibility import engine_limits
from breakeven_operator.reconcile.active_profile import calibrated
from breakeven_operator.reconcile.barred_arms import still_barred
from breakeven_operator.reconcile.calibration_state import awaiting
from breakeven_operator.reconcile.carried import with_carried
from breakeven_operator.reconcile.case import Case
from breakeven_operator.reconcile.doubts import doubt_of, rules_of
from breakeven_operator.reconcile.measured_candidates import with_measured_candidates
from breakeven_operator.reconcile.observation import ServiceObservation
from breakeven_operator.reconcile.present_figures import PresentFigures
from breakeven_operator.reconcile.roll_evidence import RollEvidence
from breakeven_operator.reconcile.steps import RolloutContext
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.workloads.running_arm import running_arm
from breakeven_operator.workloads.workload import Workload


def read_case(
    service: SpeculativeService, observation: ServiceObservation, workload: Workload, now: datetime
) -> tuple[Case, RollEvidence]:
    """The case, and what its rolls are measured by."""
    known, rules = service.status.memory, rules_of(service.spec, observation.timing)
    state = calibrated(
        service,
        observation,
        workload.proven_identity,
        workload.startup_s,
        now,
        (lambda entry: doubt_of(known, entry, rules, now)) if known is not None else None,
    )
    state = awaiting(state, workload)
    service = with_measured_candidates(service, state.entry, observation.profiles)
    spec = service.spec
    engine, identity = workload.engine, workload.identity
    running = running_arm(workload, spec.candidates)
    can = engine_limits(engine.words if engine is not None else (), running.arm, spec.candidates.arms())
    served = identity.served_model if identity is not None else None
    model_name = spec.metrics_source.served_model_name or served or ""
    present = PresentFigures(service, observation, now)
    watched = present.pods_of(workload, model_name)
    live = present.of(workload, watched, can)
    context = RolloutContext.of(service, workload, state.status.startup_seconds, observation.timing, now)
    memory = still_barred(context.memory, state.profile_name)
    if state.profile_name not in {None, memory.profile}:
        # Lessons about another profile do not count.
        memory = memory.replace(evidence=())
    context = replace(context, memory=memory)
    # Without live corrections: the rate that a saturated arm was seen to serve bends the slopes of the laws.
    latencies, failures = observation.roll if observation.roll is not None else (None, None)
    window_s = spec.metrics_source.window_seconds
    evidence = RollEvidence(latencies, workload, model_name, state.entry, live.conditions, window_s, failures)
    objectives = present.objectives(watched, live)
    state = with_carried(state, running.arm, live)
    case = Case(
        service,
        context,
        state,
        running,
        live,
        can,
        objectives,
        first=observation.first if state.entry is None else None,
    )
    return case, evidence
