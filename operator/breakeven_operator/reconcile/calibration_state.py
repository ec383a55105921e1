"""The profiles of a service as values: one that was read, a doubt about it, and where the service stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import NamedTuple

from breakeven.profile import Profile
from breakeven_operator.actions import Create
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources import CalibrationRun
from breakeven_operator.resources.calibrationrun import Trigger
from breakeven_operator.resources.servicestatus import CalibrationStatus


class FailedArm(NamedTuple):
    """An arm that a profile could not measure, and the word why."""

    arm: str
    reason: str


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """A SpeculationProfile, parsed once; `profile` is None if it cannot be read, and `problem` says why.

    Attributes:
        arms: names of the arms that were measured, or tried in vain.
        model, image: of the template that was measured, as its manifest names them; None if the profile does not say.
        drafters: mark of each arm's drafter; none for a profile that names arms alone.
    """

    name: str
    uid: str
    service: str
    fingerprint: str
    gpu_product: str
    created: datetime
    arms: frozenset[str]
    profile: Profile | None
    problem: str | None = None
    in_force: bool | None = None
    failed: tuple[FailedArm, ...] = ()
    model: str | None = None
    image: str | None = None
    drafters: Mapping[str, str] = field(default_factory=dict)


class Doubt(NamedTuple):
    """Reason to measure a profile again, by live traffic; `dispelled`: the profile was tested, and there is no such reason."""

    trigger: Trigger | None = None
    dispelled: bool = False


@dataclass(frozen=True)
class Calibrated:
    """Where a service stands with its profile.

    Attributes:
        entry: the profile in force; None without one that may be used.
        reason, message: of the condition Calibrated.
        run: the unfinished run, None if none is.
        ended: runs that ended since the last cycle and are accounted for in `status`.
        former: the newest profile of the same model and GPU class, if none is in force: an arm is left on its word, and no arm
            entered.
    """

    entry: ProfileEntry | None
    reason: ClusterReason
    message: str
    run: CalibrationRun | None
    create: Create | None
    trigger: Trigger | None
    status: CalibrationStatus
    recalibrate: str | None
    ended: tuple[CalibrationRun, ...] = ()
    former: ProfileEntry | None = None

    @cached_property
    def profile(self) -> Profile | None:
        """The profile in force, as it was read."""
        return self.entry.profile if self.entry is not None else None

    @cached_property
    def profile_name(self) -> str | None:
        """Name of the profile in force."""
        return self.entry.name if self.entry is not None else None
