"""All services that a reader may see, filtered and cut into pages, and what speculation is worth to them together. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from breakeven.estimate import Estimate
from breakeven_operator.board.board_rows import MARKS, ServiceRow, concerns_of, facts_of, row_of
from breakeven_operator.board.publication import Publication
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.resources import SpeculativeServiceStatus

ROWS = 100
"""Services on one page."""

LONGEST_FILTER = 63
ATTENTION = "attention"
SHOWN: Mapping[str, str] = {"pays": "Yes", "loses": "No", "unknown": "?"}
"""Values of the field `show` beside attention, and the words of PAYS that they take."""

_NOTHING = Estimate(0.0, 0.0, 0.0)
_CALM = 9


@dataclass(frozen=True, slots=True)
class FleetWorth:
    """Sums over services, each with the number of services behind it.

    Attributes:
        gpus: of services that speculate and need more GPUs, or fewer; lower and upper bounds are summed: all services at their
            worst, and at their best.
        calibration_gpu_hours: of all calibrations that ended; None if none is known.
    """

    gpus: Estimate
    counted: int
    calibration_gpu_hours: float | None
    calibrated: int


@dataclass(frozen=True, slots=True)
class ListFilter:
    """Which services are asked for; `page` counts from 1, and an empty text means every service."""

    namespace: str = ""
    text: str = ""
    show: str = ""
    page: int = 1

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ListFilter:
        """The filter of a form; a page that is no number is the first one."""
        number = given.get("page", "1")
        return cls(
            given.get("namespace", "")[:LONGEST_FILTER].strip(),
            given.get("text", "")[:LONGEST_FILTER].strip(),
            given.get("show", "") if given.get("show") in {ATTENTION, *SHOWN} else "",
            max(int(number), 1) if number.isascii() and number.isdigit() and len(number) < 6 else 1,
        )

    def takes(self, name: NamespacedName) -> bool:
        """Whether namespace and name are asked for."""
        return self.namespace in {"", name.namespace} and self.text in name.name


@dataclass(frozen=True, slots=True)
class ServiceList:
    """One page of the board.

    Attributes:
        found: services that the filter takes. pages: that they fill.
        seen: services that the reader may see.
        urgent: how many of them need attention; those come first.
        paying: how many of them by value of SHOWN.
        left_out: a sentence if not every namespace could be looked at; empty otherwise.
    """

    rows: Sequence[ServiceRow]
    asked: ListFilter
    found: int
    pages: int
    seen: int
    urgent: int
    paying: Mapping[str, int]
    worth: FleetWorth
    left_out: str


def service_list(
    published: Publication,
    names: Sequence[NamespacedName],
    asked: ListFilter,
    now: datetime,
    left_out: str = "",
) -> ServiceList:
    """One page of the board: `names` are the services that the reader may see, in order."""
    services = [published.services[name] for name in names if name in published.services]
    ranks = {name: found[0].rank for name in names if (found := concerns_of(published, name, now))}
    pays = {name: _pays(published, name) for name in names}
    taken = [name for name in names if asked.takes(name)]
    if asked.show:
        wanted = SHOWN.get(asked.show)
        taken = [one for one in taken if (one in ranks if wanted is None else pays[one] == wanted)]
    taken.sort(key=lambda one: ranks.get(one, _CALM))
    pages = max(-(-len(taken) // ROWS), 1)
    page = min(asked.page, pages)
    words = Counter(pays.values())
    return ServiceList(
        rows=[row_of(published, name, now) for name in taken[(page - 1) * ROWS : page * ROWS]],
        asked=replace(asked, page=page),
        found=len(taken),
        pages=pages,
        seen=len(names),
        urgent=len(ranks),
        paying={show: words[word] for show, word in SHOWN.items()},
        worth=sum_of(service.status for service in services),
        left_out=left_out,
    )


def list_json(published: Publication, page: ServiceList, now: datetime) -> str:
    """The rows of a page as JSON."""
    found = {
        "services": [facts_of(published, row, now) for row in page.rows],
        "found": page.found,
        "page": page.asked.page,
        "pages": page.pages,
        "left_out": page.left_out,
    }
    return json.dumps(found, indent=1)


def _pays(published: Publication, name: NamespacedName) -> str:
    service = published.services.get(name)
    display = service.status.display if service is not None else None
    word = str(display.pays if display is not None else "?").partition(" ")[0]
    return word if word in MARKS else "?"


def sum_of(statuses: Iterable[SpeculativeServiceStatus]) -> FleetWorth:
    """Gain and cost of many services."""
    every = tuple(statuses)
    worths = [one.savings for one in every if one.savings is not None]
    gpus = [one.gpus for one in worths if one.gpus != _NOTHING and one.gpus_basis == "Running"]
    gpus = [one for one in gpus if one.value is not None]
    used = [
        one.calibration.total_gpu_seconds / 3600.0
        for one in every
        if one.calibration is not None and one.calibration.total_gpu_seconds is not None
    ]
    return FleetWorth(
        gpus=_sum(gpus),
        counted=len(gpus),
        calibration_gpu_hours=sum(used) if used else None,
        calibrated=len(used),
    )


def _sum(parts: Sequence[Estimate]) -> Estimate:
    """Sum of figures, of lower and of upper bounds; a bound that one of them lacks is lacking."""
    ends = [(one.value, one.lower, one.upper) for one in parts]
    totals = (None if None in end else sum(filter(None, end)) for end in zip(*ends, strict=True))
    return Estimate(*totals) if parts else _NOTHING
