"""Whether the operator can do for a target what its mode asks for; if not, the one reason and the way out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from breakeven.reasons import Reason
from breakeven.serving.rolling import unshareable
from breakeven.serving.vllm_versions import serves_for_itself
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.ports import Manifest
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.speculativeservice import SpeculativeServiceSpec
from breakeven_operator.resources.targetstatus import LONGEST_IMAGE, LONGEST_MODEL
from breakeven_operator.resources.updatepolicy import Mode
from breakeven_operator.workloads.fingerprint import Identity
from breakeven_operator.workloads.known import kind_of, owner_words, set_there
from breakeven_operator.workloads.object_facts import owner_of
from breakeven_operator.workloads.served_engine import ServedEngine
from breakeven_operator.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something is not done; `message` is a whole sentence that names the way out."""

    reason: ClusterReason | Reason
    message: str


def refuse_target(
    spec: SpeculativeServiceSpec,
    workload: Workload | None,
    managed_by: str | None,
    problem: str | None = None,
) -> Refusal | None:
    """Why the operator cannot watch and calibrate this target in any mode; None if it can.

    `managed_by` has the target already, and `problem` is why its object could not be read.
    """
    kind, name = spec.target_ref.kind, spec.target_ref.name
    if problem is not None:
        return Refusal(ClusterReason.TARGET_UNREADABLE, f"{kind} {name} cannot be read: {problem}")
    if workload is None:
        what = f"no {kind} {name}" if kind_of(spec.target_ref).rolled else f"no pod of {kind} {name}"
        return Refusal(ClusterReason.TARGET_NOT_FOUND, f"there is {what} in this namespace")
    if managed_by is not None:
        return Refusal(
            ClusterReason.ALREADY_MANAGED,
            f"{kind} {name} already belongs to SpeculativeService {managed_by}, which is older: delete one of the two",
        )
    engine, identity = workload.engine, workload.identity
    if engine is None or identity is None:
        named = spec.target_ref.container_name
        return Refusal(
            ClusterReason.ENGINE_UNCLEAR,
            f"{kind} {name} has no container {named}"
            if named
            else f"{kind} {name} has several containers and not exactly one that starts vLLM: "
            "set targetRef.containerName",
        )
    refusal = (
        refuse_transfer(workload)
        or _engine_refused(workload.title, engine, identity)
        or _workers_serve(workload)
    )
    if refusal is not None:
        return refusal
    if len(workload.gpu_classes) > 1:
        return Refusal(
            ClusterReason.TARGET_REFUSED,
            f"pods of {workload.title} run on {' and '.join(workload.gpu_classes)}, and no arm is the best on each: make one "
            f"{workload.ref.resource.kind} per GPU class, each with a nodeSelector and a SpeculativeService of its own",
        )
    if identity.gpu_product is None and workload.serving:
        return Refusal(
            ClusterReason.GPU_CLASS_UNKNOWN,
            "the nodes of the pods carry no GPU product label and the pod template names none: "
            "label the nodes (GPU Feature Discovery) or add a nodeSelector",
        )
    return None


def refuse_transfer(workload: Workload) -> Refusal | None:
    """A restart of the target breaks connections of engines at the other end; None if it keeps its caches.

    An engine that only moves its own caches to memory or disk has nobody at the other end.
    """
    found = workload.hands_caches_on
    if found is None:
        return None
    return Refusal(
        ClusterReason.TARGET_REFUSED,
        f"{workload.title} has {found}: the engines at the other end keep connections to a pod that is restarted, and requests hang "
        "on them, whatever the method; let one engine read prompts and decode, or set the arm yourself on prefill and decode "
        "together, in a window without requests, and delete this service",
    )


def _engine_refused(title: str, engine: ServedEngine, identity: Identity) -> Refusal | None:
    """Why nothing can be said of the engine that the template starts; None if it is one that can be watched."""
    if engine.start.shell and not engine.words:
        return _unreadable(engine)
    if identity.model is None:
        return Refusal(
            ClusterReason.ENGINE_UNCLEAR,
            f"the command line of container {engine.name} names no model: is it `vllm serve MODEL`?",
        )
    texts = (
        ("image", engine.container.get("image") or "", LONGEST_IMAGE),
        ("model", identity.model, LONGEST_MODEL),
        ("served model name", identity.served_model or "", LONGEST_MODEL),
    )
    for what, text, longest in texts:
        if len(text) > longest:
            long = f"its {what} has {len(text)} characters; expected at most {longest}"
            return Refusal(ClusterReason.TARGET_UNREADABLE, f"{title} cannot be read: {long}")
    if engine.speculation.problem is not None and engine.start.literal:
        message = f"vLLM would refuse to start: {engine.speculation.problem}"
        return Refusal(ClusterReason.ENGINE_CONFIG_REFUSED, message)
    return None


def _workers_serve(workload: Workload) -> Refusal | None:
    """Pods beside a group's leader take requests too; None if only the leader does, or every replica is one pod."""
    found = next(filter(None, (serves_for_itself(one.words) for one in workload.engines[1:])), None)
    if found is None:
        return None
    return Refusal(
        ClusterReason.ENGINE_UNCLEAR,
        f"{workload.title} starts its workers with {found}, so they serve beside their leader, and the leader's load is not the "
        "group's: let the leader alone serve (--headless on the workers), or make every rank a pod of its own target",
    )


def refuse_rolls(
    spec: SpeculativeServiceSpec,
    workload: Workload,
    claims: Iterable[Manifest] = (),
    *,
    takes_proposals: bool = True,
) -> Refusal | None:
    """The reason why the operator does not choose this target's arm although its mode asks for it; None if there is none.

    `claims` are the PersistentVolumeClaims of its namespace, as far as they may be read. In mode NextRollout nothing is asked about
    a roll, which is its owner's.
    """
    mode, engine = spec.update_policy.mode, workload.engine
    if not mode.writes or engine is None:
        return None
    refusals = [
        _kind_refuses(workload),
        _owner_refuses(workload),
        *(_not_opted_in(workload, one) for one in workload.engines),
    ]
    if mode is Mode.NEXT_ROLLOUT:
        refusals.append(_nothing_takes(workload, takes_proposals=takes_proposals))
    else:
        held = f"{workload.title} {workload.held}" if workload.held else None
        refusals[2:2] = [Refusal(ClusterReason.TARGET_PAUSED, held)] if held else []
        refusals += [_nobody_shares(workload, engine, claims), _cuts_off(spec, engine)]
    return next(filter(None, refusals), None)


def _nothing_takes(workload: Workload, *, takes_proposals: bool) -> Refusal | None:
    """No admission policy puts a proposal into this workload's pod template; None if one does."""
    if not takes_proposals:
        return Refusal(
            ClusterReason.NEXT_ROLLOUT_MISSING,
            "mode NextRollout needs the chart's MutatingAdmissionPolicy, which a cluster has from Kubernetes 1.36 on: upgrade the "
            "cluster and then the chart, or use another mode",
        )
    # The annotation of an object whose controller makes another one is no part of a pod template.
    if not workload.kind.made_as:
        return None
    return Refusal(
        ClusterReason.NEXT_ROLLOUT_MISSING,
        f"{workload.title} has no pod template of its own for mode NextRollout to write into: use another mode",
    )


def _kind_refuses(workload: Workload) -> Refusal | None:
    """Why no object of this kind, or not this one, is written; None if it is."""
    if not workload.kind.rolled:
        return Refusal(
            ClusterReason.TARGET_OWNED,
            f"{workload.title} is of a kind that the operator does not change: "
            f"{set_there(workload.kind.resource.api_version, workload.kind.resource.kind)}",
        )
    borrowed = workload.kind.borrows(workload.manifest)
    if borrowed is None:
        return None
    return Refusal(
        ClusterReason.TARGET_OWNED,
        f"{workload.title} takes its pod template from {borrowed} (workloadRef), which the operator does not write: use mode "
        "Recommend, and set the arm there",
    )


def _owner_refuses(workload: Workload) -> Refusal | None:
    """Another object makes the target, and would revert the change."""
    if workload.owner is None:
        return None
    owner = owner_of(workload.manifest)
    named = owner_words(owner)
    remedy = (
        f"make another service with targetRef: {{{named}}}"
        if named
        else set_there(str(owner.get("apiVersion")), str(owner.get("kind")))
    )
    return Refusal(
        ClusterReason.TARGET_OWNED,
        f"{workload.title} is made by {workload.owner}, which would revert the change: {remedy}",
    )


def _nobody_shares(workload: Workload, engine: ServedEngine, claims: Iterable[Manifest]) -> Refusal | None:
    """A new pod needs a volume that the old one holds; None if it does not."""
    # Without surge a pod is gone before the next one comes, and leaves it what only one may have.
    alone = unshareable(engine.pod_spec, claims) if workload.max_surge > 0 else None
    if alone is None:
        return None
    return Refusal(
        ClusterReason.VOLUME_NOT_SHAREABLE,
        f"a new pod would wait for it in vain: {alone}, or roll without surge (maxSurge 0)",
    )


def _cuts_off(spec: SpeculativeServiceSpec, engine: ServedEngine) -> Refusal | None:
    """Pods that end would cut off requests, and the policy does not accept that."""
    if spec.update_policy.drain != "Required" or engine.drain.ok:
        return None
    return Refusal(
        ClusterReason.DRAIN_NOT_CONFIGURED,
        f"a roll would cut off requests: {'; '.join(engine.drain.problems)}; or accept that with updatePolicy.drain AcceptLoss",
    )


def _not_opted_in(workload: Workload, engine: ServedEngine) -> Refusal | None:
    """Why the annotation does not choose an engine's arm; None if it does."""
    lines = engine.opt_in
    if lines.ok:
        return None
    if not engine.start.certain:
        return _unreadable(engine)
    edits = [
        f"{verb} under {change.path}: {' '.join(line.strip() for line in change.lines)}"
        for verb, changes in (("add", lines.add), ("remove", lines.remove))
        for change in changes
    ]
    return Refusal(
        ClusterReason.NOT_OPTED_IN,
        lines.refusal
        or f"{workload.title} does not let the annotation choose the arm; in its manifest, "
        + "; ".join(edits),
    )


def _unreadable(engine: ServedEngine) -> Refusal:
    return Refusal(ClusterReason.ENGINE_UNCLEAR, str(engine.opt_in.refusal))


Claim: TypeAlias = tuple[str, str, str]
"""When a SpeculativeService was made, its uid and its name; the smallest one of a target claimed it first."""


def claim_of(service: SpeculativeService) -> Claim:
    """Claim of a service."""
    meta = service.metadata
    return str(meta.creation_timestamp or ""), meta.uid, meta.name


def older_claim(claims: Iterable[Claim], own: Claim) -> str | None:
    """The service that claimed a target before ours; None if ours was the first."""
    first = min(claims, default=own)
    return first[2] if first < own else None
