"""A decision in one sentence: the figures that decided, their bounds and units, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.laws.arrays import Span
from breakeven.laws.latency import BURSTY
from breakeven.planning.decision import Decision
from breakeven.planning.expected_saving import ArmSaving
from breakeven.planning.observed_load import Load
from breakeven.profile import Bounds, Comparison
from breakeven.reasons import Reason


def sentence(decision: Decision) -> str:
    """Return the decision as one sentence without a full stop, below 600 characters for names of usual length."""
    explain = _EXPLANATIONS.get(decision.reason)
    because = explain(decision) if explain is not None else decision.reason.meaning
    parts = (figures_text(decision), because, _corrected(decision), _unmeasured(decision))
    body = "; ".join(part for part in parts if part)
    if decision.arm != decision.running:
        return f"{decision.running} -> {decision.arm}: {body}"
    return body


def saving_text(one: ArmSaving, decision: Decision, confidence: float) -> str:
    """`eagle/3 saves 30 % of request time over the next 4 h (90 %: 21 to 39)`, or how much more it takes."""
    saving = one.percent(confidence)
    verb, more, share, low, high = "saves", "", 100.0 * one.share, saving.lower, saving.upper
    if share < 0.0:
        verb, more, share = "takes", " more", -share
        low, high = (None if end is None else -end for end in (high, low))
    bounds = f"at most {high:.0f}" if low is None else _range((low, high), ".0f")
    return (
        f"{one.arm} {verb} {share:.0f} %{more} of request time over the next {duration_text(decision.policy.horizon_s)} "
        f"({100 * confidence:.0f} %: {bounds})"
    )


def speedup_text(comparison: Comparison, confidence: float) -> str:
    """`1.82x (90 %: 1.74 to 1.90)`; an open end reads `or more`."""
    if comparison.speedup_ci is None:
        return "no figure" if comparison.speedup is None else f"{comparison.speedup:.2f}x (without bounds)"
    return f"{comparison.speedup:.2f}x ({confidence * 100:.0f} %: {_range(comparison.speedup_ci, '.2f')})"


def break_even_text(comparison: Comparison) -> str:
    """`pays until 8.9 rps (8.4 to 9.3)`, from where, or in which ranges; empty without a break-even."""
    if comparison.pays_rps:
        return f"pays {ranges_text(comparison.pays_rps)} rps"
    if comparison.break_even_rps is None:
        return ""
    direction = "from" if comparison.c2_ratio < 1 else "until"
    bounds = f" ({_range(comparison.break_even_ci_rps, '.3g')})" if comparison.break_even_ci_rps else ""
    return f"pays {direction} {comparison.break_even_rps:.3g} rps{bounds}"


def ranges_text(ranges_rps: Sequence[Span]) -> str:
    """`from 0.4 to 3.8 and from 8.5 to 45.8`: where an arm pays that crosses no speculation more than once."""
    return " and ".join(f"from {low:.3g} to {high:.3g}" for low, high in ranges_rps)


def duration_text(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{math.ceil(seconds)} s"
    if seconds < 7200:
        return f"{math.ceil(seconds / 60)} min"
    return f"{seconds / 3600:.3g} h"


def unmeasured_texts(phrases: Mapping[Arm, Sequence[str]]) -> list[str]:
    """One line per objective whose own figure was not measured: for which arms, and which figure was checked instead."""
    arms: dict[str, list[str]] = {}
    for arm, of_arm in phrases.items():
        for phrase in of_arm:
            arms.setdefault(phrase, []).append(str(arm))
    return [
        f"{', '.join(names)}: {phrase} ({Reason.OBJECTIVE_NOT_MEASURED})" for phrase, names in arms.items()
    ]


def _range(bounds: Bounds | None, form: str) -> str:
    lower, upper = bounds if bounds is not None else (None, None)
    if lower is None and upper is None:
        return "unknown"
    if upper is None:
        return f"{lower:{form}} or more"
    return f"{0.0 if lower is None else lower:{form}} to {upper:{form}}"


def figures_text(decision: Decision) -> str:
    """Return the speculative arm's figures at this load, up to its break-even; empty where there is none."""
    comparison = decision.against_none
    load = f"at {decision.load.rps:.3g} rps per replica{_bursts(decision.load)}"
    if comparison is None or decision.subject is None:
        return ""
    if comparison.speedup in (0.0, math.inf):
        one = decision.subject if comparison.speedup == 0 else "no speculation"
        text = f"{one} is saturated {load} by its law and the other is not"
    elif comparison.speedup is None:
        text = f"{decision.subject} and no speculation are both saturated {load} by their laws"
    else:
        text = f"{decision.subject} is {speedup_text(comparison, decision.confidence)} {load}"
    pays = break_even_text(comparison)
    return f"{text}; {pays}{_acceptance_of(decision)}" if pays else text


def _bursts(load: Load) -> str:
    """Dispersion of the arrivals, if they are burstier than Poisson's; else empty."""
    if load.dispersion is None or load.dispersion < BURSTY:
        return ""
    return f" (arrivals of dispersion {load.dispersion:.3g})"


def _acceptance_of(decision: Decision) -> str:
    """Acceptance that a break-even holds for, if the live one differs from the calibrated one; else empty."""
    standing = decision.of(decision.subject)
    if standing is None or standing.tokens_per_step is None or standing.calibrated_tokens_per_step is None:
        return ""
    live, calibrated = f"{standing.tokens_per_step:.2f}", f"{standing.calibrated_tokens_per_step:.2f}"
    return "" if live == calibrated else f" at the live {live} tokens per step (calibrated: {calibrated})"


def _corrected(decision: Decision) -> str:
    """The break-even as corrected by live latency, if it differs from the profile's; else empty."""
    until_rps, comparison = decision.pays_until_rps, decision.against_none
    if until_rps is None or comparison is None:
        return ""
    fitted_rps = comparison.break_even_rps
    if fitted_rps is not None and abs(until_rps / fitted_rps - 1.0) <= _SAME:
        return ""
    return f"with what live latency shows it pays until {until_rps:.3g} rps"


def _unmeasured(decision: Decision) -> str:
    """Objectives whose own figure was not measured, as the end of a sentence; empty when there are none."""
    considered = (decision.figures, decision.of(decision.arm))
    phrases = dict.fromkeys(phrase for one in considered if one is not None for phrase in one.unmeasured)
    return f"{', '.join(phrases)} ({Reason.OBJECTIVE_NOT_MEASURED})" if phrases else ""


def _saves(decision: Decision) -> str:
    """Saving of the arm in question over the loads to come."""
    considered = decision.considered
    return "" if considered is None else saving_text(considered, decision, decision.confidence)


def _rolled(decision: Decision) -> str:
    """Cost of the roll, in time of serving."""
    if decision.considered is None or not decision.load.rps or not decision.load.latency_s:
        return ""
    served_s = decision.considered.roll_cost / (decision.load.rps * decision.load.latency_s)
    return f" after a roll that costs {duration_text(served_s)} of serving"


def _gains(decision: Decision) -> str:
    next_best = decision.alternative
    running = decision.running
    rest = f"; next best {next_best.arm}: {100 * next_best.share:.0f} %" if next_best is not None else ""
    if next_best is not None and next_best.arm == NO_SPECULATION and running == NO_SPECULATION:
        rest = ""
    return f"{_saves(decision)}{_rolled(decision)}{rest}"


def _beyond(decision: Decision) -> str:
    if decision.running == NO_SPECULATION:
        return f"no speculation is right: {_saves(decision)}"
    return f"{_saves(decision)}{_rolled(decision)}; {decision.running} is entered again when that pays for the roll"


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


def _fewer(decision: Decision) -> str:
    fewest = decision.fewest
    return fewest.sentence if fewest is not None else decision.reason.meaning


def _violated(decision: Decision) -> str:
    standing = decision.figures
    missed = list(standing.missed) if standing is not None else []
    least = decision.load.strain[0] if decision.load.strain is not None else None
    if least is not None and least > 1.0:
        missed.append(f"measured: at least {least:.3g} times the limit")
    return f"{decision.running} misses the objective ({', '.join(missed) or 'a limit'}) and {decision.arm} keeps it"


def _entered_saturation(decision: Decision) -> str:
    carried = f"{decision.considered.carries_rps:.3g} rps" if decision.considered is not None else "more"
    return f"{decision.running} is saturated at {decision.load.rps:.3g} rps per replica, {decision.arm} carries {carried}"


def _saturated(decision: Decision) -> str:
    return (
        f"{decision.running} is saturated at {decision.load.rps:.3g} rps per replica and no other arm that may be "
        "entered carries more; add replicas"
    )


def _stays(decision: Decision) -> str:
    if decision.considered is None:
        return f"no speculation is right at {decision.load.rps:.3g} rps per replica: no other arm is measured"
    return f"{_saves(decision)}: {decision.running} stays"


def _below(decision: Decision) -> str:
    policy = decision.policy
    return f"{_saves(decision)}, which is less than the required {100 * policy.min_gain:.0f} %"


def _roll(decision: Decision) -> str:
    return f"{_saves(decision)}, and the roll costs as much:{_rolled(decision).removeprefix(' after a roll that costs')}"


def _risk(decision: Decision) -> str:
    return (
        f"{_saves(decision)}, but it carries {_carries(decision)}: a jump of the load would cost more than "
        f"{100 * decision.policy.risk:.0f} % of ten days' request time, and what speculation has saved so far"
    )


def _carries(decision: Decision) -> str:
    return f"{decision.considered.carries_rps:.3g} rps" if decision.considered is not None else "less"


def _peak(decision: Decision) -> str:
    if decision.ahead is None or decision.considered is None:
        return decision.reason.meaning
    ahead = (
        f"over the expected loads (up to {decision.ahead.peak_rps:.3g} rps per replica) {_saves(decision)}"
    )
    if decision.arm != decision.running:
        return f"{ahead}; a roll at the peak would lack capacity"
    return f"{ahead}; it is entered when no such peak is ahead"


def _cooling(decision: Decision) -> str:
    policy, last_s, until_s = decision.policy, decision.memory.last_switch_s, decision.until_s
    if last_s is not None and until_s is not None and until_s - last_s >= policy.day_s > policy.cooldown_s:
        return f"{_saves(decision)}, but requests have had to wait, and the last switch is younger than {duration_text(policy.day_s)}"
    return f"{_saves(decision)}, but the last switch is younger than the cool-down of {duration_text(policy.cooldown_s)}"


def _dwelling(decision: Decision) -> str:
    since_s, until_s = decision.memory.candidate_since_s, decision.until_s
    dwell_s = decision.policy.dwell_s if since_s is None or until_s is None else until_s - since_s
    return f"{_saves(decision)}; it is entered when that has been so for {duration_text(dwell_s)}"


def _wide(decision: Decision) -> str:
    return f"{_saves(decision)}, which the roll and the doubt about the fit outweigh; more calibration points would narrow it"


def _unbelievable(decision: Decision) -> str:
    arms = decision.evaluations.unbelievable
    why = f" ({one})" if (one := next(iter(arms.values()), None)) is not None else ""
    return f"there is no fit that may be used for {', '.join(map(str, arms)) or 'the arm'}{why}; recalibrate"


def _idle(decision: Decision) -> str:
    return f"no request in the last {duration_text(decision.load.window_s)}: nothing to decide on"


_SAME = 0.05
"""Two break-evens that differ by less are one: bounds are wider than that."""

_EXPLANATIONS: dict[Reason, Callable[[Decision], str]] = {
    Reason.GAIN_ABOVE_THRESHOLD: _gains,
    Reason.BEYOND_BREAK_EVEN: _beyond,
    Reason.ACCEPTANCE_COLLAPSED: _collapsed,
    Reason.NEVER_PAYS: lambda _: "it is slower at every load; only a new calibration can bring it back",
    Reason.FEWER_REPLICAS: _fewer,
    Reason.SLO_VIOLATED: _violated,
    Reason.ENTERED_SATURATION: _entered_saturation,
    Reason.SATURATED: _saturated,
    Reason.BELOW_BREAK_EVEN: _stays,
    Reason.ALREADY_BEST: _stays,
    Reason.GAIN_BELOW_THRESHOLD: _below,
    Reason.ROLL_NOT_WORTH_IT: _roll,
    Reason.RISK_TOO_HIGH: _risk,
    Reason.PEAK_AHEAD: _peak,
    Reason.COOLING_DOWN: _cooling,
    Reason.DWELLING: _dwelling,
    Reason.WIDE_BOUNDS: _wide,
    Reason.NO_BELIEVABLE_FIT: _unbelievable,
    Reason.NO_LOAD: _idle,
}
