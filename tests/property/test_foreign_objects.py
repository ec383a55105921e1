"""Objects of other tenants change nothing for a good service, whatever they look like.

The texts are put where the API server would hold them, and go through the adapter's reading, the informers, the trimming and
two whole cycles.
"""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from breakeven_operator.kinds import (
    CRONJOBS,
    DEPLOYMENTS,
    JOBS,
    NODES,
    PODS,
    PROFILES,
    REPLICASETS,
    RUNS,
    SERVICES,
)
from draws import draws
from fakes.fleet_world import SERVICE, TARGET, FleetWorld

KINDS = {
    kind.plural: kind
    for kind in (SERVICES, RUNS, PROFILES, DEPLOYMENTS, REPLICASETS, PODS, JOBS, CRONJOBS, NODES)
}
# Where in an object; None puts it beside spec and status.
PLACES = (
    "metadata.labels", "metadata.annotations", "metadata.ownerReferences", "metadata.managedFields", "metadata.generation",
    "metadata.deletionTimestamp", "metadata.creationTimestamp", "spec", "spec.candidates", "spec.serviceRef", "spec.template",
    "spec.replicas", "spec.importFrom", "spec.metricsSource", "status", "status.conditions", "status.containerStatuses",
    "status.phase", "status.points", "status.replicas", "breakeven",
)  # fmt: skip
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["\u202e\x1b[31m", "\U0001f600" * 20, "none", "Succeeded", "2026-01-01T00:00:00Z"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
).map(json.dumps)
EXTREMES = st.sampled_from(
    [
        '{"a":' * 220 + "1" + "}" * 220,
        "[" * 3000 + "]" * 3000,
        "[" + "null," * 5000 + "null]",
        "{" + ",".join(f'"k{i}":{{}}' for i in range(3000)) + "}",
        "9" * 5000,
        "1e999",
        '"\\ud800"',
        '{"fieldsV1":null}',
        "[null]",
        '[{"uid":5}]',
    ]
)
OBJECTS = st.tuples(
    st.sampled_from(sorted(KINDS)),
    st.sampled_from(["llm", "tenant"]),
    st.dictionaries(st.sampled_from(PLACES), st.one_of(VALUES, EXTREMES), min_size=1, max_size=3),
)


def text_of(number: int, plural: str, namespace: str, parts: dict[str, str]) -> str:
    """An object as the API server would send it, with texts of JSON at these places."""
    meta = {"name": f"odd-{number}", "uid": f"odd-{number}", "resourceVersion": str(9000 + number)}
    if KINDS[plural].namespaced:
        meta["namespace"] = namespace
    sections: dict[str, dict[str, str]] = {
        "metadata": {name: json.dumps(value) for name, value in meta.items()}
    }
    for place, value in parts.items():
        section, _, member = place.partition(".")
        if member:
            sections.setdefault(section, {})[member] = value
    whole = {name: "{" + ",".join(f'"{m}":{v}' for m, v in ms.items()) + "}" for name, ms in sections.items()}
    whole |= {place: value for place, value in parts.items() if "." not in place}
    return "{" + ",".join(f'"{name}":{value}' for name, value in whole.items()) + "}"


async def seen(stored: dict[str, list[str]]) -> dict[str, Any]:
    """The status of the good service after two cycles beside such objects, and the operator's errors."""
    world = FleetWorld()
    # Services of another tenant, so that what lies in his namespace is looked at.
    other = {**SERVICE, "metadata": {"name": "other", "namespace": "tenant"}}
    world.cluster.put(DEPLOYMENTS, {**TARGET, "metadata": {"name": "chat-vllm", "namespace": "tenant"}})
    world.cluster.put(SERVICES, other)
    # And one whose target is the first odd object, if that is a Deployment.
    spec = {**SERVICE["spec"], "targetRef": {**SERVICE["spec"]["targetRef"], "name": "odd-0"}}
    world.cluster.put(SERVICES, {**other, "metadata": {"name": "odd", "namespace": "tenant"}, "spec": spec})
    world.kubelet.settle()
    world.cluster.stored, world.watched = stored, True
    world.restart()
    world.calibrate()
    world.load(3.0)
    for _ in range(2):
        report = await world.cycle()
        assert report.left == 0
    await world.observer.close()
    return {**world.status, "rolls": [one for one in world.rolls if one[2] == "chat-vllm"]}


@functools.cache
def alone() -> dict[str, Any]:
    return asyncio.run(seen({}))


@example([("speculativeservices", "tenant", {"spec": '{"a":' * 220 + "1" + "}" * 220})])
@example([("deployments", "tenant", {"metadata.managedFields": "[" * 3000 + "]" * 3000})])
@example([("calibrationruns", "llm", {"metadata.managedFields": "[" * 3000 + "]" * 3000, "spec": "[null]"})])
@example([("pods", "llm", {"metadata.ownerReferences": "[null]", "status.conditions": "[null]"})])
@draws(25)
@given(st.lists(OBJECTS, min_size=1, max_size=4))
def test_foreign_objects_of_any_shape_change_nothing_for_a_good_service(objects):
    stored: dict[str, list[str]] = {}
    for number, (plural, namespace, parts) in enumerate(objects):
        stored.setdefault(plural, []).append(text_of(number, plural, namespace, parts))
    assert asyncio.run(seen(stored)) == alone()
