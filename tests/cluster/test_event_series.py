"""An event that comes and goes is one Event that counts up, on a real API server."""

from __future__ import annotations

import json

from breakeven_operator.actions import ActionPlan, EmitEvent
from breakeven_operator.cluster.cluster_objects import ClusterObjects
from breakeven_operator.cluster.fitter import ChildFitter, FitTurns
from breakeven_operator.cluster.kubernetes import KubernetesCluster
from breakeven_operator.cluster.writer import Writer
from breakeven_operator.kinds import CONFIG_MAPS, EVENTS, Ref
from breakeven_operator.loop.assembly import SystemClock

# Product files whose change runs these tests at the next landing.
COVERS = ("operator/breakeven_operator/cluster/kubernetes.py",)


def series_of_events(cluster, namespace):
    found = cluster.kubectl("get", "events.events.k8s.io", f"--namespace={namespace}", "-o", "json")
    return [
        (event["reason"], (event.get("series") or {}).get("count"))
        for event in json.loads(found.stdout)["items"]
    ]


async def test_a_repeated_event_counts_up_and_one_that_has_expired_is_told_anew(cluster, namespace):
    adapter = await KubernetesCluster.connect(str(cluster.kubeconfig))
    try:
        objects = ClusterObjects(adapter, (namespace,))
        writer = Writer(
            adapter,
            FitTurns(ChildFitter(), SystemClock()),
            SystemClock(),
            objects,
            may_act=lambda: True,
            reporter="test",
        )
        subject = await adapter.create(CONFIG_MAPS, {"metadata": {"namespace": namespace, "name": "chat"}})
        ref = Ref(CONFIG_MAPS, namespace, "chat", subject["metadata"]["uid"])
        said = EmitEvent(ref, "MetricsStale", "old", warning=True, throttled=True)
        for counts in ([None], [2]):
            await writer.carry_out(ActionPlan(ref, (said,)))
            assert series_of_events(cluster, namespace) == [("MetricsStale", count) for count in counts]
        (event,) = await adapter.list_all(EVENTS, namespace)
        await adapter.delete(Ref(EVENTS, namespace, event["metadata"]["name"], event["metadata"]["uid"]))
        # A new process counts from the beginning: the next but one finds that its Event is gone.
        again = Writer(
            adapter,
            FitTurns(ChildFitter(), SystemClock()),
            SystemClock(),
            objects,
            may_act=lambda: True,
            reporter="test",
        )
        await again.carry_out(ActionPlan(ref, (said,)))
        (event,) = await adapter.list_all(EVENTS, namespace)
        await adapter.delete(Ref(EVENTS, namespace, event["metadata"]["name"], event["metadata"]["uid"]))
        for found in ([], [None]):
            await again.carry_out(ActionPlan(ref, (said,)))
            assert [count for _, count in series_of_events(cluster, namespace)] == found
    finally:
        await adapter.close()
