"""Deployments: a ReplicaSet per template, and a roll that may surge."""

from __future__ import annotations

from collections.abc import Iterable

from breakeven.serving.rolling import Strategy, strategy
from breakeven_operator.kinds import DEPLOYMENTS, REPLICASETS
from breakeven_operator.ports import Manifest
from breakeven_operator.workloads.object_facts import owner_uid
from breakeven_operator.workloads.workload_kind import WorkloadKind

_REVISION = "deployment.kubernetes.io/revision"
_BEFORE = "deployment.kubernetes.io/revision-history"
# The alphabet of names that the API server makes: without vowels, and digits that look like letters.
_LETTERS = "[bcdfghjklmnpqrstvwxz2456789]"


class DeploymentKind(WorkloadKind):
    """See WorkloadKind."""

    resource = DEPLOYMENTS
    makers = (REPLICASETS,)
    # <name>-<hash of the ReplicaSet>-<five letters>: `chat` is not `chat-large`, and a calibration's pod (<run>-<arm>-<five
    # letters>) is neither. From 47 letters on the name is cut before the five, and with it the second dash.
    pod_name = f"(.+)-{_LETTERS}{{1,10}}-{_LETTERS}{{5}}|(.{{47,57}})-{_LETTERS}{{5,15}}"
    # The name of its ReplicaSet, cut if it would be too long, and five letters.
    siblings = "(.+).{5}"
    without_loss = "set maxUnavailable: 0 and maxSurge: 1 in the target's strategy"

    def newest_revision(self, manifest: Manifest, makers: Iterable[Manifest]) -> str:
        """Name of its newest ReplicaSet."""
        newest = _newest(manifest, makers)
        return str(newest["metadata"]["name"]) if newest is not None else ""

    def returned(self, manifest: Manifest, makers: Iterable[Manifest]) -> bool:
        """See WorkloadKind.returned; its controller notes down the revisions that a ReplicaSet had before."""
        newest = _newest(manifest, makers)
        return newest is not None and bool((newest["metadata"].get("annotations") or {}).get(_BEFORE))

    def strategy(self, manifest: Manifest, desired: int) -> Strategy:
        """See WorkloadKind.strategy."""
        return strategy(manifest["spec"], desired)


DEPLOYMENT = DeploymentKind()


def _newest(manifest: Manifest, makers: Iterable[Manifest]) -> Manifest | None:
    own = [one for one in makers if owner_uid(one) == manifest["metadata"]["uid"]]
    return max(own, key=_revision, default=None)


def _revision(replica_set: Manifest) -> int:
    try:
        return int((replica_set["metadata"].get("annotations") or {}).get(_REVISION, "0"))
    except ValueError:
        return 0
