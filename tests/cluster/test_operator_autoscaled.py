"""A real HorizontalPodAutoscaler scales the target by what the operator recommends, while the operator chooses its arm."""

from __future__ import annotations

import itertools
import re
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

from operatorcluster import manifests
from operatorcluster.external_metrics import ExternalMetrics
from operatorcluster.stage import HOME, Place, Stage, condition
from operatorcluster.users import users
from operatorcluster.waiting import until

AUTOSCALER = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
QUIET_S = 12  # as `stage` installs the operator
# By the engine's law a replica carries 2.6 rps within 450 ms without speculation, and 8.0 with three drafts. With room for 1.2
# times the load three replicas are right from 4.3 to 6.5 rps; new pods make a load look a fifth larger for a window.
SLO = {"e2eP95Milliseconds": 450}
LITTLE_RPS, MUCH_RPS = 1.2, 4.7
# Longer than the window of metrics: what cold pods of a roll leave in it is past before a replica is taken away.
WINDOW_S, SETTLED_S = 30, 40
# So long nothing may move: several times the autoscaler's look, its stabilisation and the operator's quiet time.
STEADY_S = 45.0


def scaler(place: Place) -> manifests.Manifest:
    """The page's own HorizontalPodAutoscaler, but that it scales down within seconds."""
    page = (Path(__file__).parents[2] / "docs" / "autoscaling.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    found: manifests.Manifest = yaml.safe_load(text)
    assert found["spec"]["scaleTargetRef"]["name"] == manifests.TARGET
    selector = found["spec"]["metrics"][0]["external"]["metric"]["selector"]
    selector["matchLabels"]["specsvc_namespace"] = place.name
    found["spec"]["behavior"]["scaleDown"] = {"stabilizationWindowSeconds": SETTLED_S}
    return found


@pytest.fixture
def adapter(stage: Stage, tmp_path):
    """The cluster's API of external metrics, for as long as the test lasts."""
    operator = Place(stage, HOME)

    def page() -> str:
        (pod,) = operator.all("pod")
        port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
        with urllib.request.urlopen(f"http://{pod['status']['podIP']}:{port}/metrics", timeout=180) as answer:
            return str(answer.read().decode())

    authority = stage.cluster.state_dir / "pki" / "ca.crt"
    with ExternalMetrics(page, authority, HOME, tmp_path) as server:
        operator.apply(*server.manifests())
        stage.cluster.kubectl(
            "wait",
            "--for=condition=Available",
            "apiservice/v1beta1.external.metrics.k8s.io",
            "--timeout=180s",
        )
        yield server
        stage.cluster.kubectl("delete", "apiservice/v1beta1.external.metrics.k8s.io")
        operator.kubectl("delete", "service/metrics-adapter")


def wanted(place: Place) -> int:
    return int(place.get("deployment", manifests.TARGET)["spec"]["replicas"])


def recommended(place: Place) -> int | None:
    capacity = (place.get("specsvc", "chat").get("status") or {}).get("capacity") or {}
    return capacity.get("recommendedReplicas")


def scalings(place: Place) -> list[tuple[float, int]]:
    """When the autoscaler set how many replicas, oldest first."""
    return [
        (event.at.timestamp(), event.body["spec"]["replicas"])
        for event in place.stage.cluster.audit_events()
        if event.wrote
        and event.user == AUTOSCALER
        and (event.namespace, event.resource, event.subresource) == (place.name, "deployments", "scale")
    ]


def turns(numbers: list[int]) -> int:
    """How often a sequence changes its direction."""
    steps = [later > earlier for earlier, later in itertools.pairwise(numbers)]
    return sum(later != earlier for earlier, later in itertools.pairwise(steps))


def until_replicas(place: Place, replicas: int) -> None:
    until(
        f"{replicas} replicas are recommended, wanted and ready",
        lambda: (
            recommended(place) == wanted(place) == replicas
            and place.get("deployment", manifests.TARGET)["status"].get("readyReplicas") == replicas
        ),
        timeout_s=300.0,
        seen=lambda: (
            wanted(place),
            scalings(place),
            place.get("specsvc", "chat").get("status", {}).get("capacity"),
            place.kubectl("describe", "hpa"),
            place.told("chat"),
        ),
    )


@pytest.mark.claim("docs/autoscaling.md", "The operator never changes the number of replicas itself.")
def test_autoscaler_and_operator_both_act_and_neither_follows_the_other_in_circles(adapter, place):
    place.managed(
        slo=SLO,
        updatePolicy={"pinnedArm": "none"},
        metricsSource={"windowSeconds": WINDOW_S},
    )
    place.apply(scaler(place))
    with users(place, LITTLE_RPS):
        until_replicas(place, 1)
        early = [replicas for _, replicas in scalings(place)]
        # A machine that stands still for a moment leaves a pile of requests: one replica too many, once, is no feedback loop.
        assert turns([1, *early]) <= 1
    with users(place, MUCH_RPS) as outcomes:
        # More load: more replicas, and no roll.
        until_replicas(place, 3)
        up = [replicas for _, replicas in scalings(place)][len(early) :]
        # The pile from before is served as well for a while.
        assert turns([1, *up]) <= 1
        assert place.writes() == []
        status = place.until_service("it knows who scales", lambda s: s.get("capacity", {}).get("scaledBy"))
        assert status["status"]["capacity"]["scaledBy"] == "kube-controller-manager"
        # Another arm: one roll, after the number of replicas has stood still, and fewer replicas for the same load.
        place.patch("specsvc", "chat", {"spec": {"updatePolicy": {"pinnedArm": None}}})
        until("the operator has rolled", place.writes, seen=lambda: place.told("chat"))
        (roll,) = place.writes()
        rolled_s = roll.at.timestamp()
        # A scaling that the roll's cold pods cause may come before the test looks.
        assert rolled_s - max(at_s for at_s, _ in scalings(place) if at_s <= rolled_s) >= QUIET_S
        until_replicas(place, 1)
        down = [replicas for _, replicas in scalings(place)][len(early) + len(up) :]
        assert turns([3, *down]) <= 1
        # The scaling leads to no roll. A machine that stands still may cost a replica once more, and circles would turn again and again.
        time.sleep(STEADY_S)
        assert len(place.writes()) == 1, place.told("chat")
        after = [replicas for _, replicas in scalings(place)][len(early) + len(up) + len(down) :]
        assert turns([1, *after]) <= 1, place.told("chat")
    assert condition(place.get("specsvc", "chat"), "Ready")["status"] == "True"
    assert [outcome for outcome in outcomes if outcome.error] == []
