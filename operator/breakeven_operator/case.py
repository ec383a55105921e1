"""Everything that is known of one service in a cycle, from Prometheus' answers to the verdict: the types that cross a border of a folder.

Whoever adds a fact begins here; `step.py` holds what is done about it. No type calls a function of another module of the operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple, Self

from breakeven.arm import Arm
from breakeven.deciding import Decision
from breakeven.estimate import Estimate
from breakeven.laws.arrays import FloatArray
from breakeven.planning.capacity import FewestReplicas
from breakeven.planning.evaluation import ArmEvaluation
from breakeven.planning.forecast import PastRates
from breakeven.planning.objective import Histogram
from breakeven.planning.prompt_lengths import PromptPart
from breakeven.profile import Bounds, Comparison, Conditions, Profile
from breakeven.reasons import Reason
from breakeven.serving.counted_window import Load
from breakeven.serving.growths import (
    EngineLimits,
    Growths,
)
from breakeven_operator.actions import WriteProposal
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import Manifest
from breakeven_operator.refused_writes import RefusedWrite
from breakeven_operator.resources import CalibrationRun, SpeculativeService, SpeculativeServiceSpec
from breakeven_operator.resources.decisionstatus import Basis
from breakeven_operator.resources.memorystatus import MemoryStatus, RequestsBefore
from breakeven_operator.resources.servicestatus import CapacityStatus, ObjectiveFinding, ObjectiveStatus
from breakeven_operator.resources.targetstatus import ControlStatus
from breakeven_operator.resources.updatepolicy import PRODUCTION, Timing
from breakeven_operator.step import Calibrated, ProfileEntry, RolloutContext, RolloutStep, settled
from breakeven_operator.workloads.running_arm import RunningArm
from breakeven_operator.workloads.target import Refusal
from breakeven_operator.workloads.workload import Workload


class SeriesOwner(NamedTuple):
    """Whose series it is, by its labels; empty if a label is missing.

    In place of `pod`, latencies have what siblings share of their names, and past loads a `Workload.title`.
    """

    namespace: str
    pod: str
    model_name: str

    @classmethod
    def of(cls, labels: Mapping[str, str], pod: str) -> Self:
        """The owner of a series with these labels, of which `pod` names the pod."""
        return cls(labels.get("namespace", ""), labels.get(pod, ""), labels.get("model_name", ""))

    @property
    def named(self) -> NamespacedName:
        """The pod, or what siblings share of their names."""
        return NamespacedName(self.namespace, self.pod)


@dataclass(frozen=True, slots=True)
class FleetReading:
    """The answer to one query about a fleet, by pod or by ReplicaSet; or why there is none.

    Attributes:
        pods: counters by pod and model name; of sums by what the names of a ReplicaSet's pods have in common.
        present: whose vLLM series there are, anywhere in this Prometheus.
        error: one line when Prometheus gave no usable answer.
        evaluated_s: Unix time at which Prometheus made the answer, by its own clock; None if it does not say.
        silent, down: common beginnings of the names of pods whose page is scraped and has no vLLM series, or cannot be scraped.
        renamed: the labels that name a pod and its namespace, if these are not `pod` and `namespace`.
        turned_away: requests in the window that a pod answered with an error of its own.
    """

    pods: Mapping[NamespacedName, Mapping[str, Growths]]
    present: frozenset[SeriesOwner]
    error: str | None = None
    evaluated_s: float | None = None
    silent: frozenset[NamespacedName] = frozenset()
    down: frozenset[NamespacedName] = frozenset()
    renamed: Mapping[NamespacedName, str] = field(default_factory=dict)
    turned_away: Mapping[NamespacedName, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Live:
    """Figures, or a reason to hold.

    Attributes:
        reason: MetricsAvailable, or why the figures may not be used.
        figures: set with MetricsAvailable; to be shown, not to decide on, with TooFewRequests or while the past is awaited.
        past: rates per replica (1/s) before now, which are expected again; empty if only the present load is.
        past_problem: why there are none, as the end of a sentence; empty if there are, or none were asked for.
    """

    reason: Reason | ClusterReason
    message: str
    figures: Load | None = None
    past: PastRates = field(default_factory=PastRates)
    past_problem: str = ""

    @cached_property
    def usable(self) -> bool:
        """Whether a decision may rest on the figures."""
        return self.reason is ClusterReason.METRICS_AVAILABLE

    @cached_property
    def lengths(self) -> Load | None:
        """Figures with the mean lengths of requests, if enough were seen; a calibration without a workload of its own sends these."""
        figures = self.figures if self.usable else None
        known = (
            figures is not None and figures.prompt_tokens is not None and figures.output_tokens is not None
        )
        return figures if known else None

    @cached_property
    def conditions(self) -> Conditions:
        """Lengths and dispersion of present requests, as far as they are known.

        The dispersion counts even if the window is of no use: it is of a longer time, and says itself when it is unknown.
        """
        lengths, figures = self.lengths, self.figures
        return Conditions(
            prompt_tokens=lengths.prompt_tokens if lengths is not None else None,
            output_tokens=lengths.output_tokens if lengths is not None else None,
            dispersion=figures.dispersion_or_poisson if figures is not None else 1.0,
        )


@dataclass(frozen=True, slots=True)
class PastReading:
    """The rates of one query of the past, per replica, by service; or why there are none.

    `awaited` has the namespaces about which the first answer, or its failure, is still to come.
    """

    rates: Mapping[SeriesOwner, PastRates] = field(default_factory=dict)
    error: str | None = None
    awaited: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FirstAnswer:
    """Answer of a service's past, or why there is none. It is shown, and no roll rests on it.

    `profile` has the laws of the arms that ran; None if the past determines none, or was not read yet.
    """

    profile: Profile | None
    sentence: str
    pays_nothing: bool = False


@dataclass(frozen=True, slots=True)
class RollReading:
    """The answer to one roll query; or why there is none.

    `times_s` are the ends of the blocks (Unix time, s), ascending. A statistic has one value per time; NaN if there is none.
    """

    times_s: tuple[float, ...] = ()
    pods: Mapping[SeriesOwner, Mapping[str, FloatArray]] = field(default_factory=dict)
    error: str | None = None


class RollAnswer(NamedTuple):
    """Prometheus' answers about a roll: latencies of both arms, and requests that failed; None if it was not asked."""

    latencies: RollReading | None = None
    failures: RollReading | None = None


NOT_ASKED = RollAnswer()


class ArmRequests(NamedTuple):
    """HTTP requests of one arm, without the requests that were turned away.

    Attributes:
        posts: HTTP requests that came.
        refusals: answered with 4xx.
        served: requests that began in an engine, or may have been left before they did.
        failed: ended by an error of the engine.
        abandoned: clients left.
        turned_away: answered with 5xx, and not for an error of the engine.
    """

    posts: float
    refusals: float
    served: float
    failed: float = 0.0
    abandoned: float = 0.0
    turned_away: float = 0.0

    @property
    def came(self) -> float:
        """HTTP requests that were not refused by their status."""
        return max(self.posts - self.refusals, 0.0)

    @property
    def lost(self) -> float:
        """Requests that were refused by their status, or failed."""
        return self.refusals + self.failed

    def kept(self, arm: str) -> RequestsBefore:
        """The figures that later requests on another arm are compared with."""
        posts, lost, served = map(round, (self.posts, self.lost, self.served))
        return RequestsBefore(arm=arm, posts=posts, refusals=lost, served=served)


@dataclass(frozen=True, slots=True)
class LaterReading:
    """Requests after rolls that have their last word, by namespace and common beginning of the names of a ReplicaSet's pods."""

    requests: Mapping[NamespacedName, ArmRequests] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LatencyReading:
    """Requests by figure (e2e, ttft, tpot, prompt) and upper edge (s, or tokens), by owner; or the line why Prometheus gave no usable answer."""

    counts: Mapping[SeriesOwner, Mapping[str, Mapping[float, float]]] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Latencies:
    """Histograms of one service's pods by figure (e2e, ttft, tpot), or why they may not be used.

    A figure that the engine does not count is absent.
    """

    reason: Reason | ClusterReason
    message: str
    histograms: Mapping[str, Histogram] = field(default_factory=dict)


_ABOVE = 1.0 + 1e-6


@dataclass(frozen=True, slots=True)
class Objectives:
    """Measurements of a service's objectives in one cycle, without predictions.

    `settled` are figures whose finding has stood for longer than a window, so that it may be acted upon.
    """

    figures: tuple[ObjectiveStatus, ...]
    latencies: Latencies
    settled: frozenset[str]

    @property
    def holds(self) -> bool | None:
        """Whether all objectives are kept; False when one has been missed for longer than a window; None if not known."""
        asked = [one for one in self.figures if one.finding is not None]
        missed = {one.figure for one in asked if one.finding is ObjectiveFinding.MISSED}
        if missed & self.settled:
            return False
        return True if all(one.finding is ObjectiveFinding.KEPT for one in asked) else None

    @property
    def reason(self) -> Reason | ClusterReason:
        """The same in one word."""
        if self.holds is not None:
            return ClusterReason.OBJECTIVES_KEPT if self.holds else Reason.SLO_VIOLATED
        if self.latencies.reason is not ClusterReason.METRICS_AVAILABLE:
            return self.latencies.reason
        return ClusterReason.OBJECTIVE_UNCERTAIN

    @property
    def strain(self) -> Bounds | None:
        """Bounds of the largest ratio of a measured quantile to its limit; None if no finding has settled.

        An objective of which nothing has settled may be missed by any factor: the upper bound is then open.
        """
        asked = [one for one in self.figures if one.limit_seconds is not None]
        known = [one for one in asked if one.figure in self.settled]
        # A quantile lies above the lower edge of its bucket, and a limit is missed from there on.
        ends = [
            (
                _ABOVE * one.p95_lower_seconds / one.limit_seconds,
                None if one.p95_upper_seconds is None else one.p95_upper_seconds / one.limit_seconds,
            )
            for one in known
            if one.p95_lower_seconds is not None and one.limit_seconds is not None
        ]
        if not ends:
            return None
        uppers = [upper for _, upper in ends if upper is not None]
        closed = len(uppers) == len(asked)
        return max(lower for lower, _ in ends), max(uppers) if closed else None


STAY = "Stay"
SWITCH = "Switch"
HOLD = "Hold"
RECOMMEND = "Recommend"


@dataclass(frozen=True)
class Verdict:
    """The decision that status, event, log line and metric repeat.

    Attributes:
        action: Stay if the right arm runs. Switch if the target is rolled, Recommend if somebody else should. Hold if nothing can
            or may be done now.
        arm: the arm that should run; None if that is not known.
        message: a whole sentence with the figures that decided.
        decision: decision of the library, with every arm's figures; None if it was not asked (no profile, no usable figures).
        basis: source of those figures.
        windows: of the account in which latency of the running arm was measured.
    """

    action: str
    arm: Arm | None
    reason: Reason | ClusterReason
    message: str
    decision: Decision | None = None
    basis: Basis = Basis.MEASURED
    windows: int = 0

    @property
    def words(self) -> tuple[str, ...]:
        """Two verdicts are the same when these words are; figures alone make no other verdict."""
        return self.action, str(self.arm), str(self.reason)

    @cached_property
    def wanted(self) -> Arm:
        """The arm of a change."""
        assert self.arm is not None  # noqa: S101 - no change without one
        return self.arm

    @cached_property
    def speedup(self) -> Estimate | None:
        """Speedup of the running arm at the present load, as live latency has corrected it."""
        return self.decision.speedup if self.decision is not None else None

    @cached_property
    def running(self) -> ArmEvaluation | None:
        """The running arm at the present load."""
        return self.decision.figures if self.decision is not None else None

    @cached_property
    def against_none(self) -> Comparison | None:
        """The speculative arm in question against no speculation at this load."""
        return self.decision.against_none if self.decision is not None else None


class StandingControl(NamedTuple):
    """The service whose target keeps the other arm, that target, and the work of both targets' pods in the last windows."""

    service: SpeculativeService
    workload: Workload | None
    reading: RollReading | None


@dataclass(frozen=True, slots=True)
class ServiceObservation:
    """One service's surroundings, and settings of the operator for it; answers of Prometheus are None if it was not asked.

    Attributes:
        workload: the target; None if there is none.
        managed_by: an older SpeculativeService on the same target.
        known_pods: names of all pods of the namespace.
        runs: CalibrationRuns of this service that are unfinished or not yet accounted for.
        later: requests after the last roll.
        arrivals: when requests came.
        guards: values of the user's guards by their expressions, without expressions that have none.
        claims: PersistentVolumeClaims of its namespace, if the target mounts any and they may be read.
        written: the service's status as the API server holds it.
        failures: writes for this service that failed, and have not succeeded since.
        target_problem: why the target's object could not be read; None if it could, or there is none.
        status_refresh_s: how often figures of a status are renewed.
        may_roll: whether the fleet's number of rolls at a time allows another one.
        gpu_price_per_hour: price of a GPU; a status says no money without one.
        takes_proposals: whether an admission policy puts arms into owners' rollouts.
        controlled: the service of which this one is the standing control; None if there is none of that name.
        control: the standing control of this service.
    """

    workload: Workload | None
    managed_by: str | None
    fleet: FleetReading
    known_pods: frozenset[str]
    profiles: Sequence[ProfileEntry] = ()
    runs: Sequence[CalibrationRun] = ()
    past: PastReading | None = None
    latencies: LatencyReading | None = None
    prompts: LatencyReading | None = None
    roll: RollAnswer | None = None
    later: LaterReading | None = None
    arrivals: RollReading | None = None
    guards: Mapping[str, float] = field(default_factory=dict)
    first: FirstAnswer | None = None
    claims: Sequence[Manifest] = ()
    written: Mapping[str, Any] = field(default_factory=dict)
    failures: Sequence[RefusedWrite] = ()
    target_problem: str | None = None
    timing: Timing = PRODUCTION
    status_refresh_s: float = 60.0
    may_roll: bool = True
    gpu_price_per_hour: float | None = None
    takes_proposals: bool = False
    controlled: SpeculativeService | None = None
    control: StandingControl | None = None


@dataclass(frozen=True)
class Case:
    """A service whose target can be looked at, with the schedules that were measured for it.

    The target's template asks for the `running` arm, and its series have the label `model_name`. `roll` has Prometheus' answers
    about a roll under way. `capacity` is None if nothing is known of it, `fewest`, the arm that needs fewest replicas, if the running
    arm's need is not known, `objectives` if there are none, and `first`, the past's answer, if there is a profile. `prompts` are quarters of the requests, if they were counted. `breach` is the
    user's guard that is exceeded; None if none is known to be. `control` is what the standing control measures; None without one.
    `cannot_roll` forbids a roll at any time, `may_roll` is whether the fleet's number of rolls at a time allows one, and `waits` is
    why the API server is not asked for a write again yet.
    """

    service: SpeculativeService
    context: RolloutContext
    calibrated: Calibrated
    running: RunningArm
    live: Live
    engine_limits: EngineLimits
    objectives: Objectives | None = None
    capacity: CapacityStatus | None = None
    fewest: FewestReplicas | None = None
    first: FirstAnswer | None = None
    prompts: tuple[PromptPart, ...] = ()
    breach: Refusal | None = None
    model_name: str = ""
    roll: RollAnswer = NOT_ASKED
    cannot_roll: Refusal | None = None
    may_roll: bool = True
    waits: RefusedWrite | None = None
    control: ControlStatus | None = None

    @cached_property
    def spec(self) -> SpeculativeServiceSpec:
        """Of the service."""
        return self.service.spec

    @cached_property
    def workload(self) -> Workload:
        """The target."""
        return self.context.workload

    @cached_property
    def memory(self) -> MemoryStatus:
        """The status' memory as this cycle has it by now."""
        return self.context.memory

    @cached_property
    def now(self) -> datetime:
        """Time of the observation."""
        return self.context.now

    @cached_property
    def profile(self) -> Profile | None:
        """The profile in force."""
        return self.calibrated.profile

    @cached_property
    def profile_name(self) -> str:
        """Name of the profile in force; only an arm that is left needs none."""
        return self.calibrated.profile_name or ""

    @cached_property
    def measured_arm(self) -> Arm | None:
        """The arm by whose measurements the running one is judged; None if the running one is unknown."""
        return self.running.measured_instead or self.running.arm

    @cached_property
    def settled(self) -> bool:
        """Whether the window's mean latency belongs to its load and arm: not while it holds what a roll has left behind."""
        return not self.running.former_drafter and settled(
            self.context, self.spec.metrics_source.window_seconds
        )

    @property
    def scaled(self) -> bool:
        """Whether an autoscaler scales the target."""
        return self.capacity is not None and self.capacity.scaled_by is not None

    @property
    def away_share(self) -> float:
        """Share of the replicas that a roll takes away at a time: each is away for one start-up, however many batches it has."""
        target = self.workload
        return min(target.max_unavailable / target.desired, 1.0) if target.desired else 0.0

    def after(self, step: RolloutStep) -> Case:
        """The same once a step of the change under way is made."""
        return replace(self, context=replace(self.context, memory=step.memory, rollout=step.rollout))

    def remembering(self, memory: MemoryStatus) -> Case:
        """The same with another memory."""
        return replace(self, context=replace(self.context, memory=memory))


@dataclass(frozen=True)
class CycleFacts:
    """Everything a cycle found out about one service: the input of its status, events and log line.

    Attributes:
        service: with the schedules that were measured for it.
        step: state of a change of arm after this cycle.
        cannot_roll: why the target is not rolled, at any time; None if it may be.
        case: None if the target cannot be looked at.
        proposal: what the next rollout is to take, if that changes.
        failures: writes for it that failed, and have not succeeded since.
    """

    service: SpeculativeService
    workload: Workload | None
    calibrated: Calibrated
    step: RolloutStep
    verdict: Verdict
    cannot_roll: Refusal | None
    now: datetime
    timing: Timing
    case: Case | None = None
    proposal: WriteProposal | None = None
    failures: tuple[RefusedWrite, ...] = ()

    @cached_property
    def running(self) -> RunningArm | None:
        """The arm that the target's template asks for."""
        return self.case.running if self.case is not None else None

    @cached_property
    def live(self) -> Live | None:
        """Present figures, or why there are none."""
        return self.case.live if self.case is not None else None

    @cached_property
    def objectives(self) -> Objectives | None:
        """Latencies that users see against the service's objectives; None without objectives."""
        return self.case.objectives if self.case is not None else None

    @cached_property
    def refused(self) -> RefusedWrite | None:
        """The write that the API server refuses and that keeps the operator from its work; the oldest of several."""
        return min((one for one in self.failures if one.refused), key=lambda one: one.since, default=None)
