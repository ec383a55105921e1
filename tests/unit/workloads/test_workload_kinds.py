"""A kind says once where its template stands: reading, trimming and writing a target follow from it."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest

from breakeven.serving.opt_in import ANNOTATION
from breakeven_operator.ports import Manifest
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.workloads.deployment import DEPLOYMENT, DeploymentKind
from breakeven_operator.workloads.known import KINDS, kind_of, target_of
from breakeven_operator.workloads.workload import NearbyObjects, observe
from fakes.fleet_world import SERVICE, TARGET

NOW = datetime(2026, 11, 25, tzinfo=UTC)


class Deeper(DeploymentKind):
    """A kind whose template stands where LeaderWorkerSets have theirs."""

    template_at = ("spec", "leaderWorkerTemplate", "workerTemplate")


class Stateful(DeploymentKind):
    """A kind that makes its pods itself, and tells their revision by a label."""

    makers: ClassVar[Any] = ()
    pod_labels = ("controller-revision-hash",)

    def revisions(self, manifest: Manifest, makers: Iterable[Manifest]) -> Sequence[str]:
        return [manifest["status"]["updateRevision"], manifest["status"]["currentRevision"]]

    def revision_of(self, pod: Manifest) -> str:
        return str(pod["metadata"]["labels"]["controller-revision-hash"])


KINDS_AND_PATHS = [
    (DEPLOYMENT, ["spec", "template", "metadata", "annotations"]),
    (Deeper(), ["spec", "leaderWorkerTemplate", "workerTemplate", "metadata", "annotations"]),
]


def nested(path: list[str], value: Any) -> dict[str, Any]:
    return {path[0]: nested(path[1:], value) if len(path) > 1 else value}


@pytest.mark.parametrize(("kind", "path"), KINDS_AND_PATHS)
def test_the_annotation_is_written_where_it_is_read(kind: DeploymentKind, path: list[str]) -> None:
    change = kind.change("null")
    assert change == nested(path, {ANNOTATION: "null"})
    assert kind.value_of(change) == "null"
    assert kind.template(change) == {"metadata": {"annotations": {ANNOTATION: "null"}}}


@pytest.mark.parametrize(("kind", "path"), KINDS_AND_PATHS)
def test_its_writers_are_looked_up_at_the_same_place(kind: DeploymentKind, path: list[str]) -> None:
    assert kind.value_field == tuple(f"f:{name}" for name in [*path, ANNOTATION])
    kept = kind.written_fields
    assert kept["f:spec"].pop("f:replicas") == {}
    assert kept == nested(list(kind.value_field), {})


@pytest.mark.parametrize(
    "manifest", [{}, {"spec": {"template": {}}}, {"spec": {"template": {"metadata": None}}}]
)
def test_an_absent_annotation_has_no_value(manifest: dict[str, Any]) -> None:
    assert DEPLOYMENT.value_of(manifest) is None


def test_giving_the_key_up_names_no_field() -> None:
    assert DEPLOYMENT.change(None) == {}


def test_the_word_of_the_crd_leads_to_the_kind() -> None:
    service = SpeculativeService.read(
        {**SERVICE, "metadata": {"name": "chat", "namespace": "llm", "uid": "u"}}, "service"
    )
    assert kind_of(service.spec.target_ref) is DEPLOYMENT
    assert str(target_of(service)) == "Deployment/llm/chat-vllm"
    assert list(KINDS) == [DEPLOYMENT.resource]


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


def test_pods_of_a_kind_that_makes_them_itself_are_told_apart_by_their_label() -> None:
    target = copy.deepcopy(TARGET)
    target["metadata"]["uid"] = "s"
    target["status"] = {"updateRevision": "chat-new", "currentRevision": "chat-old"}
    pods = [
        {"metadata": {"name": name, "uid": name, "labels": {"controller-revision-hash": revision}}}
        for name, revision in (("chat-0", "chat-old"), ("chat-1", "chat-new"), ("web-0", "web-1"))
    ]
    found = observe(
        Stateful(), target, NearbyObjects(pods=pods), container_name=None, gpu_label="gpu", now=NOW
    )
    assert [(pod.name, pod.current) for pod in found.pods] == [("chat-0", False), ("chat-1", True)]
