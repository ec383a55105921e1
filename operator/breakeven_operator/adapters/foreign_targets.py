"""Targets of kinds that the operator does not know, put together from their pods; one pod of each is read whole.

Pods are kept without their specs, because there are ten thousands. The newest pod of such a target is asked for by its name,
once: a pod's spec does not change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from breakeven_operator.adapters.api_json import problem_of
from breakeven_operator.adapters.made_targets import JoinedTargets, joined_targets
from breakeven_operator.kinds import PODS, Ref
from breakeven_operator.ports import Cluster, ClusterError, Manifest
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.workloads.known import kind_at, kind_of, target_of
from breakeven_operator.workloads.other_kinds import OwnedPods, manifest_of, owned_pods

_LOG = logging.getLogger(__name__)
_AT_A_TIME = 8


def _is_incomplete(ref: Ref, manifest: Manifest) -> bool:
    """Whether a target that could be read has its pod template in another object."""
    return problem_of(manifest) is None and kind_at(ref.resource).borrows(manifest) is not None


def _with_template(target: Manifest, assembled: Manifest) -> Manifest:
    return {**target, "spec": {**target["spec"], "template": assembled["spec"]["template"]}}


class ForeignTargets:
    """Remembers the pod that shows each target's template.

    Args:
        cluster: port.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._shown: dict[Ref, Manifest] = {}
        self._slots = asyncio.Semaphore(_AT_A_TIME)

    async def completed(
        self,
        services: Sequence[SpeculativeService],
        pods: Sequence[Manifest],
        makers: Sequence[Manifest],
        known: Mapping[Ref, Manifest],
    ) -> JoinedTargets:
        """All targets: those that were read, and those that pods show; one whose pod cannot be read keeps its former template.

        Args:
            services: all of them.
            known: objects that were read: targets, and what may have been made of them. A target without a template has that of
                its newest pod, and without a pod is none.
            pods: of their namespaces, trimmed.
            makers: objects between workloads and pods.
        """
        known, unread = joined_targets(set(map(target_of, services)), known)
        wanted = {target_of(one) for one in services if not kind_of(one.spec.target_ref).rolled}
        wanted |= {ref for ref, one in known.items() if _is_incomplete(ref, one)}
        owned = owned_pods(wanted, pods, makers)
        shown = await asyncio.gather(*(self._shows(ref, one) for ref, one in owned.items()))
        self._shown = {ref: pod for ref, pod in zip(owned, shown, strict=True) if pod is not None}
        assembled = {ref: manifest_of(ref, owned[ref], pod) for ref, pod in self._shown.items()}
        whole = {ref: one for ref, one in known.items() if not _is_incomplete(ref, one)}
        seen = {
            ref: _with_template(known[ref], one) if ref in known else one for ref, one in assembled.items()
        }
        return JoinedTargets(whole | seen, unread)

    async def _shows(self, ref: Ref, owned: OwnedPods) -> Manifest | None:
        """The newest pod with all its fields; the one before while it cannot be read."""
        newest, known = owned.living[0]["metadata"], self._shown.get(ref)
        if known is not None and known["metadata"]["uid"] == newest["uid"]:
            return known
        try:
            async with self._slots:
                found = await self._cluster.list_all(
                    PODS, ref.namespace, fields=f"metadata.name={newest['name']}"
                )
        except ClusterError as error:
            _LOG.warning("pod %s/%s cannot be read: %s", ref.namespace, newest["name"], error)
            return known
        return next((pod for pod in found if pod["metadata"]["uid"] == newest["uid"]), known)
