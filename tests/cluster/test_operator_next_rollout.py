"""Mode NextRollout on a real API server: the owner's own rollouts take the arm, however he makes them, and nothing else does."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from operatorcluster import manifests
from operatorcluster.optional import needs_controller
from operatorcluster.stage import Place
from operatorcluster.waiting import until

COVERS = ("charts/breakeven/templates/admissionpolicy.yaml", "operator/breakeven_operator/judging/gates.py")
NEXT = "breakeven.dev/next-rollout"
NAMED = f"deployment/{manifests.TARGET}"
EAGLE = '{"method":"eagle3","model":"org/eagle-head","num_speculative_tokens":3}'
CHOSEN = {"metadata": {"annotations": {NEXT: f"org/chat-8b {EAGLE}"}}}
POLICY = {"updatePolicy": {"mode": "NextRollout", "pinnedArm": "eagle/3"}}


def noted(text: str, **changes: Any) -> dict[str, Any]:
    """The target as its owner's repository has it, with something new in its pod template."""
    target = manifests.target()
    manifests.engine(target)["env"].append({"name": "NOTE", "value": text})
    manifests.engine(target).update(changes)
    return target


def proposal(place: Place) -> str | None:
    return place.get("deployment", manifests.TARGET)["metadata"].get("annotations", {}).get(NEXT)


def proposed(place: Place) -> None:
    """Nothing restarts for the arm that should run: it is written beside the template, and said in one word everywhere."""
    place.managed(**POLICY)
    made = place.until_decided("AwaitsRollout")
    assert (made["arm"], "nothing restarts for it" in made["message"]) == ("eagle/3", True)
    until("it is written", lambda: proposal(place) == f"org/chat-8b {EAGLE}")
    assert place.annotation() is None
    assert len(place.all("replicaset")) == 1


@pytest.mark.always
@pytest.mark.parametrize(
    "how",
    ["edit", "restart", "apply", "argo", "argo-force", "flux"],
)
def test_an_owners_rollout_takes_the_arm(place: Place, how: str, tmp_path: Any, monkeypatch: Any) -> None:
    # Argo CD and Flux own what they apply from the beginning.
    manager = {"argo": "argocd-controller", "argo-force": "argocd-controller", "flux": "kustomize-controller"}
    options: tuple[str, ...] = ()
    if how in manager:
        options = ("--server-side", f"--field-manager={manager[how]}")
        options += () if how == "argo" else ("--force-conflicts",)
        place.apply(manifests.target(), options=options)
        place.apply(manifests.profile(place.stage.fingerprint), manifests.service(**POLICY))
        place.until_decided("AwaitsRollout")
        until("it is written", lambda: proposal(place) == f"org/chat-8b {EAGLE}")
    else:
        proposed(place)
    if how == "restart":
        place.kubectl("rollout", "restart", NAMED)
    elif how == "edit":
        editor = tmp_path / "editor"
        editor.write_text("#!/bin/sh\nsed -i 's/--shutdown-timeout=10/--shutdown-timeout=11/' \"$1\"\n")
        editor.chmod(0o755)
        monkeypatch.setenv("KUBE_EDITOR", str(editor))
        place.kubectl("edit", NAMED)
    else:
        place.apply(noted("new"), options=options)
    assert place.annotation() == EAGLE
    place.until_settled("eagle/3")
    assert place.until_event("AwaitsRollout")
    place.until_decided("Pinned", "Stay")
    # Another sync of the same manifest changes nothing, nor does scaling.
    if how in {"apply", *manager}:
        place.apply(noted("new"), options=options)
    place.kubectl("scale", NAMED, "--replicas=2")
    assert len(place.all("replicaset")) == 2
    assert place.annotation() == EAGLE


@pytest.mark.always
def test_a_rollout_that_is_undone_and_a_new_model_keep_the_arm_out(place: Place) -> None:
    proposed(place)
    place.kubectl("rollout", "restart", NAMED)
    place.until_settled("eagle/3")
    place.kubectl("rollout", "undo", NAMED)
    assert place.annotation() is None
    place.until_settled("none")
    place.until_decided("AwaitsRollout")
    place.kubectl("rollout", "restart", NAMED)
    assert place.annotation() == EAGLE
    other = ["org/chat-70b", *manifests.engine(manifests.target())["args"][1:]]
    place.apply(noted("model", args=other))
    assert place.annotation() == "null", "the drafter belongs to another model"


def test_an_emergency_takes_no_new_arm_and_nothing_is_left_by_a_service_that_is_gone(place: Place) -> None:
    place.managed(updatePolicy={**POLICY["updatePolicy"], "mode": "Recommend"})
    place.until_decided("Pinned", "Recommend")
    place.apply(noted("a bad release"))
    place.until_settled("none")
    place.patch("specsvc", "chat", {"spec": POLICY})
    until("it is written", lambda: proposal(place) == f"org/chat-8b {EAGLE}")
    place.kubectl("rollout", "undo", NAMED)
    assert len(place.all("replicaset")) == 2, "the pods of before"
    assert place.annotation() is None
    until("it is written", lambda: proposal(place) == f"org/chat-8b {EAGLE}")
    place.kubectl("delete", "specsvc", "chat")
    place.kubectl("rollout", "restart", NAMED)
    assert place.annotation() is None, "weeks later nobody looks after it"


def test_a_model_goes_whose_name_stays_and_a_shell_names_it(place: Place) -> None:
    def asleep(text: str, args: list[str], **changes: Any) -> dict[str, Any]:
        target = noted(text, args=args, **changes)
        target["spec"]["replicas"] = 0
        return target

    shell = {"command": ["sh", "-c"]}
    with place.stage.operator_stopped():
        place.apply(manifests.service(**POLICY))
        for before, after, value in (
            (["org/chat-8b"], asleep("new", ["exec vllm serve 'org/chat-8b' --seed=1"], **shell), EAGLE),
            (
                ["org/chat-8b", "--served-model-name=org/chat-8b"],
                asleep("new", ["org/chat-70b", "--served-model-name=org/chat-8b"]),
                "null",
            ),
        ):
            place.apply(asleep("old", before))
            place.patch("deployment", manifests.TARGET, CHOSEN)
            place.apply(after)
            assert place.annotation() == value
            place.kubectl("delete", "deployment", manifests.TARGET)
        # What is no arm, as behind a path with a blank, would keep the engine from starting.
        place.apply(asleep("old", ["/models/a b"]))
        place.patch(
            "deployment", manifests.TARGET, {"metadata": {"annotations": {NEXT: f"/models/a b {EAGLE}"}}}
        )
        place.apply(asleep("new", ["/models/a b"]))
        assert place.annotation() is None


def test_a_proposal_is_taken_back_with_the_mode_and_while_paused(place: Place) -> None:
    proposed(place)
    place.patch("specsvc", "chat", {"spec": {"paused": True}})
    until("nothing is proposed", lambda: proposal(place) is None)
    place.patch("specsvc", "chat", {"spec": {"paused": False}})
    until("it is proposed again", lambda: proposal(place) is not None)
    place.patch("specsvc", "chat", {"spec": {"updatePolicy": {"mode": "Recommend"}}})
    until("nothing is proposed", lambda: proposal(place) is None)
    place.kubectl("rollout", "restart", NAMED)
    assert place.annotation() is None


def test_the_operator_may_change_no_other_metadata(place: Place) -> None:
    place.managed(paused=True)
    until("the target is there", lambda: place.get("deployment", manifests.TARGET))
    for patch in ({"annotations": {"other": "x"}}, {"labels": {"other": "x"}}):
        assert "no metadata" in place.refused("deployment", {"metadata": patch})
    assert place.refused("deployment", {"metadata": {"annotations": {NEXT: "org/chat-8b null"}}}) == ""


def test_a_stateful_set_takes_it(place: Place) -> None:
    place.apply(manifests.stateful_target(1))
    taken(place, "statefulset", manifests.stateful_service(**POLICY), ("template",))


@needs_controller("rollouts-controller", "a minute")
def test_an_argo_rollout_takes_it(place: Place) -> None:
    place.stage.cluster.start_controller("rollouts-controller")
    place.apply(manifests.stepwise_target(1))
    taken(place, "rollout", manifests.stepwise_service(**POLICY), ("template",))


@needs_controller("lws-controller", "a minute")
def test_both_templates_of_a_leader_worker_set_take_it(place: Place) -> None:
    place.stage.cluster.start_controller("lws-controller")
    place.apply(manifests.grouped_target(1, leaders_apart=True))
    taken(
        place,
        "leaderworkerset",
        manifests.grouped_service(**POLICY),
        ("leaderWorkerTemplate", "leaderTemplate"),
        ("leaderWorkerTemplate", "workerTemplate"),
    )


def taken(place: Place, kind: str, service: dict[str, Any], *templates: tuple[str, ...]) -> None:
    """Whoever changes the first template of an object for which an arm was chosen changes all to it."""

    def found(path: tuple[str, ...]) -> str | None:
        part = functools.reduce(lambda at, name: at[name], path, place.get(kind, manifests.TARGET)["spec"])
        return part.get("metadata", {}).get("annotations", {}).get(manifests.ANNOTATION)

    assert [found(path) for path in templates] == [None] * len(templates)
    change: dict[str, Any] = {"metadata": {"annotations": {"note": "new"}}}
    for name in reversed(templates[0]):
        change = {name: change}
    with place.stage.operator_stopped():
        place.apply(service)
        place.patch(kind, manifests.TARGET, CHOSEN)
        place.patch(kind, manifests.TARGET, {"spec": change})
    assert [found(path) for path in templates] == [EAGLE] * len(templates)
