"""Gates on the real control plane: two engines of two images at once, a driver that asks both, and what a service makes of the word."""

from __future__ import annotations

import copy
import json

import pytest
import yaml

from localcluster import GpuNode
from operatorcluster import manifests
from operatorcluster.stage import condition
from operatorcluster.target_engine import COSTS
from operatorcluster.waiting import until

# Product files whose change runs these tests at the next landing.
COVERS = (
    "operator/breakeven_operator/calibration/upgrade_gate.py",
    "operator/breakeven_operator/gate_driver.py",
    "tuner/breakeven/upgrade/",
)
T4 = "NVIDIA-T4"
BEFORE, SLOWER, SAME = (f"vllm/vllm-openai:v0.32.{patch}" for patch in (0, 1, 2))
# A loss shows soon; that nothing is lost takes more answers.
BUDGET, LONGER = ({"maxGpuSeconds": 2 * seconds, "maxDurationSeconds": seconds} for seconds in (300, 600))
# Both engines start, and are asked for as long as the budget lasts.
GATE_S = 720.0


@pytest.fixture(scope="module")
def gpu(stage, tmp_path_factory):
    """A node on which one image's steps take half as long again as those of the others."""
    slow = copy.deepcopy(COSTS)
    slow["step"]["base_s"] *= 1.5
    program = {"entrypoint": ["{bin}/breakeven", "engine-sim"], "defaults": {"--host": "{pod_ip}"}}
    table = tmp_path_factory.mktemp("gate") / "images.yaml"
    slower = {"images": [SLOWER], **program, "env": {"BREAKEVEN_SIM_COSTS": json.dumps(slow)}}
    table.write_text(yaml.safe_dump([slower]))
    stage.cluster.start_nodes(
        (GpuNode("t4-0", T4, 8),),
        agent="upgraded",
        environment={"BREAKEVEN_SIM_COSTS": json.dumps(COSTS)},
        extra_arguments=("--images", str(table)),
    )
    return T4


def ended(place, name):
    """The run, once it has ended."""

    def look():
        run = place.get("calrun", name)
        return run if (run.get("status") or {}).get("finishedTime") else None

    seen = lambda: (place.get("calrun", name).get("status"), place.reasons())  # noqa: E731
    return until(f"{name} ends", look, timeout_s=GATE_S, seen=seen)


def asked(stage, place, images, *options):
    """Kubectl's answer to somebody who asks for a gate; nothing is made."""
    run = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "CalibrationRun",
        "metadata": {"name": "asked"},
        "spec": {"serviceRef": {"name": "chat"}} | ({"gate": images} if images else {}),
    }
    return stage.cluster.kubectl(
        "create", "--filename=-", "--dry-run=server", f"--namespace={place.name}", *options,
        stdin=yaml.safe_dump(run), check=False,
    )  # fmt: skip


def test_only_who_may_start_pods_names_the_images_of_a_gate(place, stage):
    def grant(name, *what):
        place.kubectl("create", "role", name, *what)
        place.kubectl("create", "rolebinding", name, f"--role={name}", "--user=tenant")

    grant("asks", "--verb=create", "--resource=calibrationruns.breakeven.dev")
    tenant = "--as=tenant"
    until("he may ask for a calibration", lambda: asked(stage, place, None, tenant).returncode == 0)
    refused = asked(stage, place, [BEFORE, SAME], tenant)
    assert refused.returncode, refused.stdout
    assert "needs the right to create pods or to patch Deployments in this namespace" in refused.stderr
    grant("starts", "--verb=create", "--resource=pods")
    until("he may ask for a gate", lambda: asked(stage, place, [BEFORE, SAME], tenant).returncode == 0)
    for images in ([BEFORE, "no image!"], [BEFORE], [BEFORE, SAME, SLOWER]):
        assert "spec.gate" in asked(stage, place, images).stderr


def test_a_run_that_compares_a_slower_image_ends_with_that_word_and_leaves_nothing(place, gpu):
    place.apply(manifests.target(gpu=gpu), manifests.service(updatePolicy={"mode": "Disabled"}))
    place.until_service(
        "its target serves", lambda status: status.get("target", {}).get("readyReplicas") == 1
    )
    run = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "CalibrationRun",
        "metadata": {"name": "upgrade"},
        "spec": {
            "serviceRef": {"name": "chat"},
            "gate": [BEFORE, SLOWER],
            "arms": ["eagle/3"],
            "budget": BUDGET,
        },
    }
    place.apply(run)
    status = ended(place, "upgrade")["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "Slower"), status
    words = {row["figure"]: row.get("word") for row in status["findings"]}
    assert words["upgrade"] == "Slower"
    # A load of its own may be undecided on a busy machine; all of them together are not.
    loads = {word for figure, word in words.items() if figure.startswith("time per output token")}
    assert "Slower" in loads <= {"Slower", "Undecided"}, status["findings"]
    images = {
        engine["image"]
        for job in place.writes("jobs")
        if job.verb == "create"
        for engine in job.body["spec"]["template"]["spec"]["initContainers"]
    }
    assert images == {BEFORE, SLOWER}
    assert place.until_event("Slower")
    until("Jobs of the run are gone", lambda: not place.all("job"))
    assert place.writes() == []


def test_a_service_lets_its_profile_go_on_for_an_image_that_has_lost_nothing(place, gpu):
    place.apply(
        manifests.target(gpu=gpu),
        manifests.service(
            updatePolicy={"mode": "Recommend"},
            calibration={"newImage": "Gate", "past": "Ignore", "budget": LONGER},
            paused=True,
        ),
    )
    found = place.until_service(
        "its target serves", lambda status: status.get("target", {}).get("readyReplicas") == 1
    )
    known = manifests.profile(found["status"]["target"]["fingerprint"], gpu=gpu)
    known["spec"]["image"] = BEFORE
    place.apply(known)
    place.until_service("its profile counts", lambda status: (status.get("calibration") or {}).get("profile"))
    target = manifests.target(gpu=gpu)
    manifests.engine(target)["image"] = SAME
    place.apply(target)
    place.patch("specsvc", "chat", {"spec": {"paused": False}})
    runs = until("a gate is asked for", lambda: place.all("calrun"), seen=lambda: place.told("chat"))
    assert runs[0]["spec"]["gate"] == [BEFORE, SAME]
    status = ended(place, runs[0]["metadata"]["name"])["status"]
    assert status["reason"] in {"Same", "Faster"}, status
    found = place.until_service(
        "the profile goes on", lambda status: (status.get("calibration") or {}).get("profile")
    )
    assert found["status"]["calibration"]["profile"] == runs[0]["metadata"]["name"]
    assert place.get("specprof", runs[0]["metadata"]["name"])["spec"]["image"] == SAME
    assert f": {status['reason']}: " in condition(found, "Calibrated")["message"]
    assert len(place.all("calrun")) == 1, "no arm is measured again"
    assert place.writes() == []
