"""A service as one row of the board: the words of its status, and their age when the page is read. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from breakeven.arm import NO_SPECULATION
from breakeven.estimate import Estimate
from breakeven.phrases import NOT_KNOWN, are_known, column, through
from breakeven_operator.board.publication import Publication
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.plugin.alert_course import alert_states
from breakeven_operator.plugin.explanation import waits, worries
from breakeven_operator.plugin.service_table import calibration, doubts, last_roll
from breakeven_operator.plugin.service_view import ServiceView, short_age
from breakeven_operator.resources import SpeculativeService

MARKS = {"Yes": "✓", "No": "✗"}
"""Shapes beside the words of PAYS: colour carries no meaning of its own."""

_UNKNOWN_MARK = "?"


@dataclass(frozen=True, slots=True)
class LoadBar:
    """A load per replica beside its break-even on one axis from 0 to `end_rps`; an open end is None."""

    load_rps: float
    break_even_rps: Estimate
    end_rps: float

    def share(self, rps: float | None, otherwise: float = 1.0) -> float:
        """Place on the axis in percent; the place of `otherwise` if the end is open."""
        return 100.0 * min(rps / self.end_rps if rps is not None else otherwise, 1.0)

    @property
    def words(self) -> str:
        """The same as text."""
        known = self.break_even_rps
        ends = through(known.value or 0.0, known.lower, known.upper)
        return f"load {column(self.load_rps, 'rps')}; break-even {column(known.value, 'rps')} ({ends})"


@dataclass(frozen=True, slots=True)
class ServiceRow:
    """One row; every field is text for people, `-` if there is nothing to say, as of a spec that is not valid.

    Attributes:
        mark: shape of `pays`.
        bar: None if load or break-even is not known.
        doubts: sentences about a status that is not of now.
        worries: conditions that say a fault, and alerts of the chart.
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
    load: str = "-"
    break_even: str = "-"
    bar: LoadBar | None = None
    model_error: str = "-"
    last_roll: str = "-"
    answers: str = "-"
    calibration: str = "-"
    reason: str = "-"
    waits: Sequence[str] = ()
    age: str = "-"
    doubts: Sequence[str] = ()
    worries: Sequence[str] = ()
    first: bool = False

    @property
    def needs_attention(self) -> bool:
        """Whether a person should look."""
        return bool(self.doubts or self.worries)


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
        return ServiceRow(name, reason=str(ClusterReason.INVALID_SPEC), worries=(published.invalid[name],))
    view = view_of(service)
    shown = view.display
    pays = str(shown.get("pays") or "?")
    word = pays.partition(" ")[0]
    return ServiceRow(
        name=name,
        target=view.target,
        mode=str(shown.get("mode") or view.mode),
        arm=str(shown.get("arm") or "-"),
        recommended=str(shown.get("recommended") or "-"),
        pays=pays if word in MARKS else pays.replace("?", "not known", 1),
        mark=MARKS.get(word, _UNKNOWN_MARK),
        speedup=str(shown.get("speedup") or "-"),
        load=str(shown.get("load") or "-"),
        break_even=str(shown.get("breakEven") or "-"),
        bar=load_bar(service),
        model_error=model_error(service),
        last_roll=last_roll(view),
        answers=answers(service),
        calibration=calibration(view, now),
        reason=str(shown.get("reason") or view.reason or "-"),
        waits=tuple(waits(view, now)),
        age=short_age(view.decided, now),
        doubts=tuple(doubts(view, now)),
        worries=_worries(service, view, now),
        first=word != pays,
    )


def needs_attention(published: Publication, name: NamespacedName, now: datetime) -> bool:
    """Whether a person should look at a service; cheaper than its whole row."""
    service = published.services.get(name)
    if service is None:
        return True
    view = view_of(service)
    return bool([*doubts(view, now), *_worries(service, view, now)])


def _worries(service: SpeculativeService, view: ServiceView, now: datetime) -> Sequence[str]:
    return tuple(worries(view, [one.said(now) for one in alert_states(service, now)]))


def load_bar(service: SpeculativeService) -> LoadBar | None:
    """Load against break-even; None if one of them is not known, or is no number."""
    decision = service.status.decision
    if decision is None or decision.load_rps is None or decision.break_even_rps is None:
        return None
    load, edge = decision.load_rps, decision.break_even_rps
    if not (math.isfinite(load) and math.isfinite(edge) and load >= 0.0 and edge > 0.0):
        return None
    known = Estimate(edge, decision.break_even_lower_rps, decision.break_even_upper_rps)
    return LoadBar(load, known, 1.15 * max(load, edge, known.upper or 0.0))


def model_error(service: SpeculativeService) -> str:
    """Measured over predicted latency as a deviation: `+3 % [-1,+6]`."""
    model = service.status.model
    if model is None or model.latency_ratio is None or not math.isfinite(model.latency_ratio):
        return "-"
    ends = (model.latency_ratio_lower, model.latency_ratio_upper)
    if not are_known(model.latency_ratio, *ends):
        return NOT_KNOWN
    low, high = ("-" if end is None else _deviation(end) for end in ends)
    return f"{_deviation(model.latency_ratio)} % [{low},{high}]"


def _deviation(ratio: float) -> str:
    percent = round(100.0 * (ratio - 1.0))
    return f"{percent:+d}" if percent else "0"


def answers(service: SpeculativeService) -> str:
    """The answers' word of the arm that speculates: the running one, else the recommended one."""
    state, current, decision = service.status.calibration, service.status.current, service.status.decision
    named = (current and current.arm, decision and decision.arm)
    arm = next((one for one in named if one and one != NO_SPECULATION.name), None)
    said = {one.arm: one.word for one in state.answers} if state is not None else {}
    return said.get(arm, "-") if arm else "-"
