"""One service, one cycle: from what is wanted and what is seen to a Plan. Pure; called again after a crash it agrees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from breakeven.arm import Arm
from breakeven.errors import BreakevenError
from breakeven.planning.guard import Action as GuardAction
from breakeven.reasons import Reason
from breakeven_operator.plan import SERVICES, Action, EmitEvent, Plan, Ref, WriteStatus
from breakeven_operator.reasons import ClusterReason
from breakeven_operator.reconcile.arms import RunningArm, running_arm
from breakeven_operator.reconcile.calibrated import Calibrated, calibrated
from breakeven_operator.reconcile.confirm import confirm
from breakeven_operator.reconcile.decide import Choice, choose, forget_candidate
from breakeven_operator.reconcile.fingerprint import Identity, identify
from breakeven_operator.reconcile.gates import refuse_capacity, refuse_now, scaled_time
from breakeven_operator.reconcile.live import Live, read_service
from breakeven_operator.reconcile.material import worth_writing
from breakeven_operator.reconcile.observation import Limits, Observation
from breakeven_operator.reconcile.report import Picture, report
from breakeven_operator.reconcile.rollout import (
    Event,
    Prediction,
    Situation,
    Step,
    begin,
    forget_target,
    hand_back,
    roll_batches,
    taken_over,
    watch,
)
from breakeven_operator.reconcile.target import Refusal, refuse_rolls, refuse_target
from breakeven_operator.reconcile.verdict import HOLD, RECOMMEND, STAY, SWITCH, Verdict
from breakeven_operator.reconcile.workload import Workload
from breakeven_operator.resources import SpeculativeService, SpeculativeServiceStatus
from breakeven_operator.resources.servicestatus import MemoryStatus, RolloutPhase
from breakeven_operator.resources.updatepolicy import Mode

RESUME_ANNOTATION = "breakeven.dev/resume"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan, and the status it leads to (also when that is not worth a write).

    Attributes:
        plan: what to do.
        status: as published to metrics.
        verdict: of this cycle.
        lengths: mean prompt and output tokens of the target's recent requests; None when not known.
    """

    plan: Plan
    status: SpeculativeServiceStatus
    verdict: Verdict
    lengths: tuple[float, float] | None = None


def reconcile(
    service: SpeculativeService, observation: Observation, limits: Limits, now: datetime
) -> Outcome:
    """Decide about one service.

    Args:
        service: spec, status and annotations as the API server holds them.
        observation: what surrounds it.
        limits: the operator's own settings.
        now: time of the observation.
    """
    workload = observation.workload
    identity = identify(workload) if workload is not None and workload.container is not None else None
    refusal = refuse_target(service.spec, workload, identity, observation.managed_by)
    if refusal is not None or workload is None or identity is None:
        return _refused(service, observation, workload, identity, refusal, limits, now)

    running = running_arm(workload, service.spec.candidates)
    state = calibrated(
        service,
        identity if workload.identifiable else None,
        observation.profiles,
        observation.runs,
        workload.startup_s,
        now,
    )
    live = _live(service, observation, workload, identity, now)
    situation = Situation(
        policy=service.spec.update_policy,
        workload=workload,
        memory=(service.status.memory or MemoryStatus()),
        rollout=service.status.rollout,
        may_write=service.spec.update_policy.mode is Mode.ROLLING_UPDATE and not service.spec.paused,
        startup_s=state.status.startup_seconds,
        now=now,
    )
    step = _go_on(service, situation, state, live)
    situation = replace(situation, memory=step.memory, rollout=step.rollout)
    cannot_roll = refuse_rolls(service.spec, workload)
    verdict, choice = _judge(service, situation, state, live, running, step)
    memory = choice.memory
    if verdict.action == SWITCH and verdict.arm is not None and running.arm is not None:
        blocked = _blocked(service, situation, state, live, running.arm, verdict, cannot_roll)
        if blocked is None and not limits.may_roll:
            queued = "other services are being rolled; this one is next"
            message = f"{verdict.arm} should run ({verdict.reason}), but {queued}"
            blocked = Verdict(HOLD, verdict.arm, ClusterReason.ROLL_QUEUED, message)
        if blocked is None:
            value = service.spec.candidates.speculative_config(verdict.arm)
            started = begin(
                replace(situation, memory=memory),
                running.arm,
                verdict.arm,
                value,
                str(verdict.reason),
                _prediction(choice, live),
                service.metadata.uid,
            )
            step, memory = _joined(step, started), started.memory
        else:
            verdict = blocked
    picture = Picture(
        service=service,
        workload=workload,
        identity=identity,
        running=running,
        calibrated=state,
        live=live,
        step=replace(step, memory=_with_tokens(memory, state)),
        choice=choice,
        verdict=verdict,
        cannot_roll=cannot_roll,
        now=now,
    )
    return _outcome(picture, observation.written, limits)


def conflicted(
    service: SpeculativeService, workload: Workload, managers: tuple[str, ...], now: datetime
) -> Plan:
    """The API server refused the annotation because others own it: remember it, say it, wait for a person."""
    status = service.status
    situation = Situation(
        policy=service.spec.update_policy,
        workload=workload,
        memory=status.memory or MemoryStatus(),
        rollout=status.rollout,
        may_write=False,
        startup_s=None,
        now=now,
    )
    step = taken_over(situation, ", ".join(managers), "owns the annotation")
    memory = step.memory.model_copy(update={"written_value": workload.value})
    changed = status.model_copy(
        update={"memory": memory, "rollout": None, "history": (*step.ended, *status.history)[:10]}
    )
    ref = reference(service)
    return Plan(
        subject=ref,
        actions=(
            WriteStatus(ref, changed.to_json_object()),
            *(EmitEvent(ref, str(e.reason), e.message, e.warning) for e in step.events),
        ),
        facts={"reason": str(ClusterReason.TAKEN_OVER), "managers": list(managers)},
    )


def reference(service: SpeculativeService) -> Ref:
    """The service's own address."""
    meta = service.metadata
    return Ref(SERVICES, meta.namespace, meta.name, meta.uid)


def _live(
    service: SpeculativeService,
    observation: Observation,
    workload: Workload,
    identity: Identity,
    now: datetime,
) -> Live:
    source = service.spec.metrics_source
    return read_service(
        observation.fleet,
        service.metadata.namespace,
        workload.serving,
        known_pods=observation.known_pods,
        model_name=source.served_model_name or identity.served_model or "",
        window_s=source.window_seconds,
        staleness_s=source.staleness_seconds,
        min_requests=source.min_requests,
        now=now,
    )


def _go_on(service: SpeculativeService, situation: Situation, state: Calibrated, live: Live) -> Step:
    """Whatever is under way, before anything new is thought of."""
    seen = service.status.target
    if seen is not None and seen.uid not in {None, situation.workload.ref.uid}:
        return forget_target(situation)
    resume = service.metadata.annotations.get(RESUME_ANNOTATION, "")
    handed = hand_back(situation, resume, paused=service.spec.paused)
    if handed is not None:
        if handed.busy:
            return handed
        situation = replace(situation, memory=handed.memory)
    step = watch(situation)
    if step.busy or step.rollout is None or step.rollout.phase is not RolloutPhase.CONFIRMING:
        return step
    profile = state.entry.profile if state.entry is not None else None
    confirming = replace(situation, memory=step.memory, rollout=step.rollout)
    judged = confirm(confirming, profile, live, service.spec.metrics_source.window_seconds)
    return _joined(step, judged) if judged is not None else step


def _judge(
    service: SpeculativeService,
    situation: Situation,
    state: Calibrated,
    live: Live,
    running: RunningArm,
    step: Step,
) -> tuple[Verdict, Choice]:
    """The verdict before anything that only forbids acting on it, and the figures behind it."""
    idle = Choice(decision=None, memory=forget_candidate(situation.memory))
    arm = running.arm
    if arm is None:
        problem = running.problem or "the running arm cannot be told"
        return Verdict(HOLD, None, ClusterReason.ENGINE_CONFIG_REFUSED, problem), idle
    if step.busy and step.reason is not None:
        return Verdict(HOLD, _aim(service, step) or arm, step.reason, step.message), idle
    profile = state.entry.profile if state.entry is not None else None
    choice = idle
    if profile is not None and live.usable and live.figures is not None:
        try:
            choice = choose(
                service.spec, profile, live.figures, arm, situation.memory, _roll_s(situation), situation.now
            )
        except BreakevenError as error:
            # What was measured does not tell about this load, these lengths or this arm.
            return Verdict(HOLD, arm, Reason.NO_BELIEVABLE_FIT, f"{error}; {_keeping(arm)}"), idle
    if service.spec.update_policy.mode is Mode.DISABLED:
        message = f"mode Disabled decides nothing; {_keeping(arm)}"
        return Verdict(HOLD, arm, ClusterReason.DISABLED, message), choice
    pinned = service.spec.update_policy.pinned_arm
    if pinned is not None:
        wanted = next(a for a in service.spec.candidates.arms() if a.name == pinned)
        return _pinned(wanted, arm, state, paused=service.spec.paused), choice
    if profile is None:
        reason = ClusterReason.PAUSED if service.spec.paused else state.reason
        return Verdict(HOLD, arm, reason, f"{state.message}; {_keeping(arm)}"), choice
    decision = choice.decision
    if decision is None:
        return Verdict(HOLD, arm, live.reason, f"{live.message}; {_keeping(arm)}"), choice
    action = {GuardAction.STAY: STAY, GuardAction.SWITCH: SWITCH, GuardAction.HOLD: HOLD}[decision.action]
    return Verdict(action, decision.arm, decision.reason, decision.sentence()), choice


def _keeping(arm: Arm) -> str:
    return f"keeping {arm if arm.k else 'no speculation'}"


def _pinned(wanted: Arm, running: Arm, state: Calibrated, *, paused: bool) -> Verdict:
    """A pinned arm is a person's choice of *which* arm; that it starts and serves must have been seen all the same."""
    asks = f"pinnedArm asks for {wanted}"
    if wanted == running:
        return Verdict(STAY, wanted, ClusterReason.PINNED, asks)
    profile = state.entry.profile if state.entry is not None else None
    if profile is None:
        reason = ClusterReason.PAUSED if paused else state.reason
        message = f"{asks}, which waits for an accepted profile: {state.message}; {_keeping(running)}"
        return Verdict(HOLD, wanted, reason, message)
    if wanted not in {fit.arm for fit in profile.arms}:
        message = (
            f"{asks}, of which the profile in force has no measurement ({state.message}); {_keeping(running)}"
        )
        return Verdict(HOLD, wanted, ClusterReason.PINNED_UNMEASURED, message)
    return Verdict(SWITCH, wanted, ClusterReason.PINNED, asks)


def _blocked(
    service: SpeculativeService,
    situation: Situation,
    state: Calibrated,
    live: Live,
    running: Arm,
    verdict: Verdict,
    cannot_roll: Refusal | None,
) -> Verdict | None:
    """What becomes of a change that is due but must not be made; None: make it."""
    spec, workload = service.spec, situation.workload
    if spec.update_policy.mode is Mode.RECOMMEND:
        return replace(verdict, action=RECOMMEND)
    assert state.entry is not None and state.entry.profile is not None  # noqa: PT018, S101 - no verdict without one
    refusal = (
        Refusal(ClusterReason.PAUSED, "spec.paused is set")
        if spec.paused
        else cannot_roll
        or refuse_now(
            workload,
            spec.update_policy,
            scaled_time(workload, service.status.target, situation.now),
            situation.memory,
            situation.now,
        )
        or refuse_capacity(
            spec.update_policy, workload, state.entry.profile, live.figures, (running, verdict.arm or running)
        )
    )
    if refusal is None:
        return None
    message = f"{verdict.arm} should run ({verdict.reason}), but {refusal.message}"
    return Verdict(HOLD, verdict.arm, refusal.reason, message)


def _aim(service: SpeculativeService, step: Step) -> Arm | None:
    """The arm a change under way leads to."""
    if step.rollout is None:
        return None
    undoing = step.rollout.phase is RolloutPhase.UNDOING
    name = step.rollout.from_arm if undoing else step.rollout.to_arm
    return next((arm for arm in service.spec.candidates.arms() if arm.name == name), None)


def _roll_s(situation: Situation) -> float | None:
    startup_s = situation.startup_s
    return None if startup_s is None else roll_batches(situation.workload) * startup_s


def _prediction(choice: Choice, live: Live) -> Prediction:
    figures = live.figures
    load = {"load_rps": figures.rps, "latency_s": figures.latency_s} if figures is not None else {}
    comparison = choice.decision.against_running if choice.decision is not None else None
    if comparison is None or comparison.speedup is None:
        return Prediction(**load)
    lower, upper = comparison.speedup_ci or (None, None)
    return Prediction(speedup=comparison.speedup, lower=lower, upper=upper, **load)


def _joined(first: Step, second: Step) -> Step:
    """Two steps of one cycle: the later one decides, nothing that was said is lost."""
    return replace(
        second,
        ended=(*first.ended, *second.ended),
        events=(*first.events, *second.events),
        write=second.write or first.write,
    )


def _with_tokens(memory: MemoryStatus, state: Calibrated) -> MemoryStatus:
    return memory.model_copy(update={"recalibrate": state.recalibrate})


def _refused(
    service: SpeculativeService,
    observation: Observation,
    workload: Workload | None,
    identity: Identity | None,
    refusal: Refusal | None,
    limits: Limits,
    now: datetime,
) -> Outcome:
    """A target that cannot be looked at: say why; a calibration that runs is not ours to judge here."""
    assert refusal is not None  # noqa: S101 - without a refusal there is a workload with a container
    state = calibrated(service, None, observation.profiles, observation.runs, None, now)
    verdict = Verdict(HOLD, None, refusal.reason, refusal.message)
    memory = service.status.memory or MemoryStatus()
    picture = Picture(
        service=service,
        workload=workload,
        identity=identity,
        running=None,
        calibrated=replace(state, create=None),
        live=None,
        step=Step(service.status.rollout, memory),
        choice=Choice(decision=None, memory=memory),
        verdict=verdict,
        cannot_roll=refusal,
        now=now,
    )
    return _outcome(picture, observation.written, limits)


def _outcome(picture: Picture, holds: Mapping[str, Any], limits: Limits) -> Outcome:
    """Order matters: what must survive a crash is written before what it announces."""
    service, step, verdict = picture.service, picture.step, picture.verdict
    status = report(picture)
    ref = reference(service)
    old = service.status
    written = old.decision.time if old.decision is not None else None
    forced = step.write is not None or bool(step.ended) or bool(picture.calibrated.ended)
    document = status.to_json_object()
    worth = forced or worth_writing(holds, document, written, picture.now, limits.status_refresh_s)
    actions: list[Action] = []
    if picture.calibrated.create is not None:
        # Named after its cause: created twice it is one. The status that counts it must not come first.
        actions.append(picture.calibrated.create)
    if worth:
        # Status from an object that has changed meanwhile could undo a newer intent: the write is conditional.
        actions.append(WriteStatus(ref, document, service.metadata.resource_version or None))
    if step.write is not None:
        actions.append(step.write)
    actions.extend(
        EmitEvent(ref, str(e.reason), e.message, e.warning, e.throttled) for e in _events(picture, old)
    )
    return Outcome(
        plan=Plan(subject=ref, actions=tuple(actions), facts=_facts(picture, status)),
        status=status,
        verdict=verdict,
        lengths=_lengths(picture.live),
    )


def _lengths(live: Live | None) -> tuple[float, float] | None:
    """What a calibration without a workload of its own sends: lengths as the target sees them, from enough requests."""
    figures = live.figures if live is not None and live.usable else None
    if figures is None or figures.prompt_tokens is None or figures.output_tokens is None:
        return None
    return figures.prompt_tokens, figures.output_tokens


def _events(picture: Picture, old: SpeculativeServiceStatus) -> tuple[Event, ...]:
    """What changed: a change of arm, and a verdict with another reason than the last one written."""
    events = list(picture.step.events)
    verdict = picture.verdict
    before = old.decision.reason if old.decision is not None else None
    if str(verdict.reason) != before and verdict.reason not in {event.reason for event in events}:
        warning = (
            verdict.action == HOLD
            and isinstance(verdict.reason, ClusterReason)
            and verdict.reason in _WARNINGS
        )
        events.append(Event(verdict.reason, verdict.message, warning, throttled=True))
    if picture.calibrated.create is not None and verdict.reason is not ClusterReason.CALIBRATION_REQUESTED:
        events.append(Event(ClusterReason.CALIBRATION_REQUESTED, picture.calibrated.message))
    return tuple(events)


# Holding for these is nothing that a person need look at.
_WARNINGS = frozenset(ClusterReason) - {
    ClusterReason.DISABLED,
    ClusterReason.PAUSED,
    ClusterReason.PINNED,
    ClusterReason.CALIBRATION_RUNNING,
    ClusterReason.CALIBRATION_REQUESTED,
    ClusterReason.TOO_FEW_REQUESTS,
    ClusterReason.NO_PROFILE,
    ClusterReason.ROLL_STARTED,
    ClusterReason.ROLLING,
    ClusterReason.ROLLING_BACK,
    ClusterReason.RESUMED,
    ClusterReason.AUTOSCALING,
    ClusterReason.FOREIGN_ROLLOUT,
    ClusterReason.ROLL_QUEUED,
}


def _facts(picture: Picture, status: SpeculativeServiceStatus) -> dict[str, object]:
    """The canonical log line of the cycle: what was seen, decided and done."""
    decision = status.decision.to_json_object() if status.decision is not None else {}
    shown = (
        "loadRps",
        "inflight",
        "observedLatencySeconds",
        "predictedLatencySeconds",
        "speedup",
        "speedupLower",
        "speedupUpper",
        "breakEvenRps",
        "tokensPerStep",
        "profile",
        "heldUntil",
    )
    return {
        "action": picture.verdict.action,
        "reason": str(picture.verdict.reason),
        "message": picture.verdict.message,
        "arm": picture.verdict.arm.name if picture.verdict.arm is not None else None,
        "runningArm": status.current.arm if status.current is not None else None,
        "mode": str(picture.service.spec.update_policy.mode),
        "metrics": str(picture.live.reason) if picture.live is not None else None,
        "calibrated": str(picture.calibrated.reason),
        "rollout": str(status.rollout.phase) if status.rollout is not None else None,
        **{key: decision[key] for key in shown if key in decision},
    }
