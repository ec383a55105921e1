"""Prefill and decode on different pods: whether two halves belong together, and what a request takes in both.

The target is the decode half. What passes before its laws apply is measured: the prefill half's time to the first token for the
requests that go through it, and the decode half's own, which holds the transfer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from breakeven.arm import Arm
from breakeven.methods import LOOKUP_METHODS
from breakeven.phrases import figure
from breakeven.profile.composition import ProfilePart, composed
from breakeven.serving.hindrances import hands_caches_on
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.reconcile.calibration_state import Calibrated
from breakeven_operator.reconcile.live_metrics import Live
from breakeven_operator.reconcile.target import Refusal
from breakeven_operator.resources.candidates import Candidates
from breakeven_operator.workloads.running_arm import running_arm
from breakeven_operator.workloads.workload import Workload

_TRANSFER = "--kv-transfer-config"
# Roles that a half cannot have; with kv_both a connector leaves it to each request.
_WRONG_ROLE = {"prefill": "kv_consumer", "decode": "kv_producer"}


@dataclass(frozen=True, slots=True)
class PrefillHalf:
    """The other half of a service's pair.

    Attributes:
        named: its kind and name, as the spec has them.
        workload: None if there is none of that name.
        problem: why its object could not be read; None: it could, or there is none.
    """

    named: str
    workload: Workload | None
    problem: str | None = None


def refuse_pair(half: PrefillHalf, decode: Workload, candidates: Candidates) -> Refusal | None:
    """Why nothing is decided for this pair in any mode; None if both halves can be read and belong together.

    Args:
        half: the prefill half.
        decode: the target, which can be read.
        candidates: of the service.
    """
    if half.problem is not None:
        return Refusal(
            ClusterReason.PREFILL_UNREADABLE, f"pair.prefill: {half.named} cannot be read: {half.problem}"
        )
    prefill = half.workload
    if prefill is None:
        return Refusal(
            ClusterReason.PREFILL_NOT_FOUND, f"pair.prefill: there is no {half.named} in this namespace"
        )
    engine, identity = prefill.engine, prefill.identity
    if engine is None or identity is None:
        return Refusal(
            ClusterReason.PREFILL_UNREADABLE,
            f"pair.prefill: {half.named} has not exactly one container that starts vLLM: set pair.prefill.containerName",
        )
    if identity.model is None:
        return Refusal(
            ClusterReason.PREFILL_UNREADABLE,
            f"pair.prefill: the command line of container {engine.name} of {half.named} names no model, or cannot be read",
        )
    problem = _differs(prefill, decode, candidates)
    return Refusal(ClusterReason.PAIR_MISMATCHED, problem) if problem is not None else None


def _differs(prefill: Workload, decode: Workload, candidates: Candidates) -> str | None:
    """The difference that keeps two halves from working together, as a sentence; None if there is none."""
    halves = {"prefill": prefill, "decode": decode}
    models = {half: one.identity.model if one.identity is not None else None for half, one in halves.items()}
    if models["prefill"] != models["decode"]:
        return f"prefill serves {models['prefill']} and decode {models['decode']}: both halves must have one model"
    configs: dict[str, Mapping[str, Any]] = {}
    # A controller that makes both halves of one object makes them hand caches on, and may hide how in a script.
    made_together = decode.kind.halves(decode.manifest) is not None
    for half, one in halves.items():
        words = one.engine.words if one.engine is not None else ()
        if not made_together and not hands_caches_on(words):
            return f"{one.title} hands no KV caches on: the {half} half needs {_TRANSFER}"
        configs[half] = _transfer(one)
        if configs[half].get("kv_role") == (wrong := _WRONG_ROLE[half]):
            return f"{one.title} has kv_role {wrong}, which the {half} half cannot have: are the halves the wrong way round?"
    connectors = {half: config.get("kv_connector") for half, config in configs.items()}
    if None not in connectors.values() and connectors["prefill"] != connectors["decode"]:
        return f"prefill has kv_connector {connectors['prefill']} and decode {connectors['decode']}: expected one connector"
    drafters = {half: _drafter(running_arm(one, candidates).arm) for half, one in halves.items()}
    if drafters["prefill"] != drafters["decode"]:
        return (
            f"prefill runs {drafters['prefill']} and decode {drafters['decode']}: engines with different drafters refuse each "
            "other's KV caches"
        )
    return None


def _transfer(workload: Workload) -> Mapping[str, Any]:
    """The JSON of the flag; empty if it is written in another way, such as one flag per key."""
    value = workload.engine.flag(_TRANSFER) if workload.engine is not None else None
    try:
        found = json.loads(value) if value is not None else None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _drafter(arm: Arm | None) -> str:
    """The drafter that both halves must share; lookups have none."""
    if arm is None:
        return "an arm that cannot be told"
    return arm.family if arm.k and arm.method not in LOOKUP_METHODS else "no drafter"


@dataclass(frozen=True, slots=True)
class WholeRequests:
    """Figures of requests from the prompt to the end.

    Attributes:
        live: those, or why there are none.
        first_token_s: mean time (s) to the first token that the decode half hands out; None without figures.
    """

    live: Live
    first_token_s: float | None = None

    def profile_of(self, state: Calibrated) -> Calibrated:
        """The state with the profile of whole requests; the stored one stays as it is."""
        if self.first_token_s is None or state.entry is None or state.entry.profile is None:
            return state
        profile = composed([ProfilePart(state.entry.profile, 1.0, 1.0)], self.first_token_s)
        return replace(state, entry=replace(state.entry, profile=profile))


def whole_requests(decode: Live, prefill: Live) -> WholeRequests:
    """Figures of both halves as one.

    Routers send short prompts to the decode half alone: the prefill half's time counts for the requests that came through it.

    Args:
        decode: figures of the decode half's pods.
        prefill: of the prefill half's.
    """
    here, there = decode.figures, prefill.figures
    if here is None or not decode.usable:
        return WholeRequests(decode)
    few = prefill.reason is ClusterReason.TOO_FEW_REQUESTS and there is not None
    if there is None or not (prefill.usable or few):
        return WholeRequests(
            replace(decode, reason=prefill.reason, message=f"prefill half: {prefill.message}", figures=None)
        )
    if here.ttft_s is None or here.latency_s is None or (there.ttft_s is None and there.total_rps > 0.0):
        missing = "decode" if here.ttft_s is None or here.latency_s is None else "prefill"
        message = f"{missing} half: no request has a time to its first token within the window"
        return WholeRequests(
            replace(decode, reason=ClusterReason.METRICS_PARTIAL, message=message, figures=None)
        )
    through = min(there.total_rps / here.total_rps, 1.0) if here.total_rps > 0.0 else 1.0
    before_s = through * (there.ttft_s or 0.0)
    figures = replace(
        here,
        latency_s=here.latency_s + before_s,
        ttft_s=here.ttft_s + before_s,
        inflight=here.inflight + here.rps * before_s if here.inflight is not None else None,
    )
    message = f"{decode.message}; {figure(before_s)} s of each request in the prefill half"
    return WholeRequests(replace(decode, figures=figures, message=message), here.ttft_s + before_s)
