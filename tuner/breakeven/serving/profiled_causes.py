"""Causes that need a profile of the same engine: costs of its steps, calibrated acceptance and lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.laws.moved_acceptance import SeenAt, carried
from breakeven.laws.step_law import Tier, step_s
from breakeven.profile import ArmFit, Comparison, Conditions, Profile
from breakeven.serving.causes import DEAD_POSITION, Cause, Finding, ModelSnapshot, pool_is_full, prompt_bound

_MISMATCH = 0.75
"""Share of the calibrated first position below which another text does not explain the live acceptance."""
_POOL_SHARE = 0.03
"""Share of the KV pool that a drafter takes, below which it is no cause."""
_SHIFTED = 1.5
"""Prompts that are longer than calibrated by this factor, or shorter by it, are other requests."""
_HITS_APART = 0.2
"""Share of prompt tokens by which what prefix caches hold must differ to be a cause: blocks of 16 tokens round less."""
_MISREAD = 1.1
"""Ratio of the time between outputs to the time per token without speculation, from which it looks like a loss."""


@dataclass(frozen=True, slots=True)
class Against:
    """A window beside its profile.

    Attributes:
        snapshot: the live figures. profile: of the same engine. arm: that runs.
        conditions: that it is judged under.
        compared: the arm against no speculation there.
    """

    snapshot: ModelSnapshot
    profile: Profile
    arm: Arm
    conditions: Conditions
    compared: Comparison

    @property
    def fit(self) -> ArmFit | None:
        """The fit of the arm; None if it was not measured."""
        return next((fit for fit in self.profile.arms if fit.arm == self.arm), None)

    @property
    def loses(self) -> bool:
        """Whether speculation significantly slows requests at this load: the upper bound of the speedup is below 1."""
        upper = self.compared.speedup_ci[1] if self.compared.speedup_ci is not None else None
        return self.compared.speedup == 0.0 or (upper is not None and upper < 1.0)

    def elsewhere(self, arm: Arm, conditions: Conditions) -> Comparison | None:
        """An arm against no speculation under other conditions at the same load; None if the profile cannot convert to them."""
        try:
            return self.profile.compare(
                arm, NO_SPECULATION, rps=self.snapshot.window.rps, conditions=conditions
            )
        except BreakevenError:
            return None


def first_causes(against: Against, live: tuple[Finding, ...]) -> Iterator[Finding]:
    """All causes but the last ones, the one that the others follow from first.

    Args:
        against: the window beside its profile.
        live: causes that the figures show by themselves.
    """
    found = [*_mismatch(against), *_drafter_in_pool(against), *_prompts(against), *_prefix_hits(against)]
    yield from found
    prefill = [one for one in live if one.cause is Cause.PREFILL_DOMINATES]
    told = {one.cause for one in found}
    if against.loses and Cause.PROMPTS_SHIFTED not in told:
        # Drafts do not slow the time before the first token. A long one is the reason why drafts have nothing to gain.
        yield from prefill
    if against.loses:
        yield _why_it_loses(against)
    for one in live:
        if one.cause is Cause.DRAFT_TOO_LONG:
            yield replace(one, remedy=f"{one.remedy}{_gain_of_shorter(against)}")
        elif one not in prefill or not against.loses or Cause.PROMPTS_SHIFTED in told:
            yield one


def last_causes(against: Against) -> Iterator[Finding]:
    """Figures that only look like a loss."""
    snapshot, e = against.snapshot, against.snapshot.window.tokens_per_step
    if snapshot.window.step_s is None or snapshot.window.tpot_s is None or e is None:
        return
    try:
        without = against.profile.predict(
            NO_SPECULATION, rps=snapshot.window.rps, conditions=against.conditions.of_another_arm()
        ).tpot_s
    except BreakevenError:
        return
    if (
        without is not None
        and snapshot.window.step_s > _MISREAD * without
        and snapshot.window.tpot_s < without
    ):
        yield Finding(
            Cause.ITL_IS_NOT_TPOT,
            f"{1e3 * snapshot.window.step_s:.1f} ms pass between outputs of {e:.2f} tokens: {1e3 * snapshot.window.tpot_s:.1f} ms per token, "
            f"where a token takes {1e3 * without:.1f} ms without speculation",
            "judge by time per output token or by latency: under speculation inter-token latency is the time of a step",
        )


def _mismatch(against: Against) -> Iterator[Finding]:
    fit, survival = against.fit, against.snapshot.window.survival
    calibrated = fit.survival_per_draft if fit is not None and not against.arm.scheduled else ()
    if survival and calibrated and survival[0] < _MISMATCH * calibrated[0]:
        yield Finding(
            Cause.DRAFTER_MISMATCH,
            f"position 1 survives in {survival[0]:.0%} of drafts where {calibrated[0]:.0%} were calibrated",
            "compare pods with what was calibrated: tokenizer, engine version, the drafter's weights (a head of another model), "
            "sampling temperature; if all are equal, the text is another one: calibrate with users' prompts",
        )


def _drafter_in_pool(against: Against) -> Iterator[Finding]:
    if not pool_is_full(against.snapshot):
        return
    fits = {fit.arm: fit.kv_requests for fit in against.profile.arms}
    own, without = fits.get(against.arm), fits.get(NO_SPECULATION)
    if not own or not without or own > (1.0 - _POOL_SHARE) * without:
        return
    yield Finding(
        Cause.DRAFTER_IN_KV_POOL,
        f"the drafter takes {1.0 - own / without:.0%} of the KV pool: {own:.0f} requests fit, {without:.0f} without speculation",
        "raise --gpu-memory-utilization, draft with fewer or no weights (a shorter head, n-gram), or run without speculation "
        "at such loads",
    )


def _prompts(against: Against) -> Iterator[Finding]:
    live, calibrated = against.conditions.prompt_tokens, against.profile.lengths.prompt_tokens
    if live is None or not calibrated or 1.0 / _SHIFTED < live / calibrated < _SHIFTED:
        return
    before = against.elsewhere(
        against.arm, replace(against.conditions, prompt_tokens=None, output_tokens=None)
    )
    now = against.compared.speedup
    if before is None or before.speedup is None or now is None or not now < before.speedup:
        return
    if against.loses or prompt_bound(against.snapshot):
        yield Finding(
            Cause.PROMPTS_SHIFTED,
            f"prompts of {live:.0f} tokens where {calibrated:.0f} were calibrated: {now:.2f}x, {before.speedup:.2f}x at those",
            "calibrate at the live lengths; look for what made prompts grow, and at prefix caching",
        )


def _prefix_hits(against: Against) -> Iterator[Finding]:
    """Prefixes that the arm does not find although no speculation does, or not as often as in the calibration."""
    hits = {fit.arm: fit.prefix_hit_ratio for fit in against.profile.arms}
    own, without, live = (
        hits.get(against.arm),
        hits.get(NO_SPECULATION),
        against.snapshot.window.prefix_hit_ratio,
    )
    if own is None:
        return
    if without is not None and without - own > _HITS_APART:
        yield Finding(
            Cause.PREFIX_HITS_LOST,
            f"the prefix cache held {own:.0%} of prompts with {against.arm} in the calibration, {without:.0%} without speculation",
            "look for the drafter's options about cached blocks (disable_eagle_block_drop, disable_lookahead_block_hashes), and for "
            "an engine version that keeps prefixes while it speculates",
        )
    if live is not None and abs(live - own) > _HITS_APART:
        yield Finding(
            Cause.PREFIX_HITS_SHIFTED,
            f"the prefix cache holds {live:.0%} of prompts where {own:.0%} were calibrated: prompts cost "
            f"{'less' if live > own else 'more'} than the profile says",
            "calibrate again: without prompts of its own a calibration sends as much of a shared prefix as live traffic shows",
        )


class _StepParts(NamedTuple):
    """A lone request's step (s): without speculation, and what drafting and verifying add to it."""

    without_s: float
    draft_s: float
    verify_s: float


def _step_parts(against: Against) -> _StepParts | None:
    """The parts of a step; None if the profile does not have them.

    Verifying k drafts costs at most as much as k more requests add to a step without speculation. The tokens are computed
    in the same way, and the requests have contexts of their own beside. The rest of the difference is a lower bound of
    drafting.
    """
    law, own = against.profile.steps, against.fit
    if law is None or own is None or own.acceptance is None or against.arm.scheduled:
        return None
    context = np.asarray(own.lengths.context_tokens)
    lone = np.ones(())
    without, drafting = (
        float(step_s(law.costs(arm), Tier(1, np.asarray(drafted), lone), context, lone))
        for arm, drafted in ((NO_SPECULATION, 0.0), (against.arm, own.acceptance.drafted_per_step))
    )
    drafted = own.acceptance.drafted_per_step
    verify_s = (
        float(step_s(law.costs(NO_SPECULATION), Tier(1, np.zeros(()), lone), context, lone + drafted))
        - without
    )
    verify_s = min(max(verify_s, 0.0), drafting - without)
    if drafting <= without:
        return None
    return _StepParts(without, drafting - without - verify_s, verify_s)


def _why_it_loses(against: Against) -> Finding:
    compared = against.compared
    at = (
        f"{against.arm} is saturated at {against.snapshot.window.rps:.2f} rps per pod, no speculation is not"
        if compared.saturated
        else f"{compared.speedup:.2f}x at {against.snapshot.window.rps:.2f} rps per pod"
    )
    if compared.c1_ratio <= 1.0:
        until = f"; the break-even is {compared.break_even_rps:.2f} rps" if compared.break_even_rps else ""
        return Finding(
            Cause.BEYOND_BREAK_EVEN,
            at + until,
            "run without speculation at this load, or spread it over more replicas",
        )
    alone = f"a lone request takes {compared.c1_ratio:.2f} times as long with {against.arm}"
    if compared.c2_ratio < 1.0:
        return Finding(
            Cause.TOO_LITTLE_LOAD,
            f"{at}; {alone}, each other one in flight costs {compared.c2_ratio:.2f} times as much",
            "run without speculation at this load: it pays at higher loads only",
        )
    parts = _step_parts(against)
    if parts is not None and parts.draft_s > parts.verify_s:
        return Finding(
            Cause.SLOW_DRAFTER,
            f"{at}; {alone}: drafting adds {1e3 * parts.draft_s:.1f} ms and verifying {1e3 * parts.verify_s:.1f} ms to a step of "
            f"{1e3 * parts.without_s:.1f} ms",
            "a cheaper drafter (fewer layers, n-gram), fewer draft tokens, CUDA graphs for it, or none",
        )
    return Finding(
        Cause.NEVER_PAYS,
        f"{at}; {alone}, each other one in flight costs {compared.c2_ratio:.2f} times as much: it pays at no load",
        "another drafter, n-gram or none: a step without speculation is too fast here for what a draft costs",
    )


def _gain_of_shorter(against: Against) -> str:
    """`: 1.12x of the present speed` of the draft length before the first dead position; empty if it is not known."""
    fit, snapshot = against.fit, against.snapshot
    dead = next((place for place, share in enumerate(snapshot.window.survival) if share < DEAD_POSITION), 0)
    shorter = next((one for one in against.profile.arms if one.arm == replace(against.arm, k=dead)), None)
    if fit is None or shorter is None or fit.tokens_per_step is None or shorter.tokens_per_step is None:
        return ""
    e = carried(
        against.arm.method,
        SeenAt(
            fit.k,
            min(max(snapshot.window.tokens_per_step or 1.0, 1.0), fit.k + 1.0),
            tuple(snapshot.window.survival),
        ),
        SeenAt(fit.k, fit.tokens_per_step, fit.acceptance.survival if fit.acceptance else ()),
        SeenAt(shorter.k, shorter.tokens_per_step, shorter.acceptance.survival if shorter.acceptance else ()),
    ).value
    found = against.elsewhere(shorter.arm, replace(against.conditions, tokens_per_step=e))
    now = against.compared.speedup
    if found is None or not found.speedup or not now:
        return ""
    return f": {found.speedup:.2f}x against no speculation, where {against.arm} is {now:.2f}x"
