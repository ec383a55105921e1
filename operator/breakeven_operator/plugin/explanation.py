"""The answer of `kubectl breakeven explain`: why this arm, what would change it, and what it waits for, in sentences.

Sentences with figures are the operator's own (decision and conditions). Meanings and remedies of reason words come from the
tables that docs/reasons.md shows too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from breakeven.phrases import figure, pays_text, saved_text, spoken
from breakeven.printable import one_line
from breakeven.reasons import PAYS, SIDES, Reason
from breakeven_operator.cluster_reasons import QUIET, ClusterReason
from breakeven_operator.plugin.service_table import doubts, last_roll, measuring, operator_gone
from breakeven_operator.plugin.service_view import (
    Json,
    LeaseView,
    ServiceView,
    number_of,
    sentence,
    short_age,
    time_of,
)

_WIDTH = 100
# Conditions that are no worry while they are False: nothing rolls, speculation does not pay. The alert of an arm that loses is one.
_QUIET_IF_FALSE = frozenset({"Progressing", "Profitable"})
_NOTHING = "Nothing to do."
_WARN = {str(one) for one in ClusterReason} - QUIET


class Notice(NamedTuple):
    """Something to wait for or to look at: a few words for a column, and the sentence."""

    short: str
    text: str


def explanation(
    service: ServiceView,
    leases: Sequence[LeaseView],
    now: datetime,
    needed: Sequence[str] = (),
    alerts: Sequence[str] = (),
) -> str:
    """The whole text, by headed paragraphs; doubts about its age come last.

    `needed` are sentences about what it would take for a losing arm to pay, `alerts` about rules of the chart that hold.
    """
    parts = [
        ("", [*_present(service, now)]),
        ("Why", [*why(service)]),
        ("What would change it", [*changes(service), *needed]),
        ("What it waits for", [one.text for one in waits(service, now)]),
        ("What it is worth", [*worths(service), *controlled(service)]),
        ("Needs attention", [*(one.text for one in worries(service)), *alerts]),
        ("Words", [*words(service)]),
    ]
    lines = [
        line
        for title, sentences in parts
        if sentences
        for line in [*([title] if title else []), *(_wrapped(one, bool(title)) for one in sentences)]
    ]
    gone = operator_gone(leases, now)
    return "\n".join(
        [*lines, *(_wrapped(f"! {one}", indented=False) for one in [*filter(None, [gone]), *doubts(service, now)])]
    )  # fmt: skip


def _wrapped(text: str, indented: bool) -> str:
    indent = "  " if indented else ""
    return "\n".join(
        textwrap.wrap(
            one_line(text), _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ",
            break_long_words=False, break_on_hyphens=False,
        )
    )  # fmt: skip


def _present(service: ServiceView, now: datetime) -> Iterator[str]:
    running = spoken(service.running or "an arm that is not known")
    pods = ", ".join(
        f"{one.get('pods')} of {spoken(one.get('arm'))}"
        for one in service.part("current").get("podsByArm") or ()
    )
    yield f"{service.name}: {service.target} runs {running}" + (f" (pods: {pods})." if pods else ".")
    decision = service.decision
    if decision:
        arm = service.recommended
        wanted = f"{spoken(arm)} should run" if arm else "no arm is recommended"
        yield (
            f"Decision, {short_age(service.decided, now)} ago: {decision.get('action', '?')}, {decision.get('reason', '?')}; "
            f"{wanted}. Mode: {service.mode}."
        )
    else:
        yield f"Nothing was decided yet. Mode: {service.mode}."
    if not service.part("rollout") and service.last_roll is not None:
        yield f"Last roll: {last_roll(service)}."


def why(service: ServiceView) -> Iterator[str]:
    """The operator's own sentence about its last decision."""
    if said := sentence(service.decision.get("message") or service.ready.get("message")):
        yield said


def changes(service: ServiceView) -> Iterator[str]:
    """The fields that a person would change, and the figures whose move would change the decision."""
    decision = service.decision
    pinned = service.policy.get("pinnedArm")
    if pinned:
        yield (
            f"updatePolicy.pinnedArm asks for {spoken(pinned)}, whatever the figures say: "
            f"`kubectl breakeven unpin {service.name}` lets them decide."
        )
    arm, verdict = decision.get("comparedArm"), str(decision.get("verdict")).lower()
    edge, load = number_of(decision, "breakEvenRps"), number_of(decision, "loadRps")
    if arm and edge is not None and load is not None and verdict in SIDES:
        ends = (number_of(decision, "breakEvenLowerRps"), number_of(decision, "breakEvenUpperRps"))
        known = None if ends == (None, None) else ends
        yield (
            f"The load: {arm} {pays_text(SIDES[verdict], edge, known, 'rps per replica')}; it is {figure(load)} rps now."
        )
    elif arm and (phrase := PAYS.get(verdict)):
        yield f"Not the load: {arm} {phrase}."
    if said := decision.get("byPrompt"):
        yield f"The prompts: {arm} by their length: {said}."
    considered, saving = decision.get("consideredArm"), number_of(decision, "savingPercent")
    if considered and saving is not None and not pinned:
        least = service.policy.get("minGainPercent", 3)
        yield (
            f"The loads to come: over them {spoken(considered)} {saved_text(saving / 100.0)}; a change has to save at least {least} % beyond "
            "its own cost (updatePolicy.minGainPercent)."
        )


def worths(service: ServiceView) -> Iterator[str]:
    """Gain and cost, each as a sentence of the operator."""
    for one in str(service.part("savings").get("message") or "").split("; "):
        if said := sentence(one):
            yield said[0].upper() + said[1:]


def controlled(service: ServiceView) -> Iterator[str]:
    """The speedup of now by a standing control, or why there is none."""
    if said := sentence(service.part("control").get("message")):
        yield said[0].upper() + said[1:] if said.startswith("control") else said


def waits(service: ServiceView, now: datetime) -> Iterator[Notice]:
    """Everything that holds a change back, each with its end or its way out."""
    if service.paused:
        text = f"A person: spec.paused is true. `kubectl breakeven resume {service.name}` ends it."
        yield Notice("A person: paused", text)
    if service.mode == "Disabled":
        yield Notice("A person: mode Disabled", "A person: the mode is Disabled, so nothing is decided.")
    decision = service.decision
    arm = service.recommended
    if service.mode == "Recommend" and arm and service.running and arm != service.running:
        yield Notice(
            "A person: mode Recommend",
            f"A person: the mode is Recommend, so the target is not rolled to {spoken(arm)}. `kubectl breakeven export {service.name}` prints the change; "
            "mode RollingUpdate lets the operator make it.",
        )
    held = time_of(decision.get("heldUntil"))
    if held is not None and held > now:
        text = f"Time: a change is held back until {held:%Y-%m-%d %H:%M:%S} UTC (in {short_age(now, held)})."
        yield Notice(f"{held:%H:%M} UTC: change held", text)
    backoff = time_of(service.memory.get("backoffUntilTime"))
    if backoff is not None and backoff > now:
        yield Notice(
            f"{backoff:%H:%M} UTC: rolls undone",
            f"Time after undone rolls: the next one may begin at {backoff:%Y-%m-%d %H:%M:%S} UTC (in {short_age(now, backoff)}); "
            f"`kubectl breakeven resume {service.name} --retry` ends the wait.",
        )
    roll = service.part("rollout")
    if roll:
        deadline = time_of(roll.get("deadlineTime"))
        phase = roll.get("phase", "Rolling")
        until = (
            f", undone at {deadline:%H:%M:%S} UTC unless all pods run it"
            if deadline and phase in {"Intended", "Rolling"}
            else ""
        )
        arms = f"{spoken(roll.get('fromArm'))} to {spoken(roll.get('toArm'))}"
        yield Notice(f"A roll: {phase}", f"A roll: {arms} is {phase}{until}.")
    if measuring(service):
        state = service.part("calibration")
        planned = state.get("pointsPlanned")
        progress = f", {state.get('pointsDone') or 0} of {planned} points" if planned else ""
        yield Notice(f"A calibration{progress}", f"A calibration: {state.get('run')}{progress}.")


def _worrying(service: ServiceView) -> list[Json]:
    return [
        one
        for one in service.conditions
        if one.get("status") == "False"
        and one.get("type") not in _QUIET_IF_FALSE
        and one.get("reason") not in QUIET
    ]


def worries(service: ServiceView) -> Iterator[Notice]:
    """Conditions that say a fault, and a change that is held up."""
    for one in _worrying(service):
        text = f"{one.get('type')} is False, {one.get('reason')}: {sentence(one.get('message'))}"
        yield Notice(str(one.get("reason")), text)
    held = service.decision.get("action") == "Hold" and service.reason in _WARN
    if held and service.reason not in {one.get("reason") for one in _worrying(service)}:
        text = f"The decision is held, {service.reason}: {sentence(service.decision.get('message'))}"
        yield Notice(f"held: {service.reason}", text)


def words(service: ServiceView) -> Iterator[str]:
    """Meaning and remedy of each reason word above; words of a newer operator are left out."""
    shown = [service.reason, service.part("rollout").get("reason")]
    shown += [one.get("reason") for one in _worrying(service)]
    shown += [str(service.decision.get("byPrompt") or "").partition(":")[0]]
    for word in dict.fromkeys(filter(None, shown)):
        if (entry := reason_word(str(word))) is not None:
            remedy = getattr(entry, "remedy", _NOTHING)
            todo = "" if remedy == _NOTHING else f" What to do: {sentence(remedy)}"
            yield f"{word}: {sentence(entry.meaning)}{todo}"


def reason_word(word: str) -> Reason | ClusterReason | None:
    """The entry of a word in the tables of reasons; None for one that this version does not know."""
    entries: tuple[Reason | ClusterReason, ...] = (*ClusterReason, *Reason)
    return next((entry for entry in entries if entry.value == word), None)


def losing(service: ServiceView) -> tuple[str, float, float | None] | None:
    """The arm in question, its load (1/s per replica) and its tokens per step as last seen live; None unless it is slower than no speculation."""
    decision = service.decision
    arm, rps, speedup = (
        decision.get("comparedArm"),
        number_of(decision, "loadRps"),
        number_of(decision, "speedup"),
    )
    if not arm or rps is None or speedup is None or speedup >= 1.0:
        return None
    seen = service.memory.get("seen") or ()
    return arm, rps, next((number_of(one, "tokensPerStep") for one in seen if one.get("arm") == arm), None)


def needed(service: ServiceView, would_pay: Mapping[str, str]) -> Sequence[str]:
    """Sentences by figure at which the losing arm would pay; no second one about the load if there is a break-even."""
    known = number_of(service.decision, "breakEvenRps") is not None
    return [text for name, text in would_pay.items() if name != "rps" or not known]
