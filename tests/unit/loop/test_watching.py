"""Which services are made for annotated workloads, and which made ones are taken back: a function of what was observed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven_operator.actions import Apply, Create, Delete
from breakeven_operator.cluster.snapshot import InvalidService, Snapshot
from breakeven_operator.kinds import DEPLOYMENTS, SERVICES, STATEFULSETS, WATCHED_LABEL, Ref, Resource
from breakeven_operator.loop.watching import Watched, watched
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.settings import read_settings

CANDIDATES = {"methods": [{"name": "ngram", "method": "ngram"}]}
SETTINGS = read_settings(
    {
        "BREAKEVEN_DEFAULT_CANDIDATES": json.dumps(CANDIDATES),
        "BREAKEVEN_MOST_WATCHED": "4",
        "BREAKEVEN_MOST_WATCHED_PER_NAMESPACE": "2",
    }
)


def workload(name: str, *, at: int = 0, uid: str = "", **meta: Any) -> dict[str, Any]:
    """An annotated workload that was made at some minute."""
    return {
        "metadata": {
            "name": name,
            "uid": uid or f"uid-{name}",
            "creationTimestamp": f"2026-01-01T00:{at:02}:00Z",
            "annotations": {"breakeven.dev/watch": "true"},
            **meta,
        }
    }


def world(*found: tuple[str, dict[str, Any]], kind: Resource = DEPLOYMENTS) -> Snapshot:
    """Annotated workloads by namespace, and no service."""
    annotated = {Ref(kind, namespace, one["metadata"]["name"]): one for namespace, one in found}
    return replace(Snapshot(), annotated=annotated)


def serving(seen: Snapshot, *manifests: dict[str, Any]) -> Snapshot:
    """The same world with services, whose targets are its workloads."""
    services = [SpeculativeService.read(one, "service") for one in manifests]
    return replace(
        seen,
        services=tuple(services),
        manifests={one["metadata"]["uid"]: one for one in manifests},
        targets=dict(seen.annotated),
    )


def created(answer: Watched) -> list[dict[str, Any]]:
    return [
        dict(action.body) for plan in answer.plans for action in plan.actions if isinstance(action, Create)
    ]


def deleted(answer: Watched) -> list[str]:
    return [action.ref.name for plan in answer.plans for action in plan.actions if isinstance(action, Delete)]


def stored(seen: Snapshot, number: int = 0) -> dict[str, Any]:
    """A service as the API server stores it after it was made."""
    body = created(watched(seen, SETTINGS))[number]
    meta = {**body["metadata"], "uid": f"made-{number}", "generation": 1, "resourceVersion": "7"}
    return {**body, "metadata": meta}


def test_nothing_is_made_where_nothing_asks():
    assert watched(Snapshot(), SETTINGS) == Watched([], [])


def test_the_service_is_one_that_the_rules_admit_and_that_only_looks():
    (made,) = created(watched(world(("llm", workload("chat"))), SETTINGS))
    service = SpeculativeService.read(made, "made")
    assert (service.metadata.namespace, service.metadata.name) == ("llm", "chat-watched")
    assert service.spec.paused
    assert service.spec.update_policy.mode == "Recommend"
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-chat"
    assert made["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] is False


@given(
    st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?", fullmatch=True),
    st.sampled_from([DEPLOYMENTS, STATEFULSETS]),
)
def test_any_name_of_a_workload_gives_a_name_of_a_service(name, kind):
    (made,) = created(watched(world(("llm", workload(name)), kind=kind), SETTINGS))
    assert SpeculativeService.read(made, "made").spec.target_ref.kind == kind.kind


def test_workloads_whose_names_begin_alike_get_names_of_their_own():
    long = "a" * 60
    answer = watched(world(("llm", workload(f"{long}-1")), ("llm", workload(f"{long}-2"))), SETTINGS)
    assert len({one["metadata"]["name"] for one in created(answer)}) == 2


def test_a_name_that_a_person_has_taken_is_left_to_him():
    seen = world(("llm", workload("chat")))
    theirs = stored(seen)
    theirs["metadata"] |= {"labels": {}, "uid": "theirs"}
    theirs["spec"] = {**theirs["spec"], "targetRef": {"name": "other"}}
    (made,) = created(watched(serving(seen, theirs), SETTINGS))
    assert made["metadata"]["name"] != "chat-watched"
    assert made["metadata"]["name"].startswith("chat-")


def test_the_oldest_are_served_first_in_a_namespace_and_in_all():
    seen = world(
        *(("a", workload(f"a{at}", at=at)) for at in (3, 1, 2)),
        *((namespace, workload(f"{namespace}0", at=at)) for namespace, at in (("b", 5), ("c", 4), ("d", 6))),
    )
    answer = watched(seen, SETTINGS)
    assert [one["metadata"]["name"] for one in created(answer)] == [
        "a1-watched", "a2-watched", "c0-watched", "b0-watched",
    ]  # fmt: skip
    assert [ref.name for ref in answer.left] == ["a3", "d0"]
    assert "2, the oldest Deployment/a/a3" in answer.sentence(SETTINGS)


def test_one_that_is_served_takes_a_place_and_keeps_it():
    seen = world(("a", workload("old", at=1)), ("a", workload("older", at=0)))
    made = stored(seen, 1)
    assert made["spec"]["targetRef"]["name"] == "old"
    answer = watched(serving(seen, made), SETTINGS.model_copy(update={"most_watched_per_namespace": 1}))
    assert (created(answer), deleted(answer)) == ([], [])
    assert [ref.name for ref in answer.left] == ["older"]


def test_labels_that_a_tenant_forges_take_no_more_places_than_his_namespace_has():
    seen = world(*(("a", workload(f"w{number}")) for number in range(6)), ("b", workload("theirs", at=9)))
    forged = [
        {
            **stored(world(("a", workload(f"w{number}")))),
            "metadata": {
                "namespace": "a",
                "name": f"forged-{number}",
                "uid": f"forged-{number}",
                "labels": {WATCHED_LABEL: "true"},
            },
        }
        for number in range(6)
    ]
    answer = watched(serving(seen, *forged), SETTINGS)
    assert [one["metadata"]["name"] for one in created(answer)] == ["theirs-watched"]


def test_a_workload_whose_service_breaks_a_rule_gets_none():
    seen = world(("llm", workload("chat")))
    broken = {
        "metadata": {"namespace": "llm", "name": "x", "uid": "x"},
        "spec": {"targetRef": {"name": "chat"}},
    }
    seen = replace(seen, invalid=(InvalidService(broken, "wrong"),), manifests={"x": broken})
    assert watched(seen, SETTINGS) == Watched([], [])


def test_a_workload_that_is_going_gets_none():
    going = workload("chat", deletionTimestamp="2026-01-01T00:00:00Z")
    assert watched(world(("llm", going)), SETTINGS) == Watched([], [])


def unannotated(seen: Snapshot) -> Snapshot:
    """The same world after the annotation was taken off."""
    targets = {ref: {"metadata": {**one["metadata"], "annotations": {}}} for ref, one in seen.targets.items()}
    return replace(seen, annotated={}, targets=targets)


CHANGED_BY_PEOPLE = {
    "as it was made": ({}, ["chat-watched"]),
    "another spec": ({"generation": 2}, []),
    "annotated": ({"annotations": {"breakeven.dev/recalibrate": "now"}}, []),
    "without the label": ({"labels": {}}, []),
    "of another workload": ({"ownerReferences": [{"uid": "another"}]}, []),
    "without an owner": ({"ownerReferences": []}, []),
    "going already": ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, []),
}


@pytest.mark.parametrize(("meta", "gone"), CHANGED_BY_PEOPLE.values(), ids=CHANGED_BY_PEOPLE)
def test_a_made_service_goes_with_the_annotation_only_as_it_was_made(meta, gone):
    seen = world(("llm", workload("chat")))
    made = stored(seen)
    made["metadata"] |= meta
    kept = serving(seen, made)
    assert deleted(watched(kept, SETTINGS)) == []
    answer = watched(unannotated(kept), SETTINGS)
    assert deleted(answer) == gone
    for plan in answer.plans:
        (action,) = plan.actions
        assert action == Delete(Ref(SERVICES, "llm", "chat-watched", "made-0"), "7")


def test_a_target_that_is_not_seen_takes_nothing_back():
    seen = world(("llm", workload("chat")))
    kept = serving(seen, stored(seen))
    assert deleted(watched(replace(kept, annotated={}, targets={}), SETTINGS)) == []


def test_a_persons_own_service_for_the_target_takes_its_place():
    seen = world(("llm", workload("chat")))
    made = stored(seen)
    theirs = {**made, "metadata": {"namespace": "llm", "name": "chat", "uid": "theirs"}}
    answer = watched(serving(seen, made, theirs), SETTINGS)
    assert (created(answer), deleted(answer)) == ([], ["chat-watched"])


def test_a_service_may_be_made_and_deleted_and_never_applied():
    Create(SERVICES, {})
    Delete(Ref(SERVICES, "llm", "chat"))
    with pytest.raises(ValueError, match="does not own"):
        Apply(SERVICES, {})
