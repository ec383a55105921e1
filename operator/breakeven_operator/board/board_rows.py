"""A service as one row of the board: the words of its status, what needs attention, and bars beside the figures. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from breakeven.arm import NO_SPECULATION
from breakeven.estimate import Estimate
from breakeven.phrases import column, ratio_read, spoken, through
from breakeven_operator.board.publication import Publication
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.plugin.alert_course import alert_states
from breakeven_operator.plugin.explanation import Notice, waits, worries
from breakeven_operator.plugin.service_table import calibration, document, doubts
from breakeven_operator.plugin.service_view import ServiceView, short_age
from breakeven_operator.resources import SpeculativeService

MARKS = {"Yes": "✓", "No": "✗"}
"""Shapes beside the words of PAYS: colour carries no meaning of its own."""

_UNKNOWN_MARK = "?"
# Twice as fast and half as fast lie equally far from 1.
_END_OF_RATIOS = 2.5
_FARTHEST = 4.0


class AxisPlace(NamedTuple):
    """A figure and its bounds as places on an axis, in percent of its width; open ends lie at the ends of the axis."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Distance of the bounds."""
        return self.high - self.low


def ratio_span(known: Estimate | None) -> AxisPlace | None:
    """A speedup on an axis with 1 in its middle; None without a figure above 0."""
    if known is None or known.value is None or not (math.isfinite(known.value) and known.value > 0.0):
        return None

    def place(ratio: float | None, otherwise: float) -> float:
        if ratio is None:
            return otherwise
        share = math.log(ratio) / math.log(_END_OF_RATIOS) if ratio > 0.0 else -1.0
        return round(50.0 + 50.0 * min(max(share, -1.0), 1.0), 1)

    middle = place(known.value, 50.0)
    if known.bounds is None:
        return AxisPlace(middle, middle, middle)
    return AxisPlace(middle, place(known.lower, 0.0), place(known.upper, 100.0))


@dataclass(frozen=True, slots=True)
class LoadBar:
    """A load per replica beside its break-even, as places on one axis from 0."""

    load: float
    break_even: AxisPlace
    words: str


@dataclass(frozen=True, slots=True)
class Concern:
    """Something that a person should look at; the most urgent rank is 0.

    `alert` is the name of a rule of the chart, which has a runbook; empty otherwise.
    """

    rank: int
    short: str
    text: str
    alert: str = ""


@dataclass(frozen=True, slots=True)
class ServiceRow:
    """One row; every text is for people, `-` if there is nothing to say, as of a spec that is not valid.

    Attributes:
        mark: shape of `pays`.
        speedup_bar, load_bar: None if the figure is not known.
        waits: what holds a change back.
        concerns: what needs attention, the most urgent first.
        age: of the decision when the page is read.
        first: whether the figures are of the service's past, in which no arm was measured.
    """

    name: NamespacedName
    target: str = "-"
    mode: str = "-"
    arm: str = "-"
    recommended: str = "-"
    pays: str = "not known"
    mark: str = _UNKNOWN_MARK
    speedup: str = "-"
    speedup_bar: AxisPlace | None = None
    load: str = "-"
    break_even: str = "-"
    load_bar: LoadBar | None = None
    calibration: str = "-"
    reason: str = "-"
    waits: Sequence[Notice] = ()
    concerns: Sequence[Concern] = ()
    age: str = "-"
    first: bool = False


def view_of(service: SpeculativeService) -> ServiceView:
    """The service as the texts of `kubectl breakeven` read it."""
    meta, document = service.metadata, service.to_json_object()
    return ServiceView(
        meta.namespace,
        meta.name,
        meta.generation,
        meta.creation_timestamp,
        document["spec"],
        document.get("status") or {},
    )


def row_of(published: Publication, name: NamespacedName, now: datetime) -> ServiceRow:
    """The row of a published service."""
    service = published.services.get(name)
    if service is None:
        return ServiceRow(
            name, reason=str(ClusterReason.INVALID_SPEC), concerns=concerns_of(published, name, now)
        )
    view = view_of(service)
    shown = view.display
    pays, speedup = str(shown.get("pays") or "?"), str(shown.get("speedup") or "-")
    word = pays.partition(" ")[0]
    return ServiceRow(
        name=name,
        target=view.target,
        mode=str(shown.get("mode") or view.mode),
        arm=str(shown.get("arm") or "-"),
        recommended=str(shown.get("recommended") or "-"),
        pays=pays if word in MARKS else pays.replace("?", "not known", 1),
        mark=MARKS.get(word, _UNKNOWN_MARK),
        speedup=speedup,
        # The figure beside it may be a measured one, which no other field holds.
        speedup_bar=ratio_span(ratio_read(speedup)),
        load=str(shown.get("load") or "-"),
        break_even=str(shown.get("breakEven") or "-"),
        load_bar=load_bar(service),
        calibration=calibration(view, now),
        reason=str(shown.get("reason") or view.reason or "-"),
        waits=tuple(waits(view, now)),
        concerns=_concerns(service, view, now),
        age=short_age(view.decided, now),
        first=word != pays,
    )


def concerns_of(published: Publication, name: NamespacedName, now: datetime) -> Sequence[Concern]:
    """What needs attention: alerts that fire, an arm that loses, faults and held rolls, alerts to come, a status that is not of now."""
    service = published.services.get(name)
    if service is None:
        return (Concern(2, str(ClusterReason.INVALID_SPEC), published.invalid[name]),)
    return _concerns(service, view_of(service), now)


def _concerns(service: SpeculativeService, view: ServiceView, now: datetime) -> Sequence[Concern]:
    return tuple(sorted(_found(service, view, now), key=lambda one: one.rank))


def _found(service: SpeculativeService, view: ServiceView, now: datetime) -> Iterator[Concern]:
    alerts = list(alert_states(service, now))
    for one in alerts:
        fires = one.fires <= now
        yield Concern(0 if fires else 3, f"{one.name}{'' if fires else ' soon'}", one.said(now), one.name)
    speculates = view.running not in {None, NO_SPECULATION.name}
    told = any(one.name == "SpeculationUnprofitable" for one in alerts)
    if speculates and not told and str(view.display.get("pays")).startswith("No"):
        yield Concern(
            1,
            f"{spoken(view.running)} loses",
            f"{spoken(view.running)} runs and does not pay: speedup {view.display.get('speedup')}.",
        )
    for point in worries(view):
        yield Concern(2, *point)
    for text in doubts(view, now):
        yield Concern(4, "Status not of now", f"{text}.")


def facts_of(published: Publication, row: ServiceRow, now: datetime) -> Mapping[str, Any]:
    """A row as JSON: what `kubectl breakeven status --json` prints of the service, what needs attention and what it waits for."""
    service = published.services.get(row.name)
    known = document([view_of(service)], (), now)["services"][0] if service is not None else {}
    return {
        **known,
        "namespace": row.name.namespace,
        "name": row.name.name,
        "attention": [one.text for one in row.concerns],
        "waits": [one.text for one in row.waits],
    }


def load_bar(service: SpeculativeService) -> LoadBar | None:
    """Load against break-even; None if one of them is not known, or is no number."""
    decision = service.status.decision
    if decision is None or decision.load_rps is None or decision.break_even_rps is None:
        return None
    load, edge = decision.load_rps, decision.break_even_rps
    if not (math.isfinite(load) and math.isfinite(edge) and load >= 0.0 and edge > 0.0):
        return None
    lower, upper = decision.break_even_lower_rps, decision.break_even_upper_rps
    end = 1.15 * max(load, edge, min(upper or 0.0, _FARTHEST * edge))

    def place(rps: float | None, otherwise: float) -> float:
        return round(100.0 * min(rps / end, 1.0), 1) if rps is not None else otherwise

    words = f"load {column(load, 'rps')}; break-even {column(edge, 'rps')} ({through(edge, lower, upper)})"
    return LoadBar(
        place(load, 0.0), AxisPlace(place(edge, 0.0), place(lower, 0.0), place(upper, 100.0)), words
    )
