"""A draft length per batch size, in the form that vLLM takes (`num_speculative_tokens_per_batch_size`).

A schedule is not free and not no speculation: k = 0 inside the engine still feeds the drafter (a time per token 6.6 to
21.6 % longer was measured). Switching costs time too: in one study 7/3/2 lost to a fixed 3 from concurrency 8 up. It is one
more arm, measured against a real pod without speculation and never assumed to be better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError, NotIdentifiedError
from breakeven.laws.acceptance_numbers import AcceptanceModel, tokens_per_step_iid
from breakeven.laws.arrays import BoolArray, FloatArray
from breakeven.laws.step_law import Demand, Tier, reading, step_s
from breakeven.profile import ArmFit, Conditions, Profile
from breakeven.profile.fits import NOMINAL_OUTPUT_TOKENS, Lengths
from breakeven.profile.step_fit import StepLaw
from breakeven.profile.step_form import Whereabouts
from breakeven.tiers import Schedule


def schedule(
    step_s: ArrayLike,
    tokens_per_step: ArrayLike,
    draft_lengths: Sequence[int],
    *,
    tpot_limit_s: float | None = None,
    worst_case: bool = False,
    tolerance: float = 0.005,
) -> Schedule:
    """Choose the draft length with the highest goodput per batch size, in as few ranges as possible.

    A range may give away up to `tolerance` of the goodput at its batch sizes: differences of that size are noise, and
    each range costs the engine graphs. Within it the draft length with the highest sum of relative goodput is taken.

    Args:
        step_s: duration of a step (s) at batch sizes 1..N and each draft length, shape (N, K).
        tokens_per_step: E at each draft length, shape (K,) or (N, K).
        draft_lengths: ascending, shape (K,).
        tpot_limit_s: time per token to keep (s); where no draft length does, the fastest is taken.
        worst_case: hold the limit for steps that yield one token.
        tolerance: relative goodput that merging may give away.

    Raises:
        ValueError: shapes do not fit, draft lengths do not rise from at least 0, or the tolerance is not in [0, 1).
    """
    durations = np.asarray(step_s, dtype=float)
    lengths = [int(k) for k in draft_lengths]
    if durations.ndim != 2 or durations.shape[1] != len(lengths) or durations.shape[0] == 0:
        raise ValueError(f"step_s: shape {durations.shape}; expected (batch sizes, {len(lengths)})")
    if lengths != sorted(set(lengths)) or lengths[0] < 0:
        raise ValueError(f"draft_lengths: {lengths!r} do not rise from at least 0")
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance: {tolerance!r} is not in [0, 1)")
    batches = np.arange(1, durations.shape[0] + 1)
    output = goodput(batches[:, None], tokens_per_step, durations)
    tpot_s = durations / (1.0 if worst_case else np.asarray(tokens_per_step, dtype=float))
    permitted = _allowed(tpot_s, tpot_limit_s)
    # All draft lengths are searched: with a flat draft cost goodput has more than one local maximum.
    best = np.argmax(np.where(permitted, output, -np.inf), axis=-1)
    relative = output / np.take_along_axis(output, best[:, None], axis=-1)
    acceptable = permitted & (relative >= 1.0 - tolerance)
    return Schedule(_merge(relative, acceptable, lengths))


def goodput(batch: ArrayLike, tokens_per_step: ArrayLike, step_s: ArrayLike) -> FloatArray:
    """Tokens per second (1/s) of a batch: B*E/T (SmartSpec, arXiv 2406.14066)."""
    return np.asarray(np.asarray(batch) * np.asarray(tokens_per_step) / np.asarray(step_s), dtype=float)


def _allowed(tpot_s: FloatArray, limit_s: float | None) -> BoolArray:
    """Draft lengths (last axis) that keep the limit; if none does, the lengths with the lowest time per token."""
    if limit_s is None:
        return np.ones(tpot_s.shape, dtype=bool)
    within = tpot_s <= limit_s
    least = tpot_s <= tpot_s.min(axis=-1, keepdims=True)
    return np.asarray(np.where(within.any(axis=-1, keepdims=True), within, least))


def _merge(
    relative: FloatArray, acceptable: BoolArray, lengths: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """The fewest tiers that cover the batch sizes: each extends as long as one draft length is acceptable in all of it."""
    tiers: list[tuple[int, int]] = []
    start, last = 0, len(acceptable)
    while start < last:
        common, stop = acceptable[start], start + 1
        while stop < last and (common & acceptable[stop]).any():
            common = common & acceptable[stop]
            stop += 1
        total = np.where(common, relative[start:stop].sum(axis=0), -np.inf)
        k = lengths[int(np.argmax(total))]
        # Two neighbouring tiers may have chosen the same length.
        if not tiers or tiers[-1][1] != k:
            tiers.append((start + 1, k))
        start = stop
    return tuple(tiers)


@dataclass(frozen=True, slots=True)
class StepView:
    """Duration of a step and tokens from it, by batch size and draft length.

    Attributes:
        draft_lengths: ascending, 0 first.
        step_s: duration (s) at batch sizes 1..N without a prompt, shape (N, K).
        prompts_s: reading of prompts in a step (s), on average over steps, shape (N, K).
        tokens_per_step: E, shape (K,).
        warnings: a sentence each, for the reader of the schedule.
        basis: what the durations come from, in words.
    """

    draft_lengths: tuple[int, ...]
    step_s: FloatArray
    prompts_s: FloatArray
    tokens_per_step: FloatArray
    warnings: tuple[str, ...]
    basis: str = "the costs of steps"


def step_view(
    profile: Profile,
    family: str,
    batches: int,
    *,
    conditions: Conditions | None = None,
    alpha: float | None = None,
    draft_lengths: Sequence[int] | None = None,
) -> StepView:
    """Derive step durations of a method (or candidate) from a profile, at batch sizes from 1 to `batches`.

    Tokens per step of the conditions belong to the longest measured draft length; `alpha` takes their place. Draft lengths
    to consider, beside 0, are all up to the longest measured unless they are given.

    Raises:
        NotIdentifiedError: the method was not measured, or its steps or acceptance are not determined.
        InputError: an acceptance that is impossible.
    """
    measured = _measured(profile, family)
    drafter = next((one for one in profile.drafters if one.method == family), None)
    if drafter is None or profile.steps is None:
        raise NotIdentifiedError(
            f"{family}: measured without token counts, so its steps are not known; its points need output_tokens, and "
            "tokens_per_step or accept_1..k"
        )
    longest = max(measured)
    wanted = tuple(sorted({0, *(draft_lengths or range(1, longest + 1))}))
    assumed = conditions or Conditions()
    lengths = assumed.lengths(profile.lengths)
    of_any = next(iter(measured.values())).arm
    arms = [replace(of_any, k=k) if k else NO_SPECULATION for k in wanted]
    drafted = [drafter.drafts(k) if k else 0.0 for k in wanted]
    e = _tokens_per_step(measured, drafter.acceptance, wanted, alpha, assumed.tokens_per_step)
    steps, prompts = np.stack(
        [
            _durations_s(profile.steps, arm, Tier(1, *map(np.asarray, of_arm)), lengths, batches)
            for arm, *of_arm in zip(arms, drafted, e, strict=True)
        ],
        axis=-1,
    )
    warnings = [f"draft lengths above {longest} were not measured"] if max(wanted) > longest else []
    # A longer draft never makes a step shorter, although noise may make it look so.
    return StepView(wanted, np.maximum.accumulate(steps, axis=-1), prompts, e, tuple(warnings))


def _measured(profile: Profile, family: str) -> dict[int, ArmFit]:
    measured = {
        fit.k: fit
        for fit in profile.arms
        if fit.k and fit.arm.family == family and not fit.arm.scheduled and fit.measurements
    }
    if not measured:
        known = sorted({fit.arm.family for fit in profile.arms if fit.k})
        raise NotIdentifiedError(
            f"{family}: not in the profile; measured methods: {', '.join(known) or 'none at all'}"
        )
    return measured


def _durations_s(law: StepLaw, arm: Arm, tier: Tier, lengths: Lengths, batches: int) -> FloatArray:
    """Durations (s) of an arm's step, and of reading prompts in it on average, at batch sizes 1 to `batches`; (2, batches)."""
    sizes, costs = np.arange(1.0, batches + 1.0), law.costs(arm)
    prompt = np.asarray(lengths.prompt_tokens or 1.0)
    output = np.asarray(lengths.output_tokens or NOMINAL_OUTPUT_TOKENS)
    demand = Demand((tier,), prompt, output, np.asarray(lengths.context_tokens))
    # A request is followed by another one after output/E steps, and a step of all reads the prompt of that one.
    come = sizes * tier.tokens_per_step / output
    prompts_s = reading(costs, demand, sizes, come).prompt_s * come
    departed = np.exp(law.departures(arm, Whereabouts.of(arm, sizes - 1.0, prompt, output)).mean)
    return np.stack([step_s(costs, tier, demand.context_tokens, sizes), prompts_s]) * departed


def _tokens_per_step(
    measured: Mapping[int, ArmFit],
    model: AcceptanceModel,
    wanted: Sequence[int],
    alpha: float | None,
    at_longest: float | None,
) -> FloatArray:
    """E at the wanted draft lengths, shape (K,): from alpha, or E at the longest measured draft length, or as measured."""
    if alpha is not None:
        if not 0 <= alpha <= 1:
            raise InputError("--alpha", f"{alpha:g}", "a rate between 0 and 1")
        return tokens_per_step_iid(alpha, list(wanted))
    values = []
    for k in wanted:
        known = measured[k].tokens_per_step if k in measured else None
        values.append(model.at(k).value if known is None else known)
    e = np.array(values)
    if at_longest is None:
        return e
    longest = max(measured)
    if not 1 <= at_longest <= longest + 1:
        raise InputError(
            "--tokens-per-step", f"{at_longest:g} at draft length {longest}", f"1 to {longest + 1}"
        )
    there = measured[longest].tokens_per_step
    if there is None or there <= 1:
        raise NotIdentifiedError(f"tokens per step at draft length {longest} were not measured; give --alpha")
    # Accepted drafts keep their proportion between draft lengths.
    scaled = 1.0 + (e - 1.0) * (at_longest - 1.0) / (there - 1.0)
    return np.minimum(scaled, np.array(wanted) + 1.0)
