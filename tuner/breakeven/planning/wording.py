"""A decision in one sentence: the figures that decided, their bounds and units, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.laws.latency import BURSTY
from breakeven.phrases import (
    MANY_TIMES,
    NOT_KNOWN,
    are_known,
    between,
    counted,
    duration_text,
    figure,
    fixed,
    level_text,
    ratio_text,
    saved_text,
    spoken,
    through,
)
from breakeven.planning.decision import Action, Decision, FollowedPast
from breakeven.planning.decision_memory import RISK
from breakeven.planning.expected_saving import ArmSaving
from breakeven.profile import Comparison
from breakeven.reasons import Reason
from breakeven.serving.counted_window import Load


def sentence(decision: Decision) -> str:
    """Return the decision as one sentence without a full stop, below 600 characters for names of usual length."""
    explain = _EXPLANATIONS.get(decision.reason)
    because = explain(decision) if explain is not None else decision.reason.meaning
    parts = (figures_text(decision), because, _corrected(decision), _unmeasured(decision))
    body = "; ".join(part for part in parts if part)
    if decision.arm != decision.running:
        return f"{spoken(decision.running)} -> {spoken(decision.arm)}: {body}"
    return body


def saving_text(one: ArmSaving, decision: Decision, confidence: float) -> str:
    """`eagle/3 saves 30 % of request time over the next 4 h (90 %: 21 to 39)`, or how much more it takes."""
    ahead = f"over the next {duration_text(decision.policy.horizon_s)}"
    bounds = _saving_bounds(one, confidence)
    return f"{spoken(one.arm)} {saved_text(one.share)} {ahead} ({level_text(confidence)}{bounds})"


def _saving_bounds(one: ArmSaving, confidence: float) -> str:
    taken, found = 1.0 - one.share, one.percent(confidence)
    least, most = (None if end is None else 1.0 - end / 100.0 for end in (found.upper, found.lower))
    if taken > MANY_TIMES:
        return through(taken, least, most)
    # A saving close to 100 % is well known, whatever the ratio of what is left.
    if not are_known(max(taken, 1.0), least if taken > 1.0 else None, most):
        return NOT_KNOWN
    ends = (found.lower, found.upper)
    if taken > 1.0:
        ends = (None if found.upper is None else -found.upper, None if found.lower is None else -found.lower)
    return between(*ends, fixed)


def speedup_text(comparison: Comparison, confidence: float) -> str:
    """`1.82x (90 %: 1.74 to 1.90)`; an open end reads `or more`."""
    if comparison.speedup is None:
        return "no figure"
    text = ratio_text(comparison.known, level_text(confidence))
    return text if comparison.speedup_ci is not None else f"{text} (without bounds)"


def unmeasured_texts(phrases: Mapping[Arm, Sequence[str]]) -> list[str]:
    """One line per objective whose own figure was not measured: for which arms, and which figure was checked instead."""
    arms: dict[str, list[str]] = {}
    for arm, of_arm in phrases.items():
        for phrase in of_arm:
            arms.setdefault(phrase, []).append(spoken(arm))
    return [f"{', '.join(names)}: {phrase}" for phrase, names in arms.items()]


def figures_text(decision: Decision) -> str:
    """Return the speculative arm's figures at this load, up to its break-even; empty where there is none."""
    comparison = decision.against_none
    load = f"at {figure(decision.load.rps)} rps per replica{_bursts(decision.load)}"
    if comparison is None or decision.subject is None:
        return ""
    if comparison.speedup in (0.0, math.inf):
        one = decision.subject if comparison.speedup == 0 else "no speculation"
        text = f"{one} is saturated {load} by its law and the other is not"
    elif comparison.speedup is None:
        text = f"{decision.subject} and no speculation are both saturated {load} by their laws"
    else:
        faster = speedup_text(comparison, decision.confidence)
        text = f"{decision.subject} is {faster} {load}, {comparison.how_known}"
    pays = comparison.break_even
    return f"{text}; {pays}{_acceptance_of(decision)}" if pays else text


def _bursts(load: Load) -> str:
    """Dispersion of the arrivals, if they are burstier than Poisson arrivals; else empty."""
    if load.dispersion is None or load.dispersion < BURSTY:
        return ""
    return f" (arrivals of dispersion {figure(load.dispersion)})"


def _acceptance_of(decision: Decision) -> str:
    """Acceptance that a break-even holds for, if the live one differs from the calibrated one; else empty."""
    standing = decision.of(decision.subject)
    if standing is None or standing.tokens_per_step is None or standing.calibrated_tokens_per_step is None:
        return ""
    live, calibrated = f"{standing.tokens_per_step:.2f}", f"{standing.calibrated_tokens_per_step:.2f}"
    return "" if live == calibrated else f" at the live {live} tokens per step (calibrated: {calibrated})"


def _corrected(decision: Decision) -> str:
    """The break-even as corrected by live latency, if the profile has another one; else empty."""
    until_rps, comparison = decision.pays_until_rps, decision.against_none
    if until_rps is None or comparison is None:
        return ""
    fitted_rps = comparison.break_even_rps
    if fitted_rps is not None and abs(until_rps / fitted_rps - 1.0) <= _SAME:
        return ""
    return f"with what live latency shows it pays until {figure(until_rps)} rps"


def _unmeasured(decision: Decision) -> str:
    """Objectives whose own figure was not measured, as the end of a sentence; empty when there are none."""
    considered = (decision.figures, decision.of(decision.arm))
    phrases = dict.fromkeys(phrase for one in considered if one is not None for phrase in one.unmeasured)
    return ", ".join(phrases)


def _saves(decision: Decision) -> str:
    considered = decision.considered
    return "" if considered is None else saving_text(considered, decision, decision.confidence)


def _rolled(decision: Decision) -> str:
    if decision.considered is None or not decision.load.rps or not decision.load.latency_s:
        return ""
    served_s = decision.considered.roll_cost / (decision.load.rps * decision.load.latency_s)
    return f" after a roll that costs {duration_text(served_s)} of serving"


def _gains(decision: Decision) -> str:
    rest = ""
    if (best := decision.alternative) is not None:
        rest = f"; next best {spoken(best.arm)}: {fixed(100 * best.share)} %"
    return f"{_saves(decision)}{_rolled(decision)}{rest}"


def _beyond(decision: Decision) -> str:
    if decision.running == NO_SPECULATION:
        return f"no speculation is right: {_saves(decision)}"
    return f"{_saves(decision)}{_rolled(decision)}; {spoken(decision.running)} is entered again when that pays for the roll"


def _collapsed(decision: Decision) -> str:
    standing = decision.figures
    if standing is None or standing.tokens_per_step is None:
        return f"too few drafts are accepted: {_saves(decision)}"
    calibrated = standing.calibrated_tokens_per_step
    beside = f" ({calibrated:.2f} when it was calibrated)" if calibrated is not None else ""
    return (
        f"it makes {standing.tokens_per_step:.2f} tokens per step{beside}; a new calibration that shows a gain brings it "
        "back"
    )


def _violated(decision: Decision) -> str:
    standing = decision.figures
    missed = list(standing.missed) if standing is not None else []
    least = decision.load.strain[0] if decision.load.strain is not None else None
    if least is not None and least > 1.0:
        missed.append(f"measured: at least {figure(least)} times the limit")
    return f"{spoken(decision.running)} misses the objective ({', '.join(missed) or 'a limit'}) and {spoken(decision.arm)} keeps it"


def _entered_saturation(decision: Decision) -> str:
    carried = f"{figure(decision.considered.carries_rps)} rps" if decision.considered is not None else "more"
    return f"{_is_saturated(decision)}, {spoken(decision.arm)} carries {carried}"


def _is_saturated(decision: Decision) -> str:
    return f"{spoken(decision.running)} is saturated at {figure(decision.load.rps)} rps per replica"


def _saturated(decision: Decision) -> str:
    """Replicas help if no arm carries more; else which arm does, and why it is not entered."""
    most = max(decision.options, key=lambda one: one.carries_rps, default=None)
    own = decision.figures.saturation_rps if decision.figures is not None else decision.load.rps
    apart = _left_out(decision, max(own, most.carries_rps if most is not None else 0.0))
    if apart:
        return f"{_is_saturated(decision)}; {apart}"
    if most is None or most.carries_rps <= own:
        return f"{_is_saturated(decision)} and no other arm carries more; add replicas"
    why = saving_text(most, decision, decision.confidence)
    but = ", which the roll and the doubt about it outweigh" if most.share > 0.0 else ""
    return (
        f"{_is_saturated(decision)}; {spoken(most.arm)} carries most, {figure(most.carries_rps)} rps, and is not entered: "
        f"{why}{but}"
    )


def _left_out(decision: Decision, most_rps: float) -> str:
    """The arm that carries more than all arms that may be entered, because it would need more replicas; empty without one."""
    asked = {decision.running, *(one.arm for one in decision.options)}
    rest = [
        one for one in decision.evaluations.arms if one.arm not in asked and one.saturation_rps > most_rps
    ]
    best = max(rest, key=lambda one: one.saturation_rps, default=None)
    if best is None:
        return ""
    return (
        f"{spoken(best.arm)} carries most, {figure(best.saturation_rps)} rps, and is not entered: within the objectives it "
        "needs more replicas"
    )


def _stays(decision: Decision) -> str:
    if decision.considered is None:
        return f"no speculation is right at {figure(decision.load.rps)} rps per replica: no other arm is measured"
    return f"{_saves(decision)}: {spoken(decision.running)} stays"


def _risk(decision: Decision) -> str:
    considered, policy = decision.considered, decision.policy
    limit = f"{fixed(100 * RISK)} % of ten days' request time and what speculation has saved so far"
    if policy.day_risk < 1.0:
        limit = f"{fixed(100 * policy.day_risk)} % of a day's request time, or than {limit}"
    if decision.action is Action.SWITCH:
        return f"{_saves(decision)}, but on {spoken(decision.running)} a jump of the load would cost more than {limit}"
    carries = f"{figure(considered.carries_rps)} rps" if considered is not None else "less"
    return f"{_saves(decision)}, but it carries {carries}: a jump of the load would cost more than {limit}"


def _peak(decision: Decision) -> str:
    if decision.ahead is None or decision.considered is None:
        return decision.reason.meaning
    ahead = f"over the expected loads (up to {figure(decision.ahead.peak_rps)} rps per replica) {_saves(decision)}"
    if decision.arm != decision.running:
        return f"{ahead}; a roll at the peak would lack capacity"
    return f"{ahead}; it is entered when no such peak is ahead"


def followed_text(one: FollowedPast) -> str:
    """What a past would have been worth to an arm that follows changes, and at most to an arm that follows the load."""
    return (
        f"over the last {figure(one.days)} days {spoken(one.arm)} all along would have saved {fixed(100 * one.one)} % of request time "
        f"without speculation, and following the load at most {fixed(100 * one.each)} %, in {counted(one.changes, 'change')}"
    )


def _cooling(decision: Decision) -> str:
    policy, last_s, until_s = decision.policy, decision.memory.last_switch_s, decision.until_s
    if last_s is not None and until_s is not None and until_s - last_s >= policy.day_s > policy.cooldown_s:
        return f"{_saves(decision)}, but requests have had to wait, and the last switch is younger than {duration_text(policy.day_s)}"
    return f"{_saves(decision)}, but the last switch is younger than the cool-down of {duration_text(policy.cooldown_s)}"


def _dwelling(decision: Decision) -> str:
    since_s, until_s = decision.memory.candidate_since_s, decision.until_s
    dwell_s = decision.policy.dwell_s if since_s is None or until_s is None else until_s - since_s
    if decision.action is Action.SWITCH:
        follows = f"{spoken(decision.memory.candidate)} is recommended"
    else:
        follows = "it is entered"
    return f"{_saves(decision)}; {follows} when that has been so for {duration_text(dwell_s)}"


def _not_measured(decision: Decision) -> str:
    arms = decision.evaluations.left_out
    why = f" ({one})" if (one := next(iter(arms.values()), None)) is not None else ""
    return f"nothing is known of {', '.join(map(spoken, arms)) or 'the arm'}{why}; recalibrate"


_SAME = 0.05
"""Two break-evens that differ by less are one: bounds are wider than that."""

_EXPLANATIONS: dict[Reason, Callable[[Decision], str]] = {
    Reason.GAIN_ABOVE_THRESHOLD: _gains,
    Reason.BEYOND_BREAK_EVEN: _beyond,
    Reason.ACCEPTANCE_COLLAPSED: _collapsed,
    Reason.NEVER_PAYS: lambda _: "it is slower at every load; only a new calibration can bring it back",
    Reason.FEWER_REPLICAS: lambda one: one.fewest.sentence if one.fewest is not None else one.reason.meaning,
    Reason.SLO_VIOLATED: _violated,
    Reason.ENTERED_SATURATION: _entered_saturation,
    Reason.SATURATED: _saturated,
    Reason.BELOW_BREAK_EVEN: _stays,
    Reason.ALREADY_BEST: _stays,
    Reason.GAIN_BELOW_THRESHOLD: lambda one: (
        f"{_saves(one)}, which is less than the required {fixed(100 * one.policy.min_gain)} %"
    ),
    Reason.ROLL_NOT_WORTH_IT: lambda one: (
        f"{_saves(one)}, and the roll costs as much:{_rolled(one).removeprefix(' after a roll that costs')}"
    ),
    Reason.RISK_TOO_HIGH: _risk,
    Reason.PEAK_AHEAD: _peak,
    Reason.COOLING_DOWN: _cooling,
    Reason.DWELLING: _dwelling,
    Reason.FOLLOWS_CHANGES: lambda one: (
        f"{_saves(one)}, and the arm follows changes, not the load: it is chosen again by the next profile"
    ),
    Reason.WIDE_BOUNDS: lambda one: (
        f"{_saves(one)}, which the roll and the doubt about the fit outweigh; more calibration points would narrow it"
    ),
    Reason.NOT_MEASURED: _not_measured,
    Reason.NO_LOAD: lambda one: (
        f"no request in the last {duration_text(one.load.window_s)}: nothing to decide on"
    ),
}
