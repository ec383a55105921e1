"""A standing control, purely: which arm it is to run beside another service, and what of its evidence counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven.profile import Profile
from breakeven.serving.counted_window import Load
from breakeven_operator.judging.standing_control import FEWEST_PODS, other_arm, with_evidence
from breakeven_operator.resources import SpeculativeService
from breakeven_operator.resources.decisionstatus import DecisionStatus
from breakeven_operator.resources.memorystatus import BarredArm, LiveEvidence, MemoryStatus
from breakeven_operator.resources.servicestatus import ServiceWorkings, SpeculativeServiceStatus
from breakeven_operator.resources.targetstatus import Current, Rollout, RolloutPhase, Target
from fakes.cases import a_case
from fakes.fleet_world import EAGLE, SERVICE, profile_json

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
CHAT = SpeculativeService.read(SERVICE, "service")


def beside(
    arm="none", *, pods=FEWEST_PODS, compared="eagle/3", action="Stay", wants=None, rollout=None, **memory
):
    """The service that is controlled."""
    return CHAT.with_status(
        SpeculativeServiceStatus(
            target=Target(replicas=pods),
            current=Current(arm=arm),
            decision=DecisionStatus(action=action, arm=wants or arm, compared_arm=compared),
            rollout=rollout,
            workings=ServiceWorkings(memory=MemoryStatus(**memory)),
        )
    )


def control(running=NO_SPECULATION, **memory):
    """The case of the control, and the arm that it runs."""
    spec, profile = CHAT.spec.replace(control_of="chat"), Profile.from_json(profile_json())
    return a_case(spec, profile, Load.of([]), NOW, memory=MemoryStatus(**memory)), running


BARRED = BarredArm(arm="eagle/3", reason="ArmCrashes", since_time=NOW)


@pytest.mark.parametrize(
    ("controlled", "running", "wanted"),
    [
        (beside("eagle/3"), NO_SPECULATION, "none"),
        (beside("eagle/3"), EAGLE, "none"),
        (beside("none"), NO_SPECULATION, "eagle/3"),
        (beside("none", compared="owl/2"), EAGLE, "eagle/3"),
        (beside("none", compared=None), NO_SPECULATION, "none"),
        (beside("none", barred=(BARRED,)), EAGLE, "none"),
        (beside("eagle/3", pods=FEWEST_PODS - 1), NO_SPECULATION, "eagle/3"),
        (beside("none", pods=FEWEST_PODS - 1), EAGLE, "none"),
        (beside("none", action="Recommend", wants="eagle/3"), NO_SPECULATION, "eagle/3"),
    ],
)
def test_the_other_arm(controlled, running, wanted):
    found, _ = control(running)
    asked = other_arm(found, running, controlled)
    assert not isinstance(asked, str), asked
    assert asked[0] == wanted


MOVING = Rollout(id="1", phase=RolloutPhase.ROLLING)


@pytest.mark.parametrize(
    ("controlled", "said"),
    [
        (None, "there is no SpeculativeService chat"),
        (beside(None), "which arm chat runs is not known"),
        (beside(rollout=MOVING), "is being changed or measured"),
        (beside(rollout=MOVING, pods=1), "is being changed or measured"),
        (beside(action="Switch", wants="eagle/3"), "chat is about to change to eagle/3"),
        (beside(action="Hold", candidate_arm="eagle/3"), "chat is about to change to eagle/3"),
    ],
)
def test_while_the_service_changes_the_control_keeps_its_arm(controlled, said):
    found, running = control()
    assert said in str(other_arm(found, running, controlled))


def test_its_own_bars_count_and_it_is_rolled_once_per_cool_down():
    found, running = control(barred=(BARRED,))
    assert other_arm(found, running, beside("none"))[0] == "none"
    young, running = control(last_switch_time=NOW - timedelta(seconds=60))
    assert "within updatePolicy.cooldownSeconds" in str(other_arm(young, running, beside("none")))
    few = beside("eagle/3", pods=1)
    assert other_arm(young, running, few)[0] == "eagle/3", "fewer pods wait for nothing"


def evidence(arm, minutes):
    return LiveEvidence(
        arm=arm,
        time=NOW + timedelta(minutes=minutes),
        precision_alone=1.0,
        precision_both=1.0,
        precision_company=1.0,
        pull_alone=0.1,
        pull_company=0.1,
    )


@pytest.mark.parametrize(
    ("profile", "theirs", "mine", "replaced"),
    [
        ("chat-p1", evidence("none", 5), evidence("none", 0), True),
        ("chat-p1", evidence("none", 5), evidence("eagle/3", 9), True),
        ("chat-p1", evidence("none", 0), evidence("none", 5), False),
        ("chat-p2", evidence("none", 5), evidence("none", 0), False),
        ("chat-p1", evidence("eagle/3", 5), evidence("none", 0), False),
    ],
)
def test_newer_evidence_of_the_arm_that_the_control_runs_counts(profile, theirs, mine, replaced):
    other = beside("none", profile="chat-p1", evidence=(theirs,))
    memory = MemoryStatus(evidence=(mine,), running_arm="eagle/3")
    assert (theirs in with_evidence(memory, other, profile).evidence) is replaced
    here = memory.replace(running_arm="none")
    assert with_evidence(here, other, profile) == here, "the target's own latency is nearer"
