"""From a service and what surrounds it to its case: the profile in force, the running arm, the present figures. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from breakeven.profile import Conditions
from breakeven.serving.plausibility import EngineLimits, engine_limits
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.ports import MeanLengths
from breakeven_operator.reconcile.arrival_metrics import arrivals_of
from breakeven_operator.reconcile.barred_arms import still_barred
from breakeven_operator.reconcile.calibration_state import ProfileEntry, awaiting
from breakeven_operator.reconcile.case import Case
from breakeven_operator.reconcile.doubts import doubt_of, rules_of
from breakeven_operator.reconcile.fleet_query import workload_of
from breakeven_operator.reconcile.gpu_classes import GpuClass, calibrated_by_class, with_loads
from breakeven_operator.reconcile.latency_metrics import TPOT, latencies_of
from breakeven_operator.reconcile.live_metrics import Live, WatchedPods, read_service
from breakeven_operator.reconcile.measured_schedules import with_measured_schedules
from breakeven_operator.reconcile.objectives import Objectives, measured
from breakeven_operator.reconcile.observation import ServiceObservation
from breakeven_operator.reconcile.pairs import PrefillHalf, WholeRequests, whole_requests
from breakeven_operator.reconcile.past_metrics import LoadOwner, past_of
from breakeven_operator.reconcile.roll_evidence import RollEvidence
from breakeven_operator.reconcile.steps import RolloutContext
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.memorystatus import MemoryStatus
from breakeven_operator.resources.updatepolicy import Mode
from breakeven_operator.workloads.running_arm import running_arm
from breakeven_operator.workloads.workload import Workload


def read_case(
    service: SpeculativeService, observation: ServiceObservation, workload: Workload, now: datetime
) -> tuple[Case, RollEvidence]:
    """The case, and what its rolls are measured by."""
    state, classes = calibrated_by_class(
        service,
        observation,
        workload,
        now,
        lambda entry: doubt_of(service.status.memory or MemoryStatus(), entry, rules_of(service.spec), now),
    )
    state = awaiting(state, workload)
    if not classes:
        # A schedule is made of one class's arms: on another one it is a schedule that nobody has measured.
        service = with_measured_schedules(service, state.entry, observation.profiles)
    spec, namespace = service.spec, service.metadata.namespace
    engine, identity = workload.engine, workload.identity
    running = running_arm(workload, spec.candidates)
    can = engine_limits(engine.words if engine is not None else (), running.arm, spec.candidates.arms())
    served = identity.served_model if identity is not None else None
    model_name = spec.metrics_source.served_model_name or served or ""
    watched = WatchedPods(
        namespace,
        model_name,
        workload.serving,
        observation.known_pods,
        keep_names=workload.kind.keeps_names,
    )
    live = _live(service, observation, workload, watched, can, now)
    context = context_of(service, workload, state.status.startup_seconds, now)
    context = replace(context, memory=still_barred(context.memory, state.profile_name))
    # Without live corrections: the rate that a saturated arm was seen to serve bends the slopes of the laws.
    evidence = _evidence(
        observation, watched, workload, state.entry, live, spec.metrics_source.window_seconds
    )
    objectives = _objectives(service, observation, watched, live, now)

    def seen(one: GpuClass) -> Live:
        pods = replace(watched, serving=workload.on(one.product).serving)
        return read_service(observation.fleet, pods, spec.metrics_source, can, now)

    state, classes = with_loads(state, classes, running.arm, live, seen)
    whole = _whole(live, service, observation, now)
    state = whole.profile_of(state)
    case = Case(
        service,
        context,
        state,
        running,
        whole.live,
        can,
        objectives,
        first=observation.first if state.entry is None else None,
        classes=classes,
        first_token_s=whole.first_token_s,
    )
    return case, evidence


def _evidence(
    observation: ServiceObservation,
    watched: WatchedPods,
    workload: Workload,
    entry: ProfileEntry | None,
    live: Live,
    window_s: float,
) -> RollEvidence:
    """Evidence about the roll under way; empty if Prometheus was not asked about it."""
    latencies, failures = observation.roll if observation.roll is not None else (None, None)
    return RollEvidence(
        latencies, workload, watched.model_name, entry, conditions_of(live), window_s, failures
    )


def context_of(
    service: SpeculativeService, workload: Workload, startup_s: float | None, now: datetime
) -> RolloutContext:
    """The context of a change of arm before anything of this cycle has happened."""
    return RolloutContext(
        policy=service.spec.update_policy,
        workload=workload,
        memory=(service.status.memory or MemoryStatus()),
        rollout=service.status.rollout,
        may_write=service.spec.update_policy.mode is Mode.ROLLING_UPDATE and not service.spec.paused,
        startup_s=startup_s,
        place_s=service.spec.place_deadline_seconds,
        now=now,
    )


def _live(
    service: SpeculativeService,
    observation: ServiceObservation,
    workload: Workload,
    watched: WatchedPods,
    can: EngineLimits,
    now: datetime,
) -> Live:
    namespace, model_name = watched.namespace, watched.model_name
    live = read_service(observation.fleet, watched, service.spec.metrics_source, can, now)
    figures = live.figures
    if figures is not None:
        pods = {pod.name for pod in watched.serving}
        arrivals = arrivals_of(observation.arrivals, namespace, pods, model_name, figures.latency_s)
        live = replace(live, figures=replace(figures, arrivals=arrivals))
    # Series have the workload that the grammar of their pod's name says; of a kind that names no pods it is that of its makers.
    grammar = "" if workload.kind.pod_name else workload_of(next((pod.name for pod in watched.serving), ""))
    key = LoadOwner(namespace, grammar or workload.title, model_name)
    past = past_of(observation.past, key, service.spec.update_policy)
    if past.awaited and live.usable:
        # A past that cannot be read is no reason to hold. One that comes within seconds is: an arm that the night alone
        # speaks for would be entered by every restart.
        return replace(live, reason=ClusterReason.METRICS_MISSING, message=past.problem)
    return replace(live, past=past)


def _whole(
    live: Live, service: SpeculativeService, observation: ServiceObservation, now: datetime
) -> WholeRequests:
    """Present figures of whole requests: of a pair, with the time in its prefill half."""
    if observation.prefill is None:
        return WholeRequests(live)
    return whole_requests(live, _live_of(observation.prefill, service, observation, now))


def _live_of(
    half: PrefillHalf, service: SpeculativeService, observation: ServiceObservation, now: datetime
) -> Live:
    """Present figures of the prefill half's pods."""
    workload, candidates = half.workload, service.spec.candidates
    assert workload is not None and workload.engine is not None  # noqa: PT018, S101 - a pair that is refused is not read
    can = engine_limits(workload.engine.words, running_arm(workload, candidates).arm, candidates.arms())
    watched = WatchedPods(
        service.metadata.namespace,
        (workload.identity.served_model if workload.identity is not None else None) or "",
        workload.serving,
        observation.known_pods,
        keep_names=workload.kind.keeps_names,
    )
    return read_service(observation.fleet, watched, service.spec.metrics_source, can, now)


def _objectives(
    service: SpeculativeService,
    observation: ServiceObservation,
    watched: WatchedPods,
    live: Live,
    now: datetime,
) -> Objectives | None:
    source, slo = service.spec.metrics_source, service.spec.slo
    pair = observation.prefill is not None
    if pair:
        # The decode half's histograms begin behind the prompt: users wait longer than they say.
        slo = slo.replace(ttft_p95_milliseconds=None, e2e_p95_milliseconds=None)
    latencies = latencies_of(observation.latencies, watched, live)
    found = measured(slo, latencies, service.status.objectives, source.window_seconds, now)
    if found is None or not pair:
        return found
    return replace(found, figures=tuple(one for one in found.figures if one.figure == TPOT))


def conditions_of(live: Live) -> Conditions:
    """Lengths and dispersion of present requests, as far as they are known.

    The dispersion counts even if the window is of no use: it is of a longer time, and says itself when it is unknown.
    """
    lengths, figures = lengths_of(live), live.figures
    return Conditions(
        prompt_tokens=lengths.prompt_tokens if lengths is not None else None,
        output_tokens=lengths.output_tokens if lengths is not None else None,
        dispersion=figures.arrivals.dispersion_or_poisson if figures is not None else 1.0,
    )


def lengths_of(live: Live | None) -> MeanLengths | None:
    """Mean lengths of the target's requests, if enough were seen; a calibration without a workload of its own sends these lengths."""
    figures = live.figures if live is not None and live.usable else None
    if figures is None or figures.prompt_tokens is None or figures.output_tokens is None:
        return None
    return MeanLengths(figures.prompt_tokens, figures.output_tokens, figures.prefix_hit_ratio)
