"""A standing control on a real control plane: which arm it keeps, what it measures on the real Prometheus, and when it ends."""

import json

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.laws.latency import open_loop_latency
from breakeven_operator.packed import joined
from operatorcluster import manifests
from operatorcluster.posed_pods import LOW_RPS, PosedPods
from operatorcluster.target_engine import EAGLE, law
from operatorcluster.waiting import until

# Product files whose change runs these tests at the next landing.
COVERS = ("operator/breakeven_operator/judging/standing_control.py",)

PODS = 4
CONTROL = "chat-control"


@pytest.fixture
def controlled(place):
    """Four pods that speculate, and one beside them that does not."""
    target, beside = manifests.target(scraped=False), manifests.target(CONTROL, scraped=False)
    target["spec"]["replicas"] = PODS
    service, control = manifests.service(), manifests.service()
    control["metadata"]["name"] = CONTROL
    control["spec"]["targetRef"]["name"] = CONTROL
    control["spec"]["controlOf"] = "chat"
    place.apply(manifests.profile(place.stage.fingerprint), target, beside, service, control)
    with PosedPods(place) as posed:
        place.until_runs("eagle/3", PODS)
        yield posed


def measured(status):
    return joined(status).get("control") or {}


def test_the_speedup_of_now_is_measured_and_its_fall_is_noticed(place, controlled, stage):
    found = place.until_service("the control measures", lambda status: "firstLower" in measured(status))
    one = measured(found["status"])
    true = open_loop_latency(*law(NO_SPECULATION), LOW_RPS) / open_loop_latency(*law(EAGLE), LOW_RPS)
    assert (one["arm"], one["against"], one["service"]) == ("eagle/3", "none", CONTROL)
    assert float(one["speedup"]) == pytest.approx(float(true), rel=0.15)
    assert place.annotation(CONTROL) in {None, "null"}
    assert (
        stage.query(f'breakeven_control_speedup_ratio{{specsvc="chat",specsvc_namespace="{place.name}"}}')
        is not None
    )
    controlled.slow[EAGLE] = 1.5
    stage.kill_operator()
    assert "before it was" in place.until_event("ControlMoved")
    place.kubectl("scale", "deployment", manifests.TARGET, f"--replicas={PODS - 1}")
    value = until("the control runs the same arm", lambda: place.annotation(CONTROL))
    assert json.loads(value) in (None, json.loads(place.annotation()))
    until("it speculates", lambda: place.annotation(CONTROL) not in {None, "null"})
