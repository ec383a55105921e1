"""Whether the operator can do for a target what its mode asks for; if not, the one reason and the way out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from breakeven.serving.command_line import shell_of, speculation
from breakeven.serving.drain import drain
from breakeven.serving.opt_in import opt_in
from breakeven.serving.shareable import unshareable
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.ports import Manifest
from breakeven_operator.reconcile.deployment import Deployment
from breakeven_operator.reconcile.fingerprint import Identity
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.speculativeservice import SpeculativeServiceSpec
from breakeven_operator.resources.updatepolicy import DrainRequirement, Mode


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something is not done; `message` is a whole sentence that names the way out."""

    reason: ClusterReason
    message: str


def refuse_target(
    spec: SpeculativeServiceSpec,
    deployment: Deployment | None,
    identity: Identity | None,
    managed_by: str | None,
    problem: str | None = None,
) -> Refusal | None:
    """What keeps the operator from watching and calibrating this target in any mode; None when nothing does.

    Args:
        spec: of the SpeculativeService.
        deployment: the target; None when there is none of that name.
        identity: its identity; None without a container.
        managed_by: another SpeculativeService that has the target already.
        problem: why the Deployment of that name could not be read.
    """
    name = spec.target_ref.name
    if problem is not None:
        return Refusal(ClusterReason.TARGET_UNREADABLE, f"Deployment {name} cannot be read: {problem}")
    if deployment is None:
        return Refusal(ClusterReason.TARGET_NOT_FOUND, f"there is no Deployment {name} in this namespace")
    if managed_by is not None:
        return Refusal(
            ClusterReason.ALREADY_MANAGED,
            f"Deployment {name} already belongs to SpeculativeService {managed_by}, which is older: delete one of the two",
        )
    if deployment.container is None or identity is None:
        named = spec.target_ref.container_name
        return Refusal(
            ClusterReason.CONTAINER_AMBIGUOUS,
            f"Deployment {name} has no container {named}"
            if named
            else f"Deployment {name} has several containers and not exactly one that starts vLLM: "
            "set targetRef.containerName",
        )
    if shell_of(deployment.command_line):
        return Refusal(ClusterReason.SHELL_WRAPPER, str(opt_in(deployment.container).refusal))
    if identity.model is None:
        return Refusal(
            ClusterReason.NOT_VLLM,
            f"the command line of container {deployment.container.get('name')} names no model: is it `vllm serve MODEL`?",
        )
    problem = speculation(deployment.command_line).problem
    if problem is not None:
        return Refusal(ClusterReason.ENGINE_CONFIG_REFUSED, f"vLLM would refuse to start: {problem}")
    if len(deployment.gpu_products) > 1:
        return Refusal(
            ClusterReason.MIXED_GPU_CLASSES,
            f"pods run on {', '.join(deployment.gpu_products)}: one profile cannot describe both; "
            "pin the class with a nodeSelector, one Deployment per class",
        )
    if identity.gpu_product is None and deployment.serving:
        return Refusal(
            ClusterReason.GPU_CLASS_UNKNOWN,
            "the nodes of the pods carry no GPU product label and the pod template names none: "
            "label the nodes (GPU Feature Discovery) or add a nodeSelector",
        )
    return None


def refuse_rolls(
    spec: SpeculativeServiceSpec, deployment: Deployment, claims: Iterable[Manifest] = ()
) -> Refusal | None:
    """The reason why the operator does not roll this target although its mode asks for it; None if there is none.

    Args:
        spec: of the SpeculativeService.
        deployment: the target.
        claims: PersistentVolumeClaims of its namespace, as far as they may be read.
    """
    if spec.update_policy.mode is not Mode.ROLLING_UPDATE or deployment.container is None:
        return None
    if deployment.owner is not None:
        return Refusal(
            ClusterReason.TARGET_OWNED,
            f"Deployment {deployment.ref.name} is made by {deployment.owner}, which would revert the change: "
            "use mode Recommend and set the arm there",
        )
    if deployment.paused:
        return Refusal(
            ClusterReason.TARGET_PAUSED,
            f"Deployment {deployment.ref.name} has spec.paused set: kubectl rollout resume it first",
        )
    lines = opt_in(deployment.container)
    if not lines.ok:
        edits = [
            f"{verb} under {change.path}: {' '.join(line.strip() for line in change.lines)}"
            for verb, changes in (("add", lines.add), ("remove", lines.remove))
            for change in changes
        ]
        # The opt-in is there, and something beside it wins or makes vLLM refuse to start.
        static = bool(lines.remove) and not lines.add
        return Refusal(
            ClusterReason.STATIC_CONFIG if static else ClusterReason.NOT_OPTED_IN,
            lines.refusal
            or f"Deployment {deployment.ref.name} does not let the annotation choose the arm; in its manifest, "
            + "; ".join(edits),
        )
    # Without surge a pod is gone before the next one comes, and leaves it what only one may have.
    alone = unshareable(deployment.pod_spec, claims) if deployment.max_surge > 0 else None
    if alone is not None:
        return Refusal(
            ClusterReason.VOLUME_NOT_SHAREABLE,
            f"a new pod would wait for it in vain: {alone}, or roll without surge (maxSurge 0)",
        )
    draining = drain(deployment.pod_spec, deployment.container)
    if spec.update_policy.drain is DrainRequirement.REQUIRED and not draining.ok:
        return Refusal(
            ClusterReason.DRAIN_NOT_CONFIGURED,
            "a roll would cut off requests: "
            + "; ".join(draining.problems)
            + "; or accept that with updatePolicy.drain AcceptLoss",
        )
    return None


class Claim(NamedTuple):
    """A SpeculativeService on a target; the smallest one claimed it first."""

    created: str
    uid: str
    name: str

    @classmethod
    def of(cls, service: SpeculativeService) -> Claim:
        """That of a service."""
        meta = service.metadata
        return cls(str(meta.creation_timestamp or ""), meta.uid, meta.name)


def older_claim(claims: Iterable[Claim], own: Claim) -> str | None:
    """The service that claimed a target before ours; None when ours was the first."""
    first = min(claims, default=own)
    return first.name if first < own else None
