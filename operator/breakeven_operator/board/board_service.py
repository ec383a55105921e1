"""One service as a page: curves, latencies, the course of its arms, its calibration and its worth. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from breakeven.errors import BreakevenError
from breakeven.phrases import column, ratio_column
from breakeven.planning.what_it_takes import would_pay
from breakeven.profile import Conditions, Profile
from breakeven.reporting.lines import ArmCurve, kinds_over_load, which_kind
from breakeven_operator.board.board_rows import ServiceRow, row_of, view_of
from breakeven_operator.board.curve_drawing import (
    CurvePicture,
    LoadStrip,
    end_of_axis,
    latency_picture,
    load_strip,
    speedup_picture,
)
from breakeven_operator.board.load_trail import LoadSample
from breakeven_operator.board.publication import Publication
from breakeven_operator.board.what_if import WhatIf, answered_form
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.plugin.alert_course import alert_states
from breakeven_operator.plugin.explanation import changes, losing, needed, why, words, worths
from breakeven_operator.plugin.service_table import measuring, speedups
from breakeven_operator.plugin.service_view import ServiceView
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.servicestatus import ObjectiveStatus


@dataclass(frozen=True, slots=True)
class CourseEntry:
    """Something that happened to a service, or a condition since when it holds.

    `what` is one of `arm`, `roll`, `calibration`, `condition`, `alert`.
    """

    time: datetime
    what: str
    text: str


@dataclass(frozen=True, slots=True)
class RunProgress:
    """A calibration under way; planned 0: not known yet."""

    run: str
    done: int
    planned: int


@dataclass(frozen=True, slots=True)
class CurvePage:
    """The pictures of a profile; the name is empty for laws of a past.

    `which` says what no speculation, fixed, schedule and adaptive lose at light load and gain at heavy load; empty without the last.
    `strip` is the load of the last hours; None if fewer than two windows were seen.
    """

    profile: str
    speedup: CurvePicture
    latency: CurvePicture
    strip: LoadStrip | None
    which: str = ""


@dataclass(frozen=True, slots=True)
class ServicePage:
    """Everything that the page of a service says.

    Attributes:
        why, changes, words: sentences of `kubectl breakeven explain`.
        curves, what_if: None without laws.
        latencies: rows of name, measured, predicted. objectives: rows of figure, measured, predicted, limit, verdict.
        course: newest first.
        run: None if no calibration is under way.
        first_answer: sentence of the past; empty if there is none.
    """

    row: ServiceRow
    why: Sequence[str]
    changes: Sequence[str]
    words: Sequence[str]
    curves: CurvePage | None
    latencies: Sequence[Sequence[str]]
    objectives: Sequence[Sequence[str]]
    course: Sequence[CourseEntry]
    run: RunProgress | None
    worth: Sequence[str]
    what_if: WhatIf | None
    first_answer: str


def laws_of(published: Publication, name: NamespacedName) -> tuple[str, Profile] | None:
    """Name and laws of the profile in force, else the laws of the past under an empty name; None without any."""
    entry = published.in_force(name)
    if entry is not None and entry.profile is not None:
        return entry.name, entry.profile
    first = published.firsts.get(published.services[name].metadata.uid)
    return ("", first.profile) if first is not None and first.profile is not None else None


def service_page(
    published: Publication,
    name: NamespacedName,
    trail: Sequence[LoadSample],
    curves: Sequence[ArmCurve],
    asked: Mapping[str, str],
    now: datetime,
) -> ServicePage:
    """The page of a service; `curves` are of `laws_of`, and without fields of the what-if form nothing was asked."""
    row = row_of(published, name, now)
    service = published.services.get(name)
    if service is None:
        return ServicePage(row, (), (), (), None, (), (), (), None, (), None, "")
    view = view_of(service)
    laws = laws_of(published, name)
    first = published.firsts.get(service.metadata.uid)
    return ServicePage(
        row=row,
        why=tuple(why(view)),
        changes=(*changes(view), *(_needed(view, laws[1]) if laws is not None else ())),
        words=tuple(words(view)),
        curves=_curves(laws[0], curves, trail, service) if laws is not None and curves else None,
        latencies=_latencies(service),
        objectives=[_objective(one) for one in service.status.objectives],
        course=course(service, now),
        run=_progress(service) if measuring(view) else None,
        worth=tuple(worths(view)),
        what_if=answered_form(laws[1], service, asked) if laws is not None else None,
        first_answer=first.sentence if first is not None and row.first else "",
    )


def _needed(view: ServiceView, profile: Profile) -> Sequence[str]:
    question = losing(view)
    arm = next(
        (fit.arm for fit in profile.arms if question is not None and fit.arm.name == question[0]), None
    )
    if question is None or arm is None:
        return ()
    try:
        return needed(view, would_pay(profile, arm, question[1], Conditions(tokens_per_step=question[2])))
    except BreakevenError:
        # A law that was not fitted to these figures predicts no others.
        return ()


def _curves(
    profile: str, curves: Sequence[ArmCurve], trail: Sequence[LoadSample], service: SpeculativeService
) -> CurvePage:
    decision = service.status.decision
    end_rps = end_of_axis(curves, trail, decision)
    kinds = kinds_over_load(curves)
    return CurvePage(
        profile,
        speedup_picture(curves, end_rps, decision),
        latency_picture(curves, end_rps, decision),
        load_strip(trail, end_rps, decision),
        which_kind(kinds) if kinds else "",
    )


def _latencies(service: SpeculativeService) -> Sequence[Sequence[str]]:
    decision, model = service.status.decision, service.status.model
    if decision is None or decision.observed_latency_seconds is None:
        return ()
    promised = column(decision.predicted_latency_seconds, "s")
    rows = [("mean latency of a request", column(decision.observed_latency_seconds, "s"), promised)]
    if model is not None:
        over = ratio_column(model.latency_ratio, (model.latency_ratio_lower, model.latency_ratio_upper))
        own = ratio_column(1.0, (model.predicted_lower, model.predicted_upper))
        rows.append(("measured over predicted, median of the last windows", over, own))
        rows += [
            (f"the same, {text}", ratio_column(value, None), "1.00")
            for text, value in (
                ("time to first token", model.ttft_ratio),
                ("time per output token", model.tpot_ratio),
            )
            if value is not None
        ]
    return rows


def _objective(one: ObjectiveStatus) -> Sequence[str]:
    return (
        str(one.figure),
        ratio_column(one.p95_seconds, (one.p95_lower_seconds, one.p95_upper_seconds)),
        ratio_column(
            one.predicted_p95_seconds, (one.predicted_p95_lower_seconds, one.predicted_p95_upper_seconds)
        ),
        column(one.limit_seconds),
        str(one.finding or "-"),
    )


def course(service: SpeculativeService, now: datetime) -> Sequence[CourseEntry]:
    """Arms, rolls, calibrations, and conditions and alerts that hold, newest first."""
    status = service.status
    found = [
        CourseEntry(
            one.time,
            "roll",
            " ".join(
                [
                    f"{one.change}: {one.result}",
                    *speedups(one.to_json_object()),
                    f"({one.message})" if one.message else "",
                ]
            ).strip(),
        )
        for one in status.history
    ]
    if (roll := status.rollout) is not None and roll.started_time is not None:
        text = f"{roll.change} began; it is {roll.phase}"
        found.append(CourseEntry(roll.started_time, "roll", text))
    if status.current is not None and status.current.since is not None:
        found.append(CourseEntry(status.current.since, "arm", f"{status.current.spoken} runs since then"))
    state = status.calibration
    if state is not None and state.profile_time is not None:
        found.append(
            CourseEntry(state.profile_time, "calibration", f"profile {state.profile or '?'} was measured")
        )
    if state is not None and state.last_run_time is not None:
        text = f"run {state.last_run or '?'} ended: {state.last_reason or '?'}"
        found.append(CourseEntry(state.last_run_time, "calibration", text))
    found += [
        CourseEntry(
            one.last_transition_time, "condition", f"{one.type} is {one.status} since then: {one.reason}"
        )
        for one in status.conditions
        if one.status != "True" and one.type != "Progressing"
    ]
    found += [CourseEntry(one.since, "alert", one.said(now)) for one in alert_states(service, now)]
    return sorted(found, key=lambda one: one.time, reverse=True)


def _progress(service: SpeculativeService) -> RunProgress | None:
    state = service.status.calibration
    if state is None:
        return None
    return RunProgress(state.run or "?", state.points_done or 0, state.points_planned or 0)
