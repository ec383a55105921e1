"""From the facts of a cycle to the status that it leads to and the actions that bring it about."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any

from breakeven.planning.learned_laws import INDEPENDENT_S
from breakeven.planning.wording import figures_text
from breakeven.printable import one_line
from breakeven.reasons import Reason
from breakeven.serving.counted_window import Load
from breakeven_operator.actions import Action, ActionPlan, Create, EmitEvent, WriteAnnotation, WriteStatus
from breakeven_operator.case import HOLD, CycleFacts, ServiceObservation, Verdict
from breakeven_operator.cluster_reasons import QUIET, ClusterReason
from breakeven_operator.judging.doubts import GAP_S
from breakeven_operator.kinds import RUNS
from breakeven_operator.observing.objectives import objectives_message
from breakeven_operator.outcome.formatting import pays_now, with_measured
from breakeven_operator.outcome.status_report import report
from breakeven_operator.packed import whole
from breakeven_operator.refused_writes import RefusedWrite
from breakeven_operator.resources import SpeculativeService, SpeculativeServiceStatus
from breakeven_operator.resources.decisionstatus import Basis, DecisionStatus
from breakeven_operator.resources.figures import LOGGED, Renewal, status_fields
from breakeven_operator.resources.meta import (
    ACCEPTANCE,
    COST_TABLE,
    LENGTHS,
    METRICS,
    MODEL,
    OBJECTIVES,
    READY,
    Aspect,
    Condition,
    ConditionStatus,
    merge,
)
from breakeven_operator.resources.servicestatus import with_notes
from breakeven_operator.resources.targetstatus import ControlStatus
from breakeven_operator.step import Calibrated, ProfileEntry, RolloutStep
from breakeven_operator.workloads.object_facts import parse_time


@dataclass(frozen=True, slots=True)
class ServiceOutcome:
    """What was decided about a service by what was seen of it: a plan, and the status that the plan leads to, written or not.

    Attributes:
        service: with what was learned since its status was written.
        lengths: mean prompt and output tokens of the target's recent requests; None if not known.
        unwritten: whether the status has moved, and waits for the written one to be old enough.
        otherwise: status to go on from if the API server refuses the plan's annotation; None if it writes none.
    """

    service: SpeculativeService
    observation: ServiceObservation
    plan: ActionPlan
    status: SpeculativeServiceStatus
    verdict: Verdict
    lengths: Load | None = None
    unwritten: bool = False
    otherwise: SpeculativeServiceStatus | None = None

    @property
    def in_force(self) -> ProfileEntry | None:
        """The profile that decisions use; None without one."""
        calibration = self.status.calibration
        name = calibration.profile if calibration is not None else None
        return next((entry for entry in self.observation.profiles if entry.name == name), None)

    @property
    def ended(self) -> int:
        """Changes of arm that ended in this cycle."""
        before = {(e.time, e.to_arm) for e in self.service.status.history}
        return sum(1 for e in self.status.history if (e.time, e.to_arm) not in before)


def still_wanted(
    failures: Sequence[RefusedWrite], step: RolloutStep, state: Calibrated, now: datetime
) -> tuple[RefusedWrite, ...]:
    """Without a write that may be tried again now and that this cycle does not ask for any more."""

    def wanted(one: RefusedWrite) -> bool:
        match one.action:
            case WriteAnnotation():
                return step.write is not None
            case Create(resource) if resource == RUNS:
                return state.create is not None
            case _:
                return True

    return tuple(one for one in failures if now < one.until or wanted(one))


def outcome_of(cycle: CycleFacts, seen: ServiceObservation) -> ServiceOutcome:
    """Order matters: what must survive a crash is written before what it announces."""
    service, step, old = cycle.service, cycle.step, cycle.service.status
    status = report(cycle, seen.gpu_price_per_hour)
    ref = service.ref
    written = old.decision.time if old.decision is not None else None
    shown = status.whole()
    worth = Worth.NOW
    if step.write is None and not step.ended and not cycle.calibrated.ended:
        worth = worth_writing(seen.written, shown, written, cycle.now, seen.status_refresh_s)
    actions: list[Action] = []
    if cycle.calibrated.create is not None:
        # Named after its cause: created twice it is one. The status that counts it must not come first.
        actions.append(cycle.calibrated.create)
    if worth is Worth.NOW:
        # Status from an object that has changed meanwhile could undo a newer intent: the write is conditional.
        actions.append(WriteStatus(ref, with_notes(shown), service.metadata.resource_version or None))
    actions.extend(one for one in (step.write, cycle.proposal) if one is not None)
    actions.extend(events(cycle, status))
    return ServiceOutcome(
        service=service,
        observation=seen,
        plan=ActionPlan(subject=ref, actions=tuple(actions), facts=facts(cycle, status, shown)),
        status=status,
        verdict=cycle.verdict,
        lengths=cycle.live.lengths if cycle.live is not None else None,
        unwritten=worth is Worth.LATER,
        otherwise=_without_write(cycle, status, seen.gpu_price_per_hour),
    )


def _without_write(
    cycle: CycleFacts, status: SpeculativeServiceStatus, gpu_price_per_hour: float | None
) -> SpeculativeServiceStatus | None:
    """The status to go on from if the annotation that the step writes is refused; None if it writes none."""
    step = cycle.step
    if step.write is None:
        return None
    if step.otherwise is None:
        return status
    memory = step.otherwise.memory.replace(recalibrate=cycle.calibrated.recalibrate)
    return report(replace(cycle, step=replace(step.otherwise, memory=memory)), gpu_price_per_hour)


def events(cycle: CycleFacts, status: SpeculativeServiceStatus) -> tuple[EmitEvent, ...]:
    """Events of changes: of the change of arm, then what else is new; no reason twice."""
    said = list(cycle.step.events)
    if (moved := _moved(cycle.service.status.control, status.control)) is not None:
        said.append(EmitEvent(cycle.service.ref, str(ClusterReason.CONTROL_MOVED), moved, warning=True))
    for one in _news(cycle, status):
        if one.reason not in {event.reason for event in said}:
            said.append(one)
    return tuple(said)


def _news(cycle: CycleFacts, status: SpeculativeServiceStatus) -> Iterator[EmitEvent]:
    """Whatever the last status did not say, one row after another: when, the reason word, the sentence."""
    old, verdict, objectives = cycle.service.status, cycle.verdict, cycle.objectives

    def say(
        reason: str, message: str, *, warning: bool = False, throttled: bool = True, about: str = ""
    ) -> EmitEvent:
        return EmitEvent(cycle.service.ref, str(reason), message, warning, throttled, about)

    known = {one.type: (str(one.status), one.reason) for one in old.conditions}
    before = {kind: reason for kind, (_, reason) in known.items()}
    decided = old.decision.reason if old.decision is not None else None
    if str(verdict.reason) != decided and verdict.reason not in {one.reason for one in cycle.step.events}:
        of_cluster = isinstance(verdict.reason, ClusterReason)
        warning = verdict.action == HOLD and of_cluster and verdict.reason not in QUIET
        yield say(verdict.reason, verdict.message, warning=warning, about=_about(cycle))
    elif (flipped := _flip(cycle, old)) is not None:
        yield say(ClusterReason.PAYS_CHANGED, flipped)
    for now in doubts(status):
        if known.get(now.type) != (str(now.status), now.reason):
            yield say(now.reason, now.message, warning=True, throttled=False)
    metrics = status.condition(METRICS)
    gone = ClusterReason.CLIENTS_GIVE_UP
    if metrics is not None and metrics.reason == gone != before.get(METRICS):
        yield say(gone, metrics.message, warning=True)
    if objectives is not None and objectives.holds is (before.get(OBJECTIVES) == Reason.SLO_VIOLATED):
        message = objectives_message(objectives, objectives.figures)
        yield say(objectives.reason, message, warning=not objectives.holds)
    if cycle.refused is not None and before.get(READY) != cycle.refused.reason:
        yield say(cycle.refused.reason, cycle.refused.sentence, warning=True)
    if cycle.calibrated.create is not None:
        yield say(ClusterReason.CALIBRATION_RUNNING, cycle.calibrated.message, throttled=False)


def _moved(before: ControlStatus | None, now: ControlStatus | None) -> str | None:
    """The sentence of a standing control whose speedup is another one since; None if it is not."""
    if before is None or now is None or before.since_time is None or now.speedup is None:
        return None
    same = (before.arm, before.against) == (now.arm, now.against)
    return now.message if same and before.since_time != now.since_time else None


def doubts(status: SpeculativeServiceStatus) -> tuple[Condition, ...]:
    """What live traffic contradicts of the profile in force."""
    found = [status.condition(one) for one in (MODEL, ACCEPTANCE, LENGTHS, COST_TABLE)]
    return tuple(one for one in found if one is not None and one.status is ConditionStatus.FALSE)


def _about(cycle: CycleFacts) -> str:
    """The roll or the run that a verdict may tell of; empty without one."""
    rollout, run = cycle.step.rollout, cycle.calibrated.run
    return rollout.id if rollout is not None else run.metadata.name if run is not None else ""


def _flip(cycle: CycleFacts, old: SpeculativeServiceStatus) -> str | None:
    """Speculation pays and last did not, or the other way round; bounds that hold both answers neither make nor undo one."""
    decision, comparison = cycle.verdict.decision, cycle.verdict.against_none
    now, before = pays_now(cycle.verdict), old.memory.pays if old.memory is not None else None
    if cycle.verdict.basis is not Basis.MEASURED:
        return None
    if decision is None or comparison is None or now is None or before is None or now is before:
        return None
    words = {True: "Yes", False: "No"}
    return f"PAYS was {words[before]} and is {words[now]}: {with_measured(figures_text(decision), cycle.verdict)}"


_LOGGED = tuple(row.json_path for row in status_fields(DecisionStatus) if LOGGED in row.marks(str))


def facts(cycle: CycleFacts, status: SpeculativeServiceStatus, shown: Mapping[str, Any]) -> dict[str, object]:
    """The canonical log line of the cycle: what was seen, decided and done; `shown` is the whole status as JSON."""
    decision = shown.get("decision", {})
    return {
        "action": cycle.verdict.action,
        "reason": str(cycle.verdict.reason),
        "message": cycle.verdict.message,
        "arm": cycle.verdict.arm.name if cycle.verdict.arm is not None else None,
        "runningArm": status.current.arm if status.current is not None else None,
        "mode": str(cycle.service.spec.update_policy.mode),
        "metrics": str(cycle.live.reason) if cycle.live is not None else None,
        "calibrated": str(cycle.calibrated.reason),
        "doubts": [one.reason for one in doubts(status)],
        "objectives": str(cycle.objectives.reason) if cycle.objectives is not None else None,
        "rollout": str(status.rollout.phase) if status.rollout is not None else None,
        **{key: decision[key] for key in _LOGGED if key in decision},
    }


# Whether a status is worth a write: state at once, figures and sentences now and then, noise never.
#
# A write in every cycle, because a load moved from 3.1 to 3.2, would be the operator's largest load on the API server, and
# would wake every watcher. A sentence is news if its words change; its figures and ages move in every cycle, and those that
# matter have fields of their own.


_SMALL = 0.05
# A percentage is a ratio already: a saving's lower bound that goes from 2.8 to 3.1 % has moved by a tenth and means the same.
_SMALL_POINTS = 1.0
_FIGURE = re.compile(r"\d+(?:\.\d+)?")
_MISSED = 0.2
# The age of a row shows that its operator is gone only if a living one renews each row: 24 writes a day.
_LONGEST_UNWRITTEN = timedelta(hours=1)
_MISSED_S = GAP_S / 2.0
_LEARNED = frozenset({Renewal.LEARNED, Renewal.AMOUNT, Renewal.BEGINNING})
_RENEWALS = {one.json_path: one.renewal for one in status_fields(SpeculativeServiceStatus)}


class Worth(Enum):
    """Whether a status should replace the written status; LATER if it should once that is old enough."""

    NOT = auto()
    LATER = auto()
    NOW = auto()


def worth_writing(
    old: Mapping[str, Any], new: Mapping[str, Any], written: datetime | None, now: datetime, refresh_s: float
) -> Worth:
    """Whether `new` should replace `old` (JSON both), written at `written`; None if nothing was ever written.

    Figures that moved by more than 5 % (percentages: by a point) and sentences with other words are written every `refresh_s`.
    """
    if written is None or now - written > _LONGEST_UNWRITTEN:
        return Worth.NOW
    old, new = whole(old), whole(new)
    renewal = Worth.NOW if now - written >= timedelta(seconds=refresh_s) else Worth.LATER
    missed_s = _since_s(_decided(old), _decided(new))
    found = Worth.NOT
    for key, before, after in _changes(old, new):
        wanted = _renewal(key)
        if wanted is Renewal.NEVER:
            continue
        if wanted is Renewal.AT_ONCE or (wanted is Renewal.BEGINNING and before is None):
            return Worth.NOW
        if wanted in _LEARNED:
            if _missed(wanted, before, after, missed_s):
                return Worth.NOW
            continue
        small_step = _SMALL_POINTS if key.endswith("Percent") else 0.0
        if found is not renewal and not _close(before, after, _SMALL, small_step):
            found = renewal
    return found


def _renewal(key: str) -> Renewal:
    """The rule of a field; a field of another version of the operator follows the rule of the part it is in."""
    while key and key not in _RENEWALS:
        key = key.rpartition(".")[0]
    return _RENEWALS.get(key, Renewal.AT_ONCE)


def _missed(renewal: Renewal, before: object, after: object, since_s: float) -> bool:
    """Whether an operator that starts again would miss what was learned within such a time.

    The operator that learned it goes on with it, see `unwritten`. The first window of an arm teaches as much as the next half
    hour, and the first ones of an account begin it. Amounts grow without a bound that is soon reached.
    """
    if since_s >= _MISSED_S:
        return True
    return since_s >= INDEPENDENT_S and renewal is Renewal.AMOUNT and not _close(before, after, _MISSED)


def _decided(status: Mapping[str, Any]) -> object:
    return ((status.get("workings") or {}).get("memory") or {}).get("decidedTime")


def _since_s(before: object, after: object) -> float:
    """Time (s) from one decision to another; 0 if one was never made."""
    began, ended = parse_time(before), parse_time(after)
    return (ended - began).total_seconds() if began is not None and ended is not None else 0.0


def _changes(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Differences, leaf by leaf: the path without places in lists, and both values; None for an absent one."""
    before, after = _parts(old), _parts(new)
    if before is None and after is None:
        yield key, old, new
        return
    for part in {**(before or {}), **(after or {})}:
        was, now = (before or {}).get(part), (after or {}).get(part)
        # Most of a status is as it was, and equal parts need no look at their leaves.
        if was != now:
            yield from _changes(was, now, key if part.startswith("[") else f"{key}.{part}" if key else part)


def _parts(value: Any) -> Mapping[str, Any] | None:
    """The fields of an object, the entries of a list by their place; None for a leaf."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, list):
        return None
    # Conditions by type, so that their order does not matter.
    return {
        f"[{inner.get('type', place) if isinstance(inner, dict) else place}]": inner
        for place, inner in enumerate(value)
    }


def _close(old: Any, new: Any, share: float, small_step: float = 0.0) -> bool:
    """Whether two figures differ by no more than a share of the larger one or a step, or two sentences by their figures alone."""
    try:
        a, b = float(old), float(new)
    except (TypeError, ValueError):
        if isinstance(old, str) and isinstance(new, str):
            return _FIGURE.sub("#", old) == _FIGURE.sub("#", new)
        return False
    return abs(a - b) <= max(small_step, share * max(abs(a), abs(b)))


_LONGEST_ERROR = 300


@dataclass(frozen=True, slots=True)
class Failed:
    """A service whose cycle failed, and the plan that makes its status say so.

    The service is as /metrics shows it: its last figures, with the condition that marks them as stale.
    """

    service: SpeculativeService
    plan: ActionPlan


def failed(
    service: SpeculativeService,
    status: Mapping[str, Any],
    error: Exception,
    now: datetime,
    resource_version: str = "",
) -> Failed:
    """Mark a service as undecided; nothing else of its status and nothing of its target changes.

    The first error stands until a cycle succeeds: a text that differs from cycle to cycle would be a write per cycle. `status`
    is the JSON that was read, because serialising may be what failed. The write is refused if the service has changed since
    `resource_version`; empty, it is not.
    """
    ref, reason = service.ref, str(ClusterReason.INTERNAL_ERROR)
    facts = {"action": "Hold", "reason": reason}
    if service.status.undecided:
        return Failed(service, ActionPlan(ref, facts=facts))
    text = one_line(f"{type(error).__name__}: {error}")[:_LONGEST_ERROR]
    message = f"a defect of the operator keeps it from deciding ({text}); the running arm and the last figures are kept"
    ready = Aspect(READY, False, reason, message)
    conditions = merge(service.status.conditions, (ready,), now)
    marked = {**status, "conditions": [condition.to_json_object() for condition in conditions]}
    return Failed(
        service.replace(status=service.status.replace(conditions=conditions)),
        ActionPlan(
            ref,
            (
                WriteStatus(ref, marked, resource_version or None),
                EmitEvent(ref, reason, message, warning=True, throttled=True),
            ),
            facts,
        ),
    )
