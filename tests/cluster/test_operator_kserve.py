"""KServe's LLMInferenceServices as targets on their real controller: measured, rolled there and back, undone, never past the parent.

The controller is an optional program, and it needs that of LeaderWorkerSets for services with workers. Where one is missing, these
tests are skipped; BREAKEVEN_CONTROLLERS=build builds it.
"""

import json

import pytest

from localcluster import GpuNode
from operatorcluster import manifests
from operatorcluster.optional import needs_controller
from operatorcluster.stage import OPERATOR
from operatorcluster.target_engine import A100, COSTS
from operatorcluster.users import users
from operatorcluster.waiting import until

CONTROLLER = "llmisvc-controller"
TROUBLED = GpuNode("a100-preset", A100, 4)
CHILD = f"{manifests.TARGET}-kserve"
pytestmark = needs_controller(CONTROLLER, "six minutes")


@pytest.fixture(scope="module")
def controller(stage):
    stage.cluster.start_controller("lws-controller")
    stage.cluster.start_controller(CONTROLLER)


@pytest.fixture
def served(place, controller):
    return place


def pods(place):
    return {pod["metadata"]["name"] for pod in place.all("pod") if CHILD in pod["metadata"]["name"]}


def annotation(place):
    """The arm that the parent asks for."""
    found = place.get("llminferenceservice", manifests.TARGET)["spec"]["annotations"]
    return found.get(manifests.ANNOTATION)


def test_it_is_measured_and_rolled_there_and_back_by_its_parent_and_no_request_is_lost(served):
    served.apply(
        manifests.preset_target(1),
        manifests.preset_service(updatePolicy={"pinnedArm": "none"}),
        options=("--server-side",),
    )
    served.until_calibrated()
    served.until_runs("none", 1)
    with users(served, 2.0) as outcomes:
        until("users are served", lambda: len(outcomes) > 5)
        served.pin("eagle/3")
        served.until_runs("eagle/3", 1)
        assert served.annotation(CHILD) == annotation(served)
        seen = len(outcomes)
        until("the new pod serves users", lambda: len(outcomes) > seen + 5)
        served.pin("none")
        served.until_runs("none", 1)
    assert [outcome for outcome in outcomes if outcome.error is not None] == []
    assert len(served.writes("llminferenceservices")) == 2
    assert served.writes("deployments") == []
