"""A pod template that runs a schedule: the measured arm with its very table, a foreign arm with another one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakeven.arm import Arm
from breakeven.tiers import Schedule
from breakeven_operator.resources.candidates import Candidates, MeasuredCandidates
from breakeven_operator.workloads.running_arm import arm_of_value, running_arm
from fakes.fleet_world import EAGLE, VALUE, FleetWorld

SPEC = Candidates.read(
    {"methods": [{"name": "eagle", "method": "eagle3", "model": "org/head", "draftLengths": [3, 7]}]},
    "candidates",
)
TABLE = Schedule(((1, 5), (9, 2), (33, 0)))
MEASURED = MeasuredCandidates.of(SPEC, {"eagle": TABLE})
SCHEDULED = Arm("eagle3", 5, "eagle", scheduled=True)
RANGES = [[1, 8, 5], [9, 32, 2], [33, 512, 0]]


def value(ranges: Any, longest: int = 5, **keys: Any) -> str:
    return json.dumps(
        {
            "method": "eagle3",
            "model": "org/head",
            "num_speculative_tokens": longest,
            "num_speculative_tokens_per_batch_size": ranges,
            **keys,
        }
    )


def test_a_schedule_may_run_only_once_it_was_measured_and_then_as_it_was():
    assert [arm.name for arm in SPEC.arms()] == ["none", "eagle/3", "eagle/7", "eagle/adaptive"]
    assert [arm.name for arm in SPEC.measurable_arms()] == [
        "none",
        "eagle/3",
        "eagle/7",
        "eagle/adaptive",
        "eagle/schedule",
    ]
    assert MEASURED.arms() == (*SPEC.arms(), SCHEDULED)
    config = json.loads(MEASURED.speculative_config(SCHEDULED))
    assert config["num_speculative_tokens"] == 5
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 8, 5], [9, 32, 2], [33, 1024, 0]]
    with pytest.raises(KeyError):
        SPEC.speculative_config(SCHEDULED)
    with pytest.raises(KeyError):
        MEASURED.speculative_config(Arm("eagle3", 7, "eagle", scheduled=True))


def test_the_operator_knows_what_it_has_written_itself():
    found = arm_of_value(MEASURED.speculative_config(SCHEDULED), MEASURED)
    assert (found.arm, found.schedule, found.foreign_schedule) == (SCHEDULED, TABLE, False)


@pytest.mark.parametrize(
    "ranges",
    [RANGES, [[1, 8, 5], [9, 16, 2], [17, 32, 2], [33, 64, 0]], [[33, 40, 0], [9, 32, 2], [1, 8, 5]], [[1, 1, 5], [9, 9, 2], [33, 33, 0]]],
)  # fmt: skip
def test_tables_that_draft_the_same_are_the_same_arm(ranges):
    assert arm_of_value(value(ranges), MEASURED).arm == SCHEDULED


@pytest.mark.parametrize(
    "text", [value([[1, 8, 5], [9, 40, 2], [41, 512, 0]]), value([[1, 8, 4], [9, 32, 2], [33, 512, 0]]), value(RANGES, 7)]
)  # fmt: skip
def test_another_table_is_a_foreign_arm_that_names_the_measured_one(text):
    found = arm_of_value(text, MEASURED)
    assert found.arm is not None
    assert found.arm != SCHEDULED
    assert found.arm.scheduled
    assert found.foreign_schedule
    assert found.measured_instead == SCHEDULED


def test_a_table_that_nobody_measured_is_no_arm_of_a_candidate():
    found = arm_of_value(value(RANGES), SPEC)
    assert (found.arm, found.schedule) == (Arm("eagle3", 5, scheduled=True), TABLE)
    assert found.foreign_schedule
    assert found.measured_instead is None
    other = arm_of_value(value(RANGES, model="org/another"), MEASURED)
    assert (other.foreign_schedule, other.measured_instead) == (True, None)


@pytest.mark.parametrize("ranges", [[[2, 8, 5]], [[1, 8, 5], [8, 9, 2]], "all", [[1, "8", 5]], [[1, 8]], []])
def test_a_table_that_vllm_refuses_is_a_problem_and_not_an_arm(ranges):
    found = arm_of_value(value(ranges), MEASURED)
    assert found.arm is None
    assert "num_speculative_tokens_per_batch_size" in (found.problem or "")


def test_one_draft_length_is_still_one_draft_length():
    assert arm_of_value(VALUE, MEASURED).arm == EAGLE


def test_a_schedule_that_is_no_candidate_any_more_is_recognised_and_not_offered():
    never = Candidates(methods=(SPEC.methods[0].model_copy(update={"schedule": "Never"}),))
    candidates = MeasuredCandidates.of(never, {"eagle": TABLE})
    assert candidates.arms() == never.arms()
    assert arm_of_value(value(RANGES), candidates).arm == SCHEDULED


def test_a_schedule_in_the_arguments_of_a_target_is_told_alike():
    def static(target):
        container = target["spec"]["template"]["spec"]["containers"][0]
        container["args"] = ["org/model", f"--speculative-config={value(RANGES)}"]

    found = running_arm(FleetWorld(target=static).target, MEASURED)
    assert (found.arm, found.source) == (SCHEDULED, "Arguments")


def test_the_fingerprint_does_not_know_of_the_schedule():
    def annotated(text):
        def edit(target):
            target["spec"]["template"]["metadata"]["annotations"]["breakeven.dev/speculative-config"] = text

        return FleetWorld(target=edit).target

    def static(target):
        target["spec"]["template"]["spec"]["containers"][0]["args"].append(
            f"--speculative-config={value(RANGES)}"
        )

    plain = FleetWorld().target.identity.fingerprint
    assert annotated(value(RANGES)).identity.fingerprint == annotated(VALUE).identity.fingerprint == plain
    assert FleetWorld(target=static).target.identity.fingerprint == plain
