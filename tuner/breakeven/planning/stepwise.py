"""A profile seen per engine step: what a schedule is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from breakeven.arm import NO_SPECULATION
from breakeven.errors import InputError, NotIdentifiedError
from breakeven.laws.acceptance import tokens_per_step_iid
from breakeven.laws.arrays import FloatArray
from breakeven.laws.speculation import COEFFICIENTS, PooledLaw, mean_kv_tokens
from breakeven.profile import ArmFit, PooledFit, Profile


@dataclass(frozen=True, slots=True)
class StepView:
    """Duration of a step and tokens from it, by batch size and draft length.

    Attributes:
        draft_lengths: ascending, 0 first.
        step_s: duration (s) at batch sizes 1..N, shape (N, K).
        tokens_per_step: E, shape (K,).
        basis: `pooled` (any draft length) or `arms` (measured ones only, from their TPOT laws).
        warnings: what a reader must know, a sentence each.
    """

    draft_lengths: tuple[int, ...]
    step_s: FloatArray
    tokens_per_step: FloatArray
    basis: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance to assume: alpha, or E at the longest measured draft length; neither: as measured."""

    alpha: float | None = None
    tokens_per_step: float | None = None


def step_view(
    profile: Profile,
    family: str,
    batches: int,
    *,
    acceptance: Acceptance,
    draft_lengths: Sequence[int] | None = None,
    prompt_tokens: float | None = None,
    output_tokens: float | None = None,
) -> StepView:
    """Derive step durations of a method from a profile.

    The pooled form gives a step directly, at any draft length. Without one, a step of a measured arm is its time per
    output token times its tokens per step.

    Args:
        profile: the fitted model.
        family: the method's (or candidate's) name.
        batches: largest batch size, at least 1.
        acceptance: what to assume.
        draft_lengths: draft lengths to consider (0 is always one); `None`: up to the longest measured.
        prompt_tokens: mean per request; `None`: as measured.
        output_tokens: mean per request; `None`: as measured.

    Raises:
        NotIdentifiedError: the method was not measured, or what is asked is not determined.
        InputError: an acceptance that is impossible.
    """
    measured = {
        fit.k: fit for fit in profile.arms if fit.k and fit.arm.family == family and fit.fit is not None
    }
    if not measured:
        known = sorted({fit.arm.family for fit in profile.arms if fit.k})
        raise NotIdentifiedError(
            f"{family}: not in the profile; measured methods: {', '.join(known) or 'none at all'}"
        )
    pooled = next((fit for fit in profile.pooled if fit.method == family), None)
    longest = max(measured)
    wanted = tuple(sorted({0, *(draft_lengths or (range(1, longest + 1) if pooled else measured))}))
    e = _tokens_per_step(measured, pooled, wanted, acceptance)
    sizes = np.arange(1.0, batches + 1.0)
    if pooled is not None:
        steps = _pooled_steps(pooled, wanted, sizes, prompt_tokens, output_tokens)
        beyond = [k for k in wanted if k > longest]
        warnings = [f"draft lengths above {longest} were not measured"] if beyond else []
        if pooled.unidentified:
            warnings.append(f"not identified and taken as 0: {', '.join(pooled.unidentified)}")
        return StepView(wanted, steps, e, "pooled", tuple(warnings))
    if missing := [k for k in wanted if k and k not in measured]:
        raise NotIdentifiedError(
            f"{family}: draft length {missing[0]} was not measured and there is no pooled fit"
        )
    steps = np.stack([_measured_steps(measured.get(k) or _none(profile), sizes) for k in wanted], axis=-1)
    return StepView(wanted, steps, e, "arms", ("no pooled fit: only measured draft lengths are considered",))


def _tokens_per_step(
    measured: Mapping[int, ArmFit], pooled: PooledFit | None, wanted: Sequence[int], acceptance: Acceptance
) -> FloatArray:
    if acceptance.alpha is not None:
        if not 0 <= acceptance.alpha <= 1:
            raise InputError("--alpha", f"{acceptance.alpha:g}", "a rate between 0 and 1")
        return tokens_per_step_iid(acceptance.alpha, list(wanted))
    model = pooled.acceptance if pooled is not None else None
    values = []
    for k in wanted:
        fit = measured.get(k)
        known = 1.0 if k == 0 else fit.tokens_per_step if fit is not None else None
        known = known if known is not None else model.at(k).value if model is not None else None
        if known is None:
            raise NotIdentifiedError(f"tokens per step at draft length {k} were not measured; give --alpha")
        values.append(known)
    e = np.array(values)
    if acceptance.tokens_per_step is None:
        return e
    longest = max(measured)
    if not 1 <= acceptance.tokens_per_step <= longest + 1:
        raise InputError(
            "--tokens-per-step",
            f"{acceptance.tokens_per_step:g} at draft length {longest}",
            f"1 to {longest + 1}",
        )
    there = measured[longest].tokens_per_step
    if there is None or there <= 1:
        raise NotIdentifiedError(f"tokens per step at draft length {longest} were not measured; give --alpha")
    # Accepted drafts keep their proportion between draft lengths.
    scaled = 1.0 + (e - 1.0) * (acceptance.tokens_per_step - 1.0) / (there - 1.0)
    return np.minimum(scaled, np.array(wanted) + 1.0)


def _pooled_steps(
    fit: PooledFit,
    wanted: Sequence[int],
    sizes: FloatArray,
    prompt_tokens: float | None,
    output_tokens: float | None,
) -> FloatArray:
    law = PooledLaw(**{name: fit.coefficients[name] for name in COEFFICIENTS})
    lengths = fit.lengths
    if lengths.prompt_tokens and lengths.output_tokens:
        here = mean_kv_tokens(prompt_tokens or lengths.prompt_tokens, output_tokens or lengths.output_tokens)
        # The verification of another request reads its KV cache: linear in its length.
        law = replace(
            law, c2v=law.c2v * float(here / mean_kv_tokens(lengths.prompt_tokens, lengths.output_tokens))
        )
    elif prompt_tokens is not None or output_tokens is not None:
        raise NotIdentifiedError(
            f"{fit.method}: measured without token counts, so other lengths cannot be converted"
        )
    drafted = [_drafted(fit, k) for k in wanted]
    return law.step_s(sizes[:, None], list(wanted), drafted)


def _drafted(fit: PooledFit, k: int) -> float:
    """Drafted tokens per request-step: the measured share of k, which is below 1 for lookup methods."""
    shares = [drafted / length for length, drafted in fit.drafted_per_step.items() if length]
    return k * float(np.mean(shares)) if shares else float(k)


def _measured_steps(fit: ArmFit, sizes: FloatArray) -> FloatArray:
    """Time per output token times tokens per step (s), shape of `sizes`."""
    if fit.tpot is None or fit.tokens_per_step is None:
        raise NotIdentifiedError(
            f"{fit.arm}: its time per output token was not measured, so its steps are not known"
        )
    return np.asarray((fit.tpot.c1_s + (sizes - 1.0) * fit.tpot.c2_s) * fit.tokens_per_step)


def _none(profile: Profile) -> ArmFit:
    return profile.arm(NO_SPECULATION)
