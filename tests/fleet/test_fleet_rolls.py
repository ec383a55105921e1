"""The fleet loop against a cluster in memory: from a profile to a roll, and what survives a restart."""

from __future__ import annotations

import logging
import re
from datetime import datetime
from itertools import pairwise

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven_operator.kinds import DEPLOYMENTS, EVENTS, RUNS, SERVICES
from fakes.fleet_world import BREAK_EVEN_RPS, EAGLE, VALUE, FleetWorld


class Crash(BaseException):
    """The process ends here."""


async def rolled(world: FleetWorld) -> FleetWorld:
    """Low load, calibrated, rolled to speculation."""
    await world.speculate(judged=False)
    world.load(3.0)
    return world


async def test_speculation_is_rolled_out_at_low_load_after_the_dwell_and_confirmed():
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    await world.cycle()
    assert (world.decision["action"], world.reason) == ("Hold", "Dwelling")
    assert world.value is None
    await world.until(lambda: world.value == VALUE)
    assert (world.decision["action"], world.reason) == ("Switch", "GainAboveThreshold")
    await world.until(lambda: world.phase == "Confirming")
    world.load(3.0)
    await world.until(lambda: world.phase is None)
    entry = world.whole["history"][0]
    assert (entry["result"], entry["fromArm"], entry["toArm"]) == ("Confirmed", "none", "eagle/3")
    assert abs(float(entry["measuredSpeedup"]) / float(entry["predictedSpeedup"]) - 1) < 0.05
    assert world.events.count("RollStarted") == world.events.count("RollConfirmed") == 1
    assert len(world.rolls) == 1


async def test_beyond_the_break_even_it_goes_back_to_no_speculation():
    world = await rolled(FleetWorld())
    await world.until(lambda: world.phase is None)
    assert BREAK_EVEN_RPS < 9.2
    world.load(9.3)
    await world.until(lambda: world.value == "null")
    assert world.reason in {"BeyondBreakEven", "EnteredSaturation"}
    await world.until(lambda: world.phase == "Confirming")
    assert world.whole["current"]["arm"] == "none"


async def test_an_arm_that_slows_requests_next_to_its_saturation_is_left_at_once():
    """At 12 rps, break-even 9.1, requests take 4 s where none takes 2.5 s; neither dwell nor cool-down holds that up."""
    world = await rolled(FleetWorld(lambda spec: spec["updatePolicy"].update(cooldownSeconds=86400)))
    await world.until(lambda: world.phase is None)
    world.load(12.0)
    world.prometheus.traffic.latency_s = 4.0
    await world.until(lambda: world.value == "null", cycles=4)
    assert world.reason == "BeyondBreakEven"
    assert "no speculation saves" in world.decision["message"]


async def test_intent_is_in_the_status_before_the_target_is_written():
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    seen = []
    world.cluster.fail = lambda verb, resource, name: seen.append((verb, resource.plural, world.phase, name))
    await world.until(lambda: world.value == VALUE)
    write = next(entry for entry in seen if entry[0] == "apply" and entry[1] == "deployments")
    assert write[2] == "Intended"
    assert float(world.whole["rollout"]["loadRps"]) == pytest.approx(3.0, rel=0.05), (
        "the load that the promise is for"
    )
    (begun,) = [one for one in world.cluster.of(EVENTS) if one["reason"] == "RollStarted"]
    assert "at 3 rps per replica" in (begun.get("note") or begun["message"])
    after = seen[seen.index(write) + 1]
    assert (after[0], after[1]) == ("get", "deployments"), "what was written is read back"


async def test_a_restart_in_the_middle_of_a_roll_finishes_it_without_a_second_one():
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.phase == "Rolling")
    started = world.status["rollout"]["id"]
    world.restart()
    await world.until(lambda: world.phase == "Confirming")
    assert world.whole["rollout"]["id"] == started
    assert len(world.rolls) == 1


async def test_a_crash_between_intent_and_write_is_made_good_by_the_next_process():
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)

    def die(verb, resource, name):
        if verb == "apply" and resource.plural == "deployments":
            world.leads = False
            raise Crash

    world.cluster.fail = die
    with pytest.raises(Crash):
        await world.until(lambda: world.value == VALUE)
    assert world.phase == "Intended"
    assert world.value is None
    world.cluster.fail = lambda *_: None
    world.leads = True
    world.restart()
    await world.until(lambda: world.phase == "Rolling", cycles=3)
    assert world.value == VALUE
    assert len(world.rolls) == 1


async def test_restart_upgrade_and_a_new_fit_of_the_same_points_restart_no_pod():
    world = await rolled(FleetWorld())
    await world.until(lambda: world.phase is None)
    rolls = len(world.rolls)
    for number in (2, 3):
        world.restart()
        world.calibrate(name=f"chat-p{number}")
        for _ in range(20):
            await world.cycle(60.0)
    assert len(world.rolls) == rolls
    assert world.status["calibration"]["profile"] == "chat-p3"


async def test_a_roll_that_finds_no_gpu_is_undone_and_backs_off_doubling():
    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(cooldownSeconds=0, stabilizationWindowSeconds=0)
    )
    world.calibrate()
    world.load(3.0)
    world.kubelet.schedulable = False
    pauses = []
    for _ in range(2):
        await world.until(lambda: world.value == VALUE)
        await world.until(lambda: world.phase == "Undoing")
        assert world.reason == "InsufficientGPU"
        assert re.search(r"\(for \d+ s\)", world.decision["message"]), "how long was waited for a GPU"
        until = datetime.fromisoformat(world.memory["backoffUntilTime"])
        pauses.append((until - world.clock.now()).total_seconds())
        await world.until(lambda: world.phase is None)
        assert world.whole["history"][0]["result"] == "Undone"
        assert world.value is None, "the very template that ran before: no pod of it had to start anew"
    assert pauses == [300.0, 600.0]
    await world.until(lambda: world.reason == "BackingOff", cycles=10)


async def test_a_roll_whose_engine_dies_is_undone_before_any_deadline():
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    world.kubelet.crash = {VALUE}
    await world.until(lambda: world.phase == "Undoing")
    assert world.reason == "EngineNotStarting"
    assert all(pod.value is None for pod in world.target.serving)


async def test_a_roll_past_its_own_deadline_is_undone():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(rollDeadlineSeconds=120))
    world.calibrate()
    world.load(3.0)
    world.kubelet.startup_s = 10_000.0
    await world.until(lambda: world.phase == "Undoing")
    assert world.reason == "RollDeadlineExceeded"
    world.kubelet.startup_s = 20.0
    await world.until(lambda: world.phase is None)
    assert world.whole["current"]["arm"] == "none"


async def test_an_arm_that_was_left_at_a_high_load_stays_left_when_the_load_falls():
    """It is slower at the lower load by as much as was promised for that: nothing is undone, and no gain was measured."""
    world = await rolled(FleetWorld())
    await world.until(lambda: world.phase is None)
    world.load(9.3)
    await world.until(lambda: world.value == "null")
    world.load(3.0)
    await world.until(lambda: world.phase == "Confirming")
    world.load(3.0)
    await world.until(lambda: world.phase != "Confirming")
    entry = world.whole["history"][0]
    assert (entry["fromArm"], entry["toArm"], entry["result"]) == ("eagle/3", "none", "Unmeasured")
    assert float(entry["measuredSpeedupUpper"]) < 1
    assert entry["message"] == "another change began first"
    assert "backoffUntilTime" not in world.memory
    # The ordinary decision deals with it, after the ordinary time.
    await world.until(lambda: world.value == VALUE)
    assert world.reason == "GainAboveThreshold"


@pytest.mark.claim("README.md", "The default mode is `Recommend`: nothing of yours is changed.")
async def test_recommend_and_disabled_never_write_to_the_target():
    for mode, action in (("Recommend", "Recommend"), ("Disabled", "Hold")):
        world = FleetWorld(lambda spec, mode=mode: spec["updatePolicy"].update(mode=mode))
        world.calibrate()
        world.load(3.0)
        for _ in range(10):
            await world.cycle(60.0)
        assert world.rolls == []
        assert world.decision["action"] == action
        assert world.decision["comparedArm"] == EAGLE.name


async def test_without_a_profile_nothing_is_written_but_a_calibration_is_asked_for_once():
    world = FleetWorld()
    world.load(3.0)
    for _ in range(3):
        await world.cycle()
    assert world.rolls == []
    runs = [write for write in world.cluster.writes if write[:2] == ("create", "calibrationruns")]
    assert len(runs) == 1
    assert world.reason == "CalibrationRunning"


async def test_paused_holds_and_says_so():
    world = FleetWorld(lambda spec: spec.update(paused=True))
    world.calibrate()
    world.load(3.0)
    for _ in range(10):
        await world.cycle()
    assert (world.decision["action"], world.reason) == ("Hold", "Paused")
    assert world.rolls == []


async def test_a_pinned_arm_is_rolled_whatever_the_figures_say():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(pinnedArm="eagle/3"))
    world.calibrate()
    world.load(11.0)
    await world.until(lambda: world.value == VALUE, cycles=3)
    assert world.reason in {"Pinned", "RollStarted"}
    await world.until(lambda: world.phase == "Confirming")
    for _ in range(15):
        await world.cycle(60.0)
    assert world.value == VALUE
    assert (world.decision["action"], world.reason) == ("Stay", "Pinned")


async def test_a_pinned_arm_waits_for_a_profile_that_has_measured_it():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(pinnedArm="eagle/3"))
    world.load(3.0)
    for _ in range(3):
        await world.cycle()
    assert (world.decision["action"], world.reason) == ("Hold", "CalibrationRunning")
    assert "pinnedArm asks for eagle/3, which waits for an accepted profile" in world.decision["message"]
    world.calibrate(arms=(NO_SPECULATION,))
    for _ in range(3):
        await world.cycle()
    assert (world.decision["action"], world.reason) == ("Hold", "ArmUnmeasured")
    assert world.rolls == []
    world.clock.advance(1.0)
    world.calibrate(name="chat-p2")
    await world.until(lambda: world.value == VALUE, cycles=3)


async def test_a_pinned_arm_is_rolled_though_the_running_one_was_never_measured():
    """A person's static choice runs, which no profile knows: the figures say nothing, and the pin needs none."""

    def another(target):
        annotations = target["spec"]["template"]["metadata"]["annotations"]
        annotations["breakeven.dev/speculative-config"] = '{"method":"ngram","num_speculative_tokens":9}'

    def told(policy):
        world = FleetWorld(lambda spec: spec["updatePolicy"].update(policy), target=another)
        world.calibrate()
        world.load(3.0)
        return world

    unknown = told({})
    await unknown.cycle()
    assert (unknown.decision["action"], unknown.reason) == ("Hold", "NotMeasured")
    world = told({"pinnedArm": "none"})
    await world.cycle()
    assert (world.decision["action"], world.reason, world.decision["arm"]) == ("Switch", "Pinned", "none")
    assert world.memory["takenOverBy"] == "helm", "whose annotation it is; the decision stands all the same"
    disabled = told({"mode": "Disabled"})
    await disabled.cycle()
    assert (disabled.decision["action"], disabled.reason) == ("Hold", "Disabled")


async def test_a_pinned_arm_that_runs_waits_for_nothing():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(pinnedArm="none"))
    await world.cycle()
    assert (world.decision["action"], world.reason) == ("Stay", "Pinned")


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda spec: spec.update(paused=True), "Paused"),
        (lambda spec: spec["updatePolicy"].update(mode="Disabled"), "Disabled"),
        (lambda spec: spec.update(paused=True) or spec["updatePolicy"].update(pinnedArm="eagle/3"), "Paused"),
        (lambda spec: spec["updatePolicy"].update(mode="Disabled", pinnedArm="eagle/3"), "Disabled"),
    ],
)
@pytest.mark.parametrize("calibrated", [True, False])
async def test_paused_and_disabled_hold_at_once_with_and_without_a_profile(edit, reason, calibrated):
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0))
    if calibrated:
        world.calibrate()
    world.load(3.0)
    world.cluster.change(SERVICES, "llm", "chat", lambda service: edit(service["spec"]))
    await world.cycle()
    assert (world.decision["action"], world.reason) == ("Hold", reason)
    for _ in range(3):
        await world.cycle()
    assert world.rolls == []
    assert [write for write in world.cluster.writes if write[1] in {"calibrationruns", "jobs"}] == []


async def test_no_roll_begins_that_would_leave_too_few_pods_for_the_load():
    def takes_a_pod_away_first(target):
        target["spec"]["strategy"]["rollingUpdate"] = {"maxSurge": 0, "maxUnavailable": 1}

    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0), target=takes_a_pod_away_first
    )
    world.calibrate()
    # Eagle saturates at 12.5 rps: the pod that is left would run at 80 %.
    world.load(5.0)
    for _ in range(3):
        await world.cycle()
    assert (world.decision["action"], world.reason) == ("Hold", "InsufficientCapacity")
    assert "80%" in world.decision["message"]
    assert world.rolls == []
    world.load(4.0)
    await world.until(lambda: world.value == VALUE, cycles=3)


async def test_no_roll_begins_between_two_steps_of_an_autoscaler():
    """Pinned, because pods that are new keep the figures themselves from being used for half a window."""
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(pinnedArm="eagle/3"))
    await world.cycle()
    world.calibrate()
    for wanted in (3, 4, 2):
        world.cluster.change(
            DEPLOYMENTS, "llm", "chat-vllm", lambda t, n=wanted: t["spec"].update(replicas=n)
        )
        # A fast engine is ready again before the autoscaler's next step, 45 s later.
        for _ in range(3):
            await world.cycle()
            assert world.rolls == []
        assert world.target.settled
        assert (world.decision["action"], world.reason) == ("Hold", "RollWaits")
        assert "a roll waits until it has stood still" in world.decision["message"]
    await world.until(lambda: world.value == VALUE, cycles=3)


async def test_the_log_has_one_line_per_change_or_window_and_not_per_cycle(caplog):
    caplog.set_level(logging.INFO, logger="breakeven_operator.decision")
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Recommend"))
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.decision.get("action") == "Recommend")
    for _ in range(5):
        await world.cycle()
    caplog.clear()
    for _ in range(50):
        await world.cycle()
    # Twelve minutes are two windows or three of the account.
    assert {record.args["did"][0] for record in caplog.records} == {"WriteStatus"}
    assert len(caplog.records) in {2, 3}
    caplog.clear()
    world.prometheus.down = True
    for _ in range(5):
        await world.cycle()
    (line,) = caplog.records
    assert (line.args["reason"], line.args["did"]) == ("MetricsMissing", ["WriteStatus", "EmitEvent"])


async def test_a_run_that_cannot_be_read_is_complained_about_once(caplog):
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Disabled"))
    body = {
        "metadata": {"namespace": "llm", "name": "odd"},
        "spec": {"serviceRef": {"name": "chat"}, "loads": "x"},
    }
    world.cluster.put(RUNS, body, manager="person")
    for _ in range(5):
        await world.cycle()
    complaints = [record.getMessage() for record in caplog.records if "llm/odd" in record.getMessage()]
    assert len(complaints) == 1


@pytest.mark.parametrize("meanwhile", ["made anew", "deleted"])
async def test_a_target_that_is_another_one_by_the_time_of_the_write_is_not_touched(meanwhile):
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0))
    world.calibrate()
    world.load(3.0)

    def happens(verb, resource, _name):
        if verb == "apply" and resource == DEPLOYMENTS:
            if meanwhile == "deleted":
                world.cluster.objects.pop(("deployments", "llm", "chat-vllm"), None)
            else:
                world.cluster.objects["deployments", "llm", "chat-vllm"]["metadata"]["uid"] = "another"

    world.cluster.fail = happens
    await world.cycle()
    assert world.phase == "Intended"
    assert world.rolls == []
    world.cluster.fail = lambda *_: None
    await world.cycle()
    assert world.rolls == []
    if meanwhile == "made anew":
        assert world.phase is None
        assert world.whole["history"][0]["result"] == "Superseded"
        assert "made again" in world.whole["history"][0]["message"]


async def test_on_a_target_that_was_made_anew_nothing_is_restored_without_a_decision():
    world = await rolled(FleetWorld())
    await world.until(lambda: world.phase is None)
    rolls = len(world.rolls)
    deployment = world.cluster.objects["deployments", "llm", "chat-vllm"]
    del deployment["spec"]["template"]["metadata"]["annotations"]["breakeven.dev/speculative-config"]
    deployment["metadata"]["uid"] = "another"
    world.prometheus.down = True
    for _ in range(5):
        await world.cycle()
    assert len(world.rolls) == rolls
    assert "Restored" not in world.events
    assert world.memory.get("takenOverBy") is None


async def test_a_spec_that_changes_between_decision_and_intent_stops_the_roll():
    """The status that holds the intent is written on the very object that was read, or nothing is."""
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0))
    world.calibrate()
    world.load(3.0)

    def paused_by_somebody(verb, resource, _name):
        if verb == "apply" and resource == SERVICES and not world.service["spec"].get("paused"):
            world.cluster.change(SERVICES, "llm", "chat", lambda service: service["spec"].update(paused=True))

    world.cluster.fail = paused_by_somebody
    report = await world.cycle()
    assert (world.phase, world.rolls, report.errors) == (None, [], [])
    await world.cycle()
    assert (world.reason, world.rolls) == ("Paused", [])


async def test_a_roll_lasts_until_the_last_old_pod_has_ended():
    """The Deployment does not count pods that are stopping; they still answer their last requests."""
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    world.kubelet.stop_s = 140.0
    await world.until(lambda: world.phase == "Rolling")

    def new_ones_serve():
        return len(world.target.serving) == 2 and world.target.total == 2

    await world.until(new_ones_serve)
    await world.cycle()
    assert new_ones_serve()
    assert world.phase == "Rolling"
    await world.until(lambda: world.phase == "Confirming")
    assert all(pod.current for pod in world.target.pods)


async def test_deleting_the_service_leaves_the_target_as_it_is():
    world = await rolled(FleetWorld())
    world.cluster.remove(SERVICES, "llm", "chat")
    before = len(world.cluster.writes)
    for _ in range(5):
        await world.cycle()
    assert world.value == VALUE
    assert len(world.cluster.writes) == before


async def test_a_value_that_is_changed_on_its_way_is_not_taken_for_written():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0))
    world.calibrate()
    world.load(3.0)
    apply = world.cluster.apply

    async def admitted(resource, body, **options):
        answer = await apply(resource, body, **options)
        if resource.plural == "deployments":
            deployment = world.cluster.objects["deployments", "llm", "chat-vllm"]
            deployment["spec"]["template"]["metadata"]["annotations"]["breakeven.dev/speculative-config"] = (
                "{}"
            )
        return answer

    world.cluster.apply = admitted
    report = await world.cycle()
    assert any("read back" in error for error in report.errors)
    await world.cycle()
    assert world.reason == "TakenOver", "somebody who changes what we write owns it; no fight"


async def test_an_arm_is_not_written_into_a_deployment_that_has_changed_since_it_was_decided_upon():
    """Observations may lag behind: the last look before the write is at the API server itself."""
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    await world.cycle()
    changes: list[datetime] = []

    def meanwhile(verb, resource, _name):
        if (verb, resource) == ("get", DEPLOYMENTS) and len(changes) < 2:
            changes.append(world.clock.now())
            world.cluster.change(
                DEPLOYMENTS, "llm", "chat-vllm", lambda d: d["spec"].update(minReadySeconds=len(changes))
            )

    world.cluster.fail = meanwhile
    report = await world.cycle()
    while not changes:
        report = await world.cycle()
    assert world.value is None
    # It is no error: the next cycle sees the Deployment as it is, and decides about that.
    assert report.errors == []
    await world.until(lambda: world.value == VALUE)
    assert len(changes) == 2
    assert len(world.rolls) == 1


async def test_a_recommendation_that_nobody_follows_dwells_as_a_roll_does():
    """The load jumps over the break-even and back every half minute: RECOMMENDED may follow no faster than a roll would."""
    world = FleetWorld(
        lambda spec: spec["updatePolicy"].update(mode="Recommend", stabilizationWindowSeconds=120)
    )
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.decision.get("action") == "Recommend")
    seen = []
    for step in range(40):
        world.load(3.0 if step % 4 < 2 else 15.0)
        await world.cycle(15.0)
        seen.append(
            (world.clock.now(), world.decision["arm"], world.status["workings"]["display"]["recommended"])
        )
    entered = [later[0] for earlier, later in pairwise(seen) if later[1] == "eagle/3" != earlier[1]]
    assert all((later - earlier).total_seconds() >= 120.0 for earlier, later in pairwise(entered))
    assert all(arm == shown for _, arm, shown in seen)
    assert len(entered) <= 3
    world.load(3.0)
    await world.until(lambda: world.decision["arm"] == "eagle/3", cycles=30)
    assert world.decision["action"] == "Recommend"
    assert world.rolls == []


@pytest.mark.parametrize("away_s", [15.0, 60.0, 120.0])
async def test_advice_to_leave_the_arm_in_place_ends_only_after_the_dwell(away_s):
    world = await rolled(FleetWorld(lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=120)))
    await world.until(lambda: world.phase is None)
    world.service["spec"]["updatePolicy"]["mode"] = "Recommend"
    world.load(15.0)
    await world.until(lambda: world.decision["arm"] == "none", cycles=10)
    assert world.decision["action"] == "Recommend"
    for _ in range(int(away_s / 15.0)):
        await world.cycle(15.0)
    world.load(3.0)
    begun = world.clock.now()
    await world.cycle(15.0)
    assert (world.decision["arm"], world.reason) == ("none", "Dwelling")
    assert "eagle/3 is recommended when that has been so for 2 min" in world.decision["message"]
    await world.until(lambda: world.decision["arm"] == "eagle/3", cycles=30)
    assert (world.clock.now() - begun).total_seconds() >= 120.0
    assert world.decision["action"] == "Stay"
