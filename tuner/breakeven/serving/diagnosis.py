"""Diagnosis of a model: whether speculation pays right now, and if not, which of the known causes it has.

Its input is the figures of one model over one window, its output an ordered list of findings. Users have met each cause;
the finding has its symptom and its remedy. Without a profile it is not known whether speculation pays, because that
needs the engine's speed without it. The figures alone still show why it cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.errors import BreakevenError
from breakeven.laws.moved_acceptance import SeenAt, carried
from breakeven.laws.step_law import Tier, step_s
from breakeven.phrases import listed
from breakeven.profile import ArmFit, Comparison, Conditions, Profile
from breakeven.profile.fits import Bounds
from breakeven.serving.findings import Cause, Finding
from breakeven.serving.model_watch import ModelSnapshot
from breakeven.serving.vllm_versions import OLDEST

# Share of the KV pool in use from which new tokens cost preemptions.
_FULL_POOL = 0.95
# A draft position that is accepted less often costs more to verify than it yields on any engine measured.
_DEAD_POSITION = 0.05
# Tokens per request-step below which drafting is pure cost (1 is what no speculation yields).
_COLLAPSED_TOKENS_PER_STEP = 1.05
# Fewer failures are the fault of a client, not of an engine. Sampling explains the rest between counters of two kinds.
_FEW_FAILED = 10.0
_REFUSED_SHARE = 0.01
_UNFINISHED_SHARE = 0.05
# Share of the calibrated first position below which another text does not explain the live acceptance.
_MISMATCH = 0.75
# Share of the KV pool that a drafter takes, below which it is no cause.
_POOL_SHARE = 0.03
# Prompts that are longer than calibrated by this factor, or shorter by it, are other requests.
_SHIFTED = 1.5
# Share of prompt tokens by which what prefix caches hold must differ to be a cause: blocks of 16 tokens round less.
_HITS_APART = 0.2
# Ratio of the time between outputs to the time per token without speculation, from which it looks like a loss.
_MISREAD = 1.1


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Whether speculation pays (None if unknown), with bounds where a profile gives them, and why."""

    pays: bool | None
    sentence: str
    speedup: float | None = None
    speedup_ci: Bounds | None = None
    findings: tuple[Finding, ...] = ()


def diagnose(
    snapshot: ModelSnapshot, profile: Profile | None, arm: Arm | None, asked: Conditions | None = None
) -> Diagnosis:
    """Judge one snapshot; `arm` is what runs, `asked` acceptance and lengths in place of the live ones."""
    if (lacking := next(_objections(snapshot), None)) is not None:
        return Diagnosis(None, lacking.evidence, findings=(lacking,))
    findings = tuple(_live_causes(snapshot, scheduled=arm is not None and arm.scheduled))
    if not snapshot.speculating:
        return Diagnosis(None, "the engine does not speculate", findings=findings)
    if profile is None or arm is None or arm.k == 0:
        collapsed = any(finding.cause is Cause.ACCEPTANCE_COLLAPSED for finding in findings)
        findings = (*findings, Finding.of(Cause.NO_PROFILE))
        if collapsed:
            return Diagnosis(False, "speculation does not pay: almost nothing is accepted", findings=findings)
        return Diagnosis(None, "unknown without a profile", findings=findings)
    return _against_profile(snapshot, profile, arm, asked or Conditions(), findings)


def _objections(snapshot: ModelSnapshot) -> Iterator[Finding]:
    """Reasons why the figures do not show the present load, the most basic reason first."""
    if snapshot.pods == 0 and snapshot.gone:
        yield _gone(snapshot)
    if snapshot.pods == 0:
        other = f" under the labels that were asked for; {snapshot.elsewhere}" if snapshot.elsewhere else ""
        yield Finding.of(Cause.NO_SERIES, elsewhere=other)
    if stale := snapshot.stale:
        oldest = max(stale, key=lambda pod: stale[pod])
        pods = listed(sorted(stale))
        yield Finding.of(Cause.SERIES_STALE, pods=pods, oldest=oldest, age_s=stale[oldest])
    if snapshot.ended:
        yield Finding.of(Cause.SERIES_ENDED, ended=listed(snapshot.ended))
    if snapshot.missing:
        yield Finding.of(Cause.SERIES_MISSING, missing=", ".join(snapshot.missing), oldest=OLDEST)
    if snapshot.not_a_number:
        yield Finding.of(Cause.SERIES_NOT_A_NUMBER, name=snapshot.not_a_number)
    if snapshot.impossible:
        yield Finding.of(Cause.SERIES_IMPOSSIBLE, sentence=snapshot.impossible)
    if snapshot.window.requests <= 0:
        yield Finding.of(Cause.NO_REQUESTS, window_s=snapshot.window.window_s)


def _gone(snapshot: ModelSnapshot) -> Finding:
    last = min(snapshot.gone, key=lambda pod: snapshot.gone[pod])
    some = f"the figures are those of the other {snapshot.pods}"
    left = some if snapshot.pods else "no pod of this model has any"
    pods = listed(sorted(snapshot.gone))
    return Finding.of(Cause.PODS_GONE, pods=pods, age_s=snapshot.gone[last], last=last, left=left)


def _failed(snapshot: ModelSnapshot) -> Iterator[Finding]:
    http, unfinished = snapshot.http, snapshot.unfinished
    if http is None or unfinished is None:
        return
    lost = unfinished > _FEW_FAILED + _UNFINISHED_SHARE * http.posts
    if not lost and http.refused <= max(_FEW_FAILED, _REFUSED_SHARE * http.posts):
        return
    more = f"; {unfinished:.0f} were finished by no engine" if lost else ""
    refusals = (
        "read docs/engine-refusals.md: a speculating vLLM refuses min_p and logit_bias, in a stream after HTTP 200; take them "
        "out of the clients' requests; for others "
    )
    yield Finding.of(
        Cause.REQUESTS_FAIL,
        refused=http.refused,
        posts=http.posts,
        more=more,
        refusals=refusals if snapshot.speculating else "",
    )


def _live_causes(snapshot: ModelSnapshot, *, scheduled: bool) -> Iterator[Finding]:
    """Causes that the live figures show by themselves; the acceptance of a schedule is a mixture over its tiers."""
    if not snapshot.speculating:
        yield Finding.of(Cause.NOT_SPECULATING)
    if snapshot.gone:
        yield _gone(snapshot)
    yield from _failed(snapshot)
    if snapshot.window.given_up > 0:
        yield Finding.of(Cause.CLIENTS_GIVE_UP, share=snapshot.window.given_up)
    yield from _acceptance_causes(snapshot, scheduled=scheduled)
    if snapshot.waiting_min is not None and snapshot.waiting_min >= 1:
        yield Finding.of(Cause.SATURATED, waiting=snapshot.waiting_min)
    if _pool_is_full(snapshot):
        usage, preemptions = snapshot.kv_usage, snapshot.window.preemptions
        yield Finding.of(
            Cause.KV_CACHE_FULL,
            pool="how full the KV cache is, is not exported as kv_cache_usage_perc"
            if usage is None
            else f"KV cache up to {usage:.0%} full",
            preemptions="preemptions are not exported"
            if preemptions is None
            else f"{preemptions:.0f} preemptions",
        )
    if _prompt_bound(snapshot):
        window = snapshot.window
        yield Finding.of(Cause.PREFILL_DOMINATES, ttft_s=window.ttft_s, latency_s=window.latency_s)


def _acceptance_causes(snapshot: ModelSnapshot, *, scheduled: bool) -> Iterator[Finding]:
    """Causes in the acceptance: almost nothing is accepted, or no draft at its last positions."""
    e = snapshot.window.tokens_per_step
    if snapshot.speculating and e is not None and e < _COLLAPSED_TOKENS_PER_STEP:
        yield Finding.of(Cause.SCHEDULE_RESTS if scheduled else Cause.ACCEPTANCE_COLLAPSED, e=e)
    # Short tiers draft no late positions, which is no evidence against long ones.
    if (dead := _dead_position(snapshot)) and not scheduled:
        share = snapshot.window.survival[dead]
        yield Finding.of(Cause.DRAFT_TOO_LONG, position=dead + 1, share=share, k=dead)


def _dead_position(snapshot: ModelSnapshot) -> int:
    """The first draft position that is hardly ever accepted, from 0; 0 if there is no such one behind the first."""
    survival = snapshot.window.survival
    return next((place for place, share in enumerate(survival) if share < _DEAD_POSITION), 0)


def _prompt_bound(snapshot: ModelSnapshot) -> bool:
    """Whether most of a request's time passes before its first token."""
    latency_s, ttft_s = snapshot.window.latency_s, snapshot.window.ttft_s
    return bool(latency_s and ttft_s and ttft_s > 0.5 * latency_s)


def _pool_is_full(snapshot: ModelSnapshot) -> bool:
    """Whether new tokens cost preemptions."""
    return (snapshot.kv_usage or 0.0) > _FULL_POOL or (snapshot.window.preemptions or 0.0) > 0


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
    load = f"at {seen.rps:.2f} rps per pod"
    if compared.speedup is None:
        return Diagnosis(None, f"{arm} and no speculation are both saturated {load}", findings=findings)
    if compared.saturated:
        return Diagnosis(False, f"{arm} is saturated {load}, no speculation is not", 0.0, findings=findings)
    if compared.against_saturated:
        lost = f"without speculation the pods would be saturated {load}"
        return Diagnosis(True, lost, findings=findings)
    known = compared.known
    lower, upper = known.lower, known.upper
    bounds = f"{lower or 0.0:.2f} to {upper:.2f}" if upper is not None else "no upper bound"
    pays = False if known.below(1.0) else True if known.above(1.0) else None
    verdict = {
        True: "speculation pays",
        False: "speculation slows requests",
        None: "too close to tell",
    }[pays]
    sentence = f"{verdict}: {compared.speedup:.2f}x ({bounds}) {load}"
    return Diagnosis(pays, sentence, compared.speedup, (lower, upper), findings)


# Causes that need a profile of the same engine: costs of its steps, calibrated acceptance and lengths.


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
        return self.profile.fit_of(self.arm)

    @property
    def loses(self) -> bool:
        """Whether speculation significantly slows requests at this load: the upper bound of the speedup is below 1."""
        return self.compared.speedup == 0.0 or self.compared.known.below(1.0)

    def elsewhere(self, arm: Arm, conditions: Conditions) -> float | None:
        """The speedup of an arm under other conditions at the same load; None if the profile cannot convert to them."""
        try:
            rps = self.snapshot.window.rps
            return self.profile.compare(arm, NO_SPECULATION, rps=rps, conditions=conditions).speedup
        except BreakevenError:
            return None


def _first_causes(against: _Against, live: tuple[Finding, ...]) -> Iterator[Finding]:
    """All causes but the last ones, the cause that others follow from first; `live` are those that figures show by themselves."""
    found = [*_mismatch(against), *_drafter_in_pool(against), *_prompts(against), *_prefix_hits(against)]
    yield from found
    prefill = [one for one in live if one.cause is Cause.PREFILL_DOMINATES]
    shifted = any(one.cause is Cause.PROMPTS_SHIFTED for one in found)
    if against.loses and not shifted:
        # Drafts do not slow the time before the first token. A long one is the reason why drafts have nothing to gain.
        yield from prefill
    if against.loses:
        yield _why_it_loses(against)
    for one in live:
        if one.cause is Cause.DRAFT_TOO_LONG:
            yield replace(one, remedy=f"{one.remedy}{_gain_of_shorter(against)}")
        elif one not in prefill or not against.loses or shifted:
            yield one


def _last_causes(against: _Against) -> Iterator[Finding]:
    """Figures that only look like a loss."""
    window = against.snapshot.window
    step, tpot, e = window.step_s, window.tpot_s, window.tokens_per_step
    if step is None or tpot is None or e is None:
        return
    try:
        without = against.profile.predict(
            NO_SPECULATION, rps=window.rps, conditions=against.conditions.of_another_arm()
        ).tpot_s
    except BreakevenError:
        return
    if without is not None and step > _MISREAD * without and tpot < without:
        shown = {"step_ms": 1e3 * step, "tpot_ms": 1e3 * tpot, "without_ms": 1e3 * without}
        yield Finding.of(Cause.ITL_IS_NOT_TPOT, e=e, **shown)


def _mismatch(against: _Against) -> Iterator[Finding]:
    fit, survival = against.fit, against.snapshot.window.survival
    calibrated = fit.survival_per_draft if fit is not None and not against.arm.scheduled else ()
    if survival and calibrated and survival[0] < _MISMATCH * calibrated[0]:
        yield Finding.of(Cause.DRAFTER_MISMATCH, live=survival[0], calibrated=calibrated[0])


def _drafter_in_pool(against: _Against) -> Iterator[Finding]:
    fits = {fit.arm: fit.kv_requests for fit in against.profile.arms}
    own, without = fits.get(against.arm), fits.get(NO_SPECULATION)
    if not _pool_is_full(against.snapshot) or not own or not without:
        return
    if own <= (1.0 - _POOL_SHARE) * without:
        yield Finding.of(Cause.DRAFTER_IN_KV_POOL, share=1.0 - own / without, own=own, without=without)


def _prompts(against: _Against) -> Iterator[Finding]:
    live, calibrated = against.conditions.prompt_tokens, against.profile.lengths.prompt_tokens
    if live is None or not calibrated or 1.0 / _SHIFTED < live / calibrated < _SHIFTED:
        return
    as_calibrated = replace(against.conditions, prompt_tokens=None, output_tokens=None)
    before, now = against.elsewhere(against.arm, as_calibrated), against.compared.speedup
    if before is None or now is None or not now < before:
        return
    if against.loses or _prompt_bound(against.snapshot):
        yield Finding.of(Cause.PROMPTS_SHIFTED, live=live, calibrated=calibrated, now=now, before=before)


def _prefix_hits(against: _Against) -> Iterator[Finding]:
    """Prefixes that the arm does not find although no speculation does, or not as often as in the calibration."""
    hits = {fit.arm: fit.prefix_hit_ratio for fit in against.profile.arms}
    own, without = hits.get(against.arm), hits.get(NO_SPECULATION)
    live = against.snapshot.window.prefix_hit_ratio
    if own is None:
        return
    if without is not None and without - own > _HITS_APART:
        yield Finding.of(Cause.PREFIX_HITS_LOST, own=own, arm=against.arm, without=without)
    if live is not None and abs(live - own) > _HITS_APART:
        less = "less" if live > own else "more"
        yield Finding.of(Cause.PREFIX_HITS_SHIFTED, live=live, own=own, less=less)


def _step_parts(against: _Against) -> tuple[float, float, float] | None:
    """A lone request's step (s): without speculation, and what drafting and verifying add to it; None if the profile lacks them.

    Verifying k drafts costs at most as much as k more requests add to a step without speculation. The tokens are computed
    in the same way, and the requests have contexts of their own beside. The rest of the difference is a lower bound of
    drafting.
    """
    law, own = against.profile.steps, against.fit
    if law is None or own is None or own.acceptance is None or against.arm.scheduled:
        return None
    drafted, context = own.acceptance.drafted_per_step, np.asarray(own.lengths.context_tokens)

    def lasts_s(arm: Arm, drafts: float, requests: float) -> float:
        tier = Tier(1, np.asarray(drafts), np.ones(()))
        return float(step_s(law.costs(arm), tier, context, np.asarray(requests)))

    without_s = lasts_s(NO_SPECULATION, 0.0, 1.0)
    added_s = lasts_s(against.arm, drafted, 1.0) - without_s
    if added_s <= 0:
        return None
    verify_s = min(max(lasts_s(NO_SPECULATION, 0.0, 1.0 + drafted) - without_s, 0.0), added_s)
    return without_s, added_s - verify_s, verify_s


def _why_it_loses(against: _Against) -> Finding:
    compared = against.compared
    load = f"at {against.snapshot.window.rps:.2f} rps per pod"
    at = f"{compared.speedup:.2f}x {load}"
    if compared.saturated:
        at = f"{against.arm} is saturated {load}, no speculation is not"
    if compared.c1_ratio <= 1.0:
        until = f"; it {compared.break_even}" if compared.break_even else ""
        return Finding.of(Cause.BEYOND_BREAK_EVEN, at=at, until=until)
    said = {
        "at": at,
        "alone": f"a lone request takes {compared.c1_ratio:.2f} times as long with {against.arm}",
        "other": f"each other one in flight costs {compared.c2_ratio:.2f} times as much",
    }
    if compared.c2_ratio < 1.0:
        return Finding.of(Cause.TOO_LITTLE_LOAD, **said)
    without_s, draft_s, verify_s = _step_parts(against) or (0.0, 0.0, 0.0)
    if draft_s > verify_s:
        parts = {"draft_ms": 1e3 * draft_s, "verify_ms": 1e3 * verify_s, "without_ms": 1e3 * without_s}
        return Finding.of(Cause.SLOW_DRAFTER, **said, **parts)
    return Finding.of(Cause.NEVER_PAYS, **said)


def _gain_of_shorter(against: _Against) -> str:
    """`: 1.12x of the present speed` of the draft length before the first dead position; empty if it is not known."""
    fit, window = against.fit, against.snapshot.window
    wanted = replace(against.arm, k=_dead_position(against.snapshot))
    shorter = against.profile.fit_of(wanted)
    if fit is None or shorter is None or fit.tokens_per_step is None or shorter.tokens_per_step is None:
        return ""
    live = min(max(window.tokens_per_step or 1.0, 1.0), fit.k + 1.0)
    e = carried(
        against.arm.method,
        SeenAt(fit.k, live, tuple(window.survival)),
        SeenAt(fit.k, fit.tokens_per_step, fit.acceptance.survival if fit.acceptance else ()),
        SeenAt(shorter.k, shorter.tokens_per_step, shorter.acceptance.survival if shorter.acceptance else ()),
    ).value
    found = against.elsewhere(shorter.arm, replace(against.conditions, tokens_per_step=e))
    now = against.compared.speedup
    if not found or not now:
        return ""
    return f": {found:.2f}x against no speculation, where {against.arm} is {now:.2f}x"
