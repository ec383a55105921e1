"""A kind says once where its template stands: reading, trimming and writing a target follow from it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from breakeven.serving.opt_in import ANNOTATION
from breakeven_operator.observing.fleet_query import SIBLINGS, siblings_of, with_siblings, workload_of
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.speculativeservice import TargetReference
from breakeven_operator.workloads.known import DEPLOYMENT, KINDS, LEADER_WORKER_SET, kind_of, target_of
from breakeven_operator.workloads.workload_kind import WorkloadKind
from fakes.fleet_world import SERVICE
from fakes.held_series import SeriesStore
from fakes.promql_evaluation import evaluate

KINDS_AND_PATHS = [
    (DEPLOYMENT, ["spec", "template", "metadata", "annotations"]),
    (LEADER_WORKER_SET, ["spec", "leaderWorkerTemplate", "workerTemplate", "metadata", "annotations"]),
]


def nested(path: list[str], value: Any) -> dict[str, Any]:
    return {path[0]: nested(path[1:], value) if len(path) > 1 else value}


@pytest.mark.parametrize(("kind", "path"), KINDS_AND_PATHS)
def test_the_annotation_is_written_where_it_is_read(kind: WorkloadKind, path: list[str]) -> None:
    change = kind.change({}, "null")
    assert change == nested(path, {ANNOTATION: "null"})
    assert kind.value_of(change) == "null"


@pytest.mark.parametrize(("kind", "path"), KINDS_AND_PATHS)
def test_its_writers_are_looked_up_at_the_same_place(kind: WorkloadKind, path: list[str]) -> None:
    field = [f"f:{name}" for name in [*path, ANNOTATION]]
    assert kind.value_fields({}) == (tuple(field),)
    kept = kind.written_fields({})
    assert kept["f:spec"].pop("f:replicas") == {}
    assert kept == nested(field, {})


@pytest.mark.parametrize(
    "manifest", [{}, {"spec": {"template": {}}}, {"spec": {"template": {"metadata": None}}}]
)
def test_an_absent_annotation_has_no_value(manifest: dict[str, Any]) -> None:
    assert DEPLOYMENT.value_of(manifest) is None


def test_giving_the_key_up_names_no_field() -> None:
    assert DEPLOYMENT.change({}, None) == {}


def test_the_word_of_the_crd_leads_to_the_kind() -> None:
    service = SpeculativeService.read(
        {**SERVICE, "metadata": {"name": "chat", "namespace": "llm", "uid": "u"}}, "service"
    )
    assert kind_of(service.spec.target_ref) is DEPLOYMENT
    assert str(target_of(service)) == "Deployment/llm/chat-vllm"


def test_the_crd_names_the_kinds_that_are_rolled_and_every_other_is_looked_at() -> None:
    said = str(TargetReference.model_fields["kind"].description)
    assert all(f"{resource.kind}s" in said for resource in KINDS)
    assert all(kind.rolled for kind in KINDS.values())
    other = kind_of(TargetReference(api_version="apps.kruise.io/v1alpha1", kind="CloneSet", name="chat"))
    assert (other.rolled, other.resource.api_version) == (False, "apps.kruise.io/v1alpha1")


@pytest.mark.parametrize(
    ("pod", "workload"),
    [
        ("chat-7d9f8b6c5d-x2b4c", "Deployment chat"),
        ("chat-0", "StatefulSet chat"),
        ("model-chat-5d9f8-1a", ""),
    ],
)
def test_a_pods_name_says_whose_series_it_has(pod: str, workload: str) -> None:
    assert workload_of(pod) == workload


@pytest.mark.parametrize(
    ("pod", "siblings"),
    [
        ("chat-7d9f8b6c5d-x2b4c", "chat-7d9f8b6c5d-"),
        ("chat-7d9f8b6c5d-24567", "chat-7d9f8b6c5d-"),
        ("chat-0", "chat-"),
        ("chat-1234", "chat-"),
        ("x", ""),
    ],
)
def test_siblings_have_the_beginning_of_their_names_in_common_in_python_and_in_promql(
    pod: str, siblings: str
) -> None:
    assert siblings_of(pod) == siblings
    store = SeriesStore()
    store.add("up", {"pod": pod}, 0.0, 1.0)
    (found,) = evaluate(store, with_siblings("up"), 0.0)
    assert found.labels.get(SIBLINGS, "") == siblings


@pytest.mark.parametrize(
    ("pod", "workload"),
    [
        ("chat-7d9f8b6c5d-x2b4c", "chat"),
        ("chat-large-7d9f8b6c5d-x2b4c", "chat-large"),
        ("a" * 47 + "-7d9f8b6cx2b4c", "a" * 47),
        # A calibration's, and one of a StatefulSet.
        ("chat-7f3c2-eagle-7-x2b4c", "chat-7f3c2-eagle"),
        ("chat-0", None),
    ],
)
def test_a_pod_of_the_past_is_known_by_its_name(pod: str, workload: str | None) -> None:
    found = re.fullmatch(DEPLOYMENT.pod_name, pod)
    assert ("".join(filter(None, found.groups())) if found else None) == workload
