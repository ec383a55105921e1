"""A decision in one sentence: the figures that decided, their bounds and units, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.planning.evaluation import ArmEvaluation, speedup_bounds
from breakeven.planning.guard import Decision
from breakeven.planning.outlook import peak_rps
from breakeven.profile import Bounds, Comparison
from breakeven.reasons import Reason


def sentence(decision: Decision) -> str:
    """Return the decision as one sentence without a full stop, below 500 characters for names of usual length."""
    figure = figures_text(decision)
    parts = (figure, _because(decision), _unmeasured(decision))
    body = "; ".join(part for part in parts if part)
    if decision.arm != decision.running:
        return f"{decision.running} -> {decision.arm}: {body}"
    return body


def speedup_text(comparison: Comparison, confidence: float) -> str:
    """`1.82x (90 %: 1.74 to 1.90)`; an open end reads `or more`."""
    if comparison.speedup_ci is None:
        return "no figure" if comparison.speedup is None else f"{comparison.speedup:.2f}x (without bounds)"
    return f"{comparison.speedup:.2f}x ({confidence * 100:.0f} %: {_range(comparison.speedup_ci, '.2f')})"


def break_even_text(comparison: Comparison) -> str:
    """`pays until 8.9 rps (8.4 to 9.3)`, or from where; empty where there is no break-even to tell."""
    if comparison.break_even_rps is None:
        return ""
    direction = "from" if comparison.c2_ratio < 1 else "until"
    bounds = f" ({_range(comparison.break_even_ci_rps, '.3g')})" if comparison.break_even_ci_rps else ""
    return f"pays {direction} {comparison.break_even_rps:.3g} rps{bounds}"


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
    comparison, load = decision.against_none, f"at {decision.load.rps:.3g} rps per replica"
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


def _acceptance_of(decision: Decision) -> str:
    """Which acceptance a break-even holds for, where the live one has moved it away from the profile's own figure."""
    standing = _standing(decision, decision.subject)
    if standing is None or standing.tokens_per_step is None or standing.calibrated_tokens_per_step is None:
        return ""
    live, calibrated = f"{standing.tokens_per_step:.2f}", f"{standing.calibrated_tokens_per_step:.2f}"
    return "" if live == calibrated else f" at the live {live} tokens per step (calibrated: {calibrated})"


def _standing(decision: Decision, arm: Arm | None) -> ArmEvaluation | None:
    return decision.field.of(arm) if decision.field is not None else None


def _against_running(decision: Decision) -> str:
    """How the other arm compares with the running one, where that is not already in the figures."""
    if decision.against_running is None or decision.against_running is decision.against_none:
        return ""
    other = decision.arm if decision.arm != decision.running else decision.alternative
    if not decision.running.k or other is None or not other.k:
        return ""
    return (
        f"{other} against {decision.running} {speedup_text(decision.against_running, decision.confidence)}; "
    )


def _because(decision: Decision) -> str:
    """The reason with what would change it."""
    explain = _EXPLANATIONS.get(decision.reason)
    return explain(decision) if explain is not None else decision.reason.meaning


def _unmeasured(decision: Decision) -> str:
    """Objectives whose own figure was not measured, as the end of a sentence; empty when there are none."""
    considered = (_standing(decision, decision.running), _standing(decision, decision.arm))
    phrases = dict.fromkeys(phrase for one in considered if one is not None for phrase in one.unmeasured)
    return f"{', '.join(phrases)} ({Reason.OBJECTIVE_NOT_MEASURED})" if phrases else ""


def _enter(decision: Decision) -> str:
    return f"when its lower bound exceeds {1 + decision.policy.min_gain:.2f}x"


def _leave(decision: Decision) -> str:
    return f"when its upper bound falls below {1 + decision.policy.exit_margin:.2f}x"


def _gains(decision: Decision) -> str:
    enough = f"the lower bound exceeds {1 + decision.policy.min_gain:.2f}x"
    return f"{_against_running(decision)}{enough}; {decision.arm} is left {_leave(decision)}"


def _beyond(decision: Decision) -> str:
    if not decision.running.k:
        return f"no speculation is right; {_other(decision)} is entered {_enter(decision)}"
    running, none = _standing(decision, decision.running), _standing(decision, NO_SPECULATION)
    least = 1 + decision.policy.exit_margin
    lost = f"the upper bound is below {least:.2f}x"
    doubtful = running is not None and (
        running.utilisation > decision.policy.max_utilisation
        or speedup_bounds(running.against_none)[1] >= least
    )
    if doubtful and none is not None:
        measured, expected = decision.load.latency_s, none.prediction.latency_s
        if measured is not None and expected is not None:
            lost = f"requests take {measured:.3g} s where none is predicted to take {expected:.3g} s"
    return f"{lost}; {decision.running} is entered again {_enter(decision)}"


def _collapsed(decision: Decision) -> str:
    return f"{_lost_acceptance(decision)}; a new calibration that shows a gain brings it back"


def _lost_acceptance(decision: Decision) -> str:
    standing = _standing(decision, decision.running)
    if standing is None or standing.tokens_per_step is None:
        return "too few drafts are accepted"
    calibrated = standing.calibrated_tokens_per_step
    beside = f" ({calibrated:.2f} when it was calibrated)" if calibrated is not None else ""
    return f"it makes {standing.tokens_per_step:.2f} tokens per step{beside}"


def _violated(decision: Decision) -> str:
    standing = _standing(decision, decision.running)
    missed = ", ".join(standing.missed) if standing else "a limit"
    return f"{decision.running} misses the objective ({missed}) and {decision.arm} keeps it"


def _entered_saturation(decision: Decision) -> str:
    carrying = _standing(decision, decision.arm)
    more = f"{carrying.saturation_rps:.3g} rps" if carrying else "more"
    return f"{decision.running} is saturated at {decision.load.rps:.3g} rps per replica, {decision.arm} carries {more}"


def _saturated(decision: Decision) -> str:
    return (
        f"{decision.running} is saturated at {decision.load.rps:.3g} rps per replica and no other arm that may be "
        "entered carries more; add replicas"
    )


def _best(decision: Decision) -> str:
    if decision.running.k:
        return f"{decision.running} is left {_leave(decision)}"
    return f"no speculation is right at {decision.load.rps:.3g} rps per replica: no other arm is measured"


def _below(decision: Decision) -> str:
    return f"{_against_running(decision)}{_other(decision)} is entered {_enter(decision)}"


def _roll(decision: Decision) -> str:
    return (
        f"{_against_running(decision)}over {duration_text(decision.policy.horizon_s)} the gain does not pay for a roll "
        f"that takes each replica away for {duration_text(decision.policy.roll_seconds)}"
    )


def _peak(decision: Decision) -> str:
    peak = peak_rps(decision.load.expected)
    running = _standing(decision, decision.running)
    other = _standing(decision, decision.arm if decision.arm != decision.running else decision.alternative)
    if peak is None or running is None or other is None:
        return decision.reason.meaning
    ahead = (
        f"the expected loads (up to {peak:.3g} rps per replica) take {other.ahead_s:.3g} s with {other.arm}, "
        f"{running.ahead_s:.3g} s with {running.arm}"
    )
    if decision.arm != decision.running:
        return f"{ahead}; a roll at the peak would lack capacity"
    return f"{ahead}; {other.arm} is entered when no such peak is ahead"


def _cooling(decision: Decision) -> str:
    return (
        f"{_against_running(decision)}{_other(decision)} is wanted, but the last switch is younger than the cool-down "
        f"of {duration_text(decision.policy.cooldown_s)}"
    )


def _dwelling(decision: Decision) -> str:
    if decision.memory.collapsed_since_s is not None:
        return (
            f"{_lost_acceptance(decision)}; {_other(decision)} is entered when a second window of "
            f"{duration_text(decision.load.window_s)} says the same"
        )
    since_s, until_s = decision.memory.candidate_since_s, decision.until_s
    dwell_s = decision.policy.dwell_s if since_s is None or until_s is None else until_s - since_s
    return (
        f"{_against_running(decision)}{_other(decision)} is entered when it has been better for "
        f"{duration_text(dwell_s)}"
    )


def _not_steady(decision: Decision) -> str:
    running = _standing(decision, decision.running)
    if decision.load.latency_s is None or running is None or running.prediction.latency_s is None:
        return decision.reason.meaning
    return (
        f"requests take {decision.load.latency_s:.3g} s where {decision.running} is predicted to take "
        f"{running.prediction.latency_s:.3g} s: a queue is being worked off, or the profile no longer fits"
    )


def _wide(_: Decision) -> str:
    return "the bounds tell neither a gain nor a loss; more calibration points would narrow them"


def _extrapolated(decision: Decision) -> str:
    judged, limit = _standing(decision, decision.subject), decision.policy.max_utilisation
    if judged is None or judged.utilisation <= limit:
        return "the load or the request lengths are outside what was measured: nothing is entered on an extrapolation"
    return (
        f"{judged.arm} is at {100 * judged.utilisation:.0f} % of its saturation and its law is trusted up to "
        f"{100 * limit:.0f} %: nothing is decided on an extrapolation alone"
    )


def _unbelievable(decision: Decision) -> str:
    arms = decision.field.unbelievable if decision.field else ()
    return f"there is no fit that may be used for {', '.join(map(str, arms)) or 'the arm'}; recalibrate"


def _idle(decision: Decision) -> str:
    return f"no request in the last {duration_text(decision.load.window_s)}: nothing to decide on"


def _other(decision: Decision) -> Arm | str:
    return decision.alternative or "another arm"


_EXPLANATIONS: dict[Reason, Callable[[Decision], str]] = {
    Reason.GAIN_ABOVE_THRESHOLD: _gains,
    Reason.BEYOND_BREAK_EVEN: _beyond,
    Reason.ACCEPTANCE_COLLAPSED: _collapsed,
    Reason.NEVER_PAYS: lambda _: "it is slower at every load; only a new calibration can bring it back",
    Reason.SLO_VIOLATED: _violated,
    Reason.ENTERED_SATURATION: _entered_saturation,
    Reason.SATURATED: _saturated,
    Reason.BELOW_BREAK_EVEN: _best,
    Reason.ALREADY_BEST: _best,
    Reason.GAIN_BELOW_THRESHOLD: _below,
    Reason.ROLL_NOT_WORTH_IT: _roll,
    Reason.PEAK_AHEAD: _peak,
    Reason.NOT_STEADY: _not_steady,
    Reason.COOLING_DOWN: _cooling,
    Reason.DWELLING: _dwelling,
    Reason.WIDE_BOUNDS: _wide,
    Reason.EXTRAPOLATED: _extrapolated,
    Reason.NO_BELIEVABLE_FIT: _unbelievable,
    Reason.NO_LOAD: _idle,
}
