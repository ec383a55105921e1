"""Arms that are left or not entered: they crash, fail requests, answer otherwise, or are of another model; suspect profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.phrases import counted, figure
from breakeven.profile import Profile
from breakeven.reasons import Reason
from breakeven_operator.case import Case, LaterReading, ServiceObservation
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.observing.fleet_query import siblings_of
from breakeven_operator.resources.calibrationspec import AnswerCheck
from breakeven_operator.resources.memorystatus import BarredArm, MemoryStatus, Suspicion
from breakeven_operator.resources.targetstatus import Rollout
from breakeven_operator.resources.updatepolicy import Guard
from breakeven_operator.rolls.roll_failures import FailureFinding, find_later
from breakeven_operator.step import ProfileEntry, RolloutContext, RolloutStep
from breakeven_operator.workloads.running_arm import same_value
from breakeven_operator.workloads.target import Refusal
from breakeven_operator.workloads.workload import Workload

_MOST = 8
_ABOUT_ANSWERS = {
    str(reason): reason for reason in (Reason.ANSWERS_AGREE, Reason.ANSWERS_DIFFER, Reason.ANSWERS_BROKEN)
}


def barred(
    memory: MemoryStatus, arm: str, reason: ClusterReason, message: str, profile: str | None, now: datetime
) -> MemoryStatus:
    """The memory with one more arm that is not to be entered; no speculation never is one."""
    if arm in {"", NO_SPECULATION.name}:
        return memory
    others = tuple(one for one in memory.barred if one.arm != arm)
    one = BarredArm(arm=arm, reason=str(reason), message=message[:1024], profile=profile, since_time=now)
    return memory.replace(barred=(one, *others)[:_MOST])


def still_barred(memory: MemoryStatus, profile: str | None) -> MemoryStatus:
    """The memory without arms that were barred under another profile: that one is of another image, model or set of candidates."""
    kept = tuple(one for one in memory.barred if profile is None or one.profile in {None, profile})
    return memory if kept == memory.barred else memory.replace(barred=kept)


def refuse_barred(memory: MemoryStatus, wanted: Arm) -> Refusal | None:
    """Why an arm is not entered; None if it may be.

    An engine that fails requests because it speculates does so with every drafter and draft length.
    """
    if wanted == NO_SPECULATION:
        return None
    for one in memory.barred:
        if one.arm == wanted.name or one.reason == ClusterReason.ROLL_FAILS_REQUESTS:
            return Refusal(
                ClusterReason.named(one.reason) or ClusterReason.ARM_CRASHES,
                f"{one.arm} was left at {one.since_time:%Y-%m-%d %H:%M} UTC: {one.message}; it is not entered again until a new "
                "profile is in force, or the annotation breakeven.dev/resume of the SpeculativeService gets a new value",
            )
    return None


def refuse_answers(check: AnswerCheck, profile: Profile | None, wanted: Arm) -> Refusal | None:
    """Why an arm is not entered for its answers; None if it may be.

    Absence of evidence is not agreement: with Require an arm whose answers were not compared is not entered either.
    """
    if check is not AnswerCheck.REQUIRE or wanted == NO_SPECULATION or profile is None:
        return None
    fit = profile.fit_of(wanted)
    found = fit.answers if fit is not None else None
    word = _ABOUT_ANSWERS.get(found or "", Reason.ANSWERS_UNDECIDED)
    if word is Reason.ANSWERS_AGREE:
        return None
    said = (
        word.meaning
        if found is not None
        else "the profile in force says nothing about the answers of this arm"
    )
    return Refusal(
        word,
        f"calibration.answers.check is Require, and {said[0].lower()}{said[1:].rstrip('.')}; a new calibration compares them again",
    )


def exceeded(guards: Sequence[Guard], values: Mapping[str, float]) -> Refusal | None:
    """The first guard whose value is above its bound; None if none is known to be. A missing value says nothing."""
    for one in guards:
        value = values.get(one.query)
        if value is not None and value > one.max:
            said = f"{one.name}: {figure(value)} is above its max of {figure(one.max)}"
            return Refusal(ClusterReason.GUARD_EXCEEDED, said)
    return None


def suspected(
    memory: MemoryStatus, profile_name: str, reason: ClusterReason, message: str, now: datetime
) -> MemoryStatus:
    """The memory with a profile under suspicion; a profile already suspected keeps its first reason and time."""
    if suspicion_of(memory, profile_name) is not None:
        return memory
    suspicion = Suspicion(profile=profile_name, reason=str(reason), message=message[:1024], since_time=now)
    return memory.replace(suspicion=suspicion)


def suspicion_of(memory: MemoryStatus, profile_name: str | None) -> Suspicion | None:
    """Why this profile is not taken at its word; None if it is."""
    suspicion = memory.suspicion
    return suspicion if suspicion is not None and suspicion.profile == profile_name else None


BARRING = frozenset(
    {ClusterReason.ARM_CRASHES, ClusterReason.ROLL_FAILS_REQUESTS, ClusterReason.GUARD_EXCEEDED}
)
"""Reasons for which an arm is left at once and barred."""
_WRONG = frozenset({Reason.ANSWERS_DIFFER, Reason.ANSWERS_BROKEN})
LEAVING: frozenset[Reason | ClusterReason] = BARRING | _WRONG | {ClusterReason.FINGERPRINT_CHANGED}
"""Reasons for which an arm is left at once."""
_GUARDED_S = 86400.0
_FEWEST = 3
_RECENT_S = 3600.0
# Crashes per hour of a pod; what ends once a month is not worth a roll.
_OFTEN_PER_HOUR = 0.25


def why_leave(case: Case, observation: ServiceObservation) -> Refusal | None:
    """Why the arm in place is left for no speculation; None if nothing shows that it should be.

    An arm that the operator did not choose is not left by it.
    """
    arm, context, breach = case.running.arm, case.context, case.breach
    if arm is None or arm.k == 0 or case.running.source != "Annotation":
        return None
    if same_value(context.memory.written_value, context.workload.value):
        outlived = _outlived(context.workload, arm.name, observation.profiles)
        if outlived is not None:
            return Refusal(ClusterReason.FINGERPRINT_CHANGED, outlived)
    crash = crashing(context.workload, context.now)
    if crash is not None:
        return Refusal(ClusterReason.ARM_CRASHES, crash)
    rolled = context.memory.last_switch_time
    if breach is not None and rolled is not None and (context.now - rolled).total_seconds() <= _GUARDED_S:
        return breach
    before = context.memory.requests_before
    found = _since(context, observation.later) if before is not None and before.arm == arm.name else None
    if found is not None and found.fails(last_look=False):
        return Refusal(ClusterReason.ROLL_FAILS_REQUESTS, found.said)
    # Answers that the profile says are wrong, unless that is accepted.
    refusal = refuse_answers(case.spec.answer_check, case.profile, arm)
    return refusal if refusal is not None and refusal.reason in _WRONG else None


def why_not_back(rollout: Rollout | None, workload: Workload, profiles: Sequence[ProfileEntry]) -> str | None:
    """Why a change under way may not be undone: the arm before belongs to another template; None if it may."""
    if rollout is None or rollout.from_arm is None or same_value(rollout.previous_value, None):
        return None
    return _outlived(workload, rollout.from_arm, profiles)


def _outlived(workload: Workload, arm: str, profiles: Sequence[ProfileEntry]) -> str | None:
    """Why the operator's own value does not belong to the template as it stands now; None if it does, or nobody knows.

    A drafter belongs to a model: under another one it is withdrawn at once. An image or an argument that is new usually keeps it
    running, so that the first crash decides.
    """
    identity, engine = workload.identity, workload.engine
    if identity is None or engine is None:
        return None
    known = [one for one in profiles if arm in one.arms and arm not in one.failed]
    models = {one.model for one in known}
    measured = [one for one in known if one.fingerprint == identity.fingerprint]
    if known and not measured and not models & {None, identity.model}:
        return (
            f"its value was written for model {', '.join(sorted(filter(None, models)))}, and the template asks for "
            f"{identity.model}, on which {arm} was never measured"
        )
    crashed = [pod for pod in workload.pods if pod.coming and pod.crashes and pod.trouble is not None]
    image = engine.container.get("image")
    there = any(one.image in {None, image} for one in measured)
    if workload.serving or not crashed or there:
        return None
    said = crashed[0].trouble.message if crashed[0].trouble is not None else ""
    return (
        f"no pod of the template as it stands serves ({said}), and {arm} was never measured on it (image {image}, model "
        f"{identity.model})"
    )


def acquit(step: RolloutStep, context: RolloutContext, later: LaterReading | None) -> RolloutStep:
    """The step with an arm that may be entered again, because the requests that failed on it fail without it too.

    Clients that begin to send what no arm answers look like an arm that fails.
    """
    before, running = context.memory.requests_before, context.memory.running_arm
    if before is None or running in {None, before.arm} or step.busy:
        return step
    lifted = before.arm, ClusterReason.ROLL_FAILS_REQUESTS
    kept = tuple(one for one in step.memory.barred if (one.arm, one.reason) != lifted)
    found = _since(context, later) if kept != step.memory.barred else None
    if found is None or not found.fails(last_look=False):
        return step
    message = f"requests fail without {before.arm} too, which were answered before it was entered; it may be entered again"
    event = context.event(ClusterReason.ARM_ACQUITTED, message)
    memory = step.memory.replace(barred=kept, requests_before=None)
    return replace(step, memory=memory, events=(*step.events, event))


def _since(context: RolloutContext, later: LaterReading | None) -> FailureFinding | None:
    """Requests of the serving pods against those before the last roll; None if either is not known, or a roll goes on."""
    before, serving = context.memory.requests_before, context.workload.serving
    if before is None or later is None or not serving or context.rollout is not None:
        return None
    owner = NamespacedName(context.workload.ref.namespace, siblings_of(serving[0].name))
    return find_later(before, later.requests.get(owner))


def crashing(workload: Workload, now: datetime) -> str | None:
    """The evidence that the arm's engines crash, as a sentence; None if there is none.

    One pod of several that crashes tells of its node or its GPU, not of the arm.
    """
    pods = [pod for pod in workload.pods if pod.current and not pod.terminating]
    crashed = [pod for pod in pods if pod.crashes and pod.crashed is not None]
    count = sum(pod.crashes for pod in crashed)
    last = max((pod.crashed for pod in crashed if pod.crashed), default=None)
    if last is None or count < _FEWEST or (now - last).total_seconds() > _RECENT_S:
        return None
    if len(crashed) < min(2, len(pods)):
        return None
    hours = sum((now - pod.created).total_seconds() for pod in crashed if pod.created is not None) / 3600.0
    if count < _OFTEN_PER_HOUR * hours:
        return None
    return (
        f"engines of {len(crashed)} of {counted(len(pods), 'pod')} crashed {count} times since they were made, the last time at "
        f"{last:%Y-%m-%d %H:%M:%S} UTC ({crashed[0].name}: kubectl logs --previous)"
    )
