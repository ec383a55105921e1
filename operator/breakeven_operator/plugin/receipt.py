"""The text of a pull request that carries the recommended arm: what was measured, what is promised, what is at stake, the way back.

Every figure is read from the status that `explain` and the board show too; a figure that the status lacks is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from breakeven.arm import NO_SPECULATION, arm_drafting
from breakeven.estimate import Estimate
from breakeven.phrases import (
    between,
    change_text,
    column,
    duration_text,
    figure,
    level_text,
    pays_text,
    ratio_text,
    saved_text,
    spoken,
    through,
)
from breakeven.printable import one_line
from breakeven.reasons import PAYS, SIDES
from breakeven.serving.opt_in import ANNOTATION
from breakeven_operator.plugin.explanation import controlled, reason_word, worths
from breakeven_operator.plugin.service_view import Json, ServiceView, number_of, sentence
from breakeven_operator.plugin.wanted_arm import WantedArm

# Of a spec that says nothing; of a spec that bounds no day.
_DAY_RISK_PERCENT, _UNBOUNDED_PERCENT = 5, 100
_ARM = ("method", "k", "candidate", "schedule")


def receipt(service: ServiceView, wanted: WantedArm, profile: Json | None, patch: str | None) -> str:
    """Markdown about a change that Git makes, with the patch in it if one is given; `profile` is the object in force."""
    fits = _fits(profile)
    parts = (
        ("Measured", [*_measured(service, wanted, fits)]),
        ("Promised", [*_promised(service, wanted)]),
        ("At stake", [*_at_stake(service, wanted, fits)]),
        ("To undo it", [*_undo(service, wanted)]),
    )
    lines = [
        f"# {wanted.target}: {change_text(wanted.running, wanted.arm)}",
        "",
        sentence(service.decision.get("message")),
    ]
    for title, said in parts:
        lines += ["", f"## {title}", "", *(f"- {one}" for one in said)]
    if patch is not None:
        lines += ["", "```yaml", patch.rstrip("\n"), "```"]
    return "\n".join(lines) + "\n"


def _fits(profile: Json | None) -> Mapping[str, Json]:
    """The fits of a profile by arm; none if it is not given, or of another version."""
    try:
        arms = json.loads((profile or {})["spec"]["profile"])["arms"]
        return {arm_drafting(*(one.get(key) for key in _ARM)).name: one for one in arms}
    except (AttributeError, LookupError, TypeError, ValueError):
        return {}


def _known(part: Json, name: str, lower: str, upper: str) -> Estimate:
    return Estimate(*(number_of(part, one) for one in (name, lower, upper)))


def _level(service: ServiceView) -> str:
    percent = number_of(service.decision, "confidencePercent")
    return level_text(percent / 100.0) if percent is not None else ""


def _measured(service: ServiceView, wanted: WantedArm, fits: Mapping[str, Json]) -> Iterator[str]:
    decision, state, target = service.decision, service.part("calibration"), service.part("target")
    arm, load = decision.get("comparedArm"), number_of(decision, "loadRps")
    ratio = _known(decision, "speedup", "speedupLower", "speedupUpper")
    if arm and ratio.value is not None:
        at = f" at {figure(load)} rps per replica" if load is not None else ""
        shown = str(service.display.get("speedup"))
        known = f"; by the latency of now {shown}" if shown.endswith("measured") else ", expected"
        by = f"{known} by profile {decision['profile']}" if decision.get("profile") else known
        yield f"{arm} against no speculation: {ratio_text(ratio, _level(service))}{at}{by}."
    if profile := state.get("profile"):
        on = (target.get("model"), target.get("image"), target.get("gpuProduct"))
        when = f", {state['profileTime']}" if state.get("profileTime") else ""
        yield f"Profile {profile}{when}: {', '.join(str(one) for one in on if one)}."
    for arm_, fit in fits.items():
        if arm_ in {NO_SPECULATION.name, wanted.arm} and (
            rates := (fit.get("measured_range") or {}).get("rps")
        ):
            yield f"Points of {spoken(arm_)}: {fit.get('points')}, at {between(*rates)} rps."
    for one in service.status.get("history") or ():
        if wanted.arm in {one.get("fromArm"), one.get("toArm")} and one.get("measuredSpeedup"):
            yield f"A roll before, {one.get('result')}: {sentence(one.get('message'))}"
            break
    yield from controlled(service)
    words = {one.get("arm"): str(one.get("word")) for one in state.get("answers") or ()}
    if wanted.arm in words:
        entry = reason_word(words[wanted.arm])
        yield f"Answers, {words[wanted.arm]}{f': {sentence(entry.meaning)}' if entry is not None else '.'}"
    elif wanted.arm != NO_SPECULATION.name:
        yield f"Answers of {wanted.arm} were not compared with answers without speculation."


def _promised(service: ServiceView, wanted: WantedArm) -> Iterator[str]:
    decision = service.decision
    saving = _known(decision, "savingPercent", "savingLowerPercent", "savingUpperPercent")
    if saving.value is not None and decision.get("consideredArm") == wanted.arm:
        ends = (
            through(saving.value, *saving.bounds, places=0)
            if saving.bounds is not None and saving.value > 0.0
            else ""
        )
        yield (
            f"{spoken(wanted.arm)} {saved_text(saving.value / 100.0)} over the next 4 h"
            f"{f' ({_level(service)}{ends})' if ends else ''}."
        )
    arm, verdict = decision.get("comparedArm"), str(decision.get("verdict")).lower()
    edge = _known(decision, "breakEvenRps", "breakEvenLowerRps", "breakEvenUpperRps")
    if arm and edge.value is not None and verdict in SIDES:
        yield f"{arm} {pays_text(SIDES[verdict], edge.value, edge.bounds, 'rps per replica')}."
    elif arm and (phrase := PAYS.get(verdict)):
        yield f"{arm} {phrase}."
    yield "Nothing more: beyond these loads, lengths and this image no gain is promised."


def _at_stake(service: ServiceView, wanted: WantedArm, fits: Mapping[str, Json]) -> Iterator[str]:
    cost = number_of(service.decision, "rollCostSeconds")
    if cost is not None:
        yield f"The roll costs {duration_text(cost)} of serving the present load."
    risk = int(service.policy.get("dayRiskPercent", _DAY_RISK_PERCENT))
    if wanted.arm != NO_SPECULATION.name and risk < _UNBOUNDED_PERCENT:
        yield (
            f"The worst day: an arm is recommended only if a day with four hours near capacity takes at most {risk} % more request "
            "time than without speculation (updatePolicy.dayRiskPercent). In mode Recommend a person leaves it then."
        )
    carried = {one.get("arm"): one for one in service.part("capacity").get("arms") or ()}
    arms = [arm for arm in (NO_SPECULATION.name, wanted.arm) if arm in carried]
    for arm in dict.fromkeys(arms):
        one = carried[arm]
        known = _known(one, "capacityRps", "lowerRps", "upperRps")
        if known.value is not None:
            ends = f" ({through(known.value, *known.bounds)})" if known.bounds is not None else ""
            requests = (fits.get(arm) or {}).get("kv_requests")
            memory = f"; its KV cache holds {figure(requests)} requests" if requests else ""
            yield f"With {spoken(arm)} a replica carries {column(known.value)} rps{ends}, by {one.get('limit') or '?'}{memory}."
    yield from worths(service)


def _undo(service: ServiceView, wanted: WantedArm) -> Sequence[str]:
    value = wanted.running_value
    # A backtick would end the code.
    before = "absent" if value is None else f"`{one_line(value.replace('`', ' '))}`"
    return (
        f"Revert this change: the annotation `{ANNOTATION}` is {before} again, and the target rolls back to {spoken(wanted.running)}.",
        f"To keep speculation off whatever the figures say: `kubectl breakeven pin {service.name} none`.",
    )
