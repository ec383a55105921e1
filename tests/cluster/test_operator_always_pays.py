"""An engine on which speculation pays at every load: one roll leads there, and no load leads away again."""

import json

import pytest

from demo.installation import EXAMPLES
from localcluster import GpuNode
from operatorcluster import manifests
from operatorcluster.stage import decision
from operatorcluster.users import users

H100 = "NVIDIA-H100-80GB-HBM3"
LOW_RPS, HIGH_RPS = 2.0, 36.0


@pytest.fixture(scope="module")
def gpu(stage):
    """A node whose engines are those of examples/engine-costs/always-pays.json."""
    document = json.loads((EXAMPLES / "engine-costs" / "always-pays.json").read_text())
    costs = document["gpus"][H100]
    # Twice as slow, so that two cores carry its users; every draft accepted, so that a few seconds tell what it costs.
    costs["time_scale"] = 2.0
    costs["startup"] = {"base_s": 0.3, "drafter_s": 0.1}
    costs["methods"]["eagle3"]["text"] = {"easy_rate": 1.0, "hard_rate": 1.0, "easy_share": 1.0}
    stage.cluster.start_nodes(
        (GpuNode("h100-0", H100, 8),),
        agent="always-pays",
        environment={"BREAKEVEN_SIM_COSTS": json.dumps(costs)},
    )
    return H100


@pytest.fixture
def measured(place, gpu):
    """A service whose arms the operator has measured, before its first roll."""
    place.apply(manifests.target(gpu=gpu), manifests.service())
    place.until_calibrated()
    return place


def failures(stage, place):
    """Words of the operator's failures about the services of a place."""
    lines = [line for line in stage.log() if place.name in json.dumps(line)]
    return [line for line in lines if line["level"] == "error" or line.get("reason") == "InternalError"]


def test_one_roll_leads_to_speculation_and_high_load_does_not_lead_away(measured, stage):
    (profile,) = measured.all("specprof")
    arms = {arm["arm"]: arm for arm in profile["spec"]["arms"]}
    assert arms["eagle/3"]["verdict"] == "Always", arms
    assert float(arms["eagle/3"]["saturationRps"]) > HIGH_RPS > float(arms["none"]["saturationRps"]), arms
    with users(measured, LOW_RPS) as outcomes:
        measured.until_settled("eagle/3")
    with users(measured, HIGH_RPS) as more:
        found = measured.until_service(
            "it decides on the high load",
            # A pod that is watched for a second has a load already; nothing is decided on it.
            lambda status: (
                decision(status).get("action") != "Hold"
                and float(decision(status).get("loadRps") or 0.0) > float(arms["none"]["saturationRps"])
            ),
        )
    made = decision(found["status"])
    assert (made["arm"], made["runningArm"]) == ("eagle/3", "eagle/3"), made
    assert found["status"]["workings"]["display"]["pays"] == "Yes"
    assert len(measured.writes()) == 1
    assert failures(stage, measured) == []
    assert [outcome for outcome in (*outcomes, *more) if outcome.error] == []
