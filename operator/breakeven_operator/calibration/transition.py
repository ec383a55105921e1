"""One cycle of one run: the run as the cycle sees it, its points, how a changed status is written, and how a run ends."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import ValidationError

from breakeven.load_driver.design import of_the_sweep
from breakeven.points.point import COLUMNS, LoadMode, Point
from breakeven.points.table import written
from breakeven.profile import Profile
from breakeven.serving.counted_window import Load
from breakeven_operator.actions import Action, Delete, EmitEvent, WriteStatus
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import JOBS, RUNS, Ref
from breakeven_operator.ports import Manifest
from breakeven_operator.resources.base import BEFORE
from breakeven_operator.resources.calibrationrun import (
    STORED_COLUMNS,
    ArmPhase,
    ArmStatus,
    CalibrationPlan,
    CalibrationRun,
    CalibrationRunStatus,
    RunDisplay,
    RunPhase,
    StoredPoint,
)
from breakeven_operator.resources.meta import Aspect, Condition, merge
from breakeven_operator.settings import Settings
from breakeven_operator.step import ProfileEntry
from breakeven_operator.workloads.fingerprint import Identity
from breakeven_operator.workloads.workload import Workload

OF_DRIVERS = frozenset({"points", "answers", "findings"})
"""Parts of a run's status that the load drivers write, and the operator leaves alone."""


def stored(arm: str, index: int, point: Point, time: datetime | None) -> StoredPoint:
    """A point as a run's status holds it, without the columns that were not measured.

    Raises:
        pydantic.ValidationError: a figure does not fit its field.
    """
    columns = {name: value for name in STORED_COLUMNS if (value := getattr(point, name)) is not None}
    columns |= {name: int(value) for name, value in columns.items() if COLUMNS[name].counted}
    return StoredPoint(arm=arm, index=index, time=time, **columns)


def measured(point: StoredPoint) -> Point | None:
    """The point that a run's status holds; None if a sweep cannot go on from it."""
    columns = {name: value for name in STORED_COLUMNS if (value := getattr(point, name)) is not None}
    columns.setdefault("load_mode", LoadMode.CLOSED if "concurrency" in columns else LoadMode.POISSON)
    try:
        return Point(**columns)
    except ValidationError:
        return None


def measured_of(points: Iterable[StoredPoint]) -> list[Point]:
    """The points as the sweep's design takes them; those it cannot go on from are left out."""
    return [found for point in points if (found := measured(point)) is not None]


def sweep_of(points: Iterable[StoredPoint]) -> list[Point]:
    """The points of an arm at its own lengths: the other points show the costs of steps, and do not count."""
    return of_the_sweep(measured_of(points))


def usable_points(points: Iterable[StoredPoint]) -> int:
    """Number of an arm's points that can be used, at its own lengths."""
    return sum(point.usable for point in sweep_of(points))


def points_csv(
    status: CalibrationRunStatus,
    plan: CalibrationPlan,
    arms: Container[str] | None = None,
    max_num_seqs: int | None = None,
) -> str:
    """The points of a run as one points file in the plan's order, with what they have in common in columns of their own.

    None stands for all arms, and for a limit of the engine that is not known.
    """
    common = {"gpu": plan.gpu_product, "model": plan.model or ""}
    if max_num_seqs:
        common["max_num_seqs"] = str(max_num_seqs)
    return written(
        [
            {**_cells(point), **common}
            for arm in plan.arms
            if arms is None or arm.arm in arms
            for point in status.points_of(arm.arm)
        ]
    )


def _cells(point: StoredPoint) -> dict[str, str]:
    """The columns as the status spells them: a CRD has no numbers with a fraction, only decimal strings."""
    document = point.model_dump(mode="json", exclude_none=True, exclude={"arm", "index", "time"})
    shares = document.pop("accept", ())
    cells = {column: str(value) for column, value in document.items()}
    return cells | {f"accept_{position}": str(share) for position, share in enumerate(shares, start=1)}


@dataclass(frozen=True, slots=True)
class RunView:
    """Everything about one CalibrationRun that its state machine may look at.

    Attributes:
        service: the SpeculativeService it belongs to; None if that is gone.
        target: the workload it copies; None if that is gone. Before pods of its present template serve, a run is not admitted.
        jobs, pods: labelled with this run.
        selectors: label selectors in the namespace (Services, PodMonitors, PodDisruptionBudgets, ...) that must not match a
            calibration pod: `{"matchLabels": {...}, "matchExpressions": [...]}` each.
        may_start: whether this run may start new Jobs now (not paused, and a place among the fleet's calibrations).
        places: pods that this run may have at a time if it begins now.
        duplicate_of: an older unfinished run of the same service that does the same work; this one is to be Superseded.
        network_policies: of the namespace; a calibration pod is isolated wherever its target is.
        events: Events about the Jobs; the only place where a refused pod (quota, admission) shows.
        warnings: what events say of pods that do not come, by uid.
        claims: PersistentVolumeClaims of the namespace; one that only one pod may mount cannot be copied.
        config_maps: ConfigMaps that the run or its service names, while it begins; None if there is no such one. A ConfigMap that
            the operator may not read is not in it.
        files_problem: why these were not all read.
        seen_lengths: mean lengths of the target's recent requests, and how much of prompts its prefix cache held.
        in_force: the profile that decisions use now, of the same fingerprint; None without one.
        profiles: of the service, whatever they were measured on.
        lost_nodes: nodes whose kubelet does not say that it is Ready.
    """

    run: Manifest
    service: Manifest | None
    target: Workload | None
    jobs: tuple[Manifest, ...]
    pods: tuple[Manifest, ...]
    selectors: tuple[Manifest, ...]
    may_start: bool
    duplicate_of: str | None
    settings: Settings
    network_policies: tuple[Manifest, ...] = ()
    events: tuple[Manifest, ...] = ()
    warnings: Mapping[str, str] = field(default_factory=dict)
    claims: tuple[Manifest, ...] = ()
    config_maps: Mapping[str, Manifest | None] = field(default_factory=dict)
    files_problem: str | None = None
    seen_lengths: Load | None = None
    in_force: Profile | None = None
    profiles: Sequence[ProfileEntry] = ()
    lost_nodes: frozenset[str] = frozenset()
    places: int = 1

    @property
    def identity(self) -> Identity | None:
        """The identity of the target as it runs now; None while that is unknown."""
        return self.target.proven_identity if self.target is not None else None


def run_display(status: CalibrationRunStatus, now: datetime, break_even: str | None = None) -> RunDisplay:
    """The columns of a status that is about to be written; `break_even` is the fitted figure with its bounds, once there is one."""
    plan = status.plan
    if plan is None:
        return RunDisplay()
    gpu_seconds = f"{status.gpu_seconds_used or 0:.0f}/{plan.budget.max_gpu_seconds}"
    if plan.arms and plan.arms[0].arm == BEFORE:
        # A gate: one arm on two engines.
        return RunDisplay(arm=None if status.ended else plan.arms[0].method, gpu_seconds=gpu_seconds)
    under_way = [
        arm.arm for arm in status.arm_statuses if arm.phase in {ArmPhase.STARTING, ArmPhase.MEASURING}
    ]
    current = under_way[0] if under_way else None
    if len(under_way) > 1:
        current = f"{current} +{len(under_way) - 1}"
    return RunDisplay(
        arm=None if status.ended else current,
        points=f"{len(status.points)}/{status.planned_points}",
        gpu_seconds=gpu_seconds,
        break_even=break_even,
        left=None if status.ended else human_time(seconds_left(status, plan, now)),
    )


def seconds_left(status: CalibrationRunStatus, plan: CalibrationPlan, now: datetime) -> float:
    """Estimate of the time to the end of measuring, which the budget limits."""
    if status.phase is RunPhase.FITTING:
        return 1.0
    gpus = max(1, plan.gpus_per_pod)
    budget_s = (plan.budget.max_gpu_seconds - (status.gpu_seconds_used or 0.0)) / gpus
    return max(0.0, min(to_come_s(status, plan, now), budget_s)) / (plan.pods_at_once or 1)


def to_come_s(
    status: CalibrationRunStatus,
    plan: CalibrationPlan,
    now: datetime | None = None,
    trials: Container[str | None] | None = None,
) -> float:
    """Estimate of the time that these trials still take, from how long engines and points took so far; None stands for all trials."""
    start_s, statuses = mean_start_s(status.arm_statuses), status.arm_statuses
    durations: list[float] = []
    for arm in status.arm_statuses:
        points = status.points_of(arm.arm)
        times = [point.time for point in points if point.time is not None]
        # The short points at other lengths count as part of the others: arms to come have them too.
        if arm.ready_time and times and (loads := len(sweep_of(points))):
            durations.append((max(times) - arm.ready_time).total_seconds() / loads)
    point_s = sum(durations) / len(durations) if durations else plan.point_seconds + plan.warmup_seconds
    left_s, planned = 0.0, {arm.arm: arm for arm in plan.arms}
    for arm in statuses:
        if arm.over or arm.arm not in planned or (trials is not None and arm.arm not in trials):
            continue
        points = status.points_of(arm.arm)
        done = len(sweep_of(points)) if points else 0
        left_s += max(0, plan.loads_of(planned[arm.arm], statuses) - done) * point_s
        if arm.phase is not ArmPhase.MEASURING:
            left_s += start_s
        elif now is not None and points and (last := points[-1].time) is not None:
            left_s -= min(point_s, max(0.0, (now - last).total_seconds()))
    return left_s


def mean_start_s(arms: Iterable[ArmStatus]) -> float:
    """Seconds that an engine took so far to start; 0 before the first one."""
    starts = [
        (arm.ready_time - arm.started_time).total_seconds()
        for arm in arms
        if arm.ready_time and arm.started_time
    ]
    return sum(starts) / len(starts) if starts else 0.0


def human_time(seconds: float) -> str:
    """`40s`, `3m`, `1h20m`: as kubectl prints ages."""
    if seconds < 90:
        return f"{seconds:.0f}s"
    minutes = round(seconds / 60)
    return f"{minutes}m" if minutes < 90 else f"{minutes // 60}h{minutes % 60:02d}m"


_EVENTS = {
    RunPhase.FAILED: str(ClusterReason.CALIBRATION_FAILED),
    RunPhase.SUCCEEDED: str(ClusterReason.CALIBRATION_SUCCEEDED),
}
"""Words of the events about a run's end; a superseded run says its reason itself."""


def job_ref(job: Manifest) -> Ref:
    """A Job as actions name it; its uid keeps a newer one of the same name alive."""
    meta = job["metadata"]
    return Ref(JOBS, meta["namespace"], meta["name"], meta.get("uid", ""))


@dataclass(frozen=True, slots=True)
class Transition:
    """One cycle of one run: what was seen, and how it is written down."""

    view: RunView
    run: CalibrationRun
    now: datetime

    @property
    def ref(self) -> Ref:
        """The run as actions name it."""
        meta = self.run.metadata
        return Ref(RUNS, meta.namespace, meta.name, meta.uid)

    def write(self, changes: Mapping[str, object], break_even: str | None = None) -> tuple[Action, ...]:
        """Write the status with these fields changed; nothing if it says that already.

        Points, answers and findings are left out: they belong to the drivers, and applying them here would take them over.
        """
        before = self.run.status
        status = before.replace(observed_generation=self.run.metadata.generation, **changes)
        status = status.replace(
            display=run_display(status, self.now, break_even),
            conditions=conditions_of(status, before.conditions, self.now),
        )
        document = status.to_json_object()
        known = before.to_json_object()
        for theirs in OF_DRIVERS:
            document.pop(theirs, None)
            known.pop(theirs, None)
        return () if document == known else (WriteStatus(self.ref, document),)

    def finish(
        self,
        phase: RunPhase,
        reason: ClusterReason,
        message: str,
        changes: Mapping[str, object] | None = None,
        break_even: str | None = None,
    ) -> tuple[Action, ...]:
        """End the run: say why, then leave nothing behind."""
        failed = phase is RunPhase.FAILED
        text = f"{reason}: {message}" if failed else message
        event = EmitEvent(self.ref, _EVENTS.get(phase, str(reason)), text, warning=failed)
        end = {"phase": phase, "reason": str(reason), "message": message[:1024], "finished_time": self.now}
        return (
            *self.write({**(changes or {}), **end}, break_even),
            *(Delete(job_ref(job)) for job in self.view.jobs),
            event,
        )


def conditions_of(
    status: CalibrationRunStatus, before: Sequence[Condition], now: datetime
) -> tuple[Condition, ...]:
    """Complete and Succeeded, on which `kubectl wait` can wait; unknown while the run goes on."""
    phase = status.phase or RunPhase.PENDING
    said = status.reason or str(ClusterReason.CALIBRATION_RUNNING), status.message or ""
    succeeded = phase is RunPhase.SUCCEEDED if phase.final else None
    aspects = (Aspect("Complete", phase.final, *said), Aspect("Succeeded", succeeded, *said))
    return merge(before, aspects, now)
