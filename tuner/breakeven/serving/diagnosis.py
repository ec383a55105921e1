"""Diagnosis of a model: whether speculation pays right now, and if not, which of the known causes it has.

Its input is the figures of one model over one window, its output an ordered list of findings. Users have met each cause;
the finding has its symptom and its remedy. Without a profile it is not known whether speculation pays, because that
needs the engine's speed without it. The figures alone still show why it cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from breakeven.arm import NO_SPECULATION, Arm
from breakeven.estimate import Estimate
from breakeven.profile import Conditions, Profile
from breakeven.profile.fits import Bounds
from breakeven.serving.causes import DEAD_POSITION, FULL_POOL, Cause, Finding, ModelSnapshot, prompt_bound
from breakeven.serving.profiled_causes import Against, first_causes, last_causes
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
    """Whether speculation pays (None: unknown), with bounds where a profile gives them, and why."""

    pays: bool | None
    sentence: str
    speedup: float | None
    speedup_ci: Bounds | None
    findings: tuple[Finding, ...]


def diagnose(
    snapshot: ModelSnapshot, profile: Profile | None, arm: Arm | None, asked: Conditions | None = None
) -> Diagnosis:
    """Judge one snapshot.

    Args:
        snapshot: the live figures.
        profile: of the same engine.
        arm: what runs, needed with a profile.
        asked: acceptance and lengths to judge with in place of the live ones.
    """
    if (lacking := _lacking(snapshot)) is not None:
        return lacking
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


def _lacking(snapshot: ModelSnapshot) -> Diagnosis | None:
    """The answer where the figures allow no judgement; None if they do."""
    finding = next(_objections(snapshot), None)
    return None if finding is None else _unknown(finding)


def _objections(snapshot: ModelSnapshot) -> Iterator[Finding]:
    """Reasons why the figures are not those of the present load, the most basic reason first."""
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


def _unknown(finding: Finding) -> Diagnosis:
    return Diagnosis(None, finding.evidence, None, None, (finding,))


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
    """The KV pool, if it is full or requests were preempted."""
    full = snapshot.kv_usage is not None and snapshot.kv_usage > FULL_POOL
    if full or (snapshot.window.preemptions or 0) > 0:
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
    # Live lengths convert only from lengths that were measured; lengths that a user gives are refused without those.
    live = Conditions(
        None if arm.scheduled else snapshot.window.tokens_per_step,
        snapshot.window.prompt_tokens if all(one.prompt_tokens for one in pair) else None,
        snapshot.window.output_tokens,
    )
    conditions = Conditions(
        asked.tokens_per_step or live.tokens_per_step,
        asked.prompt_tokens or live.prompt_tokens,
        asked.output_tokens or live.output_tokens,
    )
    compared = profile.compare(arm, NO_SPECULATION, rps=snapshot.window.rps, conditions=conditions)
    against = Against(snapshot, profile, arm, conditions, compared)
    findings = (*first_causes(against, findings), *last_causes(against))
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
