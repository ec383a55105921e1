"""A profile per engine step, from which a schedule is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import InputError, NotIdentifiedError
from breakeven.laws.acceptance_numbers import AcceptanceModel, tokens_per_step_iid
from breakeven.laws.arrays import FloatArray
from breakeven.laws.step_law import Demand, Tier, reading, step_s
from breakeven.profile import ArmFit, Conditions, Profile
from breakeven.profile.fits import NOMINAL_OUTPUT_TOKENS, Lengths
from breakeven.profile.step_fit import StepLaw
from breakeven.profile.step_form import Whereabouts


@dataclass(frozen=True, slots=True)
class StepView:
    """Duration of a step and tokens from it, by batch size and draft length.

    Attributes:
        draft_lengths: ascending, 0 first.
        step_s: duration (s) at batch sizes 1..N without a prompt, shape (N, K).
        prompts_s: reading of prompts in a step (s), on average over steps, shape (N, K).
        tokens_per_step: E, shape (K,).
        basis: `others`: the law of steps of all arms.
        warnings: a sentence each, for the reader of the schedule.
    """

    draft_lengths: tuple[int, ...]
    step_s: FloatArray
    prompts_s: FloatArray
    tokens_per_step: FloatArray
    basis: str
    warnings: tuple[str, ...]


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
    return StepView(wanted, np.maximum.accumulate(steps, axis=-1), prompts, e, "others", tuple(warnings))


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
