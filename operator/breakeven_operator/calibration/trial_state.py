"""How far one arm's Job is or why it failed, from the Job, its pod, its events and the engine's last log lines.

Logs are not read (that would need a right of its own): containers have `terminationMessagePolicy:
FallbackToLogsOnError`, so the last lines of one that failed stand in the pod's status.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any

from breakeven.phrases import counted
from breakeven.printable import one_line
from breakeven.reasons import Reason
from breakeven.tiers import Schedule
from breakeven_operator.calibration import schedule_making
from breakeven_operator.calibration.jobs import DRIVER, arm_label, job_name
from breakeven_operator.calibration.podcopy import ENGINE
from breakeven_operator.calibration.sending import own_prompts
from breakeven_operator.calibration.transition import RunView, Transition, measured_of, usable_points
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import ARM_LABEL, JOBS
from breakeven_operator.ports import Manifest
from breakeven_operator.resources.base import AGAIN
from breakeven_operator.resources.calibrationrun import (
    ArmPhase,
    ArmStatus,
    CalibrationPlan,
    CalibrationRunStatus,
)
from breakeven_operator.workloads import object_facts as podstatus
from breakeven_operator.workloads.fingerprint import registry_digest
from breakeven_operator.workloads.object_facts import (
    condition,
    deletion,
    is_finished,
    is_lost,
    is_overdue,
    not_started,
    owner_uid,
    parse_time,
)

_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemory|No available memory for the cache blocks|free memory on device"
    r"|KV cache is needed, which is larger|OOM when allocating",
    re.IGNORECASE,
)
# An engine that refuses its configuration raises an exception with words of its own, or argparse does.
_RAISED = re.compile(
    r"\b\w*(?:ValueError|ValidationError|NotImplementedError|AssertionError|ImportError|ModuleNotFoundError"
    r"|RepositoryNotFoundError|GatedRepoError): \S|\bTypeError: .*(?:unexpected keyword|required .*argument)"
    r"|\berror: (?:argument |unrecognized arguments|the following arguments)"
)
# Or its sentence says so, whatever exception it stands in.
_REFUSES = re.compile(
    r"validation errors? for |speculative[_ -]config|num_speculative_tokens|speculative (?:decoding|method|model)"
    r"|not (?:yet |currently )?supported|does not (?:yet )?support|unsupported|unexpected keyword"
    r"|is not a valid model identifier|does not appear to have a file named",
    re.IGNORECASE,
)
_NO_ERROR = re.compile(r"\b(?:DEBUG|INFO|WARNING)\b")
# These are a machine's or a network's words, whatever else stands beside them.
_BROKE = re.compile(
    r"CUDA error|HIP error|CUDA driver|NCCL error|ncclUnhandled|ncclSystem|ncclInternal|cuBLAS|CUBLAS_STATUS|cuDNN error"
    r"|illegal memory access|device-side assert|Segmentation fault|core dumped|Bus error|Xid |uncorrectable ECC"
    r"|Connection ?(?:Error|refused|reset|timed out)|timed out|TimeoutError|Temporary failure in name resolution"
    r"|No space left on device|Input/output error|Too Many Requests|cannot open shared object",
    re.IGNORECASE,
)
# Lines: pydantic says in the second one what is wrong.
_WORDS_OF_A_REFUSAL = 3
# Exit codes from here on are signals.
_SIGNALS = 128
# The prefix that logging puts before the driver's own words; the status has its own times.
_LOG_TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ", re.MULTILINE)
_WITHHELD = "its last lines are withheld, since its prompts are a user's own (kubectl logs has them)"
_LAST_LINES = 6
_LONGEST = 700
WORKLOAD_UNREADABLE = 5
"""Exit code of a driver whose file of prompts is not there, or is none."""
OUT_OF_TIME = 6
"""Exit code of a driver whose time is up before it has points enough."""
_DEADLINE = "DeadlineExceeded"
# A pod ends within seconds of its driver, and its engine within the grace period of the copy.
_LINGERS = timedelta(seconds=120)
_OF_DRIVERS = {
    WORKLOAD_UNREADABLE: ClusterReason.INPUT_REFUSED,
    OUT_OF_TIME: ClusterReason.BUDGET_EXHAUSTED,
}


class TrialStage(Enum):
    """How far an arm's trial is."""

    ABSENT = auto()  # there is no Job
    QUEUED = auto()  # no pod, or a pod without a node
    STARTING = auto()  # the engine loads
    MEASURING = auto()  # the driver runs
    DONE = auto()  # the Job completed
    BROKEN = auto()  # it will not complete


UNDER_WAY = frozenset({TrialStage.QUEUED, TrialStage.STARTING, TrialStage.MEASURING})


@dataclass(frozen=True, slots=True)
class TrialState:
    """State of one arm's Job.

    Attributes:
        reason: why it is broken, or why it waits; None if there is nothing to say.
        message: a sentence for `reason`, with the engine's last log lines where these show the cause.
        pod: the newest pod.
        scheduled: when a pod of it first got its place, and with it its GPUs.
        ready: when the engine first answered.
        ended: when the last pod ended; None while one runs.
        held_s: seconds that pods seen now have held a place (times GPUs per pod is the caller's).
        images: digests of the engine's image that its pods run, as far as nodes show digests of a registry.
    """

    stage: TrialStage
    reason: ClusterReason | None = None
    message: str = ""
    pod: str | None = None
    scheduled: datetime | None = None
    ready: datetime | None = None
    ended: datetime | None = None
    held_s: float = 0.0
    images: frozenset[str] = frozenset()


def trial_of(transition: Transition, plan: CalibrationPlan, arm: str) -> TrialState:
    """How far an arm's trial is, by the Jobs and pods of its run."""
    view, now, name = transition.view, transition.now, job_name(transition.run.metadata.name, arm)
    job = next((job for job in view.jobs if job["metadata"]["name"] == name), None)
    if job is None:
        return TrialState(TrialStage.ABSENT)
    # An earlier Job of the same name may still be on its way out, with its pods.
    mine = sorted(
        (
            pod
            for pod in view.pods
            if (pod["metadata"].get("labels") or {}).get(ARM_LABEL) == arm_label(arm)
            and owner_uid(pod) in {"", job["metadata"].get("uid")}
        ),
        key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")),
    )
    newest = mine[-1] if mine else None
    found = _stage(view, job, newest, plan, now)
    if newest is not None and found.stage in UNDER_WAY and is_gone(newest, view.lost_nodes, now):
        found = _gone(newest)
    return replace(
        found,
        pod=newest["metadata"]["name"] if newest else None,
        scheduled=min((time for pod in mine if (time := podstatus.scheduled(pod))), default=None),
        ready=min((time for pod in mine if (time := podstatus.started(pod, DRIVER))), default=None),
        ended=podstatus.ended_at(newest) if newest else None,
        held_s=sum(podstatus.held_s(pod, now) for pod in mine),
        images=frozenset(
            digest
            for pod in mine
            if (digest := registry_digest(str(podstatus.container(pod, ENGINE).get("imageID", ""))))
        ),
    )


def _about(event: Manifest, job: Manifest) -> bool:
    subject = event.get("regarding") or event.get("involvedObject") or {}
    return subject.get("kind") == JOBS.kind and subject.get("uid") == job["metadata"].get("uid")


def _stage(
    view: RunView, job: Manifest, pod: Manifest | None, plan: CalibrationPlan, now: datetime
) -> TrialState:

    warning = view.warnings.get(pod["metadata"].get("uid", ""), "") if pod is not None else ""
    conditions = {
        c["type"]: c for c in (job.get("status") or {}).get("conditions") or [] if c.get("status") == "True"
    }
    if "Complete" in conditions or "SuccessCriteriaMet" in conditions:
        return TrialState(TrialStage.DONE)
    failed = conditions.get("Failed") or conditions.get("FailureTarget")
    if pod is None:
        events = [event for event in view.events if _about(event, job)]
        return _job_failure(failed) if failed is not None else _without_pod(job, events, plan, now)
    trouble = _evicted(pod) or _engine_death(pod, plan) or _driver_death(pod)
    if trouble is None and _is_measured(pod, now):
        return TrialState(TrialStage.DONE, None, outlives(pod, now) or "")
    stuck = _not_started(pod, warning, plan, now)
    if stuck is not None and stuck.stage is TrialStage.BROKEN:
        trouble = trouble or stuck
    # At the deadline Kubernetes stops the driver, whose own words say no more than that.
    of_driver = trouble is None or trouble.reason is ClusterReason.DRIVER_FAILED
    if failed is not None and (trouble is None or (of_driver and failed.get("reason") == _DEADLINE)):
        return _job_failure(failed)
    # The pod knows better than the Job why it failed, and knows it earlier.
    return trouble or stuck or _living(pod, warning, plan, now)


def _is_measured(pod: Manifest, now: datetime) -> bool:
    """Whether the driver came to its end, and its pod has ended or does not end by itself."""
    driver = (podstatus.container(pod, DRIVER).get("state") or {}).get("terminated") or {}
    return driver.get("exitCode") == 0 and (is_finished(pod) or outlives(pod, now) is not None)


def outlives(pod: Manifest, now: datetime) -> str | None:
    """The containers that go on long after the pod's driver has ended, as a clause; None if none does.

    An injected container keeps pod and Job running, and with them the engine, until the Job's deadline.
    """
    driver = (podstatus.container(pod, DRIVER).get("state") or {}).get("terminated") or {}
    ended = parse_time(driver.get("finishedAt"))
    if ended is None or is_finished(pod) or now - ended <= _LINGERS:
        return None
    running = (one for one in podstatus.containers(pod) if "running" in (one.get("state") or {}))
    names = [str(one.get("name")) for one in running if one.get("name") != ENGINE]
    return f"{', '.join(names) or 'its pod'} went on after the driver had ended"


def is_gone(pod: Manifest, lost_nodes: Collection[str], now: datetime) -> bool:
    """Whether a pod is deleted, and nobody is there to end it: its Job would wait for ever, and it holds no GPU."""
    deleted = deletion(pod) is not None or (pod.get("status") or {}).get("phase") == "Unknown"
    return deleted and not is_finished(pod) and is_lost(pod, lost_nodes, now)


def _broken(reason: ClusterReason, message: str) -> TrialState:
    return TrialState(TrialStage.BROKEN, reason, _sentence(message))


def _gone(pod: Manifest) -> TrialState:
    node = (pod.get("spec") or {}).get("nodeName") or "its node"
    message = f"pod {pod['metadata']['name']} is lost with {node} and does not go"
    return _broken(ClusterReason.POD_DISRUPTED, message)


def _job_failure(failed: Mapping[str, Any]) -> TrialState:
    if failed.get("reason") == _DEADLINE:
        return _broken(ClusterReason.BUDGET_EXHAUSTED, "the Job reached its activeDeadlineSeconds")
    return _broken(ClusterReason.DRIVER_FAILED, str(failed.get("message") or "the Job failed"))


def _without_pod(
    job: Manifest, events: Iterable[Manifest], plan: CalibrationPlan, now: datetime
) -> TrialState:
    """A Job whose pod the API server refuses says so only in its events."""
    created = parse_time(job["metadata"].get("creationTimestamp")) or now
    late = (now - created).total_seconds() > plan.pending_deadline_seconds
    if (job.get("spec") or {}).get("suspend"):
        stage = TrialStage.BROKEN if late else TrialStage.QUEUED
        return TrialState(
            stage, ClusterReason.UNSCHEDULABLE, "the Job is suspended: its queue has not admitted it"
        )
    refusals = [
        str(e.get("note") or e.get("message") or "") for e in events if e.get("reason") == "FailedCreate"
    ]
    if not refusals:
        if late:
            return _broken(ClusterReason.UNSCHEDULABLE, "the Job got no pod")
        return TrialState(TrialStage.QUEUED)
    note = refusals[-1]
    reason = ClusterReason.QUOTA_EXCEEDED if "exceeded quota" in note else ClusterReason.ADMISSION_DENIED
    # Quota may become free within the deadline; a policy's refusal does not go away by waiting.
    final = late or reason is ClusterReason.ADMISSION_DENIED
    return TrialState(TrialStage.BROKEN if final else TrialStage.QUEUED, reason, _sentence(note))


def _not_started(pod: Manifest, warning: str, plan: CalibrationPlan, now: datetime) -> TrialState | None:
    """A container that Kubernetes cannot start: reported at once, and waited for as long as that may help.

    Such a pod holds its GPUs idle, so it gets no longer than a pod that waits for them.
    """
    trouble = not_started(pod, warning)
    if trouble is None:
        return None
    waited = trouble.waited(None, now)
    pending_s = plan.pending_deadline_seconds
    over = waited.total_seconds() > pending_s or trouble.is_over(waited, pending_s)
    stage = TrialStage.BROKEN if over else TrialStage.STARTING
    return TrialState(stage, trouble.reason, _sentence(trouble.message))


def _evicted(pod: Manifest) -> TrialState | None:
    """The Job controller replaces it; nothing is broken."""
    if condition(pod, "DisruptionTarget").get("status") != "True":
        return None
    message = str((pod.get("status") or {}).get("message") or "the pod was evicted or preempted")
    return TrialState(TrialStage.QUEUED, ClusterReason.POD_DISRUPTED, _sentence(message))


def _engine_death(pod: Manifest, plan: CalibrationPlan) -> TrialState | None:
    """The engine ended before the driver had; afterwards Kubernetes ends it, and that is no death."""
    driver = (podstatus.container(pod, DRIVER).get("state") or {}).get("terminated") or {}
    crash = podstatus.ended(podstatus.container(pod, ENGINE), before=parse_time(driver.get("finishedAt")))
    if crash is None or driver.get("exitCode") == 0:
        return None
    started, finished = parse_time(crash.get("startedAt")), parse_time(crash.get("finishedAt"))
    killed = crash.get("exitCode") in {137, 143} and crash.get("reason") != "OOMKilled"
    if (
        killed
        and started
        and finished
        and finished - started >= timedelta(seconds=plan.startup_deadline_seconds)
    ):
        # Restarted because it did not answer in time: it was killed, it did not crash.
        return _startup_exceeded(plan)
    if podstatus.started(pod, DRIVER) is not None:
        # A user's own prompts may stand in the last words. The engine had answered before: whatever its last lines are about, its configuration was not refused.
        shown = (
            _WITHHELD if own_prompts(plan) else last_lines(str(crash.get("message") or "")) or "no last words"
        )
        message = f"the engine ended while it was measured, with exit code {crash.get('exitCode')}: {shown}"
        return _broken(ClusterReason.ENGINE_CRASHED, message)
    return _classify(crash)


def _driver_death(pod: Manifest) -> TrialState | None:
    ended = (podstatus.container(pod, DRIVER).get("state") or {}).get("terminated")
    if ended is not None and ended.get("exitCode") != 0:
        words = _LOG_TIME.sub("", str(ended.get("message") or ""))
        said = last_lines(words) or f"the driver ended with {ended.get('exitCode')}"
        reason = _OF_DRIVERS.get(int(ended.get("exitCode") or 0), ClusterReason.DRIVER_FAILED)
        return _broken(reason, said)
    status = pod.get("status") or {}
    if ended is None and status.get("phase") == "Failed":
        return _broken(ClusterReason.DRIVER_FAILED, str(status.get("message") or "the pod failed"))
    return None


def _living(pod: Manifest, warning: str, plan: CalibrationPlan, now: datetime) -> TrialState:
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") != "True":
        created = parse_time(pod["metadata"].get("creationTimestamp")) or now
        said = str(scheduled.get("message") or warning or "the pod has no node yet")
        late = (now - created).total_seconds() > plan.pending_deadline_seconds
        stage = TrialStage.BROKEN if late else TrialStage.QUEUED
        return TrialState(stage, ClusterReason.UNSCHEDULABLE, _sentence(said))
    if podstatus.started(pod, DRIVER) is not None:
        return TrialState(TrialStage.MEASURING)
    running = parse_time(
        ((podstatus.container(pod, ENGINE).get("state") or {}).get("running") or {}).get("startedAt")
    )
    if running is not None and (now - running).total_seconds() > plan.startup_deadline_seconds + 30:
        return _startup_exceeded(plan)
    return TrialState(TrialStage.STARTING)


def _startup_exceeded(plan: CalibrationPlan) -> TrialState:
    message = f"the engine did not answer within {plan.startup_deadline_seconds} s"
    return _broken(ClusterReason.STARTUP_DEADLINE_EXCEEDED, message)


def _classify(crash: Mapping[str, Any]) -> TrialState:
    """Name an engine's death by its exit and its last lines."""
    said = str(crash.get("message") or "")
    shown = last_lines(said) or f"the engine ended with exit code {crash.get('exitCode')}"
    if crash.get("reason") == "OOMKilled":
        message = f"the engine was killed for its memory use: {shown}"
        return _broken(ClusterReason.ENGINE_OUT_OF_MEMORY, message)
    if _OUT_OF_MEMORY.search(said):
        return _broken(ClusterReason.ENGINE_OUT_OF_MEMORY, shown)
    if int(crash.get("exitCode") or 0) < _SIGNALS and not _BROKE.search(said) and (own := _refusal(said)):
        return _broken(ClusterReason.ENGINE_CONFIG_REFUSED, own)
    return _broken(ClusterReason.ENGINE_CRASHED, shown)


def _refusal(said: str) -> str | None:
    """An engine's own words that it refuses its configuration; None if its last lines have none.

    The processes that waited for the engine add pages of their own after them.
    """
    lines = [line for line in said.splitlines() if not _NO_ERROR.search(line)]
    for words in (_RAISED, _REFUSES):
        found = [at for at, line in enumerate(lines) if words.search(line)]
        if found:
            return last_lines("\n".join(lines[found[-1] : found[-1] + _WORDS_OF_A_REFUSAL]))
    return None


def last_lines(text: str) -> str:
    """The last lines of a log that say something, on one line, shortened from the front."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" ^~\t")]
    shown = " | ".join(lines[-_LAST_LINES:])
    return shown if len(shown) <= _LONGEST else f"...{shown[-_LONGEST:]}"


def _sentence(text: str) -> str:
    return one_line(text)[: _LONGEST + 200]


def place_is_held(transition: Transition, beside: Collection[str] = ()) -> bool:
    """Whether a pod of the run has its GPUs still: not once it has ended, nor when its node is lost.

    Pods of arms `beside` which the next one is measured do not count.
    """
    view, theirs = transition.view, set(map(arm_label, beside))
    return any(
        not is_finished(pod)
        and not is_gone(pod, view.lost_nodes, transition.now)
        and (pod["metadata"].get("labels") or {}).get(ARM_LABEL) not in theirs
        for pod in view.pods
    )


def kept_words(pods: Iterable[Manifest], now: datetime) -> str:
    """Pods that were deleted and keep their GPUs because of a finalizer, as a clause; empty if there are none."""
    kept = [
        f"pod {pod['metadata']['name']} was deleted and is kept by {', '.join(pod['metadata']['finalizers'])}"
        for pod in pods
        if pod["metadata"].get("finalizers") and is_overdue(pod, now) and not is_finished(pod)
    ]
    return f"{'; '.join(kept)}: it may hold its GPUs" if kept else ""


# Jobs that vanish (deleted by hand, by TTL while the operator was away) are made again this often.
_MAX_ATTEMPTS = 3
# An engine that dies while it is measured is tried once more: its points so far are kept.
_MAX_CRASHES = 1


def word_of(arm: ArmStatus, otherwise: ClusterReason) -> ClusterReason:
    """The reason word of an arm; another one if it has none, or one of another version."""
    return ClusterReason.named(arm.reason) or otherwise


def over(
    arm: ArmStatus, phase: ArmPhase, reason: Reason | ClusterReason, message: str, ended: datetime
) -> ArmStatus:
    """The status of an arm of which nothing more is measured."""
    return arm.replace(phase=phase, reason=str(reason), message=message[:1024], finished_time=ended)


HELD_BACK = "no place beside the others: it waits for them"
"""Message of an arm that gave its Job back while others beside it go on."""


def held_back(arm: ArmStatus) -> ArmStatus:
    """The status of an arm that comes after those beside it."""
    why = {"reason": str(ClusterReason.UNSCHEDULABLE), "message": HELD_BACK}
    return arm.replace(phase=ArmPhase.WAITING, job=None, attempts=0, **why)


def is_held_back(arm: ArmStatus) -> bool:
    """Whether an arm waits for the end of those beside it."""
    return arm.message == HELD_BACK


def seen(arm: ArmStatus, trial: TrialState, gpus: int) -> ArmStatus:
    """Pod, times and GPU-seconds as far as they are known; each pod holds `gpus`."""
    return arm.replace(
        pod=trial.pod or arm.pod,
        started_time=arm.started_time or trial.scheduled,
        ready_time=arm.ready_time or trial.ready,
        # Pods that are gone are no longer seen; what they used stays used.
        gpu_seconds_used=max(
            arm.gpu_seconds_used or 0.0,
            (arm.earlier_gpu_seconds or 0.0) + trial.held_s * gpus,
        ),
    )


def seen_beside(
    arm: ArmStatus, trial: TrialState, plan: CalibrationPlan, transition: Transition
) -> tuple[ArmStatus, TrialState]:
    """As `seen` of an arm beside others, also if its status does not name its Job."""
    arm = seen(arm, trial, plan.gpus_per_pod)
    if trial.stage not in UNDER_WAY or arm.job is not None:
        return arm, trial
    if is_held_back(arm):
        # The operator died before it took the Job away.
        return arm, replace(trial, stage=TrialStage.ABSENT)
    # The API server refused another Job, and the announcement of this one was taken back with it.
    return arm.replace(job=job_name(transition.run.metadata.name, arm.arm), attempts=1), trial


def followed(arm: ArmStatus, trial: TrialState, status: CalibrationRunStatus, now: datetime) -> ArmStatus:
    """The status of an arm after a look at its Job."""
    if trial.stage is TrialStage.DONE:
        return _measured(arm, trial, status, now)
    if trial.stage is TrialStage.BROKEN:
        if trial.reason is ClusterReason.BUDGET_EXHAUSTED:
            return _measured(arm, trial, status, now)
        reason = trial.reason or ClusterReason.DRIVER_FAILED
        return over(arm, ArmPhase.FAILED, reason, trial.message, trial.ended or now)
    if trial.stage is TrialStage.ABSENT:
        if arm.attempts >= _MAX_ATTEMPTS:
            message = f"its Job disappeared {arm.attempts} times"
            return over(arm, ArmPhase.FAILED, ClusterReason.DRIVER_FAILED, message, now)
        return arm
    phase = ArmPhase.MEASURING if trial.stage is TrialStage.MEASURING else ArmPhase.STARTING
    reason_word = str(trial.reason) if trial.reason is not None else None
    return arm.replace(phase=phase, reason=reason_word, message=trial.message[:1024] or None)


def worth_another_start(arm: ArmStatus, trial: TrialState) -> bool:
    """Whether the arm's Job is worth another start while the budget lasts.

    It is if the pod is gone with its node. It also is if the engine died for the first time, after it had answered.
    """
    if trial.stage is not TrialStage.BROKEN:
        return False
    if trial.reason is ClusterReason.POD_DISRUPTED:
        return arm.attempts < _MAX_ATTEMPTS
    crashed = trial.reason is ClusterReason.ENGINE_CRASHED and trial.ready is not None
    return crashed and arm.attempts <= _MAX_CRASHES


def stopped(arm: ArmStatus, status: CalibrationRunStatus, message: str, now: datetime) -> ArmStatus:
    """The status of an arm when the budget is used up: its measured points are kept."""
    if arm.arm.endswith(AGAIN) and arm.job is None:
        return over(arm, ArmPhase.SKIPPED, ClusterReason.ARM_SKIPPED, message, now)
    judged = _judges(arm, status) and bool(status.answers)
    enough = judged or usable_points(status.points_of(arm.arm))
    phase = ArmPhase.DONE if enough else ArmPhase.FAILED
    return over(arm, phase, ClusterReason.BUDGET_EXHAUSTED, message, now)


def _measured(arm: ArmStatus, trial: TrialState, status: CalibrationRunStatus, now: datetime) -> ArmStatus:
    """The arm's Job came to its end: the arm is done if it left a usable point."""
    points, ended = status.points_of(arm.arm), trial.ended or now
    if _judges(arm, status):
        return _judged(arm, trial, status, ended)
    if arm.schedule is not None:
        deaf = schedule_making.ignored(measured_of(points), Schedule.parse(arm.schedule, arm.arm))
        if deaf is not None:
            return over(arm, ArmPhase.FAILED, ClusterReason.SCHEDULE_IGNORED, deaf, ended)
    usable, beside = usable_points(points), f"; {trial.message}" if trial.message else ""
    if usable:
        reason = trial.reason or ClusterReason.ARM_MEASURED
        return over(arm, ArmPhase.DONE, reason, f"{counted(usable, 'usable point')}{beside}", ended)
    reason = trial.reason or ClusterReason.DRIVER_FAILED
    message = f"no usable point{beside}"
    return over(arm, ArmPhase.FAILED, reason, message, ended)


def _judges(arm: ArmStatus, status: CalibrationRunStatus) -> bool:
    return status.plan is not None and arm.arm == status.plan.judge


def _judged(arm: ArmStatus, trial: TrialState, status: CalibrationRunStatus, ended: datetime) -> ArmStatus:
    """The judge's Job came to its end: it is done if it left a word about an arm."""
    if not status.answers:
        reason = trial.reason or ClusterReason.ANSWERS_NOT_JUDGED
        return over(arm, ArmPhase.FAILED, reason, trial.message or "no answers were kept to judge", ended)
    message = ", ".join(f"{one.arm}: {one.word}" for one in status.answers)
    return over(arm, ArmPhase.DONE, ClusterReason.ARM_MEASURED, message, ended)
