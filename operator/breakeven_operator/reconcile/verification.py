"""After a roll: is the new arm as fast as the model promised? If it is surely slower than either arm should be, go back.

Both arms' predictions are made for the *present* load and lengths. A roll is disproved only by requests that take
longer than the new arm's own prediction and longer than the old arm's. Where the new arm is as fast as promised the
roll was right as decided; whether it still gains, at a load that has changed since, is the next decision's question.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from breakeven.arm import Arm
from breakeven.errors import BreakevenError
from breakeven.laws.latency import longest_by_chance
from breakeven.planning.trust import extrapolated
from breakeven.profile import Prediction, Profile
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.live_metrics import Figures, Live
from breakeven_operator.reconcile.rollout import end, undo
from breakeven_operator.reconcile.steps import RolloutContext, RolloutStep
from breakeven_operator.resources.rolloutstatus import HistoryResult, Rollout

# Below about 5 % a difference is noise (day-to-day scatter of identical runs is up to 6 %).
_NOISE = 0.05
# While the load changes, and while what waited through the roll is worked off, the mean latency of a window belongs to no
# single load. A disproof must outlast that: one window for the change, one for what it leaves behind.
_SETTLED_WINDOWS = 2
_DISPROVED_WINDOWS = 3
_GIVE_UP_WINDOWS = 6


def confirm(
    context: RolloutContext, profile: Profile | None, live: Live, window_s: float
) -> RolloutStep | None:
    """Judge a finished roll once its pods have run for a whole window; None: too early to say.

    - Confirmed: the new arm is as fast as promised, or no slower than the old one would be.
    - Undone: from the first window to the third, requests take longer than both.
    - Unconfirmed: the figures allow neither, or nobody promised anything (a pinned arm).
    """
    rollout = context.rollout
    if rollout is None or rollout.finished_time is None:
        return None
    windows = (context.now - rollout.finished_time).total_seconds() / window_s
    if windows < 1:
        return None
    change = f"{rollout.from_arm} -> {rollout.to_arm}"
    old, new = _measured_arms(rollout, profile)
    figures = live.figures if live.usable else None
    if profile is None or old is None or new is None or figures is None or not figures.latency_s:
        if windows < _GIVE_UP_WINDOWS:
            return None
        why = "the profile in force does not hold both arms" if live.usable else live.message
        return end(context, HistoryResult.UNCONFIRMED, f"{change} could not be measured: {why}", None)
    try:
        found = _compare(
            profile, old, new, figures, figures.latency_s, context.policy.max_utilization_percent / 100
        )
    except BreakevenError as error:
        return end(context, HistoryResult.UNCONFIRMED, f"{change} could not be judged: {error}", None)
    if found.latency_s <= found.longest_s:
        return end(context, HistoryResult.CONFIRMED, f"{change}: {found.ratio}", found.speedup)
    if windows < _DISPROVED_WINDOWS:
        return None
    if found.sure and rollout.reason != ClusterReason.PINNED:
        return undo(context, rollout, ClusterReason.ROLL_DISPROVED, f"{found.ratio}; {found.latencies}")
    message = f"{change}: {found.ratio}; {found.latencies}"
    return end(context, HistoryResult.UNCONFIRMED, message, found.speedup)


def settled(context: RolloutContext, window_s: float) -> bool:
    """Whether a window's mean latency belongs to its load: not while it holds what a roll has left behind."""
    rollout = context.rollout
    if rollout is None:
        return True
    if rollout.finished_time is None:
        return False
    return (context.now - rollout.finished_time).total_seconds() > _SETTLED_WINDOWS * window_s


def disproved(
    context: RolloutContext, profile: Profile | None, live: Live, wanted: Arm
) -> RolloutStep | None:
    """The undoing of a roll that the decision wants to go back on; None: the way back is a change like any other.

    It is an undoing where requests surely take longer than both arms are predicted to: what the decision goes back on is
    then what was measured, not a load that has changed.

    Args:
        context: with the roll that is being confirmed, if any.
        profile: in force.
        live: figures of this cycle.
        wanted: the arm that the decision wants.
    """
    rollout, figures = context.rollout, live.figures
    if rollout is None or profile is None or figures is None or not figures.latency_s:
        return None
    old, new = _measured_arms(rollout, profile)
    if old is None or old != wanted or new is None or rollout.reason == ClusterReason.PINNED:
        return None
    try:
        found = _compare(
            profile, old, new, figures, figures.latency_s, context.policy.max_utilization_percent / 100
        )
    except BreakevenError:
        return None
    if not found.sure:
        return None
    return undo(context, rollout, ClusterReason.ROLL_DISPROVED, f"{found.ratio}; {found.latencies}")


def _measured_arms(rollout: Rollout, profile: Profile | None) -> tuple[Arm | None, Arm | None]:
    """The old and the new arm of a roll; None where the profile holds none of that name."""
    arms = {fit.arm.name: fit.arm for fit in profile.arms} if profile is not None else {}
    return arms.get(rollout.from_arm or ""), arms.get(rollout.to_arm or "")


@dataclass(frozen=True, slots=True)
class _Found:
    """A measurement beside what was predicted for its load.

    Attributes:
        latency_s: measured mean (s).
        longest_s: what a right roll may bring (s): the longer of both predictions, at its upper bound.
        sure: more than that by more than chance explains, where both laws may be believed.
        speedup: predicted latency of the old arm over the measured one; None where the old arm would be saturated.
        ratio, latencies: the comparison in words.
    """

    latency_s: float
    longest_s: float
    sure: bool
    speedup: float | None
    ratio: str
    latencies: str


def _compare(
    profile: Profile, old: Arm, new: Arm, figures: Figures, latency_s: float, max_utilisation: float
) -> _Found:
    """Hold a measured mean latency (s) against both arms' predictions, believed up to a utilisation.

    Raises:
        BreakevenError: the profile does not tell about these lengths.
    """

    def predict(arm: Arm, rps: float) -> Prediction:
        # No live acceptance: the old arm's is not known any more, and the new one's already shows in the measurement.
        lengths = (figures.prompt_tokens, figures.output_tokens)
        return profile.predict(arm, rps=rps, prompt_tokens=lengths[0], output_tokens=lengths[1])

    alone, after, before = predict(new, 0.0), predict(new, figures.rps), predict(old, figures.rps)
    # Whatever an arm takes is faster than one that saturates; an arm that saturates by its own law promises nothing.
    longest_s = (1.0 + _NOISE) * max(_slowest_s(before, math.inf), _slowest_s(after, 0.0))
    by_chance_s = (
        longest_by_chance(alone.latency_s, longest_s, figures.requests, profile.confidence)
        if alone.latency_s and math.isfinite(longest_s)
        else math.inf
    )
    speedup = before.latency_s / latency_s if before.latency_s is not None else None
    at = f"at {figures.rps:.3g} rps per replica"
    if before.latency_s is None or speedup is None:
        ratio = f"measured {latency_s:.3g} s {at}, where {old} would be saturated"
    else:
        promised = f"{before.latency_s / after.latency_s:.2f}x" if after.latency_s else "saturation"
        ratio = f"measured {speedup:.2f}x against predicted {promised} {at}"
    return _Found(
        latency_s=latency_s,
        longest_s=longest_s,
        sure=latency_s > by_chance_s
        and not any(extrapolated(one, max_utilisation) for one in (before, after)),
        speedup=speedup,
        ratio=ratio,
        latencies=f"requests take {latency_s:.3g} s where {new} is predicted to take {_said(after)} and {old} {_said(before)}",
    )


def _slowest_s(prediction: Prediction, saturated_s: float) -> float:
    """Upper bound of a predicted latency (s); where it is open the latency itself; `saturated_s` where there is none."""
    if prediction.latency_s is None:
        return saturated_s
    return max(prediction.latency_s, (prediction.latency_ci_s or (None, None))[1] or 0.0)


def _said(prediction: Prediction) -> str:
    return "ever longer (saturated)" if prediction.latency_s is None else f"{prediction.latency_s:.3g} s"
