"""A LeaderWorkerSet's own facts: leaders by their owners, revisions, groups, what holds a roll, and both templates."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from breakeven.serving.opt_in import ANNOTATION
from breakeven_operator.calibration.podcopy import NotCopyableError, check_alone
from breakeven_operator.cluster.api_json import problem_of, read_object, trimmed
from breakeven_operator.kinds import LEADER_WORKER_SETS
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.workloads.known import LEADER_WORKER_SET
from breakeven_operator.workloads.target import refuse_rolls, refuse_target
from breakeven_operator.workloads.workload import NearbyObjects, Workload, observe
from fakes.fleet_world import SERVICE, TARGET

NOW = datetime(2026, 11, 26, tzinfo=UTC)
HASH = "leaderworkerset.sigs.k8s.io/template-revision-hash"
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Gi"}}}


def grouped(size: int = 1, groups: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    target = copy.deepcopy(TARGET)
    template = target["spec"]["template"]
    return {
        "metadata": {**target["metadata"], "namespace": "llm", "uid": "l", "generation": 4},
        "spec": {
            "replicas": 2,
            "leaderWorkerTemplate": {"size": size, "workerTemplate": template, **(groups or {})},
            **spec,
        },
        "status": {"observedGeneration": 4, "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2},
    }


def owned(name: str, uid: str, revision: str, kind: str, owner: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "uid": uid,
            "namespace": "llm",
            "labels": {HASH: revision},
            "ownerReferences": [{"kind": kind, "name": "chat-vllm", "uid": owner, "controller": True}],
        }
    }


def leader_set(
    uid: str = "s", revision: str = "b", name: str = "chat-vllm", owner: str = "l"
) -> dict[str, Any]:
    return owned(name, uid, revision, "LeaderWorkerSet", owner)


def pod(name: str, revision: str, owner: str = "s", *, ready: bool = True) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(ready), "lastTransitionTime": NOW.isoformat()}]
    return owned(name, f"{name}/{revision}", revision, "StatefulSet", owner) | {
        "status": {"conditions": conditions}
    }


def observed(target: dict[str, Any], *pods: dict[str, Any], makers: Any = None) -> Workload:
    around = NearbyObjects(makers=makers if makers is not None else [leader_set()], pods=pods)
    return observe(LEADER_WORKER_SET, target, around, container_name=None, gpu_label="gpu", now=NOW)


def test_its_pods_are_the_leaders_by_who_owns_them_and_a_label_alone_makes_nobody_a_leader() -> None:
    found = observed(
        grouped(2),
        pod("chat-vllm-0", "a"),
        pod("chat-vllm-1", "b"),
        # A worker, whose set the leader owns; a pod of a set that names the target as another one's; and one of a set
        # that names the target as its owner and has another name.
        pod("chat-vllm-1-1", "b", owner="w"),
        pod("chat-vllm-2", "b", owner="forged"),
        pod("chat-vllm-3", "b", owner="beside"),
        makers=[
            leader_set(),
            leader_set("w", owner="chat-vllm-1/b"),
            leader_set("forged", owner="another"),
            leader_set("beside", "c", "chat-vllm-beside"),
        ],
    )
    assert [(one.name, one.current) for one in found.pods] == [("chat-vllm-0", False), ("chat-vllm-1", True)]
    assert found.newest_revision == "b"


def test_before_its_set_exists_it_has_no_pods() -> None:
    assert observed(grouped(), pod("chat-vllm-0", "a"), makers=[]).pods == ()


@pytest.mark.parametrize(
    ("changes", "rolled_out"),
    [
        ({}, True),
        ({"updatedReplicas": 1}, False),
        ({"readyReplicas": 1}, False),
        # A group that surged is still there.
        ({"replicas": 3}, False),
        ({"observedGeneration": 3}, False),
    ],
)
def test_an_update_has_ended_if_all_groups_are_ready_of_the_newest_revision(
    changes: dict[str, Any], rolled_out: bool
) -> None:
    target = grouped()
    target["status"] |= changes
    assert observed(target).rolled_out is rolled_out


@pytest.mark.parametrize(
    ("rolling", "replicas", "expected"),
    [
        (None, 4, (0, 1)),
        ({}, 4, (0, 1)),
        ({"maxSurge": "30%", "maxUnavailable": "30%"}, 4, (2, 1)),
        ({"maxSurge": 1, "maxUnavailable": 0}, 4, (1, 0)),
        # No more surge than groups, and never neither.
        ({"maxSurge": 5, "maxUnavailable": 0}, 2, (2, 0)),
        ({"maxUnavailable": "10%"}, 4, (0, 1)),
    ],
)
def test_surge_and_unavailable_are_groups(rolling: Any, replicas: int, expected: tuple[int, int]) -> None:
    strategy = {} if rolling is None else {"rollingUpdateConfiguration": rolling}
    found = observed(grouped(replicas=replicas, rolloutStrategy=strategy))
    assert (found.max_surge, found.max_unavailable) == expected


def test_a_partition_holds_a_roll() -> None:
    assert observed(grouped()).held is None
    held = observed(grouped(rolloutStrategy={"rollingUpdateConfiguration": {"partition": 1}})).held
    assert "partition 1" in str(held)


def test_the_annotation_stands_in_every_template_and_counts_if_all_have_the_same() -> None:
    template = grouped()["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    target = grouped(2, {"leaderTemplate": copy.deepcopy(template)})
    change = LEADER_WORKER_SET.change(target, "null")
    parts = change["spec"]["leaderWorkerTemplate"]
    written = {"metadata": {"annotations": {ANNOTATION: "null"}}}
    assert parts == {"leaderTemplate": written, "workerTemplate": written}
    assert LEADER_WORKER_SET.value_of(change) == "null"
    alone = {"leaderTemplate": {"metadata": {"annotations": {ANNOTATION: "{}"}}}}
    assert LEADER_WORKER_SET.value_of({"spec": {"leaderWorkerTemplate": {**parts, **alone}}}) is None
    # A template that is not there is not written: an annotation alone would make an invalid one.
    assert set(LEADER_WORKER_SET.change(grouped(), "null")["spec"]["leaderWorkerTemplate"]) == {
        "workerTemplate"
    }


def test_whoever_writes_it_into_one_template_is_seen_after_trimming() -> None:
    template = grouped()["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    target = grouped(2, {"leaderTemplate": template})

    def entry(manager: str, part: str) -> dict[str, Any]:
        fields = {"f:metadata": {"f:annotations": {f"f:{ANNOTATION}": {}}}, "f:spec": {"f:x": {}}}
        return {"manager": manager, "fieldsV1": {"f:spec": {"f:leaderWorkerTemplate": {f"f:{part}": fields}}}}

    target["metadata"]["managedFields"] = [
        entry("breakeven", "workerTemplate"),
        entry("kubectl-edit", "leaderTemplate"),
        {"manager": "lws", "fieldsV1": {"f:status": {}}},
    ]
    kept = trimmed(LEADER_WORKER_SETS, target)
    assert kept is not None
    assert "f:x" not in str(kept["metadata"]["managedFields"])
    assert observed(dict(kept)).value_managers == ("breakeven", "kubectl-edit")


def test_the_leader_s_template_is_the_engine_s_with_the_variables_of_a_group() -> None:
    template = copy.deepcopy(grouped()["spec"]["leaderWorkerTemplate"]["workerTemplate"])
    leader = copy.deepcopy(template)
    leader["spec"]["containers"][0]["args"] += ["--pipeline-parallel-size=$(LWS_GROUP_SIZE)"]
    worker = {
        "spec": {
            "containers": [{"name": "w", "image": "ray", "resources": {"limits": {"nvidia.com/gpu": 4}}}]
        }
    }
    target = grouped(3, {"leaderTemplate": leader, "workerTemplate": worker, "volumeClaimTemplates": [
        {"metadata": {"name": "cache"}, "spec": CLAIM}]})  # fmt: skip
    found = observed(target, pod("chat-vllm-0", "b"))
    assert found.engine is not None
    env = {entry["name"]: entry.get("value") for entry in found.engine.container["env"]}
    assert (env["LWS_GROUP_SIZE"], env["LWS_WORKER_INDEX"]) == ("3", "0")
    assert {"name": "cache", "ephemeral": {"volumeClaimTemplate": {"spec": CLAIM}}} in found.engine.pod_spec[
        "volumes"
    ]
    # The object itself stays as it is.
    assert "LWS_GROUP_SIZE" not in str(leader["spec"]["containers"][0].get("env"))


def test_gpus_are_those_of_the_whole_group_and_the_workers_are_part_of_what_was_measured() -> None:
    def identity(size: int, gpus: int = 4) -> Any:
        leader = copy.deepcopy(grouped()["spec"]["leaderWorkerTemplate"]["workerTemplate"])
        container = {"name": "w", "image": "ray", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
        parts = {"leaderTemplate": leader, "workerTemplate": {"spec": {"containers": [container]}}}
        found = observed(grouped(size, parts), pod("chat-vllm-0", "b")).identity
        assert found is not None
        return found

    alone = identity(1)
    assert [identity(size).gpus - alone.gpus for size in (1, 2, 3)] == [0, 4, 8]
    assert len({identity(1).fingerprint, identity(2).fingerprint, identity(3).fingerprint}) == 3
    assert identity(1, 2).fingerprint == alone.fingerprint, "a group of one has no workers"
    assert identity(2, 2).fingerprint != identity(2).fingerprint


def test_a_group_of_several_pods_is_not_copied() -> None:
    check_alone(observed(grouped(1)))
    with pytest.raises(NotCopyableError, match="is a group of 3 pods") as refused:
        check_alone(observed(grouped(3)))
    assert refused.value.reason == "PodNotCopied"


def test_what_its_set_is_refused_is_a_trouble_of_its_groups() -> None:
    target = grouped()
    target["status"] |= {"replicas": 1, "updatedReplicas": 1}
    around = NearbyObjects(makers=[leader_set()], warnings={"s": "exceeded quota: few"})
    found = observe(LEADER_WORKER_SET, target, around, container_name=None, gpu_label="gpu", now=NOW)
    assert found.trouble is not None
    assert found.trouble.reason == "QuotaExceeded"


@pytest.mark.parametrize(
    ("rolling", "policy", "waits"),
    [
        ({}, "None", True),
        ({}, "Default", True),
        # A pod that restarts has its group made again, of the template that is asked for.
        ({}, "RecreateGroupOnPodRestart", False),
        ({"maxUnavailable": 2}, "None", False),
        ({"maxSurge": 1}, "None", False),
    ],
)
def test_only_where_one_group_may_be_missing_a_broken_one_can_block_an_undo(
    rolling: dict[str, Any], policy: str, waits: bool
) -> None:
    strategy = {"rollingUpdateConfiguration": rolling}
    target = grouped(1, {"restartPolicy": policy}, replicas=3, rolloutStrategy=strategy)
    assert LEADER_WORKER_SET.waits_for_ready(target) is waits


@pytest.mark.parametrize(
    ("text", "readable"),
    [
        ('{"workerTemplate": {"spec": {"containers": []}}}', True),
        ('{"workerTemplate": {"spec": {"containers": []}}, "leaderTemplate": null}', True),
        (
            '{"workerTemplate": {"spec": {"containers": []}}, "leaderTemplate": {"spec": {"containers": []}}}',
            True,
        ),
        ('{"workerTemplate": {"spec": {"containers": []}}, "leaderTemplate": {"spec": [1]}}', False),
        ('{"leaderTemplate": {"spec": {"containers": []}}}', False),
        ("[]", False),
    ],
)
def test_a_template_of_another_shape_makes_the_object_unreadable(text: str, readable: bool) -> None:
    body = f'{{"metadata": {{"name": "chat", "uid": "l"}}, "spec": {{"leaderWorkerTemplate": {text}}}}}'
    found = read_object(body.encode(), LEADER_WORKER_SETS)
    assert (problem_of(found) is None) is readable


@pytest.mark.parametrize(
    ("container", "engines"),
    [
        ({"name": "w", "image": "vllm/vllm-openai", "args": ["org/model", "--headless"]}, 2),
        ({"name": "w", "image": "vllm/vllm-openai", "command": ["sh", "-c", "ray start --block"]}, 1),
        ({"name": "w", "image": "vllm/vllm-openai", "command": ["ray", "start", "--block"]}, 1),
        (
            {
                "name": "w",
                "image": "vllm/vllm-openai",
                "command": ["bash", "-c", "/vllm/multi-node.sh worker"],
            },
            1,
        ),
    ],
)
def test_workers_that_start_vllm_themselves_take_the_arm_too(container: dict[str, Any], engines: int) -> None:
    leader = grouped()["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    parts = {"leaderTemplate": leader, "workerTemplate": {"spec": {"containers": [container]}}}
    found = observed(grouped(2, parts))
    assert len(found.engines) == engines
    spec = SpeculativeService.read(
        {**SERVICE, "metadata": {"name": "chat", "namespace": "llm", "uid": "u"}}, "service"
    ).spec
    refused = refuse_rolls(spec, found)
    assert (refused.reason if refused else None) == ("NotOptedIn" if engines == 2 else None)
    assert len(observed(grouped(1, parts)).engines) == 1


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--data-parallel-hybrid-lb"], "--data-parallel-hybrid-lb"),
        (["-dph", "--data-parallel-size=16"], "--data-parallel-hybrid-lb"),
        (["--data_parallel_external_lb"], "--data-parallel-external-lb"),
        (["--data-parallel-rank", "$(LWS_WORKER_INDEX)"], "--data-parallel-rank"),
        (["--data-parallel-start-rank=8"], "--data-parallel-start-rank"),
        (["--data-parallel-multi-port-external-lb"], "--data-parallel-multi-port-external-lb"),
        (["--headless", "--data-parallel-start-rank=8"], None),
        (["--no-data-parallel-hybrid-lb"], None),
        (["--data-parallel-size=16", "--data-parallel-size-local=8", "--headless"], None),
        (["--tensor-parallel-size=16", "--nnodes=2", "--node-rank=1", "--headless"], None),
    ],
)
def test_workers_that_serve_beside_their_leader_are_refused_by_the_flag(
    flags: list[str], named: str | None
) -> None:
    leader = grouped()["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    worker = {"name": "w", "image": "vllm/vllm-openai", "args": ["org/model", *flags]}
    parts = {"leaderTemplate": leader, "workerTemplate": {"spec": {"containers": [worker]}}}
    body = {**SERVICE, "metadata": {"name": "chat", "namespace": "llm", "uid": "u"}}
    spec = SpeculativeService.read(body, "service").spec
    refused = refuse_target(spec, observed(grouped(2, parts)), None)
    if named is None:
        assert refused is None or refused.reason != "EngineUnclear"
    else:
        assert refused is not None
        assert refused.reason == "EngineUnclear"
        assert f"starts its workers with {named}, so they serve beside their leader" in refused.message
    alone = refuse_target(spec, observed(grouped(1, parts)), None)
    assert alone is None or alone.reason != "EngineUnclear"
