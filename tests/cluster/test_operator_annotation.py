"""The one annotation among other writers of the target: kept by tools that merge, defended against tools that do not."""

import json
import threading
import time

import pytest
import yaml

from operatorcluster import manifests
from operatorcluster.stage import OPERATOR, condition
from operatorcluster.waiting import until

# Product files whose change runs these tests at the next landing.
COVERS = ("operator/breakeven_operator/rolls/rollout.py", "operator/breakeven_operator/cluster/writer.py")

EAGLE = {"updatePolicy": {"pinnedArm": "eagle/3"}}
CONFIG = {"method": "eagle3", "model": "org/eagle-head", "num_speculative_tokens": 3}


def with_note(text):
    """The target with something new in its pod template, which makes new pods."""
    target = manifests.target()
    manifests.engine(target)["env"].append({"name": "NOTE", "value": text})
    return target


def until_noted(place, text):
    """The pods with that note serve, alone."""

    def look():
        pods = place.all("pod")
        return len(pods) == 1 and {"name": "NOTE", "value": text} in pods[0]["spec"]["containers"][0]["env"]

    until(f"one pod, with note {text}", look)


@pytest.mark.always
@pytest.mark.parametrize(
    "options", [(), ("--server-side", "--force-conflicts")], ids=["client-side", "server-side"]
)
@pytest.mark.claim("docs/gitops.md", "| `kubectl apply`, `helm upgrade`, `helm rollback` | yes | nothing |")
def test_kubectl_apply_keeps_the_annotation(place, options):
    place.apply(manifests.profile(place.stage.fingerprint), manifests.service(**EAGLE))
    place.apply(manifests.target(), options=options)
    place.until_settled("eagle/3")
    assert json.loads(place.annotation()) == CONFIG
    place.apply(with_note("new"), options=options)
    until_noted(place, "new")
    assert json.loads(place.annotation()) == CONFIG
    assert place.manager() == ["breakeven"]
    place.until_settled("eagle/3")
    assert len(place.writes()) == 1


def test_helm_upgrade_and_rollback_keep_the_annotation(place, tmp_path):
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: serving\nversion: 0.1.0\n")
    (tmp_path / "values.yaml").write_text("note: first\n")
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "target.yaml").write_text(yaml.safe_dump(with_note("{{ .Values.note }}")))
    place.apply(manifests.profile(place.stage.fingerprint), manifests.service(**EAGLE))
    helm = place.stage.cluster.helm
    helm("install", "serving", str(tmp_path), f"--namespace={place.name}")
    place.until_settled("eagle/3")
    helm("upgrade", "serving", str(tmp_path), f"--namespace={place.name}", "--set=note=second")
    until_noted(place, "second")
    assert json.loads(place.annotation()) == CONFIG
    helm("rollback", "serving", "1", f"--namespace={place.name}")
    until_noted(place, "first")
    assert json.loads(place.annotation()) == CONFIG
    place.until_settled("eagle/3")
    assert len(place.writes()) == 1


def test_kubectl_rollout_undo_is_respected_until_a_person_hands_the_target_back(place):
    place.managed(**EAGLE)
    place.until_settled("eagle/3")
    place.pin("none")
    place.until_settled("none")
    assert place.annotation() == "null"
    place.kubectl("rollout", "undo", f"deployment/{manifests.TARGET}")
    made = place.until_decided("TakenOver")
    assert made["message"].startswith("kubectl rollout undo changed the annotation"), made["message"]
    ready = condition(place.get("specsvc", "chat"), "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "TakenOver")
    place.until_service(
        "what was undone runs",
        lambda status: status["current"]["podsByArm"] == [{"arm": "eagle/3", "pods": 1}],
    )
    assert len(place.writes()) == 2
    place.until_event("TakenOver")
    place.kubectl("annotate", "specsvc", "chat", "breakeven.dev/resume=now")
    place.until_settled("none")
    assert place.manager() == ["breakeven"]
    assert len(place.writes()) == 3


@pytest.mark.always
def test_a_value_that_somebody_else_owns_is_not_overwritten(place):
    """While paused a person writes the annotation; unpausing must not force it: the API server's 409 is obeyed."""
    place.managed(paused=True, **EAGLE)
    place.until_decided("Paused")
    template = {"metadata": {"annotations": {manifests.ANNOTATION: "null"}}}
    place.patch("deployment", manifests.TARGET, {"spec": {"template": template}})
    place.until_service(
        "the person's pods serve",
        lambda status: status["current"]["source"] == "Annotation" and status["target"]["readyReplicas"] == 1,
    )
    place.patch("specsvc", "chat", {"spec": {"paused": False}})
    made = place.until_decided("TakenOver")
    assert "kubectl-patch" in made["message"]
    refused = [
        event.code
        for event in place.stage.cluster.audit_events()
        if (event.user, event.namespace, event.resource) == (OPERATOR, place.name, "deployments")
    ]
    assert refused == [409]
    assert place.annotation() == "null"


def without_key(manifest):
    """A manifest as it was read, without the annotation."""
    del manifest["spec"]["template"]["metadata"]["annotations"][manifests.ANNOTATION]
    return manifest


def edit(place):
    """`kubectl edit` by somebody whose editor removes the one line."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("KUBE_EDITOR", f"sed -i -e '\\#^ *{manifests.ANNOTATION}:#d'")
        place.kubectl("edit", "deployment", manifests.TARGET)


def patch(place):
    path = f"/spec/template/metadata/annotations/{manifests.ANNOTATION.replace('/', '~1')}"
    operation = json.dumps([{"op": "remove", "path": path}])
    place.kubectl("patch", "deployment", manifests.TARGET, "--type=json", f"--patch={operation}")


def update(place):
    """A program that reads the object, takes the key away and puts the object back.

    Not by plain `kubectl replace`: that renews last-applied-configuration on the way, and shows.
    """
    path = f"/apis/apps/v1/namespaces/{place.name}/deployments/{manifests.TARGET}"
    put(place, lambda: without_key(place.get("deployment", manifests.TARGET)), f"--raw={path}")


def replace(place, manifest):
    """`kubectl replace`, which reads the object first."""
    put(place, lambda: manifest, f"--namespace={place.name}")


def put(place, read, *options):
    """Write it, and again if a roll's status comes between reading and writing: the API server refuses that."""

    def accepted():
        done = place.stage.cluster.kubectl(
            "replace", *options, "--filename=-", stdin=json.dumps(read()), check=False
        )
        assert done.returncode == 0 or "the object has been modified" in done.stderr, done.stderr
        return done.returncode == 0

    place.kubectl("rollout", "status", f"deployment/{manifests.TARGET}", "--timeout=180s")
    until("it is replaced", accepted)


def replace_with_its_own_manifest(place):
    replace(place, manifests.target())


@pytest.mark.parametrize("remove", [edit, patch, update, replace_with_its_own_manifest])
def test_a_key_that_is_removed_and_nothing_else_is_not_fought(place, remove):
    """The API server keeps no trace of who only removes; that is taken for a person's wish, and no tool is blamed."""
    place.managed(**EAGLE)
    place.until_settled("eagle/3")
    remove(place)
    made = place.until_decided("TakenOver")
    place.until_service(
        "pods without speculation serve alone",
        lambda status: status["current"]["podsByArm"] == [{"arm": "none", "pods": 1}],
    )
    assert place.annotation() is None
    assert len(place.writes()) == 1, "nothing was written again"
    note = place.until_event("TakenOver")
    assert note.startswith("kubectl rollout undo, or an edit with the same result, removed the annotation"), (
        note
    )
    assert "apply" not in note + made["message"]
    assert "Restored" not in place.reasons()
    place.kubectl("annotate", "specsvc", "chat", "breakeven.dev/resume=now")
    place.until_settled("eagle/3")
    assert len(place.writes()) == 2


def test_what_an_agent_takes_back_at_once_is_written_three_times_and_no_more(place):
    """A write and its removal between two looks of the operator: only the target's generation shows them."""
    path = f"/apis/apps/v1/namespaces/{place.name}/deployments/{manifests.TARGET}"
    without = {"spec": {"template": {"metadata": {"annotations": {manifests.ANNOTATION: None}}}}}
    stop = threading.Event()

    def agent():
        while not stop.wait(0.02):
            found = place.stage.api.json(path) or {"spec": {"template": {"metadata": {}}}}
            if manifests.ANNOTATION in (found["spec"]["template"]["metadata"].get("annotations") or {}):
                place.stage.api.patch(path, without)

    place.apply(manifests.target())
    worker = threading.Thread(target=agent, daemon=True)
    worker.start()
    try:
        place.managed(**EAGLE)
        place.until_decided("RevertedTwice")
        time.sleep(10.0)
    finally:
        stop.set()
        worker.join()
    assert place.annotation() is None
    assert len(place.writes()) == 3
    place.kubectl("annotate", "specsvc", "chat", "breakeven.dev/resume=now")
    place.until_settled("eagle/3")
    assert len(place.writes()) == 4


@pytest.mark.always
@pytest.mark.claim(
    "docs/gitops.md", "the operator puts it back twice, then stops and says so (`RevertedTwice`)"
)
def test_kubectl_replace_is_repaired_twice_and_then_left_alone(place):
    place.managed(**EAGLE)
    place.until_settled("eagle/3")
    for attempt in (1, 2):
        replace(place, with_note(f"replaced {attempt}"))
        # The write is seen before the API server has noted down that it answered it.
        until(
            "the annotation is back, and its write is in the audit log",
            lambda written=attempt: place.annotation() and len(place.writes()) > written,
            seen=lambda: place.told("chat"),
        )
        assert len(place.writes()) == 1 + attempt
        assert json.loads(place.annotation()) == CONFIG
    assert place.until_event("Restored").startswith("kubectl-replace changed the target at 20")
    replace(place, with_note("replaced again"))
    made = place.until_decided("RevertedTwice")
    assert "breakeven.dev/resume" in made["message"]
    until_noted(place, "replaced again")
    assert place.annotation() is None
    assert len(place.writes()) == 3
