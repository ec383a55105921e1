"""A running engine against a profile of the past: latencies that the profile's law expects, and acceptance; pure.

A past has no pairs. The bounds of the law and the scatter of the engine's own windows add up, so that only large losses show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from breakeven.arm import Arm
from breakeven.errors import NotIdentifiedError
from breakeven.estimate import Estimate
from breakeven.phrases import figure, latency_text, percent
from breakeven.planning.roll_experiment import USUAL_COUNTS_AS, mean_of_blocks
from breakeven.points.point import Point
from breakeven.profile import Conditions, Profile
from breakeven.profile.student_t import t_quantile
from breakeven.upgrade.comparison import (
    ACCEPTANCE_LIMITS,
    FEWEST_PAIRS,
    LATENCIES,
    Judged,
    drafts_nothing,
    failures,
    judged_change,
    latency_limits,
    loaded,
    no_drafts,
    not_compared,
    reported,
    too_few,
)
from breakeven.upgrade.record import EngineRecord, UpgradeFinding, UpgradeReport

_CONFIDENCE = 0.9
_NO_PAST = "a profile does not keep them"


def compare_with_past(profile: Profile, arm: Arm, after: EngineRecord) -> UpgradeReport:
    """The word for an engine, from its windows and the profile of its arm.

    Raises:
        NotIdentifiedError: the profile has no such arm.
    """
    windows = loaded(after.windows)
    found = [
        *(not_compared(name, _NO_PAST) for name in ("fields", "answers")),
        *failures(EngineRecord(), after),
        *_acceptance(profile, arm, windows),
        *_latencies(profile, arm, after.windows),
    ]
    return reported(found, arm.name, {"before": "a profile", "after": after.version})


def _acceptance(profile: Profile, arm: Arm, windows: Sequence[Point]) -> Iterator[Judged]:
    """Tokens per step, and shares by position beside them."""
    past, name = profile.arm(arm), "tokens per step"
    if not arm.k:
        return
    if drafts_nothing(windows):
        yield no_drafts(name)
        return
    if past.acceptance is None or past.tokens_per_step is None or past.acceptance.tokens_per_step_ci is None:
        yield not_compared(name, "the profile has no bounds of them")
        return
    expected = Estimate.of(past.tokens_per_step, past.acceptance.tokens_per_step_ci)
    yield _against(name, expected, [one.tokens_per_step for one in windows])
    for place, share in enumerate(past.survival_per_draft):
        now = [one.accept[place] for one in windows if place < len(one.accept)]
        if now:
            mean = float(np.mean(now))
            said = f"{percent(share)} of drafts in the profile, {percent(mean)} now"
            ratio = mean / share if share > 0.0 else None
            shown = f"accepted at position {place + 1}"
            yield Judged(UpgradeFinding(shown, share, mean, ratio, None, None, said))


def _latencies(profile: Profile, arm: Arm, windows: Sequence[Point]) -> Iterator[Judged]:
    """Latencies at each load, at the lengths that the windows had."""
    loads = list(dict.fromkeys(window.load for window in windows))
    for load in loads:
        here = [window for window in loaded(windows) if window.load == load]
        lengths = Conditions(
            prompt_tokens=_mean(one.prompt_tokens for one in here),
            output_tokens=_mean(one.output_tokens for one in here),
        )
        try:
            known = profile.predict(
                arm, rps=load.rps, concurrency=load.clients, conditions=lengths, confidence=_CONFIDENCE
            )
        except NotIdentifiedError as error:
            yield not_compared(f"latencies at {load}", str(error))
            continue
        figures = {
            "tpot_mean_s": (known.tpot_s, known.tpot_ci_s),
            "ttft_mean_s": (known.ttft_s, known.ttft_ci_s),
        }
        for name, column in LATENCIES.items():
            expected = Estimate.of(*figures[column])
            times = [getattr(one, column) for one in here]
            yield _against(f"{name} at {load}", expected, times, (column, len(loads)))


def _mean(values: Iterator[float | None]) -> float | None:
    known = [one for one in values if one]
    return float(np.mean(known)) if known else None


def _against(
    name: str, expected: Estimate, now: Sequence[float | None], latency: tuple[str, int] | None = None
) -> Judged:
    """One figure against what the profile expects; `latency` is its column and the number of loads."""
    known = [one for one in now if one]
    value, lower, upper = expected.value, expected.lower, expected.upper
    if not value or not lower or not upper:
        return not_compared(name, "the profile expects no such figure with bounds at this load")
    zeros = np.zeros(len(known))
    change = mean_of_blocks(np.log(np.array(known) / value), zeros, zeros)
    if len(known) < FEWEST_PAIRS or change is None:
        return too_few(name)
    dof = len(known) - 1 + int(USUAL_COUNTS_AS)
    of_law = math.log(upper / lower) / (2.0 * t_quantile(_CONFIDENCE, dof))
    sd = math.hypot(math.sqrt(change.variance), of_law)
    limits = latency_limits(*latency) if latency else ACCEPTANCE_LIMITS
    means = value, float(np.mean(known))
    show = latency_text if latency else figure
    return judged_change(name, (change.mean, sd, dof, len(known)), means, limits, show)
