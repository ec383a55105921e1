"""Diagnosis of a model: whether speculation pays right now, and if not, which of the known causes it has.

Its input is the figures of one model over one window, its output an ordered list of findings. Users have met each cause;
the finding has its symptom and its remedy. Without a profile it is not known whether speculation pays, because that
needs the engine's speed without it. The figures alone still show why it cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.estimate import Estimate
from breakeven.laws.moved_acceptance import SeenAt, carried
from breakeven.laws.step_law import Tier, step_s
from breakeven.profile import ArmFit, Comparison, Conditions, Profile
from breakeven.profile.fits import Bounds
from breakeven.serving.causes import DEAD_POSITION, Cause, Finding, ModelSnapshot, pool_is_full, prompt_bound
from breakeven.serving.vllm_versions import OLDEST

# Tokens per request-step below which drafting is pure cost (1 is what no speculation yields).
_COLLAPSED_TOKENS_PER_STEP = 1.05
_MOST_LISTED = 4
# Fewer failures are the fault of a client, not of an engine. Sampling explains the rest between counters of two kinds.
_FEW_FAILED = 10.0
_REFUSED_SHARE = 0.01
_UNFINISHED_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Whether speculation pays (None if unknown), with bounds where a profile gives them, and why."""

    pays: bool | None
    sentence: str
    speedup: float | None
    speedup_ci: Bounds | None
    findings: tuple[Finding, ...]


def diagnose(
    snapshot: ModelSnapshot, profile: Profile | None, arm: Arm | None, asked: Conditions | None = None
) -> Diagnosis:
    """Judge one snapshot; `arm` is what runs, `asked` acceptance and lengths in place of the live ones."""
    if (lacking := next(_objections(snapshot), None)) is not None:
        return Diagnosis(None, lacking.evidence, None, None, (lacking,))
    findings = tuple(_live_causes(snapshot, scheduled=arm is not None and arm.scheduled))
    if not snapshot.speculating:
        return Diagnosis(None, "the engine does not speculate", None, None, findings)
    if profile is None or arm is None or arm.k == 0:
        findings = (
            *findings,
            Finding(
                Cause.NO_PROFILE,
                "nothing here knows the engine's speed without speculation",
                "calibrate both arms (breakeven calibrate, breakeven fit) and pass --profile, --method and --k",
            ),
        )
        collapsed = any(finding.cause is Cause.ACCEPTANCE_COLLAPSED for finding in findings)
        sentence = (
            "speculation does not pay: almost nothing is accepted"
            if collapsed
            else "unknown without a profile"
        )
        return Diagnosis(False if collapsed else None, sentence, None, None, findings)
    return _against_profile(snapshot, profile, arm, asked or Conditions(), findings)


def _objections(snapshot: ModelSnapshot) -> Iterator[Finding]:
    """Reasons why the figures do not show the present load, the most basic reason first."""
    if snapshot.pods == 0 and snapshot.gone:
        yield _gone(snapshot)
    if snapshot.pods == 0:
        yield Finding(
            Cause.NO_SERIES,
            "Prometheus holds no vLLM series of this model"
            + (f" under the labels that were asked for; {snapshot.elsewhere}" if snapshot.elsewhere else ""),
            "check --model against the label model_name, and that a PodMonitor scrapes the pods; --label names other labels of a pod",
        )
    if stale := snapshot.stale:
        oldest = max(stale, key=lambda pod: stale[pod])
        yield Finding(
            Cause.SERIES_STALE,
            f"the newest samples of {_listed(sorted(stale))} are old, those of {oldest} {stale[oldest]:.0f} s",
            "check the scrape targets in Prometheus, and a cache in front of it: nothing is said about the load of now",
        )
    if snapshot.ended:
        yield Finding(
            Cause.SERIES_ENDED,
            f"{_listed(snapshot.ended)} ended within the window, and other series of the same engine go on",
            "does a relabelling drop them now, or are they stored under other names? Ask again when the window has passed",
        )
    if snapshot.missing:
        yield Finding(
            Cause.SERIES_MISSING,
            f"Prometheus holds series of this model, and not {', '.join(snapshot.missing)}",
            f"check whether the engine is older than vLLM {OLDEST}, or which relabelling drops them; what is missing is neither "
            "zero nor as it was calibrated",
        )
    if snapshot.not_a_number:
        yield Finding(
            Cause.SERIES_NOT_A_NUMBER,
            f"{snapshot.not_a_number} is not a number",
            "look at the series in Prometheus: a recording rule or a proxy makes NaN or infinity of it; vLLM writes neither",
        )
    if snapshot.impossible:
        yield Finding(
            Cause.SERIES_IMPOSSIBLE,
            snapshot.impossible,
            "check labels that tell engines apart, copies that count twice, and relabelling: no engine counts so",
        )
    if snapshot.window.requests <= 0:
        yield Finding(
            Cause.NO_REQUESTS,
            f"no request finished in {snapshot.window.window_s:g} s",
            "widen --window-seconds, or wait for traffic",
        )


def _gone(snapshot: ModelSnapshot) -> Finding:
    last = min(snapshot.gone, key=lambda pod: snapshot.gone[pod])
    left = (
        f"the figures are those of the other {snapshot.pods}"
        if snapshot.pods
        else "no pod of this model has any"
    )
    return Finding(
        Cause.PODS_GONE,
        f"the series of {_listed(sorted(snapshot.gone))} ended within the window, the last ones {snapshot.gone[last]:.0f} s ago "
        f"({last}); {left}",
        "a rollout or a scale-down does this; if the pods still run, see why Prometheus does not scrape them any more",
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_LISTED]) + (
        f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    )


def _failed(snapshot: ModelSnapshot) -> Iterator[Finding]:
    http, unfinished = snapshot.http, snapshot.unfinished
    if http is None or unfinished is None:
        return
    refused = http.refused > max(_FEW_FAILED, _REFUSED_SHARE * http.posts)
    lost = unfinished > _FEW_FAILED + _UNFINISHED_SHARE * http.posts
    if not refused and not lost:
        return
    remedy = "look into the engine's log for what it refuses, and ask the clients what they send"
    if snapshot.speculating:
        remedy = (
            "read docs/engine-refusals.md: a speculating vLLM refuses min_p and logit_bias, in a stream after HTTP 200; take them "
            f"out of the clients' requests; for others {remedy}"
        )
    more = f"; {unfinished:.0f} were finished by no engine" if lost else ""
    yield Finding(
        Cause.REQUESTS_FAIL,
        f"{http.refused:.0f} of {http.posts:.0f} HTTP requests were answered with 4xx or 5xx{more}",
        remedy,
    )


def _live_causes(snapshot: ModelSnapshot, *, scheduled: bool) -> Iterator[Finding]:
    """Causes that the live figures show by themselves; the acceptance of a schedule is a mixture over its tiers."""
    if not snapshot.speculating:
        yield Finding(
            Cause.NOT_SPECULATING,
            "the pods export no vllm:spec_decode series",
            "--speculative-config is missing, empty or null; see breakeven lint",
        )
    if snapshot.gone:
        yield _gone(snapshot)
    yield from _failed(snapshot)
    if snapshot.window.given_up > 0:
        yield Finding(
            Cause.CLIENTS_GIVE_UP,
            f"clients gave up {snapshot.window.given_up:.0%} of the requests that began",
            "look for time-outs of clients or proxies that are shorter than answers take; latencies are those of the others",
        )
    yield from _acceptance_causes(snapshot, scheduled=scheduled)
    if snapshot.waiting_min is not None and snapshot.waiting_min >= 1:
        yield Finding(
            Cause.SATURATED,
            f"at least {snapshot.waiting_min:.0f} requests waited at any time",
            "add replicas; past saturation speculation only takes capacity",
        )
    yield from _full_pool(snapshot)
    if prompt_bound(snapshot) and snapshot.window.latency_s and snapshot.window.ttft_s:
        yield Finding(
            Cause.PREFILL_DOMINATES,
            f"the first token takes {snapshot.window.ttft_s:.2f} s of {snapshot.window.latency_s:.2f} s",
            "speculation speeds only what follows the first token: look at queueing, prefill and prefix caching",
        )


def _acceptance_causes(snapshot: ModelSnapshot, *, scheduled: bool) -> Iterator[Finding]:
    """Causes in the acceptance: almost nothing is accepted, or no draft at its last positions."""
    yielded = snapshot.window.tokens_per_step
    collapsed = snapshot.speculating and yielded is not None and yielded < _COLLAPSED_TOKENS_PER_STEP
    if collapsed and scheduled:
        yield Finding(
            Cause.SCHEDULE_RESTS,
            f"{yielded:.2f} tokens per step: at this load the engine drafts, or verifies, almost nothing",
            "where such loads last, run without speculation: drafting nothing in the engine makes a token 6.6 to 21.6 % longer, and "
            "adaptive verification drafts all the same",
        )
    elif collapsed:
        yield Finding(
            Cause.ACCEPTANCE_COLLAPSED,
            f"{yielded:.2f} tokens per step: drafting yields nothing",
            "restart one pod and compare: acceptance lost for good until a restart is an engine fault; otherwise "
            "the drafter does not fit the model or the text",
        )
    dead = next(
        (place for place, share in enumerate(snapshot.window.survival) if share < DEAD_POSITION), None
    )
    # Short tiers draft no late positions, which is no evidence against long ones.
    if dead and not scheduled:
        yield Finding(
            Cause.DRAFT_TOO_LONG,
            f"position {dead + 1} survives in {snapshot.window.survival[dead]:.1%} of drafts",
            f"try num_speculative_tokens {dead}",
        )


def _full_pool(snapshot: ModelSnapshot) -> Iterator[Finding]:
    if pool_is_full(snapshot):
        pool = (
            f"KV cache up to {snapshot.kv_usage:.0%} full"
            if snapshot.kv_usage is not None
            else "how full the KV cache is, is not exported as kv_cache_usage_perc"
        )
        counted = (
            "preemptions are not exported"
            if snapshot.window.preemptions is None
            else f"{snapshot.window.preemptions:.0f} preemptions"
        )
        yield Finding(
            Cause.KV_CACHE_FULL,
            f"{counted}; {pool}",
            "the drafter takes its share of the pool: lower --max-num-seqs, shorten contexts, or add replicas",
        )


def _against_profile(
    snapshot: ModelSnapshot, profile: Profile, arm: Arm, asked: Conditions, findings: tuple[Finding, ...]
) -> Diagnosis:
    pair = [fit.lengths for fit in profile.arms if fit.arm in {arm, NO_SPECULATION}]
    seen = snapshot.window
    # Live lengths convert only from lengths that were measured; lengths that a user gives are refused without those.
    conditions = Conditions(
        asked.tokens_per_step or (None if arm.scheduled else seen.tokens_per_step),
        asked.prompt_tokens or (seen.prompt_tokens if all(one.prompt_tokens for one in pair) else None),
        asked.output_tokens or seen.output_tokens,
    )
    compared = profile.compare(arm, NO_SPECULATION, rps=seen.rps, conditions=conditions)
    against = _Against(snapshot, profile, arm, conditions, compared)
    findings = (*_first_causes(against, findings), *_last_causes(against))
    load = f"at {snapshot.window.rps:.2f} rps per pod"
    if compared.speedup is None:
        return Diagnosis(None, f"{arm} and no speculation are both saturated {load}", None, None, findings)
    known = Estimate.of(compared.speedup, compared.speedup_ci)
    lower, upper = known.lower, known.upper
    if compared.saturated:
        lost = f"{arm} is saturated {load}, no speculation is not"
        return Diagnosis(False, lost, 0.0, None, findings)
    if compared.against_saturated:
        return Diagnosis(
            True, f"without speculation the pods would be saturated {load}", None, None, findings
        )
    bounds = f"{lower or 0.0:.2f} to {upper:.2f}" if upper is not None else "no upper bound"
    at = f"{compared.speedup:.2f}x ({bounds}) {load}"
    if known.below(1.0):
        return Diagnosis(
            False, f"speculation slows requests: {at}", compared.speedup, (lower, upper), findings
        )
    pays = True if known.above(1.0) else None
    sentence = f"speculation pays: {at}" if pays else f"too close to tell: {at}"
    return Diagnosis(pays, sentence, compared.speedup, (lower, upper), findings)


# Causes that need a profile of the same engine: costs of its steps, calibrated acceptance and lengths.


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
class _Against:
    """A window beside the profile of the same engine, the conditions that it is judged under, and the arm against no speculation there."""

    snapshot: ModelSnapshot
    profile: Profile
    arm: Arm
    conditions: Conditions
    compared: Comparison

    @property
    def fit(self) -> ArmFit | None:
        """None if the arm was not measured."""
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


def _first_causes(against: _Against, live: tuple[Finding, ...]) -> Iterator[Finding]:
    """All causes but the last ones, the cause that others follow from first; `live` are those that figures show by themselves."""
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


def _last_causes(against: _Against) -> Iterator[Finding]:
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


def _mismatch(against: _Against) -> Iterator[Finding]:
    fit, survival = against.fit, against.snapshot.window.survival
    calibrated = fit.survival_per_draft if fit is not None and not against.arm.scheduled else ()
    if survival and calibrated and survival[0] < _MISMATCH * calibrated[0]:
        yield Finding(
            Cause.DRAFTER_MISMATCH,
            f"position 1 survives in {survival[0]:.0%} of drafts where {calibrated[0]:.0%} were calibrated",
            "compare pods with what was calibrated: tokenizer, engine version, the drafter's weights (a head of another model), "
            "sampling temperature; if all are equal, the text is another one: calibrate with users' prompts",
        )


def _drafter_in_pool(against: _Against) -> Iterator[Finding]:
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


def _prompts(against: _Against) -> Iterator[Finding]:
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


def _prefix_hits(against: _Against) -> Iterator[Finding]:
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


def _step_parts(against: _Against) -> _StepParts | None:
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


def _why_it_loses(against: _Against) -> Finding:
    compared = against.compared
    at = (
        f"{against.arm} is saturated at {against.snapshot.window.rps:.2f} rps per pod, no speculation is not"
        if compared.saturated
        else f"{compared.speedup:.2f}x at {against.snapshot.window.rps:.2f} rps per pod"
    )
    if compared.c1_ratio <= 1.0:
        until = f"; it {compared.break_even}" if compared.break_even else ""
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


def _gain_of_shorter(against: _Against) -> str:
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
