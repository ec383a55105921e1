"""One object that cannot be read is that object's problem: named, and nothing beside it is lost."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from breakeven_operator.cluster.api_json import MOST_WORDS, problem_of, read_event, read_object, read_page
from breakeven_operator.kinds import ARGO_ROLLOUTS, DEPLOYMENTS, LEADER_WORKER_SETS, PODS, RUNS, SERVICES
from breakeven_operator.loop.assembly import UnreadableObjects
from breakeven_operator.ports import EventKind, WatchEvent
from fakes.manual_clock import FakeClock

GOOD = '{"metadata": {"name": "good", "namespace": "llm", "uid": "u1", "resourceVersion": "7"}}'


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def text(spec: str = "{}", fields: str = "{}", **meta: object) -> str:
    """An object of somebody, with these texts in its spec and in who wrote what."""
    head = {"name": "odd", "namespace": "tenant", "uid": "u2", "resourceVersion": "8", **meta}
    inner = json.dumps(head)[:-1] + f', "managedFields": [{{"manager": "bob", "fieldsV1": {fields}}}]}}'
    return f'{{"metadata": {inner}, "spec": {spec}, "status": {{"phase": "Pending"}}}}'


@pytest.mark.parametrize("levels", [220, 3000, 9990])
def test_an_object_that_is_nested_too_deep_keeps_its_name_and_its_status_and_says_which_part_it_is(levels):
    found = read_object(text(spec=nested(levels)).encode(), SERVICES)
    assert problem_of(found) == "spec is nested too deep"
    assert found["metadata"]["name"] == "odd"
    assert found["metadata"]["resourceVersion"] == "8"
    assert found["status"] == {"phase": "Pending"}
    assert "spec" not in found


@pytest.mark.parametrize("member", ["command", "args"])
@pytest.mark.parametrize(("words", "problem"), [(MOST_WORDS, None), (MOST_WORDS + 1, "length <= 1000")])
def test_a_target_with_more_words_than_any_command_line_has_is_its_own_problem(member, words, problem):
    """Cut into flags, a megabyte of them takes the loop of all services a minute, and a hundred megabytes."""
    container = {"name": "vllm", member: ["-a"] * words}
    spec = json.dumps({"template": {"spec": {"containers": [container]}}})
    said = problem_of(read_object(text(spec=spec).encode(), DEPLOYMENTS))
    assert (problem or "None") in str(said)
    assert problem is None or f"containers[0].{member}" in str(said)


def test_who_wrote_what_may_be_as_deep_as_it_likes_unless_it_is_read():
    line = text(fields=nested(3000), labels={"a": "b"}).encode()
    run = read_object(line, RUNS)
    assert problem_of(run) is None
    assert run["metadata"]["labels"] == {"a": "b"}
    assert "managedFields" not in run["metadata"]
    assert problem_of(read_object(line, DEPLOYMENTS)) == "metadata.managedFields is nested too deep"


@pytest.mark.parametrize("spec", ['{"a": ' + "9" * 10_000 + "}", '{"a": "\\ud800"}', '"\\ud800"'])
def test_what_the_parser_refuses_for_another_reason_is_the_same_object_s_problem(spec):
    assert "spec cannot be read" in str(problem_of(read_object(text(spec=spec).encode(), SERVICES)))


@pytest.mark.parametrize(
    ("resource", "change"),
    [
        (SERVICES, '"labels": {"a": 5}'),
        (SERVICES, '"annotations": []'),
        (PODS, '"ownerReferences": [null]'),
        (DEPLOYMENTS, '"managedFields": [5]'),
    ],
)
def test_an_object_of_another_shape_than_its_kind_is_marked(resource, change):
    found = read_object(f'{{"metadata": {{"name": "odd", "uid": "u2", {change}}}}}'.encode(), resource)
    assert "does not have the shape of a" in str(problem_of(found))
    assert found["metadata"] == {"name": "odd", "uid": "u2"}


def test_a_page_holds_the_good_objects_and_names_the_other_one():
    for odd in (text(spec=nested(250)), text(spec=nested(5000)), text(labels={"a": 5})):
        items, token, version = read_page(
            f'{{"metadata": {{"resourceVersion": "9", "continue": "t"}}, "items": [{odd}, {GOOD}]}}'.encode(),
            SERVICES,
        )
        assert [item["metadata"]["name"] for item in items] == ["odd", "good"]
        assert [problem_of(item) is None for item in items] == [False, True]
        assert (version, token) == ("9", "t")


def test_a_line_of_a_watch_names_the_object_that_cannot_be_read():
    event = read_event(f'{{"type": "ADDED", "object": {text(spec=nested(5000))}}}'.encode(), SERVICES)
    assert isinstance(event, WatchEvent)
    assert event.kind is EventKind.ADDED
    assert event.manifest["metadata"]["name"] == "odd"
    assert problem_of(event.manifest) == "spec is nested too deep"


@pytest.mark.parametrize(
    "body", ["", "<html>", "[1]", "{}", '{"items": 5}', '{"items": [5]}', '{"items": [{}]}', "{" * 300, '"']
)
def test_what_is_no_list_is_refused_and_never_an_empty_list(body):
    with pytest.raises(ValueError, match=r"\w"):
        read_page(body.encode(), SERVICES)


def test_go_s_null_is_an_empty_list():
    assert read_page(b'{"metadata": {"resourceVersion": "9"}, "items": null}', SERVICES)[0] == []


def test_the_time_grows_with_the_length_alone():
    """Of each a megabyte; one that is read again from each quote, bracket or backslash would take hours."""
    for odd in ('"' + '\\"' * 500_000, '{"a":' + "[" * 1_000_000, "{" + '"a":{},' * 150_000 + nested(300)):
        with pytest.raises(ValueError, match=r"\w"):
            read_object(odd.encode(), SERVICES)
    wide = text(spec='{"a": "' + '\\"' * 200_000 + '", "b": [' + "[]," * 100_000 + nested(300) + "]}")
    assert problem_of(read_object(wide.encode(), SERVICES)) == "spec is nested too deep"


def test_each_version_is_said_once_and_a_flood_is_only_counted(caplog):
    clock = FakeClock()
    counted: list[str] = []
    unreadable = UnreadableObjects(clock, counted.append)

    def come(uid: str, version: str) -> None:
        unreadable.found(
            RUNS,
            {
                "metadata": {"name": f"run-{uid}", "namespace": "t", "uid": uid, "resourceVersion": version},
                "breakeven.dev/unreadable": "spec is nested too deep",
            },
        )

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            come("1", "5")
        assert [record.getMessage() for record in caplog.records] == [
            "CalibrationRun t/run-1 cannot be read and counts as invalid: spec is nested too deep"
        ]
        come("1", "6")
        assert len(caplog.records) == 2
        for uid in range(100):
            come(f"flood-{uid}", "1")
        assert len(caplog.records) == 20
        assert counted == ["CalibrationRun"] * 102
        clock.advance(61.0)
        come("2", "1")
        assert len(caplog.records) == 21


def test_a_bookmark_of_a_kind_from_a_crd_has_metadata_alone_and_still_ends_the_first_list():
    """The API server fills in an empty spec for its own kinds, and nothing for those of CRDs."""
    meta = {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}
    line = json.dumps({"type": "BOOKMARK", "object": {"metadata": meta}}).encode()
    event = read_event(line, LEADER_WORKER_SETS)
    assert (event.kind, problem_of(event.manifest)) == (EventKind.SYNCED, None)


GROUPS: dict[str, Any] = {"leaderWorkerTemplate": {"workerTemplate": {"spec": {"containers": []}}}}
STEPS: dict[str, Any] = {"template": {"spec": {"containers": []}}}


@pytest.mark.parametrize(
    ("resource", "spec", "status"),
    [
        (LEADER_WORKER_SETS, {**GROUPS, "replicas": "two"}, {}),
        (LEADER_WORKER_SETS, {"leaderWorkerTemplate": {**GROUPS["leaderWorkerTemplate"], "size": "x"}}, {}),
        (
            LEADER_WORKER_SETS,
            {**GROUPS, "rolloutStrategy": {"rollingUpdateConfiguration": {"maxSurge": "a%"}}},
            {},
        ),
        (
            LEADER_WORKER_SETS,
            {**GROUPS, "rolloutStrategy": {"rollingUpdateConfiguration": {"partition": "x"}}},
            {},
        ),
        (LEADER_WORKER_SETS, {**GROUPS, "rolloutStrategy": "all"}, {}),
        (LEADER_WORKER_SETS, GROUPS, {"readyReplicas": "all"}),
        (ARGO_ROLLOUTS, {**STEPS, "strategy": {"canary": {"maxSurge": "many" * 1000}}}, {}),
        (ARGO_ROLLOUTS, {**STEPS, "strategy": {"canary": {"maxUnavailable": "1" * 5000}}}, {}),
        # Neither a template nor a word where it stands.
        (ARGO_ROLLOUTS, {}, {}),
        (ARGO_ROLLOUTS, {"workloadRef": "a text"}, {}),
        (ARGO_ROLLOUTS, STEPS, {"observedGeneration": "5b7d9c6f4"}),
        (ARGO_ROLLOUTS, STEPS, {"canary": {"currentStepAnalysisRunStatus": "Running"}}),
    ],
)
def test_a_target_that_its_crd_admits_and_its_controller_would_not_is_its_own_problem(resource, spec, status):
    """Anybody in a namespace may make one; read in the middle of a cycle it would hold up every service."""

    def problem(spec, status):
        body = {
            "metadata": {"name": "odd", "namespace": "tenant", "uid": "u2"},
            "spec": spec,
            "status": status,
        }
        return problem_of(read_object(json.dumps(body).encode(), resource))

    good = GROUPS if resource == LEADER_WORKER_SETS else STEPS
    assert problem(good, {}) is None
    said = problem(spec, status)
    assert said is not None
    assert len(said) < 400
