"""The status of a service: what was seen, what was decided and why, in the shape that people and restarts read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.deciding import Decision
from breakeven.errors import BreakevenError
from breakeven.laws.latency import BURSTY
from breakeven.phrases import column, duration_text, spoken
from breakeven.planning.objective import Follow
from breakeven.planning.prompt_lengths import PromptPart, by_prompt, prompts_text
from breakeven.planning.wording import figures_text, followed_text
from breakeven.profile import Comparison, Profile
from breakeven.serving.counted_window import Load
from breakeven.serving.diagnosis import diagnose
from breakeven.serving.findings import Finding
from breakeven.serving.model_watch import ModelSnapshot
from breakeven_operator.case import HOLD, RECOMMEND, CycleFacts, Live, Verdict
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.judging.doubts import (
    MADE_UP_TEXT,
    doubt_aspects,
    latency_ratio,
    measured_speedup,
    predicted_bounds,
    recent,
    survival,
)
from breakeven_operator.judging.gates import scaled_time
from breakeven_operator.observing.objectives import objectives_aspect, with_predictions
from breakeven_operator.observing.questions import seen_of
from breakeven_operator.outcome.formatting import (
    FORMER_MARK,
    PAST_MARK,
    break_even,
    overruling,
    pays_now,
    speedup,
    with_measured,
    with_overload,
)
from breakeven_operator.outcome.worth import worth_of
from breakeven_operator.resources import SpeculativeServiceStatus
from breakeven_operator.resources.decisionstatus import Basis, DecisionStatus
from breakeven_operator.resources.figures import bounded, read_figures
from breakeven_operator.resources.memorystatus import MemoryStatus, ModelStatus, PositionSurvival, typical
from breakeven_operator.resources.meta import (
    CALIBRATED,
    METRICS,
    OBJECTIVES,
    PROFITABLE,
    PROGRESSING,
    READY,
    Aspect,
    merge,
)
from breakeven_operator.resources.servicestatus import ServiceDisplay, ServiceWorkings
from breakeven_operator.resources.speculativeservice import SpeculativeServiceSpec
from breakeven_operator.resources.targetstatus import (
    LONGEST_IMAGE,
    LONGEST_MODEL,
    ArmSource,
    Current,
    HistoryEntry,
    PodsOfArm,
    RolloutPhase,
    Target,
)
from breakeven_operator.workloads.running_arm import pods_by_arm


def report(cycle: CycleFacts, gpu_price_per_hour: float | None) -> SpeculativeServiceStatus:
    """The whole status of this cycle; without a price it says no money."""
    service, old, step = cycle.service, cycle.service.status, cycle.step
    current, memory = current_status(cycle), step.memory
    profile = cycle.calibrated.profile_name
    if old.calibration is not None and profile is not None and old.calibration.profile not in {None, profile}:
        # Acceptance seen before belongs to the profile before.
        memory = memory.replace(seen=())
    paying = pays_now(cycle.verdict)
    if paying is not None and cycle.verdict.basis is Basis.MEASURED:
        memory = memory.replace(pays=paying)
    status = SpeculativeServiceStatus(
        observed_generation=service.metadata.generation,
        target=target_status(cycle),
        current=current,
        decision=_decision(cycle),
        rollout=step.rollout,
        capacity=cycle.case.capacity if cycle.case is not None else None,
        model=model_status(cycle, memory),
        objectives=with_predictions(cycle.objectives, cycle.verdict.running),
        calibration=cycle.calibrated.status,
        history=step.history(old.history),
        control=cycle.case.control if cycle.case is not None else None,
        workings=ServiceWorkings(memory=memory, display=columns_of(cycle, current)),
    )
    conditions = merge(old.conditions, aspects_of(cycle, status), cycle.now)
    return status.replace(savings=worth_of(status, gpu_price_per_hour), conditions=conditions)


def _decision(cycle: CycleFacts) -> DecisionStatus:
    case, verdict = cycle.case, cycle.verdict
    decision = verdict.decision
    figures = case.live.figures if case is not None else None
    running = case.running.arm if case is not None else None
    return DecisionStatus(
        time=cycle.now,
        action=verdict.action,
        arm=verdict.arm.name if verdict.arm is not None else None,
        running_arm=running.name if running is not None else None,
        reason=str(verdict.reason),
        message=with_measured(with_overload(verdict), verdict)[:1024],
        profile=cycle.calibrated.profile_name,
        basis=verdict.basis if decision is not None else None,
        held_until=(
            datetime.fromtimestamp(decision.until_s, UTC)
            if decision is not None and decision.until_s is not None and verdict.reason == decision.reason
            else None
        ),
        by_prompt=_by_prompt(decision, case.prompts) if decision is not None and case is not None else None,
        evidence_time=cycle.now - timedelta(seconds=figures.age_s) if figures is not None else None,
        **read_figures(DecisionStatus, figures, decision),
    )


def _by_prompt(decision: Decision, prompts: Sequence[PromptPart]) -> str | None:
    """The speedup by length of the prompt; None if requests by prompt were not counted."""
    if decision.against_none is None or decision.subject is None or not prompts:
        return None
    return (
        prompts_text(by_prompt(decision.of(decision.subject), decision.of(NO_SPECULATION), prompts)) or None
    )


def aspects_of(cycle: CycleFacts, status: SpeculativeServiceStatus) -> tuple[Aspect, ...]:
    """The aspects of all conditions, in the order in which the status lists them."""
    calibrated, live = cycle.calibrated, cycle.live
    kept = objectives_aspect(
        cycle.objectives,
        status.objectives,
        asked_before=cycle.service.status.condition(OBJECTIVES) is not None,
    )
    return (
        _ready(cycle),
        metrics_aspect(live)
        if live is not None
        else Aspect(METRICS, None, str(cycle.verdict.reason), cycle.verdict.message),
        Aspect(
            CALIBRATED,
            # While no pod serves this is unknown: the next one may have what was measured, or not.
            None if calibrated.reason is ClusterReason.NO_POD_SERVES else calibrated.entry is not None,
            str(calibrated.reason),
            _calibrated_message(cycle, status),
        ),
        _profitable(cycle),
        _progressing(cycle, status),
        *doubt_aspects(cycle),
        *((kept,) if kept is not None else ()),
    )


def _calibrated_message(cycle: CycleFacts, status: SpeculativeServiceStatus) -> str:
    """The message about the profile, with a note on every drafter whose acceptance is a guess.

    What was accepted of made-up text, or was imposed, says little about users' text. Live traffic on the drafter outranks it.
    """
    calibrated = cycle.calibrated
    profile = calibrated.profile
    if profile is None:
        return calibrated.message
    memory = status.memory
    seen = {one.arm.partition("/")[0] for one in memory.seen} if memory is not None else set()
    guessed: dict[str, set[str]] = {}
    for fit in profile.arms:
        text = fit.acceptance.text if fit.acceptance is not None else None
        family = fit.arm.name.partition("/")[0]
        if text in MADE_UP_TEXT and family not in seen:
            guessed.setdefault(text, set()).add(family)
    notes = (
        f"; acceptance of {', '.join(sorted(families))} was measured on {text}: a guess until live traffic has been seen on it"
        for text, families in sorted(guessed.items())
    )
    return f"{calibrated.message}{''.join(notes)}"


def _ready(cycle: CycleFacts) -> Aspect:
    service, cannot, step = cycle.service, cycle.cannot_roll, cycle.step
    if cannot is not None:
        return Aspect(READY, False, str(cannot.reason), cannot.message)
    if step.memory.taken_over_by is not None:
        reason, message = step.reason or ClusterReason.TAKEN_OVER, step.message
        return Aspect(
            READY, False, str(reason), message or f"{step.memory.taken_over_by} owns the annotation"
        )
    if cycle.running is not None and cycle.running.arm is None:
        return Aspect(READY, False, str(cycle.verdict.reason), cycle.verdict.message)
    if cycle.refused is not None:
        return Aspect(READY, False, str(cycle.refused.reason), cycle.refused.sentence)
    if service.spec.paused:
        return Aspect(
            READY, True, str(ClusterReason.PAUSED), "spec.paused is set: nothing is changed or started"
        )
    if cycle.calibrated.reason is ClusterReason.GPU_CLASS_UNKNOWN:
        return Aspect(READY, False, str(cycle.calibrated.reason), cycle.calibrated.message)
    name = cycle.calibrated.profile_name
    profile = f"profile {name} in force" if name is not None else "no profile in force yet"
    live = cycle.live
    metrics = "metrics fresh" if live is not None and live.usable else "no usable metrics now"
    if live is not None and not live.usable:
        metrics += f" ({live.reason})"
    return Aspect(READY, True, str(ClusterReason.WATCHING), f"target found, {profile}, {metrics}")


def _profitable(cycle: CycleFacts) -> Aspect:
    verdict, comparison, decision = cycle.verdict, cycle.verdict.against_none, cycle.verdict.decision
    if decision is None or comparison is None or decision.subject is None:
        return Aspect(PROFITABLE, None, str(verdict.reason), verdict.message)
    message = figures_text(decision)
    if not comparison.break_even:
        message += f"; {comparison.pays}"
    if verdict.basis is Basis.PAST:
        message = f"by the target's own past, and nothing is measured yet: {message}"
        return Aspect(PROFITABLE, pays_now(verdict), str(ClusterReason.NO_PROFILE), message)
    message = with_measured(message, verdict)
    if verdict.basis is Basis.FORMER and cycle.calibrated.former is not None:
        message = (
            f"by {cycle.calibrated.former.name}, which is not in force any more and may be wrong: {message}"
        )
    return Aspect(PROFITABLE, pays_now(verdict), str(decision.reason), message)


def _progressing(cycle: CycleFacts, status: SpeculativeServiceStatus) -> Aspect:
    step, verdict = cycle.step, cycle.verdict
    if step.reason in {ClusterReason.WRITE_REFUSED, ClusterReason.REVERTED_TWICE}:
        return Aspect(PROGRESSING, False, str(step.reason), step.message)
    if step.rollout is not None and step.busy:
        return Aspect(PROGRESSING, True, str(step.reason or ClusterReason.ROLLING), step.message)
    if step.rollout is not None and step.rollout.phase is RolloutPhase.CONFIRMING:
        how = "no pod runs, so that nothing is measured"
        if cycle.workload is not None and cycle.workload.desired:
            how = "all pods run it, and it is being measured"
        return Aspect(PROGRESSING, False, str(ClusterReason.ROLL_FINISHED), f"{step.rollout.change}: {how}")
    if verdict.action == RECOMMEND:
        return Aspect(
            PROGRESSING,
            False,
            str(verdict.reason),
            f"{spoken(verdict.arm)} should run ({verdict.reason}) and mode Recommend changes nothing: set updatePolicy.mode to "
            f"RollingUpdate, or change the target yourself{_follow_text(cycle)}",
        )
    running = cycle.running.arm if cycle.running is not None else verdict.arm
    if verdict.action == HOLD and verdict.arm is not None and verdict.arm != running:
        return Aspect(PROGRESSING, False, str(verdict.reason), verdict.message)
    tail = _last_roll(status.history[0]) if status.history else "no roll so far"
    return Aspect(PROGRESSING, False, str(ClusterReason.STABLE), f"{tail}{_follow_text(cycle)}")


_LONG_START_S = 600.0


def _follow_text(cycle: CycleFacts) -> str:
    """What each choice of updatePolicy.follow would have been worth, as the end of a sentence; empty if the past does not say."""
    decision, case = cycle.verdict.decision, cycle.case
    if decision is None or decision.followed is None or case is None:
        return ""
    text, startup_s = f"; {followed_text(decision.followed)}", case.context.startup_s
    if startup_s is None or startup_s <= _LONG_START_S or decision.policy.follow is Follow.CHANGES:
        return text
    return f"{text}; a start takes {duration_text(startup_s)}, so updatePolicy.follow: Changes is the better choice"


def _last_roll(last: HistoryEntry) -> str:
    """When, what and why, and how it ended; an age would change the message every cycle."""
    change = last.change
    why = f" ({last.reason})" if last.reason else ""
    how = (last.message or "").removeprefix(f"{change}: ").removeprefix(f"{change} ")
    result = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", str(last.result)).lower()
    ended = how if how.startswith(result) else f"{result}: {how}"
    return f"last roll, ended {last.time:%Y-%m-%d %H:%M} UTC: {change}{why}, {ended}"


def model_status(cycle: CycleFacts, memory: MemoryStatus) -> ModelStatus | None:
    """The account in figures; None before its first window, and if no profile predicts."""
    spec, entry, account = cycle.service.spec, cycle.calibrated.entry, memory.account
    if account is None or entry is None or entry.profile is None or account.profile != entry.name:
        return None
    windows, confidence = recent(account, cycle.now), spec.update_policy.confidence_percent / 100
    ratio = latency_ratio(windows, confidence)
    if ratio is None:
        return None
    arms = {arm.name: arm for arm in (*spec.candidates.arms(), *(fit.arm for fit in entry.profile.arms))}
    arm = arms.get(account.arm)
    positions = survival(entry.profile, arm, seen_of(memory, arms)) if arm is not None else ()
    (lower, upper), measured = predicted_bounds(windows), measured_speedup(windows, confidence)
    speedup, cause = cycle.verdict.speedup, first_cause(entry.profile, arm, cycle.verdict, cycle.live)
    return ModelStatus(
        profile=account.profile,
        arm=account.arm,
        since=windows[0].time - timedelta(seconds=windows[0].window_seconds),
        windows=len(windows),
        requests=sum(one.requests for one in windows),
        predicted_lower=lower or None,
        predicted_upper=upper,
        ttft_ratio=typical([one.ttft_ratio for one in windows]),
        tpot_ratio=typical([one.tpot_ratio for one in windows]),
        cause=cause and cause.cause,
        cause_evidence=cause and cause.evidence[:1024],
        remedy=cause and cause.remedy[:1024],
        survival=tuple(
            PositionSurvival(position=position, live_accept=live, calibrated_accept=calibrated)
            for position, live, calibrated in positions
        ),
        **bounded("latency_ratio", ratio),
        **bounded("measured_speedup", measured),
        **bounded("speedup", speedup),
    )


def first_cause(profile: Profile, arm: Arm | None, verdict: Verdict, live: Live | None) -> Finding | None:
    """First cause why the arm in place does not pay significantly; None if the arm pays, or no cause is known.

    The operator does not read the KV pool and inter-token latency, which `breakeven doctor` reads.
    """
    figures = live.figures if live is not None and live.usable else None
    if arm is None or arm.k == 0 or figures is None or verdict.decision is None or pays_now(verdict):
        return None
    snapshot = ModelSnapshot(
        figures.replicas, figures, speculating=True, waiting_min=1.0 if figures.saturated else 0.0
    )
    try:
        return next(iter(diagnose(snapshot, profile, arm).findings), None)
    except BreakevenError:
        # The profile does not tell about these lengths; the decision says so.
        return None


def _calibrated(cycle: CycleFacts) -> Comparison | None:
    """Without live figures: the running arm with its calibrated acceptance, which still has a break-even."""
    profile, running = cycle.calibrated.profile, cycle.running
    if profile is None or running is None or running.arm is None or running.arm.k == 0:
        return None
    try:
        return profile.compare(running.arm, NO_SPECULATION, rps=0.0)
    except BreakevenError:
        return None


def _running_arm(cycle: CycleFacts, current: Current | None) -> str:
    """The column ARM: what serves, and what the target is on its way to while no pod of that serves yet."""
    if current is None or current.arm is None:
        return "?"
    pods = cycle.workload.pods if cycle.workload is not None else ()
    # Of an older template too: those are what serves until the first new one is Ready.
    ready = [pod for pod in pods if pod.ready and not pod.terminating]
    if current.source is ArmSource.COMMAND_LINE:
        return current.arm
    arms = pods_by_arm(ready, cycle.service.spec.candidates)
    there = sorted(str(arm) for arm in arms if arm is not None)
    return current.arm if current.arm in there or not there else f"{', '.join(there)} -> {current.arm}"[:128]


def columns_of(cycle: CycleFacts, current: Current | None) -> ServiceDisplay:
    """The columns of a service, whose arm is the current one."""
    verdict, comparison = cycle.verdict, cycle.verdict.against_none
    running = cycle.running.arm if cycle.running is not None else None
    subject = verdict.decision.subject if verdict.decision is not None else None
    other = subject if comparison is not None and subject != running else None
    figures = cycle.live.figures if cycle.live is not None else None
    reason = str(verdict.reason)
    # A reader of this column alone must see that nothing is measured.
    marks = {Basis.PAST: PAST_MARK, Basis.FORMER: FORMER_MARK}
    marked = marks.get(verdict.basis, "") if comparison is not None else ""
    run = cycle.calibrated.run
    if run is not None and run.status.display is not None and run.status.display.points:
        progress = f"{run.status.display.points} points"
        if run.status.display.left:
            progress += f", {run.status.display.left} left"
        measuring = verdict.reason is ClusterReason.CALIBRATION_RUNNING
        reason += f" {progress}" if measuring else f"; calibrating {progress}"
    return ServiceDisplay(
        arm=_running_arm(cycle, current),
        pays={True: "Yes", False: "No", None: "?"}[pays_now(verdict)] + marked,
        speedup=speedup(comparison, overruling(verdict)),
        break_even=break_even(comparison or _calibrated(cycle), of=other),
        load=column(figures.rps, "rps") if figures is not None else "-",
        recommended=verdict.arm.name
        if verdict.arm is not None and cycle.calibrated.entry is not None
        else "-",
        reason=reason[:128],
        mode=_mode(cycle.service.spec),
    )


def _mode(spec: SpeculativeServiceSpec) -> str:
    """The column MODE: what the operator may do, and what a person has set beside it."""
    policy = spec.update_policy
    marks = {"pinned": policy.pinned_arm is not None, "paused": spec.paused}
    return ", ".join([str(policy.mode), *(word for word, holds in marks.items() if holds)])


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
    )


def _cut(text: str | None, longest: int) -> str | None:
    """A text of the target as a status has room for it; `refuse_target` names a text that is too long."""
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


def metrics_aspect(live: Live) -> Aspect:
    """Whether there are figures to decide on; that clients give up is said here too, because no decision waits for it."""
    if not live.usable or live.figures is None:
        return Aspect(METRICS, live.usable, str(live.reason), live.message)
    reason = ClusterReason.CLIENTS_GIVE_UP if live.figures.given_up > 0.0 else live.reason
    notes = (live.message, _arrivals_note(live.figures), live.past_problem)
    return Aspect(METRICS, True, str(reason), "; ".join(filter(None, notes)))


def _arrivals_note(seen: Load) -> str:
    if seen.dispersion is None:
        return f"arrivals are taken for Poisson's, because their dispersion is unknown: {seen.dispersion_problem}"
    if seen.dispersion < BURSTY:
        return ""
    return f"predictions hold for arrivals of dispersion {column(seen.dispersion)} in spans of {column(seen.dispersion_span_s)} s"
