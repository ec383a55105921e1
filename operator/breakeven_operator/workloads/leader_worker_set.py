"""LeaderWorkerSets: each replica is a group of pods that restarts as one, and whose leader serves.

Facts of its controller, version 0.9: a set of the LeaderWorkerSet's own name makes the leaders. A label has the hash of the revision: on
a leader the hash of its template, on the set the newest one. Each leader owns a set that makes its workers. Only leaders
have metrics, so leaders stand for the groups here; the status counts groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from breakeven.serving.rolling import Strategy, group_strategy, groups_held_back
from breakeven_operator.kinds import LEADER_SETS, LEADER_WORKER_SETS
from breakeven_operator.ports import Manifest
from breakeven_operator.workloads.object_facts import owner_uid
from breakeven_operator.workloads.workload_kind import (
    ALONE,
    PodCounts,
    Workers,
    WorkloadKind,
    with_own_claims,
)

_REVISION = "leaderworkerset.sigs.k8s.io/template-revision-hash"
_GROUPS = ("spec", "leaderWorkerTemplate")


class LeaderWorkerSetKind(WorkloadKind):
    """See WorkloadKind."""

    resource = LEADER_WORKER_SETS
    makers = (LEADER_SETS,)
    pod_labels = (_REVISION,)
    keeps_names = True
    refusals_in_events = True
    without_loss = "set maxUnavailable: 0 and maxSurge: 1 in its rolloutStrategy.rollingUpdateConfiguration"
    partition_at = ("spec", "rolloutStrategy", "rollingUpdateConfiguration", "partition")
    template_at = (*_GROUPS, "workerTemplate")
    beside_at = ((*_GROUPS, "leaderTemplate"),)

    def template(self, manifest: Manifest) -> Manifest:
        """The leaders' pod template, which is the workers' if there is no other, with the variables of their webhook.

        A copy leads a group of its own.
        """
        groups = manifest["spec"]["leaderWorkerTemplate"]
        leader = groups.get("leaderTemplate") or super().template(manifest)
        variables: list[dict[str, Any]] = [
            {"name": "LWS_LEADER_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "LWS_GROUP_SIZE", "value": str(self.workers(manifest).number + 1)},
            {"name": "LWS_WORKER_INDEX", "value": "0"},
        ]
        names = {entry["name"] for entry in variables}
        containers = [
            {
                **one,
                "env": [*variables, *(env for env in one.get("env") or [] if env.get("name") not in names)],
            }
            for one in leader["spec"].get("containers") or []
        ]
        led = {**leader, "spec": {**leader["spec"], "containers": containers}}
        return with_own_claims(led, groups.get("volumeClaimTemplates") or [])

    def workers(self, manifest: Manifest) -> Workers:
        """See WorkloadKind.workers."""
        size = int(manifest["spec"]["leaderWorkerTemplate"].get("size") or 1)
        return Workers(size - 1, super().template(manifest)["spec"]) if size > 1 else ALONE

    def newest_revision(self, manifest: Manifest, makers: Iterable[Manifest]) -> str:
        """Hash of its newest revision."""
        found = (_revision(one) for one in makers if _leads(one, manifest))
        return next(found, "")

    def owners(self, manifest: Manifest, makers: Iterable[Manifest]) -> frozenset[str]:
        """Uids of what owns its leaders: the set of its own name."""
        return frozenset(str(one["metadata"]["uid"]) for one in makers if _leads(one, manifest))

    def revision_of(self, pod: Manifest) -> str:
        """Hash of its group's revision."""
        return _revision(pod)

    def counts(self, manifest: Manifest) -> PodCounts:
        """Groups; the status has no count of available ones apart from the ready ones."""
        counts = super().counts(manifest)
        return counts._replace(available=counts.ready)

    def held(self, manifest: Manifest) -> str | None:
        """See WorkloadKind.held."""
        return groups_held_back(manifest["spec"])

    def waits_for_ready(self, manifest: Manifest) -> bool:
        """Whether a group that is not Ready uses up the only one that may be missing, and its restarts do not recreate it."""
        surge, unavailable = self.strategy(manifest, self.counts(manifest).desired)
        policy = manifest["spec"]["leaderWorkerTemplate"].get("restartPolicy")
        return surge + unavailable <= 1 and policy in {"None", "Default"}

    def strategy(self, manifest: Manifest, desired: int) -> Strategy:
        """See WorkloadKind.strategy."""
        return group_strategy(manifest["spec"], desired)


LEADER_WORKER_SET = LeaderWorkerSetKind()


def _revision(manifest: Manifest) -> str:
    return str((manifest["metadata"].get("labels") or {}).get(_REVISION, ""))


def _leads(maker: Manifest, manifest: Manifest) -> bool:
    meta = manifest["metadata"]
    return (str(maker["metadata"]["name"]), owner_uid(maker)) == (meta["name"], meta["uid"])
