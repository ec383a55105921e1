"""Writes that the API server refuses: a word with the server's sentence, a wait that grows, and nothing announced that is not."""

from __future__ import annotations

import pytest

from breakeven_operator.kinds import CRONJOBS, DEPLOYMENTS, EVENTS, JOBS, PROFILES, RUNS, SERVICES
from fakes.api_server import AdmissionPolicy
from fakes.fleet_world import VALUE, FleetWorld

KEY = "breakeven.dev/speculative-config"
ANSWERS = {
    "policy": (
        422,
        "ValidatingAdmissionPolicy 'freeze' with binding 'freeze' denied request: no changes today",
    ),
    "policy with a reason": (
        403,
        "ValidatingAdmissionPolicy 'freeze' with binding 'freeze' denied request: ask first",
    ),
    "webhook": (403, 'admission webhook "guard.example.com" denied the request: labels are missing'),
    "webhook that conflicts": (
        409,
        'admission webhook "guard.example.com" denied the request: another change is on',
    ),
    "webhook that is busy": (429, 'admission webhook "guard.example.com" denied the request: too many'),
    "webhook that hangs": (
        500,
        'Internal error occurred: failed calling webhook "guard.example.com": failed to call webhook: deadline exceeded',
    ),
    "schema": (400, "Deployment in version v1 cannot be handled as a Deployment: strict decoding error"),
}


def denying(asked: str, *verbs: str, answer: tuple[int, str] = ANSWERS["policy"]) -> AdmissionPolicy:
    return AdmissionPolicy(lambda verb, of, _new, _old: of == asked and (not verbs or verb in verbs), answer)


def calibrated(**policy: object) -> FleetWorld:
    world = FleetWorld(lambda spec: spec["updatePolicy"].update(stabilizationWindowSeconds=0, **policy))
    world.calibrate()
    world.load(3.0)
    return world


def refused(world: FleetWorld) -> float:
    return world.registry.get_sample_value("breakeven_errors_total", {"reason": "WriteRefused"}) or 0.0


def notes(world: FleetWorld) -> list[str]:
    return [event["note"] for event in world.cluster.of(EVENTS) if event["reason"] == "WriteRefused"]


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_a_roll_that_is_refused_says_so_everywhere_and_none_is_under_way(answer, caplog):
    world = calibrated()
    world.cluster.policies = [denying("deployments", answer=answer)]
    await world.until(lambda: world.reason == "WriteRefused", cycles=5)
    said = "the API server refuses to patch Deployment/llm/chat-vllm (once; next attempt at "
    assert said in world.decision["message"]
    assert world.decision["message"].endswith(answer[1])
    assert (world.phase, world.rolls, world.value) == (None, [], None)
    assert "history" not in world.status, "nothing was rolled"
    ready, progressing = world.condition("Ready"), world.condition("Progressing")
    assert (ready["status"], ready["reason"]) == ("False", "WriteRefused")
    assert answer[1] in ready["message"]
    assert (progressing["status"], progressing["reason"]) == ("False", "WriteRefused")
    assert answer[1] in notes(world)[0]
    assert "RollStarted" not in world.events
    assert refused(world) == 1
    assert any("WriteRefused" in line and answer[1] in line for line in caplog.messages)


async def test_rights_that_are_missing_are_a_refusal_and_come_back_by_themselves():
    world = calibrated()
    world.cluster.missing_rights = {("patch", "deployments")}
    await world.until(lambda: world.reason == "WriteRefused", cycles=5)
    assert 'cannot patch resource "deployments" in API group "apps" in the namespace "llm"' in notes(world)[0]
    world.cluster.missing_rights = set()
    await world.until(lambda: world.value == VALUE, cycles=25)
    await world.until(lambda: world.phase == "Confirming")
    assert world.condition("Ready")["status"] == "True"
    assert world.events.count("RollStarted") == 1


async def test_attempts_become_rare_and_a_status_is_not_written_for_each_cycle_between_them():
    world = calibrated()
    freeze = denying("deployments")
    world.cluster.policies = [freeze]
    for _ in range(120):
        await world.cycle(5.0)
    # At 0, 15, 45, 105, 225 and 465 s.
    assert freeze.denied == 6
    assert refused(world) == freeze.denied
    (event,) = world.cluster.of(EVENTS)[-1:]
    assert event["reason"] == "WriteRefused"
    assert len(notes(world)) == 1, "one Event that counts up"


async def test_a_changed_spec_and_the_resume_annotation_try_at_once():
    world = calibrated()
    freeze = denying("deployments")
    world.cluster.policies = [freeze]
    for _ in range(6):
        await world.cycle()
    before = freeze.denied
    await world.cycle()
    assert freeze.denied == before
    world.cluster.change(
        SERVICES, "llm", "chat", lambda s: s["spec"]["updatePolicy"].update(minGainPercent=4)
    )
    await world.cycle()
    assert freeze.denied == before + 1
    world.cluster.policies = []
    world.cluster.change(
        SERVICES,
        "llm",
        "chat",
        lambda s: s["metadata"].setdefault("annotations", {}).update({"breakeven.dev/resume": "1"}),
    )
    await world.cycle()
    assert world.value == VALUE


async def test_another_generation_of_the_target_is_tried_at_once():
    world = calibrated()
    world.cluster.policies = [
        AdmissionPolicy(
            lambda _v, of, new, _old: of == "deployments" and "minReadySeconds" not in new["spec"]
        )
    ]
    await world.until(lambda: world.reason == "WriteRefused", cycles=5)
    for _ in range(10):
        await world.cycle()
    assert world.value is None
    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", lambda d: d["spec"].update(minReadySeconds=1))
    await world.cycle()
    await world.cycle()
    assert world.value == VALUE


async def test_an_operator_that_starts_again_finds_no_roll_under_way():
    world = calibrated()
    world.cluster.policies = [denying("deployments")]
    await world.until(lambda: world.reason == "WriteRefused", cycles=5)
    world.restart()
    await world.cycle()
    assert (world.reason, world.phase) == ("WriteRefused", None)


async def test_a_value_that_a_webhook_drops_on_its_way_is_a_refusal():
    world = calibrated()
    apply = world.cluster.apply

    async def dropped(resource, body, **options):
        if resource == DEPLOYMENTS:
            body = {**body, "spec": {"template": {"metadata": {"annotations": {}}}}}
        return await apply(resource, body, **options)

    world.cluster.apply = dropped
    await world.until(lambda: world.reason == "WriteRefused", cycles=5)
    assert "read back None" in world.decision["message"]
    assert world.phase is None


async def test_an_undo_that_is_refused_stays_due_and_keeps_no_place():
    world = calibrated()
    world.kubelet.crash = {VALUE}
    await world.until(lambda: world.value == VALUE)
    world.cluster.policies = [denying("deployments")]
    await world.until(lambda: world.reason == "WriteRefused", cycles=20)
    assert (world.phase, world.value) == ("Undoing", VALUE)
    assert world.condition("Progressing")["status"] == "False"
    assert "RolledBack" not in world.events
    failures = world.memory["failures"]
    for _ in range(3):
        await world.cycle()
    assert world.memory["failures"] == failures, "one undo, however often it is tried"
    world.cluster.policies = []
    await world.until(lambda: world.value is None, cycles=25)
    await world.until(lambda: "RolledBack" in world.events)
    assert world.whole["history"][0]["result"] == "Undone"


async def test_an_undo_that_is_refused_keeps_no_other_service_from_rolling():
    world = calibrated()
    world.max_parallel_rolls = 1
    world.restart()
    world.kubelet.crash = {VALUE}
    world.add_services(1, stabilizationWindowSeconds=0, cooldownSeconds=0)
    await world.until(lambda: world.value == VALUE)
    world.cluster.policies = [
        AdmissionPolicy(
            lambda _v, of, new, _old: of == "deployments" and new["metadata"]["name"] == "chat-vllm"
        )
    ]
    await world.until(lambda: world.reason == "WriteRefused", cycles=20)
    (profile,) = world.cluster.of(PROFILES)
    spec = {**profile["spec"], "serviceRef": {"name": "service-00"}}
    world.cluster.put(PROFILES, {**profile, "metadata": {"namespace": "llm", "name": "other"}, "spec": spec})
    for _ in range(4):
        await world.cycle()
    assert ("apply", "deployments", "vllm-00") in world.cluster.writes


async def test_an_annotation_whose_restoring_is_refused_was_not_restored():
    world = calibrated(cooldownSeconds=0)
    await world.until(lambda: world.phase == "Confirming")
    world.load(3.0)
    await world.until(lambda: world.phase is None)

    def replaced(deployment):
        deployment["spec"]["template"]["metadata"]["annotations"].pop(KEY)
        deployment["spec"]["template"]["spec"]["containers"][0]["env"].append({"name": "NOTE", "value": "1"})

    world.cluster.change(DEPLOYMENTS, "llm", "chat-vllm", replaced, manager="terraform")
    world.cluster.policies = [denying("deployments")]
    for _ in range(20):
        await world.cycle()
    assert world.reason == "WriteRefused", "refused three times is not reverted three times"
    assert world.memory.get("restores", 0) == 0
    assert "Restored" not in world.events
    world.cluster.policies = []
    await world.until(lambda: world.value == VALUE, cycles=25)
    assert world.memory["restores"] == 1


async def test_a_status_that_is_refused_is_said_by_an_event_and_changes_no_target():
    world = calibrated()
    world.cluster.missing_rights = {("patch", "speculativeservices/status")}
    for _ in range(20):
        await world.cycle()
    assert world.status == {}
    assert world.value is None, "an intent that is not on record is not acted upon"
    assert "the API server refuses to patch the status of SpeculativeService/llm/chat" in notes(world)[0]
    assert refused(world) <= 6
    world.cluster.missing_rights = set()
    await world.until(lambda: world.value == VALUE, cycles=25)


async def test_a_calibration_that_may_not_be_created_is_said_and_the_rest_of_the_status_is_written():
    world = FleetWorld()
    world.load(3.0)
    policy = denying("calibrationruns", "create", answer=ANSWERS["webhook"])
    world.cluster.policies = [policy]
    for _ in range(20):
        await world.cycle()
    assert (world.reason, world.condition("Calibrated")["reason"]) == ("WriteRefused", "WriteRefused")
    assert world.condition("Ready")["reason"] == "WriteRefused"
    assert ANSWERS["webhook"][1] in world.condition("Calibrated")["message"]
    assert "refuses to create CalibrationRun/llm/chat-" in notes(world)[0]
    assert world.condition("MetricsAvailable")["status"] == "True"
    assert "run" not in world.status.get("calibration", {}), "a run that was never made is not counted"
    assert policy.denied == refused(world)
    assert refused(world) <= 6
    world.cluster.policies = []
    await world.until(lambda: bool(world.cluster.of(RUNS)), cycles=25)
    await world.cycle()
    assert world.condition("Ready")["status"] == "True"


async def test_a_cronjob_that_is_refused_keeps_nothing_else_from_its_place():
    world = FleetWorld(lambda spec: spec["calibration"].update(schedule="0 3 * * 0"))
    world.calibrate()
    world.load(3.0)
    world.cluster.policies = [denying("cronjobs")]
    for _ in range(20):
        await world.cycle()
    assert world.cluster.of(CRONJOBS) == []
    assert world.value == VALUE
    (profile,) = world.cluster.of(PROFILES)
    assert profile["status"]["inForce"] is True
    assert world.condition("Ready")["reason"] == "WriteRefused"
    assert "refuses to apply CronJob/llm/" in world.condition("Ready")["message"]
    assert "refuses to apply CronJob/llm/" in notes(world)[0]
    world.cluster.policies = []
    await world.until(lambda: bool(world.cluster.of(CRONJOBS)), cycles=25)
    await world.cycle()
    await world.cycle()
    assert world.condition("Ready")["status"] == "True"


async def test_a_job_that_is_refused_is_no_attempt_and_ends_the_run_at_its_deadline():
    world = FleetWorld(lambda spec: spec.update(calibration={"pendingDeadlineSeconds": 400}))
    world.load(3.0)
    policy = denying("jobs", "create")
    world.cluster.policies = [policy]

    def run() -> dict:
        return world.cluster.of(RUNS)[0].get("status") or {}

    await world.until(
        lambda: bool(world.cluster.of(RUNS)) and run().get("reason") == "WriteRefused", cycles=10
    )
    assert "refuses to create Job/llm/" in run()["message"]
    assert ANSWERS["policy"][1] in run()["message"]
    for _ in range(10):
        await world.cycle()
    assert all(arm.get("attempts", 0) == 0 for arm in run()["armStatuses"])
    assert run()["phase"] == "Starting"
    await world.until(lambda: run()["phase"] == "Failed", cycles=60)
    assert run()["reason"] == "WriteRefused"
    assert policy.denied < 60
    assert (
        len([event for event in world.cluster.of(EVENTS) if event["regarding"]["kind"] == "CalibrationRun"])
        >= 2
    )
    assert world.cluster.of(JOBS) == []


async def test_events_that_are_refused_cost_nothing_but_themselves():
    world = calibrated()
    world.cluster.missing_rights = {("create", "events")}
    await world.until(lambda: world.phase == "Confirming")
    assert world.events == []
    assert refused(world) >= 1
    assert world.condition("Ready")["status"] == "True", "nothing depends upon Events"


async def test_the_server_s_words_are_bounded_and_print_as_they_are():
    world = calibrated()
    words = "\x1b[31mdenied the request\x00\u202e" + "no " * 5000
    world.cluster.policies = [denying("deployments", answer=(403, words))]
    await world.until(lambda: world.reason == "WriteRefused", cycles=5)
    for text in (world.decision["message"], world.condition("Ready")["message"], *notes(world)):
        assert text.isprintable()
        assert len(text) < 1024


async def test_what_fails_without_being_refused_keeps_its_own_word_and_its_intent():
    world = calibrated()
    world.cluster.policies = [denying("deployments", answer=(503, "etcdserver: leader changed"))]
    await world.until(lambda: world.phase == "Intended", cycles=5)
    assert refused(world) == 0
    assert world.registry.get_sample_value("breakeven_errors_total", {"reason": "ApiError"}) >= 1
    world.cluster.policies = []
    await world.until(lambda: world.value == VALUE, cycles=3)
