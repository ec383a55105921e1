"""One service as a page: its curve, its load, its rolls, what one may do, and its worth. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import itemgetter

from breakeven.errors import BreakevenError, InputError
from breakeven.estimate import Estimate
from breakeven.past.receipt_table import document, notes, table
from breakeven.past.receipts import Receipt
from breakeven.phrases import column, ratio_column, spoken
from breakeven.planning.what_it_takes import would_pay
from breakeven.profile import Conditions, Profile
from breakeven.reporting.lines import ArmCurve, kinds_over_load, which_kind
from breakeven_operator.board.board_rows import AxisPlace, ServiceRow, facts_of, ratio_span, row_of, view_of
from breakeven_operator.board.curve_drawing import (
    CurvePicture,
    LoadPicture,
    load_picture,
    speedup_picture,
    styles_of,
)
from breakeven_operator.board.load_trail import LoadSample
from breakeven_operator.board.publication import Publication
from breakeven_operator.board.what_if import WhatIf, answered_form
from breakeven_operator.kinds import NamespacedName
from breakeven_operator.plugin.explanation import (
    changes,
    controlled,
    losing,
    needed,
    waits,
    why,
    words,
    worths,
)
from breakeven_operator.plugin.service_table import measuring
from breakeven_operator.plugin.service_view import ServiceView
from breakeven_operator.plugin.wanted_arm import exported, wanted_arm
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.servicestatus import CalibrationStatus, ObjectiveStatus
from breakeven_operator.resources.targetstatus import PromiseAndMeasurement, RolloutPhase

_GOOD = frozenset({"Confirmed", "NotWorse"})
_BAD = frozenset({"Disproved", "Undone"})


@dataclass(frozen=True, slots=True)
class PodShare:
    """Pods that run an arm while a roll is under way, as a part of a bar."""

    arm: str
    pods: int
    begin: float
    width: float
    style: int


@dataclass(frozen=True, slots=True)
class RollEntry:
    """A change of arm: the promise and the measurement as text and as places around 1; None if there is none.

    Attributes:
        time: when it ended; when it began, of a roll that is under way.
        tone: `good`, `bad` or empty.
        phases, pods: of a roll that is under way, whose `result` is its phase: phases until now and later ones, and which pods run
            which arm.
    """

    time: datetime | None
    change: str
    result: str
    tone: str
    promised: str
    promised_bar: AxisPlace | None
    measured: str
    measured_bar: AxisPlace | None
    text: str
    phases: Sequence[str] = ()
    pods: Sequence[PodShare] = ()


@dataclass(frozen=True, slots=True)
class ServicePage:
    """Everything that the page of a service says.

    Attributes:
        why, changes, words, worth: sentences of `kubectl breakeven explain`.
        profile: name of the profile in force; empty for laws of a past.
        curve, what_if: None without laws. which: kinds of arms at light and at heavy load; empty without adaptive verification. load: None without loads that were seen.
        run: state of the calibration under way; None if none is.
        patch: what `kubectl breakeven export` prints; empty if nothing is recommended.
        commands: lines for a terminal, each with what it does.
        latencies: rows of figure, measured, predicted. objectives: rows of figure, measured, predicted, limit, verdict.
        rolls, history: newest first, the roll under way among them; rows of time, `Arm`, `Calibration`, `Answers` or `Condition`, text.
        first_answer: sentence of the past; empty if there is none.
        receipts: what speculation saved in each month; None where no Prometheus is asked.
    """

    row: ServiceRow
    latency: Sequence[str] = ()
    why: Sequence[str] = ()
    changes: Sequence[str] = ()
    words: Sequence[str] = ()
    worth: Sequence[str] = ()
    profile: str = ""
    curve: CurvePicture | None = None
    which: str = ""
    load: LoadPicture | None = None
    run: CalibrationStatus | None = None
    patch: str = ""
    commands: Sequence[tuple[str, str]] = ()
    latencies: Sequence[Sequence[str]] = ()
    objectives: Sequence[Sequence[str]] = ()
    rolls: Sequence[RollEntry] = ()
    history: Sequence[tuple[datetime, str, str]] = ()
    what_if: WhatIf | None = None
    first_answer: str = ""
    receipts: ReceiptTable | None = None


@dataclass(frozen=True, slots=True)
class ReceiptTable:
    """The table of `kubectl breakeven savings`; `notes` stand below it, `facts` are the same for programs."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    facts: Mapping[str, object]


def with_receipts(
    page: ServicePage, found: Sequence[Receipt], problem: str, price: float | None
) -> ServicePage:
    """The page with receipts, or with the sentence that says why there are none."""
    heads, rows = table(found, price)
    said = [problem] if problem else notes(found)
    return replace(page, receipts=ReceiptTable(heads, rows, said, document(found, price, "")))


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
        return ServicePage(row)
    view, status, styles = view_of(service), service.status, styles_of(curves)
    laws = laws_of(published, name)
    first = published.firsts.get(service.metadata.uid)
    return ServicePage(
        row=row,
        latency=_latency(service),
        why=tuple(why(view)),
        changes=(*changes(view), *(_needed(view, laws[1]) if laws is not None else ())),
        words=tuple(words(view)),
        worth=(*(worths(view) if _has_worth(service) else ()), *controlled(view)),
        profile=laws[0] if laws is not None else "",
        curve=speedup_picture(curves, status) if curves else None,
        which=which_kind(kinds) if (kinds := kinds_over_load(curves)) else "",
        load=load_picture(trail, status, styles),
        run=status.calibration if measuring(view) else None,
        patch=patch_of(published, name, view),
        commands=tuple(commands(view, now)),
        latencies=_latencies(service),
        objectives=[_objective(one) for one in status.objectives],
        rolls=[
            *_under_way(service, styles),
            *(
                _roll(one, one.time, one.change, str(one.result), str(one.message or ""))
                for one in status.history
            ),
        ],
        history=history(service),
        what_if=answered_form(laws[1], service, asked) if laws is not None else None,
        first_answer=first.sentence if first is not None and row.first else "",
    )


def service_json(
    published: Publication, page: ServicePage, trail: Sequence[LoadSample], now: datetime
) -> str:
    """The facts of a page as JSON, with the whole status."""
    service = published.services.get(page.row.name)
    found = {
        **facts_of(published, page.row, now),
        "why": page.why,
        "changes": page.changes,
        "worth": page.worth,
        "patch": page.patch,
        "receipts": page.receipts.facts["receipts"] if page.receipts is not None else [],
        "loads": [{"time": one.time_s, "rps": one.rps} for one in trail],
        "status": view_of(service).status if service is not None else None,
    }
    return json.dumps(found, indent=1)


def patch_of(published: Publication, name: NamespacedName, view: ServiceView) -> str:
    """What `kubectl breakeven export` prints; empty if nothing is recommended, or the target is not known.

    Missing lines are left out: a line that names vLLM's arguments may hold a key, and a reader of the board need have no right to
    read the target.
    """
    target, entry = published.targets.get(name), published.in_force(name)
    if target is None:
        return ""
    fits = entry.profile.arms if entry is not None and entry.profile is not None else ()
    drafters = entry.drafters if entry is not None else {}
    arms = [
        {
            "arm": fit.arm.name,
            "candidate": fit.candidate,
            "schedule": fit.schedule,
            "drafter": drafters.get(fit.arm.name),
        }
        for fit in fits
    ]
    try:
        wanted = wanted_arm(view, target, {"spec": {"arms": arms}})
    except InputError:
        return ""
    if wanted.missing is not None:
        command = f"kubectl breakeven export {name.name} -n {name.namespace}"
        wanted = replace(wanted, missing=(f"`{command}` prints the lines that are missing",))
    return exported(wanted)


def commands(view: ServiceView, now: datetime) -> Iterator[tuple[str, str]]:
    """The commands that make sense in this state, and what each does."""
    place = f"{view.name} -n {view.namespace}"
    verb = "kubectl breakeven"
    if view.paused:
        yield f"{verb} resume {place}", "let the operator go on"
    if any("--retry" in one.text for one in waits(view, now)):
        yield f"{verb} resume {place} --retry", "end the wait after undone rolls"
    wanted, running = view.recommended, view.running
    if wanted and running and wanted != running and view.mode != "RollingUpdate":
        change = json.dumps({"spec": {"updatePolicy": {"mode": "RollingUpdate"}}}, separators=(",", ":"))
        yield (
            f"kubectl patch specsvc {place} --type=merge -p '{change}'",
            f"let the operator roll to {spoken(wanted)}, measure it, and take it back if it loses",
        )
    if view.policy.get("pinnedArm"):
        yield f"{verb} unpin {place}", "let the figures decide again"
    elif running:
        yield f"{verb} pin {view.name} {running} -n {view.namespace}", f"stay with {spoken(running)}"
    if not measuring(view):
        yield f"{verb} recalibrate {place}", "measure the arms again"
    if not view.paused:
        yield f"{verb} pause {place}", "change and start nothing"
    yield f"{verb} explain {place}", "this page in sentences"


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


def _has_worth(service: SpeculativeService) -> bool:
    """Whether speculation saves or costs something, beside its measuring."""
    worth = service.status.savings
    return worth is not None and any((worth.gpus_not_needed, worth.gpus.lower, worth.gpus.upper))


def _latency(service: SpeculativeService) -> Sequence[str]:
    """Mean latency, measured and predicted; empty if none was measured."""
    decision = service.status.decision
    if decision is None or decision.observed_latency_seconds is None:
        return ()
    return column(decision.observed_latency_seconds, "s"), column(decision.predicted_latency_seconds, "s")


def _latencies(service: SpeculativeService) -> Sequence[Sequence[str]]:
    model, mean = service.status.model, _latency(service)
    if not mean:
        return ()
    rows = [("Mean latency of a request", *mean)]
    if model is not None:
        over = ratio_column(model.latency_ratio, (model.latency_ratio_lower, model.latency_ratio_upper))
        own = ratio_column(1.0, (model.predicted_lower, model.predicted_upper))
        rows.append(("Measured over predicted, median of the last windows", over, own))
        rows += [
            (f"The same, {text}", ratio_column(value, None), "1.00")
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


def _roll(
    one: PromiseAndMeasurement, time: datetime | None, change: str, result: str, text: str
) -> RollEntry:
    promised = Estimate(one.predicted_speedup, one.predicted_speedup_lower, one.predicted_speedup_upper)
    measured = Estimate(one.measured_speedup, one.measured_speedup_lower, one.measured_speedup_upper)
    return RollEntry(
        time=time,
        change=change,
        result=result,
        tone="good" if result in _GOOD else "bad" if result in _BAD else "",
        promised=ratio_column(promised.value, promised.bounds),
        promised_bar=ratio_span(promised),
        measured=ratio_column(measured.value, measured.bounds),
        measured_bar=ratio_span(measured),
        # The timeline shows the arms beside it.
        text=text.removeprefix(f"{change}: "),
    )


def _under_way(service: SpeculativeService, styles: Mapping[str, int]) -> Iterator[RollEntry]:
    roll, current = service.status.rollout, service.status.current
    if roll is None:
        return
    undone = roll.phase is RolloutPhase.UNDOING
    phases = [str(one) for one in RolloutPhase if (one is RolloutPhase.UNDOING) is undone]
    found = [one for one in (current.pods_by_arm if current is not None else ()) if one.pods]
    pods, begin, every = [], 0.0, sum(one.pods for one in found)
    for one in found:
        width = round(100.0 * one.pods / every, 1)
        pods.append(PodShare(spoken(one.arm), one.pods, begin, width, styles.get(one.arm, 0)))
        begin += width
    entry = _roll(roll, roll.started_time, roll.change, str(roll.phase), str(roll.reason or ""))
    yield replace(entry, phases=phases, pods=pods)


def history(service: SpeculativeService) -> Sequence[tuple[datetime, str, str]]:
    """The arm, calibrations, and conditions that do not hold, newest first; rolls have a timeline of their own."""
    current, state = service.status.current, service.status.calibration
    found = []
    if current is not None and current.since is not None:
        found.append((current.since, "Arm", f"{current.spoken} runs since then"))
    if state is not None and state.profile_time is not None:
        found.append((state.profile_time, "Calibration", f"Profile {state.profile or '?'} was measured"))
        found += [(state.profile_time, "Answers", f"{one.arm}: {one.word}") for one in state.answers]
    if state is not None and state.last_run_time is not None:
        text = f"Run {state.last_run or '?'} ended: {state.last_reason or '?'}"
        found.append((state.last_run_time, "Calibration", text))
    found += [
        (one.last_transition_time, "Condition", f"{one.type} is {one.status} since then: {one.reason}")
        for one in service.status.conditions
        if one.status != "True" and one.type != "Progressing"
    ]
    return sorted(found, key=itemgetter(0), reverse=True)
