"""A reading of a cluster in which there is nothing."""

from __future__ import annotations

from breakeven_operator.adapters.snapshot import Snapshot

NOTHING = Snapshot(
    services=(),
    manifests={},
    invalid=(),
    targets={},
    makers={},
    pods={},
    pods_of={},
    pod_names={},
    claims={},
    jobs={},
    cron_jobs={},
    runs=(),
    node_labels={},
    profiles={},
    readings={},
)
