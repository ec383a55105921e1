"""Gates of a roll as one ordered table: the first that refuses a change that is due is the one that is shown.

Whether a target can be managed at all is asked before anything is decided (`target`); these gates stand between a decision and
the one write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from breakeven.arm import Arm
from breakeven.phrases import spoken
from breakeven.reasons import Reason
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.barred_arms import refuse_answers, refuse_barred
from breakeven_operator.reconcile.case import Case
from breakeven_operator.reconcile.leaving import LEAVING
from breakeven_operator.reconcile.lost_rolls import rolls_stopped
from breakeven_operator.reconcile.preconditions import (
    URGENT,
    refuse_capacity,
    refuse_now,
    refuse_suspect,
    scaled_time,
)
from breakeven_operator.reconcile.target import Refusal
from breakeven_operator.reconcile.verdict import HOLD, RECOMMEND, Verdict
from breakeven_operator.refused_writes import RefusedWrite
from breakeven_operator.resources.updatepolicy import Mode

Reasons = frozenset[Reason | ClusterReason]
ORDERED: Final[Reasons] = frozenset({ClusterReason.PINNED})
"""Reasons that a person gives: a suspect profile does not forbid such a change."""


@dataclass(frozen=True, slots=True)
class DueRoll:
    """A change of arm that the verdict asks for.

    Attributes:
        case: of the service.
        verdict: the change.
        wanted: the arm that should run.
        cannot_roll: why this target is not rolled, at any time.
        may_roll: whether the fleet has a place for another roll.
        waits: why the API server is not asked for the write again yet.
    """

    case: Case
    verdict: Verdict
    wanted: Arm
    cannot_roll: Refusal | None
    may_roll: bool
    waits: RefusedWrite | None

    @property
    def profile_name(self) -> str:
        """Name of the profile in force; only an arm that is left needs none."""
        return self.case.calibrated.profile_name or ""


class Gate(NamedTuple):
    """One gate.

    Attributes:
        about: what it asks about.
        refuses: why the change must not be made; None: it may.
        passed_by: reasons of changes that are not asked.
        of_advice: whether what it refuses is not even recommended.
    """

    about: str
    refuses: Callable[[DueRoll], Refusal | None]
    passed_by: Reasons = frozenset()
    of_advice: bool = False


def _paused(due: DueRoll) -> Refusal | None:
    return Refusal(ClusterReason.PAUSED, "spec.paused is set") if due.case.spec.paused else None


def _suspect(due: DueRoll) -> Refusal | None:
    return refuse_suspect(due.case.memory, due.profile_name, due.verdict.decision, due.wanted)


def _barred(due: DueRoll) -> Refusal | None:
    return refuse_barred(due.case.memory, due.wanted)


def _answers(due: DueRoll) -> Refusal | None:
    return refuse_answers(due.case.spec.calibration.answers.check, due.case.profile, due.wanted)


def _target(due: DueRoll) -> Refusal | None:
    return due.cannot_roll


def _rolls_before(due: DueRoll) -> Refusal | None:
    return rolls_stopped(due.case.memory, due.profile_name)


def _moment(due: DueRoll) -> Refusal | None:
    case = due.case
    scaled = scaled_time(case.workload, case.service.status.target, case.now)
    urgent = due.verdict.reason in URGENT
    return refuse_now(case.workload, case.context.timing, scaled, case.memory, case.now, urgent=urgent)


def _capacity(due: DueRoll) -> Refusal | None:
    running = due.case.running.arm
    arms = (due.wanted,) if running is None else (running, due.wanted)
    decision = due.verdict.decision
    return refuse_capacity(due.case, arms, decision.evaluations if decision is not None else None)


def _fleet(due: DueRoll) -> Refusal | None:
    if due.may_roll:
        return None
    return Refusal(ClusterReason.ROLL_WAITS, "other services are being rolled; this one is next")


def _api_server(due: DueRoll) -> Refusal | None:
    return Refusal(due.waits.reason, due.waits.sentence) if due.waits is not None else None


# An arm that crashes or fails requests is left whatever the profile, the rolls before and the moment say, as a roll is undone.
GATES: Final = (
    Gate("a person's order", _paused),
    Gate("suspicion of the profile", _suspect, ORDERED | LEAVING, of_advice=True),
    Gate("failures of the arm", _barred, ORDERED | LEAVING, of_advice=True),
    Gate("answers of the arm", _answers, ORDERED | LEAVING, of_advice=True),
    Gate("the target", _target),
    Gate("rolls before", _rolls_before, URGENT | ORDERED | LEAVING),
    Gate("this moment", _moment, LEAVING),
    Gate("capacity during the roll", _capacity, LEAVING),
    Gate("other services", _fleet),
    Gate("the API server", _api_server),
)
"""A person's order, the profile, the target, rolls before, this moment, then what is not the service's own."""


def gates_of(reason: Reason | ClusterReason) -> list[Gate]:
    """The gates that a change for this reason is asked at, in their order."""
    return [one for one in GATES if reason not in one.passed_by]


def held(due: DueRoll) -> Verdict | None:
    """The verdict in place of a change that is due and must not be made; None: make it."""
    verdict = due.verdict
    asked = gates_of(verdict.reason)
    if due.case.spec.update_policy.mode is Mode.RECOMMEND and not any(
        one.refuses(due) for one in asked if one.of_advice
    ):
        return replace(verdict, action=RECOMMEND)
    refusal = next((found for one in asked if (found := one.refuses(due)) is not None), None)
    if refusal is None:
        return None
    message = f"{spoken(verdict.arm)} should run ({verdict.reason}), but {refusal.message}"
    return replace(verdict, action=HOLD, reason=refusal.reason, message=message)
