"""The recipes of docs/stacks.md on the real controllers: as they come they are looked at, and with their lines they take the arm.

The files are those of examples/stacks. Values of a chart become the Deployment that the library says the chart makes of them.
Names, labels, probes and the scrape annotation are this cluster's; weights and secrets are left out, because the simulated engine has none.
KServe's recipe runs in test_operator_kserve.py, on its own controller.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from breakeven.serving.pod_templates import PodTemplate, pod_templates
from operatorcluster import manifests
from operatorcluster.stage import Manifest, condition
from operatorcluster.target_engine import A100

STACKS = Path(__file__).parents[2] / "examples" / "stacks"
RECIPES = {
    "page": "vllm-kubernetes-page.yaml", "stack": "production-stack.yaml", "guide": "llm-d-guide.yaml",
    "modelservice": "llm-d-modelservice.yaml", "aibrix": "aibrix-quickstart.yaml",
}  # fmt: skip
_KEPT = ("name", "image", "command", "args", "lifecycle")


def deployment(name: str, file: Path) -> Manifest:
    """A recipe as a Deployment of one pod on this cluster's nodes."""
    (template,) = (
        one
        for one in pod_templates(yaml.safe_load(file.read_text()), str(file))
        if isinstance(one, PodTemplate)
    )
    ours = manifests.target(name)
    pod = ours["spec"]["template"]["spec"]
    (engine,), (theirs,) = pod["containers"], template.containers
    port = 8200 if "8200" in file.read_text() else 8000
    devices = theirs.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", "1")
    engine = {key: value for key, value in engine.items() if key not in {*_KEPT, "env"}}
    engine |= {key: theirs[key] for key in _KEPT if theirs.get(key)}
    # All pods of this machine share a network; the chart of modelservice starts vLLM with model and port of its own.
    engine["args"] = [word for word in engine.get("args", []) if word not in {"--host", "0.0.0.0"}]
    if name == "modelservice":
        engine["args"] = ["org/llama-8b", f"--port={port}", *engine["args"]]
    engine["env"] = [one for one in theirs.get("env") or [] if "secretKeyRef" not in one.get("valueFrom", {})]
    engine["ports"] = [{"name": "http", "containerPort": port}]
    engine["resources"] = {
        "requests": {"cpu": "10m", "memory": "64Mi"},
        "limits": {"nvidia.com/gpu": devices},
    }
    pod["containers"] = [engine]
    pod["terminationGracePeriodSeconds"] = template.pod_spec.get("terminationGracePeriodSeconds", 30)
    ours["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] = str(port)
    return ours


def service(name: str, **changes: object) -> Manifest:
    return manifests.service(name, name, **changes)


def test_each_is_looked_at_as_it_comes_and_takes_the_arm_with_its_lines(place):
    place.apply(
        *(deployment(name, STACKS / file) for name, file in RECIPES.items()),
        *(service(name, updatePolicy={"mode": "Disabled"}) for name in RECIPES),
    )
    for name in RECIPES:
        target = place.until_service(
            "its pod serves", lambda status: status.get("target", {}).get("readyReplicas") == 1, name
        )["status"]["target"]
        assert target["gpuProduct"] == A100
        profile = manifests.profile(target["fingerprint"], name)
        profile["spec"]["model"] = target["model"]
        place.apply(profile)
        # A mode that measures, read before the profile is, would have the operator measure.
        place.until_service(
            "its profile counts", lambda status: (status.get("calibration") or {}).get("profile"), name
        )
        # The stack's chart has no value for a preStop hook.
        drain = {"drain": "AcceptLoss"} if name == "stack" else {}
        policy = {"mode": "RollingUpdate", "pinnedArm": "eagle/3", **drain}
        place.patch("specsvc", name, {"spec": {"updatePolicy": policy}})
    for name in RECIPES:
        said = place.until_decided("NotOptedIn", name=name)
        assert said["arm"] == "eagle/3"
    assert place.writes() == []
    place.apply(*(deployment(name, STACKS / "ready" / file) for name, file in RECIPES.items()))
    for name in RECIPES:
        found = place.until_settled("eagle/3", name)
        assert condition(found, "Ready")["status"] == "True"
        assert "eagle3" in place.annotation(name)
    assert place.all("calrun") == [], "the lines leave the fingerprint as it was"
    assert len(place.writes()) == len(RECIPES)
