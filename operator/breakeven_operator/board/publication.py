"""The services as the last cycle left them: references to what the operator keeps anyway, so that a page asks nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from breakeven_operator.case import FirstAnswer
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.ports import Manifest
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.step import ProfileEntry


@dataclass(frozen=True, slots=True)
class Publication:
    """The input of every page.

    Attributes:
        services: with their newest status, written or not.
        invalid: services whose spec breaks a rule, each with the one line that says how.
        targets: manifests of the targets that exist.
        firsts: answers of the past for services without a profile, by uid.
    """

    time: datetime
    services: Mapping[NamespacedName, SpeculativeService]
    invalid: Mapping[NamespacedName, str]
    profiles: Mapping[NamespacedName, Sequence[ProfileEntry]]
    firsts: Mapping[str, FirstAnswer]
    targets: Mapping[NamespacedName, Manifest] = field(default_factory=dict)

    @property
    def names(self) -> tuple[NamespacedName, ...]:
        """All services in the order of the page, the invalid ones among them."""
        return tuple(sorted({*self.services, *self.invalid}))

    def in_force(self, name: NamespacedName) -> ProfileEntry | None:
        """The profile that a service's status names; None if it names none, or it is gone."""
        state = self.services[name].status.calibration
        wanted = state.profile if state is not None else None
        return next((one for one in self.profiles.get(name, ()) if one.name == wanted), None)
