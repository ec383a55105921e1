"""A profile seen per engine step: what a schedule is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from breakeven.arm import NO_SPECULATION
from breakeven.errors import InputError, NotIdentifiedError
from breakeven.fitting.solve import solve
from breakeven.laws.acceptance_numbers import tokens_per_step_iid
from breakeven.laws.arrays import FloatArray
from breakeven.laws.speculation import COEFFICIENTS, PooledLaw, estimable, latency_design, mean_kv_tokens
from breakeven.profile import ArmFit, PooledFit, Profile


@dataclass(frozen=True, slots=True)
class StepView:
    """Duration of a step and tokens from it, by batch size and draft length.

    Attributes:
        draft_lengths: ascending, 0 first.
        step_s: duration (s) at batch sizes 1..N, shape (N, K).
        tokens_per_step: E, shape (K,).
        basis: `pooled` (from the pooled form) or `arms` (from the TPOT laws of the measured arms).
        warnings: what a reader must know, a sentence each.
    """

    draft_lengths: tuple[int, ...]
    step_s: FloatArray
    tokens_per_step: FloatArray
    basis: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AssumedAcceptance:
    """Acceptance to assume: alpha, or E at the longest measured draft length; neither: as measured."""

    alpha: float | None = None
    tokens_per_step: float | None = None


def step_view(
    profile: Profile,
    family: str,
    batches: int,
    *,
    acceptance: AssumedAcceptance,
    draft_lengths: Sequence[int] | None = None,
    prompt_tokens: float | None = None,
    output_tokens: float | None = None,
) -> StepView:
    """Derive step durations of a method from a profile.

    The pooled form gives a step directly, at any draft length that the measured ones determine. Where it leaves prefill
    open (one output length), what it calls a step holds prompts too: the same form is then put through the measured
    arms' own steps, time per output token times tokens per step. Without a pooled form only those steps are known.

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
        fit.k: fit
        for fit in profile.arms
        if fit.k and fit.arm.family == family and not fit.arm.scheduled and fit.fit is not None
    }
    if not measured:
        known = sorted({fit.arm.family for fit in profile.arms if fit.k})
        raise NotIdentifiedError(
            f"{family}: not in the profile; measured methods: {', '.join(known) or 'none at all'}"
        )
    pooled = next((fit for fit in profile.pooled if fit.method == family), None)
    longest = max(measured)
    wanted = tuple(sorted({0, *(draft_lengths or (range(1, longest + 1) if pooled else measured))}))
    sizes = np.arange(1.0, batches + 1.0)
    if pooled is not None:
        law, support, basis = _step_law(profile, pooled, measured)
        wanted, left_out = _determined(pooled, support, wanted, asked=bool(draft_lengths))
        steps = _pooled_steps(pooled, law, wanted, sizes, prompt_tokens, output_tokens)
        beyond = [k for k in wanted if k > longest]
        warnings = [f"draft lengths above {longest} were not measured"] if beyond else []
        warnings += [f"left out: {left_out}"] if left_out else []
        e = _tokens_per_step(measured, pooled, wanted, acceptance)
        return StepView(wanted, steps, e, basis, tuple(warnings))
    e = _tokens_per_step(measured, pooled, wanted, acceptance)
    if missing := [k for k in wanted if k and k not in measured]:
        raise NotIdentifiedError(
            f"{family}: draft length {missing[0]} was not measured and there is no pooled fit"
        )
    steps = np.stack([_measured_steps(measured.get(k) or _none(profile), sizes) for k in wanted], axis=-1)
    return StepView(wanted, steps, e, "arms", ("no pooled fit: only measured draft lengths are considered",))


def _tokens_per_step(
    measured: Mapping[int, ArmFit],
    pooled: PooledFit | None,
    wanted: Sequence[int],
    acceptance: AssumedAcceptance,
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


def _step_law(
    profile: Profile, pooled: PooledFit, measured: Mapping[int, ArmFit]
) -> tuple[PooledLaw, tuple[int, ...], str]:
    """Return coefficients of a step, the draft lengths that they rest on, and the view's basis."""
    if "c1p" not in pooled.unidentified:
        law = PooledLaw(**{name: pooled.coefficients[name] for name in COEFFICIENTS})
        return law, pooled.draft_lengths, "pooled"
    none = [fit for fit in profile.arms if fit.arm == NO_SPECULATION]
    arms = [fit for fit in (*none, *measured.values()) if fit.tpot and fit.tokens_per_step]
    if not arms:
        raise NotIdentifiedError(
            f"{pooled.method}: points of one output length do not determine c1p and c2p, which a step is without, and "
            "none has tpot_mean_s; measure that, or a second output length"
        )
    # Two loads per arm, since its law is a straight line. Alone a request may take 0 by it, of which no error is a share.
    sizes = np.array([2.0, max(3.0, 1.0 + pooled.others_range[1])])
    rows = np.repeat(_step_rows(pooled, [fit.k for fit in arms]), len(sizes), axis=0)
    steps = np.concatenate([_measured_steps(fit, sizes) for fit in arms])
    found = solve(latency_design(rows, rows, np.tile(sizes - 1.0, len(arms))), steps).coefficients
    c1v, c1d, c1s, c2v, c2d, c2s = found.tolist()
    return PooledLaw(0.0, c1v, c1d, c1s, 0.0, c2v, c2d, c2s), tuple(fit.k for fit in arms), "arms"


def _step_rows(fit: PooledFit, draft_lengths: Sequence[int]) -> FloatArray:
    """Rows (1, kd, [k>0]) that a step multiplies v, d and s by, shape (K, 3)."""
    return np.array([(1.0, _drafted(fit, k), float(k > 0)) for k in draft_lengths])


def _determined(
    fit: PooledFit, support: Sequence[int], wanted: Sequence[int], *, asked: bool
) -> tuple[tuple[int, ...], str]:
    """Return the draft lengths whose steps the measured ones determine, and a sentence about the others.

    Raises:
        NotIdentifiedError: one of the others was asked for, or is no speculation, which every schedule may choose.
    """
    rows = _step_rows(fit, support)
    sure = estimable(rows, _step_rows(fit, wanted))
    others = [k for k, known in zip(wanted, sure, strict=True) if not known]
    if not others:
        return tuple(wanted), ""
    open_terms = [term for term, known in zip("vds", estimable(rows, np.eye(3)), strict=True) if not known]
    names = ", ".join(f"c{half}{term}" for half in (1, 2) for term in open_terms)
    sentence = (
        f"draft length {', '.join(map(str, others))}, since {names} are not determined by draft lengths "
        f"{', '.join(map(str, support))}; measure {others[0]} or another one"
    )
    if asked or 0 in others:
        raise NotIdentifiedError(f"{fit.method}: no step is known at {sentence}")
    return tuple(k for k in wanted if k not in others), sentence


def _pooled_steps(
    fit: PooledFit,
    law: PooledLaw,
    wanted: Sequence[int],
    sizes: FloatArray,
    prompt_tokens: float | None,
    output_tokens: float | None,
) -> FloatArray:
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
