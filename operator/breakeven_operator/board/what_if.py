"""The library's answer for another load, acceptance, lengths or number of replicas than now. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError, InputError
from breakeven.laws.acceptance_numbers import tokens_per_step_iid
from breakeven.phrases import column, ratio_column
from breakeven.planning.capacity import replicas_for
from breakeven.planning.evaluation import ArmEvaluation, LoadQuestion, evaluate
from breakeven.profile import Conditions, LoadPoint, Profile
from breakeven_operator.observing.questions import policy_of
from breakeven_operator.outcome.formatting import speedup
from breakeven_operator.resources import SpeculativeService

FIELDS: Mapping[str, tuple[str, float, float]] = {
    "rps": ("load of all replicas together, requests per second", 0.0, 1e6),
    "replicas": ("replicas", 1.0, 10_000.0),
    "acceptance": ("acceptance of one draft token, percent", 0.0, 100.0),
    "prompt": ("mean prompt length, tokens", 1.0, 1_048_576.0),
    "output": ("mean output length, tokens", 1.0, 1_048_576.0),
}
"""Fields of the form: what each means, and its bounds."""

_LONGEST = 16


@dataclass(frozen=True, slots=True)
class Supposition:
    """The question of the form.

    Attributes:
        rps: load of all replicas together (1/s).
        acceptance: of one draft token, percent; None if as calibrated.
        prompt, output: mean lengths in tokens; None if as calibrated.
    """

    rps: float
    replicas: float
    acceptance: float | None = None
    prompt: float | None = None
    output: float | None = None

    def conditions(self, arm: Arm) -> Conditions:
        """Acceptance and lengths of an arm."""
        wanted = Conditions(prompt_tokens=self.prompt, output_tokens=self.output)
        if self.acceptance is None or arm.k == 0 or arm.scheduled:
            # A schedule's acceptance cannot be converted: its draft length changes with the load.
            return wanted
        return replace(wanted, tokens_per_step=float(tokens_per_step_iid(self.acceptance / 100.0, arm.k)))


@dataclass(frozen=True, slots=True)
class SupposedArm:
    """One arm under a supposition, as text; the best one is the fastest of those that carry the load."""

    arm: str
    best: bool
    latency: str
    speedup: str
    utilisation: str
    capacity: str
    replicas: str
    remark: str


@dataclass(frozen=True, slots=True)
class SupposedAnswer:
    """Arms that have an answer, and sentences about the others."""

    arms: Sequence[SupposedArm]
    left_out: Sequence[str]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The form and its answer.

    Attributes:
        given: texts of the fields as they were sent.
        present: figures of now, for the empty fields.
        answer: None if nothing was asked or the question is refused.
    """

    given: Mapping[str, str]
    present: Mapping[str, float]
    answer: SupposedAnswer | None
    problem: str


def read_supposition(given: Mapping[str, str], service: SpeculativeService) -> Supposition:
    """The question of a form; an empty field stands for the present figure.

    Raises:
        InputError: a field is no number or outside its bounds, or nothing is known of the present.
    """
    found = {name: _number(name, given.get(name, "")) for name in FIELDS}
    now = present(service)
    rps, replicas = found.pop("rps"), found.pop("replicas")
    rps, replicas = (now.get("rps") if rps is None else rps), replicas or now.get("replicas")
    if rps is None or replicas is None:
        missing = "rps" if rps is None else "replicas"
        raise InputError(missing, "is empty, and the present figure is not known", FIELDS[missing][0])
    return Supposition(rps, replicas, **found)


def present(service: SpeculativeService) -> Mapping[str, float]:
    """Present figures of the form, as far as the status has them."""
    status = service.status
    replicas = status.target.ready_replicas if status.target is not None else None
    rps = status.capacity.fleet_load_rps if status.capacity is not None else None
    each = status.decision.load_rps if status.decision is not None else None
    if rps is None and each is not None and replicas:
        rps = each * replicas
    known = {"rps": rps, "replicas": float(replicas) if replicas else None}
    return {name: value for name, value in known.items() if value is not None and math.isfinite(value)}


def _number(name: str, text: str) -> float | None:
    if not text.strip():
        return None
    meaning, low, high = FIELDS[name]
    try:
        value = float(text) if len(text) <= _LONGEST else math.nan
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise InputError(name, f"is {text[:_LONGEST]!r}", f"{meaning}: a number from {low:g} to {high:g}")
    return value


def supposed(profile: Profile, service: SpeculativeService, asked: Supposition) -> SupposedAnswer:
    """Every measured arm under a supposition."""
    slo = policy_of(service.spec).slo
    question = LoadQuestion(LoadPoint(rps=asked.rps / asked.replicas), asked.conditions, slo, derived=True)
    found = evaluate(profile, [fit.arm for fit in profile.arms], question)
    carrying = [one for one in found.arms if not one.prediction.saturated]
    best = min(carrying, key=lambda one: one.latency_s, default=None)
    return SupposedAnswer(
        [_supposed_arm(one, asked, best=one is best) for one in found.arms],
        [*found.left_out.values()],
    )


def answered_form(profile: Profile, service: SpeculativeService, asked: Mapping[str, str]) -> WhatIf:
    """The form as a page shows it, with the answer to what was asked; with empty texts nothing was asked."""
    now = present(service)
    if not asked:
        return WhatIf({}, now, None, "")
    try:
        answer = supposed(profile, service, read_supposition(asked, service))
    except InputError as problem:
        return WhatIf(asked, now, None, str(problem))
    return WhatIf(asked, now, answer, "")


def _supposed_arm(one: ArmEvaluation, asked: Supposition, *, best: bool) -> SupposedArm:
    prediction = one.prediction
    try:
        room = one.capacity
    except BreakevenError:
        room = None
    lower = room.lower_rps if room is not None else None
    remarks = [
        "saturated: requests queue" if prediction.saturated else "",
        "misses " + ", ".join(one.missed) if one.missed and not prediction.saturated else "",
        "beyond what was measured" if one.extrapolated and not prediction.saturated else "",
    ]
    return SupposedArm(
        arm=one.arm.name,
        best=best,
        latency="-"
        if prediction.latency_s is None
        else f"{ratio_column(prediction.latency_s, prediction.latency_ci_s)} s",
        speedup=speedup(one.against_none, None),
        utilisation=f"{100.0 * one.utilisation:.0f} %",
        capacity=column(room.rps, "rps") if room is not None else "-",
        replicas=str(replicas_for(asked.rps, lower)) if lower else "-",
        remark="; ".join(filter(None, remarks)) or ("no speculation" if one.arm == NO_SPECULATION else "-"),
    )
