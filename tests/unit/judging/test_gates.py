"""The table of gates: which of them a change is asked at, by its reason, and in which order."""

from __future__ import annotations

import pytest

from breakeven.reasons import Reason
from breakeven_operator.cluster_reasons import ClusterReason
from breakeven_operator.judging.gates import GATES, gates_of

ALL = [
    "a person's order",
    "suspicion of the profile",
    "failures of the arm",
    "guards of the user",
    "answers of the arm",
    "the target",
    "rolls before",
    "windows of the policy",
    "this moment",
    "capacity during the roll",
    "other services",
    "the API server",
]
OF_THE_PROFILE = set(ALL[1:5])


@pytest.mark.parametrize(
    ("reason", "passed"),
    [
        (Reason.GAIN_ABOVE_THRESHOLD, set()),
        (Reason.ENTERED_SATURATION, {"rolls before"}),
        (Reason.SLO_VIOLATED, {"rolls before"}),
        (ClusterReason.PINNED, {*OF_THE_PROFILE, "rolls before", "windows of the policy"}),
        (ClusterReason.ARM_CRASHES, {*ALL[1:5], *ALL[6:10]}),
    ],
)  # fmt: skip
def test_a_change_is_asked_at_the_gates_of_its_reason_in_one_order(reason, passed):
    assert [gate.about for gate in gates_of(reason)] == [about for about in ALL if about not in passed]


def test_only_what_the_profile_and_the_arm_say_against_it_forbids_advice():
    assert {gate.about for gate in GATES if gate.of_advice} == OF_THE_PROFILE
