"""The schedule of a method: made from the arms that a run has measured, to be measured as one more arm.

A schedule is never assumed better: a draft length of 0 inside the engine is not no speculation, and switching costs. The
computation here only finds the schedule that is worth a measurement.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from breakeven.arm import NO_SPECULATION, SCHEDULE
from breakeven.errors import BreakevenError, InputError, NotIdentifiedError
from breakeven.laws.arrays import FloatArray
from breakeven.planning.draft_schedule import StepView, goodput, schedule, step_view
from breakeven.points.point import Point
from breakeven.profile import Profile
from breakeven.serving.command_line import arm_json, configuration
from breakeven.tiers import Schedule
from breakeven_operator.actions import FitOutcome
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.resources.calibrationrun import PlannedArm
from breakeven_operator.resources.candidates import scheduled_config, table_of, without_drafts
from breakeven_operator.workloads.served_engine import ServedEngine
from breakeven_operator.workloads.target import Refusal

ASSUMED_ZERO_DRAFT_TAX = 0.14
"""Share by which a step with draft length 0 is assumed longer than one without speculation, until a schedule of the method
was measured. Real engines took 6.6 to 21.6 % more time per token; this is the middle.
"""

_DEFAULT_MAX_NUM_SEQS = 256
_MOST_BATCHES = 1024
# A table that was measured before is measured again unless another one is better by more than noise: a new table costs a roll.
_WORTH_ANOTHER_TABLE = 0.02
_LARGEST_TAX = 0.5


def drafted(
    outcome: FitOutcome, family: str, batches: int, zero_draft_tax: float, running: Schedule | None
) -> tuple[Schedule, str] | Refusal:
    """The schedule of a method with a sentence, or why there is none, from a fit of no speculation and the method's draft lengths.

    A step with draft length 0 takes `zero_draft_tax` longer than one without speculation, as a share. `running` is the schedule of
    this method that the target runs.
    """
    if outcome.profile_json is None:
        return Refusal(ClusterReason.FIT_REJECTED, outcome.error or "the fit gave no reason")
    try:
        costs = _costs(Profile.from_json(outcome.profile_json, f"fit of {family}"), family, batches)
    except BreakevenError as error:
        return Refusal(ClusterReason.FIT_REJECTED, str(error))
    step_s = costs.step_s.copy()
    step_s[:, 0] *= 1.0 + zero_draft_tax
    costs = replace(costs, step_s=step_s)
    found = schedule(step_s, costs.tokens_per_step, costs.draft_lengths)
    if running is not None and not _worth_changing(costs, running, found):
        message = f"{running}, which runs: no other one is clearly better by {costs.basis}"
        return running, message
    if len(found.tiers) == 1:
        k = found.tiers[0][1]
        best = f"draft length {k}" if k else "no speculation"
        message = f"{best} is best at every batch size up to {batches} by {costs.basis}"
        return Refusal(ClusterReason.ARM_SKIPPED, message)
    return found, f"{found}, by {costs.basis}"


def _costs(profile: Profile, family: str, batches: int) -> StepView:
    """Costs of steps, by which a schedule is chosen: from the profile if it determines them, else from whole requests.

    Raises:
        NotIdentifiedError: no law of the method, or none without speculation.
    """
    try:
        return step_view(profile, family, batches)
    except NotIdentifiedError:
        pass
    # All arms answered requests of equal lengths. So the time of a request is proportional to the time of a step, and each
    # request counts as one unit of output.
    curves = {
        fit.k: profile.curve(fit.arm)
        for fit in profile.arms
        if fit.measurements and not fit.arm.scheduled and (fit.k == 0 or fit.arm.family == family)
    }
    if 0 not in curves or len(curves) < 2:
        raise NotIdentifiedError(f"{family}: no law of it, or none without speculation")
    others = np.arange(float(batches))
    step_s = np.stack([curve.latencies_among(others) for _, curve in sorted(curves.items())], axis=1)
    per_step = np.ones(len(curves))
    return StepView(
        tuple(sorted(curves)), step_s, np.zeros_like(step_s), per_step, (), "the latency of whole requests"
    )


def _goodput_of(costs: StepView, found: Schedule) -> FloatArray | None:
    """Tokens per second under a schedule at batch sizes 1..N; None if it drafts a length whose cost is not known."""
    if not {k for _, k in found.tiers} <= set(costs.draft_lengths):
        return None
    sizes = np.arange(1, len(costs.step_s) + 1)
    columns = np.array([costs.draft_lengths.index(found.at(int(batch))) for batch in sizes])
    output = goodput(sizes[:, None], costs.tokens_per_step, costs.step_s)
    return np.asarray(output[sizes - 1, columns])


def _worth_changing(costs: StepView, running: Schedule, found: Schedule) -> bool:
    """Whether another schedule than the running one is better by more than noise, over all batch sizes."""
    now, then = _goodput_of(costs, running), _goodput_of(costs, found)
    if now is None or then is None:
        return True
    return bool(np.mean(then / now) > 1.0 + _WORTH_ANOTHER_TABLE)


def zero_draft_tax(profile: Profile | None, family: str) -> float:
    """How much longer requests take in the schedule's tier without drafts than without speculation, as a share.

    It is the median over the points well within that tier of a profile that measured a schedule of this method on the same
    target; the documented assumption without any.
    """
    fits = profile.arms if profile is not None else ()
    fit = next((fit for fit in fits if fit.arm.name == f"{family}/{SCHEDULE}"), None)
    if profile is None or fit is None or fit.schedule is None:
        return ASSUMED_ZERO_DRAFT_TAX
    first, last = Schedule.parse(fit.schedule, f"schedule of {fit.arm}").tiers[-1]
    # Batches vary around the mean number in flight: two standard deviations above the border, nearly all lie in the tier.
    settled = [
        point for point in fit.measurements if last == 0 and point.inflight >= first + 2.0 * first**0.5
    ]
    if not settled or not profile.measured(NO_SPECULATION):
        return ASSUMED_ZERO_DRAFT_TAX
    none = profile.curve(NO_SPECULATION)
    longer = [
        point.latency_s / none.loop_latency_s(point.others, closed=point.mode == "closed") - 1.0
        for point in settled
    ]
    return float(np.clip(np.median(longer), 0.0, _LARGEST_TAX))


def largest_batch(engine: ServedEngine) -> int:
    """The largest batch for which a schedule is made: `--max-num-seqs`, or vLLM's default."""
    return min(max(2, engine.number("--max-num-seqs") or _DEFAULT_MAX_NUM_SEQS), _MOST_BATCHES)


def ignores_schedules(engine: ServedEngine) -> str | None:
    """Reason why this engine would start with a schedule but not follow it; None if there is none."""
    name = "--data-parallel-size"
    ranks = engine.number(name)
    if engine.flag(name) is not None and (ranks or 1) > 1:
        return f"{name} {ranks}: vLLM drafts by one length on all of its ranks"
    return None


def ignored(points: Iterable[Point], found: Schedule) -> str | None:
    """Evidence that an engine drafts by one length at every batch size; None if there is none.

    At a load whose batches all lie in tiers of short drafts, most steps cannot have drafted the longest. Hardly any step of
    a steady load has fewer requests than half the mean number in flight.
    """
    longest = found.num_speculative_tokens
    for point in points:
        inflight, per_step = point.measured_inflight, point.drafted_per_step
        if inflight is None or per_step is None or not point.usable:
            continue
        allowed = max(found.at(batch) for batch in range(max(1, int(inflight / 2)), int(2 * inflight) + 2))
        if per_step > (allowed + longest) / 2:
            return (
                f"{per_step:.3g} tokens drafted per step at {inflight:.3g} requests in flight, where the schedule allows "
                f"{allowed}: the engine does not follow it"
            )
    return None


def with_schedule(planned: PlannedArm, text: str) -> PlannedArm:
    """The planned arm with the schedule that was made for it."""
    found = Schedule.parse(text, f"schedule of {planned.arm}")
    config = scheduled_config(json.loads(planned.speculative_config), found)
    return planned.replace(k=found.num_speculative_tokens, speculative_config=arm_json(config))


def running_schedule(value: str | None, planned: PlannedArm) -> Schedule | None:
    """The schedule of the planned arm's method that an annotation's value asks for, measured or not; None without one of two tiers."""
    try:
        config = configuration(value or "")
        found = table_of(config)
    except InputError:
        return None
    if found is None or config is None:
        return None
    mine = json.loads(planned.speculative_config)
    own = without_drafts(config) == without_drafts(mine)
    return found if own and len(found.tiers) > 1 else None


def points_for(arms: Sequence[PlannedArm], planned: PlannedArm) -> tuple[str, ...]:
    """Names of the arms that a schedule is made from: no speculation, and its method at each draft length."""
    return tuple(
        arm.arm
        for arm in arms
        if not (arm.second_start or arm.scheduled or arm.adaptive)
        and (arm.k == 0 or (arm.method, arm.candidate) == (planned.method, planned.candidate))
    )
