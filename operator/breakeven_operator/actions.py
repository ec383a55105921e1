"""The operator's actions, as data: a decision ends in an ActionPlan, which can be printed, compared and tested.

The list of actions is the list of the operator's powers. Only `WriteAnnotation` and `WriteProposal` touch an
object of the user.
`Create`, `Apply` and `Delete` take only kinds of which the operator owns every object it names. A service that
it made is a person's to change: `Apply` takes no service.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from breakeven_operator.kinds import FIELD_MANAGER, MADE, OWNED, Ref, Resource


@dataclass(frozen=True, slots=True)
class WriteAnnotation:
    """Set the arm of a workload: one pod-template annotation by server-side apply, then read it back.

    Attributes:
        value: the arm's JSON, or `null` for no speculation; never empty. None gives the key up, which undoes a first
            write: the pods that ran before it already have that template, and none needs a restart.
        generation: of the workload that was decided upon; nothing is written into another one.
        force: take the field from another manager; only after a person asked for it.
    """

    target: Ref
    value: str | None
    generation: int
    force: bool = False


@dataclass(frozen=True, slots=True)
class WriteProposal:
    """Write beside a workload's pod template what its next rollout takes; nothing restarts. None takes the proposal back."""

    target: Ref
    text: str | None


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Server-side apply of the whole status that field manager `breakeven` owns of one of our kinds.

    Fields owned by this manager and absent here are removed; fields of other managers (the trial's points) stay. With a resource
    version, the write fails if the object has changed since it was read.
    """

    ref: Ref
    status: Mapping[str, Any]
    resource_version: str | None = None
    manager: str = FIELD_MANAGER


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """An Event on one of our objects; `reason` is a reason word, `message` a whole sentence.

    Attributes:
        throttled: one Event that counts up for the same object, reason and `about`, however often it comes and goes.
        about: the roll or run that it tells of; another one has an Event of its own.
    """

    ref: Ref
    reason: str
    message: str
    warning: bool = False
    throttled: bool = False
    about: str = ""


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object of an owned kind from a full manifest; one that exists already counts as done.

    `known_profiles`: uids of the service's profiles that were decided upon, if another profile would make this needless.
    """

    resource: Resource
    body: Mapping[str, Any]
    known_profiles: frozenset[str] | None = None

    def __post_init__(self) -> None:
        _require_among(MADE, self.resource)


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of an object of an owned kind from a full manifest (creates it when absent)."""

    resource: Resource
    body: Mapping[str, Any]

    def __post_init__(self) -> None:
        _require_among(OWNED, self.resource)


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete one object of an owned kind with its dependents; one that is gone already counts as done.

    With a resource version, an object that has changed since it was read stays.
    """

    ref: Ref
    resource_version: str | None = None

    def __post_init__(self) -> None:
        _require_among(MADE, self.ref.resource)


@dataclass(frozen=True, slots=True)
class Fit:
    """Fit the points of a sweep in a child process (`breakeven fit`).

    Attributes:
        points_csv: a points file as the command line reads it.
        arguments: of the command line (`--confidence`, `0.9`).
        settles: the arm that is settled by it; its outcome goes to `calibration.advance`. Empty: the sweep is over, and its
            outcome goes to `calibration.conclude`.
    """

    run: Ref
    points_csv: str
    arguments: tuple[str, ...] = ()
    settles: str = ""


@dataclass(frozen=True, slots=True)
class FitOutcome:
    """Answer of the child process: the profile's JSON text, or one line why there is none."""

    profile_json: str | None
    error: str | None


class DoneFit(NamedTuple):
    """A fit that was asked for, and its outcome."""

    fit: Fit
    outcome: FitOutcome


Action: TypeAlias = WriteAnnotation | WriteProposal | WriteStatus | EmitEvent | Create | Apply | Delete | Fit


@dataclass(frozen=True, slots=True)
class ActionPlan:
    """Actions for one object in this cycle, and the facts about them.

    Attributes:
        actions: in order; when one fails the rest waits for the next cycle, so put what must be durable first.
        facts: the canonical log line of the cycle: small JSON values only, `reason` among them.
    """

    subject: Ref
    actions: tuple[Action, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def _require_among(kinds: Collection[Resource], resource: Resource) -> None:
    if resource not in kinds:
        raise ValueError(f"the operator does not own objects of kind {resource.kind}")
