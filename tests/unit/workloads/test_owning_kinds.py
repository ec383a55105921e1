"""Facts of KServe's kinds: where the annotation stands, which object is the child, and when a change has been taken up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from breakeven.serving.opt_in import ANNOTATION
from breakeven_operator.cluster.api_json import UNREADABLE, problem_of, read_object
from breakeven_operator.cluster.observer import joined_targets
from breakeven_operator.kinds import DEPLOYMENTS, INFERENCE_SERVICES, LEADER_WORKER_SETS, LLM_SERVICES, Ref
from breakeven_operator.resources.speculativeservice import TargetReference
from breakeven_operator.workloads.known import (
    INFERENCE_SERVICE,
    LLM_INFERENCE_SERVICE,
    OwningKind,
    kind_of,
    made_of,
    set_there,
)
from breakeven_operator.workloads.workload import NearbyObjects, Workload, observe
from fakes.fleet_world import TARGET
from fakes.played_kserve import as_inference_service, as_llm_inference_service, deployment_of

NOW = datetime(2026, 11, 26, tzinfo=UTC)
KINDS_AND_FORMS: list[tuple[OwningKind, Any]] = [
    (LLM_INFERENCE_SERVICE, as_llm_inference_service),
    (INFERENCE_SERVICE, as_inference_service),
]
UNTIL_THEN = {
    "observedGeneration": 4,
    "replicas": 2,
    "readyReplicas": 2,
    "updatedReplicas": 2,
    "availableReplicas": 2,
}


def parent_of(form: Any, value: str | None = None, name: str = "chat-vllm") -> dict[str, Any]:
    parent: dict[str, Any] = form(TARGET)
    parent["metadata"] |= {"name": name, "namespace": "llm", "uid": "p", "generation": 7}
    annotations = parent["spec"].get("predictor", parent["spec"])["annotations"]
    if value is not None:
        annotations[ANNOTATION] = value
    return parent


def child_of(parent: dict[str, Any], **meta: Any) -> dict[str, Any]:
    child = deployment_of(parent, None)
    assert child is not None
    child["metadata"] |= {"uid": "c", "generation": 4, **meta}
    return {**child, "status": UNTIL_THEN}


def joined(kind: OwningKind, parent: dict[str, Any], *children: dict[str, Any]) -> Any:
    ref = Ref(kind.resource, "llm", parent["metadata"]["name"])
    there = {Ref(DEPLOYMENTS, "llm", child["metadata"]["name"]): child for child in children}
    return joined_targets([ref], {ref: parent, **there})


def observed(kind: OwningKind, parent: dict[str, Any], child: dict[str, Any]) -> Workload:
    (found,) = joined(kind, parent, child)[0].values()
    return observe(kind, found, NearbyObjects(), container_name=None, gpu_label="gpu", now=NOW)


@pytest.mark.parametrize(("kind", "form"), KINDS_AND_FORMS)
def test_the_parent_is_written_and_its_child_is_read(kind: OwningKind, form: Any) -> None:
    parent = parent_of(form, "null")
    found = observed(kind, parent, child_of(parent))
    assert found.ref == Ref(kind.resource, "llm", "chat-vllm", "p")
    assert (found.value, found.given, found.desired, found.available) == ("null", "null", 2, 2)
    assert found.engine is not None
    change = kind.change(found.manifest, "{}")
    assert kind.value_of(change) == "{}"
    assert set(change) == {"spec"}
    assert "template" not in change["spec"]


@pytest.mark.parametrize(("kind", "form"), KINDS_AND_FORMS)
def test_a_change_is_taken_up_once_the_child_has_it_and_its_controller_has_seen_it(
    kind: OwningKind, form: Any
) -> None:
    parent = parent_of(form, "null")
    before, after = child_of(parent_of(form)), child_of(parent)
    assert not observed(kind, parent, before).rolled_out
    assert observed(kind, parent, after).rolled_out
    assert not observed(kind, parent, child_of(parent, generation=5)).rolled_out


@pytest.mark.parametrize(("kind", "form"), KINDS_AND_FORMS)
def test_a_key_that_is_gone_from_the_parent_alone_says_what_the_pods_run(kind: OwningKind, form: Any) -> None:
    found = observed(kind, parent_of(form), child_of(parent_of(form, '{"method":"ngram"}')))
    assert (found.value, found.given) == (None, '{"method":"ngram"}')
    assert not kind.takes_back


@pytest.mark.parametrize(("kind", "form"), KINDS_AND_FORMS)
def test_another_ones_object_of_the_childs_name_is_no_child(kind: OwningKind, form: Any) -> None:
    parent = parent_of(form)
    child = child_of(parent)
    child["metadata"]["ownerReferences"][0]["uid"] = "somebody"
    found = joined(kind, parent, child)
    assert found[0] == {}
    assert "has made no Deployment" in next(iter(found[1].values()))


@pytest.mark.parametrize(("kind", "form"), KINDS_AND_FORMS)
def test_a_child_that_cannot_be_read_is_its_targets_problem(kind: OwningKind, form: Any) -> None:
    parent = parent_of(form)
    found = joined(kind, parent, {**child_of(parent), UNREADABLE: "it is nested too deep"})
    assert list(found[1].values()) == ["it is nested too deep"]


@pytest.mark.parametrize(("kind", "form"), KINDS_AND_FORMS)
def test_a_name_that_its_controller_shortens_is_said(kind: OwningKind, form: Any) -> None:
    found = joined(kind, parent_of(form, name="c" * 54))
    assert "more than 53 characters" in next(iter(found[1].values()))


def test_one_that_is_stopped_says_so() -> None:
    parent = parent_of(as_llm_inference_service)
    parent["metadata"]["annotations"] = {"serving.kserve.io/stop": "true"}
    assert "is stopped by the annotation" in next(iter(joined(LLM_INFERENCE_SERVICE, parent)[1].values()))


@pytest.mark.parametrize("where", ["annotation", "status"])
@pytest.mark.parametrize("mode", ["Knative", "Serverless"])
def test_revisions_are_refused_by_name(mode: str, where: str) -> None:
    parent = parent_of(as_inference_service)
    if where == "annotation":
        parent["metadata"]["annotations"] = {"serving.kserve.io/deploymentMode": mode}
    else:
        parent["status"] = {"deploymentMode": mode}
    said = next(iter(joined(INFERENCE_SERVICE, parent)[1].values()))
    assert f"its deployment mode is {mode}" in said


def test_an_engine_over_two_deployments_is_not_rolled() -> None:
    parent = parent_of(as_inference_service)
    child = child_of(parent)
    assert observed(INFERENCE_SERVICE, parent, child).held is None
    parent["spec"]["predictor"]["workerSpec"] = {"containers": []}
    assert "has spec.predictor.workerSpec" in str(observed(INFERENCE_SERVICE, parent, child).held)
    child["spec"]["paused"] = True
    del parent["spec"]["predictor"]["workerSpec"]
    assert "is served by Deployment chat-vllm-predictor, which has spec.paused set" in str(
        observed(INFERENCE_SERVICE, parent, child).held
    )


def test_a_platform_that_writes_the_flag_itself_is_named_and_not_fought() -> None:
    parent = parent_of(as_llm_inference_service)
    child = child_of(parent)
    assert observed(LLM_INFERENCE_SERVICE, parent, child).held is None
    parent["spec"]["speculator"] = {"config": {"method": "eagle3"}}
    assert "has spec.speculator, from which KServe writes" in str(
        observed(LLM_INFERENCE_SERVICE, parent, child).held
    )


@pytest.mark.parametrize(
    ("version", "kind", "said"),
    [
        ("kaito.sh/v1beta1", "Workspace", "there (its annotation kaito.sh/enable-speculative-decoding)"),
        ("inference.llmkube.dev/v1alpha1", "InferenceService", "there (its spec.speculativeDecoding)"),
        ("kubeai.org/v1", "Model", "there"),
    ],
)
def test_the_field_of_another_platform_is_named(version: str, kind: str, said: str) -> None:
    assert set_there(version, kind) == f"use mode Recommend, and set the arm {said}"


def test_either_child_of_a_service_with_workers_is_looked_for() -> None:
    asked = Ref(LLM_SERVICES, "llm", "chat")
    assert made_of(asked) == (
        Ref(DEPLOYMENTS, "llm", "chat-kserve"),
        Ref(LEADER_WORKER_SETS, "llm", "chat-kserve-mn"),
    )
    assert made_of(Ref(INFERENCE_SERVICES, "llm", "chat")) == (Ref(DEPLOYMENTS, "llm", "chat-predictor"),)
    assert made_of(Ref(DEPLOYMENTS, "llm", "chat")) == ()


def test_groups_keep_their_names_and_pods_of_a_deployment_do_not() -> None:
    parent = parent_of(as_llm_inference_service)
    single = observed(LLM_INFERENCE_SERVICE, parent, child_of(parent))
    groups, _ = LLM_INFERENCE_SERVICE.of({"breakeven.dev/made": {"kind": LEADER_WORKER_SETS.kind}})
    assert not single.pods_kind.keeps_names
    assert groups.keeps_names
    pod = {"metadata": {"labels": {"leaderworkerset.sigs.k8s.io/template-revision-hash": "a"}}}
    assert groups.revision_of(pod) == "a"
    owned = {"metadata": {"ownerReferences": [{"controller": True, "name": "chat-kserve-7d9f8"}]}}
    assert single.pods_kind.revision_of(owned) == "chat-kserve-7d9f8"


def test_the_older_version_of_the_api_names_the_same_kind() -> None:
    for version in ("serving.kserve.io/v1alpha1", "serving.kserve.io/v1alpha2"):
        assert (
            kind_of(TargetReference(api_version=version, kind="LLMInferenceService", name="chat"))
            is LLM_INFERENCE_SERVICE
        )


@pytest.mark.parametrize(
    ("resource", "spec"),
    [
        (LLM_SERVICES, '{"annotations": "a text"}'),
        (LLM_SERVICES, "[]"),
        (INFERENCE_SERVICES, '{"predictor": {"annotations": 3}}'),
    ],
)
def test_one_that_cannot_be_read_is_marked(resource: Any, spec: str) -> None:
    text = f'{{"metadata": {{"name": "chat", "namespace": "llm", "uid": "u"}}, "spec": {spec}}}'
    assert problem_of(read_object(text.encode(), resource)) is not None


def test_one_without_a_spec_has_no_annotation() -> None:
    found = read_object(
        b'{"metadata": {"name": "chat", "namespace": "llm", "uid": "u"}, "spec": {}}', LLM_SERVICES
    )
    assert problem_of(found) is None
    assert LLM_INFERENCE_SERVICE.value_of(found) is None
