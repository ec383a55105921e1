"""StatefulSets: pods that keep their names, replaced from the highest ordinal down, each gone before the next one comes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from breakeven.serving.rolling import Strategy, held_back, ordinal_strategy
from breakeven_operator.kinds import STATEFULSETS
from breakeven_operator.ports import Manifest
from breakeven_operator.workloads.workload_kind import PodCounts, WorkloadKind, with_own_claims

_REVISION = "controller-revision-hash"
# Of more digits it could be the five letters at the end of another kind's pod.
_ORDINAL = "[0-9]{1,4}"


class StatefulSetKind(WorkloadKind):
    """See WorkloadKind."""

    resource = STATEFULSETS
    pod_labels = (_REVISION,)
    # <name>-<ordinal>: `chat-0` is of `chat`, `chat-large-0` is not, nor is a calibration's pod, which ends in five letters.
    pod_name = f"(.+)-{_ORDINAL}"
    # With the dash: pods of another kind may begin in the same way.
    siblings = f"(.+-){_ORDINAL}"
    keeps_names = True
    refusals_in_events = True
    without_loss = "give the target a replica more, because a StatefulSet has no surge"
    partition_at = ("spec", "updateStrategy", "rollingUpdate", "partition")

    def template(self, manifest: Manifest) -> Manifest:
        """The pod template, each claim template as a volume that every pod has for itself."""
        return with_own_claims(super().template(manifest), manifest["spec"].get("volumeClaimTemplates") or [])

    def newest_revision(
        self,
        manifest: Manifest,
        makers: Iterable[Manifest],  # noqa: ARG002 - it makes its pods itself
    ) -> str:
        """Name of its newest ControllerRevision."""
        return str((manifest.get("status") or {}).get("updateRevision") or "")

    def revision_of(self, pod: Manifest) -> str:
        """Name of its ControllerRevision."""
        return str((pod["metadata"].get("labels") or {}).get(_REVISION, ""))

    def counts(self, manifest: Manifest) -> PodCounts:
        """See WorkloadKind.counts; older API servers write some of them otherwise, or not at all."""
        status, counts = manifest.get("status") or {}, super().counts(manifest)
        # Kubernetes before 1.22 does not count available ones.
        available = int(status.get("availableReplicas", counts.ready))
        return counts._replace(updated=_updated(status), available=available)

    def held(self, manifest: Manifest) -> str | None:
        """See WorkloadKind.held."""
        return held_back(manifest["spec"])

    def strategy(self, manifest: Manifest, desired: int) -> Strategy:
        """See WorkloadKind.strategy."""
        return ordinal_strategy(manifest["spec"], desired)


STATEFUL_SET = StatefulSetKind()


def _updated(status: Mapping[str, Any]) -> int:
    """Pods of the newest revision. Older API servers leave their number out, or as it was, when an update has ended."""
    current, updated = status.get("currentReplicas"), status.get("updatedReplicas")
    ended = status.get("currentRevision") == status.get("updateRevision")
    known = (current, updated) if ended else (updated,)
    return int(next((number for number in known if number is not None), 0))
