"""Runs around the fleet: admitted one at a time, accounted for once, kept for a while, and gone with their service."""

from __future__ import annotations

import copy

import pytest

from breakeven.arm import NO_SPECULATION
from breakeven_operator.calibration.jobs import job_name
from breakeven_operator.calibration.transition import stored
from breakeven_operator.kinds import (
    BUDGETS,
    CLAIMS,
    CORE_SERVICES,
    CRONJOBS,
    DEPLOYMENTS,
    EVENTS,
    FINISHED_LABEL,
    JOBS,
    PODS,
    PROFILES,
    ROLE_BINDINGS,
    RUN_LABEL,
    RUNS,
    SERVICE_ACCOUNTS,
    SERVICE_LABEL,
    SERVICES,
)
from breakeven_operator.ports import ClusterError
from breakeven_operator.reconcile import reconcile
from fakes.fleet_world import EAGLE, LAWS, SERVICE, TARGET, VALUE, FleetWorld
from fakes.lawful_profile import lawful_points


def run(world, name, *, service="chat", phase=None, namespace="llm", **status):
    body = {
        "apiVersion": "breakeven.dev/v1alpha1",
        "kind": "CalibrationRun",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"serviceRef": {"name": service}},
        "status": {**({"phase": phase} if phase else {}), **status},
    }
    return world.cluster.put(RUNS, body, manager="person")


def phases(world):
    return {run["metadata"]["name"]: (run.get("status") or {}).get("phase") for run in world.cluster.of(RUNS)}


def change(world, edit):
    world.cluster.change(SERVICES, "llm", "chat", lambda service: edit(service["spec"]))


async def test_the_first_run_gets_an_account_before_its_first_job():
    world = FleetWorld()
    world.load(3.0)
    for _ in range(3):
        await world.cycle()
    kinds = [kind for _, kind, _ in world.cluster.writes]
    assert kinds.index("serviceaccounts") < kinds.index("jobs")
    assert kinds.index("rolebindings") < kinds.index("jobs")
    account, binding = world.cluster.of(SERVICE_ACCOUNTS)[0], world.cluster.of(ROLE_BINDINGS)[0]
    assert account["metadata"]["name"] == binding["subjects"][0]["name"] == "breakeven-chat"
    assert binding["roleRef"]["name"] == "breakeven-trial"
    assert len(world.cluster.of(JOBS)) == 1, "one arm at a time"
    assert world.reason == "CalibrationRunning"


async def test_a_service_deleted_during_its_calibration_leaves_nothing():
    world = FleetWorld()
    world.load(3.0)
    for _ in range(3):
        await world.cycle()
    assert world.cluster.of(JOBS)
    world.cluster.remove(SERVICES, "llm", "chat")
    # The garbage collector takes what the run owned, as here what the service owned went at once.
    for job in list(world.cluster.of(JOBS)):
        owner = job["metadata"]["ownerReferences"][0]
        assert owner["kind"] == "CalibrationRun"
        world.cluster.remove(JOBS, "llm", job["metadata"]["name"])
    await world.cycle()
    for kind in (RUNS, JOBS, SERVICE_ACCOUNTS, ROLE_BINDINGS, CRONJOBS):
        assert world.cluster.of(kind) == []
    assert len(world.cluster.of(DEPLOYMENTS)) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, True),
        ({"finalizers": []}, False),
        ({"deletionTimestamp": "2999-01-01T00:00:00Z"}, False),
        ({"phase": "Failed"}, False),
        ({"service": "another"}, False),
    ],
    ids=["kept", "no finalizer", "in its grace period", "has ended", "of another service"],
)
async def test_a_pod_that_a_finalizer_keeps_after_its_run_is_named(changes, said):
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    body = {
        "metadata": {
            "namespace": "llm",
            "name": "chat-old-none-x",
            "labels": {RUN_LABEL: "chat-old", SERVICE_LABEL: changes.get("service", "chat")},
            "deletionTimestamp": changes.get("deletionTimestamp", "2020-01-01T00:00:00Z"),
            "finalizers": changes.get("finalizers", ["tenant.example/audit"]),
        },
        "spec": {},
        "status": {"phase": changes.get("phase", "Running")},
    }
    world.cluster.put(PODS, body, manager="person")
    for _ in range(2):
        await world.cycle()
    notes = [event["note"] for event in world.cluster.of(EVENTS) if event["reason"] == "PodKept"]
    assert bool(notes) is said
    if said:
        assert notes == [
            "pod chat-old-none-x was deleted and is kept by tenant.example/audit: it may hold its GPUs"
        ]


async def test_a_run_of_a_service_that_does_not_exist_says_so_in_its_first_cycle():
    world = FleetWorld()
    run(world, "typo", service="chatt")
    await world.cycle()
    status = next(one["status"] for one in world.cluster.of(RUNS) if one["metadata"]["name"] == "typo")
    assert (status["phase"], status["reason"]) == ("Pending", "CalibrationDeferred")
    assert "there is no SpeculativeService chatt" in status["message"]


async def test_a_user_s_label_hides_no_run_that_goes_on():
    world = FleetWorld()
    world.load(3.0)
    for _ in range(3):
        await world.cycle()
    (name,) = phases(world)
    world.cluster.change(
        RUNS,
        "llm",
        name,
        lambda run: run["metadata"].setdefault("labels", {}).update({FINISHED_LABEL: "true"}),
    )
    (job,) = world.cluster.of(JOBS)
    world.cluster.change(
        SERVICES, "llm", "chat", lambda service: service["spec"]["targetRef"].update(name="other")
    )
    for _ in range(2):
        await world.cycle()
    # Its target is another one: a run that is looked at ends, and its Job goes.
    assert phases(world)[name] == "Superseded"
    assert job["metadata"]["name"] not in {one["metadata"]["name"] for one in world.cluster.of(JOBS)}


async def test_two_services_are_calibrated_one_after_the_other():
    world = FleetWorld()
    target, service = copy.deepcopy(TARGET), copy.deepcopy(SERVICE)
    target["metadata"]["name"] = service["spec"]["targetRef"]["name"] = "code-vllm"
    service["metadata"]["name"] = "code"
    world.cluster.put(DEPLOYMENTS, target, manager="helm")
    world.cluster.put(SERVICES, service)
    world.kubelet.settle()
    world.load(3.0)
    for _ in range(4):
        await world.cycle()
    started = [phase for phase in phases(world).values() if phase == "Starting"]
    assert (len(phases(world)), len(started)) == (2, 1)
    waiting = next(run for run in world.cluster.of(RUNS) if run["status"]["phase"] == "Pending")
    assert waiting["status"]["reason"] == "CalibrationDeferred"


async def test_a_second_run_of_the_same_service_is_superseded():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Disabled"))
    world.load(3.0)
    run(world, "first")
    world.clock.advance(5.0)
    run(world, "second")
    for _ in range(3):
        await world.cycle()
    assert phases(world) == {"first": "Starting", "second": "Superseded"}


async def test_a_run_that_waits_for_its_target_keeps_nobody_else_waiting():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Disabled"))
    target, service = copy.deepcopy(TARGET), copy.deepcopy(SERVICE)
    target["metadata"]["name"] = service["spec"]["targetRef"]["name"] = "idle-vllm"
    target["spec"]["replicas"] = 0
    service["metadata"]["name"] = "idle"
    service["spec"]["updatePolicy"] = {"mode": "Disabled"}
    world.cluster.put(DEPLOYMENTS, target, manager="helm")
    world.cluster.put(SERVICES, service)
    world.kubelet.settle()
    run(world, "a-waits", service="idle")
    world.clock.advance(5.0)
    run(world, "b-goes")
    for _ in range(3):
        await world.cycle()
    assert phases(world) == {"a-waits": "Pending", "b-goes": "Starting"}
    world.cluster.requests.clear()
    for _ in range(3):
        await world.cycle()
    assert world.cluster.requests["create"] == 0, "waiting asks nothing of the API server"


async def test_a_paused_service_s_run_waits_and_keeps_nobody_else_waiting():
    world = FleetWorld(lambda spec: spec.update(paused=True))
    run(world, "by-hand")
    for _ in range(3):
        await world.cycle()
    (found,) = world.cluster.of(RUNS)
    assert (found["status"]["phase"], found["status"]["message"]) == ("Pending", "spec.paused is true")
    assert world.cluster.of(JOBS) == []
    change(world, lambda spec: spec.update(paused=False))
    await world.cycle()
    assert phases(world) == {"by-hand": "Starting"}


async def test_a_target_rolled_by_somebody_during_its_calibration_is_measured_anew():
    """No Job is ever built from another template than the first one of its run."""
    world = FleetWorld()
    world.load(3.0)
    for _ in range(3):
        await world.cycle()
    (first,) = phases(world)
    world.cluster.change(
        DEPLOYMENTS,
        "llm",
        "chat-vllm",
        lambda target: target["spec"]["template"]["spec"]["containers"][0].update(
            image="vllm/vllm-openai:v0.33.0"
        ),
    )
    world.clock.advance(1.0)
    await world.fleet.cycle()
    assert phases(world)[first] == "Superseded"
    assert world.cluster.of(JOBS) == []
    for _ in range(2):
        await world.cycle(0.0)
    (second,) = phases(world).keys() - {first}
    assert phases(world)[second] == "Pending", "nobody serves with the new template yet"
    await world.until(lambda: phases(world)[second] == "Starting")
    await world.cycle()
    made = [body for kind, body in world.cluster.created if kind == "jobs"]
    images = {
        (
            job["metadata"]["labels"]["breakeven.dev/run"],
            job["spec"]["template"]["spec"]["initContainers"][-1]["image"],
        )
        for job in made
    }
    assert images == {(first, "vllm/vllm-openai:v0.32.0"), (second, "vllm/vllm-openai:v0.33.0")}


async def test_a_target_deleted_during_its_calibration_frees_the_gpu_and_is_measured_anew_when_it_is_back():
    world = FleetWorld()
    world.load(3.0)
    for _ in range(3):
        await world.cycle()
    (first,) = phases(world)
    assert world.cluster.of(JOBS)
    manifest = copy.deepcopy(TARGET)
    world.cluster.remove(DEPLOYMENTS, "llm", "chat-vllm")
    await world.cycle()
    ended = world.cluster.objects["calibrationruns", "llm", first]["status"]
    assert (ended["phase"], ended["reason"]) == ("Superseded", "TargetNotFound")
    assert "Deployment chat-vllm is gone" in ended["message"]
    assert world.cluster.of(JOBS) == []
    assert "TargetNotFound" in world.events
    for _ in range(20):
        await world.cycle()
    (second,) = phases(world).keys() - {first}
    assert phases(world)[second] == "Pending"
    assert world.cluster.of(JOBS) == []
    assert world.reason == "TargetNotFound"
    world.cluster.put(DEPLOYMENTS, manifest, manager="helm")
    world.kubelet.settle()
    await world.until(lambda: phases(world)[second] == "Starting", cycles=3)
    await world.cycle()
    (job,) = world.cluster.of(JOBS)
    assert job["metadata"]["labels"]["breakeven.dev/run"] == second
    assert len(phases(world)) == 2


async def test_lengths_that_nobody_named_are_those_of_the_target_s_traffic():
    world = FleetWorld()
    world.load(3.0)
    world.prometheus.traffic.prompt_tokens, world.prometheus.traffic.output_tokens = 321.0, 45.0
    for _ in range(3):
        await world.cycle()
    plan = world.cluster.of(RUNS)[0]["status"]["plan"]
    assert (plan["promptTokens"], plan["outputTokens"]) == (321, 45)


async def test_a_volume_that_only_one_pod_may_mount_is_not_copied():
    def mount(target):
        spec = target["spec"]["template"]["spec"]
        spec["volumes"] = [{"name": "w", "persistentVolumeClaim": {"claimName": "weights"}}]

    world = FleetWorld(target=mount)
    claim = {"metadata": {"namespace": "llm", "name": "weights"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    world.cluster.put(CLAIMS, claim)
    for _ in range(3):
        await world.cycle()
    (found,) = world.cluster.of(RUNS)
    assert (found["status"]["phase"], found["status"]["reason"]) == ("Failed", "VolumeNotShareable")
    calibrated = world.condition("Calibrated")
    assert (calibrated["status"], calibrated["reason"]) == ("False", "VolumeNotShareable")
    assert found["metadata"]["name"] in calibrated["message"]
    assert "ReadWriteOnce" in calibrated["message"]


async def test_a_run_by_hand_is_admitted_in_mode_disabled_too():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Disabled"))
    run(world, "by-hand")
    for _ in range(3):
        await world.cycle()
    assert phases(world) == {"by-hand": "Starting"}


async def test_an_ended_run_is_counted_marked_and_read_no_more():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Disabled"))
    run(
        world,
        "r1",
        phase="Failed",
        reason="FitRejected",
        finishedTime="2026-11-21T12:00:00Z",
        gpuSecondsUsed="120",
    )
    for _ in range(3):
        await world.cycle()
    (found,) = world.cluster.of(RUNS)
    assert found["metadata"]["labels"]["breakeven.dev/finished"] == "true"
    assert world.status["calibration"]["failures"] == 1
    labels = {"specsvc_namespace": "llm", "specsvc": "chat"}
    sample = world.registry.get_sample_value
    assert sample("breakeven_calibrations_total", {**labels, "reason": "FitRejected"}) == 1
    assert sample("breakeven_calibration_gpu_seconds_total", labels) == 120
    world.restart()
    await world.cycle()
    assert world.status["calibration"]["totalGpuSeconds"] == "120"
    assert world.registry.get_sample_value("breakeven_calibrations_gpu_seconds_spent", labels) == 120


async def test_a_run_is_marked_only_after_the_status_that_counts_it():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Disabled"))
    await world.cycle()
    run(world, "r1", phase="Failed", finishedTime="2026-11-21T12:00:00Z")

    def refuse(verb, resource, _name):
        if verb == "apply" and resource.plural == "speculativeservices":
            raise ClusterError("no answer")

    world.cluster.fail = refuse
    await world.cycle()
    assert "labels" not in world.cluster.of(RUNS)[0]["metadata"]
    world.cluster.fail = lambda *_: None
    await world.cycle()
    assert world.status["calibration"]["failures"] == 1
    assert world.cluster.of(RUNS)[0]["metadata"]["labels"]


async def test_old_runs_and_replaced_profiles_are_deleted_beyond_the_limit_and_never_the_one_in_force():
    world = FleetWorld()
    for number in range(6):
        world.clock.advance(10.0)
        world.calibrate(name=f"p{number}")
        run(world, f"r{number}", phase="Succeeded", finishedTime=world.clock.now().isoformat())
    run(world, "other", service="another", phase="Succeeded", finishedTime=world.clock.now().isoformat())
    for _ in range(3):
        await world.cycle()
    assert sorted(run["metadata"]["name"] for run in world.cluster.of(RUNS)) == ["other", "r3", "r4", "r5"]
    left = {
        profile["metadata"]["name"]: profile["status"]["inForce"] for profile in world.cluster.of(PROFILES)
    }
    assert left == {"p2": False, "p3": False, "p4": False, "p5": True}


async def test_each_profile_is_read_once_and_marked_once():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(mode="Recommend"))
    world.calibrate()
    world.load(3.0)
    for _ in range(2):
        await world.cycle()
    world.cluster.requests.clear()
    for _ in range(5):
        await world.cycle()
    assert world.cluster.requests["get"] == 0
    assert [write[1] for write in world.cluster.writes].count("speculationprofiles") == 1


async def test_a_damaged_profile_is_named_and_not_used():
    world = FleetWorld()
    world.calibrate()
    profile = world.cluster.of(PROFILES)[0]
    profile["spec"]["profile"] = '{"schema": "something else"}'
    world.load(3.0)
    await world.cycle()
    assert world.condition("Calibrated")["status"] == "False"
    assert "chat-p1" in world.condition("Calibrated")["message"]
    assert world.rolls == []


async def test_a_schedule_makes_a_cronjob_follows_it_and_takes_it_away():
    world = FleetWorld(lambda spec: spec.update(paused=False, calibration={"schedule": "0 3 * * 0"}))
    world.calibrate()
    await world.cycle()
    (cron,) = world.cluster.of(CRONJOBS)
    assert (cron["metadata"]["name"], cron["spec"]["schedule"]) == ("breakeven-chat", "0 3 * * 0")
    writes = len([write for write in world.cluster.writes if write[1] == "cronjobs"])
    await world.cycle()
    assert len([write for write in world.cluster.writes if write[1] == "cronjobs"]) == writes
    change(world, lambda spec: spec["calibration"].update(schedule="0 4 * * *"))
    await world.cycle()
    assert world.cluster.of(CRONJOBS)[0]["spec"]["schedule"] == "0 4 * * *"
    change(world, lambda spec: spec["calibration"].pop("schedule"))
    await world.cycle()
    assert world.cluster.of(CRONJOBS) == []


async def test_a_spec_that_breaks_a_rule_says_so_and_touches_nothing_else():
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    await world.until(lambda: world.value == VALUE)
    before = world.whole
    change(world, lambda spec: spec["updatePolicy"].update(pinnedArm="nobody/7"))
    await world.cycle()
    ready = next(c for c in world.status["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec")
    assert "pinnedArm" in ready["message"]
    assert world.whole["rollout"] == before["rollout"], "what a restart needs stays"
    others = [[c for c in status["conditions"] if c["type"] != "Ready"] for status in (before, world.status)]
    assert others[0] == others[1] != []
    writes = len(world.cluster.writes)
    await world.cycle()
    assert len(world.cluster.writes) == writes


async def test_a_second_service_on_the_target_is_refused_and_the_older_one_goes_on():
    world = FleetWorld()
    world.calibrate()
    world.load(3.0)
    second = copy.deepcopy(SERVICE)
    second["metadata"]["name"] = "younger"
    world.clock.advance(1.0)
    world.cluster.put(SERVICES, second)
    await world.until(lambda: world.value == VALUE)
    other = world.cluster.objects["speculativeservices", "llm", "younger"]["status"]
    assert other["decision"]["reason"] == "AlreadyManaged"
    assert next(c for c in other["conditions"] if c["type"] == "Ready")["status"] == "False"
    assert len(world.rolls) == 1


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda t: t["spec"]["template"]["spec"]["containers"][0]["args"].pop(), "NotOptedIn"),
        (
            lambda t: t["spec"]["template"]["spec"].update(terminationGracePeriodSeconds=30),
            "DrainNotConfigured",
        ),
        (lambda t: t["spec"].update(paused=True), "TargetPaused"),
    ],
)
async def test_a_target_that_may_not_be_rolled_is_decided_about_and_left_alone(edit, reason):
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0), target=edit)
    world.calibrate()
    world.load(3.0)
    for _ in range(3):
        await world.cycle()
    assert (world.decision["action"], world.reason, world.decision["arm"]) == ("Hold", reason, "eagle/3")
    assert world.condition("Ready")["reason"] == reason
    assert world.rolls == []


async def test_no_more_targets_roll_at_a_time_than_allowed():
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0))
    world.add_services(4, stabilizationWindowSeconds=0)
    world.calibrate()
    profile = world.cluster.of(PROFILES)[0]
    for number in range(4):
        other = copy.deepcopy(profile)
        other["metadata"] = {"namespace": "llm", "name": f"p{number}"}
        other["spec"]["serviceRef"]["name"] = f"service-{number:02}"
        world.cluster.put(PROFILES, other)
    world.load(3.0)
    await world.cycle()
    assert len(world.rolls) == 3
    reasons = [s["status"]["decision"]["reason"] for s in world.cluster.of(SERVICES)]
    assert reasons.count("RollWaits") == 2


async def test_a_defect_that_one_service_meets_stops_no_other(monkeypatch, caplog):
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0))
    world.calibrate()
    world.load(3.0)
    second = copy.deepcopy(SERVICE)
    second["metadata"]["name"] = "aaa"
    second["spec"]["targetRef"]["name"] = "nobody"
    world.cluster.put(SERVICES, second)

    def defective(service, *arguments):
        if service.metadata.name == "aaa":
            raise KeyError("surprise")
        return reconcile(service, *arguments)

    monkeypatch.setattr("breakeven_operator.loop.service_decisions.reconcile", defective)
    await world.until(lambda: world.value == VALUE, cycles=3)
    assert "surprise" in caplog.text
    assert "llm/aaa" in caplog.text
    assert world.registry.get_sample_value("breakeven_errors_total", {"reason": "InternalError"}) > 0


async def test_a_calibration_pod_has_no_label_by_which_a_service_or_a_budget_of_the_namespace_picks_pods():
    picked = {"app": "chat", "tier": "serving", "team": "nlp", "kept": "yes"}
    world = FleetWorld(target=lambda target: target["spec"]["template"]["metadata"].update(labels=picked))
    for resource, name, selector in (
        (CORE_SERVICES, "front", {"tier": "serving"}),
        (BUDGETS, "budget", {"matchLabels": {"team": "nlp"}}),
    ):
        body = {"metadata": {"namespace": "llm", "name": name}, "spec": {"selector": selector}}
        world.cluster.put(resource, body)
    world.load(3.0)
    await world.until(lambda: bool(world.cluster.of(JOBS)))
    labels = world.cluster.of(JOBS)[0]["spec"]["template"]["metadata"]["labels"]
    assert labels["kept"] == "yes"
    assert not {"tier", "team"} & labels.keys()


def way_of(world):
    """Pods at a time in the plan of the only run, and the arms whose Jobs are there."""
    (found,) = world.cluster.of(RUNS)
    return found["status"]["plan"].get("podsAtOnce"), sorted(
        job["metadata"]["labels"]["breakeven.dev/arm"] for job in world.cluster.of(JOBS)
    )


def rows_of(arm):
    return lawful_points(arm, LAWS[arm], 2.0 if arm.k else 1.0, prompt_tokens=64.0, output_tokens=32.0)


async def ended(world, *arms):
    """The Jobs of these arms complete, each with points, in one cycle."""
    (found,) = world.cluster.of(RUNS)
    points = list(found["status"].get("points", []))
    for name in arms:
        arm = EAGLE if name.startswith("eagle") else NO_SPECULATION
        start = {"start": f"{name} on a"}
        for index, point in enumerate(rows_of(arm)):
            points.append(stored(name, index, point, world.clock.now()).to_json_object() | start)
    body = {"metadata": {"namespace": "llm", "name": found["metadata"]["name"]}, "status": {"points": points}}
    await world.cluster.apply(RUNS, body, force=True, subresource="status", manager="breakeven-trial")
    for name in arms:
        wanted = job_name(found["metadata"]["name"], name)
        job = next(one for one in world.cluster.of(JOBS) if one["metadata"]["name"] == wanted)
        job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        world.cluster.put(JOBS, job)
    await world.cycle()


async def test_with_places_for_all_arms_they_are_measured_side_by_side_whoever_is_the_operator():
    world = FleetWorld(max_parallel_calibrations=2)
    change(world, lambda spec: spec.setdefault("calibration", {}).update(answers={"check": "Disabled"}))
    world.load(3.0)
    for _ in range(4):
        await world.cycle()
        world.restart()
    assert way_of(world) == (2, ["eagle-3", "none"])
    await ended(world, "none", "eagle/3")
    world.restart()
    await world.cycle()
    assert {"eagle-3-again", "none-again"} <= set(way_of(world)[1])
    await ended(world, "none/again", "eagle/3/again")
    (found,) = world.cluster.of(RUNS)
    assert [arm["phase"] for arm in found["status"]["armStatuses"]] == ["Done"] * 4
    assert world.cluster.of(JOBS) == []
    assert found["status"]["reason"] == "FitRejected", "they come to the fit, which this world refuses"


async def test_while_others_wait_for_a_place_a_run_takes_one_alone():
    world = FleetWorld(max_parallel_calibrations=2)
    world.add_services(1)
    world.load(3.0)
    for _ in range(4):
        await world.cycle()
    assert [run["status"]["plan"].get("podsAtOnce") for run in world.cluster.of(RUNS)] == [None, None]
    assert len(world.cluster.of(JOBS)) == 2
