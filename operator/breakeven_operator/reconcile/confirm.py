"""After a roll: does the measured latency bear out what the model promised? If not, go back."""

from __future__ import annotations

import math

from breakeven.errors import BreakevenError
from breakeven.profile import Prediction, Profile
from breakeven.reasons import Reason
from breakeven_operator.reasons import ClusterReason
from breakeven_operator.reconcile.live import Live
from breakeven_operator.reconcile.rollout import end, undo
from breakeven_operator.reconcile.steps import Situation, Step
from breakeven_operator.resources.servicestatus import HistoryResult

# Below about 5 % a difference is noise (day-to-day scatter of identical runs is up to 6 %).
_NOISE = 0.05
_GIVE_UP_WINDOWS = 6


def confirm(situation: Situation, profile: Profile | None, live: Live, window_s: float) -> Step | None:
    """Judge a finished roll once its pods have run for a whole window; None: too early to say.

    The measured latency is compared with what the old arm is predicted to have at the *present* load, so a load that
    changed during the roll neither makes nor breaks a gain.
    """
    rollout = situation.rollout
    if rollout is None or rollout.finished_time is None:
        return None
    since_s = (situation.now - rollout.finished_time).total_seconds()
    if since_s < window_s:
        return None
    figures = live.figures
    change = f"{rollout.from_arm} -> {rollout.to_arm}"
    arms = {fit.arm.name: fit.arm for fit in profile.arms} if profile is not None else {}
    old, new = arms.get(rollout.from_arm or ""), arms.get(rollout.to_arm or "")
    usable = live.usable and figures is not None and figures.latency_s
    if profile is None or old is None or new is None or not usable:
        if since_s < _GIVE_UP_WINDOWS * window_s:
            return None
        why = live.message if not usable else "the profile in force does not hold both arms"
        return end(situation, HistoryResult.UNCONFIRMED, f"{change} could not be measured: {why}", None)
    assert figures is not None and figures.latency_s  # noqa: PT018, S101 - told apart above; for the type checker
    rps, prompt, output = figures.rps, figures.prompt_tokens, figures.output_tokens
    try:
        # No live acceptance: the old arm's is not known any more, and the new one's already shows in the measurement.
        before = profile.predict(old, rps=rps, prompt_tokens=prompt, output_tokens=output)
        after = profile.predict(new, rps=rps, prompt_tokens=prompt, output_tokens=output)
        expected = profile.compare(new, old, rps=rps, prompt_tokens=prompt, output_tokens=output).speedup
    except BreakevenError as error:
        return end(situation, HistoryResult.UNCONFIRMED, f"{change} could not be judged: {error}", None)
    at = f"at {figures.rps:.3g} rps per replica"
    if before.latency_s is None:
        message = f"{change}: measured {figures.latency_s:.3g} s {at}, where {old} would be saturated"
        return end(situation, HistoryResult.CONFIRMED, message, None)
    measured = before.latency_s / figures.latency_s
    against = f" against predicted {expected:.2f}x" if expected and math.isfinite(expected) else ""
    message = f"{change}: measured {measured:.2f}x{against} {at}"
    slowest_s = _slowest_s(before.latency_s, before)
    if rollout.reason == Reason.PEAK_AHEAD and after.latency_s is not None:
        # An arm that is left before a peak is the faster one until then: the new one has only to be as fast as promised.
        slowest_s = max(slowest_s, _slowest_s(after.latency_s, after))
    if figures.latency_s <= slowest_s * (1 + _NOISE):
        return end(situation, HistoryResult.CONFIRMED, message, measured)
    if before.extrapolated or rollout.reason == ClusterReason.PINNED:
        return end(situation, HistoryResult.UNCONFIRMED, message, measured)
    return undo(situation, rollout, ClusterReason.ROLL_DISPROVED, message)


def _slowest_s(latency_s: float, prediction: Prediction) -> float:
    return max(latency_s, (prediction.latency_ci_s or (0.0, latency_s))[1] or 0.0)
