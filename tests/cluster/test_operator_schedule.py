"""A schedule per batch size on the real control plane: made from what a run has measured, and measured as an arm of it."""

from __future__ import annotations

import copy
import json

import pytest

from breakeven.tiers import Schedule
from localcluster import GpuNode
from operatorcluster import manifests
from operatorcluster.target_engine import COSTS, METHOD

L40 = "NVIDIA-L40"
SCHEDULED = {"methods": [{**METHOD, "schedule": "Auto"}]}


@pytest.fixture(scope="module")
def gpu(stage):
    """A node whose engines' drafts are expensive: three a step win up to some 7 requests in a step, and lose clearly beyond."""
    costs = copy.deepcopy(COSTS)
    costs["methods"]["eagle3"]["draft"]["per_draft_token_s"] = 0.004
    costs["zero_drafts_overhead"] = 0.05
    stage.cluster.start_nodes(
        (GpuNode("l40-0", L40, 8),),
        agent="dear-drafts",
        environment={"BREAKEVEN_SIM_COSTS": json.dumps(costs)},
    )
    return L40


def test_a_run_makes_a_schedule_of_what_it_has_measured_and_measures_it_as_an_arm(place, gpu):
    place.apply(
        manifests.target(gpu=gpu),
        manifests.service(updatePolicy={"mode": "Recommend"}, candidates=SCHEDULED),
    )
    place.until_calibrated()
    (run,) = place.all("calrun")
    arms = {arm["arm"]: arm for arm in run["status"]["armStatuses"]}
    assert {name: arm["phase"] for name, arm in arms.items()} == dict.fromkeys(
        ("none", "eagle/3", "eagle/schedule", "eagle/3/again", "none/again"), "Done"
    ), arms
    table = Schedule.parse(arms["eagle/schedule"]["schedule"], "status")
    # The law predicts the draft lengths between those that were measured: one of them may lie between.
    assert [k for _, k in table.tiers] in ([3, 0], [3, 1, 0], [3, 2, 0], [3, 2, 1, 0])
    assert 3 <= table.tiers[1][0] <= 24
    assert arms["eagle/schedule"]["startedTime"] > arms["eagle/3"]["finishedTime"]
    points = [point for point in run["status"]["points"] if point["arm"] == "eagle/schedule"]
    assert {point["schedule"] for point in points} == {str(table)}
    # The engine follows the table: it drafts while requests are few, and next to nothing when there are many.
    drafted = {float(point["meanInflight"]): float(point["draftedPerStep"]) for point in points}
    assert drafted[min(drafted)] > 2.5
    assert drafted[max(drafted)] < 1.0
    (profile,) = place.all("specprof")
    shown = {arm["arm"]: arm for arm in profile["spec"]["arms"]}
    assert shown["eagle/schedule"]["schedule"] == str(table)
    assert shown["eagle/schedule"]["points"], shown
